#include "cli/run_plan.h"

#include <string.h>

/* The least context that a plan knows. */
enum { LEAST_CTX = 256 };

static int kv_of(const struct model_options *o)
{
    if (!o->kv || !strcmp(o->kv, "f16"))
        return MOEBIUS_KV_F16;
    return !strcmp(o->kv, "f32") ? MOEBIUS_KV_F32 : MOEBIUS_KV_Q8_0;
}

static void take(struct receipt *r, const moebius_plan *p, enum speed_of of)
{
    double ceiling, low, high;
    moebius_plan_rates(p, of == SPEED_PREFILL, &ceiling, &low, &high);
    if (!(r->measured[of] > 0))
        return;
    if (ceiling > 0)
        r->ceiling[of] = ceiling;
    r->forecast_low[of] = low;
    r->forecast_high[of] = high;
}

void run_plan_fill(struct receipt *r, const struct model_options *o)
{
    moebius_plan *p;
    bool is_stream = r->regime == REGIME_STREAM;
    if (!is_stream && r->regime != REGIME_RAM)
        return;
    /* The model is still in memory: what it has counts, not what is free beside it. */
    const moebius_plan_options options = {.n_threads = (int)r->n_threads,
                                          .n_ctx = r->n_ctx > LEAST_CTX ? r->n_ctx : LEAST_CTX,
                                          .n_depth = r->n_ctx,
                                          .n_texts = r->n_texts,
                                          .n_prompt = r->n_prompt,
                                          .prompt_from = r->prompt_from,
                                          .n_batch = o->n_batch,
                                          .kv = kv_of(o),
                                          .ram_bytes = is_stream ? (int64_t)r->peak_bytes : INT64_MAX / 4,
                                          .usage = is_stream && !o->cold ? (o->usage ? o->usage : "") : NULL,
                                          .receipts = ""};
    if (moebius_plan_open(&p, o->path, &options, NULL) != MOEBIUS_OK)
        return; /* nothing is known of it */
    take(r, p, SPEED_DECODE);
    take(r, p, SPEED_PREFILL);
    r->planned_bytes = moebius_plan_ram_bytes(p);
    moebius_plan_close(&p);
}
