/* dots1: dots.llm1. Norms over heads of q and k, leading dense layers, sigmoid scores with a correction bias, shared
 * experts. */
#include "model/loader.h"

err_code arch_dots1_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .moe = {.score = ROUTE_SIGMOID},
    };
    return load_transformer(l, &rules, e);
}
