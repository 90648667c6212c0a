/* maple: Deepgrove's Maple. Norms over heads of q and k; windowed layers are rotated, the others attend to everything
 * without rope; softmax scores, renormalised; factors of SwiGLU within limits. */
#include "model/loader.h"

err_code arch_maple_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .window_period = 4,
        .rope_in_window = true,
        .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true, .act = ACT_SILU_CLAMPED},
    };
    TRY(load_transformer(l, &rules, e));
    for (int64_t i = 0; i < l->m->n_layer; i++)
        TRY(load_layer_f32_opt(l, "swiglu_clamp_exp", i, &load_factor_range, &l->m->layers[i].moe.act_limit, e));
    return ERR_OK;
}
