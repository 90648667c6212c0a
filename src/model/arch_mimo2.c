/* mimo2: MiMo V2. Windowed layers with sinks, KV heads and a rope base of their own, values narrower than keys, partial
 * rope, a factor on what attention gives; leading dense layers, sigmoid scores with a correction bias. */
#include "model/loader.h"

err_code arch_mimo2_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .moe = {.score = ROUTE_SIGMOID, .norm_weights = true},
    };
    struct model *m = l->m;
    float factor = 0;
    l->can_mtp = m->mtp.is_raw = true;
    TRY(load_transformer(l, &rules, e));
    TRY(load_f32_opt(l, "attention.value_scale", &load_factor_range, &factor, e));
    for (int64_t i = 0; i < m->n_layer; i++)
        m->layers[i].attn.out_scale = factor == 1 ? 0 : factor;
    return load_pattern_windows(l, e);
}
