/* Plans, as the public interface has them; planner/ does the arithmetic. */
#include <string.h>
#include <unistd.h>

#include "engine/status.h"
#include "engine/tuning.h"
#include "engine/planning_internal.h"
#include "engine/receipts_file.h"
#include "engine/sized.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Lines that can't be read are passed over: `moebius receipts` says what is wrong with them. */
static err_code read_receipts(moebius_plan *p, const char *from, struct err *e)
{
    char *kept;
    if (!from)
        return ERR_OK;
    if (*from && access(from, F_OK) != 0)
        return err_set(e, ERR_IO, "%s: expected a file of receipts, there is none", from);
    if (*from) {
        TRY(receipts_load(from, &p->receipts, &p->n_receipt, NULL, e));
        return p->n_receipt
                   ? ERR_OK
                   : err_set(e, ERR_FORMAT, "%s: expected receipts, as moebius receipts export prints them", from);
    }
    TRY(receipts_path(&kept, e));
    err_code code = kept ? receipts_load(kept, &p->receipts, &p->n_receipt, NULL, e) : ERR_OK;
    mem_free(kept);
    return code;
}

static bool calibrate(void *user, const struct calibration_query *q, struct calibration *out)
{
    const moebius_plan *p = user;
    return receipts_calibrate(p->receipts, p->n_receipt, q, out);
}

static err_code check_kv(const moebius_plan *p, int kv, struct err *e)
{
    if (p->facts.kv[kv].works)
        return ERR_OK;
    return err_set(e, ERR_UNSUPPORTED, "%s does not run with caches of type %s", p->facts.name, p->facts.kv[kv].name);
}

/* A rate as it was told (0: it was not), or as it usually is by the receipts; returns how many runs say so. */
static int set_rate(moebius_plan *p, enum machine_rate rate, double told_per_s, int n_threads)
{
    struct machine *m = &p->machine;
    int n_run = 0;
    if (told_per_s > 0)
        machine_set_rate(m, rate, n_threads, told_per_s);
    else
        machine_scale_rate(m, rate, receipts_rate_factor(p->receipts, p->n_receipt, m, rate, n_threads, &n_run));
    return n_run;
}

/* The drives of a machine that a file tells of are as it tells. */
static void set_rates(moebius_plan *p, const moebius_plan_options *o, int n_threads, int n_run[MACHINE_N_RATE])
{
    n_run[MACHINE_MEMORY] = set_rate(p, MACHINE_MEMORY, o->memory_per_s, n_threads);
    n_run[MACHINE_UNITS] = set_rate(p, MACHINE_UNITS, o->units_per_s, n_threads);
    n_run[MACHINE_DRIVE] = o->machine ? 0 : set_rate(p, MACHINE_DRIVE, o->drive_per_s, 0);
}

err_code planning_make(moebius_plan *p, const moebius_plan_options *o, const struct plan_settings *s, struct err *e)
{
    struct plan_inputs in = {
        .machine = &p->machine, .facts = &p->facts, .settings = *s, .calibrate = calibrate, .user = p};
    TRY(check_kv(p, o->kv, e));
    TRY(read_receipts(p, o->receipts, e));
    TRY(planning_put_given(&p->given, o, e));
    in.settings.given = bytes_text(&p->given);
    set_rates(p, o, s->n_threads, in.n_run);
    plan_make(&p->plan, &in);
    TRY(plan_text(&p->plan, &in, &p->text, e));
    TRY(plan_line(&p->plan, &in, &p->line, e));
    TRY(plan_svg(&p->plan, &in, &p->svg, e));
    return plan_json(&p->plan, &in, &p->json, e);
}

/* What `moebius tune` kept of the model for runs with so many threads on this machine; 0: it was not measured. */
static int64_t kept_cutoff(const struct plan_facts *f, int n_threads)
{
    struct tuning t;
    struct err e;
    enum cpu_level level;
    if (cpu_level_detect(&level, &e) != ERR_OK)
        return 0;
    tuning_look(&t, kernels_for(level), n_threads);
    return tuning_measured_cutoff(&t, f->fingerprint);
}

static err_code open_plan(moebius_plan *p, const void *path, const moebius_plan_options *o, struct err *e)
{
    struct planning_facts_params params = planning_facts_params_of(o);
    params.store_dirs = o->store_dirs;
    params.n_store_dirs = o->machine ? 0 : o->n_store_dirs; /* those of another machine are names */
    TRY(planning_machine_read(&p->machine, o->machine, e));
    if (o->gpu && !o->machine)
        planning_machine_vram(&p->machine);
    TRY(planning_facts_read(&p->facts, path, &params, e));
    struct plan_settings s;
    TRY(planning_take_options(p, o, &s, e));
    if (!o->machine)
        s.sort_cutoff = kept_cutoff(&p->facts, s.n_threads);
    return planning_make(p, o, &s, e);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

typedef err_code plan_fn(moebius_plan *p, const void *of, const moebius_plan_options *o, struct err *e);

static moebius_status open_any(moebius_plan **out, plan_fn *fn, const void *of, const moebius_plan_options *options,
                               size_t options_bytes, moebius_error *error)
{
    struct err e = {0};
    moebius_plan_options o = {0};
    moebius_plan *p = *out = mem_calloc(1, sizeof *p);
    if (!p)
        return engine_status(err_nomem(&e, sizeof *p, "a plan"), &e, error);
    err_code code = sized_take(&o, sizeof o, options, options_bytes, "plan options", &e);
    if (code == ERR_OK)
        code = planning_check_options(&o, &e);
    if (code == ERR_OK)
        code = fn(p, of, &o, &e);
    if (code != ERR_OK)
        moebius_plan_close(out);
    return engine_status(code, &e, error);
}

moebius_status moebius_plan_open_sized(moebius_plan **out, const char *path, const moebius_plan_options *options,
                                       size_t options_bytes, moebius_error *error)
{
    return open_any(out, open_plan, path, options, options_bytes, error);
}

moebius_status moebius_engine_plan_sized(moebius_plan **out, const moebius_engine *engine,
                                         const moebius_plan_options *options, size_t options_bytes,
                                         moebius_error *error)
{
    return open_any(out, planning_of_engine, engine, options, options_bytes, error);
}

void moebius_plan_close(moebius_plan **plan)
{
    moebius_plan *p = *plan;
    if (!p)
        return;
    planning_facts_close(&p->facts);
    mem_free(p->receipts);
    bytes_close(&p->given);
    mem_free(p->text);
    mem_free(p->json);
    mem_free(p->line);
    mem_free(p->svg);
    mem_free(p);
    *plan = NULL;
}

bool moebius_plan_is_refused(const moebius_plan *plan)
{
    return plan->plan.is_refused;
}

void moebius_plan_rates(const moebius_plan *plan, bool prefill, double *ceiling, double *low, double *high)
{
    const struct plan_speed *s = prefill ? &plan->plan.prefill : &plan->plan.decode;
    *ceiling = s->ceiling;
    *low = s->low;
    *high = s->high;
}

_Static_assert((int)MOEBIUS_PLAN_PARTS == (int)PART_N, "the public interface names all parts");

void moebius_plan_part_rates(const moebius_plan *plan, bool prefill, double rates[MOEBIUS_PLAN_PARTS])
{
    const struct plan_speed *s = prefill ? &plan->plan.prefill : &plan->plan.decode;
    memcpy(rates, s->part, sizeof s->part);
}

const char *moebius_plan_regime(const moebius_plan *plan)
{
    return regime_name(plan->plan.regime);
}

uint64_t moebius_plan_ram_bytes(const moebius_plan *plan)
{
    return plan->plan.ram_bytes;
}

const char *moebius_plan_text(const moebius_plan *plan)
{
    return plan->text;
}

const char *moebius_plan_json(const moebius_plan *plan)
{
    return plan->json;
}

const char *moebius_plan_line(const moebius_plan *plan)
{
    return plan->line;
}

int64_t moebius_plan_n_ctx(const moebius_plan *plan)
{
    return plan->plan.settings.n_ctx;
}

const char *moebius_plan_refusal(const moebius_plan *plan)
{
    return plan->plan.is_refused ? plan->plan.refusal : NULL;
}

const char *moebius_plan_nearest(const moebius_plan *plan, int i)
{
    return plan->plan.is_refused && i >= 0 && i < plan->plan.nearest.n ? plan->plan.nearest.text[i] : NULL;
}

const char *moebius_plan_svg(const moebius_plan *plan)
{
    return plan->svg;
}
