/* Checksums of the pieces of a file that is being downloaded, as they arrived, in a small file beside it, NAME.pieces.
 * They show which piece was damaged on the drive, although the server states a checksum of the whole file only, and
 * tell a later run which file the part belongs to. Losing the table loses no byte of the file. */
#ifndef HUB_PIECE_TABLE_H
#define HUB_PIECE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { PIECE_BYTES = 4 << 20 };

enum piece_state {
    PIECE_UNKNOWN,   /* the checksum is not known */
    PIECE_RECEIVED,  /* the piece arrived with this checksum */
    PIECE_CONFIRMED, /* the piece arrived twice with this checksum */
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

/* Reads the table of a file of n_bytes with the `tag` (its checksum or ETag, at most 127 bytes), or begins a new one if
 * there is none, or one of another file. `name`: the model's name in `moebius list`. A short or damaged table is used
 * as far as it is valid. */
MUST_USE err_code piece_table_open(struct piece_table *t, const char *path, uint64_t n_bytes, const char *tag,
                                   const char *name, struct err *e);
void piece_table_close(struct piece_table *t);

/* Sets the state of a piece, in memory and in the file. */
MUST_USE err_code piece_table_put(struct piece_table *t, uint64_t i, struct piece p, struct err *e);

/* The file that a table belongs to. Sizes of buffers include the NUL. */
enum { PIECE_TAG_BYTES = 128, PIECE_NAME_BYTES = 1400 };
struct piece_label {
    uint64_t n_bytes;
    char tag[PIECE_TAG_BYTES], name[PIECE_NAME_BYTES];
};
bool piece_table_label(const char *path, struct piece_label *out); /* false: it is no table */

/* The path of a file's part: PATH.incomplete. False: it is too long. */
bool part_path(const char *path, char *out, size_t n_out);
/* The size of a part; 0: there is none. */
uint64_t part_bytes(const char *path);

#endif
