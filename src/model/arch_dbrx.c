/* dbrx: Databricks' DBRX. Layer norms without biases; q, k and v within a limit; the norm in front of the experts has
 * the name that other files give to one behind attention. */
#include "model/loader.h"

err_code arch_dbrx_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .ffn_norm = "attn_output_norm.weight",
        .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true},
    };
    float limit;
    TRY(load_f32(l, "attention.clamp_kqv", &load_factor_range, &limit, e));
    TRY(load_transformer(l, &rules, e));
    l->m->has_layer_norms = true;
    for (int64_t i = 0; i < l->m->n_layer; i++)
        l->m->layers[i].attn.qkv_limit = limit;
    return ERR_OK;
}
