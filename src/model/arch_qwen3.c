/* qwen3 (dense) and qwen3moe (30B-A3B, 235B-A22B): norms over each head of q and k; weights renormalised. qwen3vl and
 * qwen3vlmoe are the same for text: all sections of their rope turn by one position. */
#include "model/loader.h"

err_code arch_qwen3_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true},
    };
    return load_transformer(l, &rules, e);
}
