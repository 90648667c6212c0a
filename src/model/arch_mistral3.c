/* mistral3: Ministral 3 and its like, with experts and without. As llama, but YaRN's magnitude has a divisor, and
 * queries grow with the position. */
#include <math.h>

#include "model/loader.h"

/* YaRN's magnitude of one factor for rope over that of another for all of the scores. */
static err_code load_magnitude(struct loader *l, struct rope_angles *r, struct err *e)
{
    float log_mul = 0, log_factor = -logf(r->freq_scale);
    TRY(load_f32_opt(l, "rope.scaling.yarn_log_multiplier", &load_factor_range, &log_mul, e));
    if (r->yarn && log_mul != 0 && log_factor > 0)
        r->magnitude *= (1 + 0.1f * log_factor) / (1 + 0.1f * log_mul * log_factor);
    return ERR_OK;
}

err_code arch_mistral3_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {
        .rope = ROPE_NORMAL,
        .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true},
    };
    struct model *m = l->m;
    float temperature = 0;
    int64_t span;
    TRY(load_transformer(l, &rules, e));
    TRY(load_magnitude(l, &m->ropes[0].angles, e));
    TRY(load_f32_opt(l, "attention.temperature_scale", &load_factor_range, &temperature, e));
    if (temperature == 0)
        return ERR_OK;
    span = m->n_ctx_train;
    TRY(load_u32_opt(l, "rope.scaling.original_context_length", &span, e));
    if (span < 1)
        return err_set(e, ERR_FORMAT, "%s: mistral3.rope.scaling.original_context_length is 0, expected at least 1",
                       gguf_file_path(l->g, 0));
    struct rope_table of_q = m->ropes[0];
    of_q.angles.temperature = temperature;
    of_q.angles.temperature_span = span;
    int index = load_add_rope(m, of_q);
    for (int64_t i = 0; i < m->n_layer; i++)
        m->layers[i].attn.q_rope_table = index;
    return ERR_OK;
}
