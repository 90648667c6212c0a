/* glm4moe: GLM-4.5 and its like. Leading dense layers, partial rope, norms over heads in some sizes; sigmoid scores
 * with a correction bias, a shared expert. */
#include "model/loader.h"

err_code arch_glm4moe_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD_OPTIONAL,
        .ffn_norm = "post_attention_norm.weight",
        .moe = {.score = ROUTE_SIGMOID},
    };
    l->can_mtp = true;
    return load_transformer(l, &rules, e);
}
