/* granite (dense), granitemoe, granitehybrid (state spaces, with experts or without) and granite_swa (windows and
 * sinks, with experts or without): Granite 3 and 4. Embeddings, attention scores, what layers add, and logits have
 * factors of their own; weights renormalised; a shared expert in some. */
#include "model/loader.h"

/* A factor that is absent or 0 is left as it is. */
static err_code load_factor(struct loader *l, const char *key, float *factor, struct err *e)
{
    float v = 0;
    TRY(load_f32_opt(l, key, &load_factor_range, &v, e));
    if (v != 0)
        *factor = v;
    return ERR_OK;
}

/* window_period: of which the first layer attends to everything, where the file has no pattern; 0: all do */
static err_code load_granite(struct loader *l, load_recurrent_fn *recurrent, int64_t window_period, struct err *e)
{
    const struct transformer_rules rules = {
        .rope = ROPE_NORMAL,
        .recurrent = recurrent,
        .window_period = window_period,
        .full_first = true,
        .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true},
    };
    struct model *m = l->m;
    float logit_divisor = 1;
    TRY(load_transformer(l, &rules, e));
    TRY(load_factor(l, "embedding_scale", &m->embed_scale, e));
    TRY(load_factor(l, "residual_scale", &m->residual_scale, e));
    TRY(load_factor(l, "logit_scale", &logit_divisor, e));
    m->logit_scale = 1 / logit_divisor;
    for (int64_t i = 0; i < m->n_layer; i++)
        TRY(load_factor(l, "attention.scale", &m->layers[i].attn.scale, e));
    return ERR_OK;
}

/* The switch of those that may do without rope. */
static err_code load_rope_switch(struct loader *l, struct err *e)
{
    bool rope = true;
    TRY(load_bool_opt(l, "rope.scaling.finetuned", &rope, e));
    for (int64_t i = 0; i < l->m->n_layer && !rope; i++)
        l->m->layers[i].attn.rope_table = l->m->layers[i].attn.q_rope_table = -1;
    return ERR_OK;
}

err_code arch_granite_load(struct loader *l, struct err *e)
{
    TRY(load_granite(l, NULL, 0, e));
    return load_rope_switch(l, e);
}

err_code arch_granitehybrid_load(struct loader *l, struct err *e)
{
    TRY(load_granite(l, load_state_space, 0, e));
    return load_rope_switch(l, e);
}

err_code arch_granitemoe_load(struct loader *l, struct err *e)
{
    return load_granite(l, NULL, 0, e);
}

err_code arch_granite_swa_load(struct loader *l, struct err *e)
{
    TRY(load_granite(l, NULL, 4, e));
    for (int64_t i = 0; i < l->m->n_layer; i++) {
        struct attention *a = &l->m->layers[i].attn;
        bool is_rotated = true;
        TRY(load_layer_flag_opt(l, "attention.rope_pattern", i, &is_rotated, e));
        if (!is_rotated)
            a->rope_table = a->q_rope_table = -1;
    }
    return ERR_OK;
}
