#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jobs/inspect_internal.h"

/* ---- words --------------------------------------------------------------------------------------------------- */

/* Appends; what is too long is cut. */
static void say(struct inspect_words *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void say(struct inspect_words *w, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(w->s + w->n, sizeof w->s - w->n, fmt, args);
    va_end(args);
    w->n += n > 0 ? (size_t)n : 0;
    if (w->n >= sizeof w->s)
        w->n = sizeof w->s - 1;
}

static void say_rope(struct inspect_words *w, const struct model *m, const struct attention *a)
{
    if (a->rope_table < 0) {
        say(w, "no rope");
        return;
    }
    const struct rope_angles *r = &m->ropes[a->rope_table].angles;
    if (a->n_rot < a->head_dim && !a->is_latent)
        say(w, "rope on %lld of %lld dimensions", (long long)a->n_rot, (long long)a->head_dim);
    else
        say(w, "rope");
    if (r->freq_scale != 1)
        say(w, r->yarn ? " (YaRN by %g)" : " (positions divided by %g)", 1 / (double)r->freq_scale);
}

static void say_gate(struct inspect_words *w, const struct attention *a)
{
    if (a->gate)
        say(w, a->n_gate == a->n_head ? ", a gate on each head's output" : ", a gate on the output");
}

/* Runs of positions that are chosen. */
static void say_runs(struct inspect_words *w, const struct position_index *x)
{
    say(w,
        "\nto %lld runs of %lld positions at most, and those behind the last whole one, chosen by %lld heads of %lld",
        (long long)x->n_chosen, (long long)x->run, (long long)x->n_head, (long long)x->dim);
}

static void say_latent(struct inspect_words *w, const struct model *m, const struct attention *a)
{
    const char *part = a->rope_table < 0 ? "shared" : "rotated";
    say(w, "latent attention: %lld heads of %lld, ", (long long)a->n_head, (long long)(a->latent.n_nope + a->n_rot));
    if (a->n_rot)
        say(w, "of which %lld are %s, ", (long long)a->n_rot, part);
    say(w, "values of %lld", (long long)a->latent.n_value);
    if (a->window)
        say(w, ", over the last %lld positions", (long long)a->window);
    say(w, "\none latent vector of %lld", (long long)a->latent.n_latent);
    if (a->n_rot)
        say(w, " and %lld %s", (long long)a->n_rot, part);
    say(w, " for all heads");
    if (a->q_a)
        say(w, "; queries through a rank of %lld", (long long)a->n_q_latent);
    if (a->index.run)
        say_runs(w, &a->index);
    else if (a->index.n_chosen)
        say(w, "\nto %lld positions at most, %s", (long long)a->index.n_chosen,
            a->index.n_head ? "chosen by" : "which a layer before chose");
    if (a->index.n_head && !a->index.run)
        say(w, " %lld heads of %lld", (long long)a->index.n_head, (long long)a->index.dim);
    say(w, "\n");
    say_rope(w, m, a);
    if (a->latent.k_pe_norm.buffer)
        say(w, ", a norm of what keys share");
    if (a->sinks.buffer)
        say(w, ", sinks");
    say_gate(w, a);
}

/* What attention sees besides a window, and where its results go. */
static void say_compressed(struct inspect_words *w, const struct attention *a)
{
    const struct compressed_attention *c = &a->compressed;
    say(w,
        "\nkeys are values, too; queries through a rank of %lld, results of %lld groups of heads through one of %lld",
        (long long)a->n_q_latent, (long long)c->n_group, (long long)c->n_group_out);
    if (c->ratio)
        say(w, "\nto a compressed cache of an entry for %lld positions", (long long)c->ratio);
    if (a->index.n_head)
        say(w, ", %lld entries at most, chosen by %lld heads of %lld", (long long)a->index.n_chosen,
            (long long)a->index.n_head, (long long)a->index.dim);
}

/* Blocks of positions that are chosen. */
static void say_blocks(struct inspect_words *w, const struct position_index *x)
{
    say(w, "\nto %lld blocks of %lld positions at most with each KV head, the last ", (long long)x->n_chosen,
        (long long)x->block);
    if (x->n_local > 1)
        say(w, "%lld ", (long long)x->n_local);
    say(w, "in any case, the others chosen by a head of %lld", (long long)x->dim);
}

static void say_attention(struct inspect_words *w, const struct model *m, int64_t layer)
{
    const struct attention *a = &m->layers[layer].attn;
    say(w, "attention: %lld heads of %lld over %lld KV head%s", (long long)a->n_head, (long long)a->head_dim,
        (long long)a->n_head_kv, a->n_head_kv == 1 ? "" : "s");
    if (a->head_dim_v != a->head_dim)
        say(w, ", values of %lld", (long long)a->head_dim_v);
    if (a->window)
        say(w, a->chunked ? ", in chunks of %lld positions" : ", over the last %lld positions", (long long)a->window);
    say(w, "\n");
    say_rope(w, m, a);
    if (a->q_norm_len)
        say(w, ", norms of q and k over %s%s", a->q_norm_len == a->head_dim ? "each head" : "all heads",
            a->rope_first ? " after rope" : "");
    if (a->q_rope_table >= 0 && m->ropes[a->q_rope_table].angles.temperature != 0)
        say(w, ", queries that grow with the position");
    if (a->qkv_limit > 0)
        say(w, ", q, k and v within %g", (double)a->qkv_limit);
    if (a->softcap > 0)
        say(w, ", scores capped at %g", (double)a->softcap);
    if (a->q_bias.buffer)
        say(w, ", biases");
    if (a->sinks.buffer)
        say(w, ", sinks");
    say_gate(w, a);
    if (a->out_scale != 0)
        say(w, ", its output times %g", (double)a->out_scale);
    if (a->is_compressed)
        say_compressed(w, a);
    if (a->index.block)
        say_blocks(w, &a->index);
    if (a->index.run)
        say_runs(w, &a->index);
    if (a->v_is_k)
        say(w, ", keys serve as values");
    if (a->kv_layer != layer)
        say(w, ", keys and values of layer %lld", (long long)a->kv_layer);
}

const char *inspect_recurrence(enum recurrence kind)
{
    switch (kind) {
    case RECURRENCE_DELTA: return "gated delta net";
    case RECURRENCE_SPACE: return "state space";
    case RECURRENCE_SELECTIVE: return "selective state space";
    case RECURRENCE_FIXED: return "linear attention with fixed decays";
    case RECURRENCE_CONV: break;
    }
    return "gated convolution";
}

static void say_mixing(struct inspect_words *w, const struct model *m, const struct model_facts *f, int64_t layer)
{
    const struct layer *y = &m->layers[layer];
    const struct recurrent *r = &y->recurrent;
    if (!y->attn_norm.buffer) {
        say(w, "none");
        return;
    }
    if (!y->is_recurrent) {
        if (y->attn.is_latent)
            say_latent(w, m, &y->attn);
        else
            say_attention(w, m, layer);
        return;
    }
    say(w, r->kind == RECURRENCE_FIXED ? "recurrent, %s" : "recurrent, a %s", inspect_recurrence(r->kind));
    if (r->kind == RECURRENCE_CONV) {
        say(w, " over %lld tokens", (long long)r->n_tap);
        return;
    }
    if (r->kind == RECURRENCE_SELECTIVE) {
        say(w, ": %lld channels of %lld, their steps through a rank of %lld\n", (long long)r->n_out, (long long)r->dk,
            (long long)r->n_rank);
    } else {
        say(w, ": %lld key heads of %lld, %lld value heads of %lld", (long long)r->n_head_k, (long long)r->dk,
            (long long)r->n_head_v, (long long)r->dv);
        if (r->kind == RECURRENCE_FIXED)
            return;
        say(w, r->n_alpha > r->n_head_v ? "\na decay for each key dimension, " : "\n");
    }
    if (r->min_log_decay < 0)
        say(w, "at least e^%g, ", (double)r->min_log_decay);
    say(w, "after");
    say(w, " a convolution over %lld tokens", (long long)r->n_tap);
    if (y->ngram.key)
        say(w, "\nin front of it embeddings of up to %lld tokens in %lld rows of %lld", (long long)m->ngram.most_tokens,
            (long long)m->ngram.n_head, (long long)m->ngram.width);
}

static const char *act_name(enum act_fn act, bool is_gated)
{
    switch (act) {
    case ACT_SILU:
    case ACT_SILU_CLAMPED: return "SwiGLU";
    case ACT_GELU: return "GEGLU";
    case ACT_SWIGLU_OAI: return "clamped SwiGLU";
    case ACT_NONE: return "no activation";
    case ACT_RELU: return is_gated ? "ReGLU" : "squared ReLU";
    case ACT_SOFTPLUS: return "softplus";
    case ACT_SITU: return "SiTU";
    case ACT_SIGMOID: break;
    }
    return "sigmoid";
}

static void say_act(struct inspect_words *w, enum act_fn act, bool is_gated, float limit, float up_limit)
{
    say(w, "%s", act_name(act, is_gated));
    if (limit > 0)
        say(w, act == ACT_SITU ? " within %g" : " clamped to %g", (double)limit);
    if (up_limit > 0)
        say(w, " times up within %g", (double)up_limit);
}

static void say_router(struct inspect_words *w, const struct moe_layer *y)
{
    long long k = (long long)y->n_used;
    switch (y->score) {
    case ROUTE_SOFTMAX: say(w, "router: softmax over all; the best %lld", k); break;
    case ROUTE_SIGMOID: say(w, "router: sigmoid of each; the best %lld", k); break;
    case ROUTE_SOFTMAX_CHOSEN: say(w, "router: the best %lld; softmax over them", k); break;
    case ROUTE_SQRT_SOFTPLUS:
        say(w, "router: root of softplus of each; %s %lld", y->token_experts.buffer ? "the token's own" : "the best",
            k);
        break;
    }
    if (y->choice_bias.buffer)
        say(w, ", chosen with a correction bias");
    if (y->n_group > 1)
        say(w, ", from the best %lld of %lld groups", (long long)y->n_group_used, (long long)y->n_group);
    if (y->norm_weights)
        say(w, "; weights divided by their sum");
    if (y->weighs_input)
        say(w, "; weights multiply what goes in");
    if (y->scale != 1)
        say(w, "%s times %g", y->norm_weights ? "," : "; weights", (double)y->scale);
    if (y->expert_scale.buffer)
        say(w, "; each expert with a factor of its own");
}

/* Where a feed-forward part stands, and what its output is multiplied by. */
static void say_place(struct inspect_words *w, const struct layer *l)
{
    if (l->is_parallel)
        say(w, "\nbeside attention, behind the same norm");
    if (l->ffn_scale != 0)
        say(w, "\nits output times %g", (double)l->ffn_scale);
}

static void say_feed_forward(struct inspect_words *w, const struct model *m, const struct model_facts *f, int64_t layer)
{
    const struct layer *l = &m->layers[layer];
    const struct moe_layer *y = &l->moe;
    if (!l->ffn_norm.buffer)
        say(w, "none");
    if (l->ffn.down) {
        say(w, "dense: %lld wide, ", (long long)l->ffn.n_ff);
        say_act(w, l->ffn.act, l->ffn.up, l->ffn.act_limit, l->ffn.act_up_limit);
    }
    if (!l->is_moe) {
        say_place(w, l);
        return;
    }
    say(w, "%ssparse: %lld experts %u wide, ", l->ffn.down ? ", side by side with\n" : "", (long long)y->n_expert,
        f->layers[layer].n_ff_exp);
    say_act(w, y->act, !m->expert_layers[y->experts_layer].shape.is_ungated, y->act_limit, y->act_up_limit);
    say(w, ", %lld for each token\n", (long long)y->n_used);
    say_router(w, y);
    if (l->routes_input)
        say(w, "\nthe router sees what goes into the layer");
    if (l->moe_sees_input)
        say(w, "\nrouter and experts see what goes into the layer, behind a norm of their own");
    if (y->adjugates)
        say(w, "\nbeside them %lld small experts %lld wide, each for %lld of them, times %g", (long long)y->n_adjugate,
            (long long)y->n_ff_adjugate, (long long)(y->n_expert / y->n_adjugate), (double)y->adjugate_scale);
    if (y->shared_down)
        say(w, "\nshared expert %lld wide%s", (long long)y->n_ff_shared, y->shared_gate_inp ? ", behind a gate" : "");
    if (y->shared_down && y->shared_act_limit != y->act_limit) {
        say(w, ", ");
        say_act(w, y->act, y->shared_up, y->shared_act_limit, y->act_up_limit);
    }
    if (y->latent_down)
        say(w, "\nrouted experts work in a space of %lld%s", (long long)y->n_latent,
            y->latent_norm.buffer ? ", their sum is normed" : "");
    say_place(w, l);
}

/* What is not a layer's: factors, caps, embeddings by layer. */
static void say_around(struct inspect_words *w, const struct model *m)
{
    const char *comma = "";
    const struct {
        const char *what;
        float v, none;
    } all[] = {{"embeddings times", m->embed_scale, 1},
               {"what a layer adds times", m->residual_scale, 1},
               {"what layers see is what they add to, times", m->normed_scale, 0},
               {"logits times", m->logit_scale, 1},
               {"logits capped at", m->logit_softcap, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].v != all[i].none) {
            say(w, "%s%s %g", comma, all[i].what, (double)all[i].v);
            comma = ", ";
        }
    if (m->n_stream > 1) {
        say(w, "%s%lld residual streams, %s around each part", comma, (long long)m->n_stream,
            m->n_stream_rank                    ? "gated"
            : m->n_stream_mix > 2 * m->n_stream ? "mixed"
                                                : "weighed");
        comma = ", ";
    }
    if (m->bank_period) {
        say(w, "%sattention over residuals, which are banked every %lld layers", comma, (long long)m->bank_period);
        comma = ", ";
    }
    if (m->has_layer_norms) {
        say(w, "%slayer norms", comma);
        comma = ", ";
    }
    if (m->n_token_embd)
        say(w, "%san embedding of %lld for each layer", comma, (long long)m->n_token_embd);
}

/* ---- groups -------------------------------------------------------------------------------------------------- */

typedef void say_fn(struct inspect_words *w, const struct model *m, const struct model_facts *f, int64_t layer);

/* Layers of which the same can be said. */
static err_code group_layers(struct inspect_layout *l, const struct model_facts *f, say_fn *describe,
                             struct inspect_groups *g, struct err *e)
{
    size_t n = (size_t)l->model->n_layer;
    g->of_layer = arena_calloc(&l->arena, n, sizeof *g->of_layer);
    g->words = arena_calloc(&l->arena, n, sizeof *g->words);
    if (!g->of_layer || !g->words)
        return err_nomem(e, n * sizeof **g->words, "words about layers");
    for (size_t i = 0; i < n; i++) {
        struct inspect_words w = {0};
        int k = 0;
        describe(&w, l->model, f, (int64_t)i);
        while (k < g->n && strcmp(g->words[k]->s, w.s) != 0)
            k++;
        g->of_layer[i] = k;
        if (k < g->n)
            continue;
        g->words[k] = arena_calloc(&l->arena, 1, sizeof w);
        if (!g->words[k])
            return err_nomem(e, sizeof w, "words about layers");
        *g->words[k] = w;
        g->n++;
    }
    return ERR_OK;
}

int64_t inspect_group_next(const struct inspect_layout *l, const struct inspect_groups *g, int group, int64_t from)
{
    while (from < l->model->n_layer && g->of_layer[from] != group)
        from++;
    return from;
}

/* ---- state --------------------------------------------------------------------------------------------------- */

/* What a token reads of those before it, with a cache of F16. */
static void count_state(struct inspect_layout *l)
{
    const struct model *m = l->model;
    for (int64_t i = 0; i < m->n_layer; i++) {
        const struct attention *a = &m->layers[i].attn;
        const struct recurrent *d = &m->layers[i].recurrent;
        if (m->layers[i].is_recurrent) {
            l->recurrent_bytes +=
                (uint64_t)((d->n_tap ? d->n_mixed * (d->n_tap - 1) : 0) + d->dk * d->dv * d->n_head_v) * sizeof(float);
            continue;
        }
        const struct position_index *x = &a->index;
        bool is_value = a->is_latent || a->is_compressed; /* keys are values */
        uint64_t n = (uint64_t)(a->n_head_kv * (a->head_dim + (is_value ? 0 : a->head_dim_v))) * sizeof(uint16_t);
        uint64_t n_index = x->n_head ? (uint64_t)x->dim * sizeof(uint16_t) : 0, ratio = (uint64_t)a->compressed.ratio;
        if (ratio)
            l->kv_bytes += ((x->run ? 0 : n) + n_index) / ratio;
        n += ratio ? 0 : n_index;
        *(a->window ? &l->window_kv_bytes : &l->kv_bytes) += n;
        l->window = a->window > l->window ? a->window : l->window;
    }
}

/* ---- the whole ----------------------------------------------------------------------------------------------- */

static void keep_warning(void *user, enum log_level level, const char *line)
{
    struct inspect_layout *l = user;
    if (level == LOG_WARN)
        snprintf(l->warning, sizeof l->warning, "%s", line);
}

err_code inspect_layout_open(struct inspect_layout *l, const struct gguf *g, const struct model_facts *f, struct err *e)
{
    *l = (struct inspect_layout){0};
    const struct log log = {keep_warning, l};
    TRY(backend_null_open(&l->device, e));
    const struct model_load_params params = {.device = l->device, .log = &log};
    err_code code = model_load(&l->model, g, &params, &l->error);
    if (code == ERR_NOMEM)
        return err_set(e, code, "%s", l->error.text);
    if (code != ERR_OK)
        return ERR_OK;
    count_state(l);
    say_around(&l->around, l->model);
    TRY(group_layers(l, f, say_mixing, &l->mixing, e));
    return group_layers(l, f, say_feed_forward, &l->feed_forward, e);
}

void inspect_layout_close(struct inspect_layout *l)
{
    inspect_division_close(&l->division);
    model_close(&l->model);
    backend_close(&l->device);
    arena_close(&l->arena);
}
