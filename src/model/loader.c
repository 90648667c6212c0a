/* What all architectures begin with, and models of plain transformer layers. */
#include "model/loader.h"

#include "base/minmax.h"
#include "base/model_limits.h"

/* ---- trunk --------------------------------------------------------------------------------------------------- */

/* Says which device computes which layers, once their number is known. */
static err_code take_stages(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    const struct model_load_params *p = l->p;
    m->n_stage = p->n_stage ? p->n_stage : 1;
    m->stages[0] = (struct model_stage){.device = m->device, .end = m->n_layer};
    for (int i = 0; i < p->n_stage; i++) {
        int64_t first = i ? m->stages[i - 1].end : 0, end = i < p->n_stage - 1 ? p->stages[i].end : m->n_layer;
        m->stages[i] = (struct model_stage){.device = p->stages[i].device, .first = first, .end = end};
        if (first >= end || end > m->n_layer)
            return err_set(e, ERR_USAGE,
                           "%s: %lld layers can't be divided among %d devices so that device %d has layers %lld to "
                           "%lld: expected some for each",
                           gguf_file_path(l->g, 0), (long long)m->n_layer, p->n_stage, i, (long long)first,
                           (long long)end - 1);
    }
    return ERR_OK;
}

/* The norm of the output; files of LFM2 call it one of the embedding. */
static const char *find_out_norm(const struct loader *l)
{
    static const char usual[] = "output_norm.weight", other[] = "token_embd_norm.weight";
    return load_find(l, LOAD_OUTPUT, usual) || !load_find(l, LOAD_OUTPUT, other) ? usual : other;
}

/* Files of Nemotron H may have the epsilon of layer norms alone. */
static const char *find_epsilon(const struct loader *l)
{
    static const char usual[] = "attention.layer_norm_rms_epsilon", other[] = "attention.layer_norm_epsilon";
    return load_has_key(l, usual) || !load_has_key(l, other) ? usual : other;
}

/* The layers for multi-token prediction are loaded behind the others, if that is of use: as many as follow each other
 * in the file, and the first one where the layers are divided among devices, whose shares count one. */
static void add_mtp_layers(struct loader *l)
{
    struct model *m = l->m;
    bool is_there = load_find(l, m->n_trunk, "nextn.eh_proj.weight");
    int64_t most = l->p->n_stage > 1 ? 1 : LIMIT_MTP, end = min_i64(l->n_block, m->n_trunk + most);
    while (l->can_mtp && m->n_layer < end && load_find(l, m->n_layer, "nextn.eh_proj.weight"))
        m->n_layer++;
    if (m->n_layer == m->n_trunk)
        log_line(l->p->log, LOG_WARN, "%s: multi-token prediction is not used: %s", gguf_file_path(l->g, 0),
                 is_there ? "it is not known of this architecture" : "its tensors were left out of the file");
}

err_code load_trunk(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    const char *path = gguf_file_path(l->g, 0);
    static const struct f32_range epsilon = {1e-20f, 1, false};
    int64_t n_nextn = 0;
    TRY(load_u32(l, "block_count", &l->n_block, e));
    TRY(load_u32_opt(l, "nextn_predict_layers", &n_nextn, e));
    m->n_trunk = m->n_layer = l->n_block - n_nextn;
    TRY(load_u32(l, "embedding_length", &m->n_embd, e));
    TRY(load_u32(l, "context_length", &m->n_ctx_train, e));
    TRY(load_f32(l, find_epsilon(l), &epsilon, &m->norm_eps, e));
    if (m->n_layer < 1 || l->n_block > LIMIT_LAYERS)
        return err_set(e, ERR_FORMAT, "%s: %lld layers, %lld of them for predicting further tokens: expected 1 to %d",
                       path, (long long)l->n_block, (long long)n_nextn, LIMIT_LAYERS);
    if (l->p->mtp && n_nextn)
        add_mtp_layers(l);
    if (m->n_embd < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.embedding_length is 0, expected at least 1", path, m->arch);
    TRY(take_stages(l, e));
    const struct gguf_tensor *embd = load_find(l, LOAD_INPUT, "token_embd.weight");
    if (!embd)
        return err_set(e, ERR_FORMAT, "%s: tensor token_embd.weight is missing: a vocabulary without a model?", path);
    m->n_vocab = (int64_t)embd->ne[1];
    TRY(load_weight(l, LOAD_INPUT, "token_embd.weight", m->n_embd, m->n_vocab, &m->embed, e));
    m->embed_scale = m->residual_scale = m->logit_scale = 1;
    m->n_stream = 1;
    if (!load_find(l, LOAD_OUTPUT, "output_hc_norm.weight")) /* of gated streams */
        TRY(load_vector(l, LOAD_OUTPUT, find_out_norm(l), m->n_embd, true, &m->out_norm, e));
    m->output = m->embed;
    bool is_tied = !load_find(l, LOAD_OUTPUT, "output.weight");
    if (!is_tied || load_device(l, LOAD_OUTPUT) != m->device)
        TRY(load_weight(l, LOAD_OUTPUT, is_tied ? "token_embd.weight" : "output.weight", m->n_embd, m->n_vocab,
                        &m->output, e));
    m->layers = arena_calloc(&m->arena, (size_t)m->n_layer, sizeof *m->layers);
    m->expert_layers = arena_calloc(&m->arena, (size_t)m->n_layer, sizeof *m->expert_layers);
    m->adjugates = arena_calloc(&m->arena, (size_t)m->n_layer, sizeof *m->adjugates);
    if (!m->layers || !m->expert_layers || !m->adjugates)
        return err_nomem(e, (size_t)m->n_layer * sizeof *m->layers, "the layers");
    return ERR_OK;
}

static err_code load_mtp_head(struct loader *l, int64_t i, struct mtp_head *x, struct err *e)
{
    static const char embed[] = "nextn.embed_tokens.weight", output[] = "nextn.shared_head_head.weight",
                      norm[] = "nextn.shared_head_norm.weight", other_norm[] = "layer_output_norm.weight";
    struct model *m = l->m;
    int64_t n = m->n_embd;
    TRY(load_vector(l, i, "nextn.enorm.weight", n, true, &x->embed_norm, e));
    TRY(load_vector(l, i, "nextn.hnorm.weight", n, true, &x->hidden_norm, e));
    TRY(load_weight(l, i, "nextn.eh_proj.weight", 2 * n, n, &x->proj, e));
    x->embed = m->embed;
    if (load_find(l, i, embed))
        TRY(load_weight(l, i, embed, n, m->n_vocab, &x->embed, e));
    else if (m->n_stage > 1)
        TRY(load_weight(l, LOAD_OUTPUT, "token_embd.weight", n, m->n_vocab, &x->embed, e));
    x->output = m->output;
    if (load_find(l, i, output))
        TRY(load_weight(l, i, output, n, m->n_vocab, &x->output, e));
    x->out_norm = m->out_norm;
    return load_vector(l, i, load_find(l, i, norm) ? norm : other_norm, n, false, &x->out_norm, e);
}

err_code load_mtp(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    m->mtp.n = m->n_layer - m->n_trunk;
    m->mtp.heads = arena_calloc(&m->arena, (size_t)m->mtp.n + 1, sizeof *m->mtp.heads);
    if (!m->mtp.heads)
        return err_nomem(e, (size_t)m->mtp.n * sizeof *m->mtp.heads, "the layers");
    for (int64_t i = 0; i < m->mtp.n; i++)
        TRY(load_mtp_head(l, m->n_trunk + i, &m->mtp.heads[i], e));
    return ERR_OK;
}

/* ---- blocks -------------------------------------------------------------------------------------------------- */

err_code load_act_limits(struct loader *l, int64_t layer, struct layer *y, struct err *e)
{
    float routed = 0, shared = 0;
    TRY(load_layer_f32_opt(l, "swiglu_clamp_exp", layer, &load_factor_range, &routed, e));
    TRY(load_layer_f32_opt(l, "swiglu_clamp_shexp", layer, &load_factor_range, &shared, e));
    y->ffn.act_limit = y->moe.shared_act_limit = shared;
    y->moe.act_limit = routed;
    return ERR_OK;
}

static err_code load_ffn_width(struct loader *l, int64_t layer, struct ffn *f, struct err *e)
{
    TRY(load_layer_u32_opt(l, "feed_forward_length", layer, &f->n_ff, e));
    if (f->n_ff < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.feed_forward_length is missing or 0 in layer %lld",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)layer);
    return ERR_OK;
}

static err_code load_down(struct loader *l, int64_t layer, struct ffn *f, struct err *e)
{
    TRY(load_weight(l, layer, "ffn_down.weight", f->n_ff, l->m->n_embd, &f->down, e));
    return load_vector(l, layer, "ffn_down.bias", l->m->n_embd, false, &f->down_bias, e);
}

err_code load_ffn(struct loader *l, int64_t layer, struct ffn *f, struct err *e)
{
    TRY(load_ffn_width(l, layer, f, e));
    return load_wide_ffn(l, layer, f->n_ff, f, e);
}

err_code load_wide_ffn(struct loader *l, int64_t layer, int64_t n_ff, struct ffn *f, struct err *e)
{
    struct model *m = l->m;
    f->n_ff = n_ff;
    f->act = ACT_SILU;
    TRY(load_weight(l, layer, "ffn_gate.weight", m->n_embd, f->n_ff, &f->gate, e));
    TRY(load_weight(l, layer, "ffn_up.weight", m->n_embd, f->n_ff, &f->up, e));
    TRY(load_vector(l, layer, "ffn_gate.bias", f->n_ff, false, &f->gate_bias, e));
    TRY(load_vector(l, layer, "ffn_up.bias", f->n_ff, false, &f->up_bias, e));
    return load_down(l, layer, f, e);
}

err_code load_ungated_ffn(struct loader *l, int64_t layer, enum act_fn act, struct ffn *f, struct err *e)
{
    TRY(load_ffn_width(l, layer, f, e));
    f->act = act;
    TRY(load_weight(l, layer, "ffn_up.weight", l->m->n_embd, f->n_ff, &f->gate, e));
    TRY(load_vector(l, layer, "ffn_up.bias", f->n_ff, false, &f->gate_bias, e));
    return load_down(l, layer, f, e);
}

err_code load_moe_or_ffn(struct loader *l, int64_t layer, const struct moe_rules *rules, struct layer *y, struct err *e)
{
    y->is_moe = load_find(l, layer, "ffn_gate_inp.weight") != NULL;
    return y->is_moe ? load_moe(l, layer, rules, &y->moe, e) : load_ffn(l, layer, &y->ffn, e);
}

static err_code find_mixer(struct loader *l, int64_t layer, const struct transformer_rules *r, struct layer *y,
                           struct err *e)
{
    int64_t n_head_kv = 1;
    TRY(load_layer_u32_opt(l, "attention.head_count_kv", layer, &n_head_kv, e));
    y->is_recurrent = r->recurrent && n_head_kv == 0;
    return ERR_OK;
}

err_code load_transformer(struct loader *l, const struct transformer_rules *r, struct err *e)
{
    struct model *m = l->m;
    TRY(load_trunk(l, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_vector(l, i, "attn_norm.weight", m->n_embd, true, &y->attn_norm, e));
        TRY(find_mixer(l, i, r, y, e));
        TRY(y->is_recurrent ? r->recurrent(l, i, &y->recurrent, e)
                            : load_attention(l, i, r->rope, r->qk_norm, &y->attn, e));
        if (r->window_period)
            TRY(load_window(l, i, r->window_period, r->full_first, &y->attn.window, e));
        if (y->attn.window)
            TRY(load_window_rope(l, r->plain_in_window, &y->attn, e));
        if (r->rope_in_window && y->attn.window == 0)
            y->attn.rope_table = y->attn.q_rope_table = -1;
        y->is_parallel = r->is_parallel;
        y->ffn_norm = y->attn_norm;
        if (!r->is_parallel)
            TRY(load_vector(l, i, r->ffn_norm ? r->ffn_norm : "ffn_norm.weight", m->n_embd, true, &y->ffn_norm, e));
        TRY(load_moe_or_ffn(l, i, &r->moe, y, e));
    }
    return ERR_OK;
}
