/* Evaluating tokens: chooses which go into the next forward pass, fits the work space to it, runs it, and hands its
 * logits out. */
#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "engine/engine_internal.h"
#include "engine/planning.h"
#include "engine/prompt_batch.h"
#include "engine/sized.h"
#include "model/sizes.h"

enum {
    PROGRESS_NS = 50 * 1000 * 1000, /* the least time between two reports of progress */
    FEW_IN_TURN = 8,                /* after so many evaluations of few tokens in a row the work space is shrunk */
};

/* An evaluation: the items and how far each is. */
struct eval {
    moebius_engine *engine;
    const moebius_batch_item *items;
    size_t n_items;
    size_t *done;            /* [n_items] each item's tokens that earlier passes computed */
    struct model_rows *rows; /* [n_items], of which n_rows are used: the present pass */
    size_t *item;            /* [n_items] the item that each of these rows belongs to */
    int64_t n_rows;
    int64_t n_done, n_all; /* progress of the present pass, as model_forward counts; n_all 0: no pass is running */
    int64_t told_ns;       /* when progress was last reported */
    struct cancel cancel;
    bool is_cancelled;
};

/* ---- cancelling -------------------------------------------------------------------------------------------------- */

void moebius_engine_interrupt(moebius_engine *engine)
{
    atomic_store(&engine->is_interrupted, true);
}

/* Tells each session which part of its tokens is done, unless that was a moment ago. */
static void tell_progress(struct eval *v)
{
    int64_t now_ns = clock_ns();
    double part = v->n_all ? (double)v->n_done / (double)v->n_all : 0;
    if (now_ns - v->told_ns < PROGRESS_NS)
        return;
    v->told_ns = now_ns;
    for (size_t i = 0; i < v->n_items; i++) {
        const moebius_batch_item *x = &v->items[i];
        double done = (double)v->done[i];
        for (int64_t r = 0; r < v->n_rows && v->n_all; r++)
            done += v->item[r] == i ? part * (double)v->rows[r].n : 0;
        if (x->session->progress)
            x->session->progress(x->session->progress_user, done / (double)x->n);
    }
}

/* Once this is true, it stays so. It is called often enough to report progress from here, too. */
static bool is_cancel_wanted(void *user)
{
    struct eval *v = user;
    tell_progress(v);
    v->is_cancelled |= atomic_load(&v->engine->is_interrupted);
    for (size_t i = 0; i < v->n_items && !v->is_cancelled; i++)
        v->is_cancelled = cancel_is_wanted(&v->items[i].session->cancel);
    return v->is_cancelled;
}

/* ---- work space -------------------------------------------------------------------------------------------------- */

err_code engine_work_fit(moebius_engine *g, int64_t n_batch, struct err *e)
{
    if (n_batch == g->n_work)
        return ERR_OK;
    size_t before = mem_mapped_bytes(MEM_SCRATCH);
    g->n_work = 0;
    err_code code = model_work_resize(g->work, g->model, n_batch, e);
    g->work_bytes += mem_mapped_bytes(MEM_SCRATCH) - before;
    if (code == ERR_OK)
        g->n_work = n_batch;
    return code;
}

/* Replaces the work space by one for n_batch tokens (0: by none). After a failure there is none. */
static err_code replace_work(moebius_engine *g, int64_t n_batch, struct err *e)
{
    size_t before = mem_mapped_bytes(MEM_SCRATCH);
    model_work_close(&g->work);
    g->n_batch = g->n_work = 0;
    err_code code = n_batch ? model_work_create(&g->work, g->model, n_batch, PLANNING_LOGITS_ROWS, e) : ERR_OK;
    g->work_bytes += mem_mapped_bytes(MEM_SCRATCH) - before;
    TRY(code);
    g->n_batch = g->n_work = n_batch;
    if (n_batch)
        g->token_bytes = model_work_token_bytes(g->work) + (size_t)model_scratch_bytes(g->model, 1) +
                         engine_places_bytes(g, n_batch) / (size_t)n_batch;
    return ERR_OK;
}

void engine_work_back(moebius_engine *g, int64_t n_batch)
{
    struct err e;
    if (g->n_batch != n_batch && replace_work(g, n_batch, &e) != ERR_OK) /* the next evaluation tries again */
        log_line(&g->log, LOG_WARN, "work space: %s", e.text);
}

err_code engine_work_need(moebius_engine *g, int64_t n_batch, struct err *e)
{
    int64_t before = g->n_batch;
    if (n_batch <= before)
        return ERR_OK;
    err_code code = replace_work(g, n_batch, e);
    if (code != ERR_OK)
        engine_work_back(g, before); /* of the sessions that are there */
    return code;
}

static int64_t choose_batch(const moebius_session *s, size_t n)
{
    const moebius_engine *g = s->engine;
    if (s->options.n_batch || !engine_is_streaming(g))
        return s->n_batch;
    const struct prompt_batch_facts f = {s->n_batch, g->token_bytes, engine_expert_bytes(g, experts_open_bytes),
                                         engine_expert_bytes(g, experts_max_bytes)};
    return prompt_batch_choose(&f, (int64_t)n);
}

int64_t moebius_session_batch(const moebius_session *session, size_t n)
{
    int64_t n_batch = choose_batch(session, n);
    return n < (size_t)n_batch ? (int64_t)n : n_batch;
}

/* Shrinks the work space to n_batch tokens, and gives the experts the memory. A failure is only logged, as the next
 * evaluation tries again. */
static void shrink_work(moebius_engine *g, int64_t n_batch)
{
    struct err e;
    err_code code = engine_work_fit(g, n_batch, &e);
    for (int i = 0; i < g->n_stage; i++)
        backend_trim(g->devices[i].device);
    engine_memory_pass(g, planning_few_tokens(g->n_batch)); /* which come next, mostly */
    if (code == ERR_OK)
        code = engine_open_slots(g, NULL, &e);
    if (code != ERR_OK)
        log_line(&g->log, LOG_DEBUG, "after a prompt: %s", e.text);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* The order in which items get into passes: sampled tokens first, then drafts, then prompts. */
enum turn { TURN_DECODE, TURN_DRAFT, TURN_PROMPT, TURN_DONE };

static enum turn turn_of(const struct eval *v, size_t i)
{
    const moebius_batch_item *x = &v->items[i];
    if (v->done[i] == x->n)
        return TURN_DONE;
    return x->is_draft ? TURN_DRAFT : x->n == 1 ? TURN_DECODE : TURN_PROMPT;
}

/* For how many of item i's tokens [from, from + n) logits are wanted. */
static int64_t n_wanted(const struct eval *v, size_t i, size_t from, int64_t n)
{
    const moebius_batch_item *x = &v->items[i];
    size_t end = from + (size_t)n, first = x->logits && x->first < x->n ? x->first : x->n - 1;
    if (x->no_logits || first >= end)
        return 0;
    return (int64_t)(end - (first > from ? first : from));
}

/* Adds tokens of item i to the pass, at most `room`; returns how many. */
static int64_t add_rows(struct eval *v, size_t i, enum turn turn, int64_t room)
{
    const moebius_batch_item *x = &v->items[i];
    int64_t n = min_i64((int64_t)(x->n - v->done[i]), min_i64(room, choose_batch(x->session, x->n)));
    if (turn == TURN_DRAFT && n < (int64_t)x->n)
        return 0; /* a draft is not cut */
    v->item[v->n_rows] = i;
    v->rows[v->n_rows++] = (struct model_rows){.state = x->session->state,
                                               .ids = x->ids + v->done[i],
                                               .n = n,
                                               .n_out = n_wanted(v, i, v->done[i], n),
                                               .is_decode = turn == TURN_DECODE,
                                               .car = turn == TURN_DECODE ? x->session->car : (struct car){0},
                                               .is_draft = turn == TURN_DRAFT};
    return n;
}

/* Fills the next pass with at most `room` tokens of sessions with one type of caches: false when all is done. */
static bool fill_pass(struct eval *v, int64_t room)
{
    const struct moebius_session *first = NULL;
    v->n_rows = 0;
    for (enum turn turn = TURN_DECODE; turn < TURN_DONE; turn++)
        for (size_t i = 0; i < v->n_items && room > 0; i++) {
            const moebius_session *s = v->items[i].session;
            if (turn_of(v, i) != turn || (first && first->options.kv != s->options.kv))
                continue;
            room -= add_rows(v, i, turn, room);
            if (v->n_rows)
                first = v->items[v->item[0]].session;
        }
    return v->n_rows > 0;
}

/* Copies the logits in row r of the last ones computed to the session of item i, after its token `at`. */
static err_code hand_out(const struct eval *v, size_t i, size_t at, int64_t r, struct err *e)
{
    const moebius_batch_item *x = &v->items[i];
    moebius_session *s = x->session;
    if (!x->logits && at < x->n - 1)
        return ERR_OK;
    s->last = NULL;
    TRY(session_logits_room(s, e));
    TRY(model_logits_row(v->engine->work, r, s->logits, e));
    if (pool_is_cancelled(v->engine->devices[v->engine->n_stage - 1].pool)) /* the product may have been left out */
        return err_set(e, ERR_CANCELLED, "cancelled");
    s->last = at + 1 == v->done[i] ? s->logits : NULL;
    if (x->logits && at >= x->first && !x->logits(x->user, at, s->logits))
        return err_set(e, ERR_CANCELLED, "cancelled");
    return ERR_OK;
}

/* Hands out the logits that the pass was asked for, some rows at a time: it has computed the first ones. */
static err_code each_logits(const struct eval *v, struct err *e)
{
    int64_t n = 0, row = 0;
    for (int64_t r = 0; r < v->n_rows; r++)
        n += v->rows[r].n_out;
    for (int64_t r = 0; r < v->n_rows; r++)
        for (int64_t k = v->rows[r].n_out; k > 0; k--, row++) {
            if (row > 0 && row % PLANNING_LOGITS_ROWS == 0)
                model_logits(v->engine->model, v->engine->work, row, min_i64(n - row, PLANNING_LOGITS_ROWS));
            TRY(hand_out(v, v->item[r], v->done[v->item[r]] - (size_t)k, row % PLANNING_LOGITS_ROWS, e));
        }
    return ERR_OK;
}

/* After a pass: appends its tokens to the sessions' texts, and makes a checkpoint where a prompt has ended. */
static void take_tokens(struct eval *v)
{
    for (int64_t r = 0; r < v->n_rows; r++) {
        size_t i = v->item[r];
        const struct model_rows *x = &v->rows[r];
        moebius_session *s = v->items[i].session;
        memcpy(s->ids + model_state_pos(s->state) - x->n, x->ids, (size_t)x->n * sizeof *s->ids);
        s->last = NULL;
        v->done[i] += (size_t)x->n;
        if (!x->is_decode && !x->is_draft && v->done[i] == v->items[i].n && !v->items[i].no_logits)
            model_state_checkpoint(s->state);
    }
}

/* Whether the pass may overwrite recurrent state in place, which can't be undone: only if nothing in it can fail. So it
 * must consist of single tokens, read nothing (no expert, and no router's choice to count) and involve no other place;
 * and it is not cancelled, as it is short. */
static bool is_in_place(const struct eval *v)
{
    const struct experts *x = v->engine->model->experts; /* all stages' count, or none */
    bool is_decode = true;
    for (int64_t r = 0; r < v->n_rows; r++)
        is_decode &= v->rows[r].is_decode;
    return is_decode && !(x && experts_counts_all(x)) && model_is_recurrent(v->engine->model) &&
           !engine_is_streaming(v->engine) && v->engine->places.n_place == 0;
}

/* How the pass is to run: the first item's session decides. */
static struct model_forward_params forward_params(struct eval *v)
{
    const moebius_session *s = v->items[v->item[0]].session;
    return (struct model_forward_params){.sort_cutoff = s->sort_cutoff,
                                         .trace = s->trace.routed ? &s->moe_trace : NULL,
                                         .hidden = s->trace.hidden,
                                         .hidden_user = s->trace.user,
                                         .is_complete = s->trace.product != NULL,
                                         .n_logits = PLANNING_LOGITS_ROWS,
                                         .in_place = is_in_place(v)};
}

/* Has the pools of devices that compute layers ask `cancel` whether they shall stop. */
static void set_cancel(moebius_engine *g, const struct cancel *cancel)
{
    for (int i = 0; i < g->n_stage; i++)
        pool_set_cancel(g->devices[i].pool, cancel);
}

static err_code run_pass(struct eval *v, struct err *e)
{
    moebius_engine *g = v->engine;
    engine_memory_guard(g); /* first, as the pass goes by whether experts are all there */
    engine_heat_guard(g);
    struct model_forward_params params = forward_params(v);
    bool is_single = v->n_rows == 1 && v->rows[0].n == 1;
    int64_t start_ns = clock_ns(), took_ns, n_tok = 0;
    if (!params.in_place)
        params.cancel = v->cancel;
    set_cancel(g, params.in_place ? NULL : &v->cancel);
    TRY(cancel_check(&v->cancel, e));
    v->n_done = 0;
    params.n_done = &v->n_done;
    for (int64_t r = 0; r < v->n_rows; r++)
        n_tok += v->rows[r].n;
    v->n_all = 2 * g->model->n_trunk * n_tok;
    engine_memory_pass(g, n_tok);
    params.prefetch = prefetch_trial_begin(&g->prefetch, is_single);
    g->places.is_cache_used = cache_watch_begin(&g->cache, n_tok);
    pool_use(g->pool, thread_tuner_n_threads(&g->thread_tuner, pool_n_threads(g->pool), is_single));
    err_code code = model_forward(g->model, g->work, &params, v->rows, v->n_rows, e);
    for (int64_t r = 0; r < v->n_rows && code != ERR_OK && params.in_place; r++)
        v->items[v->item[r]].session->last = NULL; /* the text may be at an earlier position now */
    TRY(code);
    v->n_all = 0;
    took_ns = clock_ns() - start_ns;
    prefetch_trial_end(&g->prefetch, took_ns);
    cache_watch_end(&g->cache, took_ns);
    /* else the drive, or other devices' layers, too, decide how long tokens take */
    if (is_single && !engine_is_streaming(g) && !engine_has_stages(g))
        thread_tuner_after_token(&g->thread_tuner, pool_n_threads(g->pool), took_ns, pool_times(g->pool));
    take_tokens(v);
    TRY(each_logits(v, e));
    if (engine_has_cache(g))
        engine_move_experts(g);
    return ERR_OK;
}

/* Whether the evaluation fits into the smaller work space. */
static bool is_of_few(const struct eval *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n_items; i++)
        n += v->items[i].n;
    return n <= (size_t)planning_few_tokens(v->engine->n_batch);
}

/* For how many tokens there is to be work space: for more than a batch if a long prompt reads experts. */
static int64_t pass_room(const struct eval *v)
{
    int64_t most = v->engine->n_batch;
    if (is_of_few(v)) /* for which there may be room for more */
        return max_i64(planning_few_tokens(most), min_i64(most, v->engine->n_work));
    for (size_t i = 0; i < v->n_items; i++)
        most = max_i64(most, choose_batch(v->items[i].session, v->items[i].n));
    return most;
}

static err_code run_passes(struct eval *v, struct err *e)
{
    while (fill_pass(v, v->engine->n_work))
        TRY(run_pass(v, e));
    return ERR_OK;
}

static err_code run_fitting(struct eval *v, struct err *e)
{
    moebius_engine *g = v->engine;
    err_code code = engine_work_fit(g, pass_room(v), e);
    if (code != ERR_OK)
        code = engine_work_fit(g, g->n_batch, e);
    if (code == ERR_OK)
        code = run_passes(v, e);
    g->n_few = is_of_few(v) ? g->n_few + 1 : 0;
    if (g->n_work > g->n_batch)
        shrink_work(g, g->n_batch);
    else if (g->n_few >= FEW_IN_TURN && g->n_work > planning_few_tokens(g->n_batch) && engine_shares_memory(g) &&
             engine_is_streaming(g))
        shrink_work(g, planning_few_tokens(g->n_batch));
    return code;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static err_code check_tokens(const moebius_batch_item *x, struct err *e)
{
    const moebius_session *s = x->session;
    int64_t n_vocab = s->engine->model->n_vocab, n_ctx = model_state_n_ctx(s->state), pos = model_state_pos(s->state);
    if (x->n == 0)
        return err_set(e, ERR_USAGE, "no tokens to compute: expected at least one");
    if (x->n > (size_t)(n_ctx - pos))
        return err_set(e, ERR_LIMIT, "%zu tokens after the %lld already there are more than the context of %lld", x->n,
                       (long long)pos, (long long)n_ctx);
    for (size_t i = 0; i < x->n; i++)
        if (x->ids[i] < 0 || x->ids[i] >= n_vocab)
            return err_set(e, ERR_USAGE, "token %zu is %d: expected 0 to %lld", i, (int)x->ids[i],
                           (long long)n_vocab - 1);
    return ERR_OK;
}

static err_code check_item(const moebius_engine *g, const moebius_batch_item *items, size_t i, size_t n_items,
                           struct err *e)
{
    const moebius_batch_item *x = &items[i];
    const moebius_trace *t = &x->session->trace;
    if (x->session->engine != g)
        return err_set(e, ERR_USAGE, "a session of another engine: expected one of this");
    for (size_t j = 0; j < i; j++)
        if (items[j].session == x->session)
            return err_set(e, ERR_USAGE, "a session comes twice in one batch: expected each once");
    if ((g->places.n_place || engine_has_stages(g)) && (t->product || car_is_on(&x->session->car)))
        return err_set(e, ERR_USAGE, "%s with %s on several devices: expected one device",
                       t->product ? "watching products" : "cache-aware routing",
                       engine_has_stages(g) ? "layers" : "experts");
    if (n_items > 1 && (t->routed || t->hidden || t->product))
        return err_set(e, ERR_USAGE, "a session that is traced can't be evaluated with others: expected it alone");
    if (x->is_draft && (x->n > MODEL_MAX_DRAFT || x->n > (size_t)x->session->n_batch))
        return err_set(e, ERR_USAGE, "a draft of %zu tokens: expected at most %d", x->n, MODEL_MAX_DRAFT);
    if (x->is_draft && car_is_on(&x->session->car))
        return err_set(e, ERR_USAGE, "a draft with cache-aware routing: expected one of the two");
    if (x->no_logits && x->logits)
        return err_set(e, ERR_USAGE, "a function for logits that are not wanted: expected one of the two");
    return check_tokens(x, e);
}

/* All drafts and sampled tokens of an evaluation must fit into one pass, as recurrent layers keep only one pass's
 * inputs, from which a rejected draft is undone. */
static err_code check_drafts(const moebius_engine *g, const moebius_batch_item *items, size_t n_items, struct err *e)
{
    size_t n = 0, n_draft = 0;
    unsigned kinds = 0;
    for (size_t i = 0; i < n_items; i++) {
        n += items[i].is_draft || items[i].n == 1 ? items[i].n : 0;
        n_draft += items[i].is_draft;
        kinds |= items[i].is_draft ? 1U << items[i].session->options.kv : 0;
    }
    if (kinds & (kinds - 1))
        return err_set(e, ERR_USAGE, "drafts of sessions whose caches have different types: expected one type");
    if (n_draft && n > (size_t)g->n_batch)
        return err_set(e, ERR_USAGE, "%zu drafts and sampled tokens together have %zu tokens: expected at most %lld",
                       n_draft, n, (long long)g->n_batch);
    return ERR_OK;
}

/* ---- evaluations ------------------------------------------------------------------------------------------------- */

/* Shows a product to the session's trace. */
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

static err_code run_observed(struct eval *v, struct err *e)
{
    moebius_engine *g = v->engine;
    moebius_session *s = v->items[0].session;
    topology_bind_caller(g->topology);
    err_code code = s->trace.product ? backend_observe(g->device, observed, s, e) : ERR_OK;
    if (code == ERR_OK)
        code = run_fitting(v, e);
    backend_observe_end(g->device);
    set_cancel(g, NULL);
    topology_release_caller(g->topology);
    return code;
}

enum { FEW_ITEMS = 16 };

/* moebius_eval_batch: appends tokens to sessions. */
static err_code eval_items(moebius_engine *g, const moebius_batch_item *items, size_t n_items, struct err *e)
{
    size_t few_done[FEW_ITEMS] = {0}, few_item[FEW_ITEMS];
    struct model_rows few_rows[FEW_ITEMS];
    struct arena arena = {0};
    struct eval v = {g, items, n_items, few_done, few_rows, few_item};
    v.cancel = (struct cancel){is_cancel_wanted, &v};
    v.told_ns = clock_ns();
    if (n_items == 0)
        return err_set(e, ERR_USAGE, "a batch of no sessions: expected at least one");
    for (size_t i = 0; i < n_items; i++)
        TRY(session_unpark(items[i].session, e));
    for (size_t i = 0; i < n_items; i++)
        TRY(check_item(g, items, i, n_items, e));
    for (size_t i = 0; i < n_items; i++)
        TRY(engine_work_need(g, items[i].session->n_batch, e));
    TRY(check_drafts(g, items, n_items, e));
    if (n_items > FEW_ITEMS) {
        v.done = arena_calloc(&arena, n_items, sizeof *v.done);
        v.rows = arena_calloc(&arena, n_items, sizeof *v.rows);
        v.item = arena_calloc(&arena, n_items, sizeof *v.item);
    }
    err_code code =
        v.done && v.rows && v.item ? run_observed(&v, e) : err_nomem(e, n_items * sizeof *v.rows, "a batch");
    arena_close(&arena);
    return code;
}

moebius_status moebius_eval_batch_sized(moebius_engine *engine, const moebius_batch_item *items, size_t item_bytes,
                                        size_t n_items, moebius_error *error)
{
    struct err e = {0};
    struct arena arena = {0};
    const void *known;
    atomic_store(&engine->is_interrupted, false);
    err_code code = sized_take_list(&arena, &known, sizeof *items, items, item_bytes, n_items, "a batch item", &e);
    if (code == ERR_OK)
        code = eval_items(engine, known, n_items, &e);
    arena_close(&arena);
    if (code != ERR_OK)
        engine_gpu_lost(engine);
    return engine_status(code, &e, error);
}

moebius_status moebius_session_eval(moebius_session *session, const int32_t *ids, size_t n, moebius_error *error)
{
    const moebius_batch_item item = {.session = session, .ids = ids, .n = n};
    return moebius_eval_batch(session->engine, &item, 1, error);
}

moebius_status moebius_session_eval_each(moebius_session *session, const int32_t *ids, size_t n, size_t first,
                                         moebius_logits_fn *fn, void *user, moebius_error *error)
{
    const moebius_batch_item item = {
        .session = session, .ids = ids, .n = n, .logits = fn, .user = user, .first = first};
    return moebius_eval_batch(session->engine, &item, 1, error);
}

moebius_status moebius_session_sync(moebius_session *session, const int32_t *ids, size_t n, size_t *n_kept,
                                    moebius_error *error)
{
    size_t same = 0, pos = (size_t)moebius_session_pos(session);
    while (same < n && same < pos && ids[same] == session->ids[same])
        same++;
    if (same == n && same == pos && session->last)
        pos = n;
    else
        pos = (size_t)moebius_session_truncate(session, (int64_t)(same < n || n == 0 ? same : n - 1));
    if (n_kept)
        *n_kept = pos;
    return pos == n && n > 0 ? MOEBIUS_OK : moebius_session_eval(session, ids + pos, n - pos, error);
}
