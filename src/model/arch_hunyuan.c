/* hunyuan-dense and hunyuan-moe: Hunyuan's dense models and A13B. Norms over heads of q and k after rope; weights
 * renormalised; a shared expert. hy_v3 (Hunyuan 3) norms before rope, and has leading dense layers and sigmoid scores
 * with a correction bias. */
#include "model/loader.h"

err_code arch_hunyuan_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD_ROPED,
        .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true},
    };
    return load_transformer(l, &rules, e);
}

err_code arch_hy_v3_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules v3 = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .moe = {.score = ROUTE_SIGMOID},
    };
    l->can_mtp = true;
    return load_transformer(l, &v3, e);
}
