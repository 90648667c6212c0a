/* GPUs that are open: the memory of those that have memory of their own, and what is said where one goes wrong. */
#include "base/minmax.h"
#include "engine/engine_internal.h"
#include "engine/gpu_choice.h"
#include "vulkan/vulkan.h"

/* Work space of experts on a GPU that does not run the layers. */
enum { FURTHER_SPARE_BYTES = 32 << 20 };

bool engine_has_own_memory(const moebius_engine *g, int device)
{
    return device < g->n_device && g->devices[device].vulkan && backend_own_bytes(g->devices[device].device) > 0;
}

/* Of a device that computes layers, between operations. */
static void reclaim_stage(void *user, size_t n_bytes)
{
    struct engine_device *d = user;
    moebius_engine *g = d->engine;
    for (int i = 0; i <= MOEBIUS_KV_Q8_0; i++)
        if (g->pools[i])
            state_pool_trim(g->pools[i]);
    if (g->model->n_device && backend_room_bytes(d->device) < n_bytes)
        experts_reclaim(g->model->devices[d - g->devices].experts, n_bytes);
}

static void reclaim_further(void *user, size_t n_bytes)
{
    experts_reclaim(user, n_bytes);
}

void engine_gpu_reclaim(moebius_engine *g)
{
    for (int i = 0; i < g->n_stage; i++)
        backend_set_reclaim(g->devices[i].device, reclaim_stage, &g->devices[i]);
    for (int i = g->n_stage; i < g->model->n_device; i++)
        backend_set_reclaim(g->devices[i].device, reclaim_further, g->model->devices[i].experts);
}

/* Says so where the driver keeps a GPU's memory in the host's. */
void engine_gpu_report(const moebius_engine *g)
{
    for (int i = 0; i < g->n_device; i++) {
        struct vulkan_memory m = {0};
        if (g->devices[i].vulkan)
            m = vulkan_get_memory(g->devices[i].vulkan);
        if (engine_has_own_memory(g, i) && m.elsewhere_bytes > m.allocated_bytes / 16)
            log_line(&g->log, LOG_WARN,
                     "%s: of %.2f GB the driver seems to keep %.2f GB in the machine's memory, which is slow: give it "
                     "less memory",
                     backend_name(g->devices[i].device), (double)m.allocated_bytes / 1e9,
                     (double)m.elsewhere_bytes / 1e9);
    }
}

void engine_gpu_lost(moebius_engine *g)
{
    for (int i = 0; i < g->n_device && !g->has_noted_loss; i++)
        if (g->devices[i].vulkan && vulkan_is_lost(g->devices[i].vulkan)) {
            g->has_noted_loss = true;
            log_line(&g->log, LOG_WARN, "%s was lost: nothing is computed there until the model is reopened",
                     backend_name(g->devices[i].device));
        }
}

err_code engine_gpu_bound(const moebius_engine *g, int device, const struct gpu_need *need, struct err *e)
{
    const struct engine_device *d = &g->devices[device];
    size_t n_bytes = (size_t)(need->layers + need->least_experts), room = g->vram_bytes;
    if (engine_has_own_memory(g, device))
        room = backend_room_bytes(d->device);
    if (!d->vulkan || room >= n_bytes)
        return ERR_OK;
    return err_set(e, ERR_LIMIT,
                   "%s: %s, without a context, needs at least %.1f MiB of its memory, and %.1f MiB are free "
                   "there: give it more, or compute on the CPU",
                   engine_has_stages(g) ? d->name : backend_name(d->device),
                   engine_has_stages(g) ? "its part of the layers" : "this model", (double)n_bytes / (1 << 20),
                   (double)room / (1 << 20));
}

static err_code make_room(moebius_engine *g, int device, size_t later_bytes, struct err *e)
{
    struct engine_device *d = &g->devices[device];
    if (!engine_has_own_memory(g, device))
        return ERR_OK;
    size_t room = backend_room_bytes(d->device);
    const struct experts *x = g->model->n_device ? g->model->devices[device].experts : NULL;
    if (x) {
        size_t open = experts_open_bytes(x), least = experts_min_bytes(x); /* slots may not be open yet */
        room = room + open > least ? room + open - least : 0;
    }
    if (room < later_bytes)
        return err_set(
            e, ERR_LIMIT,
            "%s: this session needs %.1f MiB of its memory, and the model leaves %.1f MiB: expected a smaller "
            "context, or more memory for the GPU",
            engine_has_stages(g) ? d->name : backend_name(d->device), (double)later_bytes / (1 << 20),
            (double)room / (1 << 20));
    /* as for the host's memory: for more, experts give slots back, and of several sessions the largest decides */
    d->spare_bytes = max_size(d->spare_bytes, later_bytes / 2);
    reclaim_stage(d, d->spare_bytes);
    return ERR_OK;
}

err_code engine_gpu_session(moebius_engine *g, const size_t *later_bytes, struct err *e)
{
    for (int i = 0; i < g->n_stage; i++)
        TRY(make_room(g, i, later_bytes[i], e));
    return ERR_OK;
}

void engine_gpu_rooms(const moebius_engine *g, struct division_place *places)
{
    for (int i = 0; i < g->n_device; i++) {
        size_t room = backend_room_bytes(g->devices[i].device),
               spare = i ? FURTHER_SPARE_BYTES : (size_t)gpu_reserve_bytes(room);
        if (engine_has_own_memory(g, i))
            places[i].room_bytes = room > spare ? room - spare : 0;
    }
}

size_t engine_gpu_spare(const moebius_engine *g, int device)
{
    return device < g->n_stage ? g->devices[device].spare_bytes : FURTHER_SPARE_BYTES;
}
