/* Layers of experts: the router, the routed experts and the shared one. */
#include "model/loader.h"

#include <string.h>

#include "backend/route.h"
#include "base/model_limits.h"

/* The biases of a layer's experts, which may be absent. */
static err_code load_expert_bias(struct loader *l, struct backend *device, const struct expert_layer *x,
                                 struct tensor *bias, struct err *e)
{
    const struct file_matrix from[EXPERT_N_MATRIX] = {
        [EXPERT_GATE] = {x->index, "ffn_gate_exps.bias", x->shape.n_ff, x->n_expert},
        [EXPERT_UP] = {x->index, "ffn_up_exps.bias", x->shape.n_ff, x->n_expert},
        [EXPERT_DOWN] = {x->index, "ffn_down_exps.bias", x->shape.n_embd, x->n_expert},
    };
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        TRY(load_table_to(l, device, &from[i], false, &bias[i], e));
    return ERR_OK;
}

err_code load_expert_rules(struct loader *l, const struct model_device *d, const struct moe_layer *y,
                           struct expert_rules *out, struct err *e)
{
    const struct expert_layer *x = &l->m->expert_layers[y->experts_layer];
    *out = (struct expert_rules){.n_embd = y->n_latent,
                                 .n_expert = y->n_expert,
                                 .n_used = y->n_used,
                                 .act = y->act,
                                 .act_limit = y->act_limit,
                                 .act_up_limit = y->act_up_limit};
    memcpy(out->tensors, y->tensors, sizeof out->tensors);
    memcpy(out->bias, y->bias, sizeof out->bias);
    return d->device == l->m->device ? ERR_OK : load_expert_bias(l, d->device, x, out->bias, e);
}

/* What goes into the routed experts and comes out of them, where they work in a narrower space. */
static err_code load_latent(struct loader *l, int64_t layer, struct moe_layer *y, struct err *e)
{
    bool is_k3 = load_find(l, layer, "ffn_routed_down.weight") != NULL; /* Kimi K3 has names of its own */
    const char *in = is_k3 ? "ffn_routed_down.weight" : "ffn_latent_down.weight";
    const struct gguf_tensor *down = load_find(l, layer, in);
    y->n_latent = down ? (int64_t)down->ne[1] : y->n_embd;
    if (!down)
        return ERR_OK;
    y->norm_eps = l->m->norm_eps;
    TRY(load_weight(l, layer, in, y->n_embd, y->n_latent, &y->latent_down, e));
    TRY(load_vector(l, layer, "ffn_routed_norm.weight", y->n_latent, false, &y->latent_norm, e));
    return load_weight(l, layer, is_k3 ? "ffn_routed_up.weight" : "ffn_latent_up.weight", y->n_latent, y->n_embd,
                       &y->latent_up, e);
}

/* The tensors of gate and up, which may be one: of experts without a gate it is up, whose halves stand for both. */
struct gate_up {
    const struct gguf_tensor *gate, *up;
};

/* n_ff: the rows of gate and of up. */
static err_code find_gate_up(struct loader *l, int64_t layer, int64_t n_ff, bool is_ungated, const struct moe_layer *y,
                             struct gate_up *out, struct err *e)
{
    static const char fused[] = "ffn_gate_up_exps.weight", up[] = "ffn_up_exps.weight";
    const char *both = is_ungated ? up : load_find(l, layer, fused) ? fused : NULL;
    if (!both) {
        TRY(load_need(l, layer, "ffn_gate_exps.weight", y->n_latent, n_ff, y->n_expert, &out->gate, e));
        return load_need(l, layer, up, y->n_latent, n_ff, y->n_expert, &out->up, e);
    }
    TRY(load_need(l, layer, both, y->n_latent, 2 * n_ff, y->n_expert, &out->gate, e));
    out->up = out->gate;
    return ERR_OK;
}

static err_code load_routed(struct loader *l, int64_t layer, bool is_ungated, struct moe_layer *y, struct err *e)
{
    struct expert_layer *x = &l->m->expert_layers[y->experts_layer];
    struct gate_up in;
    const struct gguf_tensor *down = load_find(l, layer, "ffn_down_exps.weight");
    int64_t n_hidden = down ? (int64_t)down->ne[0] : 0, n_ff_key = 0;
    TRY(load_layer_u32_opt(l, "expert_feed_forward_length", layer, &n_ff_key, e));
    n_hidden = n_ff_key ? n_ff_key : n_hidden;
    if (!down && load_find(l, layer, "ffn_down.0.weight"))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: layer %lld has a tensor for each expert (ffn_down.0.weight): a layout of 2023 that this "
                       "version does not read; expected ffn_down_exps.weight, as later conversions write it",
                       gguf_file_path(l->g, 0), (long long)layer);
    TRY(load_need(l, layer, "ffn_down_exps.weight", n_hidden, y->n_latent, y->n_expert, &down, e));
    if (is_ungated && n_hidden % 2)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: experts without a gate in layer %lld are %lld wide: this version takes even numbers",
                       gguf_file_path(l->g, 0), (long long)layer, (long long)n_hidden);
    int64_t n_ff = is_ungated ? n_hidden / 2 : n_hidden;
    TRY(find_gate_up(l, layer, n_ff, is_ungated, y, &in, e));
    TRY(load_name(l, in.gate, &y->tensors[EXPERT_GATE], e));
    if (in.up != in.gate)
        TRY(load_name(l, in.up, &y->tensors[EXPERT_UP], e));
    TRY(load_name(l, down, &y->tensors[EXPERT_DOWN], e));
    *x = (struct expert_layer){.index = (int)layer,
                               .n_expert = y->n_expert,
                               .n_used = y->n_used,
                               .shape = {.type = {in.gate->info, in.up->info, down->info},
                                         .n_embd = y->n_latent,
                                         .n_ff = n_ff,
                                         .is_ungated = is_ungated}};
    return is_ungated ? ERR_OK : load_expert_bias(l, load_device(l, layer), x, y->bias, e);
}

/* Gate and up of the shared expert from one tensor, gate first. */
static err_code load_fused_shared(struct loader *l, int64_t layer, const char *name, struct moe_layer *y, struct err *e)
{
    int64_t n = y->n_ff_shared;
    const struct file_matrix from = {layer, name, l->m->n_embd, 2 * n};
    const struct row_run gate = {.n_row = n, .block = n, .stride = 2 * n};
    const struct row_run up = {.n_row = n, .block = n, .stride = 2 * n, .first = n};
    TRY(load_weight_rows(l, &from, &gate, 1, &y->shared_gate, e));
    return load_weight_rows(l, &from, &up, 1, &y->shared_up, e);
}

/* The shared expert, as wide as its tensors are: what families write about its width in the metadata is that of one of
 * several, or of all. */
static err_code load_shared(struct loader *l, int64_t layer, bool is_ungated, struct moe_layer *y, struct err *e)
{
    struct model *m = l->m;
    static const char up[] = "ffn_up_shexp.weight";
    const char *gate = is_ungated ? up : "ffn_gate_shexp.weight";
    const struct gguf_tensor *first = load_find(l, layer, gate);
    const struct gguf_tensor *down = load_find(l, layer, "ffn_down_shexp.weight");
    if (!first && !down)
        return ERR_OK;
    y->n_ff_shared = first ? (int64_t)first->ne[1] : (int64_t)down->ne[0];
    if (!first && load_find(l, layer, up)) {
        TRY(load_fused_shared(l, layer, up, y, e));
    } else {
        TRY(load_weight(l, layer, gate, m->n_embd, y->n_ff_shared, &y->shared_gate, e));
        if (!is_ungated)
            TRY(load_weight(l, layer, up, m->n_embd, y->n_ff_shared, &y->shared_up, e));
    }
    TRY(load_weight(l, layer, "ffn_down_shexp.weight", y->n_ff_shared, m->n_embd, &y->shared_down, e));
    if (load_find(l, layer, "ffn_gate_inp_shexp.weight"))
        TRY(load_weight(l, layer, "ffn_gate_inp_shexp.weight", m->n_embd, 1, &y->shared_gate_inp, e));
    return ERR_OK;
}

/* How the file says to score: the numbers that GGUF gives to gating functions. */
static err_code load_gating(struct loader *l, enum route_score *score, struct err *e)
{
    int64_t func = 0;
    TRY(load_u32_opt(l, "expert_gating_func", &func, e));
    switch (func) {
    case 0: return ERR_OK;
    case 1: *score = ROUTE_SOFTMAX; return ERR_OK;
    case 2: *score = ROUTE_SIGMOID; return ERR_OK;
    case 3: *score = ROUTE_SOFTMAX_CHOSEN; return ERR_OK;
    case 4: *score = ROUTE_SQRT_SOFTPLUS; return ERR_OK;
    default:
        return err_set(e, ERR_UNSUPPORTED, "%s: %s.expert_gating_func is %lld; this version knows 1 to 4",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)func);
    }
}

static err_code load_router(struct loader *l, int64_t layer, struct moe_layer *y, struct err *e)
{
    struct model *m = l->m;
    TRY(load_gating(l, &y->score, e));
    TRY(load_bool_opt(l, "expert_weights_norm", &y->norm_weights, e));
    TRY(load_f32_opt(l, "expert_weights_scale", &load_factor_range, &y->scale, e));
    if (y->scale == 0) /* some files say 0 for none */
        y->scale = 1;
    TRY(load_u32_opt(l, "expert_group_count", &y->n_group, e));
    TRY(load_u32_opt(l, "expert_group_used_count", &y->n_group_used, e));
    if (y->n_group < 2)
        y->n_group = y->n_group_used = 1;
    if (y->n_group > ROUTE_MAX_GROUP || y->n_expert % y->n_group || y->n_group_used < 1 ||
        y->n_group_used > y->n_group || y->n_used > y->n_expert / y->n_group * y->n_group_used)
        return err_set(
            e, ERR_FORMAT,
            "%s: %s: %lld experts in %lld groups, of which %lld serve to choose %lld experts: expected equal "
            "groups with enough experts",
            gguf_file_path(l->g, 0), m->arch, (long long)y->n_expert, (long long)y->n_group, (long long)y->n_group_used,
            (long long)y->n_used);
    TRY(load_weight(l, layer, "ffn_gate_inp.weight", m->n_embd, y->n_expert, &y->router, e));
    TRY(load_vector(l, layer, "ffn_gate_inp.bias", y->n_expert, false, &y->router_bias, e));
    const char *bias = load_find(l, layer, "exp_probs_b") ? "exp_probs_b" : "exp_probs_b.bias";
    return load_vector(l, layer, bias, y->n_expert, false, &y->choice_bias, e);
}

err_code load_moe(struct loader *l, int64_t layer, const struct moe_rules *rules, struct moe_layer *y, struct err *e)
{
    struct model *m = l->m;
    *y = (struct moe_layer){.experts_layer = m->n_moe_layer,
                            .n_embd = m->n_embd,
                            .score = rules->score,
                            .norm_weights = rules->norm_weights,
                            .scale = 1,
                            .n_group = 1,
                            .n_group_used = 1,
                            .act = rules->act};
    TRY(load_u32(l, "expert_count", &y->n_expert, e));
    TRY(load_layer_u32_opt(l, "expert_used_count", layer, &y->n_used, e));
    if (y->n_expert > LIMIT_EXPERTS)
        return err_set(e, ERR_LIMIT, "%s: key \"%s.expert_count\" is %lld, expected at most %d",
                       gguf_file_path(l->g, 0), m->arch, (long long)y->n_expert, LIMIT_EXPERTS);
    if (y->n_used < 1 || y->n_used > y->n_expert)
        return err_set(e, ERR_FORMAT, "%s: %s.expert_used_count is %lld of %lld experts: expected 1 to all",
                       gguf_file_path(l->g, 0), m->arch, (long long)y->n_used, (long long)y->n_expert);
    TRY(load_router(l, layer, y, e));
    TRY(load_latent(l, layer, y, e));
    TRY(load_routed(l, layer, rules->is_ungated, y, e));
    m->n_moe_layer++;
    return load_shared(l, layer, rules->is_ungated, y, e);
}

/* Reads the table to the device, once its numbers have been looked at. */
static err_code read_token_experts(struct loader *l, struct backend *device, const struct gguf_tensor *t,
                                   const struct moe_layer *y, int32_t *values, struct err *e)
{
    TRY(load_read(l, t, 0, t->n_bytes, values, e));
    for (int64_t i = 0; i < tensor_n_elem(&y->token_experts); i++)
        if (values[i] < 0 || values[i] >= y->n_expert)
            return err_set(e, ERR_FORMAT, "%s: tensor %s: token %lld has expert %d, expected 0 to %lld",
                           gguf_file_path(l->g, t->file), t->name, (long long)(i / y->n_used), (int)values[i],
                           (long long)y->n_expert - 1);
    backend_write(device, &y->token_experts, values);
    return ERR_OK;
}

err_code load_token_experts(struct loader *l, int64_t layer, struct moe_layer *y, struct err *e)
{
    static const char name[] = "ffn_gate_tid2eid.weight";
    struct model *m = l->m;
    struct backend *device = load_device(l, layer);
    const struct gguf_tensor *t = load_find(l, layer, name);
    if (!t || t->type_id != GGUF_TENSOR_I32 || t->ne[0] != (uint64_t)y->n_used || t->ne[1] != (uint64_t)m->n_vocab ||
        t->ne[2] != 1 || t->ne[3] != 1)
        return err_set(e, ERR_FORMAT, "%s: tensor blk.%lld.%s: expected %lld experts for each of %lld tokens, as I32",
                       gguf_file_path(l->g, t ? t->file : 0), (long long)layer, name, (long long)y->n_used,
                       (long long)m->n_vocab);
    l->used[t - gguf_tensor_at(l->g, 0)] = true;
    TRY(backend_tensor_create(device, ELEM_I32, y->n_used, m->n_vocab, 1, MEM_WEIGHTS, &y->token_experts, e));
    m->buffers[m->n_buffers++] = (struct model_buffer){device, y->token_experts.buffer};
    if (!l->p->store)
        return ERR_OK;
    int32_t *values = mem_alloc(t->n_bytes);
    err_code code =
        values ? read_token_experts(l, device, t, y, values, e) : err_nomem(e, t->n_bytes, "the tokens' experts");
    mem_free(values);
    return code;
}
