/* The file that quantize makes, OUT.unfinished until it is complete, with a journal of the pieces that are in it, so
 * that an interrupted run can go on. Internal to quantize.
 *
 * The journal lies behind the file's last byte and is cut off in the end. It holds a checksum of each piece: a piece
 * that did not reach the disk, or has changed there, is made again. */
#ifndef JOBS_QUANTIZE_PART_H
#define JOBS_QUANTIZE_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* A piece that is done. */
struct part_piece {
    uint32_t crc;   /* CRC32C of its bytes */
    uint32_t check; /* CRC32C of the other fields and the piece's number; with another value the piece is not there */
    double error, size; /* for the report, as in struct quantize_sums */
};

struct quantize_part {
    char *out; /* that the file becomes: what a link means, not the link */
    char *path;
    int fd;                    /* locked; -1: not open */
    uint64_t n_byte;           /* bytes of the complete file */
    size_t n_piece;            /* pieces of the complete file */
    size_t n_found;            /* pieces that a run before has done, as the journal says */
    struct part_piece *pieces; /* [n_piece] */
    bool is_stale;             /* an unfinished file of another source or other settings was dropped */
};

/* Creates the unfinished file or opens an earlier run's. fingerprint: a hash of all that its bytes depend on. n_byte:
 * bytes of the complete file. Close it after a failure, too. */
MUST_USE err_code part_open(struct quantize_part *p, const char *out, uint64_t fingerprint, uint64_t n_byte,
                            size_t n_piece, struct err *e);
/* remove: deletes the unfinished file, as no run can go on with it. Accepts what was finished or never opened. */
void part_close(struct quantize_part *p, bool remove);

/* Whether piece i, n bytes at `off`, is in the file: its journal entry and its checksum are right. pieces[i] is then
 * filled. buffer: n bytes of work space. */
bool part_has(const struct quantize_part *p, size_t i, uint64_t off, void *buffer, size_t n);
/* part_write writes any bytes; part_add writes a piece and its entry in the journal. Thread-safe. */
MUST_USE err_code part_write(const struct quantize_part *p, uint64_t off, const void *bytes, size_t n, struct err *e);
MUST_USE err_code part_add(struct quantize_part *p, size_t i, uint64_t off, const void *bytes, size_t n, double error,
                           double size, struct err *e);
/* Renames the file to OUT. */
MUST_USE err_code part_finish(struct quantize_part *p, struct err *e);

#endif
