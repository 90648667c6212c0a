/* kimi-linear (Kimi Linear 48B-A3B): gated delta nets with a decay for each key dimension (KDA), and latent attention
 * without rope in the layers that have heads of keys; sigmoid scores with a bias for choosing, weights renormalised, a
 * shared expert, leading dense layers. bailingmoe3 (Ling 3) is of the same kind: its decays have a lower bound, they
 * and the gates of outputs are not low-rank, and attention has rope and gates. So is kimi-k3: its decays may have a
 * lower bound, gates of outputs are not low-rank, attention has gates, experts work in a latent space, activations are
 * SiTU, and parts see a sum of the residual stream and banked ones. And glm5next (GLM 5.3 Flash): decays have a lower
 * bound, an index chooses the runs of positions that attention sees, and residual streams are mixed. */
#include <stdio.h>

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
    r->dv = r->n_norm = r->dk;
    r->n_head_k = r->n_beta = r->n_head_v;
    r->n_alpha = r->n_out = r->n_head_v * r->dv;
    r->n_mixed = 3 * r->n_out;
    return ERR_OK;
}

/* `part`, the decays (f) or the output's gate (g): n rows of n_embd, or of rank dk behind others. */
static err_code load_gates(struct loader *l, int64_t layer, const char *part, int64_t n, struct recurrent *r,
                           struct weight **in, struct weight **out, struct err *e)
{
    char a[LOAD_KEY_BYTES], b[LOAD_KEY_BYTES];
    snprintf(a, sizeof a, "ssm_%s_a.weight", part);
    snprintf(b, sizeof b, "ssm_%s_b.weight", part);
    if (!load_find(l, layer, b))
        return load_weight(l, layer, a, l->m->n_embd, n, out, e);
    r->n_rank = r->dk;
    TRY(load_weight(l, layer, a, l->m->n_embd, r->n_rank, in, e));
    return load_weight(l, layer, b, r->n_rank, n, out, e);
}

static err_code load_kda(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    int64_t n_embd = l->m->n_embd;
    *r = (struct recurrent){.kind = RECURRENCE_DELTA, .z_act = ACT_SIGMOID, .qk_eps = l->m->norm_eps};
    TRY(load_sizes(l, layer, r, e));
    int64_t n = r->n_out;
    const struct conv_part parts[] = {
        {"ssm_conv1d_q.weight", n}, {"ssm_conv1d_k.weight", n}, {"ssm_conv1d_v.weight", n}};
    TRY(load_conv_parts(l, layer, load_ssm_conv.key, parts, 3, r, e));
    TRY(load_weight(l, layer, "attn_q.weight", n_embd, n, &r->q, e));
    TRY(load_weight(l, layer, "attn_k.weight", n_embd, n, &r->k, e));
    TRY(load_weight(l, layer, "attn_v.weight", n_embd, n, &r->v, e));
    TRY(load_gates(l, layer, "f", r->n_alpha, r, &r->alpha_in, &r->alpha, e));
    TRY(load_weight(l, layer, "ssm_beta.weight", n_embd, r->n_head_v, &r->beta, e));
    TRY(load_find(l, layer, "ssm_g.weight") ? load_weight(l, layer, "ssm_g.weight", n_embd, n, &r->z, e)
                                            : load_gates(l, layer, "g", n, r, &r->z_in, &r->z, e));
    TRY(load_vector(l, layer, "ssm_dt.bias", r->n_alpha, true, &r->dt, e));
    TRY(load_head_numbers(l, layer, "ssm_a", r->n_head_v, &r->a, e));
    TRY(load_vector(l, layer, "ssm_norm.weight", r->n_norm, true, &r->norm, e));
    return load_weight(l, layer, "attn_output.weight", n, n_embd, &r->out, e);
}

static err_code load_layers(struct loader *l, const struct moe_rules *rules, bool has_rope, struct err *e)
{
    struct model *m = l->m;
    TRY(load_trunk(l, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        int64_t n_head_kv = 1;
        TRY(load_vector(l, i, "attn_norm.weight", m->n_embd, true, &y->attn_norm, e));
        TRY(load_layer_u32_opt(l, "attention.head_count_kv", i, &n_head_kv, e));
        y->is_recurrent = n_head_kv == 0 && i < m->n_trunk;
        TRY(y->is_recurrent ? load_kda(l, i, &y->recurrent, e) : load_latent_attention(l, i, has_rope, &y->attn, e));
        TRY(load_vector(l, i, "ffn_norm.weight", m->n_embd, true, &y->ffn_norm, e));
        TRY(load_moe_or_ffn(l, i, rules, y, e));
    }
    return ERR_OK;
}

err_code arch_kimi_linear_load(struct loader *l, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SIGMOID, .norm_weights = true};
    return load_layers(l, &rules, false, e);
}

static const struct f32_range bound_range = {-100, -1e-3f, false};

err_code arch_bailingmoe3_load(struct loader *l, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SIGMOID};
    float min_log_decay = 0;
    bool is_safe = true;
    l->can_mtp = true;
    TRY(load_layers(l, &rules, true, e));
    TRY(load_f32(l, "kda.gate_lower_bound", &bound_range, &min_log_decay, e));
    TRY(load_bool_opt(l, "kda.safe_gate", &is_safe, e));
    if (!is_safe)
        return err_set(e, ERR_UNSUPPORTED, "%s: bailingmoe3.kda.safe_gate is false: this version takes true",
                       gguf_file_path(l->g, 0));
    for (int64_t i = 0; i < l->m->n_layer; i++) {
        struct layer *y = &l->m->layers[i];
        y->recurrent.min_log_decay = y->is_recurrent ? min_log_decay : 0;
        if (!y->is_recurrent)
            TRY(load_attention_gate(l, i, ACT_SIGMOID, &y->attn, e));
        TRY(load_act_limits(l, i, y, e));
    }
    return ERR_OK;
}

static err_code load_situ(struct loader *l, struct layer *y, struct err *e)
{
    static const struct f32_range range = {1e-6f, 1e6f, false};
    float bound = 0, up_bound = 0;
    TRY(load_f32(l, "activation.situ_beta", &range, &bound, e));
    TRY(load_f32(l, "activation.situ_linear_beta", &load_factor_range, &up_bound, e));
    y->ffn.act = y->moe.act = ACT_SITU;
    y->ffn.act_limit = y->moe.act_limit = y->moe.shared_act_limit = bound;
    y->ffn.act_up_limit = y->moe.act_up_limit = up_bound;
    return ERR_OK;
}

static err_code negate(struct backend *device, const struct tensor *t, struct err *e)
{
    size_t n_bytes = tensor_bytes(t);
    float *x = mem_alloc(n_bytes);
    err_code code = x ? backend_read(device, t, x, e) : err_nomem(e, n_bytes, "decays");
    for (int64_t i = 0; code == ERR_OK && i < tensor_n_elem(t); i++)
        x[i] = -x[i];
    if (code == ERR_OK)
        backend_write(device, t, x);
    mem_free(x);
    return code;
}

/* Gives decays a lower bound. Files have `a` as the formula without a bound takes it; the one with a bound takes it
 * negated (backend.h, DELTA). */
static err_code bound_decays(struct loader *l, int64_t layer, float bound, struct recurrent *r, struct err *e)
{
    r->min_log_decay = bound;
    return bound < 0 ? negate(load_device(l, layer), &r->a, e) : ERR_OK;
}

err_code arch_kimi_k3_load(struct loader *l, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SIGMOID};
    float bound = 0;
    TRY(load_layers(l, &rules, false, e));
    TRY(load_f32_opt(l, "kda.gate_lower_bound", &bound_range, &bound, e));
    for (int64_t i = 0; i < l->m->n_layer; i++) {
        struct layer *y = &l->m->layers[i];
        TRY(y->is_recurrent ? bound_decays(l, i, bound, &y->recurrent, e)
                            : load_attention_gate(l, i, ACT_SIGMOID, &y->attn, e));
        TRY(load_situ(l, y, e));
    }
    return load_residuals(l, e);
}

/* The index, whose keys are layer-normed and then pooled by gates and biases of each position. */
static err_code load_run_index(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    static const struct index_rules rules = {0};
    static const struct f32_range epsilon = {0, 1, false};
    struct position_index *x = &a->index;
    struct compressed_attention *c = &a->compressed;
    struct compressor *keys = &c->index;
    bool has_own_names = load_find(l, layer, "indexer.kpool_gate.weight") != NULL; /* else those of DeepSeek V4 */
    bool sees_rest = true;
    TRY(load_position_index(l, layer, &rules, a, e));
    TRY(load_f32_opt(l, "attention.layer_norm_epsilon", &epsilon, &x->k_norm_eps, e));
    TRY(load_bool_opt(l, "attention.indexer.kpool_select_tail", &sees_rest, e));
    if (!sees_rest)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s.attention.indexer.kpool_select_tail is false: this version takes true",
                       gguf_file_path(l->g, 0), l->m->arch);
    TRY(load_u32(l, "attention.indexer.kpool", &x->run, e));
    if (x->run < 2 || x->run > ATTENTION_BLOCK || x->n_chosen % x->run)
        return err_set(e, ERR_FORMAT,
                       "%s: %s.attention.indexer.*: top_k is %lld, kpool %lld: expected a multiple of kpool, which is "
                       "2 to %d",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)x->n_chosen, (long long)x->run, ATTENTION_BLOCK);
    x->n_chosen /= x->run;
    c->ratio = x->run;
    TRY(load_list_ratio(l, c, e));
    keys->n = keys->width = x->dim;
    keys->x = x->k;
    x->k = NULL;
    TRY(load_weight(l, layer, has_own_names ? "indexer.kpool_gate.weight" : "indexer_compressor_gate.weight",
                    l->m->n_embd, x->dim, &keys->gate, e));
    return load_table(l, layer, has_own_names ? "indexer.kpool_ape.weight" : "indexer_compressor_ape.weight", x->dim,
                      x->run, true, &keys->bias, e);
}

err_code arch_glm5next_load(struct loader *l, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SIGMOID, .act = ACT_SILU_CLAMPED};
    float bound = 0;
    TRY(load_layers(l, &rules, false, e));
    TRY(load_stream_sizes(l, true, e));
    TRY(load_f32(l, "kda.gate_lower_bound", &bound_range, &bound, e));
    for (int64_t i = 0; i < l->m->n_layer; i++) {
        struct layer *y = &l->m->layers[i];
        TRY(load_streams(l, i, y, e));
        TRY(y->is_recurrent ? bound_decays(l, i, bound, &y->recurrent, e) : load_run_index(l, i, &y->attn, e));
        TRY(load_act_limits(l, i, y, e));
        if (!load_has_key(l, "swiglu_clamp_shexp"))
            y->ffn.act_limit = y->moe.shared_act_limit = y->moe.act_limit;
        y->recurrent.qk_eps = 1e-6f;
        y->ffn.act = ACT_SILU_CLAMPED;
    }
    return ERR_OK;
}
