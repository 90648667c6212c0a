#include "model/state.h"

#include <assert.h>
#include <string.h>

#include "base/minmax.h"

enum { MORE_CHECKPOINTS = 16 };

/* ---- creation ------------------------------------------------------------------------------------------------- */

static err_code create(struct model_state *s, struct err *e)
{
    const struct state_pool *p = s->pool;
    int64_t n_segment = p->interval ? s->n_ctx / p->interval + 2 : 1;
    if (p->keeps_ids && !(s->ids = arena_calloc(&s->arena, (size_t)s->n_ctx, sizeof *s->ids)))
        return err_nomem(e, (size_t)s->n_ctx * sizeof *s->ids, "a text");
    s->kinds = arena_calloc(&s->arena, (size_t)p->n_cache_kind, sizeof *s->kinds);
    if (!s->kinds)
        return err_nomem(e, (size_t)p->n_cache_kind * sizeof *s->kinds, "a text");
    for (int i = 0; i < p->n_cache_kind; i++) {
        s->kinds[i].page = arena_calloc(&s->arena, (size_t)n_blocks(s->n_ctx), sizeof *s->kinds[i].page);
        if (!s->kinds[i].page)
            return err_nomem(e, (size_t)n_blocks(s->n_ctx) * sizeof *s->kinds[i].page, "a page table");
    }
    s->max_checkpoint = p->interval ? (int)n_segment + MORE_CHECKPOINTS : 0;
    s->segments = arena_calloc(&s->arena, (size_t)n_segment, sizeof *s->segments);
    s->checkpoints = arena_calloc(&s->arena, (size_t)s->max_checkpoint, sizeof *s->checkpoints);
    return s->segments && s->checkpoints ? ERR_OK
                                         : err_nomem(e, (size_t)n_segment * sizeof *s->segments, "checkpoints");
}

err_code model_state_create(struct model_state **out, struct state_pool *pool, int64_t n_ctx, struct err *e)
{
    struct model_state *s = *out = mem_calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s, "a text");
    s->pool = pool;
    s->n_ctx = n_ctx;
    s->slot = s->draft.slot = -1;
    err_code code = create(s, e);
    if (code != ERR_OK)
        model_state_close(out);
    return code;
}

err_code model_state_grow(struct model_state *s, int64_t n_ctx, struct err *e)
{
    struct model_state more = *s;
    assert(n_ctx > s->n_ctx && s->n_segment == 0);
    more.n_ctx = n_ctx;
    more.arena = (struct arena){0};
    err_code code = create(&more, e);
    if (code != ERR_OK) {
        arena_close(&more.arena);
        return code;
    }
    for (int i = 0; i < s->pool->n_cache_kind; i++) {
        int32_t *page = more.kinds[i].page;
        memcpy(page, s->kinds[i].page, (size_t)n_blocks(s->n_ctx) * sizeof *page);
        more.kinds[i] = s->kinds[i];
        more.kinds[i].page = page;
    }
    memcpy(more.checkpoints, s->checkpoints, (size_t)s->n_checkpoint * sizeof *s->checkpoints);
    if (s->ids)
        memcpy(more.ids, s->ids, (size_t)s->pos * sizeof *s->ids);
    arena_close(&s->arena);
    *s = more;
    return ERR_OK;
}

void model_state_close(struct model_state **out)
{
    struct model_state *s = *out;
    if (!s)
        return;
    if (s->checkpoints)
        model_state_reset(s);
    mem_free(s->hidden.rows);
    arena_close(&s->arena);
    mem_free(s);
    *out = NULL;
}

int64_t model_state_n_ctx(const struct model_state *s)
{
    return s->n_ctx;
}

int64_t model_state_pos(const struct model_state *s)
{
    return s->pos;
}

size_t model_state_bytes(const struct model_state *s)
{
    const struct state_pool *p = s->pool;
    size_t n = s->slot >= 0 ? p->kinds[p->n_cache_kind].bytes : 0;
    for (int i = 0; i < p->n_cache_kind; i++)
        n += (size_t)(s->kinds[i].end - s->kinds[i].first) * p->kinds[i].bytes;
    return n;
}

void state_write_ids(struct model_state *s, const int32_t *ids, int64_t n)
{
    if (s->ids)
        memcpy(s->ids + s->pos, ids, (size_t)n * sizeof *ids);
}

const float *state_hidden(const struct model_state *s)
{
    const struct text_hidden *h = &s->hidden;
    int64_t row = s->pos - 1 - h->first;
    return row >= 0 && row < h->n ? h->rows + row * h->width : NULL;
}

err_code state_hidden_fit(struct model_state *s, int64_t n, int64_t width, struct err *e)
{
    struct text_hidden *h = &s->hidden;
    h->n = 0;
    if (n <= h->most)
        return ERR_OK;
    float *rows = mem_resize(h->rows, (size_t)n, (size_t)width * sizeof *rows);
    if (!rows)
        return err_nomem(e, (size_t)(n * width) * sizeof *rows, "a text");
    h->rows = rows;
    h->most = n;
    h->width = width;
    return ERR_OK;
}

/* ---- pages ---------------------------------------------------------------------------------------------------- */

/* Drops the text's references to the pages of blocks [from, to) of a kind. */
static void drop_blocks(struct model_state *s, int kind, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++)
        state_pool_drop(s->pool, kind, s->kinds[kind].page[i]);
}

static void drop_slot(struct model_state *s, int32_t *slot)
{
    if (*slot >= 0)
        state_pool_drop(s->pool, s->pool->n_cache_kind, *slot);
    *slot = -1;
}

/* Forgets all blocks from `end` on. */
static void cut_blocks(struct model_state *s, int kind, int64_t end)
{
    struct text_pages *t = &s->kinds[kind];
    drop_blocks(s, kind, max_i64(end, t->first), t->end);
    t->end = t->next_end = min_i64(t->end, end);
    t->first = min_i64(t->first, t->end);
}

static bool is_ring(const struct model_state *s, int kind)
{
    const struct text_pages *t = &s->kinds[kind];
    return t->next_end - t->end > ring_blocks(&s->pool->kinds[kind]);
}

static err_code full(const struct model_state *s, struct err *e)
{
    return err_set(
        e, ERR_LIMIT,
        "no room for more tokens: the state of all texts takes %.1f MiB, and the bound on memory or on state "
        "(%.1f MiB) allows no more",
        (double)s->pool->used_bytes / (1 << 20), (double)s->pool->max_bytes / (1 << 20));
}

/* If the batch begins in the middle of a page that others hold, too, replaces the page by a copy. */
static bool own_last(struct model_state *s, int kind)
{
    struct text_pages *t = &s->kinds[kind];
    int64_t at = s->pos / s->pool->kinds[kind].ratio;
    int32_t *page = &t->page[at / ATTENTION_BLOCK], own;
    if (at % ATTENTION_BLOCK == 0 || !state_pool_is_shared(s->pool, kind, *page))
        return true;
    own = state_pool_take(s->pool, kind);
    if (own < 0) /* looking for a page may have evicted the checkpoint that held this one */
        return !state_pool_is_shared(s->pool, kind, *page);
    state_pool_copy(s->pool, kind, *page, own);
    state_pool_drop(s->pool, kind, *page);
    *page = own;
    return true;
}

static bool grow(struct model_state *s, int kind, int64_t n)
{
    struct text_pages *t = &s->kinds[kind];
    int64_t n_ring = ring_blocks(&s->pool->kinds[kind]), end = kind_blocks(&s->pool->kinds[kind], s->pos + n);
    if (!own_last(s, kind))
        return false;
    for (; t->next_end < end; t->next_end++) {
        int64_t i = t->next_end;
        t->page[i] = i - t->end < n_ring ? state_pool_take(s->pool, kind) : t->page[i - n_ring];
        if (t->page[i] < 0)
            return false;
    }
    return true;
}

/* Forgets the blocks that lie before what the next token, or one WINDOW_SLACK before it, sees. */
static void forget_old(struct model_state *s, int kind)
{
    const struct page_kind *k = &s->pool->kinds[kind];
    struct text_pages *t = &s->kinds[kind];
    int64_t first = window_first(k->window, max_i64(s->pos - WINDOW_SLACK, 0)) / ATTENTION_BLOCK;
    if (first <= t->first)
        return;
    drop_blocks(s, kind, t->first, first);
    t->first = first;
    t->oldest = max_i64(t->oldest, first * ATTENTION_BLOCK);
}

/* Makes the batch's blocks part of the text. */
static void take_blocks(struct model_state *s, int kind)
{
    struct text_pages *t = &s->kinds[kind];
    if (is_ring(s, kind)) { /* its last blocks have overwritten the pages of its first ones */
        drop_blocks(s, kind, t->first, t->end);
        t->first = t->next_end - ring_blocks(&s->pool->kinds[kind]);
        t->oldest = max_i64(t->oldest, t->first * ATTENTION_BLOCK);
    }
    t->end = t->next_end;
    forget_old(s, kind);
}

/* ---- checkpoints ---------------------------------------------------------------------------------------------- */

/* Forgets checkpoints that the pool has taken back, and those behind pos. */
static void purge(struct model_state *s, int64_t pos)
{
    int n = 0;
    int64_t before = 0;
    for (int i = 0; i < s->n_checkpoint; i++) {
        const struct checkpoint_ref r = s->checkpoints[i];
        if (!checkpoint_is_there(&r) || r.at->pos > pos) {
            checkpoint_drop(s->pool, &r);
            continue;
        }
        r.at->saved = r.at->pos - before;
        before = r.at->pos;
        s->checkpoints[n++] = r;
    }
    s->n_checkpoint = n;
}

/* The last checkpoint, after purge; NULL: there is none. */
static struct checkpoint *last_checkpoint(const struct model_state *s)
{
    return s->n_checkpoint ? s->checkpoints[s->n_checkpoint - 1].at : NULL;
}

/* The blocks of a windowed kind that the token at pos sees. */
static void visible_blocks(const struct page_kind *k, int64_t pos, int64_t *first, int64_t *end)
{
    *first = window_first(k->window, pos) / ATTENTION_BLOCK;
    *end = n_blocks(pos);
}

static size_t checkpoint_bytes(const struct model_state *s, int64_t pos)
{
    const struct state_pool *p = s->pool;
    size_t n = state_pool_is_recurrent(p) ? p->kinds[p->n_cache_kind].bytes : 0;
    for (int i = 0; i < p->n_cache_kind; i++) {
        int64_t first, end;
        visible_blocks(&p->kinds[i], pos, &first, &end);
        n += p->kinds[i].window ? (size_t)(end - first) * p->kinds[i].bytes : 0;
    }
    return n;
}

/* Fills a checkpoint at pos, which is not behind the text's end, with references to the text's windowed pages. slot:
 * the page of recurrent state, whose reference it takes over. */
static void fill_checkpoint(struct model_state *s, struct checkpoint *c, int64_t pos, int32_t slot)
{
    const struct state_pool *p = s->pool;
    int64_t base = 0;
    c->pos = pos;
    c->slot = slot;
    for (int i = 0; i < p->n_cache_kind; i++) {
        int64_t first, end;
        if (!p->kinds[i].window)
            continue;
        visible_blocks(&p->kinds[i], pos, &first, &end);
        for (int64_t b = first; b < end; b++) {
            c->page[base + b - first] = s->kinds[i].page[b];
            state_pool_keep(s->pool, i, s->kinds[i].page[b]);
        }
        base += window_pages(&p->kinds[i]);
    }
}

/* Forgets the checkpoint with the least worth. */
static void forget_least(struct model_state *s)
{
    int least = 0;
    for (int i = 1; i < s->n_checkpoint; i++)
        if (checkpoint_worth(s->pool, s->checkpoints[i].at) < checkpoint_worth(s->pool, s->checkpoints[least].at))
            least = i;
    checkpoint_drop(s->pool, &s->checkpoints[least]);
    memmove(s->checkpoints + least, s->checkpoints + least + 1,
            (size_t)(--s->n_checkpoint - least) * sizeof *s->checkpoints);
}

/* Adds a filled checkpoint behind all others. */
static void add_checkpoint(struct model_state *s, struct checkpoint_ref r)
{
    purge(s, r.at->pos);
    if (s->n_checkpoint == s->max_checkpoint)
        forget_least(s);
    s->checkpoints[s->n_checkpoint++] = r;
    purge(s, r.at->pos);
}

const struct checkpoint *state_find_checkpoint(const struct model_state *s, int64_t pos)
{
    for (int i = 0; i < s->n_checkpoint; i++)
        if (checkpoint_is_there(&s->checkpoints[i]) && s->checkpoints[i].at->pos == pos)
            return s->checkpoints[i].at;
    return NULL;
}

void model_state_checkpoint(struct model_state *s)
{
    struct state_pool *p = s->pool;
    purge(s, s->pos);
    struct checkpoint *last = last_checkpoint(s);
    if (last && last->pos == s->pos)
        last->tick = p->tick;
    if (p->interval == 0 || s->pos == 0 || (last && last->pos == s->pos))
        return;
    const struct checkpoint_ref r = checkpoint_take(p, checkpoint_bytes(s, s->pos));
    if (!r.at)
        return;
    if (s->slot >= 0)
        state_pool_keep(p, p->n_cache_kind, s->slot);
    fill_checkpoint(s, r.at, s->pos, s->slot);
    add_checkpoint(s, r);
}

/* Makes a checkpoint if the last one is at least an interval away. */
static void checkpoint_now_and_then(struct model_state *s)
{
    if (s->pool->interval == 0)
        return;
    purge(s, s->pos);
    const struct checkpoint *last = last_checkpoint(s);
    if (s->pos - (last ? last->pos : 0) >= s->pool->interval)
        model_state_checkpoint(s);
}

/* ---- batches -------------------------------------------------------------------------------------------------- */

/* Adds a segment that ends at `end`. False: the pool has no page for it. may_stay: it may overwrite the page of the
 * text's recurrent state, if no one else holds it. r: the checkpoint that it will become, or none. */
static bool add_segment(struct model_state *s, int64_t end, bool may_stay, struct checkpoint_ref r)
{
    struct state_pool *p = s->pool;
    int32_t slot = -1;
    if (may_stay && s->slot >= 0 && !state_pool_is_shared(p, p->n_cache_kind, s->slot))
        state_pool_keep(p, p->n_cache_kind, slot = s->slot);
    else if (state_pool_is_recurrent(p) && (slot = state_pool_take(p, p->n_cache_kind)) < 0)
        return false;
    s->segments[s->n_segment++] = (struct text_segment){end, slot, r};
    return true;
}

/* Divides a batch into segments at multiples of the interval, where checkpoints will be made. */
static void cut_for_checkpoints(struct model_state *s, int64_t n)
{
    int64_t step = s->pool->interval, end = s->pos + n;
    for (int i = 0; i < s->pool->n_cache_kind; i++)
        if (is_ring(s, i))
            return;
    for (int64_t at = step ? (s->pos / step + 1) * step : end; at < end; at += step) {
        const struct checkpoint_ref r = checkpoint_take(s->pool, checkpoint_bytes(s, at));
        if (!r.at)
            return;
        r.at->saved = step;
        if (!add_segment(s, at, false, r)) {
            checkpoint_drop(s->pool, &r);
            return;
        }
    }
}

err_code state_begin(struct model_state *s, int64_t n, enum batch_kind kind, struct err *e)
{
    bool ok = true;
    assert(n > 0 && s->pos + n <= s->n_ctx && s->n_segment == 0);
    s->pool->tick++;
    state_end_draft(s);
    checkpoint_now_and_then(s);
    for (int i = 0; i < s->pool->n_cache_kind && ok; i++)
        ok = grow(s, i, n);
    if (ok && kind == BATCH_KEPT)
        cut_for_checkpoints(s, n);
    if (ok && add_segment(s, s->pos + n, kind == BATCH_IN_PLACE, (struct checkpoint_ref){0}))
        return ERR_OK;
    state_abort(s);
    return full(s, e);
}

void state_abort(struct model_state *s)
{
    for (int i = 0; i < s->pool->n_cache_kind; i++) {
        struct text_pages *t = &s->kinds[i];
        int64_t n_ring = ring_blocks(&s->pool->kinds[i]);
        drop_blocks(s, i, t->end, n_ring < t->next_end - t->end ? t->end + n_ring : t->next_end);
        t->next_end = t->end;
    }
    for (int i = 0; i < s->n_segment; i++) {
        drop_slot(s, &s->segments[i].slot);
        checkpoint_drop(s->pool, &s->segments[i].checkpoint);
    }
    s->n_segment = 0;
}

/* Makes the state that a segment has left a checkpoint, unless the pool has taken the checkpoint back. */
static void keep_segment(struct model_state *s, struct text_segment *t)
{
    if (!checkpoint_is_there(&t->checkpoint)) {
        drop_slot(s, &t->slot);
        return;
    }
    fill_checkpoint(s, t->checkpoint.at, t->end, t->slot);
    add_checkpoint(s, t->checkpoint);
}

void state_commit(struct model_state *s, int64_t n, enum batch_kind kind)
{
    for (int i = 0; i < s->n_segment - 1; i++)
        keep_segment(s, &s->segments[i]);
    if (kind == BATCH_DRAFT)
        s->draft = (struct text_draft){.is_open = true, .pos = s->pos, .slot = s->slot};
    else
        drop_slot(s, &s->slot);
    s->slot = s->segments[s->n_segment - 1].slot;
    s->n_segment = 0;
    s->pos += n;
    for (int i = 0; i < s->pool->n_cache_kind; i++)
        take_blocks(s, i);
}

void state_end_draft(struct model_state *s)
{
    drop_slot(s, &s->draft.slot);
    s->draft.is_open = false;
}

/* ---- going back ----------------------------------------------------------------------------------------------- */

void model_state_reset(struct model_state *s)
{
    state_end_draft(s);
    purge(s, -1);
    drop_slot(s, &s->slot);
    for (int i = 0; i < s->pool->n_cache_kind; i++) {
        drop_blocks(s, i, s->kinds[i].first, s->kinds[i].end);
        s->kinds[i].first = s->kinds[i].end = s->kinds[i].next_end = s->kinds[i].oldest = 0;
    }
    s->hidden.n = 0;
    s->pos = 0;
}

/* Replaces the text's pages of a windowed kind by those of a checkpoint; `page` points to the first of them. */
static void restore_window(struct model_state *s, int kind, const struct checkpoint *c, const int32_t *page)
{
    struct text_pages *t = &s->kinds[kind];
    const struct page_kind *k = &s->pool->kinds[kind];
    int64_t first, end;
    visible_blocks(k, c->pos, &first, &end);
    for (int64_t i = first; i < end; i++)
        state_pool_keep(s->pool, kind, page[i - first]);
    drop_blocks(s, kind, t->first, t->end);
    for (int64_t i = first; i < end; i++)
        t->page[i] = page[i - first];
    t->first = first;
    t->end = t->next_end = end;
    t->oldest = window_first(k->window, c->pos);
}

static void restore(struct model_state *s, struct checkpoint *c)
{
    struct state_pool *p = s->pool;
    const int32_t *page = c->page;
    c->tick = p->tick;
    for (int i = 0; i < p->n_cache_kind; i++) {
        if (!p->kinds[i].window) {
            cut_blocks(s, i, kind_blocks(&p->kinds[i], c->pos));
            continue;
        }
        restore_window(s, i, c, page);
        page += window_pages(&p->kinds[i]);
    }
    drop_slot(s, &s->slot);
    s->slot = c->slot;
    if (c->slot >= 0)
        state_pool_keep(p, p->n_cache_kind, c->slot);
    s->pos = c->pos;
}

bool state_has_window(const struct model_state *s, int64_t pos)
{
    for (int i = 0; i < s->pool->n_cache_kind; i++)
        if (s->kinds[i].oldest > window_first(s->pool->kinds[i].window, pos))
            return false;
    return true;
}

/* Goes back to the last checkpoint, or makes the text empty if there is none. */
static void restore_last(struct model_state *s)
{
    struct checkpoint *last = last_checkpoint(s);
    if (last)
        restore(s, last);
    else
        model_state_reset(s);
}

void state_fail(struct model_state *s)
{
    bool is_lost = s->slot >= 0 && s->segments[s->n_segment - 1].slot == s->slot;
    state_abort(s);
    if (!is_lost)
        return;
    purge(s, s->pos);
    restore_last(s);
}

int64_t model_state_truncate(struct model_state *s, int64_t pos)
{
    assert(pos >= 0 && pos <= s->pos);
    if (pos == s->pos)
        return pos;
    state_end_draft(s);
    purge(s, pos);
    if (pos > 0 && !state_pool_is_recurrent(s->pool) && state_has_window(s, pos)) {
        s->pos = pos;
        for (int i = 0; i < s->pool->n_cache_kind; i++)
            cut_blocks(s, i, kind_blocks(&s->pool->kinds[i], pos));
    } else {
        restore_last(s);
    }
    return s->pos;
}

int64_t model_state_way_back(const struct model_state *s, int64_t pos)
{
    int64_t best = 0;
    if (pos >= s->pos || (pos > 0 && !state_pool_is_recurrent(s->pool) && state_has_window(s, pos)))
        return min_i64(pos, s->pos);
    for (int i = 0; i < s->n_checkpoint; i++) {
        const struct checkpoint_ref *r = &s->checkpoints[i];
        if (checkpoint_is_there(r) && r->at->pos <= pos)
            best = max_i64(best, r->at->pos);
    }
    return best;
}

bool model_state_goes_back(const struct model_state *s)
{
    bool is_full = !state_pool_is_recurrent(s->pool);
    for (int i = 0; i < s->pool->n_cache_kind; i++)
        is_full = is_full && !s->pool->kinds[i].window;
    return is_full;
}

bool state_take_back(struct model_state *s, int64_t pos)
{
    struct state_pool *p = s->pool;
    int32_t slot = s->slot;
    assert(s->draft.is_open && pos >= s->draft.pos && pos <= s->pos);
    if (!state_has_window(s, pos))
        return false;
    if (pos == s->draft.pos) {
        slot = s->draft.slot;
        s->draft = (struct text_draft){.slot = -1};
    } else if (state_pool_is_shared(p, p->n_cache_kind, slot) && (slot = state_pool_take(p, p->n_cache_kind)) < 0) {
        return false;
    }
    if (slot != s->slot)
        drop_slot(s, &s->slot);
    s->slot = slot;
    s->pos = pos;
    purge(s, pos);
    for (int i = 0; i < p->n_cache_kind; i++)
        cut_blocks(s, i, kind_blocks(&p->kinds[i], pos));
    return true;
}

/* ---- forking -------------------------------------------------------------------------------------------------- */

/* Copies the last result, if there is memory. */
static void share_hidden(struct model_state *s, const struct model_state *from)
{
    struct err e;
    const float *row = state_hidden(from);
    int64_t width = from->hidden.width;
    if (!row || state_hidden_fit(s, 1, width, &e) != ERR_OK)
        return;
    memcpy(s->hidden.rows, row, (size_t)width * sizeof *row);
    s->hidden.first = from->pos - 1;
    s->hidden.n = 1;
}

static void share(struct model_state *s, const struct model_state *from)
{
    struct state_pool *p = s->pool;
    for (int i = 0; i < p->n_cache_kind; i++) {
        const struct text_pages *f = &from->kinds[i];
        struct text_pages *t = &s->kinds[i];
        for (int64_t b = f->first; b < f->end; b++) {
            state_pool_keep(p, i, f->page[b]);
            t->page[b] = f->page[b];
        }
        t->first = f->first;
        t->end = t->next_end = f->end;
        t->oldest = f->oldest;
    }
    state_write_ids(s, from->ids, from->pos);
    s->pos = from->pos;
    s->slot = from->slot;
    if (s->slot >= 0)
        state_pool_keep(p, p->n_cache_kind, s->slot);
    for (int i = 0; i < from->n_checkpoint && s->n_checkpoint < s->max_checkpoint; i++) {
        checkpoint_keep(&from->checkpoints[i]);
        s->checkpoints[s->n_checkpoint++] = from->checkpoints[i];
    }
}

err_code model_state_fork(struct model_state **out, struct model_state *from, struct err *e)
{
    assert(from->n_segment == 0);
    TRY(model_state_create(out, from->pool, from->n_ctx, e));
    model_state_checkpoint(from);
    share(*out, from);
    share_hidden(*out, from);
    return ERR_OK;
}
