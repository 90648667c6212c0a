/* The forward pass: tokens in, logits out.
 *
 *   x = embedding(ids)
 *   for each layer:   x += attention(norm(x));   x += ffn_or_moe(norm(x))
 *   logits = output(norm(x))
 *
 * Everything is enqueued on the model's device; only the MoE layers of a model whose experts are not all resident
 * wait for it. The last layer computes its second half, and the output its product, only for the rows of logits that
 * were asked for.
 *
 * Routed experts take all tokens of a call at once, so that each is read once; what is before and beside them takes a
 * part of the tokens at a time, so that its work space stays small. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "model/state.h"

struct model_work {
    struct backend *device;
    struct arena arena, batch_arena;
    int64_t n_batch, n_ubatch, n_logits;

    /* of all tokens of a call */
    struct tensor ids, pos;                /* [n_batch] */
    struct tensor rope[MODEL_MAX_ROPE];    /* [n_rot][n_batch] */
    struct tensor x, h;                    /* residual stream and a branch, [n_embd][n_batch] */
    struct tensor guess_x;                 /* what the next layer's router would see now, [n_embd][n_batch] */
    struct tensor h2, router_x;            /* a second branch and what its router sees, [n_embd][n_batch] */
    struct tensor token_embed, token_proj; /* [n_layer * n_token_embd][n_batch] */
    struct tensor token_gate, token_slice; /* [n_token_embd][n_batch] */
    struct moe_work moe;
    int32_t *host_pos;

    /* of a part of them */
    struct tensor q_a, q_pe, k_pe;  /* latent attention: [n_q_latent], [n_head * n_rot], [n_rot], all [n_ubatch] */
    struct tensor mixed, convolved; /* recurrent layers: q, k and v, [n_mixed][n_ubatch] */
    struct tensor alpha, beta;      /* recurrent layers: [n_head_v][n_ubatch] */
    struct tensor z;                /* what gates a mixer's result, [n_head * head_dim_v][n_ubatch] */
    struct tensor q, k, v, attn;    /* heads, [n_head * head_dim][n_ubatch] */
    struct tensor gate, up;         /* dense feed-forward, [n_ff][n_ubatch] */

    struct tensor logits; /* [n_vocab][n_logits] */
    struct tensor kept;   /* the rows of x that the last call was asked to keep */
    float *host_x;
};

/* ---- work space ---------------------------------------------------------------------------------------------- */

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static err_code create_moe_work(struct model_work *w, const struct model *m, struct err *e)
{
    struct moe_layer *all = mem_calloc((size_t)m->n_moe_layer, sizeof *all);
    if (!all)
        return err_nomem(e, (size_t)m->n_moe_layer * sizeof *all, "work space");
    int n = 0;
    for (int64_t i = 0; i < m->n_layer; i++)
        if (m->layers[i].is_moe)
            all[n++] = m->layers[i].moe;
    err_code code = moe_work_create(&w->moe, w->device, all, n, w->n_batch, &w->batch_arena, e);
    mem_free(all);
    return code;
}

struct work_tensor {
    struct tensor *t;
    enum elem_type type;
    int64_t ne0, ne1;
};

static err_code create_tensors(const struct model_work *w, const struct work_tensor *all, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        TRY(backend_tensor_create(w->device, all[i].type, all[i].ne0, all[i].ne1, 1, MEM_SCRATCH, all[i].t, e));
    return ERR_OK;
}

static err_code create_part(struct model_work *w, const struct model *m, struct err *e)
{
    int64_t n_q = 1, n_k = 1, n_v = 1, n_o = 1, n_ff = 1;
    int64_t n_mixed = 1, n_head_v = 1, n_q_a = 1, n_q_pe = 1, n_k_pe = 1;
    for (int64_t i = 0; i < m->n_layer; i++) {
        const struct attention *a = &m->layers[i].attn;
        const struct delta_net *d = &m->layers[i].delta;
        n_q_a = max_i64(n_q_a, a->n_q_latent);
        n_q_pe = max_i64(n_q_pe, a->n_head * a->n_rot);
        n_k_pe = max_i64(n_k_pe, a->n_rot);
        n_mixed = max_i64(n_mixed, d->n_mixed);
        n_head_v = max_i64(n_head_v, d->n_head_v);
        n_o = max_i64(n_o, max_i64(d->n_head_v * d->dv, a->n_head * max_i64(a->n_nope, a->n_value)));
        n_q = max_i64(n_q, a->n_head * a->head_dim);
        n_k = max_i64(n_k, a->n_head_kv * a->head_dim);
        n_v = max_i64(n_v, a->n_head_kv * a->head_dim_v);
        n_o = max_i64(n_o, a->n_head * a->head_dim_v);
        n_ff = max_i64(n_ff, m->layers[i].ffn.n_ff);
    }
    const struct work_tensor all[] = {
        {&w->q_a, ELEM_F32, n_q_a, w->n_ubatch},
        {&w->q_pe, ELEM_F32, n_q_pe, w->n_ubatch},
        {&w->k_pe, ELEM_F32, n_k_pe, w->n_ubatch},
        {&w->mixed, ELEM_F32, n_mixed, w->n_ubatch},
        {&w->convolved, ELEM_F32, n_mixed, w->n_ubatch},
        {&w->alpha, ELEM_F32, n_head_v, w->n_ubatch},
        {&w->beta, ELEM_F32, n_head_v, w->n_ubatch},
        {&w->z, ELEM_F32, n_o, w->n_ubatch},
        {&w->q, ELEM_F32, n_q, w->n_ubatch},
        {&w->k, ELEM_F32, n_k, w->n_ubatch},
        {&w->v, ELEM_F32, n_v, w->n_ubatch},
        {&w->attn, ELEM_F32, n_o, w->n_ubatch},
        {&w->gate, ELEM_F32, n_ff, w->n_ubatch},
        {&w->up, ELEM_F32, n_ff, w->n_ubatch},
        {&w->logits, ELEM_F32, m->n_vocab, w->n_logits},
    };
    return create_tensors(w, all, sizeof all / sizeof *all, e);
}

static err_code create_batch(struct model_work *w, const struct model *m, struct err *e)
{
    int64_t n = w->n_batch, n_token = max_i64(1, m->n_token_embd), n_branch = 1;
    for (int64_t i = 0; i < m->n_layer; i++)
        if (m->layers[i].is_moe && m->layers[i].ffn.down)
            n_branch = m->n_embd;
    const struct work_tensor all[] = {
        {&w->ids, ELEM_I32, n, 1},
        {&w->pos, ELEM_I32, n, 1},
        {&w->x, ELEM_F32, m->n_embd, n},
        {&w->h, ELEM_F32, m->n_embd, n},
        {&w->guess_x, ELEM_F32, m->n_moe_layer ? m->n_embd : 1, n},
        {&w->h2, ELEM_F32, n_branch, n},
        {&w->router_x, ELEM_F32, n_branch, n},
        {&w->token_embed, ELEM_F32, n_token * m->n_layer, n},
        {&w->token_proj, ELEM_F32, n_token * m->n_layer, n},
        {&w->token_gate, ELEM_F32, n_token, n},
        {&w->token_slice, ELEM_F32, n_token, n},
    };
    w->host_pos = arena_calloc(&w->batch_arena, (size_t)n, sizeof *w->host_pos);
    if (!w->host_pos)
        return err_nomem(e, (size_t)n * sizeof *w->host_pos, "work space");
    TRY(create_tensors(w, all, sizeof all / sizeof *all, e));
    for (int i = 0; i < m->n_rope; i++)
        TRY(backend_tensor_create(w->device, ELEM_F32, m->ropes[i].n_rot, n, 1, MEM_SCRATCH, &w->rope[i], e));
    return m->n_moe_layer ? create_moe_work(w, m, e) : ERR_OK;
}

enum { N_BATCH_TENSOR = 11 + MODEL_MAX_ROPE };

static void batch_tensors(struct model_work *w, struct tensor *out[N_BATCH_TENSOR])
{
    struct tensor *all[] = {&w->ids,      &w->pos,         &w->x,          &w->h,          &w->guess_x,    &w->h2,
                            &w->router_x, &w->token_embed, &w->token_proj, &w->token_gate, &w->token_slice};
    _Static_assert(sizeof all / sizeof *all + MODEL_MAX_ROPE == N_BATCH_TENSOR, "all of them");
    memcpy(out, all, sizeof all);
    for (size_t i = 0; i < MODEL_MAX_ROPE; i++)
        out[sizeof all / sizeof *all + i] = &w->rope[i];
}

size_t model_work_token_bytes(struct model_work *w)
{
    struct tensor *all[N_BATCH_TENSOR];
    size_t n = moe_work_bytes(&w->moe);
    batch_tensors(w, all);
    for (int i = 0; i < N_BATCH_TENSOR; i++)
        n += all[i]->buffer ? tensor_bytes(all[i]) : 0;
    return n / (size_t)w->n_batch;
}

static void close_batch(struct model_work *w)
{
    struct tensor *all[N_BATCH_TENSOR];
    batch_tensors(w, all);
    for (int i = 0; i < N_BATCH_TENSOR; i++)
        backend_buffer_close(w->device, &all[i]->buffer);
    moe_work_close(&w->moe, w->device);
    arena_close(&w->batch_arena);
    w->n_batch = 0;
}

err_code model_work_resize(struct model_work *w, const struct model *m, int64_t n_batch, struct err *e)
{
    close_batch(w);
    w->n_batch = n_batch;
    err_code code = create_batch(w, m, e);
    if (code != ERR_OK)
        close_batch(w);
    return code;
}

err_code model_work_create(struct model_work **out, const struct model *m, int64_t n_batch, int64_t n_logits,
                           struct err *e)
{
    err_code code;
    *out = NULL;
    struct model_work *w = mem_calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w, "work space");
    *w = (struct model_work){
        .device = m->device, .n_ubatch = n_batch < MODEL_UBATCH ? n_batch : MODEL_UBATCH, .n_logits = n_logits};
    w->host_x = arena_calloc(&w->arena, (size_t)m->n_embd, sizeof *w->host_x);
    if (!w->host_x) {
        code = err_nomem(e, (size_t)m->n_embd * sizeof *w->host_x, "work space");
        goto out;
    }
    TRY_OUT(create_part(w, m, e));
    TRY_OUT(model_work_resize(w, m, n_batch, e));
out:
    if (code != ERR_OK)
        model_work_close(&w);
    *out = w;
    return code;
}

void model_work_close(struct model_work **out)
{
    struct model_work *w = *out;
    if (!w)
        return;
    struct tensor *part[] = {&w->q_a, &w->q_pe, &w->k_pe, &w->mixed, &w->convolved, &w->alpha, &w->beta,  &w->z,
                             &w->q,   &w->k,    &w->v,    &w->attn,  &w->gate,      &w->up,    &w->logits};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        backend_buffer_close(w->device, &part[i]->buffer);
    close_batch(w);
    arena_close(&w->arena);
    mem_free(w);
    *out = NULL;
}

/* ---- blocks -------------------------------------------------------------------------------------------------- */

/* One call: everything that its blocks need to know. Tensors are cut to the call's number of tokens. */
struct pass {
    const struct model *m;
    struct model_state *s;
    struct model_work *w;
    const struct model_forward_params *p;
    struct backend *b;
    int64_t n, end;            /* tokens; the position after the last */
    struct tensor ids, pos, x; /* of those tokens */
    struct tensor rope[MODEL_MAX_ROPE];
};

/* The tokens from `first` on, as many as a part has or there are. */
static struct pass part_from(const struct pass *p, int64_t first)
{
    struct pass part = *p;
    part.n = p->n - first < p->w->n_ubatch ? p->n - first : p->w->n_ubatch;
    part.end = p->end - p->n + first + part.n;
    part.x = tensor_rows(p->x, first, part.n);
    part.pos.off_bytes += (size_t)first * sizeof(int32_t);
    part.pos.ne[0] = part.n;
    for (int i = 0; i < p->m->n_rope; i++)
        part.rope[i] = tensor_rows(p->rope[i], first, part.n);
    return part;
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

/* out = x + residual_scale * y, the residual stream and a branch y, which is done with */
static void add_branch(const struct pass *p, const struct tensor *y, const struct tensor *out)
{
    if (p->m->residual_scale != 1)
        scale(p, y, p->m->residual_scale, NULL);
    add(p, &p->x, y, out);
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

/* The keys and values of the call's tokens into the layer's cache. */
static void store_kv(const struct pass *p, const struct attention *a, const struct layer_state *kv,
                     const struct tensor *k, const struct tensor *v)
{
    static const struct tensor no_weights;
    if (a->v_is_k)
        norm(p, k, &no_weights, a->head_dim, v);
    else if (a->has_unit_v_norm)
        norm(p, v, &no_weights, a->head_dim_v, v);
    norm_and_rope(p, a, a->rope_table, k, &a->k_norm, a->k_norm_len);
    backend_enqueue(p->b, &(struct op){.kind = OP_KV_STORE, .in = {*k, p->pos}, .state = {kv->k}});
    backend_enqueue(p->b, &(struct op){.kind = OP_KV_STORE, .in = {*v, p->pos}, .state = {kv->v}});
}

/* h = o . (attention(q . h, k . h, v . h) * sigmoid(gate . h)) */
static void attention(const struct pass *p, const struct attention *a, const struct layer_state *kv,
                      const struct tensor *h)
{
    struct tensor q = shaped(p->w->q, a->n_head * a->head_dim, p->n);
    struct tensor k = shaped(p->w->k, a->n_head_kv * a->head_dim, p->n);
    struct tensor v = shaped(p->w->v, a->n_head_kv * a->head_dim_v, p->n);
    struct tensor out = shaped(p->w->attn, a->n_head * a->head_dim_v, p->n);
    struct tensor z = shaped(p->w->z, a->n_head * a->head_dim_v, p->n);
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
                                       .in = {q, p->pos},
                                       .out = {out},
                                       .state = {kv->k, kv->v},
                                       .vec = {a->sinks},
                                       .attention = {a->n_head, a->scale, p->end, a->window, a->chunked}});
    if (a->gate)
        backend_enqueue(p->b, &(struct op){.kind = OP_ACT_MUL, .in = {z, out}, .out = {out}, .act = ACT_SIGMOID});
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL, .in = {out}, .out = {*h}, .weight = {a->o}, .vec = {a->o_bias}});
    if (a->out_scale != 0)
        scale(p, h, a->out_scale, NULL);
}

/* Places a part of each head's row: copied, or through a matrix for each head. */
static void heads(const struct pass *p, struct weight *w, const struct tensor *x, int64_t in_off, int64_t n_in,
                  const struct tensor *out, int64_t out_off, int64_t n_out, int64_t n_head)
{
    backend_enqueue(p->b, &(struct op){.kind = OP_HEADS,
                                       .in = {*x},
                                       .out = {*out},
                                       .weight = {w},
                                       .heads = {.n_head = n_head,
                                                 .in_dim = x->ne[0] / n_head,
                                                 .in_off = in_off,
                                                 .n_in = n_in,
                                                 .out_dim = out->ne[0] / n_head,
                                                 .out_off = out_off,
                                                 .n_out = n_out}});
}

/* h = o . v_b . attention(k_b . q . h, latent): latent attention, with the keys' and values' products folded away */
static void latent_attention(const struct pass *p, const struct attention *a, const struct layer_state *kv,
                             const struct tensor *h)
{
    int64_t n_head = a->n_head, n_rot = a->n_rot, row = n_rot + a->n_latent, n = p->n;
    struct tensor q_in = *h, q_a = shaped(p->w->q_a, a->n_q_latent, n), q = shaped(p->w->q, n_head * row, n);
    struct tensor q_nope = shaped(p->w->z, n_head * a->n_nope, n), q_pe = shaped(p->w->q_pe, n_head * n_rot, n);
    struct tensor latent = shaped(p->w->v, a->n_latent, n), k_pe = shaped(p->w->k_pe, n_rot, n);
    struct tensor k = shaped(p->w->k, row, n), out = shaped(p->w->attn, n_head * row, n);
    struct tensor value = shaped(p->w->z, n_head * a->n_value, n);
    backend_enqueue(
        p->b,
        &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {latent, k_pe, q_a}, .weight = {a->k, a->k_pe, a->q_a}});
    if (a->q_a) {
        norm(p, &q_a, &a->q_a_norm, a->n_q_latent, &q_a);
        q_in = q_a;
    }
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL, .in = {q_in}, .out = {q_nope, q_pe}, .weight = {a->q, a->q_pe}});
    heads(p, NULL, &q_pe, 0, n_rot, &q, 0, n_rot, n_head);
    heads(p, a->k_b, &q_nope, 0, a->n_nope, &q, n_rot, a->n_latent, n_head);
    norm(p, &latent, &a->k_norm, a->n_latent, &latent);
    heads(p, NULL, &k_pe, 0, n_rot, &k, 0, n_rot, 1);
    heads(p, NULL, &latent, 0, a->n_latent, &k, n_rot, a->n_latent, 1);
    rope(p, a, a->q_rope_table, &q);
    rope(p, a, a->rope_table, &k);
    backend_enqueue(p->b, &(struct op){.kind = OP_KV_STORE, .in = {k, p->pos}, .state = {kv->k}});
    backend_enqueue(p->b, &(struct op){.kind = OP_ATTENTION,
                                       .in = {q, p->pos},
                                       .out = {out},
                                       .state = {kv->k, kv->k},
                                       .attention = {n_head, a->scale, p->end}});
    heads(p, a->v_b, &out, n_rot, a->n_latent, &value, 0, a->n_value, n_head);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {value}, .out = {*h}, .weight = {a->o}});
}

/* h = out . (norm(delta(conv(qkv . h))) * silu(z . h)) */
static void delta_net(const struct pass *p, const struct delta_net *d, struct layer_state *state,
                      const struct tensor *h)
{
    struct tensor mixed = shaped(p->w->mixed, d->n_mixed, p->n), convolved = shaped(p->w->convolved, d->n_mixed, p->n);
    struct tensor alpha = shaped(p->w->alpha, d->n_head_v, p->n), beta = shaped(p->w->beta, d->n_head_v, p->n);
    struct tensor z = shaped(p->w->z, d->n_head_v * d->dv, p->n), out = shaped(p->w->attn, d->n_head_v * d->dv, p->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL,
                                       .in = {*h},
                                       .out = {mixed, z, alpha, beta},
                                       .weight = {d->qkv, d->z, d->alpha, d->beta}});
    backend_enqueue(
        p->b,
        &(struct op){.kind = OP_CONV, .in = {mixed}, .out = {convolved}, .vec = {d->conv}, .state = {state->past}});
    backend_enqueue(p->b, &(struct op){.kind = OP_DELTA,
                                       .in = {convolved, alpha, beta},
                                       .out = {out},
                                       .vec = {d->dt, d->a},
                                       .state = {state->delta},
                                       .delta = {d->n_head_k, d->grouped, p->m->norm_eps}});
    norm(p, &out, &d->norm, d->dv, &out);
    backend_enqueue(p->b, &(struct op){.kind = OP_ACT_MUL, .in = {z, out}, .out = {out}, .act = ACT_SILU});
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {out}, .out = {*h}, .weight = {d->out}});
}

/* h = down . (act(gate . h) * (up . h)), part by part */
static void dense_ffn(const struct pass *p, const struct ffn *f, const struct tensor *h)
{
    for (int64_t i = 0, n; i < h->ne[1]; i += n) {
        n = h->ne[1] - i < p->w->n_ubatch ? h->ne[1] - i : p->w->n_ubatch;
        struct tensor gate = shaped(p->w->gate, f->n_ff, n), up = shaped(p->w->up, f->n_ff, n);
        struct tensor x = tensor_rows(*h, i, n);
        backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL,
                                           .in = {x},
                                           .out = {gate, up},
                                           .weight = {f->gate, f->up},
                                           .vec = {f->gate_bias, f->up_bias}});
        backend_enqueue(p->b, &(struct op){.kind = OP_ACT_MUL, .in = {gate, up}, .out = {gate}, .act = f->act});
        backend_enqueue(
            p->b,
            &(struct op){.kind = OP_MATMUL, .in = {gate}, .out = {x}, .weight = {f->down}, .vec = {f->down_bias}});
    }
}

/* x += norm(proj . (gelu(gate . x) * the token's embedding for layer i)), for the last rows of the call. */
static void token_embedding(const struct pass *p, int64_t i, const struct layer *y)
{
    int64_t n = p->m->n_token_embd, m = p->x.ne[1];
    struct tensor gate = shaped(p->w->token_gate, n, m), slice = shaped(p->w->token_slice, n, m);
    struct tensor all = tensor_rows(shaped(p->w->token_embed, n * p->m->n_layer, p->n), p->n - m, m);
    struct tensor h = shaped(p->w->h, p->m->n_embd, m);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {p->x}, .out = {gate}, .weight = {y->token_gate}});
    backend_enqueue(p->b, &(struct op){.kind = OP_SLICE, .in = {all}, .out = {slice}, .slice_off = i * n});
    backend_enqueue(p->b, &(struct op){.kind = OP_ACT_MUL, .in = {gate, slice}, .out = {gate}, .act = ACT_GELU});
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {gate}, .out = {h}, .weight = {y->token_proj}});
    norm(p, &h, &y->token_post_norm, p->m->n_embd, &h);
    add(p, &p->x, &h, &p->x);
}

/* out = dense + norm(sum), for layers with a dense branch beside their experts; sum is done with */
static void join_dense(const struct pass *p, const struct layer *y, const struct tensor *dense,
                       const struct tensor *sum, const struct tensor *out)
{
    norm(p, sum, &y->moe_post_norm, p->m->n_embd, sum);
    add(p, dense, sum, out);
}

/* out = x + what layer y's feed-forward part h, which is done with, comes to */
static void add_ffn(const struct pass *p, const struct layer *y, const struct tensor *h, const struct tensor *out)
{
    if (y->ffn_post_norm.buffer)
        norm(p, h, &y->ffn_post_norm, p->m->n_embd, h);
    add_branch(p, h, out);
}

/* A guess at what layer i's router will see: its own norm of the state, with the feed-forward part of the layer before
 * as far as it is known. What its mixer will add is left out. */
struct foresight {
    const struct pass *p;
    const struct layer *y;
    const struct tensor *dense; /* of the layer before; NULL: none */
    struct tensor router_x;
};

static void foresee(void *user, const struct tensor *sum)
{
    const struct foresight *f = user;
    const struct pass *p = f->p;
    const struct tensor *x = &p->x;
    if (sum->buffer) {
        if (f->dense)
            join_dense(p, f->y - 1, f->dense, sum, sum);
        add_ffn(p, f->y - 1, sum, &f->router_x);
        x = &f->router_x;
    }
    norm(p, x, f->y->router_norm.buffer ? &f->y->router_norm : &f->y->ffn_norm, p->m->n_embd, &f->router_x);
}

/* What a guess at layer i's choice takes, if somebody wants one; false: nobody does. */
static bool find_next(const struct pass *p, int64_t i, const struct tensor *dense, struct foresight *f,
                      struct moe_next *next)
{
    const struct model *m = p->m;
    const struct layer *y = i < m->n_layer ? &m->layers[i] : NULL;
    const struct moe_trace *trace = p->p->trace;
    if (!y || !y->is_moe)
        return false;
    bool prefetch = p->p->prefetch && !experts_is_resident(m->experts, y->moe.experts_layer);
    *f = (struct foresight){p, y, dense, shaped(p->w->guess_x, m->n_embd, p->x.ne[1])};
    *next = (struct moe_next){&y->moe, f->router_x, prefetch, foresee, f};
    return prefetch || (trace && trace->guessed);
}

/* A layer whose choice the layer before it could not guess at: its reads begin while it mixes. */
static err_code guess_first(const struct pass *p, int64_t i, struct err *e)
{
    struct moe_next next;
    struct foresight f;
    if ((i > 0 && p->m->layers[i - 1].is_moe) || !find_next(p, i, NULL, &f, &next) || !next.prefetch)
        return ERR_OK;
    return moe_guess(p->b, p->m->experts, &next, &p->w->moe, NULL, e);
}

/* h = the feed-forward part of layer i at p->x: dense, experts, or the two side by side. */
static err_code feed_forward(const struct pass *p, int64_t i, const struct tensor *h, struct err *e)
{
    const struct model *m = p->m;
    const struct layer *y = &m->layers[i];
    struct moe_work *w = &p->w->moe;
    const bool has_dense = y->ffn.down;
    struct moe_next next;
    struct foresight f;
    struct moe_run run = {.sort_cutoff = p->p->sort_cutoff, .trace = p->p->trace, .cancel = &p->p->cancel};
    norm(p, &p->x, &y->ffn_norm, m->n_embd, h);
    if (!y->is_moe) {
        dense_ffn(p, &y->ffn, h);
        return ERR_OK;
    }
    run.next = find_next(p, i + 1, has_dense ? h : NULL, &f, &next) ? &next : NULL;
    if (car_applies(&p->p->car, p->n, p->s->pos, y->moe.experts_layer, m->n_moe_layer))
        run.car = &p->p->car;
    if (!has_dense)
        return moe_forward(p->b, m->experts, &y->moe, w, h, h, h, &run, e);
    struct tensor h2 = shaped(p->w->h2, m->n_embd, h->ne[1]), router_x = shaped(p->w->router_x, m->n_embd, h->ne[1]);
    dense_ffn(p, &y->ffn, h);
    norm(p, h, &y->dense_post_norm, m->n_embd, h);
    norm(p, &p->x, &y->moe_norm, m->n_embd, &h2);
    norm(p, &p->x, &y->router_norm, m->n_embd, &router_x);
    TRY(moe_forward(p->b, m->experts, &y->moe, w, &h2, &router_x, &h2, &run, e));
    join_dense(p, y, h, &h2, h);
    return ERR_OK;
}

/* x += mixer(norm(x)): attention or the recurrent layer that stands for it */
static void mix(const struct pass *p, int64_t i)
{
    const struct layer *y = &p->m->layers[i];
    int64_t n_embd = p->m->n_embd;
    struct tensor h = shaped(p->w->h, n_embd, p->n);
    norm(p, &p->x, &y->attn_norm, n_embd, &h);
    if (y->is_recurrent)
        delta_net(p, &y->delta, &p->s->layers[i], &h);
    else if (y->attn.k_b)
        latent_attention(p, &y->attn, &p->s->layers[i], &h);
    else
        attention(p, &y->attn, &p->s->layers[y->attn.kv_layer], &h);
    if (y->attn_post_norm.buffer)
        norm(p, &h, &y->attn_post_norm, n_embd, &h);
    add_branch(p, &h, &p->x);
}

/* One layer over the residual stream of the call; x is cut to its last n_out rows once attention has seen all. */
static err_code layer(struct pass *p, int64_t i, int64_t n_out, struct err *e)
{
    const struct layer *y = &p->m->layers[i];
    int64_t n_embd = p->m->n_embd;
    TRY(guess_first(p, i, e));
    for (int64_t first = 0; first < p->n; first += p->w->n_ubatch) {
        TRY(cancel_check(&p->p->cancel, e));
        struct pass part = part_from(p, first);
        mix(&part, i);
    }
    if (i == p->m->n_layer - 1)
        p->x = tensor_rows(p->x, p->n - n_out, n_out);
    if (p->x.ne[1] == 0)
        return ERR_OK;
    struct tensor h = shaped(p->w->h, n_embd, p->x.ne[1]);
    TRY(feed_forward(p, i, &h, e));
    add_ffn(p, y, &h, &p->x);
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

/* The tokens' embeddings for all layers: (norm(proj . x / sqrt(n_embd)) + row * sqrt(n)) / sqrt(2) */
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

static err_code forward(const struct model *m, struct model_state *s, struct model_work *w,
                        const struct model_forward_params *params, const int32_t *ids, int64_t n, int64_t n_out,
                        struct err *e)
{
    assert(n >= 1 && n <= w->n_batch && n_out >= 0 && n_out <= n && s->pos + n <= s->n_ctx);
    struct pass p = {.m = m, .s = s, .w = w, .p = params, .b = m->device, .n = n, .end = s->pos + n};
    model_state_make_room(s, n);
    p.ids = shaped(w->ids, n, 1);
    p.pos = shaped(w->pos, n, 1);
    p.x = shaped(w->x, m->n_embd, n);
    for (int64_t i = 0; i < n; i++)
        w->host_pos[i] = (int32_t)(s->pos + i);
    backend_write(p.b, &p.ids, ids);
    backend_write(p.b, &p.pos, w->host_pos);
    backend_enqueue(
        p.b,
        &(struct op){.kind = OP_EMBED, .in = {p.ids}, .out = {p.x}, .weight = {m->embed}, .scale = m->embed_scale});
    for (int i = 0; i < m->n_rope; i++) {
        const struct rope_table *r = &m->ropes[i];
        p.rope[i] = shaped(w->rope[i], r->n_rot, n);
        backend_enqueue(p.b, &(struct op){.kind = OP_ROPE_TABLE,
                                          .in = {p.pos},
                                          .out = {p.rope[i]},
                                          .vec = {r->divisors},
                                          .rope_table = r->angles});
    }
    if (m->n_token_embd)
        token_embeddings(&p);
    for (int64_t i = 0; i < m->n_layer; i++) {
        TRY(layer(&p, i, n_out, e));
        TRY(report_hidden(&p, i, e));
    }
    w->kept = p.x;
    TRY(backend_wait(p.b, backend_fence(p.b), e));
    s->pos += n;
    return ERR_OK;
}

err_code model_forward(const struct model *m, struct model_state *s, struct model_work *w,
                       const struct model_forward_params *params, const int32_t *ids, int64_t n, int64_t n_out,
                       struct err *e)
{
    err_code code = forward(m, s, w, params, ids, n, n_out, e);
    if (code != ERR_OK)
        model_state_spoil(s);
    return code;
}

err_code model_logits(const struct model *m, struct model_work *w, int64_t first, int64_t n, float *logits,
                      struct err *e)
{
    assert(n >= 1 && n <= w->n_logits);
    const struct pass p = {.m = m, .b = m->device};
    struct tensor x = tensor_rows(w->kept, first, n), h = shaped(w->h, m->n_embd, n);
    struct tensor y = shaped(w->logits, m->n_vocab, n);
    norm(&p, &x, &m->out_norm, m->n_embd, &h);
    backend_enqueue(p.b, &(struct op){.kind = OP_MATMUL, .in = {h}, .out = {y}, .weight = {m->output}});
    if (m->logit_scale != 1)
        scale(&p, &y, m->logit_scale, NULL);
    if (m->logit_softcap > 0)
        backend_enqueue(p.b, &(struct op){.kind = OP_SOFTCAP, .in = {y}, .out = {y}, .scale = m->logit_softcap});
    return backend_read(p.b, &y, logits, e);
}
