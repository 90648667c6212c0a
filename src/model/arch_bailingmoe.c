/* bailingmoe (Ling) and bailingmoe2 (Ling 2, Ring 2). Leading dense layers, shared experts; the second has norms over
 * heads of q and k, partial rope in NeoX's order, and sigmoid scores with a correction bias and a grouped choice.
 * bailingmoe3 (Ling 3) is of Kimi Linear's kind: arch_kimi_linear.c. */
#include "model/loader.h"

err_code arch_bailingmoe_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {.rope = ROPE_NORMAL, .moe = {.score = ROUTE_SOFTMAX}};
    return load_transformer(l, &rules, e);
}

err_code arch_bailingmoe2_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .moe = {.score = ROUTE_SIGMOID},
    };
    return load_transformer(l, &rules, e);
}
