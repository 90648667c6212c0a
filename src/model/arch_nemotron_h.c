/* nemotron_h (dense) and nemotron_h_moe: Nemotron Nano 2 and Nemotron 3. Each layer is one of three: a state space,
 * attention without rope, or a feed-forward part without a gate, whose activation is relu(x)^2. Experts are chosen by
 * sigmoid scores with a correction bias beside a shared expert; in Nemotron 3 Super they work in a latent space. The
 * layer for multi-token prediction has attention and experts. */
#include "gguf/gguf.h"
#include "model/loader.h"

static err_code load_attention_alone(struct loader *l, int64_t i, struct attention *a, struct err *e)
{
    TRY(load_attention(l, i, ROPE_NORMAL, QK_NORM_NONE, a, e));
    a->rope_table = a->q_rope_table = -1;
    return load_f32_opt(l, "attention.scale", &load_factor_range, &a->scale, e);
}

static const struct moe_rules moe = {.score = ROUTE_SIGMOID, .act = ACT_RELU, .is_ungated = true};

/* The layer's one part. Those that have no width of a feed-forward part are state spaces or, if they have heads of
 * keys, attention. */
static err_code load_part(struct loader *l, int64_t i, struct layer *y, struct err *e)
{
    int64_t n_ff = 0, n_head_kv = 0, n_embd = l->m->n_embd;
    TRY(load_layer_u32_opt(l, "feed_forward_length", i, &n_ff, e));
    TRY(load_layer_u32_opt(l, "attention.head_count_kv", i, &n_head_kv, e));
    TRY(load_vector(l, i, "attn_norm.weight", n_embd, true, n_ff ? &y->ffn_norm : &y->attn_norm, e));
    y->is_recurrent = n_ff == 0 && n_head_kv == 0;
    y->attn.kv_layer = i;
    if (n_ff == 0)
        return y->is_recurrent ? load_state_space(l, i, &y->recurrent, e) : load_attention_alone(l, i, &y->attn, e);
    y->is_moe = load_find(l, i, "ffn_gate_inp.weight") != NULL;
    return y->is_moe ? load_moe(l, i, &moe, &y->moe, e) : load_ungated_ffn(l, i, ACT_RELU, &y->ffn, e);
}

static err_code load_both(struct loader *l, int64_t i, struct layer *y, struct err *e)
{
    TRY(load_vector(l, i, "attn_norm.weight", l->m->n_embd, true, &y->attn_norm, e));
    TRY(load_attention_alone(l, i, &y->attn, e));
    TRY(load_vector(l, i, "post_attention_norm.weight", l->m->n_embd, true, &y->ffn_norm, e));
    y->is_moe = true;
    return load_moe(l, i, &moe, &y->moe, e);
}

err_code arch_nemotron_h_load(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    l->can_mtp = m->mtp.has_layer_norm = true;
    TRY(load_trunk(l, e));
    for (int64_t i = 0; i < m->n_layer; i++)
        TRY(i < m->n_trunk ? load_part(l, i, &m->layers[i], e) : load_both(l, i, &m->layers[i], e));
    return ERR_OK;
}
