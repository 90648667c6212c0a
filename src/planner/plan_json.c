/* A plan for programs. */
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json_text.h"
#include "planner/plan.h"

/* An unknown number is null. */
static json_t *known(double x)
{
    return x > 0 ? json_real(x) : json_null();
}

static json_t *lines(const struct plan_lines *l)
{
    json_t *j = json_array();
    for (int i = 0; j && i < l->n; i++)
        json_array_append_new(j, json_text(l->text[i], strlen(l->text[i])));
    return j;
}

static json_t *band(bool is_known, double low, double mid, double high)
{
    return is_known ? json_pack("{s:f, s:f, s:f}", "low", low, "mid", mid, "high", high) : json_null();
}

static json_t *speed_band(const struct plan_speed *s)
{
    return band(s->is_forecast, s->low, s->mid, s->high);
}

/* The ceilings of the parts alone. */
static json_t *parts(const struct plan_speed *s)
{
    json_t *j = json_object();
    for (int i = 0; j && i < PART_N; i++)
        json_object_set_new(j, ceiling_part_names[i], known(s->part[i]));
    return j;
}

static json_t *memory(const struct plan *p)
{
    json_t *rows = json_array();
    for (int i = 0; rows && i < p->n_row; i++)
        json_array_append_new(rows, json_pack("{s:s, s:s, s:I}", "what", p->rows[i].what, "where", p->rows[i].tier,
                                              "bytes", (json_int_t)p->rows[i].n_bytes));
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "map", rows, "ram_bytes",
                     (json_int_t)p->ram_bytes, "vram_bytes", (json_int_t)p->vram_bytes, "ram_limit_bytes",
                     (json_int_t)p->ram_limit, "vram_limit_bytes", (json_int_t)p->vram_limit, "reserve_bytes",
                     (json_int_t)p->reserve_bytes, "least_bytes", (json_int_t)p->least_bytes, "slots",
                     (json_int_t)p->n_slot, "experts", (json_int_t)p->n_expert, "miss", p->miss, "gives_way",
                     p->gives_way, "gpu_hit", p->gpu_hit);
}

static json_t *prompts(const struct plan *p)
{
    json_t *all = json_array();
    for (int i = 0; all && i < PLAN_N_PROMPT; i++) {
        const struct plan_prompt *r = &p->prompts[i];
        double n = (double)r->n_tok;
        bool is = r->speed.is_forecast;
        json_array_append_new(
            all, json_pack("{s:I, s:o, s:o, s:o}", "tokens", (json_int_t)r->n_tok, "ceiling_s", known(r->s), "cached_s",
                           known(r->cached_s), "forecast_s",
                           band(is, is ? n / r->speed.high : 0, is ? n / r->speed.mid : 0, is ? n / r->speed.low : 0)));
    }
    return all;
}

static json_t *gpus(const struct plan *p)
{
    json_t *all = json_array();
    for (int i = 0; all && i < p->n_gpu; i++) {
        const struct plan_gpu_row *r = &p->gpu[i];
        json_array_append_new(all, json_pack("{s:i, s:I, s:I, s:b, s:b, s:o, s:o}", "n_cpu_moe", r->n_cpu_moe,
                                             "vram_bytes", (json_int_t)r->vram_bytes, "ram_bytes",
                                             (json_int_t)r->ram_bytes, "fits", r->fits, "chosen", i == p->gpu_chosen,
                                             "ceiling", known(r->decode.ceiling), "forecast", speed_band(&r->decode)));
    }
    return all;
}

static json_t *settings(const struct plan *p, const struct plan_inputs *in)
{
    const struct plan_settings *s = &p->settings;
    return json_pack("{s:I, s:I, s:I, s:I, s:i, s:s}", "ctx", (json_int_t)s->n_ctx, "depth", (json_int_t)s->n_depth,
                     "texts", (json_int_t)s->n_texts, "batch", (json_int_t)s->n_batch, "threads", s->n_threads, "kv",
                     in->facts->kv[s->kv].name);
}

/* NULL: out of memory. */
static json_t *flags(const struct plan *p)
{
    struct bytes text = {0};
    bytes_put_text(&text, p->flags);
    bytes_put_text(&text, p->settings.given ? p->settings.given : "");
    json_t *j = text.is_short ? NULL : json_text(bytes_text(&text), text.n);
    bytes_close(&text);
    return j;
}

static json_t *object(const struct plan *p, const struct plan_inputs *in)
{
    const struct plan_facts *f = in->facts;
    char fingerprint[20];
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, f->fingerprint);
    return json_pack(
        "{s:b, s:o, s:o, s:{s:o, s:o, s:s, s:I, s:b}, s:o, s:o, s:o, s:s, s:f, s:{s:o, s:o, s:o}, s:{s:o, s:o}, "
        "s:{s:o, s:o, s:o}, s:o, s:o, s:o, s:o}",
        "refused", p->is_refused, "refusal", p->is_refused ? json_text(p->refusal, strlen(p->refusal)) : json_null(),
        "nearest", lines(&p->nearest), "model", "name", json_text(f->name, strlen(f->name)), "arch",
        json_text(f->arch, strlen(f->arch)), "fingerprint", fingerprint, "bytes", (json_int_t)f->file_bytes,
        "is_header", f->is_header, "machine", json_text(in->machine->name, strlen(in->machine->name)), "settings",
        settings(p, in), "memory", memory(p), "regime", regime_name(p->regime), "at", p->at, "ceiling", "decode",
        known(p->decode.ceiling), "decode_one", known(p->decode_one.ceiling), "prefill", known(p->prefill.ceiling),
        "parts", "decode", parts(&p->decode), "prefill", parts(&p->prefill), "forecast", "decode",
        speed_band(&p->decode), "decode_one", speed_band(&p->decode_one), "prefill", speed_band(&p->prefill), "prompts",
        prompts(p), "gpu", gpus(p), "flags", flags(p), "assumptions", lines(&p->assumptions));
}

err_code plan_json(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e)
{
    json_t *j = object(p, in);
    *text = j ? json_write(j, JSON_INDENT(1) | JSON_REAL_PRECISION(8), NULL) : NULL;
    json_decref(j);
    return *text ? ERR_OK : err_nomem(e, sizeof *p, "a plan");
}
