/* mimo2: MiMo V2. Windowed layers with sinks, KV heads and a rope base of their own, values narrower than keys, partial
 * rope, a factor on what attention gives; leading dense layers, sigmoid scores with a correction bias. */
#include "model/loader.h"

err_code arch_mimo2_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .moe = {.score = ROUTE_SIGMOID, .norm_weights = true},
    };
    static const char pattern[] = "attention.sliding_window_pattern";
    struct model *m = l->m;
    float factor = 0;
    int windowed_rope;
    TRY(load_transformer(l, &rules, e));
    TRY(load_f32_opt(l, "attention.value_scale", &load_factor_range, &factor, e));
    if (!load_has_key(l, pattern))
        return err_set(e, ERR_FORMAT, "%s: key mimo2.%s is missing", gguf_file_path(l->g, 0), pattern);
    TRY(load_rope(l, "rope.freq_base_swa", m->layers[0].attn.n_rot, NULL, &windowed_rope, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct attention *a = &m->layers[i].attn;
        TRY(load_window(l, i, 1, false, &a->window, e));
        if (a->window)
            a->rope_table = a->q_rope_table = windowed_rope;
        a->out_scale = factor == 1 ? 0 : factor;
    }
    return ERR_OK;
}
