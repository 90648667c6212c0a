#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "gguf/gguf_facts.h"
#include "model/ask.h"
#include "model/loader.h"

static arch_load_fn *arch_loader(struct gguf_string name, const char **kept)
{
#define ARCH(arch, suffix)                                                                                             \
    if (name.n == strlen(arch) && !memcmp(name.s, arch, name.n)) {                                                     \
        *kept = arch;                                                                                                  \
        return arch_##suffix##_load;                                                                                   \
    }
#include "model/arch_list.def"
#undef ARCH
    return NULL;
}

const struct model_stage *model_stage_of(const struct model *m, int64_t layer)
{
    const struct model_stage *s = m->stages;
    while (layer >= s->end)
        s++;
    return s;
}

int64_t model_index_reach(const struct position_index *x)
{
    return x->run ? (x->n_chosen + 1) * x->run - 1 : x->n_chosen * max_i64(x->block, 1);
}

int64_t model_index_length(const struct position_index *x)
{
    return x->block ? x->n_chosen * x->n_head : model_index_reach(x);
}

struct experts *model_experts_of(const struct model *m, int moe_layer)
{
    return model_stage_of(m, m->expert_layers[moe_layer].index)->experts;
}

uint64_t model_load_bytes(const struct gguf *g)
{
    const struct gguf_tensor *left = gguf_ngram_table(g);
    uint64_t n = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++)
        n += gguf_tensor_at(g, i)->n_bytes;
    return n - (left ? left->n_bytes : 0);
}

/* Whether a tensor belongs to the layers after the last, which predict further tokens and of which little is used. */
static bool is_nextn(const struct loader *l, const char *name)
{
    return !strncmp(name, "blk.", 4) && strtoll(name + 4, NULL, 10) >= l->m->n_trunk;
}

/* Tensors that no block asked for: harmless or a sign that the result will be wrong, so they are named. */
static void warn_unused(const struct loader *l)
{
    uint64_t n_unused = 0, first = 0;
    for (uint64_t i = gguf_n_tensors(l->g); i-- > 0;)
        if (!l->used[i] && !is_nextn(l, gguf_tensor_at(l->g, i)->name)) {
            n_unused++;
            first = i;
        }
    if (n_unused)
        log_line(l->p->log, LOG_WARN, "%s: %llu tensors are not used by architecture %s, the first is %s",
                 gguf_file_path(l->g, 0), (unsigned long long)n_unused, l->m->arch, gguf_tensor_at(l->g, first)->name);
}

/* ---- routed experts --------------------------------------------------------------------------------------------- */

struct expert_progress {
    struct loader *l;
    uint64_t n_before;
};

static void expert_progress(void *user, uint64_t n_bytes)
{
    const struct expert_progress *p = user;
    p->l->p->progress(p->l->p->user, p->n_before + n_bytes);
}

/* Lists the devices that have experts, and how each computes them. */
static err_code list_devices(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    const struct model_load_params *p = l->p;
    const struct model_device one = {.device = p->device, .pool = p->pool};
    int n = p->n_device ? p->n_device : 1;
    m->devices = arena_calloc(&m->arena, (size_t)n, sizeof *m->devices);
    if (!m->devices)
        return err_nomem(e, (size_t)n * sizeof *m->devices, "the devices");
    for (int i = 0; i < n; i++) {
        struct model_device *d = &m->devices[m->n_device++];
        *d = p->n_device ? p->devices[i] : one;
        d->rules = arena_calloc(&m->arena, (size_t)m->n_moe_layer, sizeof *d->rules);
        if (!d->rules)
            return err_nomem(e, (size_t)m->n_moe_layer * sizeof *d->rules, "the devices");
        for (int64_t j = 0; j < m->n_layer; j++) {
            const struct moe_layer *y = &m->layers[j].moe;
            if (m->layers[j].is_moe && m->n_stage == 1) /* else nobody asks for a layer's experts from elsewhere */
                TRY(load_expert_rules(l, d, y, &d->rules[y->experts_layer], e));
        }
    }
    return ERR_OK;
}

/* What dividing the experts takes while the model is loaded. */
struct parts {
    struct expert_layer *layers; /* [n_moe_layer] as the device in hand has them */
    size_t *slot_bytes;          /* [n_moe_layer] of one expert on the device in hand */
    bool *is_here;               /* [n_moe_layer][n_expert] */
    int64_t *n_here;             /* [n_moe_layer] how many these are */
    int64_t n_expert;            /* of the layer with most */
    size_t *most, *least;        /* [n_device] bytes of slots for all that a device has, and the least that works */
    size_t all_most, all_least;  /* of all devices that work in the host's memory, but a cache */
    size_t room;                 /* for these; SIZE_MAX: no bound */
    size_t cache_bytes;          /* of slots that are a cache */
};

/* A device's slots may be larger than another's. */
static void size_slots(struct parts *x, const struct model *m, struct backend *device)
{
    for (int i = 0; i < m->n_moe_layer; i++)
        x->slot_bytes[i] = backend_slot_pool_slot_bytes(device, &x->layers[i].shape);
}

static err_code parts_create(struct parts *x, const struct loader *l, struct err *e)
{
    const struct model *m = l->m;
    size_t n = (size_t)m->n_moe_layer, n_device = (size_t)m->n_device;
    for (size_t i = 0; i < n; i++)
        x->n_expert = max_i64(x->n_expert, m->expert_layers[i].n_expert);
    x->layers = mem_calloc(n, sizeof *x->layers);
    x->slot_bytes = mem_calloc(n, sizeof *x->slot_bytes);
    x->is_here = mem_calloc(n, (size_t)x->n_expert * sizeof *x->is_here);
    x->n_here = mem_calloc(n, sizeof *x->n_here);
    x->most = mem_calloc(n_device, sizeof *x->most);
    x->least = mem_calloc(n_device, sizeof *x->least);
    if (!x->layers || !x->slot_bytes || !x->is_here || !x->n_here || !x->most || !x->least)
        return err_nomem(e, n * (size_t)x->n_expert, "dividing the experts");
    memcpy(x->layers, m->expert_layers, n * sizeof *x->layers);
    size_slots(x, m, m->devices[0].device);
    return ERR_OK;
}

static void parts_close(struct parts *x)
{
    mem_free(x->layers);
    mem_free(x->slot_bytes);
    mem_free(x->is_here);
    mem_free(x->n_here);
    mem_free(x->most);
    mem_free(x->least);
}

/* Where several devices compute layers, a layer's experts are with it: all of them, or none. */
static void mark_layer(struct parts *x, const struct model *m, const struct model_device *d, int layer)
{
    struct expert_layer *y = &x->layers[layer];
    bool is_home = model_stage_of(m, y->index)->device == d->device, *none = x->is_here + layer * x->n_expert;
    y->is_here = is_home ? NULL : none;
    x->n_here[layer] = is_home ? y->n_expert : 0;
}

/* Marks which experts a device has. */
static void mark(struct parts *x, const struct model *m, const struct model_device *d)
{
    for (int i = 0; i < m->n_moe_layer; i++) {
        struct expert_layer *y = &x->layers[i];
        bool *is_here = x->is_here + i * x->n_expert;
        x->n_here[i] = y->n_expert;
        if (m->n_stage > 1)
            mark_layer(x, m, d, i);
        if (!m->division.n_place)
            continue;
        y->is_here = is_here;
        division_is_here(&m->division, d->place, i, is_here);
        x->n_here[i] = 0;
        for (int64_t j = 0; j < y->n_expert; j++)
            x->n_here[i] += is_here[j];
    }
}

/* Of a layer's top-k experts those that a device may have to hold at once, in bytes. 0 where another layer of the same
 * shape, which shares its slots, takes as much. */
static size_t least_of(const struct parts *x, int n_layer, int layer)
{
    const struct expert_layer *y = x->layers;
    int64_t n = min_i64(x->n_here[layer], y[layer].n_used);
    for (int i = 0; i < n_layer; i++) {
        int64_t other = min_i64(x->n_here[i], y[i].n_used);
        bool is_more = other > n || (other == n && i < layer);
        if (is_more && slot_same_shape(&y[i].shape, &y[layer].shape))
            return 0;
    }
    return (size_t)n * x->slot_bytes[layer];
}

static bool is_cache(const struct model *m, int device)
{
    return m->division.has_cache && m->devices[device].place == 0;
}

/* Chooses the size of a cache: the share that was asked for, which in the host's memory the others make room for as far
 * as they can, or as much as there is room for beside them. */
static void size_cache(struct parts *x, const struct model *m, int device)
{
    struct backend *b = m->devices[device].device;
    bool is_apart = backend_own_bytes(b) > 0;
    size_t most = x->most[device], all = mem_room_bytes(), others = x->room < x->all_most ? x->room : x->all_most;
    size_t free_bytes = is_apart ? backend_room_bytes(b) : all == SIZE_MAX ? SIZE_MAX : all - others;
    double share = m->division.cache_share;
    size_t wanted = share > 0 ? (size_t)(share * (double)most) : free_bytes < most ? free_bytes : most;
    if (!is_apart && all != SIZE_MAX && (all < x->all_least || wanted > all - x->all_least))
        wanted = all < x->all_least ? 0 : all - x->all_least;
    x->cache_bytes = wanted > x->least[device] ? wanted : x->least[device];
    if (!is_apart && all != SIZE_MAX && others > all - (x->cache_bytes < all ? x->cache_bytes : all))
        x->room = all - (x->cache_bytes < all ? x->cache_bytes : all);
}

static void sum_up(struct parts *x, const struct loader *l)
{
    const struct model *m = l->m;
    const struct model_load_params *p = l->p;
    for (int i = 0; i < m->n_device; i++) {
        mark(x, m, &m->devices[i]);
        size_slots(x, m, m->devices[i].device);
        for (int j = 0; j < m->n_moe_layer; j++) {
            x->most[i] += (size_t)x->n_here[j] * x->slot_bytes[j];
            x->least[i] += least_of(x, m->n_moe_layer, j);
        }
        if (is_cache(m, i) || backend_own_bytes(m->devices[i].device))
            continue;
        x->all_most += x->most[i];
        x->all_least += x->least[i];
    }
    x->room = mem_room_bytes();
    if (p->expert_budget_bytes)
        x->room = p->expert_budget_bytes < x->room ? p->expert_budget_bytes : x->room;
    else if (p->expert_budget_share > 0 && p->expert_budget_share * (double)x->all_most < (double)x->room)
        x->room = (size_t)(p->expert_budget_share * (double)x->all_most);
    for (int i = 0; i < m->n_device; i++)
        if (is_cache(m, i))
            size_cache(x, m, i);
}

static err_code check_room(const struct parts *x, const struct model *m, struct err *e)
{
    if (x->room >= x->all_least)
        return ERR_OK;
    double least = (double)x->all_least, percent = 100 * least / (double)x->all_most;
    return err_set(e, ERR_LIMIT,
                   "%zu bytes for routed experts are too few: the top-k experts of one layer%s need %zu (%.1f MiB, "
                   "%.2f%% of all)",
                   x->room, m->n_device > 1 ? ", on each device," : "", x->all_least, least / (1 << 20),
                   ceil(percent * 100) / 100); /* so that this share is enough */
}

/* What a device with memory of its own gets, which experts_create bounds by the room there. */
static size_t own_budget(const struct model_load_params *p, size_t most)
{
    size_t share = (size_t)(p->expert_budget_share * (double)most);
    return p->expert_budget_bytes ? p->expert_budget_bytes : share ? share : most;
}

/* What a device gets of the room that all have: beyond the least that works in proportion to what it has. */
static size_t budget_of(const struct parts *x, const struct loader *l, int device)
{
    if (is_cache(l->m, device))
        return x->cache_bytes;
    if (backend_own_bytes(l->m->devices[device].device))
        return own_budget(l->p, x->most[device]);
    size_t more = x->room - x->all_least, most = x->most[device], least = x->least[device];
    if (x->room >= x->all_most)
        return most;
    return least + (size_t)((double)more * (double)(most - least) / (double)(x->all_most - x->all_least));
}

static err_code create_experts(const struct loader *l, struct parts *x, int device, struct err *e)
{
    struct model *m = l->m;
    struct model_device *d = &m->devices[device];
    const struct experts_params params = {.device = d->device,
                                          .store = l->p->store,
                                          .pool = d->pool,
                                          .policy = l->p->policy,
                                          .budget_bytes = budget_of(x, l, device),
                                          .deterministic = l->p->deterministic,
                                          .is_cache = is_cache(m, device)};
    mark(x, m, d);
    return experts_create(&d->experts, &params, x->layers, m->n_moe_layer, e);
}

/* Creates all devices' experts before it reads any, so that each has its room. */
static err_code divide_and_load(struct loader *l, struct parts *x, struct err *e)
{
    struct model *m = l->m;
    const struct model_load_params *p = l->p;
    struct expert_progress progress = {l, atomic_load(&l->n_read)};
    TRY(parts_create(x, l, e));
    if (p->divide)
        TRY(p->divide(p->user, x->layers, x->slot_bytes, m->n_moe_layer, &m->division, e));
    sum_up(x, l);
    TRY(check_room(x, m, e));
    for (int i = 0; i < m->n_device; i++) {
        TRY(create_experts(l, x, i, e));
        for (int j = 0; j < m->n_stage; j++)
            if (m->devices[i].device == m->stages[j].device)
                m->stages[j].experts = m->devices[i].experts;
    }
    m->experts = m->stages[0].experts;
    for (int i = 0; i < m->n_device; i++) {
        TRY(experts_load(m->devices[i].experts, p->progress ? expert_progress : NULL, &progress, e));
        progress.n_before += experts_counters(m->devices[i].experts).n_read_bytes;
    }
    return ERR_OK;
}

static err_code load_experts(struct loader *l, struct err *e)
{
    struct parts x = {0};
    if (l->m->n_moe_layer == 0 || (!l->p->store && !l->p->describes_experts))
        return ERR_OK;
    TRY(list_devices(l, e));
    err_code code = divide_and_load(l, &x, e);
    parts_close(&x);
    return code;
}

/* A cache is where its layer is computed. */
static err_code check_caches(const struct loader *l, struct err *e)
{
    const struct model *m = l->m;
    for (int64_t i = 0; i < m->n_layer; i++) {
        int64_t of = m->layers[i].attn.kv_layer;
        if (!m->layers[i].is_recurrent && model_stage_of(m, of) != model_stage_of(m, i))
            return err_set(e, ERR_USAGE,
                           "%s: layer %lld uses the keys and values of layer %lld: expected both on one device",
                           gguf_file_path(l->g, 0), (long long)i, (long long)of);
    }
    return ERR_OK;
}

err_code model_load(struct model **out, const struct gguf *g, const struct model_load_params *params, struct err *e)
{
    err_code code;
    struct loader l = {.g = g, .p = params};
    *out = NULL;
    struct model *m = l.m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_nomem(e, sizeof *m, "the model");
    m->device = params->device;
    if (params->store)
        TRY_OUT(model_ask(g, params, m->cache_refusals, e));
    struct gguf_string arch;
    TRY_OUT(gguf_need_string(g, "general.architecture", &arch, e));
    arch_load_fn *load = arch_loader(arch, &m->arch);
    if (!load) {
        const char *why = arch_why_unknown(g, arch.s);
        code = err_set(e, ERR_UNSUPPORTED,
                       "%s: architecture \"%.40s\" is not known%s%s (moebius list --known tells which are)",
                       gguf_file_path(g, 0), arch.s, *why ? ": " : "", why);
        goto out;
    }
    size_t n = gguf_n_tensors(g);
    m->weights_capacity = 4 * n; /* a tensor may be loaded in parts */
    m->weights = arena_calloc(&m->arena, m->weights_capacity, sizeof *m->weights);
    m->buffers = arena_calloc(&m->arena, n * (size_t)(params->n_device + 1), sizeof *m->buffers);
    l.used = mem_calloc(n, sizeof *l.used);
    if (!m->weights || !m->buffers || !l.used) {
        code = err_nomem(e, n * sizeof *m->weights, "the model");
        goto out;
    }
    TRY_OUT(load(&l, e));
    TRY_OUT(load_mtp(&l, e));
    TRY_OUT(check_caches(&l, e));
    warn_unused(&l);
    TRY_OUT(load_experts(&l, e));
out:
    mem_free(l.used);
    if (code != ERR_OK)
        model_close(&m);
    *out = m;
    return code;
}

void model_close(struct model **out)
{
    struct model *m = *out;
    if (!m)
        return;
    for (int i = 0; i < m->n_device; i++)
        experts_close(&m->devices[i].experts);
    division_close(&m->division);
    for (int i = 0; i < m->n_adjugates; i++)
        backend_slot_pool_close(m->adjugates[i].device, &m->adjugates[i].slots);
    for (size_t i = 0; i < m->n_weights; i++)
        backend_weight_close(m->weights[i].device, &m->weights[i].weight);
    for (size_t i = 0; i < m->n_buffers; i++)
        backend_buffer_close(m->buffers[i].device, &m->buffers[i].buffer);
    arena_close(&m->arena);
    mem_free(m);
    *out = NULL;
}
