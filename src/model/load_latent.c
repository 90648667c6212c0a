/* Latent attention, as files have it. */
#include <math.h>

#include "gguf/gguf.h"
#include "model/loader.h"

/* Reads the first of three keys that the file has; without any, the last one is reported as missing. Layers with a
 * window may have lengths of their own, and older files give those of heads under the plain names. */
static err_code load_length(struct loader *l, const struct attention *a, const char *const keys[3], int64_t *out,
                            struct err *e)
{
    int i = a->window ? 0 : 1;
    while (i < 2 && !load_has_key(l, keys[i]))
        i++;
    return load_u32(l, keys[i], out, e);
}

static err_code load_dims(struct loader *l, int64_t layer, bool has_rope, struct attention *a, struct err *e)
{
    static const char *const latent[] = {"attention.kv_lora_rank_swa", "attention.kv_lora_rank",
                                         "attention.kv_lora_rank"};
    static const char *const key[] = {"attention.key_length_mla_swa", "attention.key_length_mla",
                                      "attention.key_length"};
    static const char *const value[] = {"attention.value_length_mla_swa", "attention.value_length_mla",
                                        "attention.value_length"};
    struct latent_attention *lat = &a->latent;
    TRY(load_layer_u32_opt(l, "attention.head_count", layer, &a->n_head, e));
    TRY(load_length(l, a, latent, &lat->n_latent, e));
    TRY(load_u32(l, "rope.dimension_count", &a->n_rot, e));
    TRY(load_length(l, a, key, &lat->n_nope, e));
    TRY(load_length(l, a, value, &lat->n_value, e));
    lat->n_nope -= a->n_rot;
    if (a->n_head < 1 || lat->n_latent < 1 || (has_rope && a->n_rot < 2) || a->n_rot % 2 || lat->n_nope < 1 ||
        lat->n_value < 1)
        return err_set(
            e, ERR_FORMAT,
            "%s: %s.attention.*: %lld heads of %lld and %lld rotated, values of %lld, latent of %lld: expected "
            "at least 1 of each and an even number rotated",
            gguf_file_path(l->g, 0), l->m->arch, (long long)a->n_head, (long long)lat->n_nope, (long long)a->n_rot,
            (long long)lat->n_value, (long long)lat->n_latent);
    a->n_head_kv = 1;
    a->head_dim = a->head_dim_v = a->n_rot + lat->n_latent; /* a row of the cache: the rotated part, then the latent */
    return ERR_OK;
}

/* Loads the table of angles. *magnitude: what YaRN multiplies q and k by. */
static err_code load_rotation(struct loader *l, struct attention *a, float *magnitude, struct err *e)
{
    if (l->m->n_rope == 0)
        TRY(load_rope(l, "rope.freq_base", a->n_rot, NULL, &a->rope_table, e));
    a->rope = ROPE_NORMAL;
    const struct rope_angles *r = &l->m->ropes[a->rope_table].angles;
    float log_mul = 0;
    *magnitude = r->magnitude;
    TRY(load_f32_opt(l, "rope.scaling.yarn_log_multiplier", &load_factor_range, &log_mul, e));
    if (r->yarn)
        *magnitude *= 1 + log_mul * logf(1 / r->freq_scale);
    return ERR_OK;
}

static err_code load_query(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    struct latent_attention *lat = &a->latent;
    int64_t dim = lat->n_nope + a->n_rot, n_in = l->m->n_embd;
    const char *name = "attn_q.weight";
    if (load_find(l, layer, "attn_q_a.weight")) {
        TRY(load_u32(l, "attention.q_lora_rank", &a->n_q_latent, e));
        TRY(load_weight(l, layer, "attn_q_a.weight", n_in, a->n_q_latent, &a->q_a, e));
        TRY(load_vector(l, layer, "attn_q_a_norm.weight", a->n_q_latent, true, &a->q_a_norm, e));
        n_in = a->n_q_latent;
        name = "attn_q_b.weight";
    }
    const struct row_run nope = {.n_row = a->n_head * lat->n_nope, .block = lat->n_nope, .stride = dim};
    const struct row_run pe = {.n_row = a->n_head * a->n_rot, .block = a->n_rot, .stride = dim, .first = lat->n_nope};
    const struct file_matrix from = {layer, name, n_in, a->n_head * dim};
    TRY(load_weight_rows(l, &from, &nope, 1, &a->q, e));
    return a->n_rot ? load_weight_rows(l, &from, &pe, 1, &lat->q_pe, e) : ERR_OK;
}

/* k_b and v_b: a tensor each or, in older files, one tensor in which each head's keys are followed by its values, the
 * keys transposed. */
static err_code load_folded(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    struct latent_attention *lat = &a->latent;
    int64_t n_head = a->n_head, both = lat->n_nope + lat->n_value;
    if (load_find(l, layer, "attn_kv_b.weight")) {
        const int64_t shape[3] = {lat->n_latent, n_head * both, 1};
        const struct head_rows k = {.k = lat->n_nope, .n_row = lat->n_latent, .stride = both, .transposed = true};
        const struct head_rows v = {.k = lat->n_latent, .n_row = lat->n_value, .stride = both, .first = lat->n_nope};
        TRY(load_head_weight(l, layer, "attn_kv_b.weight", shape, &k, n_head, &lat->k_b, e));
        return load_head_weight(l, layer, "attn_kv_b.weight", shape, &v, n_head, &lat->v_b, e);
    }
    const int64_t k_shape[3] = {lat->n_nope, lat->n_latent, n_head}, v_shape[3] = {lat->n_latent, lat->n_value, n_head};
    const struct head_rows k = {.k = lat->n_nope, .n_row = lat->n_latent, .stride = lat->n_latent};
    const struct head_rows v = {.k = lat->n_latent, .n_row = lat->n_value, .stride = lat->n_value};
    TRY(load_head_weight(l, layer, "attn_k_b.weight", k_shape, &k, n_head, &lat->k_b, e));
    return load_head_weight(l, layer, "attn_v_b.weight", v_shape, &v, n_head, &lat->v_b, e);
}

err_code load_latent_attention(struct loader *l, int64_t layer, bool has_rope, struct attention *a, struct err *e)
{
    struct latent_attention *lat = &a->latent;
    int64_t n_embd = l->m->n_embd, n_kv;
    float magnitude = 1;
    a->is_latent = true;
    TRY(load_dims(l, layer, has_rope, a, e));
    n_kv = lat->n_latent + a->n_rot;
    a->kv_layer = layer;
    a->rope_table = a->q_rope_table = has_rope ? 0 : -1;
    lat->temperature = -1;
    if (has_rope)
        TRY(load_rotation(l, a, &magnitude, e));
    a->scale = magnitude * magnitude / sqrtf((float)(lat->n_nope + a->n_rot));
    TRY(load_query(l, layer, a, e));
    const struct row_run latent = {.n_row = lat->n_latent, .block = lat->n_latent, .stride = n_kv};
    const struct row_run pe = {.n_row = a->n_rot, .block = a->n_rot, .stride = n_kv, .first = lat->n_latent};
    const struct file_matrix kv = {layer, "attn_kv_a_mqa.weight", n_embd, n_kv};
    TRY(load_weight_rows(l, &kv, &latent, 1, &a->k, e));
    TRY(load_vector(l, layer, "attn_kv_a_norm.weight", lat->n_latent, true, &a->k_norm, e));
    if (a->n_rot) {
        TRY(load_weight_rows(l, &kv, &pe, 1, &lat->k_pe, e));
        TRY(load_vector(l, layer, "attn_k_norm.weight", a->n_rot, false, &lat->k_pe_norm, e));
    }
    TRY(load_folded(l, layer, a, e));
    return load_weight(l, layer, "attn_output.weight", a->n_head * lat->n_value, n_embd, &a->o, e);
}

err_code load_list_ratio(struct loader *l, struct compressed_attention *c, struct err *e)
{
    struct model *m = l->m;
    while (c->list < m->n_ratio && m->ratios[c->list] != c->ratio)
        c->list++;
    if (c->list == MODEL_MAX_RATIO)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s.attention.compress_ratios has %lld, and other numbers: expected at "
                       "most %d different ones",
                       gguf_file_path(l->g, 0), m->arch, (long long)c->ratio, MODEL_MAX_RATIO);
    if (c->list == m->n_ratio)
        m->ratios[m->n_ratio++] = c->ratio;
    return ERR_OK;
}

/* Whether a layer chooses for itself: as the file says, else all layers do. But GLM 5.2, whose context is longer than
 * its predecessors', has files that don't say; then the layers of its config choose. */
static err_code load_chooses(struct loader *l, int64_t layer, const struct index_rules *rules, bool *chooses,
                             struct err *e)
{
    enum { LONG_CTX = 1 << 20, PERIOD = 4, FIRST = 2 };
    bool has_period = rules->has_period && l->m->n_ctx_train >= LONG_CTX;
    *chooses = !has_period || layer < FIRST || (layer - FIRST) % PERIOD == 0;
    if (rules->is_shared)
        TRY(load_layer_flag_opt(l, "attention.indexer.types", layer, chooses, e));
    if (!*chooses && layer == 0)
        return err_set(e, ERR_FORMAT,
                       "%s: %s.attention.indexer.types: layer 0 sees the positions that a layer before it chose: "
                       "expected it to choose",
                       gguf_file_path(l->g, 0), l->m->arch);
    return ERR_OK;
}

err_code load_position_index(struct loader *l, int64_t layer, const struct index_rules *rules, struct attention *a,
                             struct err *e)
{
    struct position_index *x = &a->index;
    int64_t n_embd = l->m->n_embd, n_q = a->n_q_latent;
    bool chooses;
    x->rope = rules->rope;
    x->k_norm_eps = rules->has_model_eps ? l->m->norm_eps : 1e-6f;
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
    x->rot_first = rules->rotates_last ? x->dim - a->n_rot : 0;
    TRY(load_weight(l, layer, "indexer.attn_q_b.weight", n_q, x->n_head * x->dim, &x->q, e));
    TRY(load_weight(l, layer, "indexer.attn_k.weight", n_embd, x->dim, &x->k, e));
    TRY(load_weight(l, layer, "indexer.proj.weight", n_embd, x->n_head, &x->weights, e));
    TRY(load_vector(l, layer, "indexer.k_norm.weight", x->dim, true, &x->k_norm, e));
    return load_vector(l, layer, "indexer.k_norm.bias", x->dim, true, &x->k_norm_bias, e);
}
