/* Guessing how texts go on, by multi-token prediction. */
#include "base/minmax.h"
#include "engine/engine_internal.h"
#include "engine/sized.h"

static err_code check(const moebius_engine *g, const moebius_guess_item *items, size_t i, struct err *e)
{
    const moebius_guess_item *x = &items[i];
    if (!g->model->mtp.n)
        return err_set(e, ERR_USAGE, "guesses by multi-token prediction: expected a model that was loaded with it");
    if (x->session->engine != g)
        return err_set(e, ERR_USAGE, "a session of another engine: expected one of this");
    for (size_t j = 0; j < i; j++)
        if (items[j].session == x->session)
            return err_set(e, ERR_USAGE, "a session comes twice among guesses: expected each once");
    if (x->id < 0 || x->id >= g->model->n_vocab)
        return err_set(e, ERR_USAGE, "token %d: expected 0 to %lld", (int)x->id, (long long)g->model->n_vocab - 1);
    if (x->most < 1 || x->most > MODEL_MAX_DRAFT)
        return err_set(e, ERR_USAGE, "%zu guesses: expected 1 to %d", x->most, MODEL_MAX_DRAFT);
    int64_t n_ctx = model_state_n_ctx(x->session->state), pos = model_state_pos(x->session->state);
    if (x->most > (size_t)(n_ctx - pos))
        return err_set(e, ERR_LIMIT, "%zu guesses after the %lld tokens there are more than the context of %lld",
                       x->most, (long long)pos, (long long)n_ctx);
    return ERR_OK;
}

/* Guesses for the items from *i on that are of one type of caches, as many as there is room for, and steps over them.
 */
static err_code guess_some(moebius_engine *g, const moebius_guess_item *items, size_t n_items, size_t *i, struct err *e)
{
    struct model_guess some[MODEL_MAX_GUESS];
    const struct model_forward_params p = {.sort_cutoff = items[*i].session->sort_cutoff};
    int64_t n = 0, most = min_i64(MODEL_MAX_GUESS, g->n_work);
    size_t first = *i;
    for (; *i < n_items && n < most && items[*i].session->options.kv == items[first].session->options.kv; (*i)++) {
        const moebius_guess_item *x = &items[*i];
        some[n++] = (struct model_guess){.state = x->session->state,
                                         .id = x->id,
                                         .most = (int64_t)x->most,
                                         .least = x->least,
                                         .ids = x->ids,
                                         .likely = x->likely};
    }
    engine_memory_pass(g, n);
    TRY(model_guess(g->model, g->work, &p, some, n, e));
    for (int64_t j = 0; j < n; j++)
        *items[first + (size_t)j].n = (size_t)some[j].n;
    return ERR_OK;
}

static err_code guess(moebius_engine *g, const moebius_guess_item *items, size_t n_items, struct err *e)
{
    err_code code = ERR_OK;
    for (size_t i = 0; i < n_items; i++)
        TRY(session_unpark(items[i].session, e));
    for (size_t i = 0; i < n_items; i++) {
        TRY(check(g, items, i, e));
        TRY(engine_work_need(g, items[i].session->n_batch, e));
        *items[i].n = 0;
    }
    if (g->n_work == 0)
        TRY(engine_work_fit(g, g->n_batch, e));
    engine_memory_guard(g);
    topology_bind_caller(g->topology);
    for (size_t i = 0; i < n_items && code == ERR_OK;)
        code = guess_some(g, items, n_items, &i, e);
    topology_release_caller(g->topology);
    return code;
}

moebius_status moebius_guess_batch_sized(moebius_engine *engine, const moebius_guess_item *items, size_t item_bytes,
                                         size_t n_items, moebius_error *error)
{
    struct err e = {0};
    struct arena arena = {0};
    const void *known;
    err_code code = sized_take_list(&arena, &known, sizeof *items, items, item_bytes, n_items, "a guess", &e);
    if (code == ERR_OK)
        code = guess(engine, known, n_items, &e);
    arena_close(&arena);
    if (code != ERR_OK)
        engine_gpu_lost(engine);
    return engine_status(code, &e, error);
}
