/* arctic (Snowflake Arctic): a dense branch as wide as the residual stream beside experts, which see what goes into the
 * layer, behind a norm of their own; softmax scores, renormalised. */
#include "model/loader.h"

err_code arch_arctic_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {.rope = ROPE_NORMAL,
                                                   .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true}};
    struct model *m = l->m;
    TRY(load_transformer(l, &rules, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        y->moe_sees_input = true;
        TRY(load_vector(l, i, "ffn_norm_exps.weight", m->n_embd, true, &y->moe_norm, e));
        TRY(load_wide_ffn(l, i, m->n_embd, &y->ffn, e));
    }
    return ERR_OK;
}
