#include "places/worker.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/event.h"

enum { ASK_NS = 4 * 1000 * 1000 }; /* how often a caller that waits asks whether it is cancelled */

struct worker;
typedef void job_fn(struct worker *w);

/* One thread posts jobs, one at a time; the other runs them. What the one wrote before it posted, and the other before
 * it was done, both see. */
struct worker {
    struct place base;
    struct worker_params p; /* the name is owned */
    pthread_t thread;
    struct event posted, done;      /* how many jobs were posted, and are done */
    job_fn *job;                    /* the one in hand; NULL: the thread is to end */
    struct place_layer_stats *sent; /* [n_layer] what the caller's side counts: waits and bytes */
    struct place_call call;
    const struct cancel *asked; /* the caller's; may be NULL */
    struct cancel cancel;       /* the call's: asks is_cancelled */

    const int32_t *ids; /* [n] of a prediction for `layer` */
    int64_t n;
    size_t n_bytes;           /* to leave free, or to make room for */
    const struct usage *past; /* to warm up by; may be NULL */
    int layer;
    err_code code; /* what the job came to */
    struct err err;

    bool is_likely; /* the prediction */
    bool is_started;
    bool is_in_call; /* the caller's: between begin and finish */
    atomic_bool is_cancelled;
};

static struct worker *worker_of(struct place *p)
{
    return (struct worker *)p;
}

/* ---- the thread ------------------------------------------------------------------------------------------------ */

static void reclaim_own(void *user, size_t n_bytes)
{
    struct worker *w = user;
    experts_reclaim(w->p.experts, n_bytes);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    mem_set_thread_reclaim(reclaim_own, w);
    for (unsigned seen = 0;; seen++) {
        event_wait(&w->posted, seen, w->p.n_spin, 0);
        if (!w->job)
            return NULL;
        w->job(w);
        event_signal(&w->done);
    }
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static void post(struct worker *w, job_fn *job)
{
    w->job = job;
    event_signal(&w->posted);
}

/* Waits for the job in hand; meanwhile `cancel` (may be NULL) is asked, and a yes goes on to the job. */
static void wait_done(struct worker *w, const struct cancel *cancel)
{
    unsigned n_posted = atomic_load(&w->posted.value);
    for (int n_spin = w->p.n_spin; atomic_load(&w->done.value) != n_posted; n_spin = 0) {
        event_wait(&w->done, n_posted - 1, n_spin, cancel ? ASK_NS : 0);
        if (cancel && cancel_is_wanted(cancel))
            atomic_store(&w->is_cancelled, true);
    }
}

static void run_job(struct worker *w, job_fn *job)
{
    assert(!w->is_in_call);
    post(w, job);
    wait_done(w, NULL);
}

static void call_job(struct worker *w)
{
    int64_t before_ns = compute_layer_stats(w->p.compute, w->call.layer).compute_ns;
    pool_set_cancel(w->p.pool, &w->cancel);
    w->code = compute_run(w->p.compute, &w->call, &w->err);
    pool_set_cancel(w->p.pool, NULL);
    w->base.compute_ns = compute_layer_stats(w->p.compute, w->call.layer).compute_ns - before_ns;
}

static void predict_job(struct worker *w)
{
    compute_predict(w->p.compute, w->layer, w->ids, w->n, w->is_likely);
}

static void open_job(struct worker *w)
{
    compute_trim(w->p.compute);
    w->code = experts_open(w->p.experts, w->n_bytes, &w->err);
    if (w->code == ERR_OK && w->past)
        w->code = experts_warm(w->p.experts, w->past, &w->err);
}

static void reclaim_job(struct worker *w)
{
    experts_reclaim(w->p.experts, w->n_bytes);
}

static void forget_job(struct worker *w)
{
    experts_forget(w->p.experts);
}

/* ---- the place --------------------------------------------------------------------------------------------------- */

/* What went wrong, in the place's name. */
static err_code fail(const struct worker *w, struct err *e)
{
    if (w->code == ERR_OK || w->code == ERR_CANCELLED)
        return w->code == ERR_OK ? ERR_OK : err_set(e, w->code, "%s", w->err.text);
    return err_set(e, w->code, "%s: %s", w->p.name, w->err.text);
}

static bool is_cancelled(void *user)
{
    struct worker *w = user;
    return atomic_load(&w->is_cancelled);
}

static void begin(struct place *p, const struct place_call *c)
{
    struct worker *w = worker_of(p);
    struct place_layer_stats *s = &w->sent[c->layer];
    uint64_t n_entry = (uint64_t)(c->n_tok * c->n_used);
    assert(!w->is_in_call);
    w->is_in_call = true;
    w->call = *c;
    w->call.cancel = &w->cancel;
    w->cancel = (struct cancel){is_cancelled, w};
    atomic_store(&w->is_cancelled, false);
    s->n_to_bytes += (uint64_t)(c->n_tok * c->n_embd) * sizeof *c->x +
                     n_entry * (sizeof *c->ids + (c->weights ? sizeof *c->weights : 0));
    s->n_replica_row += (uint64_t)c->n_replica_row;
    s->n_from_bytes += (uint64_t)(c->n_row * c->n_embd) * sizeof *c->y;
    w->asked = c->cancel;
    post(w, call_job);
}

static err_code finish(struct place *p, struct err *e)
{
    struct worker *w = worker_of(p);
    int64_t begin_ns = clock_ns();
    assert(w->is_in_call);
    wait_done(w, w->asked);
    w->is_in_call = false;
    w->sent[w->call.layer].finish_wait_ns += clock_ns() - begin_ns;
    return fail(w, e);
}

static void cancel(struct place *p)
{
    atomic_store(&worker_of(p)->is_cancelled, true);
}

static void predict(struct place *p, int layer, const int32_t *ids, int64_t n, bool is_likely)
{
    struct worker *w = worker_of(p);
    w->layer = layer;
    w->ids = ids;
    w->n = n;
    w->is_likely = is_likely;
    run_job(w, predict_job);
}

static bool lend(struct place *p, int layer, int32_t expert, struct expert_bytes *out)
{
    const struct worker *w = worker_of(p);
    assert(!w->is_in_call);
    return experts_lend(w->p.experts, layer, expert, out);
}

static err_code open(struct place *p, size_t spare_bytes, const struct usage *past, struct err *e)
{
    struct worker *w = worker_of(p);
    w->n_bytes = spare_bytes;
    w->past = past;
    run_job(w, open_job);
    return fail(w, e);
}

static err_code layer_stats(struct place *p, int layer, struct place_layer_stats *out, struct err *e)
{
    const struct worker *w = worker_of(p);
    const struct place_layer_stats *s = &w->sent[layer];
    *out = compute_layer_stats(w->p.compute, layer);
    out->n_replica_row = s->n_replica_row;
    out->finish_wait_ns = s->finish_wait_ns;
    out->n_to_bytes = s->n_to_bytes;
    out->n_from_bytes = s->n_from_bytes;
    return ERR_OK;
}

static err_code facts(struct place *p, struct place_facts *out, struct err *e)
{
    struct worker *w = worker_of(p);
    wait_done(w, NULL);
    *out = (struct place_facts){.name = w->p.name,
                                .open_bytes = experts_open_bytes(w->p.experts),
                                .all_bytes = experts_max_bytes(w->p.experts)};
    return ERR_OK;
}

static void reclaim(struct place *p, size_t n_bytes)
{
    struct worker *w = worker_of(p);
    bool is_in_call = w->is_in_call;
    if (is_in_call)
        wait_done(w, NULL);
    w->is_in_call = false;
    w->n_bytes = n_bytes;
    post(w, reclaim_job);
    wait_done(w, NULL);
    w->is_in_call = is_in_call;
}

static void forget(struct place *p)
{
    run_job(worker_of(p), forget_job);
}

static void close_worker(struct place *p)
{
    struct worker *w = worker_of(p);
    if (w->is_started) {
        wait_done(w, NULL);
        post(w, NULL);
        pthread_join(w->thread, NULL);
    }
    mem_free((char *)w->p.name);
    mem_free(w->sent);
    mem_free(w);
}

static const struct place_vtable vtable = {.begin = begin,
                                           .finish = finish,
                                           .cancel = cancel,
                                           .predict = predict,
                                           .lend = lend,
                                           .open = open,
                                           .layer_stats = layer_stats,
                                           .facts = facts,
                                           .reclaim = reclaim,
                                           .forget = forget,
                                           .close = close_worker};

err_code worker_open(struct place **out, const struct worker_params *p, struct err *e)
{
    struct worker *w = mem_calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return err_nomem(e, sizeof *w, "a place");
    *w = (struct worker){.base = {.v = &vtable}, .p = *p};
    w->p.name = mem_strdup(p->name);
    w->sent = mem_calloc((size_t)p->n_layer, sizeof *w->sent);
    err_code code = w->p.name && w->sent ? ERR_OK : err_nomem(e, (size_t)p->n_layer * sizeof *w->sent, "a place");
    w->is_started = code == ERR_OK && pthread_create(&w->thread, NULL, worker_main, w) == 0;
    if (code == ERR_OK && !w->is_started)
        code = err_set(e, ERR_NOMEM, "could not start the thread of %s", p->name);
    if (code != ERR_OK)
        close_worker(&w->base);
    else
        *out = &w->base;
    return code;
}
