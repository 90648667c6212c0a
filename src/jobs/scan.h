/* Reads stretches of a model's files with many threads, and hands their bytes over in order, chunk by chunk. For what
 * looks at all of a file. */
#ifndef JOBS_SCAN_H
#define JOBS_SCAN_H

#include "store/store.h"

struct scan_piece {
    int file; /* as in struct store_range */
    uint64_t offset, n_bytes;
};

enum { SCAN_CHUNK_BYTES = 4 << 20 };

struct scan_params {
    struct store *store;
    size_t n_piece;
    uint64_t n_bytes; /* of all pieces, for progress */
    int n_threads;    /* 0: one for each processor, and a few at least, as they wait for drives */
    /* These are called from any thread, for one piece from one thread at a time. `unit`: chunks are a whole number of
     * so many bytes; at most SCAN_CHUNK_BYTES. */
    struct scan_piece (*piece)(void *user, size_t i, size_t *unit);
    void (*chunk)(void *user, size_t i, const void *bytes, size_t n_bytes);
    /* The piece was read to its end, or can't be read: *failure says why; NULL: it was. */
    void (*end)(void *user, size_t i, const struct err *failure);
    bool (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* false ends the scan; may be NULL */
    void *progress_user;
    void *user;
};

/* ERR_CANCELLED when progress said so: some pieces then did not end. */
MUST_USE err_code scan_run(const struct scan_params *p, struct err *e);

#endif
