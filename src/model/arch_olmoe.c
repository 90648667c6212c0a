/* olmoe: OLMoE. Norms over the whole of q and of k; the chosen experts' weights are not renormalised. */
#include "model/loader.h"

err_code arch_olmoe_load(struct loader *l, struct err *e)
{
    return load_transformer(l,
                            &(struct transformer_rules){
                                .rope = ROPE_NEOX,
                                .qk_norm = QK_NORM_ALL,
                                .moe = {.score = ROUTE_SOFTMAX, .norm_weights = false},
                            },
                            e);
}
