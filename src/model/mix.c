/* Mixers, the parts of layers that connect tokens: attention with keys and values or with a latent of both, the index
 * of positions in front of it, and recurrent layers. */
#include "base/minmax.h"
#include "model/mix_internal.h"

/* x = act(by) * x */
static void gate_by(const struct pass *p, enum act_fn act, const struct tensor *by, const struct tensor *x)
{
    backend_enqueue(p->b, &(struct op){.kind = OP_ACT_MUL, .in = {*by, *x}, .out = {*x}, .act = act});
}

void mix_rope(const struct pass *p, const struct attention *a, int table, const struct tensor *x)
{
    if (table < 0)
        return;
    backend_enqueue(p->b, &(struct op){.kind = OP_ROPE,
                                       .in = {*x, p->rope[table]},
                                       .out = {*x},
                                       .rope = {a->rope, a->head_dim, a->n_rot, a->rot_first}});
}

/* Norms groups of n elements of q or k (0: none) and rotates its heads. */
static void norm_and_rope(const struct pass *p, const struct attention *a, int table, const struct tensor *x,
                          const struct tensor *w, int64_t n)
{
    if (n && !a->rope_first)
        block_norm(p, x, w, n, x);
    mix_rope(p, a, table, x);
    if (n && a->rope_first)
        block_norm(p, x, w, n, x);
}

struct tensor mix_pages(const struct pass *p, int kind)
{
    return tensor_rows(p->w->pages, kind, 1);
}

void mix_store(const struct pass *p, int kind, const struct tensor *x, const struct paged *cache)
{
    backend_enqueue(p->b, &(struct op){.kind = OP_KV_STORE,
                                       .in = {[KV_STORE_X] = *x,
                                              [KV_STORE_POS] = p->pos,
                                              [KV_STORE_TABLE] = p->table,
                                              [KV_STORE_PAGES] = mix_pages(p, kind)},
                                       .state = {*cache}});
}

bool block_sees_all(const struct pass *p, int64_t n_chosen)
{
    bool all = !p->p->is_complete;
    for (int64_t r = 0; r < p->n_rows; r++)
        all &= p->rows[r].state->pos + p->rows[r].n <= n_chosen;
    return all;
}

void mix_norm_index(const struct pass *p, const struct position_index *x, const struct tensor *k)
{
    if (x->block) {
        block_norm(p, k, &x->k_norm, x->dim, k);
        return;
    }
    backend_enqueue(p->b, &(struct op){.kind = OP_LAYER_NORM,
                                       .in = {*k},
                                       .out = {*k},
                                       .vec = {x->k_norm, x->k_norm_bias},
                                       .norm = {.eps = x->k_norm_eps}});
}

/* Stores the tokens' keys in the cache of the index. */
static void store_index(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                        const struct tensor *h)
{
    const struct position_index *x = &a->index;
    const struct attention how = {.rope = x->rope, .head_dim = x->dim, .n_rot = a->n_rot, .rot_first = x->rot_first};
    struct tensor k = tensor_shaped(p->w->index_k, x->dim, p->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {k}, .weight = {x->k}});
    mix_norm_index(p, x, &k);
    mix_rope(p, &how, a->rope_table, &k);
    mix_store(p, kv->kind, &k, &kv->index);
}

/* Chooses the positions, or blocks, that each token sees. x_q: the input of the index's queries. */
static void choose_positions(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                             const struct tensor *x_q, const struct tensor *h, const struct tensor *chosen)
{
    const struct position_index *x = &a->index;
    const struct attention how = {.rope = x->rope, .head_dim = x->dim, .n_rot = a->n_rot, .rot_first = x->rot_first};
    struct tensor q = tensor_shaped(p->w->index_q, x->n_head * x->dim, p->n), weights = {0};
    int kind = x->run ? kv->entry_kind : kv->kind;
    if (x->weights) {
        weights = tensor_shaped(p->w->index_weights, x->n_head, p->n);
        backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {weights}, .weight = {x->weights}});
    }
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*x_q}, .out = {q}, .weight = {x->q}});
    if (x->q_norm.buffer)
        block_norm(p, &q, &x->q_norm, x->dim, &q);
    mix_rope(p, &how, a->rope_table, &q);
    backend_enqueue(p->b, &(struct op){.kind = OP_INDEX,
                                       .in = {[INDEX_Q] = q,
                                              [INDEX_POS] = p->pos,
                                              [INDEX_TABLE] = p->table,
                                              [INDEX_PAGES] = mix_pages(p, kind),
                                              [INDEX_WEIGHTS] = weights},
                                       .out = {*chosen},
                                       .state = {kv->index},
                                       .index = {x->run, x->block, x->n_local, x->run > 0}});
}

/* The positions that the tokens see, as this layer or an earlier one chose them; absent: all. */
static struct tensor positions_of(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                                  const struct tensor *x_q, const struct tensor *h)
{
    const struct position_index *x = &a->index;
    struct tensor chosen = {0};
    if (x->run)
        mix_make_entries(
            p, a, &a->compressed.index,
            &(struct entry_caches){&kv->index_x, &kv->index_gate, kv->part_kind, &kv->index, kv->entry_kind},
            x->rot_first, h);
    else if (x->n_head)
        store_index(p, a, kv, h);
    if (x->n_chosen == 0 || block_sees_all(p, model_index_reach(x)))
        return chosen;
    chosen = tensor_rows(tensor_shaped(p->w->chosen, model_index_length(x), p->w->chosen.ne[1]), p->first, p->n);
    if (x->n_head)
        choose_positions(p, a, kv, x_q, h, &chosen);
    return chosen;
}

/* Stores the tokens' keys and values in the layer's cache. */
static void store_kv(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                     const struct tensor *k, const struct tensor *v)
{
    static const struct tensor no_weights;
    if (a->v_is_k)
        block_norm(p, k, &no_weights, a->head_dim, v);
    else if (a->has_unit_v_norm)
        block_norm(p, v, &no_weights, a->head_dim_v, v);
    norm_and_rope(p, a, a->rope_table, k, &a->k_norm, a->k_norm_len);
    mix_store(p, kv->kind, k, &kv->k);
    mix_store(p, kv->kind, v, &kv->v);
}

/* Clamps q, k or v to the layer's limit, if it has one. */
static void clamp(const struct pass *p, const struct attention *a, const struct tensor *x)
{
    if (a->qkv_limit > 0)
        backend_enqueue(p->b, &(struct op){.kind = OP_CLAMP, .in = {*x}, .out = {*x}, .scale = a->qkv_limit});
}

struct op mix_attention(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                        const struct tensor *q, const struct tensor *out)
{
    return (struct op){.kind = OP_ATTENTION,
                       .in = {[ATTENTION_Q] = *q,
                              [ATTENTION_POS] = p->pos,
                              [ATTENTION_TABLE] = p->table,
                              [ATTENTION_PAGES] = mix_pages(p, kv->kind)},
                       .out = {*out},
                       .state = {[ATTENTION_K] = kv->k, [ATTENTION_V] = kv->v},
                       .vec = {a->sinks},
                       .attention = {.n_head = a->n_head, .scale = a->scale, .window = a->window, .n_text = p->n_rows}};
}

/* h = o . (attention(q . h, k . h, v . h) * act(gate . h)) */
static void attention(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                      const struct tensor *h)
{
    struct tensor q = tensor_shaped(p->w->q, a->n_head * a->head_dim, p->n);
    struct tensor k = tensor_shaped(p->w->k, a->n_head_kv * a->head_dim, p->n);
    struct tensor v = tensor_shaped(p->w->v, a->n_head_kv * a->head_dim_v, p->n);
    struct tensor out = tensor_shaped(p->w->attn, a->n_head * a->head_dim_v, p->n);
    struct tensor z = tensor_shaped(p->w->z, a->n_gate, p->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL,
                                       .in = {*h},
                                       .out = {q, k, v},
                                       .weight = {a->q, a->k, a->v},
                                       .vec = {a->q_bias, a->k_bias, a->v_bias}});
    clamp(p, a, &q);
    if (a->k)
        clamp(p, a, &k);
    if (a->v)
        clamp(p, a, &v);
    if (a->gate)
        backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {z}, .weight = {a->gate}});
    norm_and_rope(p, a, a->q_rope_table, &q, &a->q_norm, a->q_norm_len);
    if (a->k)
        store_kv(p, a, kv, &k, &v);
    const struct tensor chosen = positions_of(p, a, kv, h, h);
    struct op attend = mix_attention(p, a, kv, &q, &out);
    attend.in[ATTENTION_CHOSEN] = chosen;
    attend.attention.chunked = a->chunked;
    attend.attention.softcap = a->softcap;
    if (chosen.buffer)
        attend.attention.chosen_block = a->index.block;
    backend_enqueue(p->b, &attend);
    if (a->gate)
        gate_by(p, a->gate_act, &z, &out);
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL, .in = {out}, .out = {*h}, .weight = {a->o}, .vec = {a->o_bias}});
    if (a->out_scale != 0)
        block_scale(p, h, a->out_scale, NULL);
}

void mix_heads(const struct pass *p, struct weight *w, int64_t n_head, struct head_part from, struct head_part to)
{
    backend_enqueue(p->b, &(struct op){.kind = OP_HEADS,
                                       .in = {*from.x},
                                       .out = {*to.x},
                                       .weight = {w},
                                       .heads = {.n_head = n_head,
                                                 .in_dim = from.x->ne[0] / n_head,
                                                 .in_off = from.off,
                                                 .n_in = from.n,
                                                 .out_dim = to.x->ne[0] / n_head,
                                                 .out_off = to.off,
                                                 .n_out = to.n}});
}

/* Computes the tokens' rows of the cache before their rotation: the part that will be rotated, and the latent. */
static struct tensor latent_rows(const struct pass *p, const struct attention *a, const struct tensor *latent,
                                 const struct tensor *k_rot)
{
    int64_t n_rot = a->n_rot, n_latent = a->latent.n_latent;
    struct tensor k = tensor_shaped(p->w->k, n_rot + n_latent, p->n);
    block_norm(p, latent, &a->k_norm, n_latent, n_rot ? latent : &k);
    if (n_rot == 0)
        return k;
    if (a->latent.k_pe_norm.buffer)
        block_norm(p, k_rot, &a->latent.k_pe_norm, n_rot, k_rot);
    mix_heads(p, NULL, 1, (struct head_part){k_rot, 0, n_rot}, (struct head_part){&k, 0, n_rot});
    mix_heads(p, NULL, 1, (struct head_part){latent, 0, n_latent}, (struct head_part){&k, n_rot, n_latent});
    return k;
}

/* Adds w . x to a product of x, unless w is NULL. */
static void add_product(struct op *op, struct weight *w, const struct tensor *out)
{
    int i = 0;
    while (op->weight[i])
        i++;
    op->weight[i] = w;
    op->out[i] = *out;
}

/* h = o . (v_b . attention(k_b . q . h, latent) * act(gate . h)): instead of computing keys and values from the latent,
 * this moves the queries into the latent space and the results out of it */
static void latent_attention(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                             const struct tensor *h)
{
    const struct latent_attention *lat = &a->latent;
    int64_t n_head = a->n_head, n_rot = a->n_rot, n_latent = lat->n_latent, row = n_rot + n_latent, n = p->n;
    struct tensor q_in = *h, q_latent = tensor_shaped(p->w->q_latent, a->n_q_latent, n),
                  q = tensor_shaped(p->w->q, n_head * row, n);
    struct tensor q_nope = tensor_shaped(p->w->z, n_head * lat->n_nope, n),
                  q_rot = tensor_shaped(p->w->q_rot, n_head * n_rot, n);
    struct tensor latent = tensor_shaped(p->w->v, n_latent, n), k_rot = tensor_shaped(p->w->k_rot, n_rot, n);
    struct tensor out = tensor_shaped(p->w->attn, n_head * row, n);
    struct tensor value = tensor_shaped(p->w->z, n_head * lat->n_value, n);
    struct op product = {.kind = OP_MATMUL, .in = {*h}, .out = {latent}, .weight = {a->k}};
    add_product(&product, lat->k_pe, &k_rot);
    add_product(&product, a->q_a, &q_latent);
    backend_enqueue(p->b, &product);
    if (a->q_a) {
        block_norm(p, &q_latent, &a->q_a_norm, a->n_q_latent, &q_latent);
        q_in = q_latent;
    }
    const struct tensor chosen = positions_of(p, a, kv, &q_in, h);
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL, .in = {q_in}, .out = {q_nope, q_rot}, .weight = {a->q, lat->q_pe}});
    const struct head_part q_rotated = {&q, 0, n_rot}, q_folded = {&q, n_rot, n_latent};
    if (n_rot)
        mix_heads(p, NULL, n_head, (struct head_part){&q_rot, 0, n_rot}, q_rotated);
    mix_heads(p, lat->k_b, n_head, (struct head_part){&q_nope, 0, lat->n_nope}, q_folded);
    const struct tensor k = latent_rows(p, a, &latent, &k_rot);
    mix_rope(p, a, a->q_rope_table, &q);
    mix_rope(p, &(struct attention){.rope = a->rope, .head_dim = row, .n_rot = row}, lat->temperature, &q);
    mix_rope(p, a, a->rope_table, &k);
    mix_store(p, kv->kind, &k, &kv->k);
    struct op attend = mix_attention(p, a, kv, &q, &out);
    attend.in[ATTENTION_CHOSEN] = chosen;
    backend_enqueue(p->b, &attend);
    mix_heads(p, lat->v_b, n_head, (struct head_part){&out, n_rot, n_latent},
              (struct head_part){&value, 0, lat->n_value});
    if (a->gate) {
        const struct tensor gate = tensor_shaped(p->w->q, a->n_gate, n);
        backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {gate}, .weight = {a->gate}});
        gate_by(p, a->gate_act, &gate, &value);
    }
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {value}, .out = {*h}, .weight = {a->o}});
}

/* The inputs of a recurrent layer for some tokens; those whose weights are absent are absent. */
struct recurrent_inputs {
    struct tensor mixed, alpha, beta; /* beta: or q and k of RECURRENCE_SELECTIVE */
};

/* Returns conv(mixed), or act(mixed), for the tokens of p->from and p->to. It is written to `out` if the layer is a
 * convolution only. */
static struct tensor convolve(const struct pass *p, const struct recurrent *r, const struct layer_pages *state,
                              const struct recurrent_inputs *in, const struct tensor *out)
{
    bool has_rule = r->kind != RECURRENCE_CONV;
    struct tensor convolved = has_rule ? tensor_shaped(p->w->convolved, r->n_mixed, in->mixed.ne[1]) : *out;
    if (r->n_tap == 0) {
        backend_enqueue(p->b, &(struct op){.kind = OP_ACT_MUL,
                                           .in = {in->mixed, in->mixed},
                                           .out = {convolved},
                                           .act = ACT_SIGMOID}); /* SiLU */
        return convolved;
    }
    backend_enqueue(p->b, &(struct op){.kind = OP_CONV,
                                       .in = {[CONV_X] = in->mixed, [CONV_FROM] = p->from, [CONV_TO] = p->to},
                                       .out = {convolved},
                                       .vec = {r->conv, r->conv_bias},
                                       .state = {state->past},
                                       .conv = {.has_silu = has_rule}});
    return convolved;
}

/* out = rule(convolved) for the same tokens, unless the layer is a convolution only */
static void recur(const struct pass *p, const struct recurrent *r, const struct layer_pages *state,
                  const struct tensor *convolved, const struct recurrent_inputs *in, const struct tensor *out)
{
    if (r->kind != RECURRENCE_CONV)
        backend_enqueue(p->b, &(struct op){.kind = r->kind == RECURRENCE_DELTA ? OP_DELTA : OP_SSM,
                                           .in = {[DELTA_QKV] = *convolved,
                                                  [DELTA_ALPHA] = in->alpha,
                                                  [DELTA_BETA] = in->beta,
                                                  [DELTA_FROM] = p->from,
                                                  [DELTA_TO] = p->to},
                                           .out = {*out},
                                           .vec = {[DELTA_DT] = r->dt, [DELTA_A] = r->a, [SSM_SKIP] = r->skip},
                                           .state = {state->rule},
                                           .delta = {r->n_head_k, r->grouped, r->qk_eps, r->min_log_decay}});
}

/* Rows [row, row + n) of layer i's part of a tensor that is kept for all recurrent layers, ne0 elements each; absent
 * where ne0 is 0. */
static struct tensor kept_rows(const struct kept_inputs *k, const struct tensor *all, int64_t i, int64_t ne0,
                               int64_t row, int64_t n)
{
    if (ne0 == 0)
        return (struct tensor){0};
    return tensor_rows(tensor_shaped(tensor_rows(*all, i * k->most_rows, k->most_rows), ne0, k->most_rows), row, n);
}

/* Rows [row, row + n) of the kept inputs of recurrent layer i. */
static struct recurrent_inputs kept_inputs(const struct stage_work *w, const struct recurrent *r, int64_t i,
                                           int64_t row, int64_t n)
{
    const struct kept_inputs *k = &w->inputs;
    return (struct recurrent_inputs){kept_rows(k, &k->mixed, i, r->n_mixed, row, n),
                                     kept_rows(k, &k->alpha, i, r->n_alpha, row, n),
                                     kept_rows(k, &k->beta, i, r->n_beta, row, n)};
}

int64_t block_n_recurrent(const struct model *m, int64_t first, int64_t end)
{
    int64_t n = 0;
    for (int64_t i = first; i < end; i++)
        n += m->layers[i].is_recurrent;
    return n;
}

bool model_is_recurrent(const struct model *m)
{
    return block_n_recurrent(m, 0, m->n_layer) > 0;
}

void block_keep_rows(const struct pass *p, const struct tensor *x, const struct tensor *kept)
{
    for (int64_t r = 0, first = 0, row = 0; kept->buffer && r < p->n_rows; first += p->rows[r++].n) {
        int64_t from = max_i64(first, p->first), to = min_i64(first + p->rows[r].n, p->first + p->n);
        if (!p->rows[r].is_draft)
            continue;
        if (from < to) {
            const struct tensor rows = tensor_rows(*x, from - p->first, to - from),
                                to_rows = tensor_rows(*kept, row + from - first, to - from);
            backend_copy(p->b, &rows, &to_rows);
        }
        row += p->rows[r].n;
    }
}

/* Keeps the inputs of a recurrent layer for the tokens that may be taken back. */
static void keep_inputs(const struct pass *p, int64_t i, const struct recurrent_inputs *in)
{
    int64_t index = block_n_recurrent(p->m, p->stage->first, i);
    const struct recurrent_inputs kept =
        kept_inputs(p->w, &p->m->layers[i].recurrent, index, 0, p->w->inputs.most_rows);
    block_keep_rows(p, &in->mixed, &kept.mixed);
    block_keep_rows(p, &in->alpha, &kept.alpha);
    block_keep_rows(p, &in->beta, &kept.beta);
}

/* mixed = q . h, k . h and v . h side by side; for a single token the products are written there directly */
static void project_mixed(const struct pass *p, const struct recurrent *r, const struct tensor *h,
                          const struct tensor *mixed)
{
    int64_t n_q = r->n_head_k * r->dk, n_v = r->n_out, n = p->n;
    struct tensor q = tensor_shaped(n == 1 ? *mixed : p->w->q, n_q, n),
                  k = tensor_shaped(n == 1 ? *mixed : p->w->k, n_q, n),
                  v = tensor_shaped(n == 1 ? *mixed : p->w->v, n_v, n);
    if (n == 1) {
        k.off_bytes += tensor_bytes(&q);
        v.off_bytes += tensor_bytes(&q) + tensor_bytes(&k);
    }
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {q, k, v}, .weight = {r->q, r->k, r->v}});
    if (n == 1)
        return;
    mix_heads(p, NULL, 1, (struct head_part){&q, 0, n_q}, (struct head_part){mixed, 0, n_q});
    mix_heads(p, NULL, 1, (struct head_part){&k, 0, n_q}, (struct head_part){mixed, n_q, n_q});
    mix_heads(p, NULL, 1, (struct head_part){&v, 0, n_v}, (struct head_part){mixed, 2 * n_q, n_v});
}

/* As project, where q, k and v are matrices of their own, and alpha and z may be low-rank. */
static struct recurrent_inputs project_apart(const struct pass *p, const struct recurrent *r, const struct tensor *h,
                                             const struct tensor *z)
{
    const struct recurrent_inputs in = {tensor_shaped(p->w->mixed, r->n_mixed, p->n),
                                        tensor_shaped(p->w->alpha, r->n_alpha, p->n),
                                        tensor_shaped(p->w->beta, r->n_head_v, p->n)};
    const struct tensor alpha_low = tensor_shaped(p->w->alpha_low, r->n_rank, p->n),
                        z_low = tensor_shaped(p->w->z_low, r->n_rank, p->n);
    project_mixed(p, r, h, &in.mixed);
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL,
                                 .in = {*h},
                                 .out = {r->alpha_in ? alpha_low : in.alpha, r->z_in ? z_low : *z, in.beta},
                                 .weight = {r->alpha_in ? r->alpha_in : r->alpha, r->z_in ? r->z_in : r->z, r->beta}});
    if (r->alpha_in)
        backend_enqueue(p->b,
                        &(struct op){.kind = OP_MATMUL, .in = {alpha_low}, .out = {in.alpha}, .weight = {r->alpha}});
    if (r->z_in)
        backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {z_low}, .out = {*z}, .weight = {r->z}});
    return in;
}

/* Multiplies h by the layer's weights: computes the inputs of recur, and z. */
static struct recurrent_inputs project(const struct pass *p, const struct recurrent *r, const struct tensor *h,
                                       const struct tensor *z)
{
    struct tensor mixed = tensor_shaped(p->w->mixed, r->n_mixed, p->n);
    if (r->kind == RECURRENCE_CONV) {
        struct tensor by = tensor_shaped(p->w->convolved, r->n_mixed, p->n);
        backend_enqueue(
            p->b,
            &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {mixed, *z, by}, .weight = {r->mixed, r->z, r->gate}});
        gate_by(p, ACT_NONE, &by, &mixed);
        return (struct recurrent_inputs){.mixed = mixed};
    }
    if (r->kind == RECURRENCE_SELECTIVE) {
        backend_enqueue(p->b,
                        &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {mixed, *z}, .weight = {r->mixed, r->z}});
        return (struct recurrent_inputs){.mixed = mixed};
    }
    if (!r->mixed)
        return project_apart(p, r, h, z);
    struct recurrent_inputs in = {.mixed = mixed};
    if (r->alpha)
        in.alpha = tensor_shaped(p->w->alpha, r->n_alpha, p->n);
    if (r->beta)
        in.beta = tensor_shaped(p->w->beta, r->n_head_v, p->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL,
                                       .in = {*h},
                                       .out = {mixed, *z, in.alpha, in.beta},
                                       .weight = {r->mixed, r->z, r->alpha, r->beta}});
    return in;
}

/* Computes q, k and alpha of a selective state space from the result of its convolution. */
static void select_inputs(const struct pass *p, const struct recurrent *r, const struct tensor *convolved,
                          struct recurrent_inputs *in)
{
    const struct tensor low = tensor_shaped(p->w->alpha_low, r->n_rank, p->n);
    in->beta = tensor_shaped(p->w->beta, r->n_beta, p->n);
    in->alpha = tensor_shaped(p->w->alpha, r->n_alpha, p->n);
    backend_enqueue(
        p->b,
        &(struct op){.kind = OP_MATMUL, .in = {*convolved}, .out = {low, in->beta}, .weight = {r->alpha_in, r->qk}});
    block_norm(p, &low, &r->alpha_norm, r->n_rank, &low);
    block_norm(p, &in->beta, &r->qk_norm, r->dk, &in->beta);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {low}, .out = {in->alpha}, .weight = {r->alpha}});
}

/* h = out . (norm(rule(conv(mixed . h))) * act(z . h)), or the norm of the whole product */
static void recurrent(const struct pass *p, int64_t i, const struct tensor *h)
{
    const struct recurrent *r = &p->m->layers[i].recurrent;
    struct tensor z = tensor_shaped(p->w->z, r->n_out, p->n), out = tensor_shaped(p->w->attn, r->n_out, p->n);
    struct recurrent_inputs in = project(p, r, h, &z);
    const struct tensor convolved = convolve(p, r, &p->pool->layers[i], &in, &out);
    if (r->kind == RECURRENCE_SELECTIVE)
        select_inputs(p, r, &convolved, &in);
    if (p->keeps_inputs)
        keep_inputs(p, i, &in);
    recur(p, r, &p->pool->layers[i], &convolved, &in, &out);
    if (r->n_norm && !r->norms_gated)
        block_norm(p, &out, &r->norm, r->n_norm, &out);
    gate_by(p, r->z_act, &z, &out);
    if (r->n_norm && r->norms_gated)
        block_norm(p, &out, &r->norm, r->n_norm, &out);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {out}, .out = {*h}, .weight = {r->out}});
}

void block_recur_again(const struct pass *p, int64_t i, int64_t row)
{
    const struct recurrent *r = &p->m->layers[i].recurrent;
    int64_t index = block_n_recurrent(p->m, p->stage->first, i);
    const struct recurrent_inputs in = kept_inputs(p->w, r, index, row, p->n);
    const struct tensor out = tensor_shaped(p->w->attn, r->n_out, p->n);
    const struct tensor convolved = convolve(p, r, &p->pool->layers[i], &in, &out);
    recur(p, r, &p->pool->layers[i], &convolved, &in, &out);
}

void block_store(const struct pass *p, int64_t i)
{
    const struct layer *y = &p->m->layers[i];
    const struct attention *a = &y->attn;
    const struct layer_pages *kv = &p->pool->layers[i];
    struct tensor h = tensor_shaped(p->h, p->m->n_embd, p->n);
    struct tensor k = tensor_shaped(p->w->k, a->n_head_kv * a->head_dim, p->n),
                  v = tensor_shaped(p->w->v, a->n_head_kv * a->head_dim_v, p->n);
    struct op product = {.kind = OP_MATMUL, .in = {h}, .out = {k, v}, .weight = {a->k, a->v}};
    block_begin(p, &y->attn_streams, &p->x, &p->mix, &y->attn_norm, &y->attn_norm_bias, &h);
    if (a->is_latent) {
        product.out[0] = tensor_shaped(p->w->v, a->latent.n_latent, p->n);
        product.out[1] = tensor_shaped(p->w->k_rot, a->n_rot, p->n);
        product.weight[1] = a->latent.k_pe;
        backend_enqueue(p->b, &product);
        k = latent_rows(p, a, &product.out[0], &product.out[1]);
        mix_rope(p, a, a->rope_table, &k);
        mix_store(p, kv->kind, &k, &kv->k);
        return;
    }
    if (a->is_compressed) {
        backend_enqueue(p->b, &product);
        mix_store_window(p, a, kv, &k);
        return;
    }
    product.vec[0] = a->k_bias;
    product.vec[1] = a->v_bias;
    backend_enqueue(p->b, &product);
    clamp(p, a, &k);
    clamp(p, a, &v);
    store_kv(p, a, kv, &k, &v);
}

void block_mix(const struct pass *p, int64_t i)
{
    const struct layer *y = &p->m->layers[i];
    int64_t n_embd = p->m->n_embd;
    struct tensor h = tensor_shaped(p->h, n_embd, p->n);
    if (!y->attn_norm.buffer)
        return;
    block_begin(p, &y->attn_streams, &p->x, &p->mix, &y->attn_norm, &y->attn_norm_bias, &h);
    block_keep_normed(p, &h);
    if (block_banks(p->m, i))
        block_bank(p);
    if (y->is_recurrent)
        recurrent(p, i, &h);
    else if (y->attn.is_compressed)
        mix_compressed(p, &y->attn, &p->pool->layers[i], &h);
    else if (y->attn.is_latent)
        latent_attention(p, &y->attn, &p->pool->layers[i], &h);
    else
        attention(p, &y->attn, &p->pool->layers[y->attn.kv_layer], &h);
    if (y->attn_post_norm.buffer)
        block_norm(p, &h, &y->attn_post_norm, n_embd, &h);
    block_end(p, &h, &p->x);
}
