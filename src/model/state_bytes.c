/* A state as bytes and back: its tokens, where n-grams have embeddings; and layer by layer, of attention the rows from
 * a position on that the next token can see, head by head with positions ascending, of recurrent layers all. They
 * depend on the text alone, not on the pages that it has. */
#include <assert.h>

#include <string.h>

#include "base/minmax.h"
#include "model/state.h"

/* Something to do with each piece of a state at position `to` that its text has not at `from`, in order. A piece may be
 * absent: zeros of that shape. */
struct walk {
    const struct model_state *s;
    int64_t from, to;
    err_code (*piece)(void *user, struct backend *device, const struct tensor *t, struct err *e);
    void *user;
    const struct checkpoint *past; /* what the state at `to` was, where the text has gone on; NULL: its own pages */
};

static bool is_absent(const struct paged *x)
{
    return !x->page.buffer;
}

/* ---- pages ---------------------------------------------------------------------------------------------------- */

/* The page of a windowed kind's block, as a checkpoint has kept it. */
static int32_t checkpoint_page(const struct walk *w, int kind, int64_t block)
{
    const struct state_pool *p = w->s->pool;
    int64_t base = 0;
    for (int i = 0; i < kind; i++)
        base += window_pages(&p->kinds[i]);
    return w->past->page[base + block - window_first(p->kinds[kind].window, w->past->pos) / ATTENTION_BLOCK];
}

/* Before a state is there its page tables say nothing, and pages stand for all others. */
static int32_t find_page(const struct walk *w, int kind, int64_t block)
{
    const struct text_pages *pages = &w->s->kinds[kind];
    if (w->past && w->s->pool->kinds[kind].window)
        return checkpoint_page(w, kind, block);
    return block >= pages->first && block < pages->next_end ? pages->page[block] : 0;
}

static int32_t find_slot(const struct walk *w)
{
    const struct model_state *s = w->s;
    return w->past ? w->past->slot : s->n_segment ? s->segments[0].slot : s->slot;
}

/* ---- the walk ------------------------------------------------------------------------------------------------- */

/* Of a cache that may be absent. */
static err_code walk_cache(const struct walk *w, const struct layer_pages *y, int kind, const struct paged *cache,
                           struct err *e)
{
    if (is_absent(cache))
        return ERR_OK;
    const struct page_kind *k = &w->s->pool->kinds[kind];
    int64_t first = max_i64(w->from, window_first(k->window, w->to)) / k->ratio, end = w->to / k->ratio;
    for (int64_t head = 0; head < cache->page.ne[2]; head++)
        for (int64_t p = first, n; p < end; p += n) {
            int64_t row = p % ATTENTION_BLOCK;
            n = min_i64(end - p, ATTENTION_BLOCK - row);
            struct tensor t = tensor_rows(paged_part(cache, find_page(w, kind, p / ATTENTION_BLOCK), head), row, n);
            TRY(w->piece(w->user, y->device, &t, e));
        }
    return ERR_OK;
}

/* A layer's recurrent state, in page `slot`; -1: zeros. */
static err_code walk_slot(const struct walk *w, const struct layer_pages *y, const struct paged *x, int32_t slot,
                          struct err *e)
{
    if (is_absent(x))
        return ERR_OK;
    for (int64_t i = 0; i < x->page.ne[2]; i++) {
        struct tensor t = paged_part(x, slot < 0 ? 0 : slot, i);
        if (slot < 0)
            t.buffer = NULL;
        TRY(w->piece(w->user, y->device, &t, e));
    }
    return ERR_OK;
}

static err_code walk(const struct walk *w, struct err *e)
{
    const struct state_pool *p = w->s->pool;
    int32_t slot = find_slot(w);
    for (int64_t i = 0; i < p->n_layer; i++) {
        const struct layer_pages *y = &p->layers[i];
        TRY(walk_cache(w, y, y->kind, &y->k, e));
        if (y->v.page.off_bytes != y->k.page.off_bytes)
            TRY(walk_cache(w, y, y->kind, &y->v, e));
        TRY(walk_cache(w, y, y->entry_kind < 0 ? y->kind : y->entry_kind, &y->index, e));
        TRY(walk_cache(w, y, y->entry_kind, &y->entries, e));
        TRY(walk_cache(w, y, y->kind, &y->compress_x, e));
        TRY(walk_cache(w, y, y->kind, &y->compress_gate, e));
        TRY(walk_cache(w, y, y->part_kind, &y->index_x, e));
        TRY(walk_cache(w, y, y->part_kind, &y->index_gate, e));
        TRY(walk_slot(w, y, &y->past, slot, e));
        TRY(walk_slot(w, y, &y->rule, slot, e));
        TRY(walk_slot(w, y, &y->ngram_past, slot, e));
    }
    return ERR_OK;
}

static err_code add_bytes(void *user, struct backend *device, const struct tensor *t, struct err *e)
{
    *(uint64_t *)user += tensor_bytes(t);
    return ERR_OK;
}

uint64_t model_state_saved_bytes(const struct model_state *s, int64_t from, int64_t to)
{
    uint64_t n = s->ids ? (uint64_t)(to - from) * sizeof *s->ids : 0;
    const struct walk w = {.s = s, .from = from, .to = to, .piece = add_bytes, .user = &n};
    err_code code = walk(&w, NULL);
    assert(code == ERR_OK);
    return n;
}

/* ---- transfers ------------------------------------------------------------------------------------------------ */

struct transfer {
    model_state_bytes_fn *fn;
    void *user;
    char *staging;
};

static err_code save_piece(void *user, struct backend *device, const struct tensor *t, struct err *e)
{
    const struct transfer *x = user;
    if (t->buffer)
        TRY(backend_read(device, t, x->staging, e));
    else
        memset(x->staging, 0, tensor_bytes(t));
    return x->fn(x->user, x->staging, tensor_bytes(t), e);
}

static err_code load_piece(void *user, struct backend *device, const struct tensor *t, struct err *e)
{
    const struct transfer *x = user;
    TRY(x->fn(x->user, x->staging, tensor_bytes(t), e));
    if (t->buffer) /* else these are the zeros of an empty text */
        backend_write(device, t, x->staging);
    return ERR_OK;
}

static err_code keep_largest(void *user, struct backend *device, const struct tensor *t, struct err *e)
{
    size_t *largest = user, n = tensor_bytes(t);
    *largest = n > *largest ? n : *largest;
    return ERR_OK;
}

/* Walks the state at `to`, or what a checkpoint has kept of it. */
static err_code transfer(const struct model_state *s, int64_t from, int64_t to, const struct checkpoint *past,
                         err_code (*piece)(void *user, struct backend *device, const struct tensor *t, struct err *e),
                         model_state_bytes_fn *fn, void *user, struct err *e)
{
    size_t largest = 1;
    struct transfer x = {fn, user, NULL};
    const struct walk measure = {s, from, to, keep_largest, &largest, past}, move = {s, from, to, piece, &x, past};
    TRY(walk(&measure, e));
    x.staging = mem_alloc(largest);
    if (!x.staging)
        return err_nomem(e, largest, "a piece of the state");
    err_code code = walk(&move, e);
    mem_free(x.staging);
    return code;
}

/* ---- saving --------------------------------------------------------------------------------------------------- */

/* Whether the text's own pages hold what it was at pos. */
static bool is_at_hand(const struct model_state *s, int64_t pos)
{
    return pos == s->pos || (!state_pool_is_recurrent(s->pool) && state_has_window(s, pos));
}

/* The first position of which that is so. */
static int64_t first_at_hand(const struct model_state *s)
{
    int64_t first = 0;
    if (state_pool_is_recurrent(s->pool))
        return s->pos;
    for (int i = 0; i < s->pool->n_cache_kind; i++)
        if (s->kinds[i].oldest > 0)
            first = max_i64(first, s->kinds[i].oldest + s->pool->kinds[i].window - 1);
    return min_i64(first, s->pos);
}

int64_t model_state_save_end(const struct model_state *s, int64_t from, int64_t to)
{
    int64_t before = -1, after = first_at_hand(s);
    if (to >= s->pos)
        return s->pos;
    if (is_at_hand(s, to))
        return to;
    for (int i = 0; i < s->n_checkpoint; i++) {
        const struct checkpoint_ref *r = &s->checkpoints[i];
        if (!checkpoint_is_there(r) || r->at->pos <= from)
            continue;
        if (r->at->pos <= to)
            before = max_i64(before, r->at->pos);
        else
            after = min_i64(after, r->at->pos);
    }
    return before >= 0 ? before : after;
}

err_code model_state_save(const struct model_state *s, int64_t from, int64_t to, model_state_bytes_fn *put, void *user,
                          struct err *e)
{
    const struct checkpoint *past = is_at_hand(s, to) ? NULL : state_find_checkpoint(s, to);
    assert(from >= 0 && from <= to && model_state_save_end(s, from, to) == to);
    if (s->ids)
        TRY(put(user, s->ids + from, (size_t)(to - from) * sizeof *s->ids, e));
    return transfer(s, from, to, past, save_piece, put, user, e);
}

/* ---- loading -------------------------------------------------------------------------------------------------- */

/* Waits until each layer's device has what was written. */
static err_code wait_for_all(const struct state_pool *p, struct err *e)
{
    const struct backend *waited = NULL;
    for (int64_t i = 0; i < p->n_layer; i++) {
        struct backend *device = p->layers[i].device;
        if (device && device != waited)
            TRY(backend_wait(device, backend_fence(device), e));
        waited = device ? device : waited;
    }
    return ERR_OK;
}

err_code model_state_load(struct model_state *s, int64_t to, model_state_bytes_fn *get, void *user, struct err *e)
{
    assert(to >= s->pos && to <= s->n_ctx);
    if (to > s->pos)
        TRY(state_begin(s, to - s->pos, BATCH_LOADED, e));
    err_code code = s->ids ? get(user, s->ids + s->pos, (size_t)(to - s->pos) * sizeof *s->ids, e) : ERR_OK;
    if (code == ERR_OK)
        code = transfer(s, s->pos, to, NULL, load_piece, get, user, e);
    if (code == ERR_OK)
        code = wait_for_all(s->pool, e);
    if (code != ERR_OK)
        state_abort(s);
    return code;
}

void model_state_load_end(struct model_state *s, bool is_good)
{
    int64_t from = s->pos, to = s->n_segment ? s->segments[0].end : s->pos;
    if (to == from)
        return;
    if (!is_good) {
        state_abort(s);
        return;
    }
    state_commit(s, to - from, BATCH_LOADED);
    s->hidden.n = 0;
    for (int i = 0; i < s->pool->n_cache_kind; i++) {
        int64_t first = window_first(s->pool->kinds[i].window, to);
        if (first > from) /* rows between the two were not saved */
            s->kinds[i].oldest = max_i64(s->kinds[i].oldest, first);
    }
    model_state_checkpoint(s);
}
