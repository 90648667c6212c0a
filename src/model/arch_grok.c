/* grok: Grok-1 and Grok-2. Norms after each part; scores and logits within bounds, factors for embeddings, scores and
 * logits; GEGLU. In Grok-2 a dense branch stands beside the experts, and their sum is divided by sqrt(2). */
#include <math.h>

#include "model/loader.h"

/* What Grok-1 has. Its files don't say it. */
#define EMBED_SCALE 78.38367176906169f
#define SCORE_SCALE 0.08838834764831845f
#define SCORE_CAP   30
#define LOGIT_SCALE 0.5773502691896257f

static const struct f32_range positive = {1e-6f, 1e6f, false};

static err_code load_scores(struct loader *l, struct err *e)
{
    float scale = SCORE_SCALE, cap = SCORE_CAP;
    TRY(load_f32_opt(l, "attention.output_scale", &positive, &scale, e));
    TRY(load_f32_opt(l, "attn_logit_softcapping", &load_factor_range, &cap, e));
    for (int64_t i = 0; i < l->m->n_layer; i++) {
        l->m->layers[i].attn.scale = scale;
        l->m->layers[i].attn.softcap = cap;
    }
    return ERR_OK;
}

static err_code load_dense(struct loader *l, int64_t i, struct layer *y, struct err *e)
{
    if (!y->is_moe || !load_find(l, i, "ffn_up.weight"))
        return ERR_OK;
    TRY(load_ffn(l, i, &y->ffn, e));
    y->ffn.act = ACT_GELU;
    y->ffn_scale = sqrtf(0.5f);
    return ERR_OK;
}

err_code arch_grok_load(struct loader *l, struct err *e)
{
    static const struct f32_range one = {1, 1, false};
    static const struct transformer_rules rules = {
        .rope = ROPE_NEOX,
        .moe = {.score = ROUTE_SOFTMAX, .norm_weights = true, .act = ACT_GELU},
    };
    struct model *m = l->m;
    float yarn_factor = 1; /* how much of YaRN's mixture counts */
    TRY(load_f32_opt(l, "rope.scaling.yarn_ext_factor", &one, &yarn_factor, e));
    TRY(load_transformer(l, &rules, e));
    TRY(load_scores(l, e));
    m->embed_scale = EMBED_SCALE;
    m->logit_scale = LOGIT_SCALE;
    TRY(load_f32_opt(l, "embedding_scale", &positive, &m->embed_scale, e));
    TRY(load_f32_opt(l, "logit_scale", &positive, &m->logit_scale, e));
    TRY(load_f32_opt(l, "final_logit_softcapping", &load_factor_range, &m->logit_softcap, e));
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct layer *y = &m->layers[i];
        const char *post =
            load_find(l, i, "layer_output_norm.weight") ? "layer_output_norm.weight" : "post_ffw_norm.weight";
        TRY(load_vector(l, i, "attn_output_norm.weight", m->n_embd, true, &y->attn_post_norm, e));
        TRY(load_vector(l, i, post, m->n_embd, true, &y->ffn_post_norm, e));
        TRY(load_dense(l, i, y, e));
    }
    return ERR_OK;
}
