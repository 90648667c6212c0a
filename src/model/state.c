#include "model/state.h"

#include <assert.h>

/* What a token sees of layer i's cache at most, of all layers that use it; 0: all. */
static int64_t widest_window(const struct model *m, int64_t i)
{
    int64_t widest = 0;
    for (int64_t j = i; j < m->n_layer; j++) {
        const struct layer *l = &m->layers[j];
        if (l->is_recurrent || l->attn.kv_layer != i)
            continue;
        if (l->attn.window == 0)
            return 0;
        widest = l->attn.window > widest ? l->attn.window : widest;
    }
    return widest;
}

/* Whether a later layer uses layer i's cache, too. */
static bool is_shared(const struct model *m, int64_t i)
{
    for (int64_t j = i + 1; j < m->n_layer; j++)
        if (!m->layers[j].is_recurrent && m->layers[j].attn.kv_layer == i)
            return true;
    return false;
}

/* A layer that uses another's windowed cache comes when all tokens of a call are in it. */
bool model_takes_any_batch(const struct model *m)
{
    for (int64_t i = 0; i < m->n_layer; i++)
        if (is_shared(m, i) && widest_window(m, i))
            return false;
    return true;
}

/* Positions to keep: the context or, of a windowed layer, the window before each of the tokens that are computed at
 * once, in whole blocks, so that a block of positions never wraps around. */
static int64_t n_cache_row(const struct model_state *s, int64_t window, int64_t n_batch)
{
    int64_t n = (window + n_batch - 1 + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK * ATTENTION_BLOCK;
    return window && n < s->n_ctx ? n : s->n_ctx;
}

static err_code create_layer(struct model_state *s, const struct model *m, int64_t i, int64_t n_batch,
                             enum elem_type kv, struct err *e)
{
    const struct layer *l = &m->layers[i];
    struct layer_state *y = &s->layers[i];
    if (l->is_recurrent) {
        const struct delta_net *d = &l->delta;
        s->is_recurrent = true;
        TRY(backend_tensor_create(s->device, ELEM_F32, d->n_mixed, d->n_tap - 1, 1, MEM_STATE, &y->past, e));
        return backend_tensor_create(s->device, ELEM_F32, d->dk, d->dv, d->n_head_v, MEM_STATE, &y->delta, e);
    }
    const struct attention *a = &l->attn;
    if (!a->k) /* an earlier layer's cache serves */
        return ERR_OK;
    if (kv == ELEM_Q8_0 && (a->head_dim % 32 || a->head_dim_v % 32))
        return err_set(e, ERR_UNSUPPORTED,
                       "layer %lld has rows of %lld and %lld, which Q8_0 can't hold: expected multiples of 32 (F16 and "
                       "F32 take any)",
                       (long long)i, (long long)a->head_dim, (long long)a->head_dim_v);
    y->window = widest_window(m, i);
    int64_t n_row = n_cache_row(s, y->window, n_batch < MODEL_UBATCH || is_shared(m, i) ? n_batch : MODEL_UBATCH);
    TRY(backend_tensor_create(s->device, kv, a->head_dim, n_row, a->n_head_kv, MEM_STATE, &y->k, e));
    if (a->is_latent) /* keys are values */
        return ERR_OK;
    return backend_tensor_create(s->device, kv, a->head_dim_v, n_row, a->n_head_kv, MEM_STATE, &y->v, e);
}

err_code model_state_create(struct model_state **out, const struct model *m, int64_t n_ctx, int64_t n_batch,
                            enum elem_type kv, struct err *e)
{
    err_code code = ERR_OK;
    *out = NULL;
    struct model_state *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s, "a state");
    *s = (struct model_state){.device = m->device, .n_layer = m->n_layer, .n_ctx = n_ctx};
    s->layers = arena_calloc(&s->arena, (size_t)m->n_layer, sizeof *s->layers);
    if (!s->layers)
        code = err_nomem(e, (size_t)m->n_layer * sizeof *s->layers, "a state");
    for (int64_t i = 0; i < m->n_layer && code == ERR_OK; i++)
        code = create_layer(s, m, i, n_batch, kv, e);
    if (code != ERR_OK) {
        err_prefix(e, "KV cache for a context of %lld tokens", (long long)n_ctx);
        model_state_close(&s);
    }
    *out = s;
    return code;
}

void model_state_close(struct model_state **out)
{
    struct model_state *s = *out;
    if (!s)
        return;
    for (int64_t i = 0; s->layers && i < s->n_layer; i++) {
        backend_buffer_close(s->device, &s->layers[i].k.buffer);
        backend_buffer_close(s->device, &s->layers[i].v.buffer);
        backend_buffer_close(s->device, &s->layers[i].past.buffer);
        backend_buffer_close(s->device, &s->layers[i].delta.buffer);
    }
    arena_close(&s->arena);
    mem_free(s);
    *out = NULL;
}

int64_t model_state_n_ctx(const struct model_state *s)
{
    return s->n_ctx;
}

int64_t model_state_pos(const struct model_state *s)
{
    return s->pos;
}

void model_state_reset(struct model_state *s)
{
    s->pos = 0;
    for (int64_t i = 0; i < s->n_layer; i++) {
        s->layers[i].oldest = 0;
        if (s->layers[i].delta.buffer) {
            backend_clear(s->device, &s->layers[i].past);
            backend_clear(s->device, &s->layers[i].delta);
        }
    }
}

int64_t layer_state_first(const struct layer_state *y, int64_t pos)
{
    return y->window && pos >= y->window ? pos - y->window + 1 : 0;
}

int64_t model_state_truncate(struct model_state *s, int64_t pos)
{
    assert(pos >= 0 && pos <= s->pos);
    if (pos == s->pos)
        return pos;
    bool reachable = pos > 0 && !s->is_recurrent;
    for (int64_t i = 0; i < s->n_layer && reachable; i++)
        reachable = s->layers[i].oldest <= layer_state_first(&s->layers[i], pos);
    if (reachable)
        s->pos = pos;
    else
        model_state_reset(s);
    return s->pos;
}

void model_state_make_room(struct model_state *s, int64_t n)
{
    for (int64_t i = 0; i < s->n_layer; i++) {
        struct layer_state *y = &s->layers[i];
        int64_t oldest = s->pos + n - y->k.ne[1];
        if (y->k.buffer && oldest > y->oldest)
            y->oldest = oldest;
    }
}

void model_state_spoil(struct model_state *s)
{
    bool is_spoilt = s->is_recurrent;
    for (int64_t i = 0; i < s->n_layer && !is_spoilt; i++)
        is_spoilt = s->layers[i].oldest > layer_state_first(&s->layers[i], s->pos);
    if (is_spoilt)
        model_state_reset(s);
}

size_t model_state_bytes(const struct model_state *s)
{
    size_t n = 0;
    for (int64_t i = 0; i < s->n_layer; i++) {
        const struct tensor *all[] = {&s->layers[i].k, &s->layers[i].v, &s->layers[i].past, &s->layers[i].delta};
        for (int j = 0; j < 4; j++)
            n += all[j]->buffer ? tensor_bytes(all[j]) : 0;
    }
    return n;
}
