#define _GNU_SOURCE /* what all queues share: choosing an engine, and a read from submit to its end */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "store/store_internal.h"

enum { PIECE_BYTES = 1 << 30 }; /* of one call: Linux cuts longer ones a little below 2 GiB */

void read_list_push(struct read_list *l, struct store_read *r)
{
    r->next = NULL;
    if (l->tail)
        l->tail->next = r;
    else
        l->head = r;
    l->tail = r;
}

struct store_read *read_list_pop(struct read_list *l)
{
    struct store_read *r = l->head;
    if (r)
        l->head = r->next;
    if (!l->head)
        l->tail = NULL;
    return r;
}

static size_t head_bytes(const struct store_read *r)
{
    return (size_t)(r->offset % STORE_ALIGN);
}

bool read_begin(const struct store_queue *q, struct store_read *r)
{
    assert((uintptr_t)r->buf % STORE_ALIGN == 0);
    r->bytes = (const char *)r->buf + head_bytes(r);
    r->failure = store_check_range(q->store, r->file, r->offset, r->n_bytes);
    r->n_done = 0;
    r->start_ns = clock_ns();
    if (r->failure != 0 || r->n_bytes == 0)
        return false;
    if (q->store->copies)
        copies_begin(q->store->copies, r->file, r->n_bytes);
    return true;
}

/* Whether the rest is read past the page cache: as long as whole blocks have arrived. */
static bool is_direct(const struct store_queue *q, const struct store_read *r)
{
    return q->direct && q->store->files[r->file].direct_fd >= 0 && r->n_done % STORE_ALIGN == 0;
}

struct read_piece read_rest(const struct store_queue *q, const struct store_read *r)
{
    const struct store_file *f = &q->store->files[r->file];
    bool direct = is_direct(q, r);
    size_t end = direct ? store_read_room(r->offset, r->n_bytes) : head_bytes(r) + r->n_bytes;
    size_t rest = end - r->n_done;
    return (struct read_piece){.fd = direct ? f->direct_fd : f->fd,
                               .offset = r->offset - head_bytes(r) + r->n_done,
                               .dst = (char *)r->buf + r->n_done,
                               .n_bytes = rest < PIECE_BYTES ? rest : PIECE_BYTES};
}

bool read_advance(const struct store_queue *q, struct store_read *r, ssize_t result)
{
    if (result == -EINTR || result == -EAGAIN)
        return false;
    if (result <= 0) {
        r->failure = result ? (int)-result : READ_ENDED;
    } else {
        r->n_done += (size_t)result;
        if (r->n_done < head_bytes(r) + r->n_bytes)
            return false;
        store_count(q->store, 1, r->n_bytes);
    }
    if (q->store->copies)
        copies_end(q->store->copies, r->file, r->n_bytes, r->failure == 0);
    return true;
}

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
