/* qwen2moe: Qwen1.5-MoE and Qwen2-MoE. Biases on q, k and v; weights not renormalised; a shared expert behind a sigmoid
 * gate. */
#include "model/loader.h"

err_code arch_qwen2moe_load(struct loader *l, struct err *e)
{
    return load_transformer(l,
                            &(struct transformer_rules){
                                .rope = ROPE_NEOX,
                                .moe = {.score = ROUTE_SOFTMAX, .norm_weights = false},
                            },
                            e);
}
