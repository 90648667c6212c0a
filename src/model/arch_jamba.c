/* jamba (Jamba 1.5, 1.6 and 1.7): selective state spaces (Mamba) whose steps, B and C are normed, attention without
 * rope in every eighth layer, experts in every second; softmax scores that are not renormalised. */
#include "model/loader.h"

err_code arch_jamba_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NORMAL, .recurrent = load_selective_space, .moe = {.score = ROUTE_SOFTMAX}};
    TRY(load_transformer(l, &rules, e));
    for (int64_t i = 0; i < l->m->n_layer; i++)
        l->m->layers[i].attn.rope_table = l->m->layers[i].attn.q_rope_table = -1;
    return ERR_OK;
}
