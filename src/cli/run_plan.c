#include "cli/run_plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/minmax.h"
#include "cli/open_model.h"
#include "cli/rank_run.h"
#include "cli/say.h"

/* The shortest context that plans know. */
enum { LEAST_CTX = 256 };

/* The context if no plan chooses it, and layers are divided among devices. */
enum { STAGES_CTX = 8192 };

/* ---- beginning --------------------------------------------------------------------------------------------------- */

/* The file of counts for the plan; a file that the run will only create does not count. */
static const char *usage_of(const struct model_options *o)
{
    if (o->cold || (o->usage && access(o->usage, F_OK) != 0))
        return NULL;
    return o->usage ? o->usage : "";
}

int64_t run_plan_begin(const struct model_options *o, const moebius_engine *engine, const struct run_texts *texts)
{
    int64_t train = moebius_n_ctx_train(engine), most = texts->n_ctx_most ? min_i64(texts->n_ctx_most, train) : train;
    int64_t n_ctx = texts->n_ctx ? texts->n_ctx : most;
    moebius_plan *p;
    moebius_error error;
    const moebius_plan_options options = {.n_ctx = texts->n_ctx,
                                          .n_ctx_most = most,
                                          .n_depth = texts->n_ctx ? 0 : RUN_PLAN_DEPTH,
                                          .n_texts = texts->n_texts,
                                          .n_texts_most = texts->n_texts_most,
                                          .n_batch = o->n_batch,
                                          .kv = cli_kv_type(o->kv),
                                          .usage = usage_of(o),
                                          .receipts = ""};
    moebius_status status = moebius_engine_plan(&p, engine, &options, &error);
    if (status != MOEBIUS_OK && status != MOEBIUS_UNSUPPORTED)
        say(LOG_WARN, "no plan of this run: %s", error.text);
    if (status == MOEBIUS_UNSUPPORTED && cli_has_stages(engine) && !texts->n_ctx && n_ctx > STAGES_CTX) {
        if (!o->quiet)
            say(LOG_INFO, "a context of %d tokens (--ctx): plans know layers on several GPUs alone", STAGES_CTX);
        return STAGES_CTX;
    }
    if (status != MOEBIUS_OK)
        return n_ctx;
    if (!o->quiet)
        say(LOG_INFO, "plan: %s", moebius_plan_line(p));
    n_ctx = moebius_plan_n_ctx(p);
    moebius_plan_close(&p);
    return n_ctx;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void add_nearest(const moebius_plan *p, struct err *e)
{
    char text[2 * ERR_TEXT_BYTES];
    const char *way;
    for (int i = 0; (way = moebius_plan_nearest(p, i)); i++) {
        snprintf(text, sizeof text, "%s%s %s", e->text, i ? ", or" : "; what would work:", way);
        err_set(e, e->code, "%s", text);
    }
}

/* Whether several devices or processes shall have the experts: what that takes is known once the model is open. */
static bool is_divided(const struct model_options *o)
{
    return rank_run_ranks() || (o->devices && strchr(o->devices, ','));
}

void run_plan_advise(const struct model_options *o, const moebius_engine *engine, int64_t n_ctx, struct err *e)
{
    moebius_plan *p;
    moebius_status status;
    const moebius_plan_options options = {.n_ctx = n_ctx,
                                          .n_texts = 1,
                                          .n_batch = o->n_batch,
                                          .kv = cli_kv_type(o->kv),
                                          .ram_bytes = o->ram_bytes,
                                          .n_threads = (int)o->n_threads};
    bool lacks_memory = e->code == ERR_LIMIT || e->code == ERR_NOMEM;
    if (!lacks_memory || (!engine && is_divided(o)))
        return;
    status = engine ? moebius_engine_plan(&p, engine, &options, NULL) : moebius_plan_open(&p, o->path, &options, NULL);
    if (status != MOEBIUS_OK)
        return;
    add_nearest(p, e);
    moebius_plan_close(&p);
}

/* ---- receipts ---------------------------------------------------------------------------------------------------- */

static void take(struct receipt *r, const moebius_plan *p, enum speed_of of)
{
    double ceiling, low, high;
    moebius_plan_rates(p, of == SPEED_PREFILL, &ceiling, &low, &high);
    if (!(r->measured[of] > 0))
        return;
    if (ceiling > 0)
        r->ceiling[of] = ceiling;
    moebius_plan_part_rates(p, of == SPEED_PREFILL, r->part[of]);
    r->forecast_low[of] = low;
    r->forecast_high[of] = high;
}

/* The share of all choices that GPUs computed; 1 with a single place. */
static double gpu_share(const moebius_engine *engine)
{
    uint64_t on_gpu = 0, all = 0;
    moebius_place place;
    moebius_place_stats did;
    for (int i = 0; i < moebius_n_place(engine); i++)
        if (moebius_place_at(engine, i, &place, NULL) == MOEBIUS_OK &&
            moebius_place_did(engine, i, -1, &did, NULL) == MOEBIUS_OK) {
            all += did.n_row;
            on_gpu += strstr(place.name, "vulkan:") ? did.n_row : 0;
        }
    return all ? (double)on_gpu / (double)all : 1;
}

void run_plan_fill(struct receipt *r, const struct model_options *o, const moebius_engine *engine)
{
    moebius_plan *p;
    bool is_offload = r->regime == REGIME_OFFLOAD; /* its place in the regime is defined differently */
    bool is_reading = r->regime == REGIME_STREAM || r->regime == REGIME_TIERED || (r->at > 0 && !is_offload);
    double on_gpu = r->regime == REGIME_TIERED ? fmin(gpu_share(engine), 1 - r->at) : 0;
    const moebius_plan_options options = {.n_ctx = r->n_ctx > LEAST_CTX ? r->n_ctx : LEAST_CTX,
                                          .n_depth = r->n_ctx,
                                          .n_texts = r->n_texts,
                                          .n_prompt = r->n_prompt,
                                          .prompt_from = r->prompt_from,
                                          .n_batch = o->n_batch,
                                          .kv = cli_kv_type(o->kv),
                                          .usage = is_reading ? usage_of(o) : NULL,
                                          .found_vram = is_reading ? on_gpu : 0,
                                          .found_ram = is_reading ? 1 - r->at - on_gpu : 0,
                                          .found_drive = is_reading ? r->at : 0,
                                          .memory_per_s = r->rates[MACHINE_MEMORY],
                                          .units_per_s = r->rates[MACHINE_UNITS],
                                          .drive_per_s = r->rates[MACHINE_DRIVE],
                                          .receipts = ""};
    if (moebius_engine_plan(&p, engine, &options, NULL) != MOEBIUS_OK)
        return; /* there is no plan */
    bool is_cpu = r->regime == REGIME_RAM || r->regime == REGIME_STREAM;
    if (is_cpu ||
        !strcmp(moebius_plan_regime(p), regime_name(r->regime))) { /* otherwise it works in the host's memory */
        take(r, p, SPEED_DECODE);
        take(r, p, SPEED_PREFILL);
        r->planned_bytes = moebius_plan_ram_bytes(p);
    }
    moebius_plan_close(&p);
}
