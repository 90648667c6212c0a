/* hunyuan-dense and hunyuan-moe: Hunyuan's dense models and A13B. Norms over heads of q and k after rope; weights
 * renormalised; a shared expert. */
#include "model/loader.h"

static const struct transformer_rules rules = {
    .rope = ROPE_NEOX,
    .qk_norm = QK_NORM_HEAD_ROPED,
    .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true},
};

err_code arch_hunyuan_dense_load(struct loader *l, struct err *e)
{
    return load_transformer(l, &rules, e);
}

err_code arch_hunyuan_moe_load(struct loader *l, struct err *e)
{
    return load_transformer(l, &rules, e);
}
