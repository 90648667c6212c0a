#include "model/sizes.h"

#include <string.h>

#include "base/minmax.h"

/* ---- state ------------------------------------------------------------------------------------------------------- */

static struct model_cache_cost *find_cache(struct model_sizes *s, int64_t window)
{
    for (int i = 0; i < s->n_cache; i++)
        if (s->caches[i].window == window || i == SIZES_MAX_CACHE - 1)
            return &s->caches[i];
    s->caches[s->n_cache].window = window;
    return &s->caches[s->n_cache++];
}

/* A compressed cache has an entry for a.compressed.ratio positions, of whose bytes each position counts its part. */
static void add_compressed(struct model_sizes *s, const struct attention *a, enum elem_type type)
{
    const struct position_index *x = &a->index;
    int64_t ratio = a->compressed.ratio;
    struct model_cache_cost *c;
    if (a->is_compressed) {
        c = find_cache(s, x->n_chosen * ratio);
        c->n_bytes += elem_row_bytes(type, a->head_dim) / (size_t)ratio;
        c->n_float += (uint64_t)(2 * a->n_head * a->head_dim / ratio);
    }
    if (x->n_head == 0)
        return;
    c = find_cache(s, 0);
    c->n_bytes += elem_row_bytes(type, x->dim) / (size_t)ratio;
    c->n_float += (uint64_t)(x->n_head * x->dim / ratio);
}

static void add_attention(struct model_sizes *s, const struct attention *a, enum elem_type type)
{
    const struct position_index *x = &a->index;
    if (a->compressed.ratio)
        add_compressed(s, a, type);
    if (a->is_compressed) {
        struct model_cache_cost *window = find_cache(s, a->window);
        window->n_bytes += elem_row_bytes(type, a->head_dim);
        window->n_float += (uint64_t)(2 * a->n_head * a->head_dim);
        return;
    }
    struct model_cache_cost *c = find_cache(s, x->n_chosen ? model_index_reach(x) : a->window);
    size_t n = elem_row_bytes(type, a->head_dim) + (a->is_latent ? 0 : elem_row_bytes(type, a->head_dim_v));
    c->n_bytes += (uint64_t)a->n_head_kv * n;
    c->n_float += (uint64_t)(a->n_head * (a->head_dim + a->head_dim_v));
    if (x->n_head && !x->run) {
        c = find_cache(s, 0);
        c->n_bytes += elem_row_bytes(type, x->dim);
        c->n_float += (uint64_t)(x->n_head * x->dim);
    }
}

/* The state is read and written, and each element meets three multiply-adds, as the device counts it. */
static void add_recurrent(struct model_sizes *s, const struct recurrent *d)
{
    uint64_t n = (uint64_t)(d->dk * d->dv * d->n_head_v);
    s->recurrent.n_bytes += 2 * n * sizeof(float);
    s->recurrent.n_float += 3 * n;
}

static void add_state(struct model_sizes *s, const struct model *m, enum elem_type type)
{
    for (int64_t i = 0; i < m->n_layer; i++) {
        const struct layer *y = &m->layers[i];
        if (y->is_recurrent)
            add_recurrent(s, &y->recurrent);
        else
            add_attention(s, &y->attn, type);
    }
}

static err_code size_texts(const struct model *m, enum elem_type type, int64_t n_batch, const int64_t *n_ctx,
                           uint64_t *text_bytes, int n, uint64_t *checkpoint_bytes, struct err *e)
{
    struct state_pool *pool;
    const struct state_pool_params p = {.type = type, .max_bytes = 1};
    TRY(state_pool_create(&pool, m, &p, e));
    for (int i = 0; i < n; i++)
        text_bytes[i] = state_pool_text_bytes(pool, n_ctx[i], min_i64(n_batch, n_ctx[i]));
    *checkpoint_bytes = state_pool_checkpoint_bytes(pool);
    state_pool_close(&pool);
    return ERR_OK;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static struct model_cost sum_products(struct backend *b)
{
    const struct backend_counters c = backend_counters(b);
    struct model_cost all = {0};
    for (int i = 0; i < OP_N_KIND; i++)
        all.n_bytes += c.op[i].n_bytes;
    memcpy(all.n_product, c.n_product, sizeof all.n_product);
    return all;
}

static struct model_cost less(struct model_cost a, const struct model_cost *b)
{
    a.n_bytes -= b->n_bytes;
    for (int i = 0; i < QUANT_MAX_ID; i++)
        a.n_product[i] -= b->n_product[i];
    return a;
}

/* Enqueues what one token takes. */
static err_code walk(struct model_sizes *s, const struct model *m, struct model_work *w, struct model_state *state,
                     struct err *e)
{
    static const int32_t id = 0;
    static const struct model_forward_params p = {.sort_cutoff = 1, .is_complete = true};
    const struct model_rows rows = {.state = state, .ids = &id, .n = 1, .n_out = 1};
    const struct model_cost before = sum_products(m->device);
    TRY(model_forward(m, w, &p, &rows, 1, e));
    const struct model_cost after = sum_products(m->device);
    model_logits(m, w, 0, 1);
    s->token = less(after, &before);
    s->output = less(sum_products(m->device), &after);
    return backend_wait(m->device, backend_fence(m->device), e);
}

static err_code count_products(struct model_sizes *s, const struct model *m, struct model_work *w, enum elem_type type,
                               struct err *e)
{
    struct state_pool *pool = NULL;
    struct model_state *state = NULL;
    uint64_t n_bytes = 0, checkpoint_bytes;
    const int64_t n_ctx = 1;
    err_code code;
    TRY(size_texts(m, type, 1, &n_ctx, &n_bytes, 1, &checkpoint_bytes, e));
    const struct state_pool_params p = {.type = type, .max_bytes = (size_t)n_bytes};
    TRY_OUT(state_pool_create(&pool, m, &p, e));
    TRY_OUT(model_state_create(&state, pool, n_ctx, e));
    TRY_OUT(walk(s, m, w, state, e));
out:
    model_state_close(&state);
    state_pool_close(&pool);
    return code;
}

struct model_cost model_expert_cost(const struct slot_pool_desc *shape)
{
    struct model_cost c = {0};
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        const struct quant_info *type = shape->type[i];
        int64_t k = slot_matrix_k(shape, i), n_row = slot_matrix_rows(shape, i);
        size_t row_bytes = 0;
        quant_row_bytes(type, (uint64_t)k, &row_bytes);
        c.n_bytes += (uint64_t)n_row * row_bytes;
        c.n_product[type->type] += (uint64_t)(n_row * k);
    }
    return c;
}

/* A row of k activations as a product with weights of a type takes it: bytes with their scales and sums, or floats. */
static uint64_t rounded_bytes(const struct quant_info *type, int64_t k)
{
    return (uint64_t)k * (type->act == QUANT_ACT_FLOAT ? 8 : 3) / 2;
}

uint64_t model_scratch_bytes(const struct model *m, int64_t n_batch)
{
    uint64_t most = 0;
    for (int i = 0; i < m->n_moe_layer; i++) {
        const struct slot_pool_desc *d = &m->expert_layers[i].shape;
        int64_t n_hidden = slot_n_hidden(d);
        uint64_t n_pair = (uint64_t)(n_batch * m->expert_layers[i].n_used);
        uint64_t n = n_pair * ((uint64_t)n_hidden * sizeof(float) + rounded_bytes(d->type[EXPERT_DOWN], n_hidden) +
                               rounded_bytes(d->type[EXPERT_GATE], d->n_embd));
        most = n > most ? n : most;
    }
    return most;
}

/* Adjugates of experts are in slots, which a device that is asked does not count. */
static void add_adjugates(struct model_sizes *s, const struct model *m, struct backend *device)
{
    for (int i = 0; i < m->n_adjugates; i++) {
        const struct model_adjugates *x = &m->adjugates[i];
        const struct model_cost one = model_expert_cost(&x->shape);
        s->weight_bytes += (uint64_t)x->shape.n_slot * backend_slot_pool_slot_bytes(device, &x->shape);
        s->token.n_bytes += (uint64_t)x->n_used * one.n_bytes;
        for (int j = 0; j < QUANT_MAX_ID; j++)
            s->token.n_product[j] += (uint64_t)x->n_used * one.n_product[j];
    }
}

/* b asks `device`. */
static err_code measure(struct model_sizes *s, const struct gguf *g, struct backend *b, struct backend *device,
                        const struct model_sizes_params *p, struct err *e)
{
    const struct model_load_params load = {.device = b, .describes_experts = true, .mtp = p->mtp};
    struct model *m = NULL;
    struct model_work *w = NULL;
    err_code code;
    TRY_OUT(model_load(&m, g, &load, e));
    s->weight_bytes = backend_held_bytes(b, MEM_WEIGHTS);
    TRY_OUT(model_work_create(&w, m, p->n_batch, p->n_logits, e));
    s->work_bytes = backend_held_bytes(b, MEM_SCRATCH);
    s->scratch_bytes = model_scratch_bytes(m, p->n_batch);
    TRY_OUT(model_work_resize(w, m, p->n_few, e));
    s->work_few_bytes = backend_held_bytes(b, MEM_SCRATCH);
    TRY_OUT(size_texts(m, p->type, p->n_batch, p->n_ctx, p->text_bytes, p->n_n_ctx, &s->checkpoint_bytes,
                       e)); /* refuses types that don't fit */
    add_state(s, m, p->type);
    TRY_OUT(count_products(s, m, w, p->type, e));
    add_adjugates(s, m, device);
out:
    model_work_close(&w);
    model_close(&m);
    return code;
}

err_code model_sizes_ask(struct model_sizes *out, const struct gguf *g, struct backend *device,
                         const struct model_sizes_params *p, struct err *e)
{
    struct backend *b;
    *out = (struct model_sizes){0};
    TRY(backend_asking_open(&b, device, e));
    err_code code = measure(out, g, b, device, p, e);
    backend_close(&b);
    return code;
}
