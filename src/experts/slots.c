#include "experts/slots.h"

#include <string.h>

static void join_group(struct expert_slots *s, struct slot_layer *l)
{
    struct slot_group *g = s->groups;
    while (g < s->groups + s->n_group && !slot_same_shape(&g->shape, &l->d.shape))
        g++;
    if (g == s->groups + s->n_group) {
        s->n_group++;
        *g = (struct slot_group){.shape = l->d.shape};
        g->size.slot_bytes = backend_slot_pool_slot_bytes(s->device, &g->shape);
    }
    l->group = g;
    l->index = budget_add_layer(&g->size, l->n_here, l->n_here < l->d.n_used ? l->n_here : l->d.n_used);
}

/* Keeps which experts of a layer are here, and counts them. */
static err_code keep_here(struct slot_layer *l, struct arena *arena, struct err *e)
{
    const bool *given = l->d.is_here;
    l->n_here = l->d.n_expert;
    if (!given)
        return ERR_OK;
    size_t n_bytes = (size_t)l->d.n_expert * sizeof *given;
    bool *own = arena_alloc(arena, n_bytes);
    if (!own)
        return err_nomem(e, n_bytes, "the experts");
    memcpy(own, given, n_bytes);
    l->d.is_here = own;
    l->n_here = 0;
    for (int64_t i = 0; i < l->d.n_expert; i++)
        l->n_here += own[i];
    return ERR_OK;
}

/* Chooses how many slots each group may have. */
static err_code divide(struct expert_slots *s, const struct experts_params *p, struct arena *arena, struct err *e)
{
    struct budget_group *sizes = arena_calloc(arena, (size_t)s->n_group, sizeof *sizes);
    int64_t *n_slot = arena_calloc(arena, (size_t)s->n_group, sizeof *n_slot);
    if (!sizes || !n_slot)
        return err_nomem(e, (size_t)s->n_group * sizeof *sizes, "the experts");
    for (int i = 0; i < s->n_group; i++)
        sizes[i] = s->groups[i].size;
    size_t least = slots_min_bytes(s), most = slots_max_bytes(s), bytes = most;
    if (p->budget_bytes)
        bytes = p->budget_bytes;
    else if (p->budget_share > 0)
        bytes = (size_t)(p->budget_share * (double)most);
    if (bytes > backend_room_bytes(p->device))
        bytes = backend_room_bytes(p->device);
    if (bytes < least)
        return err_set(e, ERR_LIMIT,
                       "%zu bytes for routed experts are too few: the top-k experts of one layer need %zu (%.1f MiB, "
                       "%.2f%% of all)",
                       bytes, least, (double)least / (1 << 20), 100 * (double)least / (double)most);
    budget_divide(sizes, s->n_group, bytes, n_slot);
    for (int i = 0; i < s->n_group; i++)
        s->groups[i].n_slot = n_slot[i];
    return ERR_OK;
}

static err_code create_group(struct expert_slots *s, struct slot_group *g, const struct experts_params *p,
                             struct err *e)
{
    const struct policy_desc d = {.kind = p->policy,
                                  .n_layer = g->size.n_layer,
                                  .n_expert = s->n_expert,
                                  .n_used = g->size.n_used,
                                  .n_slot = g->n_slot};
    TRY(policy_create(&g->policy, &d, e));
    if (p->deterministic)
        TRY(policy_create(&g->logical, &d, e));
    for (int64_t i = 0; g->logical && i < g->n_slot; i++)
        policy_open_slot(g->logical, i);
    g->shape.n_slot = g->n_slot;
    g->is_resident = g->n_slot == 0;
    if (g->is_resident) /* nothing of it is here */
        return ERR_OK;
    TRY(backend_slot_pool_create(s->device, &g->shape, &g->slot_pool, e));
    while (policy_n_open(g->policy) < g->size.n_used)
        if (!slots_open_one(s, g))
            return err_set(e, ERR_LIMIT, "no memory for the top-k experts of one layer, %zu bytes", slots_min_bytes(s));
    return ERR_OK;
}

err_code slots_create(struct expert_slots *s, const struct experts_params *p, const struct expert_layer *layers,
                      int n_layer, struct arena *arena, struct err *e)
{
    *s = (struct expert_slots){.device = p->device, .n_expert = 1};
    s->layers = arena_calloc(arena, (size_t)n_layer, sizeof *s->layers);
    s->groups = arena_calloc(arena, (size_t)n_layer, sizeof *s->groups);
    if (!s->layers || !s->groups)
        return err_nomem(e, (size_t)n_layer * sizeof *s->groups, "the experts");
    s->n_layer = n_layer;
    for (int i = 0; i < n_layer; i++) {
        struct slot_layer *l = &s->layers[i];
        l->d = layers[i];
        s->n_expert = l->d.n_expert > s->n_expert ? l->d.n_expert : s->n_expert;
        TRY(keep_here(l, arena, e));
        join_group(s, l);
        TRY(backend_tensor_create(s->device, ELEM_I32, l->d.n_expert, 1, 1, MEM_SCRATCH, &l->table, e));
    }
    TRY(divide(s, p, arena, e));
    for (int i = 0; i < s->n_group; i++)
        TRY(create_group(s, &s->groups[i], p, e));
    for (int i = 0; i < n_layer; i++)
        if (s->layers[i].group->is_resident)
            TRY(slots_write_table(s, i, e));
    return ERR_OK;
}

void slots_close(struct expert_slots *s)
{
    for (int i = 0; i < s->n_group; i++) {
        backend_slot_pool_close(s->device, &s->groups[i].slot_pool);
        policy_close(&s->groups[i].policy);
        policy_close(&s->groups[i].logical);
    }
    for (int i = 0; i < s->n_layer; i++)
        backend_buffer_close(s->device, &s->layers[i].table.buffer);
    *s = (struct expert_slots){0};
}

size_t slots_min_bytes(const struct expert_slots *s)
{
    size_t n = 0;
    for (int i = 0; i < s->n_group; i++)
        n += budget_min_bytes(&s->groups[i].size, 1);
    return n;
}

size_t slots_max_bytes(const struct expert_slots *s)
{
    size_t n = 0;
    for (int i = 0; i < s->n_group; i++)
        n += budget_max_bytes(&s->groups[i].size, 1);
    return n;
}

bool slots_is_here(const struct expert_slots *s, int layer, int32_t expert)
{
    const struct expert_layer *d = &s->layers[layer].d;
    return !d->is_here || d->is_here[expert];
}

int64_t slots_find(const struct expert_slots *s, int layer, int32_t expert)
{
    return policy_find(s->layers[layer].group->policy, s->layers[layer].index, expert);
}

int64_t slots_take(struct expert_slots *s, int layer, int32_t expert, bool *evicted)
{
    return policy_take(s->layers[layer].group->policy, s->layers[layer].index, expert, evicted);
}

void slots_hold(struct expert_slots *s, int layer, int32_t expert)
{
    policy_hold(s->layers[layer].group->policy, slots_find(s, layer, expert));
}

void slots_release(struct expert_slots *s, int layer, int32_t expert)
{
    policy_release(s->layers[layer].group->policy, slots_find(s, layer, expert));
}

bool slots_open_one(struct expert_slots *s, struct slot_group *g)
{
    int64_t slot = policy_find_closed(g->policy);
    if (slot < 0 || !backend_slot_open(s->device, g->slot_pool, slot))
        return false;
    policy_open_slot(g->policy, slot);
    return true;
}

bool slots_open_all(struct expert_slots *s, struct slot_group *g)
{
    bool evicted;
    if (g->n_slot < g->size.n_expert || g->size.slot_bytes * (size_t)g->n_slot > backend_room_bytes(s->device))
        return false;
    while (policy_n_open(g->policy) < g->n_slot)
        if (!slots_open_one(s, g))
            return false;
    for (int i = 0; i < s->n_layer; i++)
        for (int32_t j = 0; s->layers[i].group == g && j < s->layers[i].d.n_expert; j++)
            if (slots_is_here(s, i, j)) {
                slots_take(s, i, j, &evicted);
                slots_release(s, i, j);
            }
    return true;
}

err_code slots_write_table(struct expert_slots *s, int layer, struct err *e)
{
    struct slot_layer *l = &s->layers[layer];
    int32_t *table = mem_calloc((size_t)l->d.n_expert, sizeof *table);
    if (!table)
        return err_nomem(e, (size_t)l->d.n_expert * sizeof *table, "a slot table");
    for (int32_t i = 0; i < l->d.n_expert; i++)
        table[i] = (int32_t)slots_find(s, layer, i);
    backend_write(s->device, &l->table, table);
    mem_free(table);
    return ERR_OK;
}

/* Whether a group has a smaller share of its slots open than another. */
static bool has_less(const struct slot_group *a, const struct slot_group *b)
{
    return policy_n_open(a->policy) * b->n_slot < policy_n_open(b->policy) * a->n_slot;
}

struct slot_group *slots_neediest(const struct expert_slots *s)
{
    struct slot_group *best = NULL;
    for (struct slot_group *g = s->groups; g < s->groups + s->n_group; g++)
        if (policy_n_open(g->policy) < g->n_slot && (!best || has_less(g, best)))
            best = g;
    return best;
}

/* Closes a slot of the group that has the most open for its size and can spare one: false when none can. */
static bool close_one(struct expert_slots *s)
{
    struct slot_group *most = NULL;
    for (struct slot_group *g = s->groups; g < s->groups + s->n_group; g++)
        if (policy_can_spare(g->policy, g->size.n_used) && (!most || has_less(most, g)))
            most = g;
    if (!most)
        return false;
    most->is_resident = false;
    backend_slot_close(s->device, most->slot_pool, policy_close_slot(most->policy, most->size.n_used));
    return true;
}

void slots_reclaim(struct expert_slots *s, size_t n_bytes)
{
    while (backend_room_bytes(s->device) < n_bytes && close_one(s))
        ;
}
