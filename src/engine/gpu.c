/* GPUs: which one options.gpu asks for, whether it is faster than the processor, and what it gets of the model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/free_memory.h"
#include "engine/engine_internal.h"
#include "engine/gpu_choice.h"
#include "engine/product_speed.h"
#include "kernels/kernels.h"
#include "planner/plan.h"
#include "vulkan/vulkan.h"

struct choosing {
    moebius_engine *g;
    struct vulkan_device *all; /* [n] */
    int n;
    struct gpu_need need;
    struct gpu_choice choice;
    int cards[ENGINE_MAX_DEVICE]; /* [n_card] GPU_STAGE: which GPUs have layers */
    int n_card;
    double gpu_speed, cpu_speed; /* bytes of weights a second; 0: not measured */
};

static bool is_auto(const moebius_engine *g)
{
    return !strcmp(g->options.gpu, "auto");
}

/* MOEBIUS_VULKAN_SPEED=1000 has GPUs run at so many GB/s, for tests of what is faster than the processor. */
static double tested_speed(double measured)
{
    const char *text = getenv("MOEBIUS_VULKAN_SPEED");
    return text ? strtod(text, NULL) * 1e9 : measured;
}

static err_code measure(struct choosing *x, struct err *e)
{
    moebius_engine *g = x->g;
    struct pool *pool = NULL;
    struct backend *gpu = NULL, *cpu = NULL;
    int64_t n_row = product_speed_rows(x->choice.room_bytes);
    enum cpu_level level;
    if (n_row == 0)
        return ERR_OK;
    TRY(cpu_level_detect(&level, e));
    TRY(pool_create(&pool, g->asked.devices[0].n_threads, e));
    err_code code = vulkan_open(&gpu, x->choice.number, pool, e);
    if (code == ERR_OK)
        code = product_speed(gpu, n_row, &x->gpu_speed, e);
    if (code == ERR_OK)
        code = backend_cpu_open(&cpu, pool, kernels_for(level), e);
    if (code == ERR_OK)
        code = product_speed(cpu, n_row, &x->cpu_speed, e);
    x->gpu_speed = tested_speed(x->gpu_speed);
    backend_close(&gpu);
    backend_close(&cpu);
    pool_close(&pool);
    return code;
}

/* Why the CPU computes all. */
static void take_none(struct choosing *x, const char *why)
{
    x->choice.part = GPU_NOTHING;
    log_line(&x->g->log, LOG_INFO, "no GPU: %s", why);
}

/* "auto" leaves a GPU alone that is slower than the processor, or that can't be measured. */
static void judge_speed(struct choosing *x)
{
    char why[2 * VULKAN_TEXT_BYTES];
    const char *name = x->all[x->choice.number].name;
    struct err e;
    if (measure(x, &e) != ERR_OK) {
        take_none(x, e.text);
        return;
    }
    if (x->gpu_speed >= x->cpu_speed)
        return;
    snprintf(why, sizeof why, "products run at %.1f GB/s on vulkan:%d (%s), at %.1f GB/s on the processor",
             x->gpu_speed / 1e9, x->choice.number, name, x->cpu_speed / 1e9);
    take_none(x, why);
}

/* What this process may take of the machine's memory. */
static uint64_t host_room_bytes(const moebius_engine *g)
{
    uint64_t free_bytes = free_memory_bytes("");
    bool is_bound = g->options.ram_bytes > 0 && (uint64_t)g->options.ram_bytes < free_bytes;
    return is_bound ? (uint64_t)g->options.ram_bytes : free_bytes;
}

/* Whether several cards have room for what one has not, and each of them is faster than the processor. What says how
 * experts are to be divided is about one GPU. */
static bool gather(struct choosing *x)
{
    const moebius_engine_options *o = &x->g->options;
    const struct gpu_choice single = x->choice;
    struct err e;
    if (o->split || o->replica_bytes || o->replica_share > 0)
        return false;
    x->n_card = gpu_gather(x->all, x->n, &x->need, plan_layer_bytes(&x->g->facts), x->g->vram_bytes, x->cards,
                           ENGINE_MAX_DEVICE);
    bool is_faster = x->n_card > 1;
    for (int i = 0; i < x->n_card && is_faster; i++) {
        x->choice = gpu_place(x->all, x->cards[i], &x->need, x->g->vram_bytes, host_room_bytes(x->g));
        is_faster = measure(x, &e) == ERR_OK && x->gpu_speed >= x->cpu_speed;
    }
    x->choice = single;
    x->choice.part = is_faster ? GPU_STAGE : single.part;
    return is_faster;
}

/* "auto": what can't be had is no error. */
static void choose_auto(struct choosing *x)
{
    char why[2 * VULKAN_TEXT_BYTES];
    int number = gpu_choose(x->all, x->n);
    if (number < 0) {
        take_none(x,
                  x->n ? "there is none but drivers that compute on the processor, or none is usable (moebius devices)"
                       : "Vulkan lists none");
        return;
    }
    x->choice = gpu_place(x->all, number, &x->need, x->g->vram_bytes, host_room_bytes(x->g));
    if (x->choice.part != GPU_ALL && gather(x))
        return;
    if (x->choice.part == GPU_NOTHING) {
        snprintf(why, sizeof why, "vulkan:%d (%s) has %.2f GB for a model whose layers take %.2f GB", number,
                 x->all[number].name, (double)x->choice.room_bytes / 1e9,
                 (double)(x->need.layers + x->need.least_experts) / 1e9);
        take_none(x, why);
        return;
    }
    judge_speed(x);
}

/* The number that was asked for. */
static err_code find_number(const struct choosing *x, int *out, struct err *e)
{
    int number = *out = (int)strtol(x->g->options.gpu, NULL, 10);
    if (number >= x->n)
        return err_set(e, ERR_UNSUPPORTED,
                       "there is no Vulkan device %d: expected one of the %d that moebius devices lists", number, x->n);
    if (!x->all[number].is_usable)
        return err_set(e, ERR_UNSUPPORTED, "vulkan:%d (%s): %s", number, x->all[number].name, x->all[number].why_not);
    return ERR_OK;
}

static err_code choose_number(struct choosing *x, struct err *e)
{
    int number;
    struct err why;
    TRY(find_number(x, &number, e));
    x->choice = gpu_place(x->all, number, &x->need, x->g->vram_bytes, host_room_bytes(x->g));
    if (x->choice.part == GPU_LAYERS && measure(x, &why) != ERR_OK)
        x->gpu_speed = x->cpu_speed = 0; /* threads decide who has how many experts */
    if (x->choice.part == GPU_NOTHING)   /* loading says what is missing, or reads experts again and again */
        x->choice.part = GPU_ALL;
    return ERR_OK;
}

/* Bytes of the last n layers' experts. */
static uint64_t last_experts(const moebius_engine *g, int64_t n)
{
    const struct plan_facts *f = &g->facts;
    uint64_t n_bytes = 0;
    for (int64_t i = f->n_moe - n; i < f->n_moe; i++)
        n_bytes += (uint64_t)f->layers[i].n_expert * f->layers[i].slot_bytes;
    return n_bytes;
}

static struct gpu_choice place_without(const struct choosing *x, int number, int64_t n_cpu_moe)
{
    struct gpu_need need = x->need;
    need.all_experts -= last_experts(x->g, n_cpu_moe);
    return gpu_place(x->all, number, &need, x->g->vram_bytes, host_room_bytes(x->g));
}

static err_code refuse_layers(const struct choosing *x, struct err *e)
{
    const moebius_engine *g = x->g;
    int64_t asked = engine_n_cpu_moe(g);
    int n = 0, n_moe = g->facts.n_moe;
    char nearest[80];
    while (n < n_moe && place_without(x, x->choice.number, n).part != GPU_ALL)
        n++;
    snprintf(nearest, sizeof nearest, "what would work: --n-cpu-moe %d", n);
    if (place_without(x, x->choice.number, n).part != GPU_ALL)
        snprintf(nearest, sizeof nearest, "that is too little even with those of all layers there: --gpu none");
    return err_set(e, ERR_LIMIT,
                   "with the experts of %lld of %d layers in the machine's memory vulkan:%d needs %.1f MiB, and has "
                   "%.1f MiB, some of which texts need; %s",
                   (long long)asked, n_moe, x->choice.number,
                   (double)(x->need.layers + x->need.all_experts - last_experts(g, asked)) / (1 << 20),
                   (double)x->choice.room_bytes / (1 << 20), nearest);
}

/* A GPU has been asked for, and how many layers' experts it is not to have. */
static err_code choose_layers(struct choosing *x, struct err *e)
{
    int number = gpu_choose(x->all, x->n);
    if (!is_auto(x->g))
        TRY(find_number(x, &number, e));
    if (number < 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "experts of %lld layers in memory, and there is no GPU for the others (moebius devices)",
                       (long long)engine_n_cpu_moe(x->g));
    x->choice = place_without(x, number, engine_n_cpu_moe(x->g));
    return x->choice.part == GPU_ALL ? ERR_OK : refuse_layers(x, e);
}

/* Takes several GPUs over as devices, among which the layers are divided (engine_choose_stages). */
static err_code take_cards(struct choosing *x, struct err *e)
{
    moebius_engine *g = x->g;
    char devices[ENGINE_MAX_DEVICE * (DEVICE_NAME_BYTES + 1)];
    uint64_t room = 0;
    int n = 0;
    for (int i = 0; i < x->n_card; i++) {
        uint64_t budget = x->all[x->cards[i]].budget_bytes;
        n += snprintf(devices + n, sizeof devices - (size_t)n, "%svulkan:%d", i ? "," : "", x->cards[i]);
        room += budget < g->vram_bytes ? budget : g->vram_bytes;
    }
    TRY(device_options_parse(&g->asked, devices, g->asked.devices[0].n_threads, 1, NULL, e));
    engine_take_devices(g);
    log_line(&g->log, LOG_INFO, "%s together: of %.2f GB of weights they have room for %.2f GB", devices,
             (double)(x->need.layers + x->need.all_experts) / 1e9, (double)room / 1e9);
    return ERR_OK;
}

/* Takes the choice over as devices. */
static err_code take(struct choosing *x, struct err *e)
{
    moebius_engine *g = x->g;
    char devices[2 * DEVICE_NAME_BYTES];
    const struct vulkan_device *d = &x->all[x->choice.number];
    int n_threads = g->asked.devices[0].n_threads;
    bool is_asked = g->options.n_cpu_moe > 0, is_divided = is_asked || x->choice.part == GPU_LAYERS;
    if (x->choice.part == GPU_STAGE)
        return take_cards(x, e);
    int n = snprintf(devices, sizeof devices, "vulkan:%d", x->choice.number);
    if (is_divided)
        snprintf(devices + n, sizeof devices - (size_t)n, ",cpu:%d", n_threads);
    TRY(device_options_parse(&g->asked, devices, n_threads, 1, is_divided ? g->options.split : NULL, e));
    if (is_asked)
        engine_split_last(g);
    if (is_divided) {
        g->asked.devices[0].bytes_per_s = x->gpu_speed;
        g->asked.devices[1].bytes_per_s = x->cpu_speed;
    }
    engine_take_devices(g);
    log_line(&g->log, LOG_INFO, "vulkan:%d (%s) %s: of %.2f GB of weights it has room for %.2f GB", x->choice.number,
             d->name,
             is_divided ? "runs the layers, and experts are divided between it and the processor"
                        : "computes the whole model",
             (double)(x->need.layers + x->need.all_experts) / 1e9, (double)x->choice.room_bytes / 1e9);
    return ERR_OK;
}

static err_code choose(struct choosing *x, struct err *e)
{
    x->need = engine_gpu_need(x->g);
    err_code code = vulkan_list(&x->all, &x->n, e);
    if (x->g->options.n_cpu_moe) {
        TRY(code);
        TRY(choose_layers(x, e));
        return take(x, e);
    }
    if (is_auto(x->g) && code == ERR_UNSUPPORTED)
        take_none(x, e->text);
    else if (is_auto(x->g) && code == ERR_OK)
        choose_auto(x);
    else
        TRY(code);
    if (!is_auto(x->g))
        TRY(choose_number(x, e));
    return x->choice.part == GPU_NOTHING ? ERR_OK : take(x, e);
}

bool engine_asks_for_gpu(const moebius_engine *g)
{
    return g->options.gpu && strcmp(g->options.gpu, "none") != 0;
}

err_code engine_check_gpu(const moebius_engine *g, struct err *e)
{
    const moebius_engine_options *o = &g->options;
    if (o->vram_bytes < 0)
        return err_set(e, ERR_USAGE, "GPU memory of %lld bytes: expected 0 or more", (long long)o->vram_bytes);
    if (!engine_asks_for_gpu(g))
        return ERR_OK;
    if (!is_auto(g) && (strlen(o->gpu) > 2 || strspn(o->gpu, "0123456789") != strlen(o->gpu) || !*o->gpu))
        return err_set(e, ERR_USAGE, "GPU \"%s\": expected auto, none or its number", o->gpu);
    if (o->devices)
        return err_set(e, ERR_USAGE, "GPU %s, and devices %s: expected one of the two", o->gpu, o->devices);
    if (!is_auto(g) && o->ranks)
        return err_set(e, ERR_USAGE, "GPU %s in several processes: expected devices, one for each", o->gpu);
    return ERR_OK;
}

err_code engine_choose_gpu(moebius_engine *g, struct err *e)
{
    struct choosing x = {.g = g, .choice = {.number = -1}};
    if (!engine_asks_for_gpu(g) || (is_auto(g) && (g->options.reference || g->options.ranks)))
        return ERR_OK;
    err_code code = choose(&x, e);
    mem_free(x.all);
    return code;
}
