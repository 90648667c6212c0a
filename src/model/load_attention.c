/* Attention with keys and values, as files have it; and the gate that any attention may have. */
#include <math.h>

#include "gguf/gguf.h"
#include "model/loader.h"

static err_code attention_dims(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    struct model *m = l->m;
    const char *path = gguf_file_path(l->g, 0);
    TRY(load_layer_u32_opt(l, "attention.head_count", layer, &a->n_head, e));
    if (a->n_head < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.attention.head_count is missing or 0 in layer %lld", path, m->arch,
                       (long long)layer);
    a->n_head_kv = a->n_head;
    TRY(load_layer_u32_opt(l, "attention.head_count_kv", layer, &a->n_head_kv, e));
    a->head_dim = a->head_dim_v = m->n_embd / a->n_head;
    TRY(load_u32_opt(l, "attention.key_length", &a->head_dim, e));
    TRY(load_u32_opt(l, "attention.value_length", &a->head_dim_v, e));
    a->n_rot = a->head_dim;
    TRY(load_u32_opt(l, "rope.dimension_count", &a->n_rot, e));
    if (a->n_head_kv < 1 || a->n_head % a->n_head_kv)
        return err_set(e, ERR_FORMAT, "%s: %lld heads over %lld KV heads in layer %lld: expected a multiple", path,
                       (long long)a->n_head, (long long)a->n_head_kv, (long long)layer);
    if (a->head_dim < 1 || a->head_dim_v < 1 || a->n_rot < 2 || a->n_rot % 2 || a->n_rot > a->head_dim)
        return err_set(e, ERR_FORMAT,
                       "%s: heads of %lld and %lld with %lld rotated (rope.dimension_count): expected an even number "
                       "up to the head's",
                       path, (long long)a->head_dim, (long long)a->head_dim_v, (long long)a->n_rot);
    if (a->is_gated && a->head_dim != a->head_dim_v)
        return err_set(e, ERR_FORMAT, "%s: %s: keys of %lld and values of %lld: expected equal ones, as q holds a gate",
                       path, m->arch, (long long)a->head_dim, (long long)a->head_dim_v);
    return ERR_OK;
}

/* The table of angles that all layers rotate by, made with the first of them. */
static err_code load_shared_rope(struct loader *l, int64_t layer, struct attention *a, struct err *e)
{
    struct model *m = l->m;
    if (m->n_rope == 0)
        return load_rope(l, "rope.freq_base", a->n_rot, "rope_freqs.weight", &a->rope_table, e);
    if (a->n_rot != m->ropes[0].n_rot)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: %s: heads of %lld elements in layer %lld are rotated, and of %lld in layers before: expected "
            "the same in all",
            gguf_file_path(l->g, 0), m->arch, (long long)a->n_rot, (long long)layer, (long long)m->ropes[0].n_rot);
    return ERR_OK;
}

/* q, k and v: a tensor each, or one in which they follow each other. In q, each head's rows may be followed by those of
 * its gate. */
static err_code load_qkv(struct loader *l, int64_t layer, int64_t n_k, int64_t n_v, struct attention *a, struct err *e)
{
    int64_t n_embd = l->m->n_embd, dim = a->head_dim, n_q = a->n_head * dim, n_q_row = a->is_gated ? 2 * n_q : n_q;
    bool fused = load_find(l, layer, "attn_qkv.weight") != NULL;
    const struct file_matrix from = {layer, fused ? "attn_qkv.weight" : "attn_q.weight", n_embd,
                                     fused ? n_q_row + n_k + n_v : n_q_row};
    const struct row_run q = {.n_row = n_q, .block = a->is_gated ? dim : n_q, .stride = a->is_gated ? 2 * dim : n_q};
    const struct row_run gate = {.n_row = n_q, .block = dim, .stride = 2 * dim, .first = dim};
    const struct row_run k = {.n_row = n_k, .block = n_k, .stride = n_k, .first = n_q_row};
    const struct row_run v = {.n_row = n_v, .block = n_v, .stride = n_v, .first = n_q_row + n_k};
    TRY(load_weight_rows(l, &from, &q, 1, &a->q, e));
    if (a->is_gated) {
        a->n_gate = n_q;
        a->gate_act = ACT_SIGMOID;
        TRY(load_weight_rows(l, &from, &gate, 1, &a->gate, e));
    }
    TRY(fused ? load_weight_rows(l, &from, &k, 1, &a->k, e)
              : load_weight(l, layer, "attn_k.weight", n_embd, n_k, &a->k, e));
    return fused ? load_weight_rows(l, &from, &v, 1, &a->v, e)
                 : load_weight(l, layer, "attn_v.weight", n_embd, n_v, &a->v, e);
}

/* Elements [first, first + n) of a vector of floats. */
static struct tensor part(struct tensor t, int64_t first, int64_t n)
{
    t.off_bytes += (size_t)first * sizeof(float);
    t.ne[0] = n;
    return t;
}

static err_code load_qkv_bias(struct loader *l, int64_t layer, int64_t n_q, int64_t n_k, int64_t n_v,
                              struct attention *a, struct err *e)
{
    if (load_find(l, layer, "attn_qkv.bias")) {
        struct tensor all;
        TRY(load_vector(l, layer, "attn_qkv.bias", n_q + n_k + n_v, true, &all, e));
        a->q_bias = part(all, 0, n_q);
        a->k_bias = part(all, n_q, n_k);
        a->v_bias = part(all, n_q + n_k, n_v);
        return ERR_OK;
    }
    TRY(load_vector(l, layer, "attn_q.bias", n_q, false, &a->q_bias, e));
    TRY(load_vector(l, layer, "attn_k.bias", n_k, false, &a->k_bias, e));
    return load_vector(l, layer, "attn_v.bias", n_v, false, &a->v_bias, e);
}

static err_code load_qk_norm(struct loader *l, int64_t layer, enum qk_norm kind, struct attention *a, struct err *e)
{
    if (kind == QK_NORM_NONE || (kind == QK_NORM_HEAD_OPTIONAL && !load_find(l, layer, "attn_q_norm.weight")))
        return ERR_OK;
    a->q_norm_len = kind == QK_NORM_ALL ? a->n_head * a->head_dim : a->head_dim;
    a->k_norm_len = kind == QK_NORM_ALL ? a->n_head_kv * a->head_dim : a->head_dim;
    a->rope_first = kind == QK_NORM_HEAD_ROPED;
    TRY(load_vector(l, layer, "attn_q_norm.weight", a->q_norm_len, true, &a->q_norm, e));
    return load_vector(l, layer, "attn_k_norm.weight", a->k_norm_len, true, &a->k_norm, e);
}

err_code load_attention(struct loader *l, int64_t layer, enum rope_mode rope, enum qk_norm qk_norm, struct attention *a,
                        struct err *e)
{
    struct model *m = l->m;
    TRY(attention_dims(l, layer, a, e));
    a->rope = rope;
    a->kv_layer = layer;
    TRY(load_shared_rope(l, layer, a, e));
    a->scale = 1 / sqrtf((float)a->head_dim);
    int64_t n_q = a->n_head * a->head_dim, n_k = a->n_head_kv * a->head_dim, n_v = a->n_head_kv * a->head_dim_v;
    TRY(load_qkv(l, layer, n_k, n_v, a, e));
    TRY(load_qkv_bias(l, layer, n_q, n_k, n_v, a, e));
    TRY(load_weight(l, layer, "attn_output.weight", a->n_head * a->head_dim_v, m->n_embd, &a->o, e));
    TRY(load_vector(l, layer, "attn_output.bias", m->n_embd, false, &a->o_bias, e));
    TRY(load_vector(l, layer, "attn_sinks.weight", a->n_head, false, &a->sinks, e));
    return load_qk_norm(l, layer, qk_norm, a, e);
}

err_code load_attention_gate(struct loader *l, int64_t layer, enum act_fn act, struct attention *a, struct err *e)
{
    const struct gguf_tensor *t = load_find(l, layer, "attn_gate.weight");
    bool is_by_head = t && (int64_t)t->ne[1] == a->n_head;
    a->n_gate = is_by_head ? a->n_head : a->n_head * (a->is_latent ? a->latent.n_value : a->head_dim_v);
    a->gate_act = act;
    return load_weight(l, layer, "attn_gate.weight", l->m->n_embd, a->n_gate, &a->gate, e);
}
