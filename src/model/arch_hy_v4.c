/* hy_v4 (Hy 4): latent attention with sinks and a gate, to positions that an index chooses where the file has one, in
 * some layers also for the layers after them; residual streams that are not mixed; leading dense layers, sigmoid scores
 * with a bias for choosing, a shared expert, routed experts with limits. */
#include "model/loader.h"

static err_code load_attention_part(struct loader *l, int64_t i, struct attention *a, struct err *e)
{
    static const struct index_rules index = {
        .rope = ROPE_NORMAL, .rotates_last = true, .is_shared = true, .has_model_eps = true};
    int64_t n_chosen = 0;
    TRY(load_latent_attention(l, i, true, a, e));
    TRY(load_vector(l, i, "attn_sinks.weight", a->n_head, true, &a->sinks, e));
    TRY(load_attention_gate(l, i, ACT_SIGMOID, a, e));
    TRY(load_u32_opt(l, "attention.indexer.top_k", &n_chosen, e));
    return n_chosen ? load_position_index(l, i, &index, a, e) : ERR_OK;
}

static err_code load_layer(struct loader *l, int64_t i, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SIGMOID, .act = ACT_SILU_CLAMPED};
    struct layer *y = &l->m->layers[i];
    int64_t n_embd = l->m->n_embd;
    TRY(load_streams(l, i, y, e));
    TRY(load_vector(l, i, "attn_norm.weight", n_embd, true, &y->attn_norm, e));
    TRY(load_attention_part(l, i, &y->attn, e));
    TRY(load_vector(l, i, "ffn_norm.weight", n_embd, true, &y->ffn_norm, e));
    TRY(load_moe_or_ffn(l, i, &rules, y, e));
    return load_layer_f32_opt(l, "swiglu_clamp_exp", i, &load_factor_range, &y->moe.act_limit, e);
}

err_code arch_hy_v4_load(struct loader *l, struct err *e)
{
    TRY(load_trunk(l, e));
    TRY(load_stream_sizes(l, false, e));
    for (int64_t i = 0; i < l->m->n_layer; i++)
        TRY(load_layer(l, i, e));
    return load_out_streams(l, e);
}
