/* minimax-01: MiniMax-Text-01 and M1. Of eight layers seven are linear attention with fixed decays (lightning
 * attention), which differ by head and by layer, and one is softmax attention with partial rope; both parts of a layer
 * are added to what they see, the normed stream, times a factor; softmax scores, renormalised. */
#include <math.h>

#include "gguf/gguf.h"
#include "model/loader.h"

/* The logarithms of the heads' decays: ALiBi's slopes, which become smaller from layer to layer. */
static err_code load_decays(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    int64_t n = r->n_head_v, last = l->m->n_layer > 1 ? l->m->n_layer - 1 : 1;
    double scale = 1 - (double)layer / (double)last + 1e-5;
    float *a = mem_calloc((size_t)n, sizeof *a);
    err_code code = a ? load_new_tensor(l, layer, n, 1, &r->a, e) : err_nomem(e, (size_t)n * sizeof *a, "decays");
    if (code == ERR_OK) {
        for (int64_t i = 0; i < n; i++)
            a[i] = (float)(-scale * exp2(-8.0 * (double)(i + 1) / (double)n));
        backend_write(load_device(l, layer), &r->a, a);
    }
    mem_free(a);
    return code;
}

static err_code load_sizes(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    TRY(load_layer_u32_opt(l, "attention.head_count", layer, &r->n_head_v, e));
    TRY(load_u32(l, "attention.key_length", &r->dk, e));
    if (r->dk < 1 || r->n_head_v < 1 || (r->n_head_v & (r->n_head_v - 1)))
        return err_set(
            e, ERR_FORMAT,
            "%s: minimax-01.attention.*: key_length is %lld, head_count %lld in layer %lld: expected at least "
            "1, and a power of 2",
            gguf_file_path(l->g, 0), (long long)r->dk, (long long)r->n_head_v, (long long)layer);
    r->dv = r->dk;
    r->n_head_k = r->n_head_v;
    r->n_out = r->n_norm = r->n_head_v * r->dv;
    r->n_mixed = 3 * r->n_out;
    return ERR_OK;
}

static err_code load_lightning(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    int64_t n_embd = l->m->n_embd;
    *r = (struct recurrent){.kind = RECURRENCE_FIXED, .z_act = ACT_SIGMOID};
    TRY(load_sizes(l, layer, r, e));
    /* each head's q, k and v stand together */
    int64_t n = r->n_out, dk = r->dk;
    const struct file_matrix from = {layer, "attn_qkv.weight", n_embd, r->n_mixed};
    const struct row_run qkv[] = {{n, dk, 3 * dk, 0}, {n, dk, 3 * dk, dk}, {n, dk, 3 * dk, 2 * dk}};
    TRY(load_weight_rows(l, &from, qkv, 3, &r->mixed, e));
    TRY(load_weight(l, layer, "attn_gate.weight", n_embd, n, &r->z, e));
    TRY(load_decays(l, layer, r, e));
    TRY(load_new_tensor(l, layer, r->n_head_v, 1, &r->skip, e));
    TRY(load_vector(l, layer, "attn_norm_2.weight", n, true, &r->norm, e));
    return load_weight(l, layer, "attn_output.weight", n, n_embd, &r->out, e);
}

err_code arch_minimax_01_load(struct loader *l, struct err *e)
{
    static const struct moe_rules rules = {.score = ROUTE_SOFTMAX, .norm_weights = true};
    static const struct f32_range scale_range = {1e-6f, 1e6f, false};
    struct model *m = l->m;
    TRY(load_trunk(l, e));
    TRY(load_f32(l, "residual_scale", &scale_range, &m->normed_scale, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        TRY(load_vector(l, i, "attn_norm.weight", m->n_embd, true, &y->attn_norm, e));
        TRY(load_is_recurrent(l, i, 8, &y->is_recurrent, e));
        TRY(y->is_recurrent ? load_lightning(l, i, &y->recurrent, e)
                            : load_attention(l, i, ROPE_NEOX, QK_NORM_NONE, &y->attn, e));
        TRY(load_vector(l, i, "ffn_norm.weight", m->n_embd, true, &y->ffn_norm, e));
        TRY(load_moe_or_ffn(l, i, &rules, y, e));
    }
    return ERR_OK;
}
