/* The forward pass: tokens in, logits out.
 *
 *   x = embedding(ids)
 *   for each layer:   x += attention(norm(x));   x += ffn_or_moe(norm(x))      (some have one of the two alone)
 *   logits = output(norm(x))
 *
 * Everything is enqueued on the device of the layer's stage; only the MoE layers of a model whose experts are not all
 * resident wait for it. From one stage to the next the residual stream and what all layers use of a token (angles,
 * embeddings for layers) go through the host's memory; lists and page tables are written to each. The last layer
 * computes its second half, and the output its product, only for the rows of logits that were asked for.
 *
 * A batch is the tokens of one forward pass, which may be those of several texts: each text's follow each other. A
 * ubatch are those whose attention or dense feed-forward is computed at once. Routed experts take the whole batch, so
 * that each is read once; everything else takes it ubatch by ubatch, so that its work space stays small. What belongs
 * to a text (positions, page tables, where its recurrent state lies) is device memory that is written before the pass.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "model/state.h"
#include "model/work_space.h"

/* ---- blocks -------------------------------------------------------------------------------------------------- */

/* What the blocks work on: a batch or one of its ubatches. Tensors are cut to its number of tokens. */
struct pass {
    const struct model *m;
    const struct state_pool *pool; /* of all its texts */
    struct model_work *work;
    struct stage_work *w; /* of the stage in hand, as are the tensors below and these two */
    const struct model_stage *stage;
    const struct model_forward_params *p;
    struct backend *b;
    const struct model_rows *rows; /* [n_rows], the texts */
    int64_t n_rows;
    bool keeps_inputs;                  /* some of their tokens may be taken back */
    int64_t first;                      /* a ubatch's first token in the batch; of the batch 0 */
    int64_t n;                          /* tokens */
    int64_t n_out;                      /* tokens of the batch whose results are kept */
    struct tensor ids, pos;             /* [n] */
    struct tensor table, from, to;      /* [n], as in backend.h */
    struct tensor x, h;                 /* the residual stream, [n_embd][n], and room for a branch of it */
    struct tensor out_rows;             /* the tokens whose results are kept; once x holds these alone, else absent */
    struct tensor rope[MODEL_MAX_ROPE]; /* [n_rot][n] */
};

/* Elements [first, first + n) of a list. */
static struct tensor part(struct tensor t, int64_t first, int64_t n)
{
    t.off_bytes += (size_t)first * sizeof(int32_t);
    t.ne[0] = n;
    t.ne[1] = 1;
    return t;
}

/* The ubatch that begins at token `first` of a batch. */
static struct pass ubatch_from(const struct pass *p, int64_t first)
{
    struct pass u = *p;
    u.first = first;
    u.n = min_i64(p->n - first, p->w->sizes.n_ubatch);
    u.x = tensor_rows(p->x, first, u.n);
    u.pos = part(p->pos, first, u.n);
    u.table = part(p->table, first, u.n);
    u.from = part(p->from, first, u.n);
    u.to = part(p->to, first, u.n);
    for (int i = 0; i < p->m->n_rope; i++)
        u.rope[i] = tensor_rows(p->rope[i], first, u.n);
    return u;
}

/* A work tensor seen as ne1 rows of ne0. */
static struct tensor shaped(struct tensor t, int64_t ne0, int64_t ne1)
{
    t.ne[0] = ne0;
    t.ne[1] = ne1;
    return t;
}

static void norm(const struct pass *p, const struct tensor *x, const struct tensor *w, int64_t n,
                 const struct tensor *out)
{
    backend_enqueue(
        p->b,
        &(struct op){
            .kind = OP_RMS_NORM, .in = {*x}, .out = {*out}, .vec = {*w}, .norm = {.n = n, .eps = p->m->norm_eps}});
}

/* x *= number, and *= the number in `factor` unless that is NULL */
static void scale(const struct pass *p, const struct tensor *x, float number, const struct tensor *factor)
{
    struct op op = {.kind = OP_SCALE, .in = {*x}, .out = {*x}, .scale = number};
    if (factor)
        op.vec[0] = *factor;
    backend_enqueue(p->b, &op);
}

/* out = x + y */
static void add(const struct pass *p, const struct tensor *x, const struct tensor *y, const struct tensor *out)
{
    backend_enqueue(p->b, &(struct op){.kind = OP_ADD, .in = {*x, *y}, .out = {*out}});
}

/* out = x + residual_scale * y: the residual stream and a branch. y is overwritten. */
static void add_branch(const struct pass *p, const struct tensor *y, const struct tensor *out)
{
    if (p->m->residual_scale != 1)
        scale(p, y, p->m->residual_scale, NULL);
    add(p, &p->x, y, out);
}

/* x = act(by) * x */
static void gate_by(const struct pass *p, enum act_fn act, const struct tensor *by, const struct tensor *x)
{
    backend_enqueue(p->b, &(struct op){.kind = OP_ACT_MUL, .in = {*by, *x}, .out = {*x}, .act = act});
}

static void rope(const struct pass *p, const struct attention *a, int table, const struct tensor *x)
{
    if (table < 0)
        return;
    backend_enqueue(
        p->b, &(struct op){
                  .kind = OP_ROPE, .in = {*x, p->rope[table]}, .out = {*x}, .rope = {a->rope, a->head_dim, a->n_rot}});
}

/* The heads of q or of k, normed over n elements (0: not) and rotated. */
static void norm_and_rope(const struct pass *p, const struct attention *a, int table, const struct tensor *x,
                          const struct tensor *w, int64_t n)
{
    if (n && !a->rope_first)
        norm(p, x, w, n, x);
    rope(p, a, table, x);
    if (n && a->rope_first)
        norm(p, x, w, n, x);
}

/* The page tables of a layer's caches. */
static struct tensor pages_of(const struct pass *p, const struct layer_pages *kv)
{
    return tensor_rows(p->w->pages, kv->kind, 1);
}

static void enqueue_store(const struct pass *p, const struct layer_pages *kv, const struct tensor *x,
                          const struct paged *cache)
{
    backend_enqueue(
        p->b, &(struct op){.kind = OP_KV_STORE, .in = {*x, p->pos, p->table, pages_of(p, kv)}, .state = {*cache}});
}

/* Puts the tokens' keys and values into the layer's cache. */
static void store_kv(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                     const struct tensor *k, const struct tensor *v)
{
    static const struct tensor no_weights;
    if (a->v_is_k)
        norm(p, k, &no_weights, a->head_dim, v);
    else if (a->has_unit_v_norm)
        norm(p, v, &no_weights, a->head_dim_v, v);
    norm_and_rope(p, a, a->rope_table, k, &a->k_norm, a->k_norm_len);
    enqueue_store(p, kv, k, &kv->k);
    enqueue_store(p, kv, v, &kv->v);
}

/* h = o . (attention(q . h, k . h, v . h) * act(gate . h)) */
static void attention(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                      const struct tensor *h)
{
    struct tensor q = shaped(p->w->q, a->n_head * a->head_dim, p->n);
    struct tensor k = shaped(p->w->k, a->n_head_kv * a->head_dim, p->n);
    struct tensor v = shaped(p->w->v, a->n_head_kv * a->head_dim_v, p->n);
    struct tensor out = shaped(p->w->attn, a->n_head * a->head_dim_v, p->n);
    struct tensor z = shaped(p->w->z, a->n_gate, p->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL,
                                       .in = {*h},
                                       .out = {q, k, v},
                                       .weight = {a->q, a->k, a->v},
                                       .vec = {a->q_bias, a->k_bias, a->v_bias}});
    if (a->gate)
        backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {z}, .weight = {a->gate}});
    norm_and_rope(p, a, a->q_rope_table, &q, &a->q_norm, a->q_norm_len);
    if (a->k)
        store_kv(p, a, kv, &k, &v);
    backend_enqueue(p->b, &(struct op){.kind = OP_ATTENTION,
                                       .in = {q, p->pos, p->table, pages_of(p, kv)},
                                       .out = {out},
                                       .state = {kv->k, kv->v},
                                       .vec = {a->sinks},
                                       .attention = {a->n_head, a->scale, a->window, a->chunked, p->n_rows}});
    if (a->gate)
        gate_by(p, a->gate_act, &z, &out);
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL, .in = {out}, .out = {*h}, .weight = {a->o}, .vec = {a->o_bias}});
    if (a->out_scale != 0)
        scale(p, h, a->out_scale, NULL);
}

/* Elements [off, off + n) of each head's row of x. */
struct head_part {
    const struct tensor *x;
    int64_t off, n;
};

/* to = w . from for each head, with a matrix for each; w NULL: to = from. */
static void heads(const struct pass *p, struct weight *w, int64_t n_head, struct head_part from, struct head_part to)
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

/* Whether all tokens of the batch see all positions before them, as no more than n_chosen are there. */
static bool sees_all(const struct pass *p, int64_t n_chosen)
{
    bool all = !p->p->is_complete;
    for (int64_t r = 0; r < p->n_rows; r++)
        all &= p->rows[r].state->pos + p->rows[r].n <= n_chosen;
    return all;
}

/* Puts the tokens' keys into the index, in whose cache later ones look for them. */
static void store_index(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                        const struct tensor *h)
{
    const struct position_index *x = &a->latent.index;
    const struct attention how = {.rope = x->rope, .head_dim = x->dim, .n_rot = a->n_rot};
    struct tensor k = shaped(p->w->index_k, x->dim, p->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {k}, .weight = {x->k}});
    backend_enqueue(
        p->b,
        &(struct op){
            .kind = OP_LAYER_NORM, .in = {k}, .out = {k}, .vec = {x->k_norm, x->k_norm_bias}, .norm = {.eps = 1e-6f}});
    rope(p, &how, a->rope_table, &k);
    enqueue_store(p, kv, &k, &kv->index);
}

/* Chooses the positions that each token sees. */
static void choose_positions(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                             const struct tensor *q_latent, const struct tensor *h, const struct tensor *chosen)
{
    const struct position_index *x = &a->latent.index;
    const struct attention how = {.rope = x->rope, .head_dim = x->dim, .n_rot = a->n_rot};
    struct tensor q = shaped(p->w->index_q, x->n_head * x->dim, p->n);
    struct tensor weights = shaped(p->w->index_weights, x->n_head, p->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {weights}, .weight = {x->weights}});
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*q_latent}, .out = {q}, .weight = {x->q}});
    rope(p, &how, a->rope_table, &q);
    backend_enqueue(p->b, &(struct op){.kind = OP_INDEX,
                                       .in = {q, p->pos, p->table, pages_of(p, kv), weights},
                                       .out = {*chosen},
                                       .state = {kv->index}});
}

/* What the tokens see of the positions before them, as this layer or an earlier one chose; absent: all. */
static struct tensor positions_of(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                                  const struct tensor *q_latent, const struct tensor *h)
{
    const struct position_index *x = &a->latent.index;
    struct tensor chosen = {0};
    if (x->n_head)
        store_index(p, a, kv, h);
    if (x->n_chosen == 0 || sees_all(p, x->n_chosen))
        return chosen;
    chosen = tensor_rows(shaped(p->w->chosen, x->n_chosen, p->w->chosen.ne[1]), p->first, p->n);
    if (x->n_head)
        choose_positions(p, a, kv, q_latent, h, &chosen);
    return chosen;
}

/* h = o . v_b . attention(k_b . q . h, latent): instead of the latent's keys and values, queries go into the latent
 * space and results out of it */
static void latent_attention(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                             const struct tensor *h)
{
    const struct latent_attention *lat = &a->latent;
    int64_t n_head = a->n_head, n_rot = a->n_rot, n_latent = lat->n_latent, row = n_rot + n_latent, n = p->n;
    struct tensor q_in = *h, q_latent = shaped(p->w->q_latent, lat->n_q_latent, n),
                  q = shaped(p->w->q, n_head * row, n);
    struct tensor q_nope = shaped(p->w->z, n_head * lat->n_nope, n), q_rot = shaped(p->w->q_rot, n_head * n_rot, n);
    struct tensor latent = shaped(p->w->v, n_latent, n), k_rot = shaped(p->w->k_rot, n_rot, n);
    struct tensor k = shaped(p->w->k, row, n), out = shaped(p->w->attn, n_head * row, n);
    struct tensor value = shaped(p->w->z, n_head * lat->n_value, n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL,
                                       .in = {*h},
                                       .out = {latent, k_rot, q_latent},
                                       .weight = {a->k, lat->k_pe, lat->q_a}});
    if (lat->q_a) {
        norm(p, &q_latent, &lat->q_a_norm, lat->n_q_latent, &q_latent);
        q_in = q_latent;
    }
    const struct tensor chosen = positions_of(p, a, kv, &q_in, h);
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL, .in = {q_in}, .out = {q_nope, q_rot}, .weight = {a->q, lat->q_pe}});
    const struct head_part q_rotated = {&q, 0, n_rot}, q_folded = {&q, n_rot, n_latent};
    heads(p, NULL, n_head, (struct head_part){&q_rot, 0, n_rot}, q_rotated);
    heads(p, lat->k_b, n_head, (struct head_part){&q_nope, 0, lat->n_nope}, q_folded);
    norm(p, &latent, &a->k_norm, n_latent, &latent);
    heads(p, NULL, 1, (struct head_part){&k_rot, 0, n_rot}, (struct head_part){&k, 0, n_rot});
    heads(p, NULL, 1, (struct head_part){&latent, 0, n_latent}, (struct head_part){&k, n_rot, n_latent});
    rope(p, a, a->q_rope_table, &q);
    rope(p, a, a->rope_table, &k);
    enqueue_store(p, kv, &k, &kv->k);
    backend_enqueue(p->b, &(struct op){.kind = OP_ATTENTION,
                                       .in = {q, p->pos, p->table, pages_of(p, kv), chosen},
                                       .out = {out},
                                       .state = {kv->k, kv->v},
                                       .attention = {.n_head = n_head, .scale = a->scale, .n_text = p->n_rows}});
    heads(p, lat->v_b, n_head, (struct head_part){&out, n_rot, n_latent}, (struct head_part){&value, 0, lat->n_value});
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {value}, .out = {*h}, .weight = {a->o}});
}

/* What a recurrent layer takes in for some tokens; absent as its weights are. */
struct recurrent_inputs {
    struct tensor mixed, alpha, beta;
};

/* out = rule(conv(mixed)), for the tokens of p->from and p->to */
static void recur(const struct pass *p, const struct recurrent *r, const struct layer_pages *state,
                  const struct recurrent_inputs *in, const struct tensor *out)
{
    bool has_rule = r->kind != RECURRENCE_CONV;
    struct tensor convolved = has_rule ? shaped(p->w->convolved, r->n_mixed, in->mixed.ne[1]) : *out;
    backend_enqueue(p->b, &(struct op){.kind = OP_CONV,
                                       .in = {in->mixed, p->from, p->to},
                                       .out = {convolved},
                                       .vec = {r->conv, r->conv_bias},
                                       .state = {state->past},
                                       .conv = {.has_silu = has_rule}});
    if (has_rule)
        backend_enqueue(p->b, &(struct op){.kind = r->kind == RECURRENCE_DELTA ? OP_DELTA : OP_SSM,
                                           .in = {convolved, in->alpha, in->beta, p->from, p->to},
                                           .out = {*out},
                                           .vec = {r->dt, r->a, r->skip},
                                           .state = {state->rule},
                                           .delta = {r->n_head_k, r->grouped, p->m->norm_eps}});
}

/* Rows [row, row + n) of layer i's part of what is kept of all layers, of ne0 each; 0: none. */
static struct tensor kept_rows(const struct kept_inputs *k, const struct tensor *all, int64_t i, int64_t ne0,
                               int64_t row, int64_t n)
{
    if (ne0 == 0)
        return (struct tensor){0};
    return tensor_rows(shaped(tensor_rows(*all, i * k->most_rows, k->most_rows), ne0, k->most_rows), row, n);
}

/* Rows [row, row + n) of the inputs that are kept of recurrent layer i. */
static struct recurrent_inputs kept_inputs(const struct stage_work *w, const struct recurrent *r, int64_t i,
                                           int64_t row, int64_t n)
{
    const struct kept_inputs *k = &w->inputs;
    return (struct recurrent_inputs){kept_rows(k, &k->mixed, i, r->n_mixed, row, n),
                                     kept_rows(k, &k->alpha, i, r->alpha ? r->n_head_v : 0, row, n),
                                     kept_rows(k, &k->beta, i, r->beta ? r->n_head_v : 0, row, n)};
}

/* How many of the layers [first, end) are recurrent. */
static int64_t count_recurrent(const struct model *m, int64_t first, int64_t end)
{
    int64_t n = 0;
    for (int64_t i = first; i < end; i++)
        n += m->layers[i].is_recurrent;
    return n;
}

bool model_is_recurrent(const struct model *m)
{
    return count_recurrent(m, 0, m->n_layer) > 0;
}

static void copy_rows(const struct pass *p, const struct tensor *from, int64_t first, const struct tensor *to)
{
    if (!to->buffer)
        return;
    const struct tensor x = tensor_rows(*from, first, to->ne[1]);
    backend_copy(p->b, &x, to);
}

/* Keeps a recurrent layer's inputs of the tokens that may be taken back. Those of all texts count from the first. */
static void keep_inputs(const struct pass *p, int64_t i, const struct recurrent_inputs *in)
{
    const struct recurrent *rec = &p->m->layers[i].recurrent;
    for (int64_t r = 0, first = 0, row = 0; r < p->n_rows; first += p->rows[r++].n) {
        int64_t from = max_i64(first, p->first), to = min_i64(first + p->rows[r].n, p->first + p->n);
        if (!p->rows[r].is_draft)
            continue;
        if (from < to) {
            int64_t index = count_recurrent(p->m, p->stage->first, i);
            const struct recurrent_inputs k = kept_inputs(p->w, rec, index, row + from - first, to - from);
            copy_rows(p, &in->mixed, from - p->first, &k.mixed);
            copy_rows(p, &in->alpha, from - p->first, &k.alpha);
            copy_rows(p, &in->beta, from - p->first, &k.beta);
        }
        row += p->rows[r].n;
    }
}

/* The weights' products with h: what goes into recur, and z. */
static struct recurrent_inputs project(const struct pass *p, const struct recurrent *r, const struct tensor *h,
                                       const struct tensor *z)
{
    struct tensor mixed = shaped(p->w->mixed, r->n_mixed, p->n);
    if (r->kind == RECURRENCE_CONV) {
        struct tensor by = shaped(p->w->convolved, r->n_mixed, p->n);
        backend_enqueue(
            p->b,
            &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {mixed, *z, by}, .weight = {r->mixed, r->z, r->gate}});
        gate_by(p, ACT_NONE, &by, &mixed);
        return (struct recurrent_inputs){.mixed = mixed};
    }
    struct recurrent_inputs in = {mixed, shaped(p->w->alpha, r->n_head_v, p->n), {0}};
    if (r->beta)
        in.beta = shaped(p->w->beta, r->n_head_v, p->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL,
                                       .in = {*h},
                                       .out = {mixed, *z, in.alpha, in.beta},
                                       .weight = {r->mixed, r->z, r->alpha, r->beta}});
    return in;
}

/* h = out . (norm(rule(conv(mixed . h))) * act(z . h)), or the norm of the whole product */
static void recurrent(const struct pass *p, int64_t i, const struct tensor *h)
{
    const struct recurrent *r = &p->m->layers[i].recurrent;
    struct tensor z = shaped(p->w->z, r->n_out, p->n), out = shaped(p->w->attn, r->n_out, p->n);
    const struct recurrent_inputs in = project(p, r, h, &z);
    if (p->keeps_inputs)
        keep_inputs(p, i, &in);
    recur(p, r, &p->pool->layers[i], &in, &out);
    if (r->n_norm && !r->norms_gated)
        norm(p, &out, &r->norm, r->n_norm, &out);
    gate_by(p, r->kind == RECURRENCE_CONV ? ACT_NONE : ACT_SILU, &z, &out);
    if (r->n_norm && r->norms_gated)
        norm(p, &out, &r->norm, r->n_norm, &out);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {out}, .out = {*h}, .weight = {r->out}});
}

/* h = down . (act(gate . h) * (up . h)), ubatch by ubatch */
static void dense_ffn(const struct pass *p, const struct ffn *f, const struct tensor *h)
{
    for (int64_t i = 0, n; i < h->ne[1]; i += n) {
        n = min_i64(h->ne[1] - i, p->w->sizes.n_ubatch);
        struct tensor gate = shaped(p->w->gate, f->n_ff, n), up = shaped(p->w->up, f->n_ff, n);
        struct tensor x = tensor_rows(*h, i, n);
        backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL,
                                           .in = {x},
                                           .out = {gate, up},
                                           .weight = {f->gate, f->up},
                                           .vec = {f->gate_bias, f->up_bias}});
        backend_enqueue(
            p->b, &(struct op){.kind = OP_ACT_MUL, .in = {gate, f->up ? up : gate}, .out = {gate}, .act = f->act});
        backend_enqueue(
            p->b,
            &(struct op){.kind = OP_MATMUL, .in = {gate}, .out = {x}, .weight = {f->down}, .vec = {f->down_bias}});
    }
}

/* x += norm(proj . (gelu(gate . x) * the token's embedding for layer i)) */
static void token_embedding(const struct pass *p, int64_t i, const struct layer *y)
{
    int64_t n = p->m->n_token_embd, m = p->x.ne[1];
    struct tensor gate = shaped(p->w->token_gate, n, m), slice = shaped(p->w->token_slice, n, m);
    struct tensor all = shaped(p->w->token_embed, n * p->m->n_layer, p->n), h = shaped(p->h, p->m->n_embd, m);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {p->x}, .out = {gate}, .weight = {y->token_gate}});
    backend_enqueue(p->b, &(struct op){.kind = OP_SLICE, .in = {all, p->out_rows}, .out = {slice}, .slice_off = i * n});
    backend_enqueue(p->b, &(struct op){.kind = OP_ACT_MUL, .in = {gate, slice}, .out = {gate}, .act = ACT_GELU});
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {gate}, .out = {h}, .weight = {y->token_proj}});
    norm(p, &h, &y->token_post_norm, p->m->n_embd, &h);
    add(p, &p->x, &h, &p->x);
}

/* out = dense + norm(sum), for layers with a dense branch beside their experts. sum is overwritten. */
static void join_dense(const struct pass *p, const struct layer *y, const struct tensor *dense,
                       const struct tensor *sum, const struct tensor *out)
{
    norm(p, sum, &y->moe_post_norm, p->m->n_embd, sum);
    add(p, dense, sum, out);
}

/* out = x + what layer y's feed-forward part h comes to. h is overwritten. */
static void add_ffn(const struct pass *p, const struct layer *y, const struct tensor *h, const struct tensor *out)
{
    if (y->ffn_post_norm.buffer)
        norm(p, h, &y->ffn_post_norm, p->m->n_embd, h);
    add_branch(p, h, out);
}

/* Whether layer i goes on with the kept tokens alone once its attention has seen all. */
static bool is_cut(const struct pass *p, int64_t i)
{
    return i == p->m->n_layer - 1 && p->n_out < p->n;
}

/* What the next layer's router will see, as far as it is known: that layer's norm of the state, with the feed-forward
 * part of the layer before. What the next layer's attention will add is left out. */
struct router_input {
    const struct pass *p;
    const struct layer *y;      /* the next layer with a router */
    const struct layer *before; /* the layer with experts that is running; NULL: none is */
    const struct tensor *dense; /* its dense branch; NULL: none */
    struct tensor router_x;     /* [n_embd] for each row of p->x */
};

/* As moe_next.fill_router_x. */
static void fill_router_x(void *user, const struct tensor *sum)
{
    const struct router_input *r = user;
    const struct pass *p = r->p;
    const struct tensor *x = &p->x;
    if (sum->buffer) {
        if (r->dense)
            join_dense(p, r->before, r->dense, sum, sum);
        add_ffn(p, r->before, sum, &r->router_x);
        x = &r->router_x;
    }
    norm(p, x, r->y->router_norm.buffer ? &r->y->router_norm : &r->y->ffn_norm, p->m->n_embd, &r->router_x);
}

/* Whether no device reads experts of the layer when they are needed. */
static bool is_resident(const struct model *m, int moe_layer)
{
    bool all = true;
    for (int i = 0; i < m->n_device; i++)
        all &= !experts_is_fetching(m->devices[i].experts, moe_layer);
    return all;
}

/* The layer that has the first feed-forward part from layer i on: it, or the next one if layer i has none. */
static int64_t feeding_layer(const struct pass *p, int64_t i)
{
    return i < p->stage->end && !p->m->layers[i].ffn_norm.buffer ? i + 1 : i;
}

/* Fills `next` to predict the choice of layer i or, if it has no feed-forward part, of the next one; `before` has
 * experts and is running, or NULL. False: the stage has none, or nobody wants a prediction. Where a layer goes on with
 * few tokens, what all would choose is not read ahead. */
static bool find_next(const struct pass *p, int64_t i, const struct layer *before, const struct tensor *dense,
                      struct router_input *r, struct moe_next *next)
{
    const struct model *m = p->m;
    i = feeding_layer(p, i);
    const struct layer *y = i < p->stage->end ? &m->layers[i] : NULL;
    const struct moe_trace *trace = p->p->trace;
    if (!y || !y->is_moe)
        return false;
    bool prefetch = p->p->prefetch && !is_cut(p, i) && !is_resident(m, y->moe.experts_layer);
    *r = (struct router_input){p, y, before, dense, shaped(p->w->next_x, m->n_embd, p->x.ne[1])};
    *next = (struct moe_next){&y->moe, r->router_x, prefetch, fill_router_x, r};
    return prefetch || (trace && trace->predicted);
}

/* Prefetches for experts that follow none: their reads begin while attention computes. */
static err_code prefetch_first(const struct pass *p, int64_t i, struct err *e)
{
    struct moe_next next;
    struct router_input r;
    if (!p->m->layers[i].attn_norm.buffer || (i > p->stage->first && p->m->layers[i - 1].is_moe) ||
        !find_next(p, i, NULL, NULL, &r, &next) || !next.prefetch)
        return ERR_OK;
    return moe_predict(p->w->moe, &next, NULL, e);
}

/* Lists what each of the batch's first tokens, which were sampled, may have substitutes by in a MoE layer. Returns how
 * many tokens that are; 0: none may. */
static int64_t list_car(const struct pass *p, int moe_layer)
{
    int64_t n = 0;
    bool any = false;
    for (int64_t r = 0; r < p->n_rows && p->rows[r].is_decode && n < MOE_MAX_CAR; r++) {
        const struct model_rows *row = &p->rows[r];
        if (p->out_rows.buffer && row->n_out == 0)
            continue;
        bool applies = car_applies(&row->car, row->state->pos, moe_layer, p->m->n_moe_layer);
        p->w->car[n++] = applies ? &row->car : NULL;
        any |= applies;
    }
    return any ? n : 0;
}

/* Whether all texts of a batch add just a token that was sampled. */
static bool is_decode(const struct pass *p)
{
    for (int64_t r = 0; r < p->n_rows; r++)
        if (!p->rows[r].is_decode)
            return false;
    return true;
}

/* h = the feed-forward part of layer i at p->x: dense, experts, or the two side by side. */
static err_code feed_forward(const struct pass *p, int64_t i, const struct tensor *h, struct err *e)
{
    const struct model *m = p->m;
    const struct layer *y = &m->layers[i];
    struct moe_work *w = p->w->moe;
    const bool has_dense = y->ffn.down;
    struct moe_next next;
    struct router_input r;
    struct moe_run run = {.sort_cutoff = p->p->sort_cutoff,
                          .trace = p->p->trace,
                          .cancel = &p->p->cancel,
                          .car = p->w->car,
                          .is_decode = is_decode(p)};
    norm(p, &p->x, &y->ffn_norm, m->n_embd, h);
    if (!y->is_moe) {
        dense_ffn(p, &y->ffn, h);
        return ERR_OK;
    }
    run.next = find_next(p, i + 1, y, has_dense ? h : NULL, &r, &next) ? &next : NULL;
    run.n_car = list_car(p, y->moe.experts_layer);
    if (!has_dense)
        return moe_forward(w, &y->moe, h, h, h, &run, e);
    struct tensor h2 = shaped(p->w->h2, m->n_embd, h->ne[1]), router_x = shaped(p->w->router_x, m->n_embd, h->ne[1]);
    dense_ffn(p, &y->ffn, h);
    norm(p, h, &y->dense_post_norm, m->n_embd, h);
    norm(p, &p->x, &y->moe_norm, m->n_embd, &h2);
    norm(p, &p->x, &y->router_norm, m->n_embd, &router_x);
    TRY(moe_forward(w, &y->moe, &h2, &router_x, &h2, &run, e));
    join_dense(p, y, h, &h2, h);
    return ERR_OK;
}

/* x += mixer(norm(x)): attention or the recurrent layer that stands for it */
static void mix(const struct pass *p, int64_t i)
{
    const struct layer *y = &p->m->layers[i];
    int64_t n_embd = p->m->n_embd;
    struct tensor h = shaped(p->h, n_embd, p->n);
    if (!y->attn_norm.buffer)
        return;
    norm(p, &p->x, &y->attn_norm, n_embd, &h);
    if (y->is_recurrent)
        recurrent(p, i, &h);
    else if (y->attn.is_latent)
        latent_attention(p, &y->attn, &p->pool->layers[i], &h);
    else
        attention(p, &y->attn, &p->pool->layers[y->attn.kv_layer], &h);
    if (y->attn_post_norm.buffer)
        norm(p, &h, &y->attn_post_norm, n_embd, &h);
    add_branch(p, &h, &p->x);
}

/* Cuts the residual stream to the tokens whose results are kept. */
static void cut_to_out(struct pass *p)
{
    struct tensor x = p->x;
    p->out_rows = part(p->w->out_rows, 0, p->n_out);
    p->x = shaped(p->h, p->m->n_embd, p->n_out);
    p->h = x;
    if (p->n_out)
        backend_enqueue(p->b, &(struct op){.kind = OP_SLICE, .in = {x, p->out_rows}, .out = {p->x}});
}

static void note_done(const struct pass *p, int64_t n)
{
    if (p->p->n_done)
        *p->p->n_done += n;
}

/* One layer over the residual stream of a batch. */
static err_code layer(struct pass *p, int64_t i, struct err *e)
{
    const struct layer *y = &p->m->layers[i];
    int64_t n_embd = p->m->n_embd;
    TRY(prefetch_first(p, i, e));
    for (int64_t first = 0; first < p->n; first += p->w->sizes.n_ubatch) {
        TRY(cancel_check(&p->p->cancel, e));
        const struct pass ubatch = ubatch_from(p, first);
        mix(&ubatch, i);
        note_done(p, ubatch.n);
    }
    if (is_cut(p, i))
        cut_to_out(p);
    note_done(p, p->n);
    if (p->x.ne[1] == 0)
        return ERR_OK;
    if (y->ffn_norm.buffer) {
        struct tensor h = shaped(p->h, n_embd, p->x.ne[1]);
        TRY(feed_forward(p, i, &h, e));
        add_ffn(p, y, &h, &p->x);
    }
    if (y->token_gate)
        token_embedding(p, i, y);
    if (y->out_scale.buffer)
        scale(p, &p->x, 1, &y->out_scale);
    return ERR_OK;
}

static err_code report_hidden(const struct pass *p, int64_t i, struct err *e)
{
    if (!p->p->hidden || p->x.ne[1] == 0)
        return ERR_OK;
    struct tensor last = tensor_rows(p->x, p->x.ne[1] - 1, 1);
    TRY(backend_read(p->b, &last, p->w->host_x, e));
    p->p->hidden(p->p->hidden_user, i, p->w->host_x);
    return ERR_OK;
}

/* The tokens' embeddings for all layers: (norm(proj . x / sqrt(n_embd)) + row * sqrt(n_token_embd)) / sqrt(2) */
static void token_embeddings(const struct pass *p)
{
    const struct model *m = p->m;
    int64_t n = m->n_token_embd * m->n_layer;
    struct tensor rows = shaped(p->w->token_embed, n, p->n), proj = shaped(p->w->token_proj, n, p->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_EMBED,
                                       .in = {p->ids},
                                       .out = {rows},
                                       .weight = {m->token_embed},
                                       .scale = sqrtf((float)m->n_token_embd)});
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL, .in = {p->x}, .out = {proj}, .weight = {m->token_embed_proj}});
    scale(p, &proj, 1 / sqrtf((float)m->n_embd), NULL);
    norm(p, &proj, &m->token_embed_norm, m->n_token_embd, &proj);
    add(p, &rows, &proj, &rows);
    scale(p, &rows, 1 / sqrtf(2), NULL);
}

static void rope_tables(struct pass *p)
{
    struct tensor room = p->w->rope;
    for (int i = 0; i < p->m->n_rope; i++) {
        const struct rope_table *r = &p->m->ropes[i];
        p->rope[i] = shaped(room, r->n_rot, p->n);
        room.off_bytes += tensor_bytes(&p->rope[i]);
        backend_enqueue(p->b, &(struct op){.kind = OP_ROPE_TABLE,
                                           .in = {p->pos},
                                           .out = {p->rope[i]},
                                           .vec = {r->divisors},
                                           .rope_table = r->angles});
    }
}

/* ---- batches --------------------------------------------------------------------------------------------------- */

/* Writes a list of n numbers, one for each token or result, from host_rows; the list in device memory. */
static struct tensor write_list(const struct pass *p, const struct tensor *list, int64_t n)
{
    const struct tensor t = part(*list, 0, n);
    if (n)
        backend_write(p->b, &t, p->w->host_rows);
    return t;
}

static void write_positions(struct pass *p)
{
    int32_t *list = p->w->host_rows;
    int64_t t = 0, n_page = 0, n_out = 0;
    for (int64_t r = 0; r < p->n_rows; r++)
        for (int64_t i = 0; i < p->rows[r].n; i++)
            list[t++] = p->rows[r].ids[i];
    p->ids = write_list(p, &p->w->ids, t);
    t = 0;
    for (int64_t r = 0; r < p->n_rows; r++)
        for (int64_t i = 0; i < p->rows[r].n; i++)
            list[t++] = (int32_t)(p->rows[r].state->pos + i);
    p->pos = write_list(p, &p->w->pos, t);
    t = 0;
    for (int64_t r = 0; r < p->n_rows; r++) {
        for (int64_t i = 0; i < p->rows[r].n; i++)
            list[t++] = (int32_t)n_page;
        n_page += n_blocks(p->rows[r].state->pos + p->rows[r].n);
    }
    p->table = write_list(p, &p->w->table, t);
    t = 0;
    for (int64_t r = 0; r < p->n_rows; t += p->rows[r++].n)
        for (int64_t i = p->rows[r].n - p->rows[r].n_out; i < p->rows[r].n; i++)
            list[n_out++] = (int32_t)(t + i);
    write_list(p, &p->w->out_rows, n_out);
}

/* Writes where each token's recurrent state comes from and goes to: from one segment of its text to the next. In each
 * ubatch a segment goes on from its own page. */
static void write_slots(struct pass *p)
{
    int64_t t = 0;
    int32_t *list = p->w->host_rows;
    if (!p->w->to.buffer)
        return;
    for (int64_t r = 0; r < p->n_rows; r++) {
        const struct model_state *s = p->rows[r].state;
        const struct text_segment *g = s->segments;
        for (int64_t pos = s->pos; pos < s->pos + p->rows[r].n; pos++) {
            g += pos == g->end;
            list[t++] = g->slot;
        }
    }
    p->to = write_list(p, &p->w->to, t);
    t = 0;
    for (int64_t r = 0; r < p->n_rows; r++) {
        const struct model_state *s = p->rows[r].state;
        const struct text_segment *g = s->segments;
        int32_t from = s->slot;
        for (int64_t pos = s->pos; pos < s->pos + p->rows[r].n; pos++) {
            if (pos == g->end)
                from = g++->slot;
            list[t++] = from;
            from = g->slot;
        }
    }
    p->from = write_list(p, &p->w->from, t);
}

static void write_page_tables(const struct pass *p)
{
    for (int kind = 0; kind < p->pool->n_cache_kind; kind++) {
        int64_t n = 0;
        for (int64_t r = 0; r < p->n_rows; r++) {
            const struct model_state *s = p->rows[r].state;
            int64_t n_block = n_blocks(s->pos + p->rows[r].n);
            memcpy(p->w->host_pages + n, s->kinds[kind].page, (size_t)n_block * sizeof *p->w->host_pages);
            n += n_block;
        }
        const struct tensor t = part(tensor_rows(p->w->pages, kind, 1), 0, n);
        backend_write(p->b, &t, p->w->host_pages);
    }
}

/* Takes up the work of a stage. */
static void enter(struct pass *p, int stage)
{
    p->stage = &p->m->stages[stage];
    p->w = &p->work->stages[stage];
    p->b = p->stage->device;
}

/* Work space for page tables of the texts' whole contexts, and for the inputs that are kept. */
static err_code fit_work(struct pass *p, struct err *e)
{
    int64_t n_page = 0, n_kept = 0;
    for (int64_t r = 0; r < p->n_rows; r++) {
        n_page += n_blocks(p->rows[r].state->n_ctx);
        n_kept += p->rows[r].is_draft ? p->rows[r].n : 0;
    }
    p->keeps_inputs = n_kept > 0 && model_is_recurrent(p->m);
    for (int s = 0; s < p->m->n_stage; s++) {
        enter(p, s);
        TRY(work_fit_pages(p->w, n_page, p->pool->n_cache_kind, e));
        if (!p->keeps_inputs || !p->w->sizes.is_recurrent)
            continue;
        p->w->inputs.pool = NULL;
        TRY(work_fit_inputs(p->w, n_kept, count_recurrent(p->m, p->stage->first, p->stage->end), e));
    }
    return ERR_OK;
}

/* to = from, which lies on another device */
static err_code bring(const struct pass *p, struct backend *device, const struct tensor *from, const struct tensor *to,
                      struct err *e)
{
    TRY(backend_read(device, from, p->work->crossing, e));
    backend_write(p->b, to, p->work->crossing);
    return ERR_OK;
}

/* Brings over what the layers before have left, and what all layers use. */
static err_code cross(struct pass *p, const struct pass *before, struct err *e)
{
    const struct model *m = p->m;
    int64_t n_token_all = m->n_token_embd * m->n_layer;
    struct tensor room = p->w->rope;
    TRY(bring(p, before->b, &before->x, &p->x, e));
    for (int i = 0; i < m->n_rope; i++) {
        p->rope[i] = shaped(room, m->ropes[i].n_rot, p->n);
        room.off_bytes += tensor_bytes(&p->rope[i]);
        TRY(bring(p, before->b, &before->rope[i], &p->rope[i], e));
    }
    if (p->w->chosen.buffer && !sees_all(p, p->w->chosen.ne[0])) {
        const struct tensor from = tensor_rows(before->w->chosen, 0, p->n), to = tensor_rows(p->w->chosen, 0, p->n);
        TRY(bring(p, before->b, &from, &to, e));
    }
    if (n_token_all == 0)
        return ERR_OK;
    const struct tensor from = shaped(before->w->token_embed, n_token_all, p->n),
                        to = shaped(p->w->token_embed, n_token_all, p->n);
    return bring(p, before->b, &from, &to, e);
}

/* x = embedding(ids), and what all layers use */
static void embed(struct pass *p)
{
    const struct model *m = p->m;
    backend_enqueue(
        p->b,
        &(struct op){.kind = OP_EMBED, .in = {p->ids}, .out = {p->x}, .weight = {m->embed}, .scale = m->embed_scale});
    rope_tables(p);
    if (m->n_token_embd)
        token_embeddings(p);
}

/* x as it goes into the stage's first layer. */
static err_code begin_stage(struct pass *p, int stage, struct err *e)
{
    const struct pass before = *p;
    enter(p, stage);
    p->x = shaped(p->w->x, p->m->n_embd, p->n);
    p->h = shaped(p->w->h, p->m->n_embd, p->n);
    write_positions(p);
    write_slots(p);
    write_page_tables(p);
    if (stage > 0)
        return cross(p, &before, e);
    embed(p);
    return ERR_OK;
}

static err_code run(struct pass *p, struct err *e)
{
    const struct model *m = p->m;
    for (int s = 0; s < m->n_stage; s++) {
        TRY(begin_stage(p, s, e));
        for (int64_t i = p->stage->first; i < p->stage->end; i++) {
            TRY(layer(p, i, e));
            TRY(report_hidden(p, i, e));
        }
    }
    struct stage_work *last = &p->work->stages[m->n_stage - 1];
    last->kept = p->x;
    last->normed = p->h;
    if (min_i64(p->n_out, p->p->n_logits) > 0)
        model_logits(m, p->work, 0, min_i64(p->n_out, p->p->n_logits));
    TRY(backend_wait(p->b, backend_fence(p->b), e));
    return cancel_check(&p->p->cancel, e); /* operations may have left work out */
}

static enum batch_kind kind_of(const struct pass *p, int64_t r)
{
    return p->rows[r].is_draft ? BATCH_DRAFT : p->p->in_place ? BATCH_IN_PLACE : BATCH_KEPT;
}

/* All texts get their pages, or none. */
static err_code begin(const struct pass *p, struct err *e)
{
    for (int64_t r = 0; r < p->n_rows; r++) {
        err_code code = state_begin(p->rows[r].state, p->rows[r].n, kind_of(p, r), e);
        while (code != ERR_OK && r-- > 0)
            state_abort(p->rows[r].state);
        TRY(code);
    }
    return ERR_OK;
}

static void commit(const struct pass *p)
{
    int64_t row = 0;
    for (int s = 0; p->keeps_inputs && s < p->m->n_stage; s++) {
        struct kept_inputs *k = &p->work->stages[s].inputs;
        k->pool = p->pool;
        k->tick = p->pool->tick;
    }
    for (int64_t r = 0; r < p->n_rows; r++) {
        const struct model_rows *x = &p->rows[r];
        state_commit(x->state, x->n, kind_of(p, r));
        x->state->draft.row = row;
        x->state->draft.tick = p->pool->tick;
        row += x->is_draft ? x->n : 0;
    }
}

err_code model_forward(const struct model *m, struct model_work *w, const struct model_forward_params *params,
                       const struct model_rows *rows, int64_t n_rows, struct err *e)
{
    struct pass p = {.m = m, .pool = rows[0].state->pool, .work = w, .p = params, .rows = rows, .n_rows = n_rows};
    for (int64_t r = 0; r < n_rows; r++) {
        assert(rows[r].n >= 1 && rows[r].n_out >= 0 && rows[r].n_out <= rows[r].n && rows[r].state->pool == p.pool);
        assert(!rows[r].is_decode || (rows[r].n == 1 && (r == 0 || rows[r - 1].is_decode)));
        p.n += rows[r].n;
        p.n_out += rows[r].n_out;
    }
    assert(p.n >= 1 && p.n <= w->stages[0].sizes.n_batch);
    TRY(fit_work(&p, e));
    TRY(begin(&p, e));
    err_code code = run(&p, e);
    for (int64_t r = 0; r < n_rows && code != ERR_OK; r++)
        state_fail(rows[r].state);
    TRY(code);
    commit(&p);
    return ERR_OK;
}

/* ---- going back ------------------------------------------------------------------------------------------------ */

/* Takes a stage's recurrent layers through the first n tokens of a text's last batch again. */
static err_code recur_stage(struct pass *p, const struct model_state *s, struct err *e)
{
    int64_t n = p->n, n_recurrent = 0;
    if (!p->w->sizes.is_recurrent)
        return ERR_OK;
    for (int64_t t = 0; t < n; t++)
        p->w->host_rows[t] = s->draft.slot;
    p->from = write_list(p, &p->w->from, n);
    for (int64_t t = 0; t < n; t++)
        p->w->host_rows[t] = s->slot;
    p->to = write_list(p, &p->w->to, n);
    for (int64_t i = p->stage->first; i < p->stage->end; i++) {
        const struct recurrent *r = &p->m->layers[i].recurrent;
        if (!p->m->layers[i].is_recurrent)
            continue;
        const struct recurrent_inputs in = kept_inputs(p->w, r, n_recurrent++, s->draft.row, n);
        const struct tensor out = shaped(p->w->attn, r->n_out, n);
        recur(p, r, &s->pool->layers[i], &in, &out);
    }
    return backend_wait(p->b, backend_fence(p->b), e);
}

static err_code recur_again(const struct model *m, struct model_work *w, struct model_state *s, int64_t n,
                            struct err *e)
{
    struct pass p = {.m = m, .pool = s->pool, .work = w, .n = n};
    for (int i = 0; i < m->n_stage; i++) {
        enter(&p, i);
        TRY(recur_stage(&p, s, e));
    }
    return ERR_OK;
}

int64_t model_go_back(const struct model *m, struct model_work *w, struct model_state *s, int64_t pos)
{
    struct err e;
    const struct kept_inputs *k = w ? &w->stages[0].inputs : NULL; /* there was no memory for another */
    bool is_kept = k && s->draft.is_open && k->pool == s->pool && k->tick == s->draft.tick;
    int64_t first = s->draft.pos;
    if (!is_kept || pos < first || pos >= s->pos || !state_take_back(s, pos))
        return model_state_truncate(s, pos);
    if (pos > first && recur_again(m, w, s, pos - first, &e) != ERR_OK) {
        bool ok = state_take_back(s, first); /* the state before is still there */
        assert(ok);
    }
    return s->pos;
}

void model_logits(const struct model *m, struct model_work *work, int64_t first, int64_t n)
{
    struct stage_work *w = &work->stages[work->n_stage - 1];
    assert(n >= 1 && n <= w->sizes.n_logits);
    const struct pass p = {.m = m, .b = w->device};
    struct tensor x = tensor_rows(w->kept, first, n), h = shaped(w->normed, m->n_embd, n);
    struct tensor y = shaped(w->logits, m->n_vocab, n);
    norm(&p, &x, &m->out_norm, m->n_embd, &h);
    backend_enqueue(p.b, &(struct op){.kind = OP_MATMUL, .in = {h}, .out = {y}, .weight = {m->output}});
    if (m->logit_scale != 1)
        scale(&p, &y, m->logit_scale, NULL);
    if (m->logit_softcap > 0)
        backend_enqueue(p.b, &(struct op){.kind = OP_SOFTCAP, .in = {y}, .out = {y}, .scale = m->logit_softcap});
}

err_code model_logits_row(const struct model_work *w, int64_t i, float *logits, struct err *e)
{
    const struct stage_work *last = &w->stages[w->n_stage - 1];
    const struct tensor y = tensor_rows(last->logits, i, 1);
    return backend_read(last->device, &y, logits, e);
}
