/* How positions become angles, and which layers see a window of them. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "gguf/gguf.h"
#include "model/loader.h"

/* ---- angles -------------------------------------------------------------------------------------------------- */

/* The factor of a rope scaling, under its present or its former name; 1 where there is none. */
static err_code scaling_factor(struct loader *l, float *factor, struct err *e)
{
    *factor = 1;
    TRY(load_f32_opt(l, "rope.scale_linear", &load_factor_range, factor, e));
    TRY(load_f32_opt(l, "rope.scaling.factor", &load_factor_range, factor, e));
    if (*factor == 0)
        *factor = 1;
    return ERR_OK;
}

/* The pair of elements that makes n_turn turns over the original context (YaRN: Peng et al., 2023). */
static double yarn_pair(int64_t n_rot, double n_ctx, double n_turn, double base)
{
    return (double)n_rot * log(n_ctx / (n_turn * 2 * 3.14159265358979323846)) / (2 * log(base));
}

static err_code load_yarn(struct loader *l, int64_t n_rot, struct rope_angles *a, struct err *e)
{
    static const struct f32_range positive = {1e-6f, 1e6f, false};
    float factor, beta_fast = 32, beta_slow = 1, attn_factor = 1, log_mul = 0;
    int64_t n_ctx = l->m->n_ctx_train;
    TRY(scaling_factor(l, &factor, e));
    TRY(load_u32_opt(l, "rope.scaling.original_context_length", &n_ctx, e));
    TRY(load_f32_opt(l, "rope.scaling.yarn_beta_fast", &positive, &beta_fast, e));
    TRY(load_f32_opt(l, "rope.scaling.yarn_beta_slow", &positive, &beta_slow, e));
    TRY(load_f32_opt(l, "rope.scaling.attn_factor", &positive, &attn_factor, e));
    TRY(load_f32_opt(l, "rope.scaling.yarn_log_multiplier", &load_factor_range, &log_mul, e));
    a->yarn = true;
    a->freq_scale = 1 / factor;
    a->yarn_low = fmaxf(0, (float)floor(yarn_pair(n_rot, (double)n_ctx, beta_fast, a->freq_base)));
    a->yarn_high = fminf((float)n_rot - 1, (float)ceil(yarn_pair(n_rot, (double)n_ctx, beta_slow, a->freq_base)));
    a->magnitude = attn_factor;
    if (log_mul == 0 && factor > 1)
        a->magnitude *= 1 + 0.1f * logf(factor);
    return ERR_OK;
}

static const char long_factors[] = "rope_factors_long.weight", short_factors[] = "rope_factors_short.weight";

static bool has_long_rope(const struct loader *l)
{
    return load_find(l, LOAD_INPUT, long_factors) && load_find(l, LOAD_INPUT, short_factors);
}

/* LongRoPE: one set of divisors for contexts up to the original one, and another for longer ones. Which of them holds
 * is decided by the model's context and not by a text's, so that all texts share their pages. */
static err_code load_long_rope(struct loader *l, struct rope_table *r, struct err *e)
{
    static const struct f32_range positive = {1e-6f, 1e6f, false};
    struct tensor other;
    int64_t n_ctx = l->m->n_ctx_train;
    TRY(load_u32_opt(l, "rope.scaling.original_context_length", &n_ctx, e));
    TRY(load_f32_opt(l, "rope.scaling.attn_factor", &positive, &r->angles.magnitude, e));
    bool is_long = l->m->n_ctx_train > n_ctx;
    TRY(load_vector(l, LOAD_INPUT, is_long ? long_factors : short_factors, r->n_rot / 2, true, &r->divisors, e));
    return load_vector(l, LOAD_INPUT, is_long ? short_factors : long_factors, r->n_rot / 2, true, &other, e);
}

int load_add_rope(struct model *m, struct rope_table r)
{
    assert(m->n_rope < MODEL_MAX_ROPE);
    m->ropes[m->n_rope] = r;
    return m->n_rope++;
}

int load_add_temperature(struct model *m, int64_t n_rot, float temperature, int64_t span, int64_t shift)
{
    const struct rope_angles angles = {.freq_base = 1,
                                       .magnitude = 1,
                                       .temperature = temperature,
                                       .temperature_span = span,
                                       .temperature_shift = shift};
    return load_add_rope(m, (struct rope_table){.n_rot = n_rot, .angles = angles});
}

err_code load_rope_angles(struct loader *l, const char *base_key, int64_t n_rot, struct rope_angles *out, struct err *e)
{
    *out = (struct rope_angles){.freq_base = 10000, .freq_scale = 1, .magnitude = 1};
    TRY(load_f32_opt(l, base_key, &load_base_range, &out->freq_base, e));
    char key[LOAD_KEY_BYTES];
    struct gguf_string type = {"linear", 6}; /* which does nothing without a factor */
    load_key(l, "rope.scaling.type", key);
    TRY(gguf_opt_string(l->g, key, &type, e));
    if (!strcmp(type.s, "linear")) {
        float factor;
        TRY(scaling_factor(l, &factor, e));
        out->freq_scale = 1 / factor;
    } else if (!strcmp(type.s, "yarn")) {
        TRY(load_yarn(l, n_rot, out, e));
    } else if (strcmp(type.s, "none") != 0 && !(has_long_rope(l) && !strcmp(type.s, "longrope"))) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s is \"%s\"; this version knows none, linear, yarn, and longrope with "
                       "tensors rope_factors_short.weight and rope_factors_long.weight",
                       gguf_file_path(l->g, 0), key, type.s);
    }
    return ERR_OK;
}

err_code load_rope(struct loader *l, const char *base_key, int64_t n_rot, const char *divisors, int *index,
                   struct err *e)
{
    struct rope_table r = {.n_rot = n_rot};
    TRY(load_rope_angles(l, base_key, n_rot, &r.angles, e));
    if (divisors && has_long_rope(l))
        TRY(load_long_rope(l, &r, e));
    else if (divisors)
        TRY(load_vector(l, LOAD_INPUT, divisors, n_rot / 2, false, &r.divisors, e));
    *index = load_add_rope(l->m, r);
    return ERR_OK;
}

/* ---- windows ------------------------------------------------------------------------------------------------- */

err_code load_is_windowed(struct loader *l, int64_t layer, int64_t period, bool full_first, bool *windowed,
                          struct err *e)
{
    static const char pattern[] = "attention.sliding_window_pattern";
    char key[LOAD_KEY_BYTES];
    load_key(l, pattern, key);
    const struct gguf_value *v = gguf_find(l->g, key);
    if (v && v->type != GGUF_ARRAY)
        TRY(load_u32(l, pattern, &period, e));
    *windowed = period > 0 && (full_first ? layer : layer + 1) % period != 0;
    return load_layer_flag_opt(l, pattern, layer, windowed, e);
}

err_code load_window(struct loader *l, int64_t layer, int64_t period, bool full_first, int64_t *window, struct err *e)
{
    bool windowed;
    TRY(load_is_windowed(l, layer, period, full_first, &windowed, e));
    *window = 0;
    return windowed ? load_u32(l, "attention.sliding_window", window, e) : ERR_OK;
}

/* How many elements a windowed layer rotates: as many as the others unless the file says so. */
static err_code load_window_n_rot(struct loader *l, const struct attention *a, int64_t *n_rot, struct err *e)
{
    *n_rot = a->n_rot;
    TRY(load_u32_opt(l, "rope.dimension_count_swa", n_rot, e));
    if (*n_rot < 2 || *n_rot % 2 || *n_rot > a->head_dim)
        return err_set(e, ERR_FORMAT,
                       "%s: %s.rope.dimension_count_swa is %lld, expected an even number of at most the %lld of a head",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)*n_rot, (long long)a->head_dim);
    return ERR_OK;
}

err_code load_window_rope(struct loader *l, bool is_plain, struct attention *a, struct err *e)
{
    struct model *m = l->m;
    int64_t n_rot;
    TRY(load_window_n_rot(l, a, &n_rot, e));
    bool has_base = load_has_key(l, "rope.freq_base_swa"), is_as_long = n_rot == a->n_rot;
    if (!has_base && !is_plain && is_as_long)
        return ERR_OK;
    if (m->n_rope == 1) {
        int index;
        TRY(load_rope(l, has_base ? "rope.freq_base_swa" : "rope.freq_base", n_rot, NULL, &index, e));
        struct rope_angles *angles = &m->ropes[index].angles;
        if (is_plain)
            *angles = (struct rope_angles){.freq_base = angles->freq_base, .freq_scale = 1, .magnitude = 1};
        if (is_as_long)
            m->ropes[index].divisors = m->ropes[0].divisors;
    }
    a->n_rot = n_rot;
    a->rope_table = a->q_rope_table = 1;
    return ERR_OK;
}

err_code load_pattern_windows(struct loader *l, struct err *e)
{
    static const char pattern[] = "attention.sliding_window_pattern";
    struct model *m = l->m;
    int windowed_rope = 1;
    if (!load_has_key(l, pattern))
        return err_set(e, ERR_FORMAT, "%s: key %s.%s is missing", gguf_file_path(l->g, 0), m->arch, pattern);
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct attention *a = &m->layers[i].attn;
        TRY(load_window(l, i, 1, false, &a->window, e));
        if (!a->window)
            continue;
        TRY(load_window_n_rot(l, a, &a->n_rot, e));
        if (m->n_rope == 1)
            TRY(load_rope(l, "rope.freq_base_swa", a->n_rot, NULL, &windowed_rope, e));
        a->rope_table = a->q_rope_table = windowed_rope;
    }
    return ERR_OK;
}
