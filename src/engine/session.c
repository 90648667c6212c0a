/* Sessions: their life, forks, and going back. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/free_memory.h"
#include "base/minmax.h"
#include "engine/engine_internal.h"
#include "engine/sized.h"
#include "planner/plan.h"

enum {
    BATCH_UNIT = 64, /* batches are multiples of this (docs/numerics.md) */
    DEFAULT_BATCH = 512,
    DEFAULT_CTX = 4096,
    CAR_TEXT_BYTES = 160,

    /* One part in so many of a limit on addresses (RLIMIT_AS) is for state, if that is less than of memory: each kind
     * of layer takes so many. */
    ADDRESS_SHARE = 16,
};

/* ---- memory for state ------------------------------------------------------------------------------------------- */

/* Of the host's memory. */
static size_t host_state_bytes(void)
{
    size_t bytes = machine_memory_bytes() / PLAN_STATE_SHARE;
    struct rlimit address;
    if (getrlimit(RLIMIT_AS, &address) == 0 && address.rlim_cur != RLIM_INFINITY &&
        address.rlim_cur / ADDRESS_SHARE < bytes)
        bytes = (size_t)(address.rlim_cur / ADDRESS_SHARE);
    return bytes;
}

static size_t state_bytes(const moebius_engine *g)
{
    size_t own = 0;
    bool is_here = false;
    for (int i = 0; i < g->n_stage; i++) {
        own += engine_has_own_memory(g, i) ? backend_own_bytes(g->devices[i].device) : 0;
        is_here |= !engine_has_own_memory(g, i);
    }
    return own + (is_here ? host_state_bytes() : 0);
}

static err_code create_pool(moebius_engine *g, enum elem_type type, size_t max_bytes, struct state_pool **out,
                            struct err *e)
{
    const moebius_engine_options *o = &g->options;
    int64_t interval = o->checkpoint_interval ? o->checkpoint_interval : PLAN_CHECKPOINT_TOK;
    const struct state_pool_params p = {
        .type = type,
        .max_bytes = max_bytes,
        .interval = interval > 0 ? interval : 0,
        .max_checkpoint_bytes = o->checkpoint_bytes ? (size_t)o->checkpoint_bytes : max_bytes / PLAN_CHECKPOINT_SHARE};
    return state_pool_create(out, g->model, &p, e);
}

/* The pool for caches of a type, in which a session of n_ctx tokens fits that takes them in batches of n_batch. */
static err_code find_pool(moebius_engine *g, moebius_kv_type kv, int64_t n_ctx, int64_t n_batch,
                          struct state_pool **out, struct err *e)
{
    static const enum elem_type types[] = {
        [MOEBIUS_KV_F16] = ELEM_F16, [MOEBIUS_KV_F32] = ELEM_F32, [MOEBIUS_KV_Q8_0] = ELEM_Q8_0};
    if ((unsigned)kv >= sizeof types / sizeof *types)
        return err_set(e, ERR_USAGE, "KV cache of type %d: expected one of moebius_kv_type", (int)kv);
    bool is_given = g->options.state_bytes > 0, is_new = !g->pools[kv];
    size_t max_bytes = is_given ? (size_t)g->options.state_bytes : state_bytes(g);
    if (is_new)
        TRY(create_pool(g, types[kv], max_bytes, &g->pools[kv], e));
    size_t need = state_pool_text_bytes(g->pools[kv], n_ctx, n_batch);
    if (is_new && !is_given && need > max_bytes) {
        state_pool_close(&g->pools[kv]);
        TRY(create_pool(g, types[kv], need, &g->pools[kv], e));
    }
    *out = g->pools[kv];
    if (need > state_pool_max_bytes(*out))
        return err_set(e, ERR_LIMIT, "a context of %lld tokens needs %.1f MiB of state, and there are %.1f MiB for it",
                       (long long)n_ctx, (double)need / (1 << 20), (double)state_pool_max_bytes(*out) / (1 << 20));
    return ERR_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static err_code map_ids(moebius_session *s, int64_t n_ctx, struct err *e)
{
    s->ids_bytes = (size_t)n_ctx * sizeof *s->ids;
    s->ids = mem_map(s->ids_bytes, MEM_STATE);
    return s->ids ? ERR_OK : err_nomem(e, s->ids_bytes, "tokens");
}

err_code session_logits_room(moebius_session *s, struct err *e)
{
    s->logits_bytes = (size_t)s->engine->model->n_vocab * sizeof *s->logits;
    if (!s->logits)
        s->logits = mem_map(s->logits_bytes, MEM_STATE);
    return s->logits ? ERR_OK : err_nomem(e, s->logits_bytes, "logits");
}

/* Tokens of a batch at most in a context of n_ctx. */
static int64_t batch_of(const moebius_session_options *o, int64_t n_ctx)
{
    int64_t n = min_i64(o->n_batch ? o->n_batch : DEFAULT_BATCH, n_ctx);
    return (n + BATCH_UNIT - 1) / BATCH_UNIT * BATCH_UNIT;
}

static err_code create(void *user, size_t *later_bytes, struct err *e)
{
    moebius_session *s = user;
    const moebius_session_options *o = &s->options;
    const struct model *m = s->engine->model;
    struct state_pool *pool = NULL;
    int64_t n_ctx = o->n_ctx ? o->n_ctx : m->n_ctx_train < DEFAULT_CTX ? m->n_ctx_train : DEFAULT_CTX;
    int64_t n_batch = o->n_batch ? o->n_batch : DEFAULT_BATCH;
    if (n_ctx < 1 || n_ctx > INT32_MAX || n_batch < 1 || n_batch > INT32_MAX)
        return err_set(e, ERR_USAGE, "context of %lld in batches of %lld tokens: expected at least 1 of each",
                       (long long)n_ctx, (long long)n_batch);
    if (o->sort_cutoff < 0)
        return err_set(e, ERR_USAGE, "sort cutoff %lld: expected at least 1", (long long)o->sort_cutoff);
    s->n_batch = batch_of(o, n_ctx);
    s->engine->refused = (struct engine_refused){.n_ctx = n_ctx, .kv = o->kv};
    TRY(find_pool(s->engine, o->kv, n_ctx, s->n_batch, &pool, e));
    TRY(map_ids(s, n_ctx, e));
    TRY(model_state_create(&s->state, pool, n_ctx, e));
    for (int i = 0; i < m->n_stage; i++)
        later_bytes[i] = state_pool_stage_bytes(pool, i, n_ctx, s->n_batch);
    later_bytes[0] += (size_t)m->n_vocab * sizeof *s->logits;
    return engine_work_need(s->engine, s->n_batch, e);
}

/* Says in the log that cache-aware routing is on, as the output is then not the model's own. */
static void announce_car(const moebius_session *s)
{
    const struct car *c = &s->car;
    const struct log *log = &s->engine->log;
    char more[CAR_TEXT_BYTES] = "";
    if (!car_is_on(c))
        return;
    if (!engine_is_streaming(s->engine)) {
        log_line(log, LOG_INFO, "cache-aware routing has nothing to do: all experts are in memory");
        return;
    }
    if (c->n_warmup)
        snprintf(more, sizeof more, ", from token %lld on", (long long)c->n_warmup);
    if (c->n_protect)
        snprintf(more + strlen(more), sizeof more - strlen(more), ", not in %lld layers at either end",
                 (long long)c->n_protect);
    log_line(log, LOG_INFO,
             "cache-aware routing is on, so the output is not the model's own: experts in memory with at least %g of "
             "the score replace those that are not%s%s",
             (double)c->threshold, c->damp ? ", damped" : "", more);
}

static err_code take_car(moebius_session *s, struct err *e)
{
    const moebius_car *c = &s->options.car;
    if (!(c->threshold >= 0) || c->n_warmup < 0 || c->n_protect < 0 || c->n_backfill < 0 ||
        c->n_backfill > EXPERTS_MAX_BACKFILL)
        return err_set(e, ERR_USAGE,
                       "cache-aware routing with a threshold of %g, %lld tokens of warm-up, %lld protected layers, "
                       "%lld backfilled experts: expected 0 or more, and at most %d of the last",
                       (double)c->threshold, (long long)c->n_warmup, (long long)c->n_protect, (long long)c->n_backfill,
                       EXPERTS_MAX_BACKFILL);
    s->car = (struct car){c->threshold, c->damp, c->n_warmup, c->n_protect, c->n_backfill};
    return ERR_OK;
}

static err_code open_session(moebius_session *s, struct err *e)
{
    TRY(take_car(s, e));
    TRY(engine_memory_session(s->engine, create, s, e));
    TRY(engine_warm(s->engine, e));
    announce_car(s);
    return ERR_OK;
}

moebius_status moebius_session_open_sized(moebius_session **out, moebius_engine *engine,
                                          const moebius_session_options *options, size_t options_bytes,
                                          moebius_error *error)
{
    struct err e = {0};
    *out = NULL;
    moebius_session *s = mem_calloc(1, sizeof *s);
    if (!s)
        return engine_status(err_nomem(&e, sizeof *s, "a session"), &e, error);
    s->engine = engine;
    err_code code = sized_take(&s->options, sizeof s->options, options, options_bytes, "session options", &e);
    s->sort_cutoff = s->options.sort_cutoff ? s->options.sort_cutoff : moebius_engine_sort_cutoff(engine);
    if (code == ERR_OK)
        code = open_session(s, &e);
    if (code != ERR_OK)
        moebius_session_close(&s);
    *out = s;
    return engine_status(code, &e, error);
}

void moebius_session_close(moebius_session **session)
{
    moebius_session *s = *session;
    if (!s)
        return;
    session_forget_parked(s);
    if (s->state) {
        model_state_close(&s->state);
        state_pool_trim(s->engine->pools[s->options.kv]);
    }
    mem_unmap(s->logits, s->logits_bytes, MEM_STATE);
    mem_unmap(s->ids, s->ids_bytes, MEM_STATE);
    mem_free(s);
    *session = NULL;
}

/* ---- forking ---------------------------------------------------------------------------------------------------- */

static err_code fork_session(moebius_session *s, moebius_session *from, struct err *e)
{
    TRY(session_unpark(from, e));
    TRY(map_ids(s, model_state_n_ctx(from->state), e));
    memcpy(s->ids, from->ids, (size_t)model_state_pos(from->state) * sizeof *s->ids);
    if (from->last) {
        TRY(session_logits_room(s, e));
        memcpy(s->logits, from->last, s->logits_bytes);
        s->last = s->logits;
    }
    return model_state_fork(&s->state, from->state, e);
}

moebius_status moebius_session_fork(moebius_session **out, moebius_session *session, moebius_error *error)
{
    struct err e = {0};
    *out = NULL;
    moebius_session *s = mem_calloc(1, sizeof *s);
    if (!s)
        return engine_status(err_nomem(&e, sizeof *s, "a session"), &e, error);
    *s = (moebius_session){.engine = session->engine,
                           .options = session->options,
                           .n_batch = session->n_batch,
                           .car = session->car,
                           .sort_cutoff = session->sort_cutoff};
    err_code code = fork_session(s, session, &e);
    if (code != ERR_OK)
        moebius_session_close(&s);
    *out = s;
    return engine_status(code, &e, error);
}

/* ---- growing ---------------------------------------------------------------------------------------------------- */

static err_code grow(moebius_session *s, int64_t n_ctx, struct err *e)
{
    struct state_pool *pool;
    int64_t pos = moebius_session_pos(s);
    size_t n_bytes = (size_t)n_ctx * sizeof *s->ids;
    if (n_ctx > INT32_MAX)
        return err_set(e, ERR_USAGE, "context of %lld tokens: expected at most %d", (long long)n_ctx, INT32_MAX);
    int64_t n_batch = batch_of(&s->options, n_ctx);
    TRY(find_pool(s->engine, s->options.kv, n_ctx, n_batch, &pool, e));
    TRY(engine_work_need(s->engine, n_batch, e));
    int32_t *ids = mem_map(n_bytes, MEM_STATE);
    if (!ids)
        return err_nomem(e, n_bytes, "tokens");
    err_code code = model_state_grow(s->state, n_ctx, e);
    if (code != ERR_OK) {
        mem_unmap(ids, n_bytes, MEM_STATE);
        return code;
    }
    memcpy(ids, s->ids, (size_t)pos * sizeof *ids);
    mem_unmap(s->ids, s->ids_bytes, MEM_STATE);
    s->ids = ids;
    s->ids_bytes = n_bytes;
    s->n_batch = n_batch;
    return ERR_OK;
}

moebius_status moebius_session_grow(moebius_session *session, int64_t n_ctx, moebius_error *error)
{
    struct err e = {0};
    err_code code = n_ctx > model_state_n_ctx(session->state) ? grow(session, n_ctx, &e) : ERR_OK;
    return engine_status(code, &e, error);
}

/* ---- what a session is ------------------------------------------------------------------------------------------ */

int64_t moebius_session_n_ctx(const moebius_session *session)
{
    return model_state_n_ctx(session->state);
}

int64_t moebius_session_pos(const moebius_session *session)
{
    return session->parked.is_parked ? session->parked.pos : model_state_pos(session->state);
}

const int32_t *moebius_session_tokens(const moebius_session *session)
{
    return session->ids;
}

size_t moebius_session_state_bytes(const moebius_session *session)
{
    return model_state_bytes(session->state);
}

const float *moebius_session_logits(const moebius_session *session)
{
    return session->last;
}

int64_t moebius_session_way_back(const moebius_session *session, int64_t pos)
{
    if (session->parked.is_parked)
        return 0;
    return model_state_way_back(session->state, pos < 0 ? 0 : pos);
}

int64_t moebius_session_truncate(moebius_session *session, int64_t pos)
{
    const moebius_engine *g = session->engine;
    struct err e;
    if (session_unpark(session, &e) != ERR_OK) {
        log_line(&g->log, LOG_WARN, "a parked session begins again: %s", e.text);
        session_forget_parked(session);
    }
    session->last = NULL;
    if (pos >= model_state_pos(session->state))
        return model_state_pos(session->state);
    return model_go_back(g->model, g->work, session->state, pos < 0 ? 0 : pos);
}

bool moebius_session_goes_back(const moebius_session *session)
{
    return model_state_goes_back(session->state);
}

void moebius_session_set_cancel(moebius_session *session, moebius_cancel_fn *is_wanted, void *user)
{
    session->cancel = (struct cancel){is_wanted, user};
}

void moebius_session_set_progress(moebius_session *session, moebius_progress_fn *fn, void *user)
{
    session->progress = fn;
    session->progress_user = user;
}

/* ---- trace ------------------------------------------------------------------------------------------------------ */

static void routed(void *user, int experts_layer, int64_t n_tok, int64_t n_used, const int32_t *ids)
{
    const moebius_session *s = user;
    s->trace.routed(s->trace.user, experts_layer, n_tok, n_used, ids);
}

static void predicted(void *user, int experts_layer, int64_t n_tok, int64_t n_used, const int32_t *ids)
{
    const moebius_session *s = user;
    s->trace.predicted(s->trace.user, experts_layer, n_tok, n_used, ids);
}

void moebius_session_trace_sized(moebius_session *session, const moebius_trace *trace, size_t trace_bytes)
{
    moebius_session *s = session;
    struct err e;
    s->trace = (moebius_trace){0};
    if (sized_take(&s->trace, sizeof s->trace, trace, trace_bytes, "a trace", &e) != ERR_OK)
        log_line(&s->engine->log, LOG_WARN, "%s", e.text);
    s->moe_trace = (struct moe_trace){routed, s->trace.predicted ? predicted : NULL, s};
}
