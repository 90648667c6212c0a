#include "model/ask.h"

#include "base/model_limits.h"

/* More than a ubatch, which is thus followed by one of another size. */
enum { MANY = MODEL_UBATCH + 1 };

/* Room for a text of so many tokens, and no more. */
static err_code open_pool(struct state_pool **out, const struct model *m, enum elem_type type, int64_t n_ctx,
                          struct err *e)
{
    struct state_pool_params p = {.type = type, .max_bytes = 1};
    TRY(state_pool_create(out, m, &p, e));
    p.max_bytes = state_pool_text_bytes(*out, n_ctx, MANY);
    state_pool_close(out);
    return state_pool_create(out, m, &p, e);
}

static err_code run(const struct model *m, struct model_work *w, struct model_state *s, int64_t n, struct err *e)
{
    static const int32_t ids[MANY];
    static const struct model_forward_params p = {.sort_cutoff = 1, .is_complete = true};
    const struct model_rows rows = {.state = s, .ids = ids, .n = n, .n_out = 1};
    TRY(model_forward(m, w, &p, &rows, 1, e));
    struct backend *last = m->stages[m->n_stage - 1].device;
    model_logits(m, w, 0, 1);
    return backend_wait(last, backend_fence(last), e);
}

static err_code guess(const struct model *m, struct model_work *w, struct model_state *s, struct err *e)
{
    static const struct model_forward_params p = {.sort_cutoff = 1, .is_complete = true};
    int32_t ids[LIMIT_MTP];
    struct model_guess g = {.state = s, .most = m->mtp.n, .ids = ids};
    return m->mtp.n ? model_guess(m, w, &p, &g, 1, e) : ERR_OK;
}

static err_code run_both(const struct model *m, struct model_work *w, enum elem_type type, struct err *e)
{
    struct state_pool *pool = NULL;
    struct model_state *s = NULL;
    err_code code;
    TRY_OUT(open_pool(&pool, m, type, MANY + 1, e));
    TRY_OUT(model_state_create(&s, pool, MANY + 1, e));
    TRY_OUT(run(m, w, s, 1, e));
    TRY_OUT(guess(m, w, s, e));
    TRY_OUT(run(m, w, s, MANY, e));
out:
    model_state_close(&s);
    state_pool_close(&pool);
    return code;
}

static err_code ask(const struct gguf *g, const struct model *m, struct model_work *w, struct err *refusals,
                    struct err *e)
{
    static const enum elem_type types[] = {ELEM_F16, ELEM_F32, ELEM_Q8_0}; /* the usual one first */
    bool runs = false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct err *why = &refusals[types[i]];
        err_code code = run_both(m, w, types[i], why);
        if (code != ERR_OK && code != ERR_UNSUPPORTED)
            return err_set(e, code, "%s", why->text);
        runs |= code == ERR_OK;
    }
    return runs ? ERR_OK : err_set(e, ERR_UNSUPPORTED, "%s: %s", gguf_file_path(g, 0), refusals[types[0]].text);
}

err_code model_ask(const struct gguf *g, const struct model_load_params *p, struct err *refusals, struct err *e)
{
    struct model_stage stages[MODEL_MAX_STAGE] = {{0}};
    struct model_device devices[MODEL_MAX_STAGE] = {{0}};
    struct model_load_params q = {.pool = p->pool,
                                  .describes_experts = true,
                                  .mtp = p->mtp,
                                  .stages = stages,
                                  .n_stage = p->n_stage,
                                  .devices = devices,
                                  .n_device = p->n_stage};
    struct model *m = NULL;
    struct model_work *w = NULL;
    int n_device = p->n_stage ? p->n_stage : 1;
    err_code code = ERR_OK;
    for (int i = 0; i < n_device; i++) {
        TRY_OUT(backend_asking_open(&stages[i].device, p->n_stage ? p->stages[i].device : p->device, e));
        stages[i].end = p->n_stage ? p->stages[i].end : 0;
        devices[i] = (struct model_device){.device = stages[i].device, .pool = p->pool};
    }
    q.device = stages[0].device;
    TRY_OUT(model_load(&m, g, &q, e));
    TRY_OUT(model_work_create(&w, m, MANY, 1, e));
    TRY_OUT(ask(g, m, w, refusals, e));
out:
    model_work_close(&w);
    model_close(&m);
    for (int i = 0; i < n_device; i++)
        backend_close(&stages[i].device);
    return code;
}
