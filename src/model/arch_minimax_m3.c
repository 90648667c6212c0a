/* minimax-m3: MiniMax M3. Norms over heads of q and k, partial rope, leading dense layers, sigmoid scores with a
 * correction bias, a shared expert, gpt-oss' activation everywhere. In layers with experts an index chooses the blocks
 * of positions that the heads of each KV head see. */
#include "model/loader.h"

static err_code load_index(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    struct position_index *x = &a->index;
    int64_t n_embd = l->m->n_embd;
    x->rope = a->rope;
    TRY(load_u32(l, "attention.indexer.head_count", &x->n_head, e));
    TRY(load_u32(l, "attention.indexer.key_length", &x->dim, e));
    TRY(load_u32(l, "attention.indexer.top_k", &x->n_chosen, e));
    TRY(load_u32(l, "attention.indexer.block_size", &x->block, e));
    TRY(load_u32(l, "attention.indexer.local_blocks", &x->n_local, e));
    if (x->n_head != a->n_head_kv || x->dim < a->n_rot)
        return err_set(e, ERR_FORMAT,
                       "%s: minimax-m3.attention.indexer.*: %lld heads of %lld elements: expected one for each of %lld "
                       "KV heads, and at least the %lld that are rotated",
                       gguf_file_path(l->g, 0), (long long)x->n_head, (long long)x->dim, (long long)a->n_head_kv,
                       (long long)a->n_rot);
    if (x->block < 1 || x->block % ATTENTION_BLOCK)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: minimax-m3.attention.indexer.block_size is %lld: expected a multiple of %d, as caches lie in "
            "pages of so many positions",
            gguf_file_path(l->g, 0), (long long)x->block, ATTENTION_BLOCK);
    if (x->n_local < 1 || x->n_local > x->n_chosen)
        return err_set(e, ERR_FORMAT,
                       "%s: minimax-m3.attention.indexer.local_blocks is %lld: expected 1 to the %lld of top_k",
                       gguf_file_path(l->g, 0), (long long)x->n_local, (long long)x->n_chosen);
    TRY(load_weight(l, layer, "indexer.q_proj.weight", n_embd, x->n_head * x->dim, &x->q, e));
    TRY(load_weight(l, layer, "indexer.k_proj.weight", n_embd, x->dim, &x->k, e));
    TRY(load_vector(l, layer, "indexer.q_norm.weight", x->dim, true, &x->q_norm, e));
    return load_vector(l, layer, "indexer.k_norm.weight", x->dim, true, &x->k_norm, e);
}

err_code arch_minimax_m3_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .moe = {.score = ROUTE_SIGMOID, .act = ACT_SWIGLU_OAI},
    };
    TRY(load_transformer(l, &rules, e));
    for (int64_t i = 0; i < l->m->n_layer; i++) {
        struct layer *y = &l->m->layers[i];
        y->ffn.act = ACT_SWIGLU_OAI;
        if (y->is_moe)
            TRY(load_index(l, i, &y->attn, e));
    }
    return ERR_OK;
}
