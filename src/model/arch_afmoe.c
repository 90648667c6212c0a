/* afmoe: Arcee's Trinity. Windowed layers are rotated, the others attend to everything without rope; norms over heads
 * of q and k, a gate on what attention gives, norms before and after each part, leading dense layers, sigmoid scores
 * with a correction bias, shared experts. */
#include <math.h>

#include "model/loader.h"

err_code arch_afmoe_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .window_period = 4,
        .rope_in_window = true,
        .moe = {.score = ROUTE_SIGMOID},
    };
    struct model *m = l->m;
    TRY(load_transformer(l, &rules, e));
    m->embed_scale = sqrtf((float)m->n_embd);
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_attention_gate(l, i, ACT_SIGMOID, &y->attn, e));
        TRY(load_vector(l, i, "post_attention_norm.weight", m->n_embd, true, &y->attn_post_norm, e));
        TRY(load_vector(l, i, "post_ffw_norm.weight", m->n_embd, true, &y->ffn_post_norm, e));
    }
    return ERR_OK;
}
