/* qwen3next (Qwen3-Next), qwen35moe (Qwen3.5 and 3.6 with experts) and qwen35 (without): gated delta nets, and full
 * attention with an output gate in the layers that the file says, or every full_attention_interval-th; a shared expert
 * behind a sigmoid gate. The two differ in how a file lays out beta and alpha, and in which key head serves a value
 * head. Multi-section rope turns all sections by the same position in text, so it is plain rope here. */
#include "model/loader.h"

#include "gguf/gguf.h"

/* beta and alpha: two tensors, or one in which each key head's betas are followed by its alphas. */
static err_code load_gates(struct loader *l, int64_t layer, struct recurrent *d, struct err *e)
{
    int64_t n = d->n_head_v, share = n / d->n_head_k;
    if (!load_find(l, layer, "ssm_ba.weight")) {
        TRY(load_weight(l, layer, "ssm_beta.weight", l->m->n_embd, n, &d->beta, e));
        return load_weight(l, layer, "ssm_alpha.weight", l->m->n_embd, n, &d->alpha, e);
    }
    const struct row_run beta = {.n_row = n, .block = share, .stride = 2 * share};
    const struct row_run alpha = {.n_row = n, .block = share, .stride = 2 * share, .first = share};
    const struct file_matrix both = {layer, "ssm_ba.weight", l->m->n_embd, 2 * n};
    TRY(load_weight_rows(l, &both, &beta, 1, &d->beta, e));
    return load_weight_rows(l, &both, &alpha, 1, &d->alpha, e);
}

/* q, k, v and z: two tensors, or one in which each key head's q, k, v and z stand together. */
static err_code load_mixed(struct loader *l, int64_t layer, struct recurrent *d, struct err *e)
{
    int64_t n_embd = l->m->n_embd, n_k = d->n_head_k * d->dk, n_v = d->n_head_v * d->dv;
    if (!load_find(l, layer, "ssm_in.weight")) {
        TRY(load_weight(l, layer, "attn_qkv.weight", n_embd, d->n_mixed, &d->mixed, e));
        return load_weight(l, layer, "attn_gate.weight", n_embd, n_v, &d->z, e);
    }
    int64_t share = n_v / d->n_head_k, stride = 2 * d->dk + 2 * share;
    const struct row_run qkv[] = {{.n_row = n_k, .block = d->dk, .stride = stride},
                                  {.n_row = n_k, .block = d->dk, .stride = stride, .first = d->dk},
                                  {.n_row = n_v, .block = share, .stride = stride, .first = 2 * d->dk}};
    const struct row_run z = {.n_row = n_v, .block = share, .stride = stride, .first = 2 * d->dk + share};
    const struct file_matrix all = {layer, "ssm_in.weight", n_embd, d->n_mixed + n_v};
    TRY(load_weight_rows(l, &all, qkv, 3, &d->mixed, e));
    return load_weight_rows(l, &all, &z, 1, &d->z, e);
}

static err_code load_delta_net(struct loader *l, int64_t layer, bool grouped, struct recurrent *d, struct err *e)
{
    *d = (struct recurrent){.kind = RECURRENCE_DELTA, .grouped = grouped};
    TRY(load_ssm_sizes(l, d, e));
    TRY(load_mixed(l, layer, d, e));
    TRY(load_gates(l, layer, d, e));
    TRY(load_conv(l, layer, &load_ssm_conv, NULL, 0, d, e));
    TRY(load_vector(l, layer, "ssm_dt.bias", d->n_head_v, true, &d->dt, e));
    TRY(load_vector(l, layer, "ssm_a", d->n_head_v, true, &d->a, e));
    TRY(load_vector(l, layer, "ssm_norm.weight", d->dv, true, &d->norm, e));
    d->n_norm = d->dv;
    return load_weight(l, layer, "ssm_out.weight", d->n_out, l->m->n_embd, &d->out, e);
}

static err_code load_hybrid(struct loader *l, bool grouped, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SOFTMAX, .norm_weights = true};
    struct model *m = l->m;
    int64_t interval = 4;
    l->can_mtp = true;
    TRY(load_trunk(l, e));
    TRY(load_u32_opt(l, "full_attention_interval", &interval, e));
    if (interval < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.full_attention_interval is 0, expected at least 1",
                       gguf_file_path(l->g, 0), m->arch);
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_vector(l, i, "attn_norm.weight", m->n_embd, true, &y->attn_norm, e));
        y->is_recurrent = (i + 1) % interval != 0;
        TRY(load_layer_flag_opt(l, "attention.recurrent_layers", i, &y->is_recurrent, e));
        y->is_recurrent &= i < m->n_trunk;
        y->attn.is_gated = true;
        TRY(y->is_recurrent ? load_delta_net(l, i, grouped, &y->recurrent, e)
                            : load_attention(l, i, ROPE_NEOX, QK_NORM_HEAD, &y->attn, e));
        TRY(load_vector(l, i, "post_attention_norm.weight", m->n_embd, true, &y->ffn_norm, e));
        TRY(load_moe_or_ffn(l, i, &rules, y, e));
    }
    return ERR_OK;
}

err_code arch_qwen3next_load(struct loader *l, struct err *e)
{
    return load_hybrid(l, true, e);
}

err_code arch_qwen35moe_load(struct loader *l, struct err *e)
{
    return load_hybrid(l, false, e);
}

err_code arch_qwen35_load(struct loader *l, struct err *e)
{
    return load_hybrid(l, false, e);
}
