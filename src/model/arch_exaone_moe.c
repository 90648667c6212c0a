/* exaone-moe: K-EXAONE. Windowed layers are rotated, the others attend to everything without rope; norms over heads of
 * q and k, leading dense layers, sigmoid scores with a correction bias, a shared expert. */
#include "model/loader.h"

err_code arch_exaone_moe_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .window_period = 4,
        .rope_in_window = true,
        .moe = {.score = ROUTE_SIGMOID},
    };
    return load_transformer(l, &rules, e);
}
