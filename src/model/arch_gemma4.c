/* gemma4: Gemma 4 with experts and without. Windowed and global layers with heads of different sizes, RMS norms on q, k
 * and v, V from K where the file has none, later layers that use an earlier one's cache; a dense and a MoE branch side
 * by side with norms of their own; GEGLU; norms after each part; an embedding of the token for each layer; capped
 * logits. */
#include <math.h>

#include "model/loader.h"

/* What is the same for all layers of a kind. */
struct kind {
    int64_t head_dim, n_rot;
    int rope_table; /* -1: not made yet */
};

struct gemma {
    struct kind global, windowed;
    int64_t n_own_kv; /* layers from this one on use the cache of the last layer of their kind before it */
};

static err_code load_kinds(struct loader *l, struct gemma *g, struct err *e)
{
    int64_t n_shared = 0;
    TRY(load_u32(l, "attention.key_length", &g->global.head_dim, e));
    g->global.n_rot = g->windowed.head_dim = g->global.head_dim;
    TRY(load_u32_opt(l, "rope.dimension_count", &g->global.n_rot, e));
    TRY(load_u32_opt(l, "attention.key_length_swa", &g->windowed.head_dim, e));
    g->windowed.n_rot = g->windowed.head_dim;
    TRY(load_u32_opt(l, "rope.dimension_count_swa", &g->windowed.n_rot, e));
    g->global.rope_table = g->windowed.rope_table = -1;
    TRY(load_u32_opt(l, "attention.shared_kv_layers", &n_shared, e));
    g->n_own_kv = l->m->n_layer - n_shared;
    for (int i = 0; i < 2; i++) {
        const struct kind *k = i ? &g->windowed : &g->global;
        if (k->head_dim < 1 || k->n_rot < 2 || k->n_rot % 2 || k->n_rot > k->head_dim)
            return err_set(e, ERR_FORMAT, "%s: %s: heads of %lld of which %lld are rotated: expected an even number",
                           gguf_file_path(l->g, 0), l->m->arch, (long long)k->head_dim, (long long)k->n_rot);
    }
    return ERR_OK;
}

/* The layer whose cache serves layer i: the last of its kind before the shared ones. */
static err_code borrow_cache(struct loader *l, const struct gemma *g, int64_t i, struct attention *a, struct err *e)
{
    const char *path = gguf_file_path(l->g, 0);
    const struct attention *lender = NULL;
    for (int64_t j = g->n_own_kv - 1; j >= 0 && !lender; j--)
        if (!l->m->layers[j].attn.window == !a->window)
            lender = &l->m->layers[j].attn;
    if (!lender)
        return err_set(e, ERR_FORMAT, "%s: layer %lld has no keys of its own, and no layer before %lld lends it any",
                       path, (long long)i, (long long)g->n_own_kv);
    if (lender->n_head_kv != a->n_head_kv)
        return err_set(e, ERR_FORMAT,
                       "%s: layer %lld has %lld KV heads and uses the cache of layer %lld, which has %lld: expected as "
                       "many",
                       path, (long long)i, (long long)a->n_head_kv, (long long)lender->kv_layer,
                       (long long)lender->n_head_kv);
    a->kv_layer = lender->kv_layer;
    return ERR_OK;
}

static err_code load_keys(struct loader *l, int64_t i, struct attention *a, struct err *e)
{
    int64_t n_embd = l->m->n_embd, n_kv = a->n_head_kv * a->head_dim;
    TRY(load_weight(l, i, "attn_k.weight", n_embd, n_kv, &a->k, e));
    TRY(load_vector(l, i, "attn_k_norm.weight", a->head_dim, true, &a->k_norm, e));
    a->v_is_k = !load_find(l, i, "attn_v.weight");
    return a->v_is_k ? ERR_OK : load_weight(l, i, "attn_v.weight", n_embd, n_kv, &a->v, e);
}

static err_code load_heads(struct loader *l, struct gemma *g, int64_t i, struct attention *a, struct err *e)
{
    struct model *m = l->m;
    TRY(load_window(l, i, 6, false, &a->window, e));
    struct kind *k = a->window ? &g->windowed : &g->global;
    if (k->rope_table < 0)
        TRY(a->window ? load_rope(l, "rope.freq_base_swa", k->n_rot, NULL, &k->rope_table, e)
                      : load_rope(l, "rope.freq_base", k->n_rot, "rope_freqs.weight", &k->rope_table, e));
    TRY(load_layer_u32_opt(l, "attention.head_count", i, &a->n_head, e));
    a->n_head_kv = a->n_head;
    TRY(load_layer_u32_opt(l, "attention.head_count_kv", i, &a->n_head_kv, e));
    if (a->n_head < 1 || a->n_head_kv < 1 || a->n_head % a->n_head_kv)
        return err_set(e, ERR_FORMAT, "%s: %lld heads over %lld KV heads in layer %lld: expected a multiple",
                       gguf_file_path(l->g, 0), (long long)a->n_head, (long long)a->n_head_kv, (long long)i);
    a->head_dim = a->head_dim_v = a->q_norm_len = a->k_norm_len = k->head_dim;
    a->n_rot = k->n_rot;
    a->rope = ROPE_NEOX;
    a->rope_table = a->q_rope_table = k->rope_table;
    a->scale = 1;
    a->has_unit_v_norm = true;
    a->kv_layer = i;
    TRY(load_weight(l, i, "attn_q.weight", m->n_embd, a->n_head * a->head_dim, &a->q, e));
    TRY(load_vector(l, i, "attn_q_norm.weight", a->head_dim, true, &a->q_norm, e));
    TRY(load_weight(l, i, "attn_output.weight", a->n_head * a->head_dim, m->n_embd, &a->o, e));
    return i < g->n_own_kv ? load_keys(l, i, a, e) : borrow_cache(l, g, i, a, e);
}

/* The router's norm weights, with the 1 / sqrt(n_embd) that its input is scaled by. */
static err_code load_router_norm(struct loader *l, int64_t i, struct tensor *out, struct err *e)
{
    int64_t n = l->m->n_embd;
    TRY(load_vector(l, i, "ffn_gate_inp.scale", n, true, out, e));
    float *values = mem_calloc((size_t)n, sizeof *values), scale = 1 / sqrtf((float)n);
    if (!values)
        return err_nomem(e, (size_t)n * sizeof *values, "router norm");
    err_code code = backend_read(load_device(l, i), out, values, e);
    for (int64_t j = 0; j < n; j++)
        values[j] *= scale;
    if (code == ERR_OK)
        backend_write(load_device(l, i), out, values);
    mem_free(values);
    return code;
}

static err_code load_feed_forward(struct loader *l, int64_t i, struct layer *y, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SOFTMAX, .norm_weights = true, .act = ACT_GELU};
    int64_t n = l->m->n_embd;
    TRY(load_vector(l, i, "ffn_norm.weight", n, true, &y->ffn_norm, e));
    TRY(load_ffn(l, i, &y->ffn, e));
    y->ffn.act = ACT_GELU;
    TRY(load_vector(l, i, "post_ffw_norm.weight", n, true, &y->ffn_post_norm, e));
    y->is_moe = load_find(l, i, "ffn_gate_inp.weight") != NULL;
    if (!y->is_moe)
        return ERR_OK;
    TRY(load_moe(l, i, &rules, &y->moe, e));
    TRY(load_vector(l, i, "ffn_down_exps.scale", y->moe.n_expert, false, &y->moe.expert_scale, e));
    TRY(load_router_norm(l, i, &y->router_norm, e));
    TRY(load_vector(l, i, "pre_ffw_norm_2.weight", n, true, &y->moe_norm, e));
    TRY(load_vector(l, i, "post_ffw_norm_1.weight", n, true, &y->dense_post_norm, e));
    return load_vector(l, i, "post_ffw_norm_2.weight", n, true, &y->moe_post_norm, e);
}

static err_code load_token_embeddings(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    TRY(load_u32_opt(l, "embedding_length_per_layer_input", &m->n_token_embd, e));
    if (m->n_token_embd == 0)
        return ERR_OK;
    int64_t n = m->n_token_embd * m->n_layer;
    TRY(load_weight(l, LOAD_INPUT, "per_layer_token_embd.weight", n, m->n_vocab, &m->token_embed, e));
    TRY(load_weight(l, LOAD_INPUT, "per_layer_model_proj.weight", m->n_embd, n, &m->token_embed_proj, e));
    TRY(load_vector(l, LOAD_INPUT, "per_layer_proj_norm.weight", m->n_token_embd, true, &m->token_embed_norm, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_weight(l, i, "inp_gate.weight", m->n_embd, m->n_token_embd, &y->token_gate, e));
        TRY(load_weight(l, i, "proj.weight", m->n_token_embd, m->n_embd, &y->token_proj, e));
        TRY(load_vector(l, i, "post_norm.weight", m->n_embd, true, &y->token_post_norm, e));
    }
    return ERR_OK;
}

err_code arch_gemma4_load(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    struct gemma g;
    TRY(load_trunk(l, e));
    m->embed_scale = sqrtf((float)m->n_embd);
    m->logit_softcap = 30;
    TRY(load_f32_opt(l, "final_logit_softcapping", &load_factor_range, &m->logit_softcap, e));
    TRY(load_kinds(l, &g, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_vector(l, i, "attn_norm.weight", m->n_embd, true, &y->attn_norm, e));
        TRY(load_heads(l, &g, i, &y->attn, e));
        TRY(load_vector(l, i, "post_attention_norm.weight", m->n_embd, true, &y->attn_post_norm, e));
        TRY(load_feed_forward(l, i, y, e));
        TRY(load_vector(l, i, "layer_output_scale.weight", 1, false, &y->out_scale, e));
    }
    return load_token_embeddings(l, e);
}
