/* ernie4_5 (dense) and ernie4_5-moe: ERNIE 4.5. Leading dense layers; softmax scores with a correction bias, weights
 * renormalised; a shared expert. */
#include "model/loader.h"

err_code arch_ernie4_5_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NORMAL,
        .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true},
    };
    return load_transformer(l, &rules, e);
}
