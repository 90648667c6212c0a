/* mellum: JetBrains' Mellum 2. Norms over heads of q and k; most layers attend to a window, where the file has one, and
 * rotate by plain angles, the others by the file's scaling; softmax scores, renormalised. */
#include "model/loader.h"

err_code arch_mellum_load(struct loader *l, struct err *e)
{
    const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .window_period = load_has_key(l, "attention.sliding_window") ? 4 : 0,
        .plain_in_window = true,
        .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true},
    };
    return load_transformer(l, &rules, e);
}
