/* deepseek2 (DeepSeek V2 and V3, R1, Kimi K2, Mistral Large 3), mistral4 (Mistral Small 4), deepseek32 (V3.2) and
 * glm-dsa (GLM 5). Latent attention: keys and values are products of one small latent vector a token, so the cache
 * holds that vector and a rotated part, and the products are folded into the query and the output. Queries through a
 * low rank or not; leading dense layers; shared experts; softmax or sigmoid scores, grouped choice. In deepseek32 and
 * glm-dsa an index chooses the positions that attention sees; in GLM 5.2 most layers see what an earlier one chose. In
 * Mistral's models queries grow with the position. */
#include "model/loader.h"

/* How a family's index is, where it has one. */
struct index_rules {
    enum rope_mode rope;
    bool is_shared; /* some layers see what an earlier one chose */
};

/* Whether a layer chooses for itself: as the file says; files of GLM 5.2 that don't say have the layers of its config,
 * and those before it, which have shorter contexts, choose in all. */
static err_code load_chooses(struct loader *l, int64_t layer, const struct index_rules *rules, bool *chooses,
                             struct err *e)
{
    enum { LONG_CTX = 1 << 20, PERIOD = 4, FIRST = 2 };
    *chooses = !rules->is_shared || l->m->n_ctx_train < LONG_CTX || layer < FIRST || (layer - FIRST) % PERIOD == 0;
    if (rules->is_shared)
        TRY(load_layer_flag_opt(l, "attention.indexer.types", layer, chooses, e));
    if (!*chooses && layer == 0)
        return err_set(e, ERR_FORMAT,
                       "%s: %s.attention.indexer.types: layer 0 sees the positions that a layer before it chose: "
                       "expected it to choose",
                       gguf_file_path(l->g, 0), l->m->arch);
    return ERR_OK;
}

static err_code load_index(struct loader *l, int64_t layer, const struct index_rules *rules, struct attention *a,
                           struct err *e)
{
    struct position_index *x = &a->index;
    int64_t n_embd = l->m->n_embd, n_q = a->n_q_latent;
    bool chooses;
    x->rope = rules->rope;
    TRY(load_u32(l, "attention.indexer.top_k", &x->n_chosen, e));
    TRY(load_chooses(l, layer, rules, &chooses, e));
    if (x->n_chosen < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.attention.indexer.top_k is 0, expected at least 1",
                       gguf_file_path(l->g, 0), l->m->arch);
    if (!chooses)
        return ERR_OK;
    TRY(load_u32(l, "attention.indexer.head_count", &x->n_head, e));
    TRY(load_u32(l, "attention.indexer.key_length", &x->dim, e));
    if (x->n_head < 1 || x->dim < a->n_rot || n_q < 1)
        return err_set(e, ERR_FORMAT,
                       "%s: %s.attention.indexer.*: %lld heads of %lld elements, queries of rank %lld: expected at "
                       "least 1, the %lld that are rotated, and 1",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)x->n_head, (long long)x->dim, (long long)n_q,
                       (long long)a->n_rot);
    TRY(load_weight(l, layer, "indexer.attn_q_b.weight", n_q, x->n_head * x->dim, &x->q, e));
    TRY(load_weight(l, layer, "indexer.attn_k.weight", n_embd, x->dim, &x->k, e));
    TRY(load_weight(l, layer, "indexer.proj.weight", n_embd, x->n_head, &x->weights, e));
    TRY(load_vector(l, layer, "indexer.k_norm.weight", x->dim, true, &x->k_norm, e));
    return load_vector(l, layer, "indexer.k_norm.bias", x->dim, true, &x->k_norm_bias, e);
}

/* Queries that grow with the position, where the file says so. */
static err_code load_temperature(struct loader *l, struct err *e)
{
    const struct attention *a = &l->m->layers[0].attn;
    float temperature = 0;
    int64_t span = 0;
    TRY(load_f32_opt(l, "attention.temperature_scale", &load_factor_range, &temperature, e));
    if (temperature == 0)
        return ERR_OK;
    TRY(load_u32(l, "attention.temperature_length", &span, e));
    if (span < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.attention.temperature_length is 0, expected at least 1",
                       gguf_file_path(l->g, 0), l->m->arch);
    if (a->head_dim % 2)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: %s.attention.kv_lora_rank is %lld, expected an even number, as queries grow with the position",
            gguf_file_path(l->g, 0), l->m->arch, (long long)a->latent.n_latent);
    int table = load_add_temperature(l->m, a->head_dim, temperature, span, 0);
    for (int64_t i = 0; i < l->m->n_layer; i++)
        l->m->layers[i].attn.latent.temperature = table;
    return ERR_OK;
}

/* index: NULL where attention sees all positions. */
static err_code load_latent(struct loader *l, enum route_score score, const struct index_rules *index, struct err *e)
{
    const struct moe_rules rules = {.score = score};
    struct model *m = l->m;
    TRY(load_trunk(l, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_vector(l, i, "attn_norm.weight", m->n_embd, true, &y->attn_norm, e));
        TRY(load_latent_attention(l, i, true, &y->attn, e));
        if (index)
            TRY(load_index(l, i, index, &y->attn, e));
        TRY(load_vector(l, i, "ffn_norm.weight", m->n_embd, true, &y->ffn_norm, e));
        y->is_moe = load_find(l, i, "ffn_gate_inp.weight") != NULL;
        TRY(y->is_moe ? load_moe(l, i, &rules, &y->moe, e) : load_ffn(l, i, &y->ffn, e));
    }
    return load_temperature(l, e);
}

err_code arch_deepseek2_load(struct loader *l, struct err *e)
{
    return load_latent(l, ROUTE_SOFTMAX, NULL, e);
}

err_code arch_deepseek32_load(struct loader *l, struct err *e)
{
    static const struct index_rules index = {.rope = ROPE_NEOX};
    return load_latent(l, ROUTE_SIGMOID, &index, e);
}

err_code arch_glm_dsa_load(struct loader *l, struct err *e)
{
    static const struct index_rules index = {.rope = ROPE_NORMAL, .is_shared = true};
    return load_latent(l, ROUTE_SIGMOID, &index, e);
}
