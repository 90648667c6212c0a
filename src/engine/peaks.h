/* Measures how fast a pool's threads read memory and multiply, for `bench` and `probe`. Each function takes the best of
 * n_run runs. */
#ifndef ENGINE_PEAKS_H
#define ENGINE_PEAKS_H

#include "base/pool.h"
#include "kernels/kernels.h"

enum { PEAK_CHUNK_BYTES = 4 << 20 }; /* what a task reads */

/* Writes n_chunk chunks of memory before they are read: pages that were never written are all the same page of zeros,
 * and a page lies near the thread that writes it first. */
void peaks_write(struct pool *pool, char *memory, size_t n_chunk);
/* Bytes a second of reading these; every second run prefetches. */
double peaks_read(struct pool *pool, const struct kernels *k, char *memory, size_t n_chunk, int n_run);
/* Multiply-adds a second of n_threads threads of the pool. peaks_tiles returns 0 if the kernels have no tiles. */
double peaks_int8(struct pool *pool, const struct kernels *k, int n_threads, int n_run);
double peaks_float(struct pool *pool, const struct kernels *k, int n_threads, int n_run);
double peaks_tiles(struct pool *pool, const struct kernels *k, int n_threads, int n_run);

#endif
