/* What is known of the pieces of a file that is being fetched, in a small file beside it, NAME.pieces: the checksum of
 * each piece as it arrived. So damage on the drive is found piece by piece, though the server states a checksum of the
 * whole file alone, and a later run knows what the part is of. Losing the table loses no byte of the file. */
#ifndef HUB_PIECE_TABLE_H
#define HUB_PIECE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { PIECE_BYTES = 4 << 20 };

enum piece_state {
    PIECE_UNKNOWN,   /* nothing is known of it */
    PIECE_RECEIVED,  /* arrived so */
    PIECE_CONFIRMED, /* arrived twice, the same each time */
};

struct piece {
    uint32_t crc; /* CRC32C */
    uint32_t state;
};

struct piece_table {
    int fd;               /* -1: closed */
    const char *path;     /* borrowed */
    struct piece *pieces; /* [n], owned */
    uint64_t n;
};

/* Reads the table of a file of n_bytes that is known by `tag` (its checksum or ETag, at most 127 bytes), or begins one
 * where there is none or that of another file. `name`: what `moebius list` says the part is of. A short or damaged
 * table counts as far as it can be meant. */
MUST_USE err_code piece_table_open(struct piece_table *t, const char *path, uint64_t n_bytes, const char *tag,
                                   const char *name, struct err *e);
void piece_table_close(struct piece_table *t);

/* Notes what is known of a piece, in memory and in the file. */
MUST_USE err_code piece_table_put(struct piece_table *t, uint64_t i, struct piece p, struct err *e);

/* What a table says its file is: sizes of buffers include the NUL; false: it is none. */
enum { PIECE_TAG_BYTES = 128, PIECE_NAME_BYTES = 1400 };
struct piece_label {
    uint64_t n_bytes;
    char tag[PIECE_TAG_BYTES], name[PIECE_NAME_BYTES];
};
bool piece_table_label(const char *path, struct piece_label *out);

/* The part of a file that will be PATH: PATH.incomplete. False: longer than paths may be. */
bool part_path(const char *path, char *out, size_t n_out);
/* How many bytes it has; 0: there is none. */
uint64_t part_bytes(const char *path);

#endif
