/* A plan for people. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/printable.h"
#include "base/units_text.h"
#include "planner/plan.h"

/* Lines that are being written. A failure to get memory is kept until the end. */
#define SAY(...)                                                                                                       \
    do {                                                                                                               \
        if (code == ERR_OK)                                                                                            \
            code = bytes_print(b, e, __VA_ARGS__);                                                                     \
    } while (0)

static double mib(uint64_t n)
{
    return (double)n / (1 << 20);
}

static err_code say_head(struct bytes *b, const struct plan *p, const struct plan_inputs *in, struct err *e)
{
    const struct plan_facts *f = in->facts;
    const struct plan_settings *s = &p->settings;
    char name[2 * FACTS_NAME_BYTES], arch[2 * FACTS_NAME_BYTES], machine[2 * MACHINE_NAME_BYTES];
    err_code code = ERR_OK;
    printable_line(f->name, strlen(f->name), name, sizeof name);
    printable_line(f->arch, strlen(f->arch), arch, sizeof arch);
    printable_line(in->machine->name, strlen(in->machine->name), machine, sizeof machine);
    SAY("%s (%s), %.2f GB in %d file%s, on %s\n", name, arch, (double)f->file_bytes / 1e9, f->n_file,
        f->n_file == 1 ? "" : "s", *machine ? machine : "a machine without a name");
    SAY("%" PRId64 " text%s of %" PRId64 " tokens, %s KV cache, %d threads\n", s->n_texts, s->n_texts == 1 ? "" : "s",
        s->n_ctx, f->kv[s->kv].name, s->n_threads);
    if (p->is_refused) {
        SAY("\nrefused: %s\nwhat would work:\n", p->refusal);
        for (int i = 0; i < p->nearest.n; i++)
            SAY("  %s\n", p->nearest.text[i]);
    }
    return code;
}

static err_code say_memory(struct bytes *b, const struct plan *p, struct err *e)
{
    static const char *const tiers[] = {"vram", "ram", "drive"};
    err_code code = ERR_OK;
    SAY("\n%-14s %-6s %16s %12s\n", "memory", "where", "bytes", "MiB");
    for (size_t t = 0; t < sizeof tiers / sizeof *tiers; t++)
        for (int i = 0; i < p->n_row; i++)
            if (!strcmp(p->rows[i].tier, tiers[t]))
                SAY("%-14s %-6s %16" PRIu64 " %12.1f\n", p->rows[i].what, tiers[t], p->rows[i].n_bytes,
                    mib(p->rows[i].n_bytes));
    if (p->vram_bytes)
        SAY("%-14s %-6s %16" PRIu64 " %12.1f\n", "all", "vram", p->vram_bytes, mib(p->vram_bytes));
    SAY("%-14s %-6s %16" PRIu64 " %12.1f\n", "all", "ram", p->ram_bytes, mib(p->ram_bytes));
    if (p->vram_bytes && p->vram_limit)
        SAY("of %.1f MiB of VRAM\n", mib(p->vram_limit));
    if (p->ram_limit)
        SAY("of %.1f MiB of memory; %.1f MiB stay in reserve; at least %.1f MiB are needed\n", mib(p->ram_limit),
            mib(p->reserve_bytes), mib(p->least_bytes));
    if (p->n_expert)
        SAY("slots for %" PRId64 " of %" PRId64 " experts%s", p->n_slot, p->n_expert,
            p->miss > 0 ? "" : ": none is read while the model runs\n");
    if (p->gpu_hit > 0)
        SAY("the GPU computes %.1f%% of the choices, the processor the others meanwhile\n", 100 * p->gpu_hit);
    if (p->miss > 0)
        SAY("; %.1f%% of a token's choices must be read\n", 100 * p->miss);
    return code;
}

static err_code say_speed(struct bytes *b, const char *what, const struct plan_speed *s, struct err *e)
{
    err_code code = ERR_OK;
    if (!(s->ceiling > 0))
        SAY("%-28s %12s", what, "unknown");
    else
        SAY("%-28s %12.2f", what, s->ceiling);
    if (s->is_forecast)
        SAY(" %12.2f   %.2f to %.2f", s->mid, s->low, s->high);
    SAY("\n");
    return code;
}

static err_code say_speeds(struct bytes *b, const struct plan *p, struct err *e)
{
    err_code code = ERR_OK;
    bool has_forecast = p->decode.is_forecast || p->prefill.is_forecast;
    char what[64];
    SAY("\n%-28s %12s%s\n", "tokens/s", "ceiling", has_forecast ? "     forecast   within" : "");
    snprintf(what, sizeof what, "decode, %" PRId64 " text%s", p->settings.n_texts,
             p->settings.n_texts == 1 ? "" : "s together");
    TRY(code);
    TRY(say_speed(b, what, &p->decode, e));
    if (p->settings.n_texts > 1)
        TRY(say_speed(b, "decode, one of them alone", &p->decode_one, e));
    TRY(say_speed(b, "prefill", &p->prefill, e));
    if (!has_forecast && (p->decode.ceiling > 0 || p->prefill.ceiling > 0))
        SAY("no earlier runs to forecast from (moebius receipts): these are upper bounds, real runs are slower\n");
    return code;
}

static err_code say_prompts(struct bytes *b, const struct plan *p, struct err *e)
{
    err_code code = ERR_OK;
    if (!(p->prompts[0].s > 0)) {
        SAY("\nseconds to the first token: unknown until `moebius probe` has measured the machine once, in a few "
            "seconds\n");
        return code;
    }
    SAY("\n%-28s %12s %12s%s\n", "seconds to the first token", "at least", "from cache",
        p->prompts[0].speed.is_forecast ? "     forecast   within" : "");
    for (int i = 0; i < PLAN_N_PROMPT; i++) {
        const struct plan_prompt *r = &p->prompts[i];
        SAY("%7" PRId64 " tokens of prompt      %12.2f %12.3f", r->n_tok, r->s, r->cached_s);
        if (r->speed.is_forecast)
            SAY(" %12.2f   %.2f to %.2f", (double)r->n_tok / r->speed.mid, (double)r->n_tok / r->speed.high,
                (double)r->n_tok / r->speed.low);
        SAY("\n");
    }
    return code;
}

static err_code say_gpu_row(struct bytes *b, const struct plan *p, int i, struct err *e)
{
    const struct plan_gpu_row *r = &p->gpu[i];
    err_code code = ERR_OK;
    SAY("%7d %12.1f %12.1f %5s", r->n_cpu_moe, mib(r->vram_bytes), mib(r->ram_bytes), r->fits ? "yes" : "no");
    if (r->decode.ceiling > 0)
        SAY(" %10.2f", r->decode.ceiling);
    else
        SAY(" %10s", "unknown");
    if (r->decode.is_forecast)
        SAY(" %10.2f   %.2f to %.2f", r->decode.mid, r->decode.low, r->decode.high);
    SAY("%s\n", i == p->gpu_chosen ? "   <- the fewest that fit" : "");
    return code;
}

static err_code say_gpus(struct bytes *b, const struct plan *p, struct err *e)
{
    enum { SHOWN = 12 };
    err_code code = ERR_OK;
    int step = (p->n_gpu + SHOWN - 1) / SHOWN;
    SAY("\nlayers whose experts are in memory, not in VRAM\n%7s %12s %12s %5s %10s\n", "layers", "VRAM MiB", "RAM MiB",
        "fits", "ceiling");
    TRY(code);
    for (int i = 0; i < p->n_gpu; i++)
        if (i % step == 0 || i == p->n_gpu - 1 || i == p->gpu_chosen)
            TRY(say_gpu_row(b, p, i, e));
    return code;
}

static err_code say_all(struct bytes *b, const struct plan *p, const struct plan_inputs *in, struct err *e)
{
    err_code code = ERR_OK;
    TRY(say_head(b, p, in, e));
    TRY(say_memory(b, p, e));
    if (p->n_gpu)
        TRY(say_gpus(b, p, e));
    if (p->decode.ceiling > 0 || !p->is_refused) {
        TRY(say_speeds(b, p, e));
        TRY(say_prompts(b, p, e));
    }
    SAY("\nassumptions\n");
    for (int i = 0; i < p->assumptions.n; i++)
        SAY("  %s\n", p->assumptions.text[i]);
    if (!p->is_refused)
        SAY("\na run would use %s%s\n", p->flags, p->settings.given ? p->settings.given : "");
    return code;
}

err_code plan_text(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e)
{
    struct bytes b = {0};
    err_code code = say_all(&b, p, in, e);
    if (code != ERR_OK)
        bytes_close(&b);
    *text = b.s;
    return code;
}

/* ---- a line ------------------------------------------------------------------------------------------------------ */

static err_code say_place(struct bytes *b, const struct plan *p, struct err *e)
{
    err_code code = ERR_OK;
    if (p->vram_bytes)
        SAY("%s of %s of VRAM and ", units_size(p->vram_bytes).s, units_size(p->vram_limit).s);
    SAY("%s", units_size(p->ram_bytes).s);
    if (p->ram_limit)
        SAY(" of %s", units_size(p->ram_limit).s);
    SAY(" of memory");
    if (p->n_gpu && p->gpu_chosen >= 0 && p->gpu[p->gpu_chosen].n_cpu_moe)
        SAY(", which has the experts of %d layers", p->gpu[p->gpu_chosen].n_cpu_moe);
    if (p->n_expert && p->n_slot < p->n_expert)
        SAY(", slots for %" PRId64 " of %" PRId64 " experts", p->n_slot, p->n_expert);
    return code;
}

static err_code say_rate(struct bytes *b, const struct plan_speed *s, struct err *e)
{
    err_code code = ERR_OK;
    if (s->is_forecast)
        SAY("; decode %s to %s tokens/s", units_figure(s->low).s, units_figure(s->high).s);
    else if (s->ceiling > 0)
        SAY("; decode up to %s tokens/s", units_figure(s->ceiling).s);
    return code;
}

static err_code say_line(struct bytes *b, const struct plan *p, const struct plan_inputs *in, struct err *e)
{
    const struct plan_settings *s = &p->settings;
    err_code code = ERR_OK;
    bool is_more = s->n_texts_most > s->n_texts;
    int64_t n_texts = is_more ? s->n_texts_most : s->n_texts;
    SAY("%d thread%s, %s%" PRId64 " text%s of %" PRId64 " token%s, %s KV cache; ", s->n_threads,
        s->n_threads == 1 ? "" : "s", is_more ? "up to " : "", n_texts, n_texts == 1 ? "" : "s", s->n_ctx,
        s->n_ctx == 1 ? "" : "s", in->facts->kv[s->kv].name);
    TRY(code);
    TRY(say_place(b, p, e));
    return say_rate(b, &p->decode, e);
}

err_code plan_line(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e)
{
    struct bytes b = {0};
    err_code code = say_line(&b, p, in, e);
    if (code != ERR_OK)
        bytes_close(&b);
    *text = b.s;
    return code;
}
