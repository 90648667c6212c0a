/* cohere2moe: Cohere's North models. Attention and the feed-forward part stand side by side behind one norm, a layer
 * norm unless the file has the epsilon of an RMS norm. Windowed layers, leading dense ones and that for multi-token
 * prediction are rotated, the others attend to everything without rope; sigmoid scores, the mean of the experts' sum
 * and a shared expert, a factor for logits. */
#include "model/loader.h"

static err_code load_logit_scale(struct loader *l, float *out, struct err *e)
{
    float v = 0;
    TRY(load_f32(l, "logit_scale", &load_factor_range, &v, e));
    *out = v != 0 ? v : 1;
    return ERR_OK;
}

err_code arch_cohere2moe_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NORMAL,
        .window_period = 4,
        .full_first = true,
        .rope_in_window = true,
        .is_parallel = true,
        .moe = {.score = ROUTE_SIGMOID},
    };
    struct model *m = l->m;
    int64_t n_dense = 0;
    l->can_mtp = true;
    TRY(load_u32_opt(l, "leading_dense_block_count", &n_dense, e));
    TRY(load_transformer(l, &rules, e));
    TRY(load_logit_scale(l, &m->logit_scale, e));
    m->has_layer_norms = !load_has_key(l, "attention.layer_norm_rms_epsilon");
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        if (y->is_moe && y->moe.shared_down)
            y->ffn_scale = 0.5f;
        if ((i < n_dense || i >= m->n_trunk) && !y->attn.window)
            y->attn.rope_table = y->attn.q_rope_table = 0;
    }
    return ERR_OK;
}
