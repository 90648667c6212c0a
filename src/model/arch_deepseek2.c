/* deepseek2 (DeepSeek V2 and V3, R1, Kimi K2, Mistral Large 3), mistral4 (Mistral Small 4), deepseek32 (V3.2) and
 * glm-dsa (GLM 5). Latent attention: keys and values are products of one small latent vector a token, so the cache
 * holds that vector and a rotated part, and the products are folded into the query and the output. Queries through a
 * low rank or not; leading dense layers; shared experts; softmax or sigmoid scores, grouped choice. In deepseek32 and
 * glm-dsa an index chooses the positions that attention sees; in GLM 5.2 most layers see what an earlier one chose. In
 * Mistral's models queries grow with the position. */
#include "model/loader.h"

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
    l->can_mtp = true;
    TRY(load_trunk(l, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_vector(l, i, "attn_norm.weight", m->n_embd, true, &y->attn_norm, e));
        TRY(load_latent_attention(l, i, true, &y->attn, e));
        if (index && i < m->n_trunk) /* the layer for multi-token prediction sees all */
            TRY(load_position_index(l, i, index, &y->attn, e));
        TRY(load_vector(l, i, "ffn_norm.weight", m->n_embd, true, &y->ffn_norm, e));
        TRY(load_moe_or_ffn(l, i, &rules, y, e));
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
    static const struct index_rules index = {.rope = ROPE_NORMAL, .is_shared = true, .has_period = true};
    return load_latent(l, ROUTE_SIGMOID, &index, e);
}
