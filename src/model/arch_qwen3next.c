/* qwen3next (Qwen3-Next), qwen35moe (Qwen3.5 and 3.6 with experts) and qwen35 (without): gated delta nets, and full
 * attention with an output gate in the layers that the file says, or every full_attention_interval-th; a shared expert
 * behind a sigmoid gate. The two differ in how a file lays out beta and alpha, and in which key head serves a value
 * head. Multi-section rope turns all sections by the same position in text, so it is plain rope here. */
#include "model/loader.h"

static err_code load_hybrid(struct loader *l, bool grouped, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SOFTMAX, .norm_weights = true};
    struct model *m = l->m;
    l->can_mtp = true;
    TRY(load_trunk(l, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_vector(l, i, "attn_norm.weight", m->n_embd, true, &y->attn_norm, e));
        TRY(load_is_recurrent(l, i, 4, &y->is_recurrent, e));
        y->attn.is_gated = true;
        TRY(y->is_recurrent ? load_delta_net(l, i, grouped, &y->recurrent, e)
                            : load_attention(l, i, ROPE_NEOX, QK_NORM_HEAD, &y->attn, e));
        TRY(load_vector(l, i, "post_attention_norm.weight", m->n_embd, true, &y->ffn_norm, e));
        TRY(load_moe_or_ffn(l, i, &rules, y, e));
    }
    return ERR_OK;
}

err_code arch_qwen3next_load(struct loader *l, struct err *e)
{
    return load_hybrid(l, true, e);
}

err_code arch_qwen35_load(struct loader *l, struct err *e)
{
    return load_hybrid(l, false, e);
}
