/* deepseek4 (DeepSeek V4): attention over a window and, in most layers, a compressed cache, whose entries stand for 4
 * or 128 positions, those of 4 chosen by an index; hyper-connections; a shared expert and routed ones, which in the
 * first layers are chosen by the token's id. */
#include <math.h>

#include "model/loader.h"

static err_code load_dims(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    struct compressed_attention *c = &a->compressed;
    TRY(load_layer_u32_opt(l, "attention.head_count", layer, &a->n_head, e));
    TRY(load_u32(l, "attention.key_length", &a->head_dim, e));
    TRY(load_u32(l, "attention.q_lora_rank", &a->n_q_latent, e));
    TRY(load_u32(l, "rope.dimension_count", &a->n_rot, e));
    TRY(load_u32(l, "attention.sliding_window", &a->window, e));
    TRY(load_u32(l, "attention.output_group_count", &c->n_group, e));
    TRY(load_u32(l, "attention.output_lora_rank", &c->n_group_out, e));
    if (a->n_head < 1 || a->n_rot < 2 || a->n_rot % 2 || a->head_dim < a->n_rot || a->n_q_latent < 1 || a->window < 1 ||
        c->n_group < 1 || a->n_head % c->n_group || c->n_group_out < 1)
        return err_set(e, ERR_FORMAT,
                       "%s: deepseek4.attention.*: %lld heads of %lld elements, %lld rotated, in %lld groups of rank "
                       "%lld, queries of rank %lld, a window of %lld: expected at least 1 of each, an even number "
                       "rotated and as many heads in each group",
                       gguf_file_path(l->g, 0), (long long)a->n_head, (long long)a->head_dim, (long long)a->n_rot,
                       (long long)c->n_group, (long long)c->n_group_out, (long long)a->n_q_latent,
                       (long long)a->window);
    a->n_head_kv = 1;
    a->head_dim_v = a->head_dim;
    a->rot_first = a->head_dim - a->n_rot;
    a->scale = 1 / sqrtf((float)a->head_dim);
    return ERR_OK;
}

/* Layers without a compressed cache rotate by plain angles, the others by scaled ones of another base. */
static err_code load_ropes(struct loader *l, int64_t n_rot, struct err *e)
{
    struct model *m = l->m;
    struct rope_table plain = {.n_rot = n_rot, .angles = {.freq_base = 10000, .freq_scale = 1, .magnitude = 1}};
    struct rope_table scaled = {.n_rot = n_rot};
    TRY(load_f32_opt(l, "rope.freq_base", &load_base_range, &plain.angles.freq_base, e));
    TRY(load_rope_angles(l, "attention.compress_rope_freq_base", n_rot, &scaled.angles, e));
    scaled.angles.magnitude = 1;
    load_add_rope(m, plain);
    plain.angles.is_inverse = true;
    load_add_rope(m, plain);
    m->entry_rope = load_add_rope(m, scaled);
    scaled.angles.is_inverse = true;
    load_add_rope(m, scaled);
    return ERR_OK;
}

/* The positions for each entry of a layer's compressed cache. The file has a number for each layer, or more of them. */
static err_code load_ratio(struct loader *l, int64_t layer, int64_t *ratio, struct err *e)
{
    enum { SMALL = 4, LARGE = 128 };
    static const char suffix[] = "attention.compress_ratios";
    char key[LOAD_KEY_BYTES];
    const void *all;
    uint64_t n;
    load_key(l, suffix, key);
    const struct gguf_value *v = gguf_find(l->g, key);
    if (!v || v->type != GGUF_ARRAY || (v->arr.type != GGUF_I32 && v->arr.type != GGUF_U32))
        return err_set(e, ERR_FORMAT, "%s: key %s: expected an array of 32-bit integers, one for each layer",
                       gguf_file_path(l->g, 0), key);
    TRY(gguf_opt_array(l->g, key, v->arr.type, &all, &n, e));
    *ratio = n > (uint64_t)layer ? ((const int32_t *)all)[layer] : -1;
    if (*ratio == 0 || *ratio == SMALL || *ratio == LARGE)
        return ERR_OK;
    return err_set(
        e, ERR_FORMAT, "%s: key %s: layer %lld has %lld, of %llu numbers: expected 0, %d or %d for each layer",
        gguf_file_path(l->g, 0), key, (long long)layer, (long long)*ratio, (unsigned long long)n, SMALL, LARGE);
}

/* Runs of few positions overlap. */
static bool overlaps(int64_t ratio)
{
    return ratio == 4;
}

static err_code load_compressor(struct loader *l, int64_t layer, const char *const names[4], int64_t n, int64_t ratio,
                                struct compressor *c, struct err *e)
{
    c->n = n;
    c->width = overlaps(ratio) ? 2 * n : n;
    TRY(load_weight(l, layer, names[0], l->m->n_embd, c->width, &c->x, e));
    TRY(load_weight(l, layer, names[1], l->m->n_embd, c->width, &c->gate, e));
    TRY(load_table(l, layer, names[2], c->width, ratio, true, &c->bias, e));
    return load_vector(l, layer, names[3], n, true, &c->norm, e);
}

static err_code load_index(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    static const char *const names[] = {"indexer_compressor_kv.weight", "indexer_compressor_gate.weight",
                                        "indexer_compressor_ape.weight", "indexer_compressor_norm.weight"};
    struct position_index *x = &a->index;
    x->rope = a->rope;
    TRY(load_u32(l, "attention.indexer.head_count", &x->n_head, e));
    TRY(load_u32(l, "attention.indexer.key_length", &x->dim, e));
    TRY(load_u32(l, "attention.indexer.top_k", &x->n_chosen, e));
    if (x->n_head < 1 || x->dim < a->n_rot || x->n_chosen < 1)
        return err_set(
            e, ERR_FORMAT,
            "%s: deepseek4.attention.indexer.*: %lld heads of %lld elements choose %lld: expected at least 1, "
            "the %lld that are rotated, and 1",
            gguf_file_path(l->g, 0), (long long)x->n_head, (long long)x->dim, (long long)x->n_chosen,
            (long long)a->n_rot);
    TRY(load_weight(l, layer, "indexer.attn_q_b.weight", a->n_q_latent, x->n_head * x->dim, &x->q, e));
    TRY(load_weight(l, layer, "indexer.proj.weight", l->m->n_embd, x->n_head, &x->weights, e));
    return load_compressor(l, layer, names, x->dim, a->compressed.ratio, &a->compressed.index, e);
}

/* The compressed cache, and what chooses among its entries. */
static err_code load_compressed(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    static const char *const names[] = {"attn_compressor_kv.weight", "attn_compressor_gate.weight",
                                        "attn_compressor_ape.weight", "attn_compressor_norm.weight"};
    struct compressed_attention *c = &a->compressed;
    if (layer < l->m->n_trunk) /* the layer for multi-token prediction sees its window alone */
        TRY(load_ratio(l, layer, &c->ratio, e));
    if (c->ratio)
        TRY(load_list_ratio(l, c, e));
    a->rope_table = a->q_rope_table = c->ratio ? l->m->entry_rope : 0;
    c->inverse_rope = a->rope_table + 1;
    if (c->ratio == 0)
        return ERR_OK;
    TRY(load_compressor(l, layer, names, a->head_dim, c->ratio, &c->entries, e));
    return overlaps(c->ratio) ? load_index(l, layer, a, e) : ERR_OK;
}

static err_code load_window_attention(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    struct compressed_attention *c = &a->compressed;
    int64_t n_embd = l->m->n_embd, n_q, n_out;
    a->is_compressed = true;
    a->rope = ROPE_NORMAL;
    a->kv_layer = layer;
    TRY(load_dims(l, layer, a, e));
    if (l->m->n_rope == 0)
        TRY(load_ropes(l, a->n_rot, e));
    TRY(load_compressed(l, layer, a, e));
    n_q = a->n_head * a->head_dim;
    n_out = c->n_group * c->n_group_out;
    TRY(load_vector(l, layer, "attn_sinks.weight", a->n_head, true, &a->sinks, e));
    TRY(load_weight(l, layer, "attn_q_a.weight", n_embd, a->n_q_latent, &a->q_a, e));
    TRY(load_vector(l, layer, "attn_q_a_norm.weight", a->n_q_latent, true, &a->q_a_norm, e));
    TRY(load_weight(l, layer, "attn_q_b.weight", a->n_q_latent, n_q, &a->q, e));
    TRY(load_weight(l, layer, "attn_kv.weight", n_embd, a->head_dim, &a->k, e));
    TRY(load_vector(l, layer, "attn_kv_a_norm.weight", a->head_dim, true, &a->k_norm, e));
    const int64_t shape[3] = {n_q / c->n_group, n_out, 1};
    const struct head_rows rows = {.k = n_q / c->n_group, .n_row = c->n_group_out, .stride = c->n_group_out};
    TRY(load_head_weight(l, layer, "attn_output_a.weight", shape, &rows, c->n_group, &c->o_a, e));
    return load_weight(l, layer, "attn_output_b.weight", n_out, n_embd, &a->o, e);
}

static err_code load_layer(struct loader *l, int64_t i, int64_t n_hashed, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SQRT_SOFTPLUS, .act = ACT_SILU_CLAMPED};
    struct layer *y = &l->m->layers[i];
    int64_t n_embd = l->m->n_embd;
    TRY(load_streams(l, i, y, e));
    TRY(load_vector(l, i, "attn_norm.weight", n_embd, true, &y->attn_norm, e));
    TRY(load_window_attention(l, i, &y->attn, e));
    TRY(load_vector(l, i, "ffn_norm.weight", n_embd, true, &y->ffn_norm, e));
    y->is_moe = true;
    TRY(load_moe(l, i, &rules, &y->moe, e));
    TRY(load_layer_f32_opt(l, "swiglu_clamp_exp", i, &load_factor_range, &y->moe.act_limit, e));
    y->moe.shared_act_limit = y->moe.act_limit;
    TRY(load_layer_f32_opt(l, "swiglu_clamp_shexp", i, &load_factor_range, &y->moe.shared_act_limit, e));
    return i < n_hashed ? load_token_experts(l, i, &y->moe, e) : ERR_OK;
}

err_code arch_deepseek4_load(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    int64_t n_hashed = 0;
    l->can_mtp = m->mtp.is_raw = true;
    TRY(load_trunk(l, e));
    TRY(load_stream_sizes(l, true, e));
    TRY(load_u32(l, "hash_layer_count", &n_hashed, e));
    for (int64_t i = 0; i < m->n_layer; i++)
        TRY(load_layer(l, i, n_hashed, e));
    return load_out_streams(l, e);
}
