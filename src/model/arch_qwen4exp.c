/* qwen4exp (Qwen3.8-Flash-Next): gated delta nets whose output a sigmoid gates, full attention with an output gate in
 * every full_attention_interval-th layer, to runs of positions that an index chooses; residual streams that are gated;
 * a shared expert behind a gate; and, in front of one layer, embeddings of n-grams. */
#include "gguf/gguf.h"
#include "model/loader.h"

/* Loads the index, if the layer has one. */
static err_code load_index(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    struct position_index *x = &a->index;
    struct compressed_attention *c = &a->compressed;
    int64_t n_embd = l->m->n_embd, n_position;
    TRY(load_layer_u32_opt(l, "attention.compress_ratios", layer, &c->ratio, e));
    if (c->ratio == 0)
        return ERR_OK;
    if (c->ratio < 2 || c->ratio > ATTENTION_BLOCK)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s.attention.compress_ratios: layer %lld has %lld: expected 0, or 2 to %d",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)layer, (long long)c->ratio, ATTENTION_BLOCK);
    TRY(load_u32(l, "attention.indexer.head_count", &x->n_head, e));
    TRY(load_u32(l, "attention.indexer.key_length", &x->dim, e));
    TRY(load_u32(l, "attention.indexer.top_k", &n_position, e));
    TRY(load_list_ratio(l, c, e));
    x->rope = a->rope;
    x->run = c->ratio;
    x->n_chosen = n_position / x->run;
    if (x->n_head < 1 || x->dim < a->n_rot || x->n_chosen < 1)
        return err_set(e, ERR_FORMAT,
                       "%s: %s.attention.indexer.*: %lld heads of %lld elements choose %lld positions: expected at "
                       "least 1, the %lld that are rotated, and a run of %lld",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)x->n_head, (long long)x->dim,
                       (long long)n_position, (long long)a->n_rot, (long long)x->run);
    c->index.n = c->index.width = x->dim;
    TRY(load_weight(l, layer, "indexer.q_proj.weight", n_embd, x->n_head * x->dim, &x->q, e));
    TRY(load_weight(l, layer, "indexer.k_proj.weight", n_embd, x->dim, &c->index.x, e));
    TRY(load_vector(l, layer, "indexer.q_norm.weight", x->dim, true, &x->q_norm, e));
    TRY(load_vector(l, layer, "indexer.k_norm.weight", x->dim, true, &c->index.norm, e));
    return load_new_tensor(l, layer, x->dim, x->run, &c->index.bias, e);
}

static err_code load_layer(struct loader *l, int64_t i, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SOFTMAX, .norm_weights = true};
    struct layer *y = &l->m->layers[i];
    TRY(load_gated_streams(l, i, y, e));
    TRY(load_is_recurrent(l, i, 4, &y->is_recurrent, e));
    y->is_moe = true;
    TRY(load_moe(l, i, &rules, &y->moe, e));
    if (y->is_recurrent) {
        TRY(load_delta_net(l, i, false, &y->recurrent, e));
        y->recurrent.z_act = ACT_SIGMOID;
        return ERR_OK;
    }
    y->attn.is_gated = true;
    TRY(load_attention(l, i, ROPE_NEOX, QK_NORM_HEAD, &y->attn, e));
    return load_index(l, i, &y->attn, e);
}

err_code arch_qwen4exp_load(struct loader *l, struct err *e)
{
    TRY(load_trunk(l, e));
    TRY(load_gated_stream_sizes(l, e));
    for (int64_t i = 0; i < l->m->n_layer; i++)
        TRY(load_layer(l, i, e));
    TRY(load_gated_out_streams(l, e));
    return load_ngrams(l, e);
}
