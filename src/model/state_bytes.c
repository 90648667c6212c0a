/* A state as bytes and back: layer by layer, of attention the rows that the next token can see, head by head with
 * positions ascending, of recurrent layers all. They depend on the text alone, not on context or batch. */
#include <assert.h>

#include "model/state.h"

enum { PIECE_BYTES = 1 << 15 };

/* Something to do with each piece of a state, in order. */
struct walk {
    const struct model_state *s;
    int64_t pos;
    err_code (*piece)(void *user, const struct tensor *t, struct err *e);
    void *user;
};

/* A row or more at once, but a row at least. */
static int64_t piece_rows(const struct tensor *t)
{
    int64_t n = (int64_t)(PIECE_BYTES / elem_row_bytes(t->type, t->ne[0]));
    return n > 0 ? n : 1;
}

/* The rows of a cache that positions [first, pos) lie in. */
static err_code walk_cache(const struct walk *w, const struct tensor *cache, int64_t first, struct err *e)
{
    if (!cache->buffer)
        return ERR_OK;
    int64_t n_row = cache->ne[1], most = piece_rows(cache);
    struct tensor all = *cache;
    all.ne[1] = n_row * cache->ne[2];
    all.ne[2] = 1;
    for (int64_t head = 0; head < cache->ne[2]; head++)
        for (int64_t p = first, n; p < w->pos; p += n) {
            n = w->pos - p < most ? w->pos - p : most;
            n = n < n_row - p % n_row ? n : n_row - p % n_row; /* up to where the ring wraps */
            struct tensor t = tensor_rows(all, head * n_row + p % n_row, n);
            TRY(w->piece(w->user, &t, e));
        }
    return ERR_OK;
}

static err_code walk_whole(const struct walk *w, const struct tensor *whole, struct err *e)
{
    if (!whole->buffer)
        return ERR_OK;
    struct tensor all = *whole;
    all.ne[1] *= all.ne[2];
    all.ne[2] = 1;
    int64_t most = piece_rows(&all);
    for (int64_t i = 0; i < all.ne[1]; i += most) {
        struct tensor t = tensor_rows(all, i, all.ne[1] - i < most ? all.ne[1] - i : most);
        TRY(w->piece(w->user, &t, e));
    }
    return ERR_OK;
}

static err_code walk(const struct walk *w, struct err *e)
{
    for (int64_t i = 0; i < w->s->n_layer; i++) {
        const struct layer_state *y = &w->s->layers[i];
        int64_t first = layer_state_first(y, w->pos);
        TRY(walk_cache(w, &y->k, first, e));
        TRY(walk_cache(w, &y->v, first, e));
        TRY(walk_whole(w, &y->past, e));
        TRY(walk_whole(w, &y->delta, e));
    }
    return ERR_OK;
}

static err_code add_bytes(void *user, const struct tensor *t, struct err *e)
{
    *(uint64_t *)user += tensor_bytes(t);
    return ERR_OK;
}

uint64_t model_state_saved_bytes(const struct model_state *s, int64_t pos)
{
    uint64_t n = 0;
    const struct walk w = {s, pos, add_bytes, &n};
    err_code code = walk(&w, NULL);
    assert(code == ERR_OK);
    return n;
}

struct transfer {
    struct backend *device;
    model_state_bytes_fn *fn;
    void *user;
    char *staging;
};

static err_code save_piece(void *user, const struct tensor *t, struct err *e)
{
    const struct transfer *x = user;
    TRY(backend_read(x->device, t, x->staging, e));
    return x->fn(x->user, x->staging, tensor_bytes(t), e);
}

static err_code load_piece(void *user, const struct tensor *t, struct err *e)
{
    const struct transfer *x = user;
    TRY(x->fn(x->user, x->staging, tensor_bytes(t), e));
    backend_write(x->device, t, x->staging);
    return ERR_OK;
}

static err_code keep_largest(void *user, const struct tensor *t, struct err *e)
{
    size_t *largest = user, n = tensor_bytes(t);
    *largest = n > *largest ? n : *largest;
    return ERR_OK;
}

static err_code transfer(const struct model_state *s, int64_t pos,
                         err_code (*piece)(void *user, const struct tensor *t, struct err *e), model_state_bytes_fn *fn,
                         void *user, struct err *e)
{
    size_t largest = 1;
    struct transfer x = {s->device, fn, user, NULL};
    const struct walk measure = {s, pos, keep_largest, &largest}, move = {s, pos, piece, &x};
    TRY(walk(&measure, e));
    x.staging = mem_alloc(largest);
    if (!x.staging)
        return err_nomem(e, largest, "a piece of the state");
    err_code code = walk(&move, e);
    mem_free(x.staging);
    return code;
}

err_code model_state_save(const struct model_state *s, model_state_bytes_fn *put, void *user, struct err *e)
{
    return transfer(s, s->pos, save_piece, put, user, e);
}

err_code model_state_load(struct model_state *s, int64_t pos, model_state_bytes_fn *get, void *user, struct err *e)
{
    assert(pos >= 0 && pos <= s->n_ctx);
    model_state_reset(s);
    err_code code = transfer(s, pos, load_piece, get, user, e);
    if (code == ERR_OK)
        code = backend_wait(s->device, backend_fence(s->device), e);
    if (code != ERR_OK) {
        model_state_reset(s);
        return code;
    }
    s->pos = pos;
    for (int64_t i = 0; i < s->n_layer; i++)
        s->layers[i].oldest = layer_state_first(&s->layers[i], pos);
    return ERR_OK;
}
