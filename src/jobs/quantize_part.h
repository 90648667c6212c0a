/* The file that quantize makes, OUT.unfinished until it is whole, and a journal of the pieces that are in it, so that
 * an interrupted run goes on. Internal to quantize.
 *
 * The journal lies behind the file's last byte and goes when the file is whole. It holds a checksum of each piece: what
 * did not reach the disk, or has changed there, is found out and made again. */
#ifndef JOBS_QUANTIZE_PART_H
#define JOBS_QUANTIZE_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* A piece that is done: its bytes' checksum, and what the report wants to know of it. */
struct part_piece {
    uint32_t crc;
    uint32_t check; /* of the other fields and the piece's number; anything else: the piece is not there */
    double error, size;
};

struct quantize_part {
    char *out; /* that the file becomes: what a link means, not the link */
    char *path;
    int fd; /* locked; -1: not open */
    uint64_t n_byte;
    size_t n_piece, n_found; /* found: done by a run before, as the journal says */
    struct part_piece *pieces;
    bool is_stale; /* there was one of another source or other settings, and it was dropped */
};

/* Makes or finds the unfinished file. fingerprint: of all that its bytes depend on; n_byte: when it is whole. Half-open
 * after a failure. */
MUST_USE err_code part_open(struct quantize_part *p, const char *out, uint64_t fingerprint, uint64_t n_byte,
                            size_t n_piece, struct err *e);
/* remove: there is no use in going on with it. Accepts what was finished or never opened. */
void part_close(struct quantize_part *p, bool remove);

/* Whether piece i is there, of n bytes at `off`, as the journal says and the checksum confirms; buffer: n bytes. Then
 * pieces[i] tells of it. */
bool part_has(const struct quantize_part *p, size_t i, uint64_t off, void *buffer, size_t n);
/* Any bytes, and a piece with its entry in the journal. From any thread. */
MUST_USE err_code part_write(const struct quantize_part *p, uint64_t off, const void *bytes, size_t n, struct err *e);
MUST_USE err_code part_add(struct quantize_part *p, size_t i, uint64_t off, const void *bytes, size_t n, double error,
                           double size, struct err *e);
/* The file appears as OUT. */
MUST_USE err_code part_finish(struct quantize_part *p, struct err *e);

#endif
