/* llama: Llama 2 and 3, Mistral (dense) and Mixtral (MoE). */
#include "model/loader.h"

err_code arch_llama_load(struct loader *l, struct err *e)
{
    return load_transformer(l,
                            &(struct transformer_rules){
                                .rope = ROPE_NORMAL,
                                .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true},
                            },
                            e);
}
