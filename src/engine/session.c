#include "base/clock.h"
#include "engine/engine_internal.h"
#include "engine/prefetch_trial.h"
#include "engine/prompt_batch.h"

#include <stdio.h>
#include <string.h>

enum {
    BATCH_UNIT = 64, /* batches are multiples of this (docs/numerics.md) */
    DEFAULT_BATCH = 512,
    DEFAULT_CTX = 4096,
    LOGITS_ROWS = 32, /* rows of logits computed at a time when each token's are wanted */
    CAR_TEXT_BYTES = 160,
};

moebius_session_options moebius_default_session_options(void)
{
    return (moebius_session_options){0};
}

static err_code create(void *user, struct err *e)
{
    moebius_session *s = user;
    const moebius_session_options *o = &s->options;
    const struct model *m = s->engine->model;
    int64_t n_ctx = o->n_ctx ? o->n_ctx : m->n_ctx_train < DEFAULT_CTX ? m->n_ctx_train : DEFAULT_CTX;
    int64_t n_batch = o->n_batch ? o->n_batch : DEFAULT_BATCH;
    if (n_ctx < 1 || n_ctx > INT32_MAX || n_batch < 1 || n_batch > INT32_MAX)
        return err_set(e, ERR_USAGE, "context of %lld in batches of %lld tokens: expected at least 1 of each",
                       (long long)n_ctx, (long long)n_batch);
    if (o->sort_cutoff < 0)
        return err_set(e, ERR_USAGE, "sort cutoff %lld: expected at least 1", (long long)o->sort_cutoff);
    if (n_batch > n_ctx)
        n_batch = n_ctx;
    s->n_batch = (n_batch + BATCH_UNIT - 1) / BATCH_UNIT * BATCH_UNIT;
    s->logits_bytes = (size_t)m->n_vocab * sizeof *s->logits;
    s->logits = mem_map(s->logits_bytes, MEM_SCRATCH);
    if (!s->logits)
        return err_nomem(e, s->logits_bytes, "logits");
    s->ids_bytes = (size_t)n_ctx * sizeof *s->ids;
    s->ids = mem_map(s->ids_bytes, MEM_STATE);
    if (!s->ids)
        return err_nomem(e, s->ids_bytes, "tokens");
    TRY(model_work_create(&s->work, m, s->n_batch, LOGITS_ROWS, e));
    s->n_work = s->n_batch;
    s->token_bytes = model_work_token_bytes(s->work);
    s->kv = o->kv;
    static const enum elem_type kv_types[] = {
        [MOEBIUS_KV_F16] = ELEM_F16, [MOEBIUS_KV_F32] = ELEM_F32, [MOEBIUS_KV_Q8_0] = ELEM_Q8_0};
    if ((unsigned)o->kv >= sizeof kv_types / sizeof *kv_types)
        return err_set(e, ERR_USAGE, "KV cache of type %d: expected one of moebius_kv_type", (int)o->kv);
    return model_state_create(&s->state, m, n_ctx, s->n_batch, kv_types[o->kv], e);
}

/* Whether experts are read when they are needed. */
static bool is_streaming(const moebius_session *s)
{
    const struct experts *x = s->engine->model->experts;
    return x && !experts_all_resident(x);
}

/* Says in the log that cache-aware routing is on, as the output is then not the model's own. */
static void announce_car(const moebius_session *s)
{
    const struct car *c = &s->forward.car;
    const struct log *log = &s->engine->log;
    char more[CAR_TEXT_BYTES] = "";
    if (!car_is_on(c))
        return;
    if (!is_streaming(s)) {
        log_line(log, LOG_INFO, "cache-aware routing has nothing to do: all experts are in memory");
        return;
    }
    if (c->n_warmup)
        snprintf(more, sizeof more, ", from token %lld on", (long long)c->n_warmup);
    if (c->n_protect)
        snprintf(more + strlen(more), sizeof more - strlen(more), ", not in %lld layers at either end",
                 (long long)c->n_protect);
    log_line(log, LOG_INFO,
             "cache-aware routing is on, so the output is not the model's own: experts that are not in memory give way "
             "to others with %g of their score or more%s%s",
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
    s->forward.car = (struct car){c->threshold, c->damp, c->n_warmup, c->n_protect, c->n_backfill};
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

moebius_status moebius_session_open(moebius_session **out, moebius_engine *engine,
                                    const moebius_session_options *options, moebius_error *error)
{
    struct err e = {0};
    *out = NULL;
    moebius_session *s = mem_calloc(1, sizeof *s);
    if (!s)
        return engine_status(err_nomem(&e, sizeof *s, "a session"), &e, error);
    s->engine = engine;
    s->prefetch.mode = engine->options.deterministic ? MOEBIUS_PREFETCH_OFF : engine->options.prefetch;
    s->options = options ? *options : moebius_default_session_options();
    s->forward.sort_cutoff = s->options.sort_cutoff ? s->options.sort_cutoff : engine->options.sort_cutoff;
    err_code code = open_session(s, &e);
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
    model_state_close(&s->state);
    model_work_close(&s->work);
    mem_unmap(s->logits, s->logits_bytes, MEM_SCRATCH);
    mem_unmap(s->ids, s->ids_bytes, MEM_STATE);
    mem_free(s);
    *session = NULL;
}

int64_t moebius_session_n_ctx(const moebius_session *session)
{
    return model_state_n_ctx(session->state);
}

int64_t moebius_session_pos(const moebius_session *session)
{
    return model_state_pos(session->state);
}

const int32_t *moebius_session_tokens(const moebius_session *session)
{
    return session->ids;
}

size_t moebius_session_state_bytes(const moebius_session *session)
{
    return model_state_bytes(session->state);
}

int64_t moebius_session_truncate(moebius_session *session, int64_t pos)
{
    session->last = NULL;
    if (pos >= model_state_pos(session->state))
        return model_state_pos(session->state);
    return model_state_truncate(session->state, pos < 0 ? 0 : pos);
}

const float *moebius_session_logits(const moebius_session *session)
{
    return session->last;
}

/* ---- eval ---------------------------------------------------------------------------------------------------- */

static err_code check_tokens(const moebius_session *s, const int32_t *ids, size_t n, struct err *e)
{
    int64_t n_vocab = s->engine->model->n_vocab, n_ctx = model_state_n_ctx(s->state), pos = model_state_pos(s->state);
    if (n == 0)
        return err_set(e, ERR_USAGE, "no tokens to compute: expected at least one");
    if (n > (size_t)(n_ctx - pos))
        return err_set(e, ERR_LIMIT, "%zu tokens after the %lld already there are more than the context of %lld", n,
                       (long long)pos, (long long)n_ctx);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return err_set(e, ERR_USAGE, "token %zu is %d: expected 0 to %lld", i, (int)ids[i], (long long)n_vocab - 1);
    return ERR_OK;
}

/* Hands the logits of the last n_out of a batch's tokens to the callback; `at` is the index of the first of them. */
static err_code each_logits(moebius_session *s, int64_t n_out, size_t at, moebius_logits_fn *fn, void *user,
                            struct err *e)
{
    const struct model *m = s->engine->model;
    for (int64_t i = 0; i < n_out; i += LOGITS_ROWS) {
        int64_t rows = n_out - i < LOGITS_ROWS ? n_out - i : LOGITS_ROWS;
        model_logits(m, s->work, i, rows);
        for (int64_t r = fn ? 0 : rows - 1; r < rows; r++) {
            s->last = NULL;
            TRY(model_logits_row(s->work, r, s->logits, e));
            s->last = i + r == n_out - 1 ? s->logits : NULL;
            if (fn && !fn(user, at + (size_t)(i + r), s->logits))
                return err_set(e, ERR_CANCELLED, "cancelled");
        }
    }
    return ERR_OK;
}

/* Evaluates tokens in batches that there is work space for, with the logits of those from `first` on. */
static err_code eval_batches(moebius_session *s, const int32_t *ids, size_t n, size_t first, moebius_logits_fn *fn,
                             void *user, struct err *e)
{
    for (size_t i = 0; i < n;) {
        size_t batch = n - i < (size_t)s->n_work ? n - i : (size_t)s->n_work;
        size_t from = first > i ? first : i, n_out = from < i + batch ? i + batch - from : 0;
        int32_t *text = s->ids + model_state_pos(s->state);
        int64_t start_ns = clock_ns(), took_ns;
        s->forward.prefetch = prefetch_trial_begin(&s->prefetch, batch == 1);
        pool_use(s->engine->pool,
                 thread_tuner_n_threads(&s->engine->thread_tuner, pool_n_threads(s->engine->pool), batch == 1));
        TRY(model_forward(s->engine->model, s->state, s->work, &s->forward, ids + i, (int64_t)batch, (int64_t)n_out,
                          e));
        memcpy(text, ids + i, batch * sizeof *ids);
        took_ns = clock_ns() - start_ns;
        prefetch_trial_end(&s->prefetch, took_ns);
        if (batch == 1 && !is_streaming(s)) /* else the drive decides how long tokens take */
            thread_tuner_after_token(&s->engine->thread_tuner, pool_n_threads(s->engine->pool), took_ns,
                                     pool_times(s->engine->pool));
        TRY(each_logits(s, (int64_t)n_out, from, fn, user, e));
        i += batch;
    }
    return ERR_OK;
}

static err_code fit_work(moebius_session *s, int64_t n_batch, struct err *e)
{
    if (n_batch == s->n_work)
        return ERR_OK;
    s->n_work = 0;
    TRY(model_work_resize(s->work, s->engine->model, n_batch, e));
    s->n_work = n_batch;
    return ERR_OK;
}

static int64_t choose_batch(const moebius_session *s, size_t n)
{
    const struct experts *x = s->engine->model->experts;
    if (s->options.n_batch || !is_streaming(s) || !model_takes_any_batch(s->engine->model))
        return s->n_batch;
    const struct prompt_batch_facts f = {s->n_batch, s->token_bytes, experts_open_bytes(x), experts_max_bytes(x)};
    return prompt_batch_choose(&f, (int64_t)n);
}

int64_t moebius_session_batch(const moebius_session *session, size_t n)
{
    int64_t n_batch = choose_batch(session, n);
    return n < (size_t)n_batch ? (int64_t)n : n_batch;
}

/* Frees the work space that a long prompt took, and gives the experts their slots back. What fails here is tried again
 * where it is needed. */
static void shrink_work(moebius_session *s)
{
    struct err e;
    err_code code = fit_work(s, s->n_batch, &e);
    backend_trim(s->engine->device);
    if (code == ERR_OK)
        code = experts_open(s->engine->model->experts, s->engine->spare_bytes, &e);
    if (code != ERR_OK)
        log_line(&s->engine->log, LOG_DEBUG, "after a long prompt: %s", e.text);
}

/* Makes room for large batches where they pay, or else for those of s->n_batch. */
static err_code eval_fitting(moebius_session *s, const int32_t *ids, size_t n, size_t first, moebius_logits_fn *fn,
                             void *user, struct err *e)
{
    TRY(check_tokens(s, ids, n, e));
    s->last = NULL;
    if (s->n_work == s->n_batch && n <= (size_t)s->n_batch)
        return eval_batches(s, ids, n, first, fn, user, e);
    err_code code = fit_work(s, choose_batch(s, n), e);
    if (code != ERR_OK)
        code = fit_work(s, s->n_batch, e);
    if (code == ERR_OK)
        code = eval_batches(s, ids, n, first, fn, user, e);
    if (s->n_work > s->n_batch)
        shrink_work(s);
    return code;
}

static void observed(void *user, const struct observed *o)
{
    const moebius_session *s = user;
    const moebius_product p = {.tensor = o->tensor,
                               .n_matrix = o->n_matrix,
                               .matrix = o->matrix,
                               .x = o->x,
                               .k = o->k,
                               .n_row = o->n_row,
                               .stride = o->stride,
                               .scale = o->scale};
    s->trace.product(s->trace.user, &p);
}

static err_code eval(moebius_session *s, const int32_t *ids, size_t n, size_t first, moebius_logits_fn *fn, void *user,
                     struct err *e)
{
    topology_bind_caller(s->engine->topology);
    if (s->trace.product)
        backend_observe(s->engine->device, observed, s);
    err_code code = eval_fitting(s, ids, n, first, fn, user, e);
    if (s->trace.product)
        backend_observe(s->engine->device, NULL, NULL);
    topology_release_caller(s->engine->topology);
    return code;
}

void moebius_session_set_cancel(moebius_session *session, moebius_cancel_fn *is_wanted, void *user)
{
    session->forward.cancel = (struct cancel){is_wanted, user};
}

moebius_status moebius_session_eval(moebius_session *session, const int32_t *ids, size_t n, moebius_error *error)
{
    struct err e = {0};
    return engine_status(eval(session, ids, n, n - 1, NULL, NULL, &e), &e, error);
}

moebius_status moebius_session_eval_each(moebius_session *session, const int32_t *ids, size_t n, size_t first,
                                         moebius_logits_fn *fn, void *user, moebius_error *error)
{
    struct err e = {0};
    return engine_status(eval(session, ids, n, first, fn, user, &e), &e, error);
}

/* ---- trace --------------------------------------------------------------------------------------------------- */

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

void moebius_session_trace(moebius_session *session, const moebius_trace *trace)
{
    moebius_session *s = session;
    s->trace = trace ? *trace : (moebius_trace){0};
    s->moe_trace = (struct moe_trace){routed, s->trace.predicted ? predicted : NULL, s};
    s->forward.trace = s->trace.routed ? &s->moe_trace : NULL;
    s->forward.hidden = s->trace.hidden;
    s->forward.hidden_user = s->trace.user;
}
