/* grovemoe (GroveMoE): as Qwen3's, but each pair of experts shares an adjugate, a small expert that sees what they see
 * and whose result is added with their weights, times a factor. */
#include "model/loader.h"

err_code arch_grovemoe_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX, .qk_norm = QK_NORM_HEAD, .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true}};
    TRY(load_transformer(l, &rules, e));
    for (int64_t i = 0; i < l->m->n_layer; i++)
        if (l->m->layers[i].is_moe)
            TRY(load_adjugates(l, i, &l->m->layers[i].moe, e));
    return ERR_OK;
}
