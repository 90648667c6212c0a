/* How fast a file is read at random places through a store's queue:
 *     bench_reads MODEL.gguf io_uring|pread on|off N_BYTES DEPTH SECONDS
 * Prints bandwidth and the processor time that it took. Use a file much larger than what is read, or --direct on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "store/store.h"

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void bench(struct store_queue *q, struct store_read *reads, int depth, uint64_t file_bytes, size_t n_bytes,
                  double seconds)
{
    struct random random = random_seed(1);
    int64_t start = clock_ns(), n_read = 0, latency_ns = 0;
    double cpu = cpu_seconds(), took = 0;
    struct store_read *done[STORE_MAX_DEPTH];
    size_t n = (size_t)depth;
    for (int i = 0; i < depth; i++)
        done[i] = &reads[i];
    while (took < seconds) {
        for (size_t i = 0; i < n; i++)
            done[i]->offset = (((uint64_t)random_u32(&random) << 32) + random_u32(&random)) % (file_bytes - n_bytes);
        store_queue_submit(q, done, n);
        n = store_queue_collect(q, done, STORE_MAX_DEPTH, true);
        for (size_t i = 0; i < n; i++) {
            latency_ns += clock_ns() - done[i]->start_ns;
            if (done[i]->failure)
                abort();
        }
        n_read += (int64_t)n;
        took = (double)(clock_ns() - start) / 1e9;
    }
    double gb = (double)n_read * (double)n_bytes / 1e9;
    printf("%s: %zu bytes, depth %d: %.3f GB/s, latency %.2f ms, processor %.0f ms/GB\n", store_queue_engine(q),
           n_bytes, depth, gb / took, (double)latency_ns / (double)n_read / 1e6, (cpu_seconds() - cpu) * 1e3 / gb);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct gguf *g = NULL;
    struct store *s = NULL;
    struct store_queue *q = NULL;
    if (argc != 7)
        return 2;
    int depth = atoi(argv[5]);
    size_t n_bytes = (size_t)atoll(argv[4]);
    struct store_queue_params p = {.depth = depth,
                                   .engine = strcmp(argv[2], "pread") ? STORE_ENGINE_IO_URING : STORE_ENGINE_PREAD,
                                   .direct = strcmp(argv[3], "on") ? STORE_DIRECT_OFF : STORE_DIRECT_ON};
    struct store_read *reads = mem_calloc((size_t)depth, sizeof *reads);
    if (gguf_open(&g, argv[1], &e) || store_open_gguf(&s, g, &e) || store_queue_open(&q, s, &p, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    for (int i = 0; i < depth; i++) {
        reads[i] = (struct store_read){.n_bytes = n_bytes};
        reads[i].buf = mem_map(store_read_room(STORE_ALIGN - 1, n_bytes), MEM_SCRATCH);
    }
    bench(q, reads, depth, gguf_file_bytes(g, 0), n_bytes, atof(argv[6]));
    store_queue_close(&q);
    store_close(&s);
    gguf_close(&g);
    return 0;
}
