/* deepseek: the first DeepSeek-MoE. Attention with a key and a value for each head, leading dense layers, shared
 * experts; softmax over all experts, weights not renormalised. */
#include "model/loader.h"

err_code arch_deepseek_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {.rope = ROPE_NORMAL, .moe = {.score = ROUTE_SOFTMAX}};
    return load_transformer(l, &rules, e);
}
