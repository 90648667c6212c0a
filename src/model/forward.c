/* The forward pass: tokens in, logits out.
 *
 *   x = embedding(ids)
 *   for each layer:   x += attention(norm(x));   x += ffn_or_moe(norm(x))      (some have one of the two alone)
 *   logits = output(norm(x))
 *
 * Everything is enqueued on the device of the layer's stage; only the MoE layers of a model whose experts are not all
 * resident wait for it. From one stage to the next, the residual stream, banked ones and what all layers use of a token
 * (angles, embeddings for layers) go through the host's memory, while lists and page tables are written to each stage.
 * The second half of the last layer (unless multi-token prediction or a sum with banked residuals needs all tokens) and
 * the output are computed only for the tokens whose logits were asked for.
 *
 * A batch is the tokens of one forward pass. They may belong to several texts; each text's tokens are neighbours. A
 * ubatch is a part of a batch, whose attention or dense feed-forward is computed at once. Routed experts take the whole
 * batch, so that each expert is read once; everything else takes it ubatch by ubatch, so that its work space stays
 * small. What belongs to a text (positions, page tables, where its recurrent state lies) is written to device memory
 * before the pass. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "model/forward_internal.h"

/* ---- blocks -------------------------------------------------------------------------------------------------- */

struct pass pass_ubatch(const struct pass *p, int64_t first)
{
    struct pass u = *p;
    u.first = first;
    u.n = min_i64(p->n - first, p->w->sizes.n_ubatch);
    u.x = tensor_rows(p->x, first, u.n);
    if (p->mix.buffer)
        u.mix = tensor_rows(p->mix, first, u.n);
    if (p->bank.buffer)
        u.bank = tensor_rows(p->bank, first, u.n);
    block_cut_entries(p, &u);
    u.pos = list_part(p->pos, first, u.n);
    u.table = list_part(p->table, first, u.n);
    u.from = list_part(p->from, first, u.n);
    u.to = list_part(p->to, first, u.n);
    u.before = list_part(p->before, first, u.n);
    for (int i = 0; i < p->m->n_rope; i++)
        u.rope[i] = tensor_rows(p->rope[i], first, u.n);
    return u;
}

/* h = down . (act(gate . h) * (up . h)), ubatch by ubatch */
static void dense_ffn(const struct pass *p, const struct ffn *f, const struct tensor *h)
{
    for (int64_t i = 0, n; i < h->ne[1]; i += n) {
        n = min_i64(h->ne[1] - i, p->w->sizes.n_ubatch);
        struct tensor gate = tensor_shaped(p->w->gate, f->n_ff, n), up = tensor_shaped(p->w->up, f->n_ff, n);
        struct tensor x = tensor_rows(*h, i, n);
        backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL,
                                           .in = {x},
                                           .out = {gate, up},
                                           .weight = {f->gate, f->up},
                                           .vec = {f->gate_bias, f->up_bias}});
        backend_enqueue(p->b, &(struct op){.kind = OP_ACT_MUL,
                                           .in = {gate, f->up ? up : gate},
                                           .out = {gate},
                                           .act = f->act,
                                           .act_limit = f->act_limit,
                                           .act_up_limit = f->act_up_limit});
        backend_enqueue(
            p->b,
            &(struct op){.kind = OP_MATMUL, .in = {gate}, .out = {x}, .weight = {f->down}, .vec = {f->down_bias}});
    }
}

/* x += norm(proj . (gelu(gate . x) * the token's embedding for layer i)) */
static void token_embedding(const struct pass *p, int64_t i, const struct layer *y)
{
    int64_t n = p->m->n_token_embd, m = p->x.ne[1];
    struct tensor gate = tensor_shaped(p->w->token_gate, n, m), slice = tensor_shaped(p->w->token_slice, n, m);
    struct tensor all = tensor_shaped(p->w->token_embed, n * p->m->n_layer, p->n),
                  h = tensor_shaped(p->h, p->m->n_embd, m);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {p->x}, .out = {gate}, .weight = {y->token_gate}});
    backend_enqueue(p->b, &(struct op){.kind = OP_SLICE, .in = {all, p->out_rows}, .out = {slice}, .slice_off = i * n});
    backend_enqueue(p->b, &(struct op){.kind = OP_ACT_MUL, .in = {gate, slice}, .out = {gate}, .act = ACT_GELU});
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {gate}, .out = {h}, .weight = {y->token_proj}});
    block_norm(p, &h, &y->token_post_norm, p->m->n_embd, &h);
    block_add(p, &p->x, &h, &p->x);
}

/* out = dense + norm(sum), for layers with a dense branch beside their experts. The norm may be absent. sum is
 * overwritten. */
static void join_dense(const struct pass *p, const struct layer *y, const struct tensor *dense,
                       const struct tensor *sum, const struct tensor *out)
{
    if (y->moe_post_norm.buffer)
        block_norm(p, sum, &y->moe_post_norm, p->m->n_embd, sum);
    block_add(p, dense, sum, out);
}

/* out = x + the result h of layer y's feed-forward part, scaled and normed as the layer has it. h is overwritten. */
static void add_ffn(const struct pass *p, const struct layer *y, const struct tensor *h, const struct tensor *out)
{
    if (y->ffn_scale != 0)
        block_scale(p, h, y->ffn_scale, NULL);
    if (y->ffn_post_norm.buffer)
        block_norm(p, h, &y->ffn_post_norm, p->m->n_embd, h);
    block_end(p, h, out);
}

/* Whether layer i, after its attention, continues only with the tokens whose results are kept. Banked residuals can't
 * be cut: with them it continues with all tokens or with none. */
static bool is_cut(const struct pass *p, int64_t i)
{
    return i == p->m->n_layer - 1 && p->n_out < p->n && !p->m->mtp.n && (!p->m->bank_period || p->n_out == 0);
}

/* Copies the tokens of x that `rows` lists (NULL: all) to `to`. Does nothing where both are the same buffer. */
static void copy_tokens(const struct pass *p, const struct tensor *x, const struct tensor *rows,
                        const struct tensor *to)
{
    struct op op = {.kind = OP_SLICE, .in = {*x}, .out = {*to}};
    if (rows)
        op.in[SLICE_ROWS] = *rows;
    if (x->buffer != to->buffer && to->ne[1])
        backend_enqueue(p->b, &op);
}

/* Whether something behind attention sees the layer's input. */
static bool sees_input(const struct layer *y)
{
    return y->routes_input || y->moe_sees_input || y->is_parallel;
}

/* Keeps the input of layer i for its later parts (sees_input), for the tokens that the layer continues with. It is
 * normed where the whole feed-forward part sees it. */
static void keep_input(const struct pass *p, int64_t i)
{
    const struct layer *y = &p->m->layers[i];
    bool cut = is_cut(p, i);
    const struct tensor rows = list_part(p->w->out_rows, 0, p->n_out),
                        to = tensor_shaped(p->w->input, p->m->n_embd, cut ? p->n_out : p->n);
    copy_tokens(p, &p->x, cut ? &rows : NULL, &to);
    if (y->is_parallel && to.ne[1])
        block_norm_rows(p, &to, &y->ffn_norm, &y->ffn_norm_bias, &to);
}

/* An approximation of what the next layer's router will see: that layer's norm of the residual stream, with the result
 * of the feed-forward part before it, but without what the next layer's attention will add. */
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
    struct tensor x = p->x;
    if (sum->buffer) {
        if (r->dense)
            join_dense(p, r->before, r->dense, sum, sum);
        x = p->m->n_stream > 1 ? p->w->next_streams : r->router_x;
        add_ffn(p, r->before, sum, &x);
    }
    if (r->y->routes_input)
        copy_tokens(p, &x, NULL, &r->router_x);
    else if (r->y->moe_sees_input)
        block_norm(p, &x, &r->y->moe_norm, p->m->n_embd, &r->router_x);
    else if (r->y->router_norm.buffer)
        block_norm(p, &x, &r->y->router_norm, p->m->n_embd, &r->router_x);
    else
        block_begin(p, &r->y->ffn_streams, &x, &p->w->next_mix, &r->y->ffn_norm, &r->y->ffn_norm_bias, &r->router_x);
}

/* Whether no device reads experts of the layer when they are needed. */
static bool is_resident(const struct model *m, int moe_layer)
{
    bool all = true;
    for (int i = 0; i < m->n_device; i++)
        all &= !experts_is_fetching(m->devices[i].experts, moe_layer);
    return all;
}

/* The end of the stage's layers, without those for multi-token prediction. */
static int64_t trunk_end(const struct pass *p)
{
    return min_i64(p->stage->end, p->m->n_trunk);
}

/* The layer with the first feed-forward part from layer i on: layer i, or the next one if layer i has none. */
static int64_t feeding_layer(const struct pass *p, int64_t i)
{
    return i < trunk_end(p) && !p->m->layers[i].ffn_norm.buffer ? i + 1 : i;
}

/* Fills `next` for predicting the experts that layer i chooses or, if it has no feed-forward part, the next layer.
 * before: the layer with experts that is running, or NULL. False: the stage has no such layer, or a prediction is of no
 * use. Nothing is predicted for a layer that continues with few tokens, as the prediction would be for all of them. */
static bool find_next(const struct pass *p, int64_t i, const struct layer *before, const struct tensor *dense,
                      struct router_input *r, struct moe_next *next)
{
    const struct model *m = p->m;
    i = feeding_layer(p, i);
    const struct layer *y = i < trunk_end(p) ? &m->layers[i] : NULL;
    const struct moe_trace *trace = p->p->trace;
    if (!y || !y->is_moe)
        return false;
    bool prefetch = p->p->prefetch && !is_cut(p, i) && !is_resident(m, y->moe.experts_layer);
    *r = (struct router_input){p, y, before, dense, tensor_shaped(p->w->next_x, m->n_embd, p->x.ne[1])};
    *next = (struct moe_next){.layer = &y->moe,
                              .router_x = r->router_x,
                              .tokens = p->ids,
                              .prefetch = prefetch,
                              .fill_router_x = fill_router_x,
                              .user = r};
    return prefetch || (trace && trace->predicted);
}

/* Prefetches experts while attention computes: those of the first layer with experts, and those of a layer whose router
 * sees the layer's input, as its choice is known already. */
static err_code prefetch_first(const struct pass *p, int64_t i, struct err *e)
{
    struct moe_next next;
    struct router_input r;
    const struct layer *y = &p->m->layers[i];
    if (!y->attn_norm.buffer || (i > p->stage->first && p->m->layers[i - 1].is_moe && !sees_input(y)) ||
        !find_next(p, i, NULL, NULL, &r, &next) || !next.prefetch)
        return ERR_OK;
    return moe_predict(p->w->moe, &next, NULL, e);
}

/* Fills the list of policies by which the batch's first tokens, those that were sampled, may use substitutes for
 * experts. Returns the number of these tokens; 0: none may use any. */
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

/* Whether each text of the batch adds a single token, which was sampled. */
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
                          .tokens = p->ids,
                          .is_decode = is_decode(p)};
    const struct tensor input = tensor_shaped(p->w->input, m->n_embd, h->ne[1]);
    if (y->is_parallel)
        copy_tokens(p, &input, NULL, h);
    else
        block_begin(p, &y->ffn_streams, &p->x, &p->mix, &y->ffn_norm, &y->ffn_norm_bias, h);
    block_keep_normed(p, h);
    if (!y->is_moe) {
        dense_ffn(p, &y->ffn, h);
        return ERR_OK;
    }
    run.next = find_next(p, i + 1, y, has_dense ? h : NULL, &r, &next) ? &next : NULL;
    run.n_car = list_car(p, y->moe.experts_layer);
    if (!has_dense)
        return moe_forward(w, &y->moe, h, y->routes_input ? &input : h, h, &run, e);
    struct tensor h2 = tensor_shaped(p->w->h2, m->n_embd, h->ne[1]),
                  router_x = tensor_shaped(p->w->router_x, m->n_embd, h->ne[1]);
    const bool has_norms = y->router_norm.buffer;
    if (y->moe_sees_input)
        block_norm(p, &input, &y->moe_norm, m->n_embd, &h2);
    else if (!has_norms)
        copy_tokens(p, h, NULL, &h2);
    dense_ffn(p, &y->ffn, h);
    if (has_norms) {
        block_norm(p, h, &y->dense_post_norm, m->n_embd, h);
        block_norm(p, &p->x, &y->moe_norm, m->n_embd, &h2);
        block_norm(p, &p->x, &y->router_norm, m->n_embd, &router_x);
    }
    TRY(moe_forward(w, &y->moe, &h2, has_norms ? &router_x : &h2, &h2, &run, e));
    join_dense(p, y, h, &h2, h);
    return ERR_OK;
}

/* Cuts the list of the tokens' ids to the same tokens. */
static void cut_ids(struct pass *p)
{
    int64_t n = 0;
    for (int64_t r = 0; r < p->n_rows; r++)
        for (int64_t i = p->rows[r].n - p->rows[r].n_out; i < p->rows[r].n; i++)
            p->w->host_rows[n++] = p->rows[r].ids[i];
    p->ids = list_part(p->w->ids, 0, n);
    backend_write(p->b, &p->ids, p->w->host_rows);
}

/* Cuts the residual stream to the tokens whose results are kept. */
static void cut_to_out(struct pass *p)
{
    struct tensor x = p->x;
    p->out_rows = list_part(p->w->out_rows, 0, p->n_out);
    p->x = tensor_shaped(p->spare, x.ne[0], p->n_out);
    p->spare = x;
    if (p->m->n_stream == 1)
        p->h = p->spare;
    copy_tokens(p, &x, &p->out_rows, &p->x);
    if (p->n_out && p->m->layers[p->m->n_layer - 1].moe.token_experts.buffer)
        cut_ids(p);
}

static void note_done(const struct pass *p, int64_t n)
{
    if (p->p->n_done)
        *p->p->n_done += n;
}

err_code pass_layer(struct pass *p, int64_t i, struct err *e)
{
    const struct layer *y = &p->m->layers[i];
    int64_t n_embd = p->m->n_embd;
    TRY(prefetch_first(p, i, e));
    if (sees_input(y))
        keep_input(p, i);
    for (int64_t first = 0; first < p->n; first += p->w->sizes.n_ubatch) {
        TRY(cancel_check(&p->p->cancel, e));
        const struct pass ubatch = pass_ubatch(p, first);
        TRY(block_add_ngrams(&ubatch, i, e));
        block_mix(&ubatch, i);
        note_done(p, ubatch.n);
    }
    p->n_banked += block_banks(p->m, i);
    if (is_cut(p, i))
        cut_to_out(p);
    note_done(p, p->n);
    if (p->x.ne[1] == 0)
        return ERR_OK;
    if (y->ffn_norm.buffer) {
        struct tensor h = tensor_shaped(p->h, n_embd, p->x.ne[1]);
        TRY(feed_forward(p, i, &h, e));
        add_ffn(p, y, &h, &p->x);
    }
    if (y->token_gate)
        token_embedding(p, i, y);
    if (y->out_scale.buffer)
        block_scale(p, &p->x, 1, &y->out_scale);
    return ERR_OK;
}

static err_code report_hidden(const struct pass *p, int64_t i, struct err *e)
{
    if (!p->p->hidden || p->x.ne[1] == 0)
        return ERR_OK;
    struct tensor last = tensor_rows(p->x, p->x.ne[1] - 1, 1);
    int64_t n = p->m->n_embd, n_stream = p->m->n_stream;
    float *x = p->w->host_x;
    TRY(backend_read(p->b, &last, x, e));
    for (int64_t j = 0; n_stream > 1 && j < n; j++) {
        for (int64_t s = 1; s < n_stream; s++)
            x[j] += x[s * n + j];
        x[j] /= (float)n_stream;
    }
    p->p->hidden(p->p->hidden_user, i, p->w->host_x);
    return ERR_OK;
}

/* The tokens' embeddings for all layers: (norm(proj . x / sqrt(n_embd)) + row * sqrt(n_token_embd)) / sqrt(2) */
static void token_embeddings(const struct pass *p)
{
    const struct model *m = p->m;
    int64_t n = m->n_token_embd * m->n_layer;
    struct tensor rows = tensor_shaped(p->w->token_embed, n, p->n), proj = tensor_shaped(p->w->token_proj, n, p->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_EMBED,
                                       .in = {p->ids},
                                       .out = {rows},
                                       .weight = {m->token_embed},
                                       .scale = sqrtf((float)m->n_token_embd)});
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL, .in = {p->x}, .out = {proj}, .weight = {m->token_embed_proj}});
    block_scale(p, &proj, 1 / sqrtf((float)m->n_embd), NULL);
    block_norm(p, &proj, &m->token_embed_norm, m->n_token_embd, &proj);
    block_add(p, &rows, &proj, &rows);
    block_scale(p, &rows, 1 / sqrtf(2), NULL);
}

void pass_rope_tables(struct pass *p)
{
    struct tensor room = p->w->rope;
    for (int i = 0; i < p->m->n_rope; i++) {
        const struct rope_table *r = &p->m->ropes[i];
        p->rope[i] = tensor_shaped(room, r->n_rot, p->n);
        room.off_bytes += tensor_bytes(&p->rope[i]);
        backend_enqueue(p->b, &(struct op){.kind = OP_ROPE_TABLE,
                                           .in = {p->pos},
                                           .out = {p->rope[i]},
                                           .vec = {r->divisors},
                                           .rope_table = r->angles});
    }
}

/* ---- batches --------------------------------------------------------------------------------------------------- */

struct tensor pass_write_list(const struct pass *p, const struct tensor *list, int64_t n)
{
    const struct tensor t = list_part(*list, 0, n);
    if (n)
        backend_write(p->b, &t, p->w->host_rows);
    return t;
}

void pass_write_positions(struct pass *p)
{
    int32_t *list = p->w->host_rows;
    int64_t t = 0, n_page = 0, n_out = 0;
    for (int64_t r = 0; r < p->n_rows; r++)
        for (int64_t i = 0; i < p->rows[r].n; i++)
            list[t++] = p->rows[r].ids[i];
    p->ids = pass_write_list(p, &p->w->ids, t);
    t = 0;
    for (int64_t r = 0; r < p->n_rows; r++)
        for (int64_t i = 0; i < p->rows[r].n; i++)
            list[t++] = (int32_t)(p->rows[r].state->pos + p->ahead + i);
    p->pos = pass_write_list(p, &p->w->pos, t);
    t = 0;
    for (int64_t r = 0; r < p->n_rows; r++) {
        for (int64_t i = 0; i < p->rows[r].n; i++)
            list[t++] = (int32_t)n_page;
        n_page += n_blocks(p->rows[r].state->pos + p->ahead + p->rows[r].n);
    }
    p->table = pass_write_list(p, &p->w->table, t);
    t = 0;
    for (int64_t r = 0; r < p->n_rows; t += p->rows[r++].n)
        for (int64_t i = p->rows[r].n - p->rows[r].n_out; i < p->rows[r].n; i++)
            list[n_out++] = (int32_t)(t + i);
    pass_write_list(p, &p->w->out_rows, n_out);
    block_list_entries(p);
}

/* Writes the pages that each token's recurrent state comes from and goes to. A segment begins with the state that the
 * text's previous segment leaves; in later ubatches it continues from its own page. */
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
    p->to = pass_write_list(p, &p->w->to, t);
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
    p->from = pass_write_list(p, &p->w->from, t);
}

void pass_write_page_tables(const struct pass *p)
{
    for (int kind = 0; kind < p->pool->n_cache_kind; kind++) {
        int64_t n = 0;
        for (int64_t r = 0; r < p->n_rows; r++) {
            const struct model_state *s = p->rows[r].state;
            int64_t end = s->pos + p->ahead + p->rows[r].n, n_block = kind_blocks(&p->pool->kinds[kind], end);
            memcpy(p->w->host_pages + n, s->kinds[kind].page, (size_t)n_block * sizeof *p->w->host_pages);
            n += n_blocks(end); /* as tables count: compressed caches have fewer pages */
        }
        const struct tensor t = list_part(tensor_rows(p->w->pages, kind, 1), 0, n);
        backend_write(p->b, &t, p->w->host_pages);
    }
}

void pass_enter(struct pass *p, int stage)
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
        pass_enter(p, s);
        TRY(work_fit_pages(p->w, n_page, p->pool->n_cache_kind, e));
        if (!p->keeps_inputs || !p->w->sizes.is_recurrent)
            continue;
        p->w->inputs.pool = NULL;
        TRY(work_fit_inputs(p->w, n_kept, block_n_recurrent(p->m, p->stage->first, p->stage->end), e));
    }
    return ERR_OK;
}

/* Copies a tensor that lies on another device. */
static err_code bring(const struct pass *p, struct backend *device, const struct tensor *from, const struct tensor *to,
                      struct err *e)
{
    TRY(backend_read(device, from, p->work->crossing, e));
    backend_write(p->b, to, p->work->crossing);
    return ERR_OK;
}

/* Copies what the layers of the stage before have left, and what all layers use, to this stage's device. */
static err_code cross(struct pass *p, const struct pass *before, struct err *e)
{
    const struct model *m = p->m;
    int64_t n_token_all = m->n_token_embd * m->n_layer;
    struct tensor room = p->w->rope;
    TRY(bring(p, before->b, &before->x, &p->x, e));
    if (p->n_banked)
        TRY(bring(p, before->b, &before->bank, &p->bank, e));
    for (int i = 0; i < m->n_rope; i++) {
        p->rope[i] = tensor_shaped(room, m->ropes[i].n_rot, p->n);
        room.off_bytes += tensor_bytes(&p->rope[i]);
        TRY(bring(p, before->b, &before->rope[i], &p->rope[i], e));
    }
    if (p->w->sizes.sees_earlier && !block_sees_all(p, p->w->chosen.ne[0])) {
        const struct tensor from = tensor_rows(before->w->chosen, 0, p->n), to = tensor_rows(p->w->chosen, 0, p->n);
        TRY(bring(p, before->b, &from, &to, e));
    }
    if (n_token_all == 0)
        return ERR_OK;
    const struct tensor from = tensor_shaped(before->w->token_embed, n_token_all, p->n),
                        to = tensor_shaped(p->w->token_embed, n_token_all, p->n);
    return bring(p, before->b, &from, &to, e);
}

/* x = embedding(ids), and what all layers use */
static void embed(struct pass *p)
{
    const struct model *m = p->m;
    const struct tensor first = m->n_stream > 1 ? p->h : p->x;
    backend_enqueue(
        p->b,
        &(struct op){.kind = OP_EMBED, .in = {p->ids}, .out = {first}, .weight = {m->embed}, .scale = m->embed_scale});
    for (int64_t i = 0; m->n_stream > 1 && i < m->n_stream; i++) /* all streams begin alike */
        backend_enqueue(p->b, &(struct op){.kind = OP_HEADS,
                                           .in = {first},
                                           .out = {p->x},
                                           .heads = {.n_head = 1,
                                                     .in_dim = m->n_embd,
                                                     .n_in = m->n_embd,
                                                     .out_dim = p->x.ne[0],
                                                     .out_off = i * m->n_embd,
                                                     .n_out = m->n_embd}});
    pass_rope_tables(p);
    if (m->n_token_embd)
        token_embeddings(p);
}

/* Prepares the input of the stage's first layer. */
static err_code begin_stage(struct pass *p, int stage, struct err *e)
{
    const struct pass before = *p;
    pass_enter(p, stage);
    bool is_one = p->m->n_stream == 1;
    p->x = tensor_shaped(p->w->x, p->w->sizes.n_residual, p->n);
    p->h = tensor_shaped(p->w->h, p->m->n_embd, p->n);
    p->spare = is_one ? p->h : p->w->spare;
    p->mix = is_one ? (struct tensor){0} : tensor_shaped(p->w->mix, p->w->sizes.n_mix, p->n);
    p->bank = tensor_shaped(p->w->bank, p->w->sizes.n_bank, p->n);
    pass_write_positions(p);
    write_slots(p);
    pass_write_page_tables(p);
    if (p->w->sizes.n_mtp)
        mtp_begin(p);
    if (p->w->sizes.n_ngram)
        block_find_ngrams(p);
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
        for (int64_t i = p->stage->first; i < trunk_end(p); i++) {
            TRY(pass_layer(p, i, e));
            TRY(report_hidden(p, i, e));
        }
    }
    if (m->mtp.n)
        mtp_store(p);
    if (p->n_banked && p->x.ne[1])
        block_residuals(p, &m->out_streams, &p->x, &p->x);
    if (p->n_out < p->x.ne[1])
        cut_to_out(p);
    struct stage_work *last = &p->work->stages[m->n_stage - 1];
    last->kept = p->x;
    last->normed = p->h;
    last->kept_spare = p->spare;
    if (min_i64(p->n_out, p->p->n_logits) > 0)
        model_logits(m, p->work, 0, min_i64(p->n_out, p->p->n_logits));
    TRY(backend_wait(p->b, backend_fence(p->b), e));
    TRY(cancel_check(&p->p->cancel, e)); /* operations may have left work out */
    return m->mtp.n ? mtp_keep(p, e) : ERR_OK;
}

static enum batch_kind kind_of(const struct pass *p, int64_t r)
{
    return p->rows[r].is_draft ? BATCH_DRAFT : p->p->in_place ? BATCH_IN_PLACE : BATCH_KEPT;
}

/* Takes the pages that the texts grow into, for all texts or for none. Then the room for scratch is restored, as during
 * the pass a device that another thread drives can't have others' slots closed for it. */
static err_code begin(const struct pass *p, struct err *e)
{
    for (int64_t r = 0; r < p->n_rows; r++) {
        state_write_ids(p->rows[r].state, p->rows[r].ids, p->rows[r].n);
        err_code code = state_begin(p->rows[r].state, p->rows[r].n, kind_of(p, r), e);
        while (code != ERR_OK && r-- > 0)
            state_abort(p->rows[r].state);
        TRY(code);
    }
    mem_make_room_for_scratch();
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

/* Runs a stage's recurrent layers once more over the first n tokens of a text's last batch. */
static err_code recur_stage(struct pass *p, const struct model_state *s, struct err *e)
{
    int64_t n = p->n;
    if (!p->w->sizes.is_recurrent)
        return ERR_OK;
    for (int64_t t = 0; t < n; t++)
        p->w->host_rows[t] = s->draft.slot;
    p->from = pass_write_list(p, &p->w->from, n);
    for (int64_t t = 0; t < n; t++)
        p->w->host_rows[t] = s->slot;
    p->to = pass_write_list(p, &p->w->to, n);
    for (int64_t i = p->stage->first; i < p->stage->end; i++)
        if (p->m->layers[i].is_recurrent) {
            block_ngrams_again(p, i, s->draft.row);
            block_recur_again(p, i, s->draft.row);
        }
    return backend_wait(p->b, backend_fence(p->b), e);
}

static err_code recur_again(const struct model *m, struct model_work *w, struct model_state *s, int64_t n,
                            struct err *e)
{
    struct pass p = {.m = m, .pool = s->pool, .work = w, .n = n};
    for (int i = 0; i < m->n_stage; i++) {
        pass_enter(&p, i);
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

void pass_logits(const struct pass *p, struct weight *output, const struct tensor *h, const struct tensor *y)
{
    const struct model *m = p->m;
    backend_enqueue(
        p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {*y}, .weight = {output}, .vec = {m->output_bias}});
    if (m->logit_scale != 1)
        block_scale(p, y, m->logit_scale, NULL);
    if (m->logit_softcap > 0)
        backend_enqueue(p->b, &(struct op){.kind = OP_SOFTCAP, .in = {*y}, .out = {*y}, .scale = m->logit_softcap});
}

void model_logits(const struct model *m, struct model_work *work, int64_t first, int64_t n)
{
    struct stage_work *w = &work->stages[work->n_stage - 1];
    assert(n >= 1 && n <= w->sizes.n_logits);
    const struct pass p = {.m = m, .w = w, .b = w->device, .spare = w->kept_spare};
    struct tensor x = tensor_rows(w->kept, first, n), h = tensor_shaped(w->normed, m->n_embd, n);
    struct tensor y = tensor_shaped(w->logits, m->n_vocab, n);
    block_begin(&p, &m->out_streams, &x, &w->mix, &m->out_norm, &m->out_norm_bias, &h);
    pass_logits(&p, m->output, &h, &y);
}

err_code model_logits_row(const struct model_work *w, int64_t i, float *logits, struct err *e)
{
    const struct stage_work *last = &w->stages[w->n_stage - 1];
    const struct tensor y = tensor_rows(last->logits, i, 1);
    return backend_read(last->device, &y, logits, e);
}
