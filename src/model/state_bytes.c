/* A state as bytes and back: layer by layer, of attention the rows that the next token can see, head by head with
 * positions ascending, of recurrent layers all. They depend on the text alone, not on the pages that it has. */
#include <assert.h>

#include <string.h>

#include "base/minmax.h"
#include "model/state.h"

/* Something to do with each piece of a state, in order. A piece may be absent: zeros of that shape. */
struct walk {
    const struct model_state *s;
    int64_t pos;
    err_code (*piece)(void *user, const struct tensor *t, struct err *e);
    void *user;
};

static bool is_absent(const struct paged *x)
{
    return !x->page.buffer;
}

/* The rows of a cache that positions [first, pos) lie in. Before a state is there its page tables say nothing, and
 * pages stand for all others. */
static err_code walk_cache(const struct walk *w, int kind, const struct paged *cache, int64_t first, struct err *e)
{
    const struct text_pages *pages = &w->s->kinds[kind];
    for (int64_t head = 0; head < cache->page.ne[2]; head++)
        for (int64_t p = first, n; p < w->pos; p += n) {
            int64_t block = p / ATTENTION_BLOCK, row = p % ATTENTION_BLOCK;
            bool is_there = block >= pages->first && block < pages->next_end;
            n = min_i64(w->pos - p, ATTENTION_BLOCK - row);
            struct tensor t = tensor_rows(paged_part(cache, is_there ? pages->page[block] : 0, head), row, n);
            TRY(w->piece(w->user, &t, e));
        }
    return ERR_OK;
}

/* A layer's recurrent state, in page `slot`; -1: zeros. */
static err_code walk_slot(const struct walk *w, const struct paged *x, int32_t slot, struct err *e)
{
    if (is_absent(x))
        return ERR_OK;
    for (int64_t i = 0; i < x->page.ne[2]; i++) {
        struct tensor t = paged_part(x, slot < 0 ? 0 : slot, i);
        if (slot < 0)
            t.buffer = NULL;
        TRY(w->piece(w->user, &t, e));
    }
    return ERR_OK;
}

static err_code walk(const struct walk *w, struct err *e)
{
    const struct state_pool *p = w->s->pool;
    int32_t slot = w->s->n_segment ? w->s->segments[0].slot : w->s->slot;
    for (int64_t i = 0; i < p->n_layer; i++) {
        const struct layer_pages *y = &p->layers[i];
        if (!is_absent(&y->k)) {
            int64_t first = window_first(p->kinds[y->kind].window, w->pos);
            TRY(walk_cache(w, y->kind, &y->k, first, e));
            if (y->v.page.off_bytes != y->k.page.off_bytes)
                TRY(walk_cache(w, y->kind, &y->v, first, e));
        }
        TRY(walk_slot(w, &y->past, slot, e));
        TRY(walk_slot(w, &y->delta, slot, e));
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
    if (t->buffer)
        TRY(backend_read(x->device, t, x->staging, e));
    else
        memset(x->staging, 0, tensor_bytes(t));
    return x->fn(x->user, x->staging, tensor_bytes(t), e);
}

static err_code load_piece(void *user, const struct tensor *t, struct err *e)
{
    const struct transfer *x = user;
    TRY(x->fn(x->user, x->staging, tensor_bytes(t), e));
    if (t->buffer) /* else these are the zeros of an empty text */
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
    struct transfer x = {s->pool->device, fn, user, NULL};
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

static err_code load(struct model_state *s, int64_t pos, model_state_bytes_fn *get, void *user, struct err *e)
{
    if (pos > 0)
        TRY(state_begin(s, pos, BATCH_IN_PLACE, e));
    err_code code = transfer(s, pos, load_piece, get, user, e);
    if (code == ERR_OK)
        code = backend_wait(s->pool->device, backend_fence(s->pool->device), e);
    if (pos > 0 && code == ERR_OK)
        state_commit(s, pos, BATCH_IN_PLACE);
    else if (pos > 0)
        state_abort(s);
    return code;
}

err_code model_state_load(struct model_state *s, int64_t pos, model_state_bytes_fn *get, void *user, struct err *e)
{
    assert(pos >= 0 && pos <= s->n_ctx);
    model_state_reset(s);
    TRY(load(s, pos, get, user, e));
    for (int i = 0; i < s->pool->n_cache_kind; i++)
        s->kinds[i].oldest = window_first(s->pool->kinds[i].window, pos);
    model_state_checkpoint(s);
    return ERR_OK;
}
