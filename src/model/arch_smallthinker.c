/* smallthinker: SmallThinker 21B-A3B and 4B-A0.6B. The router sees what goes into the layer, so that its choice is
 * known before attention; ReLU in the experts. Three of four layers attend to a window and are rotated, the first of
 * each four attends to everything without rope; without a window all are rotated. */
#include "model/loader.h"

err_code arch_smallthinker_load(struct loader *l, struct err *e)
{
    struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .moe = {.score = ROUTE_SIGMOID, .norm_weights = true, .act = ACT_RELU},
    };
    int64_t window = 0;
    TRY(load_u32_opt(l, "attention.sliding_window", &window, e));
    if (window) {
        rules.window_period = 4;
        rules.full_first = rules.rope_in_window = true;
    }
    TRY(load_transformer(l, &rules, e));
    for (int64_t i = 0; i < l->m->n_layer; i++)
        l->m->layers[i].routes_input = l->m->layers[i].is_moe;
    return ERR_OK;
}
