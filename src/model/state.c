#include "model/state.h"

#include <assert.h>

static err_code create_layer(struct model_state *s, const struct layer *l, struct layer_state *y, enum elem_type kv,
                             struct err *e)
{
    if (l->is_recurrent) {
        const struct delta_net *d = &l->delta;
        s->is_recurrent = true;
        TRY(backend_tensor_create(s->device, ELEM_F32, d->n_mixed, d->n_tap - 1, 1, MEM_STATE, &y->past, e));
        return backend_tensor_create(s->device, ELEM_F32, d->dk, d->dv, d->n_head_v, MEM_STATE, &y->delta, e);
    }
    const struct attention *a = &l->attn;
    if (!a->k) /* an earlier layer's cache serves */
        return ERR_OK;
    TRY(backend_tensor_create(s->device, kv, a->head_dim, s->n_ctx, a->n_head_kv, MEM_STATE, &y->k, e));
    if (a->k_b) /* keys are values */
        return ERR_OK;
    return backend_tensor_create(s->device, kv, a->head_dim_v, s->n_ctx, a->n_head_kv, MEM_STATE, &y->v, e);
}

err_code model_state_create(struct model_state **out, const struct model *m, int64_t n_ctx, enum elem_type kv,
                            struct err *e)
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
        code = create_layer(s, &m->layers[i], &s->layers[i], kv, e);
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

int64_t model_state_truncate(struct model_state *s, int64_t pos)
{
    assert(pos >= 0 && pos <= s->pos);
    if (pos == s->pos)
        return pos;
    s->pos = s->is_recurrent ? 0 : pos;
    for (int64_t i = 0; s->is_recurrent && i < s->n_layer; i++)
        if (s->layers[i].delta.buffer) {
            backend_clear(s->device, &s->layers[i].past);
            backend_clear(s->device, &s->layers[i].delta);
        }
    return s->pos;
}

void model_state_spoil(struct model_state *s)
{
    if (s->is_recurrent) {
        s->pos++; /* whatever it was, it isn't any more */
        model_state_truncate(s, 0);
    }
}
