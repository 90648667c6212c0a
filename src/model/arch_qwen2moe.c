/* qwen2 (dense: Qwen2, Qwen2.5) and qwen2moe (Qwen1.5-MoE, Qwen2-MoE). Biases on q, k and v; weights not renormalised;
 * a shared expert behind a sigmoid gate. */
#include "model/loader.h"

err_code arch_qwen2_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {.rope = ROPE_NEOX, .moe = {.score = ROUTE_SOFTMAX}};
    return load_transformer(l, &rules, e);
}
