/* dots3note (dots 3 note): latent attention with a gate for each head and a norm of the keys' rotated part; layers with
 * a window, which have heads, lengths and a rope base of their own, and layers in which an index chooses the positions;
 * leading dense layers, sigmoid scores with a bias for choosing, a shared expert. */
#include "model/loader.h"

static err_code load_layer(struct loader *l, int64_t i, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SIGMOID};
    static const struct index_rules index = {.rope = ROPE_NEOX};
    struct layer *y = &l->m->layers[i];
    TRY(load_vector(l, i, "attn_norm.weight", l->m->n_embd, true, &y->attn_norm, e));
    TRY(load_window(l, i, 1, false, &y->attn.window, e));
    TRY(load_latent_attention(l, i, true, &y->attn, e));
    TRY(load_attention_gate(l, i, ACT_SIGMOID, &y->attn, e));
    if (!y->attn.window)
        TRY(load_position_index(l, i, &index, &y->attn, e));
    TRY(load_vector(l, i, "ffn_norm.weight", l->m->n_embd, true, &y->ffn_norm, e));
    return load_moe_or_ffn(l, i, &rules, y, e);
}

err_code arch_dots3note_load(struct loader *l, struct err *e)
{
    TRY(load_trunk(l, e));
    for (int64_t i = 0; i < l->m->n_layer; i++)
        TRY(load_layer(l, i, e));
    return load_pattern_windows(l, e);
}
