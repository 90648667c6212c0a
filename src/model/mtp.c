/* Multi-token prediction. Its layers have caches as all layers do: an entry for a token is made of its embedding and of
 * the normed result before it. So each batch adds its tokens' keys and values there, which takes no more of the layers
 * than their products for these; a layer as a whole runs where guesses are wanted, on positions beyond the text. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "model/forward_internal.h"

static const struct tensor no_bias;

/* Copies n_head parts of n_embd elements of each row of x to where they are in the pairs, the first one at `off`. */
static void put_parts(const struct pass *u, const struct tensor *x, int64_t n_head, const struct tensor *pair,
                      int64_t off)
{
    int64_t n = u->m->n_embd;
    backend_enqueue(u->b, &(struct op){.kind = OP_HEADS,
                                       .in = {*x},
                                       .out = {*pair},
                                       .heads = {.n_head = n_head,
                                                 .in_dim = n,
                                                 .n_in = n,
                                                 .out_dim = pair->ne[0] / n_head,
                                                 .out_off = off,
                                                 .n_out = n}});
}

/* x = proj . [norm(embedding(ids)), norm(h)], h being what is before each token, of a ubatch; for each residual stream
 * with its own part of h. */
static void mtp_input(const struct pass *u, const struct mtp_head *head, const struct tensor *x)
{
    const struct model *m = u->m;
    int64_t n_embd = m->n_embd, n_stream = m->n_stream, n = u->n;
    const struct tensor ids = list_part(u->ids, u->first, n);
    struct tensor e = tensor_shaped(u->h, n_embd, n), h = tensor_shaped(u->spare, n_stream * n_embd, n),
                  pair = tensor_shaped(u->w->mtp_pair, n_stream * 2 * n_embd, n);
    backend_enqueue(
        u->b,
        &(struct op){.kind = OP_EMBED, .in = {ids}, .out = {e}, .weight = {head->embed}, .scale = m->embed_scale});
    block_norm_rows(u, &e, &head->embed_norm, &no_bias, &e);
    for (int64_t i = 0; i < n_stream; i++)
        put_parts(u, &e, 1, &pair, 2 * i * n_embd);
    backend_enqueue(u->b, &(struct op){.kind = OP_SLICE, .in = {u->w->hidden, u->before}, .out = {h}});
    if (n_stream > 1)
        block_norm(u, &h, &head->hidden_norm, n_embd, &h);
    else
        block_norm_rows(u, &h, &head->hidden_norm, &no_bias, &h);
    put_parts(u, &h, n_stream, &pair, n_embd);
    const struct tensor in = tensor_shaped(pair, 2 * n_embd, n * n_stream),
                        out = tensor_shaped(*x, n_embd, n * n_stream);
    backend_enqueue(u->b, &(struct op){.kind = OP_MATMUL, .in = {in}, .out = {out}, .weight = {head->proj}});
}

/* Writes a text's last normed result, zeros where it is not there, into a row of those on the device. */
static void write_hidden(const struct pass *p, const struct model_state *s, int64_t row)
{
    const struct tensor to = tensor_rows(p->w->hidden, row, 1);
    const float *from = state_hidden(s);
    if (!from)
        memset(p->w->host_x, 0, tensor_bytes(&to));
    backend_write(p->b, &to, from ? from : p->w->host_x);
}

/* Puts the keys and values of a ubatch's tokens into layer i's cache. */
static void store_ubatch(const struct pass *u, int64_t i)
{
    mtp_input(u, &u->m->mtp.heads[i], &u->x);
    block_store(u, u->m->n_trunk + i);
}

void mtp_begin(struct pass *p)
{
    int32_t *list = p->w->host_rows;
    int64_t t = 0;
    for (int64_t r = 0; r < p->n_rows; r++) {
        write_hidden(p, p->rows[r].state, p->n + r);
        list[t++] = (int32_t)(p->n + r);
        for (int64_t i = 1; i < p->rows[r].n; i++, t++)
            list[t] = (int32_t)(t - 1);
    }
    p->before = pass_write_list(p, &p->w->before, t);
}

void mtp_store(struct pass *p)
{
    const struct model *m = p->m;
    const struct tensor hidden = tensor_rows(p->w->hidden, 0, p->n);
    if (m->mtp.is_raw)
        backend_copy(p->b, &p->x, &hidden);
    else
        block_norm_rows(p, &p->x, &m->out_norm, &m->out_norm_bias, &hidden);
    for (int64_t first = 0; first < p->n; first += p->w->sizes.n_ubatch) {
        struct pass u = pass_ubatch(p, first);
        u.x = tensor_shaped(p->w->mtp_x, p->w->sizes.n_residual, u.n);
        for (int64_t i = 0; i < m->mtp.n; i++)
            store_ubatch(&u, i);
    }
}

/* Of tokens that may be taken back all, else the last one. */
err_code mtp_keep(const struct pass *p, struct err *e)
{
    int64_t row = 0;
    for (int64_t r = 0; r < p->n_rows; r++) {
        const struct model_rows *x = &p->rows[r];
        struct text_hidden *h = &x->state->hidden;
        int64_t n = x->is_draft ? x->n : 1;
        row += x->n;
        TRY(state_hidden_fit(x->state, n, p->w->sizes.n_residual, e));
        const struct tensor from = tensor_rows(p->w->hidden, row - n, n);
        TRY(backend_read(p->b, &from, h->rows, e));
        h->first = x->state->pos + x->n - n;
        h->n = n;
    }
    return ERR_OK;
}

/* ---- guesses --------------------------------------------------------------------------------------------------- */

/* The texts that are guessed on, and how likely it is that all guesses of each so far are right. */
struct guessing {
    struct pass p;
    struct model_guess *guesses;
    struct model_rows rows[MODEL_MAX_GUESS];
    int32_t ids[MODEL_MAX_GUESS]; /* the token that is computed, */
    int of[MODEL_MAX_GUESS];      /* whose it is, */
    double likely[MODEL_MAX_GUESS];
};

/* The token of the largest logit, and its probability. */
static int32_t most_likely(const float *logits, int64_t n, double *p)
{
    const float far = 20; /* what is e^20 times less likely does not count */
    int64_t best = 0;
    double sum = 0;
    for (int64_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    for (int64_t i = 0; i < n; i++)
        sum += logits[i] > logits[best] - far ? (double)expf(logits[i] - logits[best]) : 0;
    *p = sum > 0 ? 1 / sum : 0;
    return (int32_t)best;
}

/* Takes the guess of row r, and keeps the text among those that are guessed on, as row *n_row, unless it ends. */
static err_code take_guess(struct guessing *x, int64_t r, int64_t *n_row, struct err *e)
{
    const struct stage_work *w = x->p.w;
    struct model_guess *g = &x->guesses[x->of[r]];
    const struct tensor logits = tensor_rows(w->logits, r % w->sizes.n_logits, 1);
    double p;
    TRY(backend_read(x->p.b, &logits, w->host_logits, e));
    int32_t id = most_likely(w->host_logits, w->sizes.n_vocab, &p);
    x->likely[r] *= p;
    if (x->likely[r] < (double)g->least)
        return ERR_OK;
    if (g->likely)
        g->likely[g->n] = (float)x->likely[r];
    g->ids[g->n++] = id;
    if (g->n == g->most)
        return ERR_OK;
    int64_t to = (*n_row)++;
    x->ids[to] = id;
    x->of[to] = x->of[r];
    x->likely[to] = x->likely[r];
    x->rows[to] = x->rows[r];
    x->rows[to].ids = &x->ids[to];
    w->host_rows[to] = (int32_t)r; /* its normed result */
    return ERR_OK;
}

/* h = norm(x), and what leads to the next guesses. */
static void norm_guesses(const struct pass *p, const struct mtp_head *head)
{
    const struct mtp *mtp = &p->m->mtp;
    const struct tensor hidden = tensor_rows(p->w->hidden, 0, p->n);
    if (mtp->has_layer_norm)
        backend_enqueue(p->b, &(struct op){.kind = OP_LAYER_NORM,
                                           .in = {p->x},
                                           .out = {p->h},
                                           .vec = {head->out_norm},
                                           .norm = {.n = p->m->n_embd, .eps = p->m->norm_eps}});
    else
        block_begin(p, &p->m->out_streams, &p->x, &p->mix, &head->out_norm, &no_bias, &p->h);
    backend_copy(p->b, mtp->is_raw ? &p->x : &p->h, &hidden);
}

/* Computes a guess for each row. */
static err_code guess_once(struct guessing *x, struct err *e)
{
    struct pass *p = &x->p;
    const struct stage_work *w = p->w;
    int64_t n = p->n, n_row = 0, last = p->m->mtp.n - 1, head = min_i64(p->ahead, last);
    const struct mtp_head *of = &p->m->mtp.heads[head];
    p->before = pass_write_list(p, &w->before, n);
    p->x = tensor_shaped(w->x, w->sizes.n_residual, n);
    p->h = tensor_shaped(w->h, p->m->n_embd, n);
    p->spare = p->m->n_stream == 1 ? p->h : w->spare;
    p->mix = p->m->n_stream == 1 ? (struct tensor){0} : tensor_shaped(w->mix, w->sizes.n_mix, n);
    pass_write_positions(p);
    pass_write_page_tables(p);
    pass_rope_tables(p);
    const struct pass u = pass_ubatch(p, 0); /* MODEL_MAX_GUESS tokens at most */
    for (int64_t i = head + 1; i <= last; i++)
        store_ubatch(&u, i);
    mtp_input(p, of, &p->x);
    TRY(pass_layer(p, p->m->n_trunk + head, e));
    norm_guesses(p, of);
    for (int64_t r = 0; r < n; r++) {
        if (r % w->sizes.n_logits == 0) {
            int64_t some = min_i64(n - r, w->sizes.n_logits);
            const struct tensor h = tensor_rows(p->h, r, some), y = tensor_shaped(w->logits, w->sizes.n_vocab, some);
            pass_logits(p, of->output, &h, &y);
            TRY(backend_wait(p->b, backend_fence(p->b), e));
            TRY(cancel_check(&p->p->cancel, e));
        }
        TRY(take_guess(x, r, &n_row, e));
    }
    p->n = p->n_rows = p->n_out = n_row;
    p->ahead++;
    return ERR_OK;
}

static err_code guess_all(struct guessing *x, struct err *e)
{
    struct pass *p = &x->p;
    int64_t n_page = 0;
    for (int64_t r = 0; r < p->n; r++)
        n_page += n_blocks(p->rows[r].state->n_ctx);
    pass_enter(p, p->m->n_stage - 1);
    TRY(work_fit_pages(p->w, n_page, p->pool->n_cache_kind, e));
    for (int64_t r = 0; r < p->n; r++) {
        write_hidden(p, p->rows[r].state, r);
        p->w->host_rows[r] = (int32_t)r;
    }
    while (p->n > 0)
        TRY(guess_once(x, e));
    return ERR_OK;
}

/* Gets pages for all guesses, or for none. */
static err_code begin(const struct model_guess *g, int64_t n, struct err *e)
{
    for (int64_t i = 0; i < n; i++) {
        err_code code = state_begin(g[i].state, g[i].most, BATCH_DRAFT, e);
        while (code != ERR_OK && i-- > 0)
            state_abort(g[i].state);
        TRY(code);
    }
    return ERR_OK;
}

err_code model_guess(const struct model *m, struct model_work *w, const struct model_forward_params *params,
                     struct model_guess *guesses, int64_t n, struct err *e)
{
    struct guessing x = {.guesses = guesses};
    assert(m->mtp.n && n >= 1 && n <= MODEL_MAX_GUESS && n <= w->stages[0].sizes.n_batch);
    x.p = (struct pass){.m = m,
                        .pool = guesses[0].state->pool,
                        .work = w,
                        .p = params,
                        .rows = x.rows,
                        .n_rows = n,
                        .n = n,
                        .n_out = n};
    for (int64_t i = 0; i < n; i++) {
        guesses[i].n = 0;
        x.ids[i] = guesses[i].id;
        x.of[i] = (int)i;
        x.likely[i] = 1;
        x.rows[i] =
            (struct model_rows){.state = guesses[i].state, .ids = &x.ids[i], .n = 1, .n_out = 1, .is_decode = true};
    }
    err_code code = begin(guesses, n, e);
    if (code == ERR_LIMIT)
        return ERR_OK;
    TRY(code);
    code = guess_all(&x, e);
    for (int64_t i = 0; i < n; i++)
        state_abort(guesses[i].state);
    return code;
}
