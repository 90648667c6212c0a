/* gpt-oss: OpenAI's open models. Attention sinks, every other layer windowed, YaRN, biases everywhere, top-k of the
 * logits and then softmax, clamped SwiGLU. */
#include "model/loader.h"

err_code arch_gpt_oss_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .ffn_norm = "post_attention_norm.weight",
        .window_period = 2,
        .moe = {.score = ROUTE_SOFTMAX_CHOSEN, .act = ACT_SWIGLU_OAI},
    };
    return load_transformer(l, &rules, e);
}
