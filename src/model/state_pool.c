#include "model/state_pool.h"

#include <assert.h>
#include <string.h>

#include "base/minmax.h"

/* The most pages of a kind: tiny models would get more than anyone needs. */
enum { MAX_PAGES = 1 << 17 };

/* ---- kinds of pages ------------------------------------------------------------------------------------------- */

/* The number of positions that an entry of the layer's compressed cache is made from. */
static int64_t entry_span(const struct attention *a)
{
    const struct compressor *c = &a->compressed.entries;
    return c->n ? a->compressed.ratio * (c->width / c->n) : 0;
}

/* The widest window of all layers that use layer i's cache; 0: one of them sees everything. */
static int64_t widest_window(const struct model *m, int64_t i)
{
    int64_t widest = 0;
    for (int64_t j = i; j < m->n_layer; j++) {
        const struct layer *l = &m->layers[j];
        if (l->is_recurrent || l->attn.kv_layer != i)
            continue;
        if (l->attn.window == 0)
            return 0;
        widest = max_i64(widest, max_i64(l->attn.window, entry_span(&l->attn)));
    }
    return widest;
}

/* Whether a later layer uses layer i's cache, too. */
static bool is_shared(const struct model *m, int64_t i)
{
    for (int64_t j = i + 1; j < m->n_layer; j++)
        if (!m->layers[j].is_recurrent && m->layers[j].attn.kv_layer == i)
            return true;
    return false;
}

static bool has_cache(const struct layer *l)
{
    return !l->is_recurrent && l->attn.k;
}

/* Finds or adds a kind of pages, and returns its index. */
static int add_kind(struct state_pool *p, bool is_recurrent, int64_t window, int64_t ratio)
{
    for (int i = 0; i < p->n_kind; i++)
        if (p->kinds[i].is_recurrent == is_recurrent && p->kinds[i].window == window && p->kinds[i].ratio == ratio)
            return i;
    p->kinds[p->n_kind] = (struct page_kind){.is_recurrent = is_recurrent, .window = window, .ratio = ratio};
    return p->n_kind++;
}

/* Finds the kinds of all layers. The kinds of caches come first. */
static void find_kinds(struct state_pool *p, const struct model *m)
{
    for (int64_t i = 0; i < m->n_layer; i++) {
        const struct compressed_attention *c = &m->layers[i].attn.compressed;
        struct layer_pages *y = &p->layers[i];
        y->kind = y->entry_kind = y->part_kind = -1;
        if (!has_cache(&m->layers[i]))
            continue;
        y->kind = y->part_kind = add_kind(p, false, widest_window(m, i), 1);
        if (c->ratio)
            y->entry_kind = add_kind(p, false, 0, c->ratio);
        if (m->layers[i]
                .attn.index.run) /* only the parts of one run are kept, while keys and values are kept for all */
            y->part_kind = add_kind(p, false, c->ratio, 1);
        p->kinds[y->kind].is_shared |= is_shared(m, i);
    }
    p->n_cache_kind = p->n_kind;
    for (int64_t i = 0; i < m->n_layer; i++)
        if (m->layers[i].is_recurrent)
            p->layers[i].kind = add_kind(p, true, 0, 1);
}

/* The number of parts of a kind's first region: the number of heads, if the device has several memory nodes and all
 * layers have the same number; else one. */
static int64_t find_parts(const struct state_pool *p, const struct model *m, const struct model_stage *s, int kind)
{
    int64_t n = 0;
    if (backend_n_node(s->device) == 1)
        return 1;
    for (int64_t i = s->first; i < s->end; i++) {
        const struct layer *l = &m->layers[i];
        int64_t n_head = l->is_recurrent ? l->recurrent.n_head_v : l->attn.n_head_kv;
        if (p->layers[i].kind != kind)
            continue;
        if (n && n != n_head)
            return 1;
        n = n_head;
    }
    return n ? n : 1;
}

static err_code check_type(const struct model *m, enum elem_type kv, struct err *e)
{
    const struct err *refusal = &m->cache_refusals[kv];
    if (refusal->code != ERR_OK)
        return err_set(e, refusal->code, "%s", refusal->text);
    for (int64_t i = 0; i < m->n_layer; i++) {
        const struct attention *a = &m->layers[i].attn;
        if (has_cache(&m->layers[i]) && kv == ELEM_Q8_0 &&
            (a->head_dim % 32 || a->head_dim_v % 32 || a->index.dim % 32))
            return err_set(e, ERR_UNSUPPORTED,
                           "layer %lld has rows of %lld and %lld, which Q8_0 can't hold: expected multiples of 32 (F16 "
                           "and F32 take any)",
                           (long long)i, (long long)a->head_dim, (long long)a->head_dim_v);
    }
    return ERR_OK;
}

/* ---- where layers lie in pages -------------------------------------------------------------------------------- */

/* Gives a layer its place in a region's pages, whose parts grow by the bytes of a part of it. The buffer is set
 * later. */
static struct paged place(struct page_region *r, enum elem_type type, int64_t ne0, int64_t ne1, int64_t ne2)
{
    struct paged x = {.page = {.off_bytes = r->bytes, .type = type, .ne = {ne0, ne1, ne2}}};
    x.part_bytes = elem_row_bytes(type, ne0) * (size_t)ne1;
    r->bytes += x.part_bytes * (size_t)(r->n_part == 1 ? ne2 : 1);
    r->bytes = (r->bytes + 63) & ~(size_t)63;
    return x;
}

/* Where a layer lies in the pages of a kind. */
static struct page_region *regions_of(struct state_pool *p, const struct model *m, int64_t layer, int kind)
{
    int stage = (int)(model_stage_of(m, layer) - m->stages);
    return p->kinds[kind].region + stage * STAGE_MAX_REGION;
}

/* A compressed cache, and beside the other caches what its entries are made of. */
static void place_compressed(struct state_pool *p, const struct attention *a, struct layer_pages *y,
                             struct page_region *parts, struct page_region *entries)
{
    const struct compressed_attention *c = &a->compressed;
    if (c->entries.n) {
        y->entries = place(&entries[0], p->type, c->entries.n, ATTENTION_BLOCK, 1);
        y->compress_x = place(&parts[1], ELEM_F32, c->entries.width, ATTENTION_BLOCK, 1);
        y->compress_gate = place(&parts[1], ELEM_F32, c->entries.width, ATTENTION_BLOCK, 1);
    }
    if (c->index.n == 0)
        return;
    y->index = place(&entries[1], p->type, c->index.n, ATTENTION_BLOCK, 1);
    y->index_x = place(&parts[1], ELEM_F32, c->index.width, ATTENTION_BLOCK, 1);
    if (c->index.gate)
        y->index_gate = place(&parts[1], ELEM_F32, c->index.width, ATTENTION_BLOCK, 1);
}

static void place_layers(struct state_pool *p, const struct model *m)
{
    for (int i = 0; i < p->n_kind; i++) {
        for (int j = 0; j < m->n_stage; j++) {
            struct page_region *r = p->kinds[i].region + j * STAGE_MAX_REGION;
            r[0].device = r[1].device = m->stages[j].device;
            r[0].n_part = find_parts(p, m, &m->stages[j], i);
            r[1].n_part = 1;
        }
    }
    for (int64_t i = 0; i < m->n_layer; i++) {
        const struct attention *a = &m->layers[i].attn;
        const struct recurrent *d = &m->layers[i].recurrent;
        struct layer_pages *y = &p->layers[i];
        if (y->kind < 0)
            continue;
        struct page_region *r = regions_of(p, m, i, y->kind);
        y->device = r->device;
        if (m->layers[i].is_recurrent) {
            if (d->n_head_v)
                y->rule = place(&r[0], ELEM_F32, d->dk, d->dv, d->n_head_v);
            if (d->n_tap)
                y->past = place(&r[1], ELEM_F32, d->n_mixed, d->n_tap - 1, 1);
            if (m->layers[i].ngram.key)
                y->ngram_past = place(&r[1], ELEM_F32, m->n_stream * m->n_embd, m->layers[i].ngram.conv.ne[1] - 1, 1);
            continue;
        }
        y->k = place(&r[0], p->type, a->head_dim, ATTENTION_BLOCK, a->n_head_kv);
        if (y->entry_kind >= 0)
            place_compressed(p, a, y, regions_of(p, m, i, y->part_kind), regions_of(p, m, i, y->entry_kind));
        else if (a->index.n_head)
            y->index = place(&r[1], p->type, a->index.dim, ATTENTION_BLOCK, 1);
        if (!a->is_latent && !a->is_compressed) /* else keys are values */
            y->v = place(&r[0], p->type, a->head_dim_v, ATTENTION_BLOCK, a->n_head_kv);
    }
}

/* Rounds the regions of a kind up, and says how many bytes a page has. */
static void size_pages(struct page_kind *k)
{
    size_t unit = max_size(BUFFER_ALIGN, mem_page_bytes());
    for (int i = 0; i < KIND_MAX_REGION; i++) {
        struct page_region *r = &k->region[i];
        r->bytes = (r->bytes + unit - 1) / unit * unit;
        k->bytes += r->bytes * (size_t)r->n_part;
    }
}

static void finish_place(struct paged *x, const struct page_kind *k, const struct page_region *r)
{
    if (x->page.ne[0] == 0)
        return;
    x->page.buffer = r->buffer;
    x->page_bytes = r->bytes;
    if (r->n_part > 1)
        x->part_bytes = (size_t)k->capacity * r->bytes;
}

/* Says where a layer's places are, now that all pages have buffers. */
static void finish_layer(struct state_pool *p, const struct model *m, int64_t i)
{
    struct layer_pages *y = &p->layers[i];
    const struct layer *layer = &m->layers[i];
    const struct page_kind *k = &p->kinds[y->kind];
    const struct page_region *r = regions_of(p, m, i, y->kind);
    finish_place(&y->k, k, &r[0]);
    finish_place(&y->v, k, &r[0]);
    finish_place(&y->rule, k, &r[0]);
    finish_place(&y->compress_x, k, &r[1]);
    finish_place(&y->compress_gate, k, &r[1]);
    finish_place(&y->past, k, &r[1]);
    finish_place(&y->ngram_past, k, &r[1]);
    if (y->entry_kind >= 0) {
        k = &p->kinds[y->entry_kind];
        r = regions_of(p, m, i, y->entry_kind);
        finish_place(&y->entries, k, &r[0]);
    }
    finish_place(&y->index, k, &r[1]);
    if (y->part_kind >= 0) {
        k = &p->kinds[y->part_kind];
        r = regions_of(p, m, i, y->part_kind);
        finish_place(&y->index_x, k, &r[1]);
        finish_place(&y->index_gate, k, &r[1]);
    }
    if ((layer->attn.is_latent || layer->attn.is_compressed) && !layer->is_recurrent) /* keys are values */
        y->v = y->k;
}

/* ---- creation ------------------------------------------------------------------------------------------------- */

static err_code create_kind(struct state_pool *p, struct page_kind *k, struct err *e)
{
    size_t n = k->bytes ? p->max_bytes / k->bytes : 1;
    k->capacity = (int32_t)(n < MAX_PAGES ? n : MAX_PAGES);
    k->n_ref = arena_calloc(&p->arena, (size_t)k->capacity, sizeof *k->n_ref);
    k->free = arena_calloc(&p->arena, (size_t)k->capacity, sizeof *k->free);
    if (!k->n_ref || !k->free)
        return err_nomem(e, (size_t)k->capacity * sizeof *k->free, "pages");
    for (int i = 0; i < KIND_MAX_REGION; i++) {
        struct page_region *r = &k->region[i];
        size_t bytes = (size_t)k->capacity * (size_t)r->n_part * r->bytes;
        if (bytes)
            TRY(backend_buffer_reserve(r->device, bytes, r->bytes, r->n_part, MEM_STATE, &r->buffer, e));
    }
    return ERR_OK;
}

/* Whether texts need checkpoints to go back, and how many pages one holds. */
static void size_checkpoints(struct state_pool *p, int64_t interval)
{
    for (int i = 0; i < p->n_kind; i++) {
        const struct page_kind *k = &p->kinds[i];
        if (k->is_recurrent || k->window)
            p->interval = interval;
        p->n_window_page += window_pages(k);
    }
}

static err_code create(struct state_pool *p, const struct model *m, const struct state_pool_params *params,
                       struct err *e)
{
    p->layers = arena_calloc(&p->arena, (size_t)m->n_layer, sizeof *p->layers);
    p->kinds = arena_calloc(&p->arena, (size_t)m->n_layer * 3, sizeof *p->kinds); /* a layer has three at most */
    if (!p->layers || !p->kinds)
        return err_nomem(e, (size_t)m->n_layer * sizeof *p->kinds, "a pool of pages");
    TRY(check_type(m, params->type, e));
    find_kinds(p, m);
    place_layers(p, m);
    for (int i = 0; i < p->n_kind; i++) {
        size_pages(&p->kinds[i]);
        TRY(create_kind(p, &p->kinds[i], e));
    }
    for (int64_t i = 0; i < m->n_layer; i++)
        if (p->layers[i].kind >= 0)
            finish_layer(p, m, i);
    size_checkpoints(p, params->interval);
    int32_t *pages = arena_calloc(&p->arena, (size_t)p->n_window_page * POOL_MAX_CHECKPOINTS, sizeof *pages);
    if (!pages)
        return err_nomem(e, (size_t)p->n_window_page * POOL_MAX_CHECKPOINTS * sizeof *pages, "checkpoints");
    for (int i = 0; i < POOL_MAX_CHECKPOINTS; i++)
        p->checkpoints[i].page = pages + i * p->n_window_page;
    return ERR_OK;
}

err_code state_pool_create(struct state_pool **out, const struct model *m, const struct state_pool_params *params,
                           struct err *e)
{
    struct state_pool *p = *out = mem_calloc(1, sizeof *p);
    if (!p)
        return err_nomem(e, sizeof *p, "a pool of pages");
    p->n_layer = m->n_layer;
    p->keeps_ids = m->ngram.most_tokens > 0;
    p->type = params->type;
    p->max_bytes = params->max_bytes;
    p->max_checkpoint_bytes = params->max_checkpoint_bytes;
    err_code code = create(p, m, params, e);
    if (code != ERR_OK)
        state_pool_close(out);
    return code;
}

void state_pool_close(struct state_pool **out)
{
    struct state_pool *p = *out;
    if (!p)
        return;
    for (int i = 0; i < p->n_kind; i++)
        for (int j = 0; j < KIND_MAX_REGION; j++)
            backend_buffer_close(p->kinds[i].region[j].device, &p->kinds[i].region[j].buffer);
    arena_close(&p->arena);
    mem_free(p);
    *out = NULL;
}

/* ---- memory of pages ------------------------------------------------------------------------------------------ */

static size_t part_offset(const struct page_kind *k, const struct page_region *r, int32_t page, int64_t part)
{
    return (size_t)(part * k->capacity + page) * r->bytes;
}

static void decommit_parts(const struct page_kind *k, int32_t page, int n_region, int64_t n_part)
{
    for (int i = 0; i <= n_region && i < KIND_MAX_REGION; i++)
        for (int64_t j = 0; k->region[i].bytes && j < (i < n_region ? k->region[i].n_part : n_part); j++)
            backend_buffer_decommit(k->region[i].device, k->region[i].buffer, part_offset(k, &k->region[i], page, j),
                                    k->region[i].bytes);
}

/* Commits the memory of a page; if it fails, none of it. */
static bool commit(struct state_pool *p, const struct page_kind *k, int32_t page)
{
    if (k->bytes > p->max_bytes - p->used_bytes)
        return false;
    for (int i = 0; i < KIND_MAX_REGION; i++)
        for (int64_t j = 0; k->region[i].bytes && j < k->region[i].n_part; j++)
            if (!backend_buffer_commit(k->region[i].device, k->region[i].buffer, part_offset(k, &k->region[i], page, j),
                                       k->region[i].bytes)) {
                decommit_parts(k, page, i, j);
                return false;
            }
    p->used_bytes += k->bytes;
    return true;
}

void state_pool_trim(struct state_pool *p)
{
    for (int i = 0; i < p->n_kind; i++) {
        struct page_kind *k = &p->kinds[i];
        while (k->n_free) {
            int32_t page = k->free[--k->n_free];
            decommit_parts(k, page, KIND_MAX_REGION, 0);
            p->used_bytes -= k->bytes;
            k->free[k->capacity - ++k->n_bare] = page;
        }
    }
}

/* Takes a page with memory: a free one, or one that gets memory now. -1: there is none. */
static int32_t take(struct state_pool *p, struct page_kind *k)
{
    if (k->n_free)
        return k->free[--k->n_free];
    if (k->n_bare == 0 && k->n_begun == k->capacity)
        return -1;
    int32_t page = k->n_bare ? k->free[k->capacity - k->n_bare] : k->n_begun;
    if (!commit(p, k, page))
        return -1;
    k->n_begun += !k->n_bare;
    k->n_bare -= k->n_bare > 0;
    return page;
}

/* The bytes of a page on one stage's device. */
static size_t stage_page_bytes(const struct page_kind *k, int stage)
{
    const struct page_region *r = &k->region[stage * STAGE_MAX_REGION];
    return (size_t)r[0].n_part * r[0].bytes + (size_t)r[1].n_part * r[1].bytes;
}

/* Reclaims memory for a page, on each device for its part. Devices that work in the host's memory share its room. */
static bool make_room(const struct page_kind *k)
{
    size_t here = 0;
    bool is_there = true;
    for (int i = 0; i < MODEL_MAX_STAGE && is_there; i++) {
        struct backend *device = k->region[i * STAGE_MAX_REGION].device;
        size_t n = stage_page_bytes(k, i);
        if (n == 0)
            continue;
        here += backend_own_bytes(device) ? 0 : n;
        is_there = backend_make_room(device, backend_own_bytes(device) ? n : here);
    }
    return is_there;
}

static bool evict_checkpoint(struct state_pool *p);

int32_t state_pool_take(struct state_pool *p, int kind)
{
    struct page_kind *k = &p->kinds[kind];
    int32_t page = take(p, k);
    if (page < 0) {
        state_pool_trim(p); /* pages of other kinds */
        page = take(p, k);
    }
    if (page < 0 && k->bytes <= p->max_bytes - p->used_bytes && make_room(k))
        page = take(p, k);
    while (page < 0 && evict_checkpoint(p)) {
        state_pool_trim(p);
        page = take(p, k);
    }
    if (page >= 0)
        k->n_ref[page] = 1;
    return page;
}

void state_pool_keep(struct state_pool *p, int kind, int32_t page)
{
    assert(p->kinds[kind].n_ref[page] > 0);
    p->kinds[kind].n_ref[page]++;
}

void state_pool_drop(struct state_pool *p, int kind, int32_t page)
{
    struct page_kind *k = &p->kinds[kind];
    assert(k->n_ref[page] > 0);
    if (--k->n_ref[page] == 0)
        k->free[k->n_free++] = page;
}

bool state_pool_is_shared(const struct state_pool *p, int kind, int32_t page)
{
    return p->kinds[kind].n_ref[page] > 1;
}

void state_pool_copy(struct state_pool *p, int kind, int32_t from, int32_t to)
{
    const struct page_kind *k = &p->kinds[kind];
    for (int i = 0; i < KIND_MAX_REGION; i++)
        for (int64_t j = 0; k->region[i].bytes && j < k->region[i].n_part; j++) {
            const struct page_region *r = &k->region[i];
            struct tensor a = {r->buffer, part_offset(k, r, from, j), ELEM_I32, {(int64_t)r->bytes / 4, 1, 1}}, b = a;
            b.off_bytes = part_offset(k, r, to, j);
            backend_copy(r->device, &a, &b);
        }
}

size_t state_pool_used_bytes(const struct state_pool *p)
{
    size_t n = p->used_bytes;
    for (int i = 0; i < p->n_kind; i++)
        n -= (size_t)p->kinds[i].n_free * p->kinds[i].bytes;
    return n;
}

/* The most pages of a kind that a text holds, with those of a batch. */
static int64_t text_pages(const struct page_kind *k, int64_t n_ctx, int64_t n_batch)
{
    if (k->is_recurrent) /* a batch writes to another page */
        return 2;
    int64_t held = (k->window + WINDOW_SLACK) / ATTENTION_BLOCK + 2;
    return k->window ? min_i64(n_blocks(n_ctx), held + min_i64(n_blocks(n_batch), ring_blocks(k)))
                     : kind_blocks(k, n_ctx);
}

size_t state_pool_text_bytes(const struct state_pool *p, int64_t n_ctx, int64_t n_batch)
{
    size_t n = 0;
    for (int i = 0; i < p->n_kind; i++) {
        const struct page_kind *k = &p->kinds[i];
        n += (size_t)text_pages(k, n_ctx, n_batch) * k->bytes;
    }
    return n;
}

size_t state_pool_stage_bytes(const struct state_pool *p, int stage, int64_t n_ctx, int64_t n_batch)
{
    size_t n = 0;
    for (int i = 0; i < p->n_kind; i++) {
        const struct page_kind *k = &p->kinds[i];
        n += (size_t)text_pages(k, n_ctx, n_batch) * stage_page_bytes(k, stage);
    }
    return n;
}

size_t state_pool_checkpoint_bytes(const struct state_pool *p)
{
    size_t n = 0;
    for (int i = 0; i < p->n_kind; i++)
        n += (size_t)(p->kinds[i].is_recurrent ? 1 : window_pages(&p->kinds[i])) * p->kinds[i].bytes;
    return n;
}

size_t state_pool_max_bytes(const struct state_pool *p)
{
    return p->max_bytes;
}

/* ---- checkpoints ---------------------------------------------------------------------------------------------- */

/* Takes a checkpoint back: drops its references to pages and frees its slot. */
static void kill_checkpoint(struct state_pool *p, struct checkpoint *c)
{
    int32_t *page = c->page;
    for (int i = 0; i < p->n_cache_kind; i++) {
        int64_t n = window_pages(&p->kinds[i]);
        for (int64_t j = 0; j < n; j++, page++)
            if (*page >= 0)
                state_pool_drop(p, i, *page);
    }
    if (c->slot >= 0)
        state_pool_drop(p, p->n_cache_kind, c->slot);
    p->checkpoint_bytes -= c->bytes;
    c->n_ref = 0;
    c->serial = 0;
}

double checkpoint_worth(const struct state_pool *p, const struct checkpoint *c)
{
    return (double)c->saved / ((double)c->bytes + 1) / (double)(p->tick - c->tick + 1);
}

/* Takes back the checkpoint with the least worth; false: there is none. */
static bool evict_checkpoint(struct state_pool *p)
{
    struct checkpoint *least = NULL;
    for (int i = 0; i < POOL_MAX_CHECKPOINTS; i++) {
        struct checkpoint *c = &p->checkpoints[i];
        if (c->n_ref > 0 && (!least || checkpoint_worth(p, c) < checkpoint_worth(p, least)))
            least = c;
    }
    if (least)
        kill_checkpoint(p, least);
    return least != NULL;
}

static struct checkpoint *find_unused(struct state_pool *p)
{
    for (int i = 0; i < POOL_MAX_CHECKPOINTS; i++)
        if (p->checkpoints[i].n_ref == 0)
            return &p->checkpoints[i];
    return NULL;
}

struct checkpoint_ref checkpoint_take(struct state_pool *p, size_t n_bytes)
{
    if (n_bytes > p->max_checkpoint_bytes)
        return (struct checkpoint_ref){0};
    while (n_bytes > p->max_checkpoint_bytes - p->checkpoint_bytes)
        evict_checkpoint(p);
    struct checkpoint *c = find_unused(p);
    if (!c) {
        evict_checkpoint(p);
        c = find_unused(p);
    }
    *c = (struct checkpoint){
        .n_ref = 1, .serial = ++p->n_serial, .tick = p->tick, .bytes = n_bytes, .slot = -1, .page = c->page};
    for (int64_t i = 0; i < p->n_window_page; i++)
        c->page[i] = -1;
    p->checkpoint_bytes += n_bytes;
    return (struct checkpoint_ref){c, c->serial};
}

void checkpoint_keep(const struct checkpoint_ref *r)
{
    assert(checkpoint_is_there(r));
    r->at->n_ref++;
}

void checkpoint_drop(struct state_pool *p, const struct checkpoint_ref *r)
{
    if (checkpoint_is_there(r) && --r->at->n_ref == 0)
        kill_checkpoint(p, r->at);
}
