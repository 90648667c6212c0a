/* step35: StepFun's Step 3.5 and 3.7. Norms over heads of q and k, a gate for each head; windowed layers with heads and
 * a rope base of their own, which rotate twice as many elements as the others; leading dense layers, sigmoid scores
 * with a correction bias, a shared expert. In some layers the activation's factors have a limit. */
#include "gguf/gguf.h"
#include "model/loader.h"

/* Layers that attend to everything rotate half as many elements as the file says, and only they have divisors. */
static err_code halve_rope(struct loader *l, struct err *e)
{
    struct rope_table *r = &l->m->ropes[0];
    if (r->n_rot % 4)
        return err_set(
            e, ERR_FORMAT,
            "%s: step35.rope.dimension_count: %lld elements of a head are rotated, expected a multiple of 4, "
            "as some layers rotate half of them",
            gguf_file_path(l->g, 0), (long long)r->n_rot);
    r->n_rot /= 2;
    r->divisors.ne[0] /= 2;
    return load_rope_angles(l, "rope.freq_base", r->n_rot, &r->angles, e);
}

err_code arch_step35_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .qk_norm = QK_NORM_HEAD,
        .moe = {.score = ROUTE_SIGMOID},
    };
    l->can_mtp = l->m->mtp.is_raw = true;
    TRY(load_transformer(l, &rules, e));
    TRY(load_pattern_windows(l, e));
    TRY(halve_rope(l, e));
    for (int64_t i = 0; i < l->m->n_layer; i++) {
        struct layer *y = &l->m->layers[i];
        if (!y->attn.window)
            y->attn.n_rot = l->m->ropes[0].n_rot;
        TRY(load_attention_gate(l, i, ACT_SIGMOID, &y->attn, e));
        TRY(load_act_limits(l, i, y, e));
    }
    return ERR_OK;
}
