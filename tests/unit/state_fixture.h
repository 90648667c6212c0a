/* Texts in a pool of pages, of models that have only what states look at. Numbers stand for what layers compute: each
 * row of a cache and each recurrent state holds one that tells which tokens it was made of, which shows wrong pages. */
#ifndef TESTS_STATE_FIXTURE_H
#define TESTS_STATE_FIXTURE_H

#include "base/minmax.h"
#include "device_fixture.h"
#include "model/state.h"

enum { N_HEAD_KV = 2, DIM = 32, DIM_V = 64, N_LATENT = 16, N_MIXED = 20, N_TAP = 4, DK = 6, DV = 5, N_HEAD_V = 3 };
enum { MAX_LAYER = 6, MOST_TOKENS = 4096 };

struct state_fixture {
    struct fixture *f;
    struct model m;
    struct layer layers[MAX_LAYER];
    struct state_pool_params params;
    struct state_pool *pool;
    struct err e;
};

/* A text, and for each number of tokens what stands for so many of its first ones. */
struct text {
    struct model_state *s;
    int32_t id[MOST_TOKENS + 1];
};

/* ---- models -------------------------------------------------------------------------------------------------- */

static inline struct weight *some_weight(void)
{
    static char place;
    return (struct weight *)(void *)&place; /* nothing reads it */
}

static inline struct layer *add_layer(struct state_fixture *t)
{
    assert_true(t->m.n_layer < MAX_LAYER);
    struct layer *y = &t->layers[t->m.n_layer];
    *y = (struct layer){.attn = {.kv_layer = t->m.n_layer++}};
    return y;
}

/* window 0: all */
static inline struct layer *add_attention(struct state_fixture *t, int64_t window)
{
    struct layer *y = add_layer(t);
    y->attn.n_head_kv = N_HEAD_KV;
    y->attn.head_dim = DIM;
    y->attn.head_dim_v = DIM_V;
    y->attn.window = window;
    y->attn.k = some_weight();
    return y;
}

static inline struct layer *add_latent(struct state_fixture *t)
{
    struct layer *y = add_attention(t, 0);
    y->attn.n_head_kv = 1;
    y->attn.head_dim = y->attn.head_dim_v = N_LATENT;
    y->attn.is_latent = true;
    return y;
}

static inline struct layer *add_recurrent(struct state_fixture *t)
{
    struct layer *y = add_layer(t);
    y->is_recurrent = true;
    y->recurrent = (struct recurrent){.dk = DK, .dv = DV, .n_head_v = N_HEAD_V, .n_mixed = N_MIXED, .n_tap = N_TAP};
    return y;
}

/* A layer that uses the cache of layer `of`. */
static inline void add_sharing(struct state_fixture *t, int64_t of, int64_t window)
{
    struct layer *y = add_attention(t, window);
    y->attn.k = NULL;
    y->attn.kv_layer = of;
}

static inline int open_state(void **state)
{
    struct state_fixture *t = calloc(1, sizeof *t);
    *state = t;
    if (open_cpu((void **)&t->f))
        return -1;
    t->m.device = t->f->device;
    t->m.layers = t->layers;
    t->params = (struct state_pool_params){.type = ELEM_F32, .max_bytes = 64 << 20, .max_checkpoint_bytes = 16 << 20};
    return 0;
}

/* What texts have held is free again. */
static inline void close_pool(struct state_fixture *t)
{
    if (t->pool)
        assert_int_equal(state_pool_used_bytes(t->pool), 0);
    state_pool_close(&t->pool);
}

static inline int close_state(void **state)
{
    struct state_fixture *t = *state;
    void *f = t->f;
    close_pool(t);
    free(t);
    return close_cpu(&f);
}

static inline void open_pool(struct state_fixture *t)
{
    close_pool(t);
    t->m.n_stage = 1;
    t->m.stages[0] = (struct model_stage){.device = t->m.device, .end = t->m.n_layer};
    assert_int_equal(state_pool_create(&t->pool, &t->m, &t->params, &t->e), ERR_OK);
}

static inline struct text *open_text(struct state_fixture *t, int64_t n_ctx)
{
    struct text *x = calloc(1, sizeof *x);
    assert_true(n_ctx <= MOST_TOKENS);
    assert_int_equal(model_state_create(&x->s, t->pool, n_ctx, &t->e), ERR_OK);
    return x;
}

static inline void close_text(struct text **x)
{
    if (*x)
        model_state_close(&(*x)->s);
    free(*x);
    *x = NULL;
}

static inline struct text *fork_text(struct state_fixture *t, struct text *from)
{
    struct text *x = malloc(sizeof *x);
    memcpy(x->id, from->id, sizeof x->id);
    assert_int_equal(model_state_fork(&x->s, from->s, &t->e), ERR_OK);
    return x;
}

/* ---- what layers compute ------------------------------------------------------------------------------------- */

/* The place of a number in a row of a part of a page. */
static inline struct tensor cell(const struct paged *x, int32_t page, int64_t part, int64_t row)
{
    struct tensor c = tensor_rows(paged_part(x, page, part), row, 1);
    c.type = ELEM_I32;
    c.ne[0] = 1;
    return c;
}

static inline void put_cell(struct state_fixture *t, const struct paged *x, int32_t page, int64_t row, int32_t id)
{
    for (int64_t part = 0; page >= 0 && part < x->page.ne[2]; part++) {
        const struct tensor c = cell(x, page, part, row);
        backend_write(t->f->device, &c, &id);
    }
}

/* page -1 holds the 0 of an empty text. */
static inline void expect_cell(struct state_fixture *t, const struct paged *x, int32_t page, int64_t row, int32_t id)
{
    if (page < 0)
        assert_int_equal(id, 0);
    for (int64_t part = 0; page >= 0 && part < x->page.ne[2]; part++) {
        int32_t got;
        const struct tensor c = cell(x, page, part, row);
        read_back(t->f, &c, &got);
        assert_int_equal(got, id);
    }
}

static inline int32_t page_of(const struct text *x, int kind, int64_t pos)
{
    return x->s->kinds[kind].page[pos / ATTENTION_BLOCK];
}

/* The rows that layer i's cache holds of positions [from, to). */
static inline void put_rows(struct state_fixture *t, const struct text *x, int64_t i, int64_t from, int64_t to)
{
    const struct layer_pages *y = &t->pool->layers[i];
    for (int64_t p = from; p < to; p++) {
        put_cell(t, &y->k, page_of(x, y->kind, p), p % ATTENTION_BLOCK, x->id[p + 1]);
        put_cell(t, &y->v, page_of(x, y->kind, p), p % ATTENTION_BLOCK, x->id[p + 1]);
    }
}

/* Layer i sees what it should of positions [from, to) in the cache that it uses. */
static inline void expect_rows_of(struct state_fixture *t, const struct text *x, int64_t i, int64_t from, int64_t to)
{
    const struct layer_pages *y = &t->pool->layers[t->layers[i].attn.kv_layer];
    for (int64_t p = from; p < to; p++) {
        expect_cell(t, &y->k, page_of(x, y->kind, p), p % ATTENTION_BLOCK, x->id[p + 1]);
        expect_cell(t, &y->v, page_of(x, y->kind, p), p % ATTENTION_BLOCK, x->id[p + 1]);
    }
}

/* Layer i of a pass over tokens [from, to): ubatch by ubatch the rows are stored, and seen by the first token and by
 * the last. */
static inline void attend(struct state_fixture *t, const struct text *x, int64_t i, int64_t from, int64_t to)
{
    const struct attention *a = &t->layers[i].attn;
    for (int64_t p = from, end; p < to; p = end) {
        end = min_i64(p + MODEL_UBATCH, to);
        if (a->kv_layer == i)
            put_rows(t, x, i, p, end);
        expect_rows_of(t, x, i, window_first(a->window, p), p + 1);
        expect_rows_of(t, x, i, window_first(a->window, end - 1), end);
    }
}

/* The same of a recurrent layer: each segment begins where the one before has ended. */
static inline void recur(struct state_fixture *t, const struct text *x, int64_t i, int64_t from)
{
    const struct layer_pages *y = &t->pool->layers[i];
    int32_t slot = x->s->slot;
    for (int j = 0; j < x->s->n_segment; j++) {
        expect_cell(t, &y->past, slot, 0, x->id[from]);
        expect_cell(t, &y->rule, slot, 0, x->id[from]);
        slot = x->s->segments[j].slot;
        from = x->s->segments[j].end;
        put_cell(t, &y->past, slot, 0, x->id[from]);
        put_cell(t, &y->rule, slot, 0, x->id[from]);
    }
}

/* What a batch of n tokens computes, once it has begun. `tokens`: which ones they are. */
static inline void compute(struct state_fixture *t, struct text *x, int64_t n, uint32_t tokens)
{
    int64_t from = x->s->pos;
    for (int64_t p = from; p < from + n; p++) /* any number but 0, which is that of an empty text */
        x->id[p + 1] = (int32_t)((((uint32_t)x->id[p] + tokens) * 2654435761u + (uint32_t)p) | 1);
    for (int64_t i = 0; i < t->m.n_layer; i++)
        if (t->layers[i].is_recurrent)
            recur(t, x, i, from);
        else
            attend(t, x, i, from, from + n);
}

static inline err_code try_evaluate(struct state_fixture *t, struct text *x, int64_t n, uint32_t tokens,
                                    enum batch_kind kind)
{
    TRY(state_begin(x->s, n, kind, &t->e));
    compute(t, x, n, tokens);
    state_commit(x->s, n, kind);
    return ERR_OK;
}

static inline void evaluate(struct state_fixture *t, struct text *x, int64_t n, uint32_t tokens)
{
    assert_int_equal(try_evaluate(t, x, n, tokens, BATCH_KEPT), ERR_OK);
}

/* The text has all that its next token sees. */
static inline void expect_text(struct state_fixture *t, const struct text *x)
{
    int64_t pos = x->s->pos;
    for (int64_t i = 0; i < t->m.n_layer; i++) {
        const struct layer_pages *y = &t->pool->layers[i];
        if (t->layers[i].is_recurrent) {
            expect_cell(t, &y->past, x->s->slot, 0, x->id[pos]);
            expect_cell(t, &y->rule, x->s->slot, 0, x->id[pos]);
        } else {
            expect_rows_of(t, x, i, window_first(t->layers[i].attn.window, pos), pos);
        }
    }
}

/* ---- states as bytes ----------------------------------------------------------------------------------------- */

struct bytes {
    char *p;
    size_t n, most; /* `most`: further ones are refused */
};

static inline err_code put_bytes(void *user, void *bytes, size_t n, struct err *e)
{
    struct bytes *b = user;
    if (b->n + n > b->most)
        return err_set(e, ERR_IO, "no more than %zu bytes", b->most);
    memcpy(b->p + b->n, bytes, n);
    b->n += n;
    return ERR_OK;
}

static inline err_code get_bytes(void *user, void *bytes, size_t n, struct err *e)
{
    struct bytes *b = user;
    if (b->n + n > b->most)
        return err_set(e, ERR_IO, "no more than %zu bytes", b->most);
    memcpy(bytes, b->p + b->n, n);
    b->n += n;
    return ERR_OK;
}

#endif
