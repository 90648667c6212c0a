/* What weighs several residual streams, or banked ones, as files have it. */
#include <stdio.h>

#include "gguf/gguf.h"
#include "model/loader.h"

static err_code load_count(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    m->stream_magnitude = 2;
    TRY(load_u32(l, "hyper_connection.count", &m->n_stream, e));
    if (m->n_stream < 2 || m->n_stream > OP_MAX_STREAM)
        return err_set(e, ERR_FORMAT, "%s: %s.hyper_connection.count is %lld: expected 2 to %d streams",
                       gguf_file_path(l->g, 0), m->arch, (long long)m->n_stream, OP_MAX_STREAM);
    return ERR_OK;
}

err_code load_stream_sizes(struct loader *l, bool mixes, struct err *e)
{
    enum { MAX_ITERATION = 256 };
    static const struct f32_range epsilon = {0, 1, false}, magnitude = {1e-3f, 1e3f, false};
    struct model *m = l->m;
    TRY(load_count(l, e));
    TRY(load_f32(l, "hyper_connection.epsilon", &epsilon, &m->stream_eps, e));
    m->n_stream_mix = m->n_stream * (mixes ? m->n_stream + 2 : 2);
    if (!mixes)
        return load_f32(l, "hyper_connection.magnitude", &magnitude, &m->stream_magnitude, e);
    TRY(load_u32(l, "hyper_connection.sinkhorn_iterations", &m->n_stream_iteration, e));
    if (m->n_stream_iteration < 1 || m->n_stream_iteration > MAX_ITERATION)
        return err_set(e, ERR_FORMAT, "%s: %s.hyper_connection.sinkhorn_iterations is %lld: expected 1 to %d",
                       gguf_file_path(l->g, 0), m->arch, (long long)m->n_stream_iteration, MAX_ITERATION);
    return ERR_OK;
}

/* names: of the matrix, the scale and the base. */
static err_code load_weights(struct loader *l, int64_t layer, const char *const names[3], int64_t n_mix,
                             int64_t n_scale, struct stream_weights *s, struct err *e)
{
    const struct model *m = l->m;
    TRY(load_weight(l, layer, names[0], m->n_stream * m->n_embd, n_mix, &s->mix, e));
    TRY(load_vector(l, layer, names[1], n_scale, true, &s->scale, e));
    return load_vector(l, layer, names[2], n_mix, true, &s->base, e);
}

err_code load_streams(struct loader *l, int64_t layer, struct layer *y, struct err *e)
{
    static const char *const attn[] = {"hc_attn_fn.weight", "hc_attn_scale.weight", "hc_attn_base.weight"};
    static const char *const ffn[] = {"hc_ffn_fn.weight", "hc_ffn_scale.weight", "hc_ffn_base.weight"};
    int64_t n_mix = l->m->n_stream_mix, n_scale = n_mix > 2 * l->m->n_stream ? 3 : 2;
    TRY(load_weights(l, layer, attn, n_mix, n_scale, &y->attn_streams, e));
    return load_weights(l, layer, ffn, n_mix, n_scale, &y->ffn_streams, e);
}

err_code load_out_streams(struct loader *l, struct err *e)
{
    static const char *const out[] = {"output_hc_fn.weight", "output_hc_scale.weight", "output_hc_base.weight"};
    return load_weights(l, LOAD_OUTPUT, out, l->m->n_stream, 1, &l->m->out_streams, e);
}

/* ---- gated streams ----------------------------------------------------------------------------------------------- */

err_code load_gated_stream_sizes(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    TRY(load_count(l, e));
    TRY(load_u32(l, "hyper_connection.low_rank", &m->n_stream_rank, e));
    m->n_stream_mix = m->n_stream;
    if (m->n_stream_rank < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.hyper_connection.low_rank is 0, expected at least 1",
                       gguf_file_path(l->g, 0), m->arch);
    return ERR_OK;
}

err_code load_stream_norm(struct loader *l, int64_t layer, const char *name, struct tensor *out, struct err *e)
{
    int64_t n_stream = l->m->n_stream, n = l->m->n_embd;
    const struct gguf_tensor *t = load_find(l, layer, name);
    bool is_table = t && t->ne[0] == (uint64_t)n && t->ne[1] == (uint64_t)n_stream;
    TRY(load_table(l, layer, name, is_table ? n : n_stream * n, is_table ? n_stream : 1, true, out, e));
    out->ne[0] = n_stream * n;
    out->ne[1] = 1;
    return ERR_OK;
}

/* part: what the names begin with. */
static err_code load_gate(struct loader *l, int64_t layer, const char *part, bool has_mix, struct tensor *norm,
                          struct stream_weights *s, struct err *e)
{
    enum { NAME_BYTES = 64 };
    const struct model *m = l->m;
    int64_t n = m->n_stream * m->n_embd;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s_norm.weight", part);
    TRY(load_stream_norm(l, layer, name, norm, e));
    snprintf(name, sizeof name, "%s_down.weight", part);
    TRY(load_weight(l, layer, name, n, m->n_stream_rank, &s->down, e));
    snprintf(name, sizeof name, "%s_up.weight", part);
    TRY(load_weight(l, layer, name, m->n_stream_rank, n, &s->up, e));
    snprintf(name, sizeof name, "%s_inject.weight", part);
    return has_mix ? load_weight(l, layer, name, n, m->n_stream, &s->mix, e) : ERR_OK;
}

err_code load_gated_streams(struct loader *l, int64_t layer, struct layer *y, struct err *e)
{
    TRY(load_gate(l, layer, "hc_attn", true, &y->attn_norm, &y->attn_streams, e));
    return load_gate(l, layer, "hc_ffn", true, &y->ffn_norm, &y->ffn_streams, e);
}

err_code load_gated_out_streams(struct loader *l, struct err *e)
{
    return load_gate(l, LOAD_OUTPUT, "output_hc", false, &l->m->out_norm, &l->m->out_streams, e);
}

/* ---- banked residuals -------------------------------------------------------------------------------------------- */

err_code load_residuals(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    TRY(load_u32(l, "attn_res.block_size", &m->bank_period, e));
    if (m->bank_period == 0)
        return ERR_OK;
    m->n_bank = (m->n_layer + m->bank_period - 1) / m->bank_period;
    if (m->n_bank > OP_MAX_BANK)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s.attn_res.block_size is %lld: %lld layers bank their residuals, expected at most %d",
                       gguf_file_path(l->g, 0), m->arch, (long long)m->bank_period, (long long)m->n_bank, OP_MAX_BANK);
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_vector(l, i, "attn_res_score.weight", m->n_embd, true, &y->attn_streams.score, e));
        TRY(load_vector(l, i, "ffn_res_score.weight", m->n_embd, true, &y->ffn_streams.score, e));
    }
    return load_vector(l, LOAD_OUTPUT, "output_res_score.weight", m->n_embd, true, &m->out_streams.score, e);
}
