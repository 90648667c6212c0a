#include "experts/experts.h"

#include <assert.h>
#include <stdlib.h>

#include "experts/moves.h"
#include "experts/resident.h"
#include "experts/substitutes.h"

struct experts {
    struct experts_params p;
    struct arena arena;
    struct expert_slots slots;
    struct read_requests reads;
    struct prefetch prefetch;
    struct fetch fetch;
    struct substitutes substitutes;
    struct moves moves; /* of a cache */
    struct usage usage;
    bool counts_all;                   /* resident layers, too */
    uint64_t n_loaded, n_loaded_bytes; /* experts that were read at the start */
};

static err_code create(struct experts *x, const struct expert_layer *layers, int n_layer, struct err *e)
{
    const struct experts_params *p = &x->p;
    TRY(slots_create(&x->slots, p, layers, n_layer, &x->arena, e));
    x->reads = (struct read_requests){.slots = &x->slots, .store = p->store, .pool = p->pool};
    TRY(prefetch_create(&x->prefetch, &x->slots, &x->reads, &x->arena, e));
    TRY(fetch_create(&x->fetch, &x->slots, &x->reads, &x->prefetch, p->pool, &x->arena, e));
    x->substitutes = (struct substitutes){.slots = &x->slots, .fetch = &x->fetch};
    TRY(moves_create(&x->moves, &x->slots, &x->fetch, &x->arena, e));
    return usage_create(&x->usage, n_layer, x->slots.n_expert, e);
}

err_code experts_create(struct experts **out, const struct experts_params *p, const struct expert_layer *layers,
                        int n_layer, struct err *e)
{
    *out = NULL;
    struct experts *x = mem_calloc(1, sizeof *x);
    if (!x)
        return err_nomem(e, sizeof *x, "the experts");
    x->p = *p;
    err_code code = create(x, layers, n_layer, e);
    if (code != ERR_OK)
        experts_close(&x);
    *out = x;
    return code;
}

void experts_close(struct experts **out)
{
    struct experts *x = *out;
    if (!x)
        return;
    fetch_close(&x->fetch);
    requests_close(&x->reads);
    slots_close(&x->slots);
    usage_close(&x->usage);
    arena_close(&x->arena);
    mem_free(x);
    *out = NULL;
}

err_code experts_load(struct experts *x, void (*progress)(void *user, uint64_t n_bytes), void *user, struct err *e)
{
    struct resident_load d = {
        .slots = &x->slots, .store = x->p.store, .pool = x->p.pool, .progress = progress, .user = user};
    if (x->p.is_cache)
        return ERR_OK;
    err_code code = resident_load(&d, e);
    x->n_loaded += d.n_read;
    x->n_loaded_bytes += d.n_read_bytes;
    return code;
}

struct touch {
    struct backend *device;
    const struct slot_group *group;
};

static void touch_task(void *arg, size_t slot, int thread)
{
    const struct touch *t = arg;
    if (policy_is_open(t->group->policy, (int64_t)slot))
        backend_slot_touch(t->device, t->group->slot_pool, (int64_t)slot);
}

err_code experts_open(struct experts *x, size_t spare_bytes, struct err *e)
{
    if (experts_all_resident(x))
        return ERR_OK;
    TRY(fetch_open(&x->fetch, e));
    for (struct slot_group *g; (g = slots_neediest(&x->slots));) {
        size_t room = backend_room_bytes(x->slots.device);
        if (room < spare_bytes || room - spare_bytes < g->size.slot_bytes || !slots_open_one(&x->slots, g))
            break;
    }
    for (int i = 0; i < x->slots.n_group; i++) {
        struct touch t = {x->slots.device, &x->slots.groups[i]};
        if (!t.group->is_resident)
            pool_run(x->p.pool, (size_t)t.group->n_slot, touch_task, &t);
    }
    return ERR_OK;
}

/* ---- a warm start --------------------------------------------------------------------------------------------- */

struct heat {
    int layer;
    int32_t expert;
    double rate;
};

static int hottest_first(const void *a, const void *b)
{
    const struct heat *x = a, *y = b;
    if (x->rate != y->rate)
        return x->rate > y->rate ? -1 : 1;
    return x->layer != y->layer ? x->layer - y->layer : x->expert - y->expert;
}

/* Seeds the policies, and lists the experts that were used (NULL: doesn't); returns how many. */
static int64_t seed(struct experts *x, const struct usage *past, struct heat *out)
{
    int64_t n = 0;
    for (int i = 0; i < x->slots.n_layer; i++) {
        const struct slot_layer *l = &x->slots.layers[i];
        for (int32_t j = 0; j < l->d.n_expert && !l->group->is_resident; j++) {
            if (!slots_is_here(&x->slots, i, j))
                continue;
            double rate = usage_rate(past, i, j, l->d.n_used);
            policy_seed(l->group->policy, l->index, j, rate);
            if (rate > 0 && out)
                out[n++] = (struct heat){i, j, rate};
        }
    }
    return n;
}

err_code experts_warm(struct experts *x, const struct usage *past, struct err *e)
{
    if (experts_all_resident(x))
        return ERR_OK;
    if (x->p.is_cache) {
        seed(x, past, NULL);
        return ERR_OK;
    }
    TRY(fetch_open(&x->fetch, e));
    size_t n_all = (size_t)x->slots.n_layer * (size_t)x->slots.n_expert;
    struct heat *all = mem_calloc(n_all, sizeof *all);
    if (!all)
        return err_nomem(e, n_all * sizeof *all, "earlier usage");
    int64_t n = seed(x, past, all);
    qsort(all, (size_t)n, sizeof *all, hottest_first);
    for (int64_t i = 0; i < n; i++) {
        if (x->reads.n_busy == x->reads.n_request)
            fetch_advance(&x->fetch, true);
        if (slots_find(&x->slots, all[i].layer, all[i].expert) < 0)
            requests_start(&x->reads, all[i].layer, all[i].expert, true);
    }
    while (x->reads.n_busy > 0)
        fetch_advance(&x->fetch, true);
    x->reads.stall_ns = 0; /* it counts what fetches waited */
    mem_free(all);
    return ERR_OK;
}

/* ---- fetches -------------------------------------------------------------------------------------------------- */

/* Learns what the router chose. */
static void observe(struct experts *x, int layer, const int32_t *wanted, int64_t n_tok, int64_t n_used)
{
    const struct slot_layer *l = &x->slots.layers[layer];
    fetch_end(&x->fetch);
    if (layer <= x->fetch.layer) /* the layers come in ascending order */
        substitutes_new_token(&x->substitutes);
    policy_observe(l->group->policy, l->index, wanted, n_tok, n_used);
    if (!l->d.is_here)
        usage_add(&x->usage, layer, wanted, (size_t)(n_tok * n_used));
}

void experts_count_all(struct experts *x, bool on)
{
    x->counts_all = on;
}

bool experts_counts_all(const struct experts *x)
{
    return x->counts_all;
}

void experts_count_choice(struct experts *x, int layer, const int32_t *ids, int64_t n)
{
    assert(x->slots.layers[layer].d.is_here || experts_is_resident(x, layer));
    usage_add(&x->usage, layer, ids, (size_t)n);
}

void experts_count_resident(struct experts *x, int layer, const int32_t *ids, int64_t n)
{
    fetch_count_resident(&x->fetch, layer, ids, n);
}

void experts_fetch_begin(struct experts *x, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used,
                         bool is_decode)
{
    observe(x, layer, ids, n_tok, n_used);
    fetch_begin(&x->fetch, layer, ids, n_tok, n_used, is_decode);
    substitutes_logical_fetch(&x->substitutes, ids, n_used);
}

void experts_fetch_begin_instead(struct experts *x, int layer, const struct experts_choice *c)
{
    observe(x, layer, c->wanted, c->n_tok, c->n_used);
    substitutes_note(&x->substitutes, layer, c);
    fetch_begin(&x->fetch, layer, c->ids, c->n_tok, c->n_used, c->is_decode);
    substitutes_logical_fetch(&x->substitutes, c->wanted, c->n_used);
}

err_code experts_fetch_next(struct experts *x, int32_t *table, int64_t *n, struct err *e)
{
    return fetch_next(&x->fetch, table, n, e);
}

void experts_fetch_end(struct experts *x)
{
    fetch_end(&x->fetch);
}

void experts_prefetch(struct experts *x, int layer, const int32_t *ids, int64_t n, bool is_likely)
{
    x->reads.is_single_token = n <= x->slots.layers[layer].d.n_used; /* the first one comes before any fetch */
    prefetch_predict(&x->prefetch, layer, ids, n, is_likely);
    fetch_feed(&x->fetch);
}

bool experts_may_predict(const struct experts *x)
{
    const struct fetch *f = &x->fetch;
    return f->is_open && f->n_ready < f->n_left && (x->prefetch.layer < 0 || x->prefetch.next == 0);
}

/* ---- slots as a cache -------------------------------------------------------------------------------------------- */

int64_t experts_cache_begin(struct experts *x, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used,
                            bool is_used, int32_t *table)
{
    const struct slot_layer *l = &x->slots.layers[layer];
    assert(x->p.is_cache);
    policy_observe(l->group->policy, l->index, ids, n_tok, n_used);
    return moves_begin(&x->moves, layer, ids, n_tok * n_used, is_used, table);
}

bool experts_cache_wants(struct experts *x, int *layer, int32_t *expert)
{
    return moves_find(&x->moves, layer, expert);
}

bool experts_cache_move(struct experts *x, int layer, int32_t expert, const struct expert_bytes *from)
{
    return moves_start(&x->moves, layer, expert, from);
}

int experts_cache_settle(struct experts *x, bool wait)
{
    return moves_settle(&x->moves, wait);
}

bool experts_lend(struct experts *x, int layer, int32_t expert, struct expert_bytes *out)
{
    const struct slot_layer *l = &x->slots.layers[layer];
    int64_t slot = slots_find(&x->slots, layer, expert);
    if (slot < 0 || requests_find(&x->reads, layer, expert))
        return false;
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        out->matrix[i] =
            backend_slot_bytes(x->p.device, l->group->slot_pool, slot, (enum expert_matrix)i, &out->is_packed[i]);
        if (!out->matrix[i])
            return false;
    }
    return true;
}

/* ---- substitutes --------------------------------------------------------------------------------------------------
 */

void experts_look(struct experts *x, int layer, bool *at_hand)
{
    substitutes_look(&x->substitutes, layer, at_hand);
}

void experts_backfill(struct experts *x)
{
    substitutes_backfill(&x->substitutes);
}

void experts_forget(struct experts *x)
{
    fetch_end(&x->fetch);
    moves_end(&x->moves);
    prefetch_end(&x->prefetch);
    while (x->reads.n_busy > 0) /* nobody wants them, so that failures are not reported */
        fetch_advance(&x->fetch, true);
    for (int i = 0; i < x->slots.n_group; i++)
        if (!x->slots.groups[i].is_resident)
            policy_forget(x->slots.groups[i].policy);
    prefetch_forget(&x->prefetch);
    substitutes_forget(&x->substitutes);
}

/* ---- resident layers ------------------------------------------------------------------------------------------ */

bool experts_all_resident(const struct experts *x)
{
    for (int i = 0; i < x->slots.n_group; i++)
        if (!x->slots.groups[i].is_resident)
            return false;
    return true;
}

bool experts_is_resident(const struct experts *x, int layer)
{
    return x->slots.layers[layer].group->is_resident;
}

bool experts_is_at_drive(const struct experts *x)
{
    return atomic_load_explicit(&x->reads.is_at_queue, memory_order_relaxed);
}

bool experts_is_fetching(const struct experts *x, int layer)
{
    return !x->p.is_cache && !experts_is_resident(x, layer);
}

bool experts_has_slot(const struct experts *x, int layer, int32_t expert)
{
    return slots_is_here(&x->slots, layer, expert) && slots_find(&x->slots, layer, expert) >= 0;
}

const struct tensor *experts_pin(struct experts *x, int layer)
{
    const struct slot_layer *l = &x->slots.layers[layer];
    if (!l->group->is_resident)
        return NULL;
    policy_pin_layer(l->group->policy, l->index);
    return &l->table;
}

void experts_unpin(struct experts *x, int layer)
{
    policy_pin_layer(x->slots.layers[layer].group->policy, -1);
}

/* ---- memory and figures --------------------------------------------------------------------------------------- */

void experts_reclaim(struct experts *x, size_t n_bytes)
{
    if (backend_room_bytes(x->slots.device) < n_bytes)
        prefetch_end(&x->prefetch); /* what it holds can't be spared */
    slots_reclaim(&x->slots, n_bytes);
}

struct slot_pool *experts_slot_pool(const struct experts *x, int layer)
{
    return x->slots.layers[layer].group->slot_pool;
}

size_t experts_min_bytes(const struct experts *x)
{
    return slots_min_bytes(&x->slots);
}

size_t experts_max_bytes(const struct experts *x)
{
    return slots_max_bytes(&x->slots);
}

size_t experts_open_bytes(const struct experts *x)
{
    size_t n = 0;
    for (int i = 0; i < x->slots.n_group; i++)
        n += (size_t)policy_n_open(x->slots.groups[i].policy) * x->slots.groups[i].size.slot_bytes;
    return n;
}

size_t experts_staging_bytes(const struct experts *x)
{
    return x->reads.staging ? (size_t)x->reads.n_request * x->reads.request_bytes : 0;
}

int64_t experts_n_slot(const struct experts *x)
{
    int64_t n = 0;
    for (int i = 0; i < x->slots.n_group; i++)
        n += policy_n_open(x->slots.groups[i].policy);
    return n;
}

size_t experts_slot_bytes(const struct experts *x, int layer)
{
    return x->slots.layers[layer].group->size.slot_bytes;
}

int experts_group(const struct experts *x, int layer)
{
    return (int)(x->slots.layers[layer].group - x->slots.groups);
}

const struct usage *experts_usage(const struct experts *x)
{
    return &x->usage;
}

struct experts_counters experts_counters(const struct experts *x)
{
    const struct substitutes *s = &x->substitutes;
    return (struct experts_counters){.n_hit = x->fetch.n_hit,
                                     .n_miss = x->fetch.n_miss,
                                     .n_decode_hit = x->fetch.n_decode_hit,
                                     .n_decode_miss = x->fetch.n_decode_miss,
                                     .n_evicted = x->reads.n_evicted,
                                     .n_read = x->n_loaded + x->reads.n_read,
                                     .n_read_bytes = x->n_loaded_bytes + x->reads.n_read_bytes,
                                     .n_prefetched = x->prefetch.n_prefetched,
                                     .n_prefetch_used = x->prefetch.n_used,
                                     .n_substituted = s->n_substituted,
                                     .n_backfilled = s->n_backfilled,
                                     .ratio_sum = s->ratio_sum,
                                     .n_spared = s->n_spared,
                                     .stall_ns = x->reads.stall_ns,
                                     .arrival_ns = x->reads.arrival_ns,
                                     .n_many_bytes = x->reads.n_many_bytes,
                                     .many_ns = x->reads.many_ns};
}

struct experts_layer_counters experts_layer_counters(const struct experts *x, int layer)
{
    return x->fetch.counters[layer];
}

const char *experts_engine(const struct experts *x)
{
    return x->reads.queue ? store_queue_engine(x->reads.queue) : "";
}
