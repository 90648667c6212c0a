#include "jobs/scan.h"

#include <stdatomic.h>

#include "base/mem.h"
#include "base/pool.h"

/* Threads read and wait for the drive, so there may be more of them than processors. */
enum { MIN_READERS = 8 };

struct scan {
    const struct scan_params *p;
    struct pool *pool;
    struct scan_reader { /* one a thread */
        struct store_queue *queue;
        void *buf;
    } * readers;
    atomic_ullong done_bytes;
    atomic_bool stop;
};

static size_t buffer_bytes(void)
{
    return store_read_room(STORE_ALIGN - 1, SCAN_CHUNK_BYTES);
}

static err_code read_piece(struct scan *s, struct scan_reader *reader, size_t i, struct err *e)
{
    size_t unit = 1;
    const struct scan_params *p = s->p;
    const struct scan_piece piece = p->piece(p->user, i, &unit);
    size_t most = SCAN_CHUNK_BYTES / unit * unit;
    for (uint64_t done = 0; done < piece.n_bytes && !atomic_load(&s->stop);) {
        size_t n = piece.n_bytes - done < most ? (size_t)(piece.n_bytes - done) : most;
        struct store_read r = {.file = piece.file, .offset = piece.offset + done, .n_bytes = n, .buf = reader->buf};
        struct store_read *read = &r, *got;
        store_queue_submit(reader->queue, &read, 1);
        store_queue_collect(reader->queue, &got, 1, true);
        if (r.failure)
            return store_read_error(p->store, &r, e);
        p->chunk(p->user, i, r.bytes, n);
        done += n;
        uint64_t total = atomic_fetch_add(&s->done_bytes, n) + n;
        if (p->progress && !p->progress(p->progress_user, total, p->n_bytes))
            atomic_store(&s->stop, true);
    }
    return ERR_OK;
}

static void scan_task(void *arg, size_t task, int thread)
{
    struct scan *s = arg;
    struct err e = {0};
    if (atomic_load(&s->stop))
        return;
    err_code code = read_piece(s, &s->readers[thread], task, &e);
    if (code != ERR_OK || !atomic_load(&s->stop)) /* else it is half read */
        s->p->end(s->p->user, task, code == ERR_OK ? NULL : &e);
}

static err_code open_readers(struct scan *s, struct err *e)
{
    int n = s->p->n_threads ? s->p->n_threads : pool_default_threads();
    n = n < MIN_READERS ? MIN_READERS : n;
    TRY(pool_create(&s->pool, n, e));
    s->readers = mem_calloc((size_t)n, sizeof *s->readers);
    if (!s->readers)
        return err_nomem(e, (size_t)n * sizeof *s->readers, "readers");
    for (int i = 0; i < n; i++) {
        TRY(store_queue_open(&s->readers[i].queue, s->p->store, &(struct store_queue_params){.depth = 1}, e));
        s->readers[i].buf = mem_map(buffer_bytes(), MEM_SCRATCH);
        if (!s->readers[i].buf)
            return err_nomem(e, buffer_bytes(), "reading");
    }
    return ERR_OK;
}

err_code scan_run(const struct scan_params *p, struct err *e)
{
    struct scan s = {.p = p};
    err_code code = open_readers(&s, e);
    if (code == ERR_OK)
        pool_run(s.pool, p->n_piece, scan_task, &s);
    if (code == ERR_OK && atomic_load(&s.stop))
        code = err_set(e, ERR_CANCELLED, "stopped");
    for (int i = 0; s.readers && i < pool_n_threads(s.pool); i++) {
        store_queue_close(&s.readers[i].queue);
        if (s.readers[i].buf)
            mem_unmap(s.readers[i].buf, buffer_bytes(), MEM_SCRATCH);
    }
    mem_free(s.readers);
    pool_close(&s.pool);
    return code;
}
