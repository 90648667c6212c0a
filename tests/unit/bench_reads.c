/* How fast random experts are read through a store's queue, which is what a model bigger than memory waits for:
 *     bench_reads MODEL.gguf DIR[,DIR]|- auto|io_uring|pread on|off DEPTH SECONDS
 * from a prepared store in one directory or two, or from the GGUF (-). Prints bandwidth, latency and the processor time
 * that it took. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/random.h"
#include "engine/expert_images.h"
#include "kernels/kernels.h"

struct bench {
    struct pool *pool;
    struct backend *device;
    struct gguf *g;
    struct store *s;
    struct store_queue *q;
    struct layout_image *images;
    struct random random;
    struct store_blob blob; /* whose parts are given out */
    int next_part;
    char *region; /* where they go, one place after the other */
    size_t place_bytes;
    int n_place, next_place;
};

/* Slots are in memory and not in the processor's cache, where a virtual drive copies faster. */
enum { REGION_BYTES = 256 << 20 };

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void say(void *user, enum log_level level, const char *line)
{
    fprintf(stderr, "%s\n", line);
}

static err_code open_all(struct bench *b, char **argv, struct err *e)
{
    struct store_queue_params p = {.depth = atoi(argv[5])};
    enum cpu_level best;
    TRY(cpu_level_detect(&best, e));
    p.engine = !strcmp(argv[3], "auto")    ? STORE_ENGINE_AUTO
               : !strcmp(argv[3], "pread") ? STORE_ENGINE_PREAD
                                           : STORE_ENGINE_IO_URING;
    p.direct = strcmp(argv[4], "on") ? STORE_DIRECT_OFF : STORE_DIRECT_ON;
    static const struct log log = {.sink = say};
    char *comma = strchr(argv[2], ',');
    const char *dirs[] = {argv[2], comma ? comma + 1 : NULL};
    if (comma)
        *comma = 0;
    TRY(gguf_open(&b->g, argv[1], e));
    TRY(store_open_gguf(&b->s, b->g, e));
    TRY(pool_create(&b->pool, 1, e));
    TRY(backend_cpu_open(&b->device, b->pool, kernels_for(best), e));
    TRY(expert_images(b->device, b->s, &b->images, e));
    if (strcmp(dirs[0], "-") != 0)
        TRY(store_attach(b->s, dirs, comma ? 2 : 1, b->images, &log, e));
    return store_queue_open(&b->q, b->s, &p, e);
}

/* The next part of a random expert. */
static void set_read(struct bench *b, struct store_read *r)
{
    while (b->next_part == EXPERT_N_MATRIX) {
        int layer = (int)(random_u32(&b->random) % (uint32_t)store_n_layers(b->s));
        int n = store_get_layer(b->s, layer)->n_expert;
        if (n == 0)
            continue;
        store_expert_blob(b->s, layer, (int)(random_u32(&b->random) % (uint32_t)n), &b->blob);
        b->next_part = 0;
    }
    const struct store_blob_part *p = &b->blob.part[b->next_part++];
    r->file = p->file;
    r->offset = p->offset;
    r->n_bytes = p->n_bytes;
    r->buf = b->region + (size_t)b->next_place * b->place_bytes;
    b->next_place = (b->next_place + 1) % b->n_place;
}

static void run(struct bench *b, struct store_read *reads, int depth, double seconds)
{
    struct store_read *done[STORE_MAX_DEPTH];
    int64_t start = clock_ns(), n_read = 0, latency_ns = 0;
    double cpu = cpu_seconds(), took = 0, n_bytes = 0;
    size_t n = (size_t)depth;
    for (int i = 0; i < depth; i++)
        done[i] = &reads[i];
    while (took < seconds) {
        for (size_t i = 0; i < n; i++)
            set_read(b, done[i]);
        store_queue_submit(b->q, done, n);
        n = store_queue_collect(b->q, done, STORE_MAX_DEPTH, true);
        for (size_t i = 0; i < n; i++) {
            latency_ns += clock_ns() - done[i]->start_ns;
            n_bytes += (double)done[i]->n_bytes;
            if (done[i]->failure)
                abort();
        }
        n_read += (int64_t)n;
        took = (double)(clock_ns() - start) / 1e9;
    }
    printf("%s: depth %d, %.0f bytes a read: %.3f GB/s, latency %.2f ms, processor %.0f ms/GB\n",
           store_queue_engine(b->q), depth, n_bytes / (double)n_read, n_bytes / 1e9 / took,
           (double)latency_ns / (double)n_read / 1e6, (cpu_seconds() - cpu) * 1e12 / n_bytes);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct bench b = {.random = random_seed((uint64_t)clock_ns()),
                      .next_part = EXPERT_N_MATRIX}; /* never what the drive's caches saw before */
    if (argc != 7)
        return 2;
    int depth = atoi(argv[5]);
    struct store_read *reads = mem_calloc((size_t)depth, sizeof *reads);
    if (open_all(&b, argv, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    for (int l = 0; l < store_n_layers(b.s); l++)
        b.place_bytes = b.images[l].n_bytes > b.place_bytes ? b.images[l].n_bytes : b.place_bytes;
    b.place_bytes = store_read_room(STORE_ALIGN - 1, b.place_bytes);
    b.n_place = depth + (int)(REGION_BYTES / b.place_bytes);
    size_t n_bytes = (size_t)b.n_place * b.place_bytes;
    b.region = mem_map(n_bytes, MEM_SCRATCH); /* in huge pages, as slots are */
    memset(b.region, 1, n_bytes);
    run(&b, reads, depth, atof(argv[6]));
    store_queue_close(&b.q);
    store_close(&b.s);
    gguf_close(&b.g);
    return 0;
}
