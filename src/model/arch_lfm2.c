/* lfm2 (Liquid's LFM2, dense) and lfm2moe (with experts): gated short convolutions, and full attention in the layers
 * that have heads of keys; sigmoid scores with a bias for choosing. */
#include "model/loader.h"

static err_code load_short_conv(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    static const struct conv_names names = {"shortconv.l_cache", "shortconv.conv.weight", "shortconv.conv.bias"};
    int64_t n = l->m->n_embd;
    const struct file_matrix in = {layer, "shortconv.in_proj.weight", n, 3 * n};
    const struct row_run gate = {n, n, n, 0}, z = {n, n, n, n}, mixed = {n, n, n, 2 * n};
    *r = (struct recurrent){.kind = RECURRENCE_CONV, .n_mixed = n, .n_out = n, .z_act = ACT_NONE};
    TRY(load_u32(l, names.key, &r->n_tap, e));
    TRY(load_conv(l, layer, &names, NULL, 0, r, e));
    TRY(load_weight_rows(l, &in, &gate, 1, &r->gate, e));
    TRY(load_weight_rows(l, &in, &z, 1, &r->z, e));
    TRY(load_weight_rows(l, &in, &mixed, 1, &r->mixed, e));
    return load_weight(l, layer, "shortconv.out_proj.weight", n, n, &r->out, e);
}

err_code arch_lfm2_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .recurrent = load_short_conv,
        .moe = {.score = ROUTE_SIGMOID, .norm_weights = true},
    };
    return load_transformer(l, &rules, e);
}
