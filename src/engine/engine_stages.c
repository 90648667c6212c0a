/* Layers on several devices: whether they are divided, and which device computes which. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "engine/engine_internal.h"
#include "engine/gpu_choice.h"
#include "engine/product_speed.h"
#include "engine/stage_choice.h"
#include "ranks/ranks.h"

_Static_assert((int)ENGINE_MAX_DEVICE <= (int)MODEL_MAX_STAGE, "each device may have layers");

struct choosing {
    moebius_engine *g;
    struct model *description;
    struct stage_facts facts;
    struct stage_layer *layers; /* [facts.n_layer] */
    struct stage_device devices[ENGINE_MAX_DEVICE];
    int64_t end[ENGINE_MAX_DEVICE];
};

/* ---- what layers take -------------------------------------------------------------------------------------------- */

/* Bytes of a tensor count for its layer, or for what lies beside the layers. Experts are counted apart. */
static void add_tensor(struct choosing *x, const struct gguf_tensor *t, bool has_output)
{
    bool is_layer = !strncmp(t->name, "blk.", 4), is_embedding = !strcmp(t->name, "token_embd.weight");
    int64_t layer = is_layer ? strtoll(t->name + 4, NULL, 10) : -1;
    if (strstr(t->name, "_exps.weight") || layer >= x->facts.n_layer)
        return;
    if (layer >= 0)
        x->layers[layer].weights += t->n_bytes;
    else if (!strncmp(t->name, "output", 6))
        x->facts.output += t->n_bytes;
    else
        x->facts.input += t->n_bytes;
    if (is_embedding && !has_output) /* the last device has a copy */
        x->facts.output += t->n_bytes;
}

static void add_tensors(struct choosing *x)
{
    const struct gguf *f = x->g->gguf;
    bool has_output = gguf_tensor_find(f, "output.weight");
    for (uint64_t i = 0; i < gguf_n_tensors(f); i++)
        add_tensor(x, gguf_tensor_at(f, i), has_output);
}

static void add_experts(struct choosing *x)
{
    const struct model *m = x->description;
    for (int i = 0; i < m->n_moe_layer; i++) {
        const struct expert_layer *y = &m->expert_layers[i];
        struct stage_layer *to = &x->layers[y->index];
        uint64_t slot = backend_slot_pool_slot_bytes(x->g->device, &y->shape);
        to->experts = (uint64_t)y->n_expert * slot;
        to->least_experts = (uint64_t)y->n_used * slot;
    }
}

/* A layer that uses an earlier one's cache is on the same device. */
static void find_ends(struct choosing *x)
{
    const struct model *m = x->description;
    int64_t first_used = m->n_layer;
    for (int64_t i = m->n_layer; i-- > 0;) {
        x->layers[i].may_end = first_used > i;
        if (!m->layers[i].is_recurrent)
            first_used = min_i64(first_used, m->layers[i].attn.kv_layer);
    }
}

static err_code describe(struct choosing *x, struct err *e)
{
    struct backend *null = NULL;
    TRY(backend_null_open(&null, e));
    const struct model_load_params p = {.describes_experts = true, .mtp = x->g->options.mtp, .device = null};
    err_code code = model_load(&x->description, x->g->gguf, &p, e);
    if (code == ERR_OK) {
        x->facts.n_layer = x->description->n_layer;
        x->facts.layers = x->layers = mem_calloc((size_t)x->facts.n_layer, sizeof *x->layers);
        code = x->layers ? ERR_OK : err_nomem(e, (size_t)x->facts.n_layer * sizeof *x->layers, "the stages");
    }
    if (code == ERR_OK) {
        add_tensors(x);
        add_experts(x);
        find_ends(x);
    }
    model_close(&x->description);
    backend_close(&null);
    return code;
}

/* ---- what devices have ------------------------------------------------------------------------------------------- */

/* Whether devices differ that have memory of their own. */
static bool are_different(const moebius_engine *g)
{
    const char *first = NULL;
    for (int i = 0; i < g->n_device; i++) {
        const char *name = backend_name(g->devices[i].device);
        if (engine_has_own_memory(g, i) && first && strcmp(name, first) != 0)
            return true;
        first = engine_has_own_memory(g, i) && !first ? name : first;
    }
    return false;
}

/* Weights leave room for texts' state. Processors count as they have threads. */
static void list_devices(struct choosing *x)
{
    const moebius_engine *g = x->g;
    for (int i = 0; i < g->n_device; i++) {
        struct stage_device *d = &x->devices[i];
        size_t room = backend_room_bytes(g->devices[i].device);
        *d = (struct stage_device){.room_bytes = UINT64_MAX, .speed = g->devices[i].asked.n_threads};
        d->share = i < g->asked.n_share ? g->asked.shares[i] : 0;
        if (!engine_has_own_memory(g, i))
            continue;
        d->room_bytes = room - gpu_reserve_bytes(room);
        d->speed = 0;
    }
}

/* GPUs of different kinds are measured, unless shares were asked for. */
static err_code measure_devices(struct choosing *x, struct err *e)
{
    const moebius_engine *g = x->g;
    if (g->asked.n_share > 0 || !are_different(g))
        return ERR_OK;
    for (int i = 0; i < g->n_device; i++)
        if (engine_has_own_memory(g, i))
            TRY(product_speed(g->devices[i].device, product_speed_rows(x->devices[i].room_bytes), &x->devices[i].speed,
                              e));
    return ERR_OK;
}

/* ---- whether ----------------------------------------------------------------------------------------------------- */

static bool fits(const struct choosing *x, int device, int64_t first, int64_t end)
{
    const struct gpu_need need = stage_need(&x->facts, first, end);
    return need.layers + need.least_experts <= x->devices[device].room_bytes;
}

/* Several GPUs divide the layers where nobody asked for a split, and the first one has no room for the model. */
static bool may_divide(const moebius_engine *g)
{
    const moebius_engine_options *o = &g->options;
    if (g->n_device < 2 || engine_ranks(g) || o->split || o->n_cpu_moe || o->replica_bytes || o->replica_share > 0)
        return false;
    for (int i = 0; i < g->n_device; i++)
        if (!engine_has_own_memory(g, i))
            return false;
    return true;
}

/* Whether the first device has room for the whole model. */
static bool holds_all(const struct choosing *x)
{
    const struct gpu_need need = stage_need(&x->facts, 0, x->facts.n_layer);
    return need.layers + need.all_experts <= x->devices[0].room_bytes;
}

/* Whether each device has room for its stage. */
static bool all_fit(const struct choosing *x)
{
    bool all = true;
    for (int i = 0; i < x->g->n_device; i++)
        all &= fits(x, i, i ? x->end[i - 1] : 0, x->end[i]);
    return all;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

static void report(const struct choosing *x, bool is_asked)
{
    const moebius_engine *g = x->g;
    char text[ENGINE_MAX_DEVICE * 80], kind[DEVICE_NAME_BYTES];
    size_t n = 0;
    for (int i = 0; i < g->n_device; i++) {
        int64_t first = i ? x->end[i - 1] : 0;
        const struct gpu_need need = stage_need(&x->facts, first, x->end[i]);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld to %lld on %s (%.1f MB)", i ? ", " : "",
                              (long long)first, (long long)x->end[i] - 1,
                              device_options_name(&g->devices[i].asked, kind),
                              (double)(need.layers + need.all_experts) / 1e6);
    }
    log_line(
        &g->log, LOG_INFO, "%slayers %s",
        is_asked ? "" : "the first GPU has no room for the model, so its layers are divided (--split stages): ", text);
}

static void take(const struct choosing *x)
{
    moebius_engine *g = x->g;
    char kind[DEVICE_NAME_BYTES];
    g->n_stage = g->n_device;
    for (int i = 0; i < g->n_device; i++) {
        struct engine_device *d = &g->devices[i];
        g->stages[i] = (struct model_stage){.device = d->device, .end = x->end[i]};
        d->need = stage_need(&x->facts, i ? x->end[i - 1] : 0, x->end[i]);
        snprintf(d->name, sizeof d->name, "stage %d (%s)", i, device_options_name(&d->asked, kind));
    }
}

static err_code choose(struct choosing *x, bool is_asked, struct err *e)
{
    const moebius_engine *g = x->g;
    struct err why;
    TRY(describe(x, e));
    list_devices(x);
    if (!is_asked && holds_all(x))
        return ERR_OK;
    TRY(measure_devices(x, e));
    err_code code = stage_choose(&x->facts, x->devices, g->n_device, x->end, &why);
    if (code == ERR_USAGE && !is_asked)
        return ERR_OK;
    if (code != ERR_OK)
        return err_set(e, code, "%s: %s", gguf_file_path(g->gguf, 0), why.text);
    if (!is_asked && !all_fit(x)) /* the first device says what it lacks */
        return ERR_OK;
    report(x, is_asked);
    take(x);
    return ERR_OK;
}

err_code engine_choose_stages(moebius_engine *g, struct err *e)
{
    struct choosing x = {.g = g};
    bool is_asked = g->asked.split.kind == SPLIT_STAGES;
    if (!is_asked && !may_divide(g))
        return ERR_OK;
    err_code code = choose(&x, is_asked, e);
    mem_free(x.layers);
    return code;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

err_code engine_check_stages(const moebius_engine *g, struct err *e)
{
    const moebius_engine_options *o = &g->options;
    struct split split = {0};
    double shares[DIVISION_MAX_PLACE];
    int n_share = 0;
    if (!o->split)
        return ERR_OK;
    TRY(split_parse(o->split, &split, shares, &n_share, e));
    if (split.kind != SPLIT_STAGES)
        return ERR_OK;
    for (int i = 0; i < n_share; i++)
        if (shares[i] <= 0)
            return err_set(e, ERR_USAGE, "split %s: expected shares above 0, as each device gets a layer at least",
                           o->split);
    if (engine_asks_for_gpu(g))
        return err_set(e, ERR_USAGE, "split %s, and GPU %s: expected devices, which say who computes layers", o->split,
                       o->gpu);
    if (engine_ranks(g))
        return err_set(e, ERR_USAGE, "split %s in %d processes: expected one process, whose devices compute layers",
                       o->split, ranks_n(engine_ranks(g)));
    if (o->replica_bytes || o->replica_share > 0)
        return err_set(e, ERR_USAGE,
                       "replicas of experts, and split %s, where each layer's experts are with it: expected one of the "
                       "two",
                       o->split);
    return ERR_OK;
}
