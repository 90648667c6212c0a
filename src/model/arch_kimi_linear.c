/* kimi-linear (Kimi Linear 48B-A3B): gated delta nets with a decay for each key dimension (KDA), and latent attention
 * without rope in the layers that have heads of keys; sigmoid scores with a bias for choosing, weights renormalised, a
 * shared expert, leading dense layers. */
#include "gguf/gguf.h"
#include "model/loader.h"

static err_code load_sizes(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    TRY(load_u32(l, "kda.head_dim", &r->dk, e));
    TRY(load_layer_u32_opt(l, "attention.head_count", layer, &r->n_head_v, e));
    TRY(load_u32(l, load_ssm_conv.key, &r->n_tap, e));
    if (r->dk < 1 || r->n_head_v < 1)
        return err_set(e, ERR_FORMAT,
                       "%s: %s: kda.head_dim is %lld, attention.head_count %lld in layer %lld: expected at least 1 of "
                       "both",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)r->dk, (long long)r->n_head_v, (long long)layer);
    r->dv = r->n_norm = r->n_rank = r->dk;
    r->n_head_k = r->n_head_v;
    r->n_alpha = r->n_out = r->n_head_v * r->dv;
    r->n_mixed = 3 * r->n_out;
    return ERR_OK;
}

static err_code load_kda(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    int64_t n_embd = l->m->n_embd;
    *r = (struct recurrent){.kind = RECURRENCE_DELTA, .z_act = ACT_SIGMOID};
    TRY(load_sizes(l, layer, r, e));
    int64_t n = r->n_out;
    const struct conv_part parts[] = {
        {"ssm_conv1d_q.weight", n}, {"ssm_conv1d_k.weight", n}, {"ssm_conv1d_v.weight", n}};
    TRY(load_conv_parts(l, layer, load_ssm_conv.key, parts, 3, r, e));
    TRY(load_weight(l, layer, "attn_q.weight", n_embd, n, &r->q, e));
    TRY(load_weight(l, layer, "attn_k.weight", n_embd, n, &r->k, e));
    TRY(load_weight(l, layer, "attn_v.weight", n_embd, n, &r->v, e));
    TRY(load_weight(l, layer, "ssm_f_a.weight", n_embd, r->n_rank, &r->alpha_in, e));
    TRY(load_weight(l, layer, "ssm_f_b.weight", r->n_rank, r->n_alpha, &r->alpha, e));
    TRY(load_weight(l, layer, "ssm_beta.weight", n_embd, r->n_head_v, &r->beta, e));
    TRY(load_weight(l, layer, "ssm_g_a.weight", n_embd, r->n_rank, &r->z_in, e));
    TRY(load_weight(l, layer, "ssm_g_b.weight", r->n_rank, n, &r->z, e));
    TRY(load_vector(l, layer, "ssm_dt.bias", r->n_alpha, true, &r->dt, e));
    TRY(load_head_numbers(l, layer, "ssm_a", r->n_head_v, &r->a, e));
    TRY(load_vector(l, layer, "ssm_norm.weight", r->n_norm, true, &r->norm, e));
    return load_weight(l, layer, "attn_output.weight", n, n_embd, &r->out, e);
}

err_code arch_kimi_linear_load(struct loader *l, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SIGMOID, .norm_weights = true};
    struct model *m = l->m;
    TRY(load_trunk(l, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        int64_t n_head_kv = 1;
        TRY(load_vector(l, i, "attn_norm.weight", m->n_embd, true, &y->attn_norm, e));
        TRY(load_layer_u32_opt(l, "attention.head_count_kv", i, &n_head_kv, e));
        y->is_recurrent = n_head_kv == 0;
        TRY(y->is_recurrent ? load_kda(l, i, &y->recurrent, e) : load_latent_attention(l, i, false, &y->attn, e));
        TRY(load_vector(l, i, "ffn_norm.weight", m->n_embd, true, &y->ffn_norm, e));
        y->is_moe = load_find(l, i, "ffn_gate_inp.weight") != NULL;
        TRY(y->is_moe ? load_moe(l, i, &rules, &y->moe, e) : load_ffn(l, i, &y->ffn, e));
    }
    return ERR_OK;
}
