/* minimax-m2: MiniMax M2. Norms over the whole of q and of k, partial rope, sigmoid scores with a correction bias,
 * weights renormalised. */
#include "model/loader.h"

err_code arch_minimax_m2_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_ALL,
        .moe = {.score = ROUTE_SIGMOID, .norm_weights = true},
    };
    return load_transformer(l, &rules, e);
}
