/* How fast a pool's threads read memory and multiply: what `bench` measures beside its runs, and `probe` once. Of n_run
 * runs the best counts. */
#ifndef ENGINE_PEAKS_H
#define ENGINE_PEAKS_H

#include "base/pool.h"
#include "kernels/kernels.h"

enum { PEAK_CHUNK_BYTES = 4 << 20 }; /* of memory: what a task reads */

/* Writes n_chunk chunks of memory: pages that were never written are all the same one, and each shall lie near a thread
 * that reads it. */
void peaks_write(struct pool *pool, char *memory, size_t n_chunk);
/* Bytes a second of reading these, in turns with asking for bytes ahead and without. */
double peaks_read(struct pool *pool, const struct kernels *k, char *memory, size_t n_chunk, int n_run);
/* Multiply-adds a second, with n_threads of the pool in use; tiles: 0 where the kernels have none. */
double peaks_int8(struct pool *pool, const struct kernels *k, int n_threads, int n_run);
double peaks_float(struct pool *pool, const struct kernels *k, int n_threads, int n_run);
double peaks_tiles(struct pool *pool, const struct kernels *k, int n_threads, int n_run);

#endif
