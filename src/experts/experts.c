#include "experts/experts.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "experts/experts_internal.h"

/* ---- groups --------------------------------------------------------------------------------------------------- */

static bool same_shape(const struct slot_pool_desc *a, const struct slot_pool_desc *b)
{
    return a->gate_type == b->gate_type && a->up_type == b->up_type && a->down_type == b->down_type &&
           a->n_embd == b->n_embd && a->n_ff == b->n_ff;
}

static void join_group(struct experts *x, struct layer_experts *l)
{
    int i = 0;
    while (i < x->n_group && !same_shape(&x->groups[i].shape, &l->d.shape))
        i++;
    struct group *g = &x->groups[i];
    if (i == x->n_group) {
        x->n_group++;
        *g = (struct group){.shape = l->d.shape};
        g->size.slot_bytes = backend_slot_pool_slot_bytes(x->p.device, &g->shape);
    }
    l->group = i;
    l->index = g->n_layer++;
    g->size.n_expert += l->d.n_expert;
    g->size.n_used = l->d.n_used > g->size.n_used ? l->d.n_used : g->size.n_used;
    g->n_expert = l->d.n_expert > g->n_expert ? l->d.n_expert : g->n_expert;
}

static int sizes(const struct experts *x, struct budget_group *out)
{
    for (int i = 0; i < x->n_group; i++)
        out[i] = x->groups[i].size;
    return x->n_group;
}

/* Chooses how many slots each group may have. */
static err_code divide(struct experts *x, struct err *e)
{
    struct budget_group *s = arena_calloc(&x->arena, (size_t)x->n_group, sizeof *s);
    int64_t *n_slot = arena_calloc(&x->arena, (size_t)x->n_group, sizeof *n_slot);
    if (!s || !n_slot)
        return err_nomem(e, (size_t)x->n_group * sizeof *s, "the experts");
    int n = sizes(x, s);
    size_t least = budget_min_bytes(s, n), most = budget_max_bytes(s, n), bytes = most;
    if (x->p.budget_bytes)
        bytes = x->p.budget_bytes;
    else if (x->p.budget_share > 0)
        bytes = (size_t)(x->p.budget_share * (double)most);
    if (bytes > mem_room_bytes())
        bytes = mem_room_bytes();
    if (bytes < least)
        return err_set(e, ERR_LIMIT,
                       "%zu bytes for routed experts are too few: the top-k experts of one layer need %zu (%.1f MiB, "
                       "%.2f%% of all)",
                       bytes, least, (double)least / (1 << 20), 100 * (double)least / (double)most);
    budget_divide(s, n, bytes, n_slot);
    for (int i = 0; i < n; i++)
        x->groups[i].n_slot = n_slot[i];
    return ERR_OK;
}

bool group_open_slot(struct experts *x, struct group *g)
{
    int64_t slot = policy_find_closed(g->policy);
    if (slot < 0 || !backend_slot_open(x->p.device, g->slot_pool, slot))
        return false;
    policy_open_slot(g->policy, slot);
    return true;
}

static err_code create_group(struct experts *x, struct group *g, struct err *e)
{
    const struct policy_desc d = {.kind = x->p.policy,
                                  .n_layer = g->n_layer,
                                  .n_expert = g->n_expert,
                                  .n_used = g->size.n_used,
                                  .n_slot = g->n_slot};
    TRY(policy_create(&g->policy, &d, e));
    if (x->p.deterministic)
        TRY(policy_create(&g->logical, &d, e));
    for (int64_t i = 0; g->logical && i < g->n_slot; i++)
        policy_open_slot(g->logical, i);
    g->shape.n_slot = g->n_slot;
    TRY(backend_slot_pool_create(x->p.device, &g->shape, &g->slot_pool, e));
    while (policy_n_open(g->policy) < g->size.n_used)
        if (!group_open_slot(x, g))
            return err_set(e, ERR_LIMIT, "no memory for the top-k experts of one layer, %zu bytes",
                           experts_min_bytes(x));
    return ERR_OK;
}

static err_code create(struct experts *x, const struct expert_layer *layers, struct err *e)
{
    int64_t most = 1;
    x->layers = arena_calloc(&x->arena, (size_t)x->n_layer, sizeof *x->layers);
    x->groups = arena_calloc(&x->arena, (size_t)x->n_layer, sizeof *x->groups);
    if (!x->layers || !x->groups)
        return err_nomem(e, (size_t)x->n_layer * sizeof *x->groups, "the experts");
    for (int i = 0; i < x->n_layer; i++) {
        struct layer_experts *l = &x->layers[i];
        l->d = layers[i];
        most = l->d.n_expert > most ? l->d.n_expert : most;
        join_group(x, l);
        TRY(backend_tensor_create(x->p.device, ELEM_I32, l->d.n_expert, 1, 1, MEM_SCRATCH, &l->table, e));
    }
    TRY(divide(x, e));
    for (int i = 0; i < x->n_group; i++)
        TRY(create_group(x, &x->groups[i], e));
    x->fetch.todo = arena_calloc(&x->arena, (size_t)most, sizeof *x->fetch.todo);
    x->fetch.ready = arena_calloc(&x->arena, (size_t)most, sizeof *x->fetch.ready);
    x->fetch.given = arena_calloc(&x->arena, (size_t)most, sizeof *x->fetch.given);
    x->prefetch.ids = arena_calloc(&x->arena, (size_t)most, sizeof *x->prefetch.ids);
    x->prefetch.held = arena_calloc(&x->arena, (size_t)most, sizeof *x->prefetch.held);
    x->seen = arena_calloc(&x->arena, (size_t)most, sizeof *x->seen);
    x->guessed = arena_calloc(&x->arena, (size_t)x->n_layer * (size_t)most, sizeof *x->guessed);
    if (!x->fetch.todo || !x->fetch.ready || !x->fetch.given || !x->prefetch.ids || !x->prefetch.held || !x->seen ||
        !x->guessed)
        return err_nomem(e, (size_t)most * sizeof *x->fetch.todo, "the experts");
    return usage_create(&x->usage, x->n_layer, most, e);
}

err_code experts_create(struct experts **out, const struct experts_params *p, const struct expert_layer *layers,
                        int n_layer, struct err *e)
{
    *out = NULL;
    struct experts *x = mem_calloc(1, sizeof *x);
    if (!x)
        return err_nomem(e, sizeof *x, "the experts");
    *x = (struct experts){.p = *p, .n_layer = n_layer, .prefetch = {.layer = -1}};
    err_code code = create(x, layers, e);
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
    requests_close(x);
    for (int i = 0; i < x->n_group; i++) {
        backend_slot_pool_close(x->p.device, &x->groups[i].slot_pool);
        policy_close(&x->groups[i].policy);
        policy_close(&x->groups[i].logical);
    }
    for (int i = 0; x->layers && i < x->n_layer; i++)
        backend_buffer_close(x->p.device, &x->layers[i].table.buffer);
    usage_close(&x->usage);
    arena_close(&x->arena);
    mem_free(x);
    *out = NULL;
}

/* ---- loading everything --------------------------------------------------------------------------------------- */

struct load {
    struct experts *x;
    int layer;
    char *staging;
    size_t staging_bytes; /* a thread */
    void (*progress)(void *user, uint64_t n_bytes);
    void *user;
    atomic_ullong n_read_bytes;
    atomic_flag failed;
    atomic_bool stop;
    err_code code;
    struct err err;
};

/* What is read and packed at once: little enough that the processor's cache still has it when it is packed, and enough
 * that asking for it costs little. Parts with a checksum, and those that lie as in a slot, are read whole. */
enum { PIECE_BYTES = 1 << 20 };

static size_t n_piece(const struct store_blob *b, const struct store_matrix *m)
{
    return b->packed || b->has_crc || m->n_bytes < 2 * PIECE_BYTES ? 1 : m->n_bytes / PIECE_BYTES;
}

/* Room in the staging for an expert's pieces. A copy of the expert that fails may be followed by one that needs less,
 * never by one that needs more. */
static void make_room(struct load *d, int index, int32_t expert)
{
    struct store_blob b;
    store_expert_blob(d->x->p.store, index, expert, &b);
    for (int i = 0; i < STORE_N_PART; i++) {
        const struct store_matrix *m = &store_get_layer(d->x->p.store, index)->part[i];
        size_t row_bytes = m->n_bytes / m->n_row, n = n_piece(&b, m);
        size_t room = n > 1 ? m->n_bytes / n + LAYOUT_R16_ROWS * row_bytes : matrix_room(m);
        d->staging_bytes = room > d->staging_bytes ? room : d->staging_bytes;
    }
}

/* Has the drive look for an expert's bytes, if there is one, before they are waited for. */
static void read_ahead(struct load *d, int32_t expert)
{
    const struct expert_layer *l = &d->x->layers[d->layer].d;
    struct store_range all[STORE_N_PART];
    struct store_blob b;
    if (expert >= l->n_expert)
        return;
    store_expert_blob(d->x->p.store, l->index, expert, &b);
    for (int i = 0; i < STORE_N_PART; i++)
        all[i] = (struct store_range){b.part[i].file, b.part[i].offset, b.part[i].n_bytes, NULL};
    store_read_ahead(d->x->p.store, all, STORE_N_PART);
}

/* Reads one part of an expert into its slot: straight, if that is how it lies, or through `staging`, from where it is
 * packed while it is still in the processor's cache. */
static err_code read_part(struct load *d, int32_t expert, const struct store_blob *b, int i, char *staging,
                          struct err *e)
{
    struct experts *x = d->x;
    int index = x->layers[d->layer].d.index;
    const struct store_matrix *m = &store_get_layer(x->p.store, index)->part[i];
    struct slot_pool *slot_pool = group_of(x, d->layer)->slot_pool;
    int64_t slot = policy_find(group_of(x, d->layer)->policy, x->layers[d->layer].index, expert);
    void *room = b->packed ? backend_slot_room(x->p.device, slot_pool, slot, i, true) : NULL,
         *dst = room ? room : staging;
    for (size_t p = 0, n = n_piece(b, m), from = 0; p < n; p++) {
        int64_t row = piece_row(m, p, n), n_row = piece_row(m, p + 1, n) - row;
        size_t n_bytes = p + 1 < n ? (size_t)n_row * (m->n_bytes / m->n_row) : b->part[i].n_bytes - from;
        const struct store_range range = {b->part[i].file, b->part[i].offset + from, n_bytes, dst};
        TRY(store_read(x->p.store, &range, 1, e));
        TRY(store_blob_check(x->p.store, index, expert, b, i, dst, e));
        if (!room)
            TRY(backend_slot_fill(x->p.device, slot_pool, slot, i, dst, b->packed, row, n_row, e));
        from += n_bytes;
    }
    if (room)
        backend_slot_adopt(x->p.device, slot_pool, slot, i, room, true);
    return ERR_OK;
}

static err_code load_part(struct load *d, int32_t expert, int i, char *staging, size_t *n_bytes, struct err *e)
{
    struct store *store = d->x->p.store;
    int index = d->x->layers[d->layer].d.index;
    struct store_blob b;
    err_code code;
    if (i == 0) {
        read_ahead(d, expert);
        read_ahead(d, expert + 1); /* the drive works on while this one is packed */
    }
    do {
        store_expert_blob(store, index, expert, &b);
        code = read_part(d, expert, &b, i, staging, e);
    } while (code != ERR_OK && store_expert_retry(store, index, expert, &b, e));
    *n_bytes = b.part[i].n_bytes;
    return code == ERR_OK ? ERR_OK : err_prefix(e, "layer %d, expert %d", index, (int)expert);
}

static void load_task(void *arg, size_t task, int thread)
{
    struct load *d = arg;
    struct err e = {0};
    size_t n;
    if (atomic_load(&d->stop))
        return;
    err_code code = load_part(d, (int32_t)(task / STORE_N_PART), (int)(task % STORE_N_PART),
                              d->staging + (size_t)thread * d->staging_bytes, &n, &e);
    if (code == ERR_OK) {
        uint64_t total = atomic_fetch_add(&d->n_read_bytes, n) + n;
        if (d->progress)
            d->progress(d->user, total);
    } else if (!atomic_flag_test_and_set(&d->failed)) {
        d->code = code;
        d->err = e;
        atomic_store(&d->stop, true);
    }
}

/* A slot for each expert of a group: true when there is memory for all. */
static bool open_all(struct experts *x, int group)
{
    struct group *g = &x->groups[group];
    bool evicted;
    if (g->n_slot < g->size.n_expert || g->size.slot_bytes * (size_t)g->n_slot > mem_room_bytes())
        return false;
    while (policy_n_open(g->policy) < g->n_slot)
        if (!group_open_slot(x, g))
            return false;
    for (int i = 0; i < x->n_layer; i++)
        for (int32_t j = 0; x->layers[i].group == group && j < x->layers[i].d.n_expert; j++)
            policy_release(g->policy, policy_take(g->policy, x->layers[i].index, j, &evicted));
    return true;
}

static void write_table(struct experts *x, struct layer_experts *l)
{
    int32_t *slots = x->fetch.todo; /* work space */
    for (int32_t i = 0; i < l->d.n_expert; i++)
        slots[i] = (int32_t)policy_find(x->groups[l->group].policy, l->index, i);
    backend_write(x->p.device, &l->table, slots);
}

static err_code load_groups(struct experts *x, struct load *d, struct err *e)
{
    for (int i = 0; i < x->n_group; i++)
        x->groups[i].resident = open_all(x, i);
    for (int i = 0; i < x->n_layer && d->code == ERR_OK; i++) {
        if (!group_of(x, i)->resident)
            continue;
        d->layer = i;
        pool_run(x->p.pool, STORE_N_PART * (size_t)x->layers[i].d.n_expert, load_task, d);
        write_table(x, &x->layers[i]);
        x->counters.n_read += x->layers[i].d.n_expert;
    }
    x->counters.n_read_bytes += d->n_read_bytes;
    if (d->code == ERR_OK)
        return ERR_OK;
    for (int i = 0; i < x->n_group; i++)
        x->groups[i].resident = false;
    return err_set(e, d->code, "%s", d->err.text);
}

err_code experts_load(struct experts *x, void (*progress)(void *user, uint64_t n_bytes), void *user, struct err *e)
{
    struct load d = {.x = x, .progress = progress, .user = user, .failed = ATOMIC_FLAG_INIT};
    for (int i = 0; i < x->n_layer; i++)
        for (int32_t j = 0; j < x->layers[i].d.n_expert; j++)
            make_room(&d, x->layers[i].d.index, j);
    size_t n_bytes = d.staging_bytes * (size_t)pool_n_threads(x->p.pool);
    d.staging = n_bytes ? mem_map(n_bytes, MEM_SCRATCH) : NULL;
    if (n_bytes && !d.staging)
        return err_nomem(e, n_bytes, "reading experts");
    err_code code = load_groups(x, &d, e);
    mem_unmap(d.staging, n_bytes, MEM_SCRATCH);
    return code;
}

struct touch {
    struct experts *x;
    struct group *group;
};

/* The group that has fewest open slots for its size and may have more, or -1. */
static int neediest(const struct experts *x)
{
    int best = -1;
    for (int i = 0; i < x->n_group; i++) {
        const struct group *g = &x->groups[i], *b = &x->groups[best < 0 ? 0 : best];
        int64_t n = policy_n_open(g->policy);
        if (n < g->n_slot && (best < 0 || n * b->n_slot < policy_n_open(b->policy) * g->n_slot))
            best = i;
    }
    return best;
}

static void touch_task(void *arg, size_t slot, int thread)
{
    const struct touch *t = arg;
    if (policy_is_open(t->group->policy, (int64_t)slot))
        backend_slot_touch(t->x->p.device, t->group->slot_pool, (int64_t)slot);
}

err_code experts_open(struct experts *x, size_t spare_bytes, struct err *e)
{
    if (experts_all_resident(x))
        return ERR_OK;
    TRY(requests_open(x, e));
    for (int i; (i = neediest(x)) >= 0;) {
        struct group *g = &x->groups[i];
        size_t room = mem_room_bytes();
        if (room < spare_bytes || room - spare_bytes < g->size.slot_bytes || !group_open_slot(x, g))
            break;
    }
    for (int i = 0; i < x->n_group; i++) {
        struct touch t = {x, &x->groups[i]};
        if (!t.group->resident)
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

err_code experts_warm(struct experts *x, const struct usage *past, struct err *e)
{
    int64_t n = 0, n_all = 0;
    struct read_request *f;
    if (experts_all_resident(x))
        return ERR_OK;
    TRY(requests_open(x, e));
    for (int i = 0; i < x->n_layer; i++)
        n_all += x->layers[i].d.n_expert;
    struct heat *all = mem_calloc((size_t)n_all, sizeof *all);
    if (!all)
        return err_nomem(e, (size_t)n_all * sizeof *all, "earlier usage");
    for (int i = 0; i < x->n_layer; i++)
        for (int32_t j = 0; j < x->layers[i].d.n_expert && !group_of(x, i)->resident; j++) {
            double rate = usage_rate(past, i, j, x->layers[i].d.n_used);
            policy_seed(group_of(x, i)->policy, x->layers[i].index, j, rate);
            if (rate > 0)
                all[n++] = (struct heat){i, j, rate};
        }
    qsort(all, (size_t)n, sizeof *all, hottest_first);
    for (int64_t i = 0; i < n; i++) {
        if (x->n_busy == x->n_request)
            requests_complete(x, true);
        if (policy_find(group_of(x, all[i].layer)->policy, x->layers[all[i].layer].index, all[i].expert) < 0)
            request_start(x, all[i].layer, all[i].expert, true, &f);
    }
    while (x->n_busy > 0)
        requests_complete(x, true);
    x->counters.stall_ns = 0; /* of turns */
    mem_free(all);
    return ERR_OK;
}

/* ---- looking -------------------------------------------------------------------------------------------------- */

bool experts_all_resident(const struct experts *x)
{
    for (int i = 0; i < x->n_group; i++)
        if (!x->groups[i].resident)
            return false;
    return true;
}

bool experts_is_resident(const struct experts *x, int layer)
{
    return x->groups[x->layers[layer].group].resident;
}

const struct tensor *experts_pin(struct experts *x, int layer)
{
    if (!experts_is_resident(x, layer))
        return NULL;
    policy_pin_layer(group_of(x, layer)->policy, x->layers[layer].index);
    return &x->layers[layer].table;
}

void experts_unpin(struct experts *x, int layer)
{
    policy_pin_layer(group_of(x, layer)->policy, -1);
}

struct slot_pool *experts_slot_pool(const struct experts *x, int layer)
{
    return x->groups[x->layers[layer].group].slot_pool;
}

void experts_reclaim(struct experts *x, size_t n_bytes)
{
    if (mem_room_bytes() < n_bytes)
        prefetch_end(x); /* what it holds can't be spared */
    while (mem_room_bytes() < n_bytes) {
        struct group *g = &x->groups[0]; /* the one with the most open slots for its size */
        for (int i = 1; i < x->n_group; i++)
            if (policy_n_open(x->groups[i].policy) * g->n_slot > policy_n_open(g->policy) * x->groups[i].n_slot)
                g = &x->groups[i];
        int64_t slot = policy_close_slot(g->policy, g->size.n_used);
        if (slot < 0)
            return;
        g->resident = false;
        backend_slot_close(x->p.device, g->slot_pool, slot);
    }
}

size_t experts_min_bytes(const struct experts *x)
{
    size_t n = 0;
    for (int i = 0; i < x->n_group; i++)
        n += budget_min_bytes(&x->groups[i].size, 1);
    return n;
}

size_t experts_max_bytes(const struct experts *x)
{
    size_t n = 0;
    for (int i = 0; i < x->n_group; i++)
        n += budget_max_bytes(&x->groups[i].size, 1);
    return n;
}

size_t experts_open_bytes(const struct experts *x)
{
    size_t n = 0;
    for (int i = 0; i < x->n_group; i++)
        n += (size_t)policy_n_open(x->groups[i].policy) * x->groups[i].size.slot_bytes;
    return n;
}

size_t experts_slot_bytes(const struct experts *x, int layer)
{
    return x->groups[x->layers[layer].group].size.slot_bytes;
}

int experts_group(const struct experts *x, int layer)
{
    return x->layers[layer].group;
}

const struct usage *experts_usage(const struct experts *x)
{
    return &x->usage;
}

struct experts_counters experts_counters(const struct experts *x)
{
    return x->counters;
}

const char *experts_engine(const struct experts *x)
{
    return x->queue ? store_queue_engine(x->queue) : "";
}
