/* laguna: Poolside's Laguna. Norms over heads of q and k, a gate by softplus on what attention gives (one for each head
 * or element), leading dense layers, sigmoid scores with a correction bias, a shared expert. In files with a window
 * most layers attend to it and rotate by plain angles, the others by the file's scaling, which may be fewer elements.
 */
#include "gguf/gguf.h"
#include "model/loader.h"

err_code arch_laguna_load(struct loader *l, struct err *e)
{
    int64_t window = 0;
    TRY(load_u32_opt(l, "attention.sliding_window", &window, e));
    const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .window_period = window ? 4 : 0,
        .full_first = true,
        .plain_in_window = true,
        .moe = {.score = ROUTE_SIGMOID},
    };
    TRY(load_transformer(l, &rules, e));
    for (int64_t i = 0; i < l->m->n_layer; i++)
        TRY(load_attention_gate(l, i, ACT_SOFTPLUS, &l->m->layers[i].attn, e));
    return ERR_OK;
}
