/* The bound on the process's memory: choosing it, adapting it to the system's free memory, and making room for sessions
 * below it. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/free_memory.h"
#include "base/minmax.h"
#include "base/units_text.h"
#include "engine/engine_internal.h"
#include "engine/gpu_choice.h"
#include "engine/planning.h"
#include "model/sizes.h"
#include "planner/plan.h"
#include "ranks/ranks.h"

enum { LOAD_BYTES = 1 << 20 }; /* memory that each thread takes while it loads matrices */

static void reclaim(void *user, size_t n_bytes)
{
    moebius_engine *g = user;
    for (int i = 0; i <= MOEBIUS_KV_Q8_0; i++)
        if (g->pools[i])
            state_pool_trim(g->pools[i]);
    if (g->model && mem_room_bytes() < n_bytes)
        engine_reclaim_experts(g, n_bytes);
}

static err_code enforce(moebius_engine *g, struct err *e)
{
    if (!mem_set_limit(g->limit_bytes, reclaim, g))
        return err_set(e, ERR_USAGE, "another engine of this process already has a bound on memory");
    mem_keep_for_scratch(g->scratch_bytes);
    g->is_limited = true;
    return ERR_OK;
}

static void lift(moebius_engine *g)
{
    if (g->is_limited)
        mem_lift_limit();
    g->is_limited = false;
}

struct gpu_need engine_gpu_need(const moebius_engine *g)
{
    const struct plan_facts *f = &g->facts;
    struct gpu_need n = {.layers = engine_rank(g) == 0 ? f->weight_bytes : 0, .least_experts = f->least_slot_bytes};
    for (int i = 0; i < f->n_moe; i++)
        n.all_experts += (uint64_t)f->layers[i].n_expert * f->layers[i].slot_bytes;
    return n;
}

/* The least host memory for the model if the first device computes all layers. */
static err_code whole_bytes(const moebius_engine *g, size_t *n_bytes, struct err *e)
{
    const struct gpu_need need = engine_gpu_need(g);
    TRY(engine_gpu_bound(g, 0, &need, e));
    *n_bytes = engine_has_own_memory(g, 0) ? 0 : (size_t)need.layers;
    for (int i = 0; i < g->n_device; i++)
        *n_bytes += engine_has_own_memory(g, i) ? 0 : (size_t)need.least_experts;
    return ERR_OK;
}

/* The same if each device has layers of its own, with their experts. */
static err_code stages_bytes(const moebius_engine *g, size_t *n_bytes, struct err *e)
{
    *n_bytes = 0;
    for (int i = 0; i < g->n_stage; i++) {
        const struct gpu_need *need = &g->devices[i].need;
        TRY(engine_gpu_bound(g, i, need, e));
        *n_bytes += engine_has_own_memory(g, i) ? 0 : (size_t)(need->layers + need->least_experts);
    }
    return ERR_OK;
}

/* The least host memory that the model can do with, and what loading it takes. Also checks that GPUs have room for
 * their part. */
static err_code least_bytes(const moebius_engine *g, size_t *n_bytes, struct err *e)
{
    TRY(engine_has_stages(g) ? stages_bytes(g, n_bytes, e) : whole_bytes(g, n_bytes, e));
    *n_bytes += (size_t)pool_n_threads(g->pool) * LOAD_BYTES;
    return ERR_OK;
}

static err_code too_little(const moebius_engine *g, size_t need, const char *for_what, struct err *e)
{
    need += PLAN_VARIES_BYTES;
    return err_set(e, ERR_LIMIT,
                   "%.1f MiB of memory%s are not enough: %s needs at least %.1f MiB (%zu bytes), of which "
                   "%d MiB are a reserve for threads and small allocations, which may stay unused",
                   (double)g->bound_bytes / (1 << 20), g->options.ram_bytes > 0 ? "" : ", what is free,", for_what,
                   (double)need / (1 << 20), need, PLAN_MARGIN_BYTES >> 20);
}

/* The bound on the process's peak: options.ram_bytes or, without it, what the process has now and most of what is free.
 * 0: there is no bound, as the options say so or exclude one, or as the system doesn't say what is free. */
static size_t choose_bound(const moebius_engine *g)
{
    size_t free_bytes = free_memory_bytes("");
    if (free_bytes != SIZE_MAX && engine_ranks(g))
        free_bytes /= (size_t)ranks_n_here(engine_ranks(g)); /* all ask at the same time */
    if (g->options.ram_bytes > 0)
        return (size_t)g->options.ram_bytes;
    if (g->options.ram_bytes < 0 || free_bytes == SIZE_MAX || g->options.hugetlb || g->options.deterministic)
        return 0;
    return (size_t)plan_memory_limit(resident_memory_bytes(), free_bytes);
}

err_code engine_memory_bound(moebius_engine *g, struct err *e)
{
    size_t least;
    TRY(least_bytes(g, &least, e));
    g->bound_bytes = choose_bound(g);
    if (!g->bound_bytes)
        return ERR_OK;
    g->overhead_bytes = resident_memory_bytes() + PLAN_MARGIN_BYTES;
    if (g->bound_bytes < g->overhead_bytes + least)
        return too_little(g, g->overhead_bytes + least, "this model, without a context,", e);
    g->limit_bytes = g->bound_bytes - g->overhead_bytes;
    err_code code = enforce(g, e);
    return g->options.ram_bytes > 0 ? code : ERR_OK; /* without an option only a process's first engine has a bound */
}

void engine_memory_release(moebius_engine *g)
{
    lift(g);
}

/* ---- the guard --------------------------------------------------------------------------------------------------- */

static const int64_t look_ns = 50 * 1000 * 1000, ease_ns = (int64_t)5 * 1000 * 1000 * 1000,
                     tell_ns = (int64_t)10 * 1000 * 1000 * 1000, least_ahead_ns = 500 * 1000 * 1000,
                     most_ahead_ns = (int64_t)4 * 1000 * 1000 * 1000;

/* How much of the system's memory is to stay free: one part in SHARE of the bound, between `least` and `most`. A bound
 * that was chosen from what is free leaves more than that. */
static size_t reserve_bytes(const moebius_engine *g)
{
    enum { SHARE = 64 };
    static const size_t least = 4 << 20, most = 512 << 20;
    size_t n = g->bound_bytes / SHARE;
    return n < least ? least : n > most ? most : n;
}

static void set_limit(moebius_engine *g, size_t n_bytes)
{
    struct err e;
    lift(g);
    g->limit_bytes = n_bytes;
    (void)!enforce(g, &e); /* nobody else has set one since */
}

/* Lowers the limit so that `lack` bytes are given back, but not below what can't be given back and what operations
 * need. */
static void shrink(moebius_engine *g, size_t lack, size_t free_bytes)
{
    struct memory_guard *m = &g->guard;
    size_t before = mem_total_bytes(), wanted = before > lack ? before - lack : 0;
    m->from_bytes = m->from_bytes ? m->from_bytes : g->limit_bytes;
    set_limit(g, wanted < g->limit_bytes ? wanted : g->limit_bytes);
    reclaim(g, 1);
    size_t after = mem_total_bytes(), least = after + g->spare_bytes + engine_places_bytes(g, g->n_batch);
    if (g->limit_bytes < least)
        set_limit(g, least < m->from_bytes ? least : m->from_bytes);
    if (m->told_ns && m->short_ns - m->told_ns < tell_ns)
        return;
    m->told_ns = m->short_ns;
    log_line(&g->log, LOG_WARN,
             "memory is short, %.1f MB are free: gave back %.1f MB, and %.1f of %.1f MB of routed experts stay",
             (double)free_bytes / 1e6, (double)(before > after ? before - after : 0) / 1e6,
             (double)engine_expert_bytes(g, experts_open_bytes) / 1e6,
             (double)engine_expert_bytes(g, experts_max_bytes) / 1e6);
}

/* Raises a lowered limit by up to n_bytes, and opens slots again. */
static void grow(moebius_engine *g, size_t n_bytes)
{
    struct err e;
    size_t lowered = g->guard.from_bytes - g->limit_bytes;
    set_limit(g, g->limit_bytes + (n_bytes < lowered ? n_bytes : lowered));
    if (g->limit_bytes == g->guard.from_bytes)
        g->guard.from_bytes = 0;
    if (engine_open_slots(g, NULL, &e) != ERR_OK) /* what is read is read when it is needed */
        log_line(&g->log, LOG_DEBUG, "as memory is free again: %s", e.text);
    log_line(&g->log, LOG_INFO, "memory is free again: %.1f MB of routed experts have room",
             (double)engine_expert_bytes(g, experts_open_bytes) / 1e6);
}

/* How many bytes other processes will take until the look after the next one, if they go on as since the last look.
 * At least least_ahead_ns and at most most_ahead_ns are looked ahead; it is at most an eighth of the bound. */
static size_t soon_taken(const moebius_engine *g, int64_t took_ns, size_t free_bytes, size_t own_bytes)
{
    enum { SHARE = 8 };
    const struct memory_guard *m = &g->guard;
    size_t before = m->free_bytes + m->own_bytes, now = free_bytes + own_bytes; /* what the engine takes is no loss */
    double ns = (double)min_i64(max_i64(2 * took_ns, least_ahead_ns), most_ahead_ns);
    if (!m->looked_ns || took_ns <= 0 || before <= now)
        return 0;
    double n = (double)(before - now) * ns / (double)took_ns, most = (double)g->bound_bytes / SHARE;
    return (size_t)(n < most ? n : most);
}

void engine_memory_guard(moebius_engine *g)
{
    struct memory_guard *m = &g->guard;
    enum { PLENTY = 4, TWICE = 2 };
    int64_t now_ns = clock_ns(), took_ns = now_ns - m->looked_ns;
    if (!g->is_limited || (m->looked_ns && took_ns < look_ns))
        return;
    size_t free_bytes = free_memory_bytes(m->root ? m->root : ""), own_bytes = mem_total_bytes();
    size_t reserve = reserve_bytes(g);
    if (free_bytes == SIZE_MAX)
        return;
    size_t soon = soon_taken(g, took_ns, free_bytes, own_bytes);
    m->looked_ns = now_ns;
    m->free_bytes = free_bytes;
    m->own_bytes = own_bytes;
    if (free_bytes < reserve + soon) {
        m->short_ns = now_ns;
        shrink(g, TWICE * reserve + soon - free_bytes, free_bytes);
    } else if (m->from_bytes && free_bytes > PLENTY * reserve && now_ns - m->short_ns > ease_ns) {
        m->short_ns = now_ns; /* a while later again, if it was not all */
        grow(g, free_bytes - TWICE * reserve);
    }
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

/* Says once that experts are read while the model runs, though nobody asked for a bound. */
static void note_streaming(moebius_engine *g)
{
    const moebius_engine_options *o = &g->options;
    bool is_asked_for = o->ram_bytes || o->expert_ram_bytes || o->expert_ram_share > 0;
    if (is_asked_for || g->has_noted_streaming || !engine_is_streaming(g))
        return;
    g->has_noted_streaming = true;
    log_line(&g->log, LOG_INFO,
             "not all of the %s of routed experts fit in free memory: the others are read when needed",
             units_size((uint64_t)engine_expert_bytes(g, experts_max_bytes)).s);
}

/* The bytes of slots in the host's memory that could be closed. */
static size_t closable_bytes(const moebius_engine *g)
{
    size_t n = 0;
    for (int i = 0; i < g->model->n_device; i++) {
        const struct experts *x = g->model->devices[i].experts;
        n += engine_has_own_memory(g, i) ? 0 : experts_open_bytes(x) - experts_min_bytes(x);
    }
    return n;
}

/* The number of devices that compute layers in the host's memory. */
static int n_stage_here(const moebius_engine *g)
{
    int n = 0;
    for (int i = 0; i < g->n_stage; i++)
        n += !engine_has_own_memory(g, i);
    return n;
}

bool engine_shares_memory(const moebius_engine *g)
{
    return g->is_limited && n_stage_here(g) > 0;
}

size_t engine_places_bytes(const moebius_engine *g, int64_t n_tok)
{
    size_t n = 0;
    for (int i = g->n_stage; i < g->n_device; i++) {
        if (!g->devices[i].compute || engine_has_own_memory(g, i))
            continue;
        size_t rooms = compute_room_bytes(g->devices[i].compute, n_tok);
        n += rooms + (size_t)plan_spare_bytes(rooms, model_scratch_bytes(g->model, n_tok));
    }
    return n;
}

/* Scratch that outlives passes: the staging of reads into slots. */
static size_t staging_bytes(const moebius_engine *g)
{
    size_t n = 0;
    for (int i = 0; i < g->model->n_device; i++)
        n += engine_has_own_memory(g, i) ? 0 : experts_staging_bytes(g->model->devices[i].experts);
    return n;
}

size_t engine_kept_bytes(const moebius_engine *g)
{
    size_t now = mem_mapped_bytes(MEM_SCRATCH);
    if (!engine_shares_memory(g))
        return g->spare_bytes + engine_places_bytes(g, g->n_batch);
    return now < g->scratch_bytes ? g->scratch_bytes - now : 0;
}

void engine_memory_pass(moebius_engine *g, int64_t n_tok)
{
    int64_t n_few = planning_few_tokens(g->n_batch);
    bool is_few = n_tok <= n_few;
    size_t room = is_few ? g->spare_bytes / PLAN_FEW_PART : g->spare_bytes, kept;
    if (!engine_shares_memory(g))
        return;
    if (g->n_work > g->n_batch) { /* a session's own batch was counted when it was created */
        size_t more = (size_t)model_scratch_bytes(g->model, g->n_work);
        room = more > room ? more : room;
    }
    size_t places = engine_places_bytes(g, is_few ? n_few : max_i64(g->n_batch, n_tok));
    /* a place that needs more than was estimated can't have a cache's slots closed: these leave it twice as much */
    places *= engine_has_cache(g) && is_few ? 2 : 1;
    g->scratch_bytes = g->work_bytes + staging_bytes(g) + room + places;
    mem_keep_for_scratch(g->scratch_bytes);
    kept = engine_kept_bytes(g);
    if (mem_room_bytes() < kept)
        reclaim(g, kept);
}

static err_code admit(moebius_engine *g, engine_create_fn *create, void *user, struct err *e)
{
    size_t state[ENGINE_MAX_DEVICE] = {0}, later = 0, session;
    if (!g->is_limited) {
        TRY(create(user, state, e));
        return engine_gpu_session(g, state, e);
    }
    /* what is mapped takes no memory before it is used, so that its size can be looked at first */
    lift(g);
    size_t before = mem_total_bytes();
    int64_t n_batch = g->n_batch;
    err_code code = create(user, state, e);
    for (int i = 0; i < g->n_stage; i++)
        later += engine_has_own_memory(g, i) ? 0 : state[i];
    session = mem_total_bytes() - before + later;
    size_t experts_more = closable_bytes(g);
    struct err why;
    if (enforce(g, &why) != ERR_OK && code == ERR_OK)
        code = err_set(e, why.code, "%s", why.text);
    TRY(code);
    TRY(engine_gpu_session(g, state, e));
    int n_here = n_stage_here(g);
    bool grew = g->n_batch > n_batch; /* else there is scratch enough already */
    uint64_t scratch = n_here && grew ? (uint64_t)n_here * model_scratch_bytes(g->model, g->n_batch) : 0;
    /* an estimate of what operations will need; for more, experts give slots back */
    size_t spare = (size_t)plan_spare_bytes(session, scratch);
    spare = spare > g->spare_bytes ? spare : g->spare_bytes; /* of several sessions the largest decides */
    size_t need = mem_total_bytes() + later - experts_more + spare + engine_places_bytes(g, g->n_batch);
    if (need > g->limit_bytes) {
        g->refused.need_bytes = need + g->overhead_bytes;
        return too_little(g, g->refused.need_bytes, "this session", e);
    }
    g->spare_bytes = spare;
    reclaim(g, 1);
    engine_memory_pass(g, g->n_batch);
    note_streaming(g);
    return ERR_OK;
}

err_code engine_memory_session(moebius_engine *g, engine_create_fn *create, void *user, struct err *e)
{
    int64_t n_batch = g->n_batch;
    err_code code = admit(g, create, user, e);
    if (code != ERR_OK)
        engine_work_back(g, n_batch);
    return code;
}
