#define _GNU_SOURCE /* opening a queue: choosing what carries out its reads */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "store/store_internal.h"

/* The engine that was asked for; AUTO falls back to threads, and *why says for what reason. */
static err_code open_engine(struct store_queue **out, enum store_engine engine, int depth, struct err *why,
                            struct err *e)
{
#if defined(MOEBIUS_WITH_IO_URING)
    err_code code = engine == STORE_ENGINE_PREAD ? ERR_OK : queue_uring_open(out, depth, why);
#else
    err_code code =
        engine == STORE_ENGINE_PREAD ? ERR_OK : err_set(why, ERR_UNSUPPORTED, "io_uring: not in this build");
#endif
    if (code != ERR_OK && engine == STORE_ENGINE_IO_URING)
        return err_set(e, code, "%s", why->text);
    return *out ? ERR_OK : queue_pool_open(out, depth, e);
}

/* Whether all files can be read past the page cache, and if not, *why. */
static bool direct_possible(const struct store *s, struct err *why)
{
    for (int i = 0; i < s->n_files; i++)
        if (s->files[i].direct_fd < 0) {
            err_set(why, ERR_UNSUPPORTED, "O_DIRECT: %s: %s", s->files[i].path, strerror(s->files[i].direct_refusal));
            return false;
        }
    return true;
}

err_code store_queue_open(struct store_queue **out, struct store *s, const struct store_queue_params *p, struct err *e)
{
    struct err no_engine = {0}, no_direct = {0};
    *out = NULL;
    if (!p)
        p = &s->queue_params;
    int depth = p->depth ? p->depth : STORE_DEPTH;
    if (depth < 1 || depth > STORE_MAX_DEPTH)
        return err_set(e, ERR_USAGE, "%d reads in flight: expected 1 to %d", depth, STORE_MAX_DEPTH);
    if (s->ops->queue_open) {
        TRY(s->ops->queue_open(out, s, e));
        (*out)->store = s;
        return ERR_OK;
    }
    bool direct = p->direct != STORE_DIRECT_OFF && direct_possible(s, &no_direct);
    if (!direct && p->direct == STORE_DIRECT_ON)
        return err_set(e, no_direct.code, "%s", no_direct.text);
    TRY(open_engine(out, p->engine, depth, &no_engine, e));
    struct store_queue *q = *out;
    q->store = s;
    q->direct = p->direct != STORE_DIRECT_OFF; /* where a file permits it */
    snprintf(q->engine, sizeof q->engine, "%s, %s%s%.400s%s%.400s%s", q->ops->name, direct ? "O_DIRECT" : "page cache",
             no_engine.code || no_direct.code ? " (" : "", no_engine.text, no_engine.code && no_direct.code ? "; " : "",
             no_direct.text, no_engine.code || no_direct.code ? ")" : "");
    return ERR_OK;
}

void store_set_queue_params(struct store *s, const struct store_queue_params *p)
{
    s->queue_params = *p;
}

void store_queue_close(struct store_queue **q)
{
    if (*q)
        (*q)->ops->close(*q);
    *q = NULL;
}

void store_queue_submit(struct store_queue *q, struct store_read *const *reads, size_t n)
{
    q->ops->submit(q, reads, n);
}

size_t store_queue_collect(struct store_queue *q, struct store_read **done, size_t max, bool wait)
{
    return max ? q->ops->collect(q, done, max, wait) : 0;
}

const char *store_queue_engine(const struct store_queue *q)
{
    return q->engine;
}

struct store_queue_params store_get_queue_params(const struct store *s)
{
    return s->queue_params;
}
