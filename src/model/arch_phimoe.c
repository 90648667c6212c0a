/* phimoe: Phi-3.5-MoE. Norms with biases, biases in attention and behind the output; two sets of divisors for rope's
 * frequencies, for short and for long contexts. Norms are RMS norms and the experts' weights add up to 1, as llama.cpp
 * has it; the code that the model was published with has layer norms and another rule for the weights (SparseMixer). */
#include "model/loader.h"

static err_code load_biases(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    TRY(load_vector(l, LOAD_OUTPUT, "output_norm.bias", m->n_embd, true, &m->out_norm_bias, e));
    TRY(load_vector(l, LOAD_OUTPUT, "output.bias", m->n_vocab, true, &m->output_bias, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_vector(l, i, "attn_norm.bias", m->n_embd, true, &y->attn_norm_bias, e));
        TRY(load_vector(l, i, "ffn_norm.bias", m->n_embd, true, &y->ffn_norm_bias, e));
    }
    return ERR_OK;
}

err_code arch_phimoe_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true},
    };
    TRY(load_transformer(l, &rules, e));
    return load_biases(l, e);
}
