/* Plans and the machines that they are for, as the public interface has them; planner/ does the arithmetic. */
#include "engine/planning.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/free_memory.h"
#include "base/minmax.h"
#include "base/output_file.h"
#include "engine/cache_file.h"
#include "engine/engine_internal.h"
#include "engine/receipts_file.h"
#include "engine/sized.h"

enum { DEFAULT_CTX = 4096, DEFAULT_BATCH = 512 };

/* ---- this machine ---------------------------------------------------------------------------------------------- */

static void look_at_memory(struct machine *m)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t free_bytes = free_memory_bytes("");
    m->ram_bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    m->free_bytes = free_bytes == SIZE_MAX ? 0 : free_bytes;
}

void planning_machine_look(struct machine *m)
{
    *m = (struct machine){.n_thread = cpu_n_available()};
    cpu_name(m->name, sizeof m->name);
    look_at_memory(m);
}

/* The file of what this machine can do, in the cache directory; NULL: there is no such place. */
static err_code kept_path(char **path, struct err *e)
{
    return cache_file_path("machine.json", path, e);
}

static err_code parse_file(struct machine *m, const char *path, bool *is_there, struct err *e)
{
    char *text;
    size_t n;
    TRY(cache_file_read(path, &text, &n, e));
    *is_there = text != NULL;
    err_code code = text ? machine_parse(m, text, n, path, e) : ERR_OK;
    mem_free(text);
    return code;
}

err_code planning_machine_read(struct machine *m, const char *path, struct err *e)
{
    bool is_there = false;
    char *kept = NULL, name[MACHINE_NAME_BYTES];
    if (path) {
        TRY(parse_file(m, path, &is_there, e));
        return is_there ? ERR_OK : err_set(e, ERR_IO, "%s: there is no such file of a machine's facts", path);
    }
    TRY(kept_path(&kept, e));
    err_code code = kept ? parse_file(m, kept, &is_there, e) : ERR_OK;
    mem_free(kept);
    cpu_name(name, sizeof name);
    if (code == ERR_OK && (!is_there || strcmp(m->name, name) != 0)) /* another machine shares the folder */
        planning_machine_look(m);
    look_at_memory(m); /* other processes' memory as it is now */
    return code;
}

err_code planning_machine_save(const struct machine *m, const char *path, struct err *e)
{
    struct output_file f = {0};
    char *text = NULL, *kept = NULL;
    err_code code = ERR_OK;
    if (!path)
        TRY(kept_path(&kept, e));
    if (!path && !kept)
        return err_set(e, ERR_IO, "no cache directory: expected the environment variable HOME or XDG_CACHE_HOME");
    if (kept)
        cache_file_make_folders(kept);
    TRY_OUT(machine_write(m, &text, e));
    TRY_OUT(output_file_open(&f, path ? path : kept, e));
    fprintf(f.stream, "%s\n", text);
    code = output_file_finish(&f, e);
out:
    mem_free(text);
    mem_free(kept);
    return code;
}

/* ---- the public interface ---------------------------------------------------------------------------------------- */

struct moebius_plan {
    struct machine machine;
    struct plan_facts facts;
    struct receipt *receipts; /* [n_receipt] */
    size_t n_receipt;
    struct plan plan;
    char *text, *json;
};

/* Lines that can't be read are passed over: `moebius receipts` says what is wrong with them. */
static err_code read_receipts(moebius_plan *p, const char *from, struct err *e)
{
    char *kept;
    if (!from)
        return ERR_OK;
    if (*from && access(from, F_OK) != 0)
        return err_set(e, ERR_IO, "%s: expected a file of receipts, there is none", from);
    if (*from)
        return receipts_load(from, &p->receipts, &p->n_receipt, NULL, e);
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

static err_code check_options(const moebius_plan_options *o, struct err *e)
{
    if (o->n_threads < 0 || o->n_ctx < 0 || o->n_ctx > INT32_MAX || o->n_depth < 0 || o->n_texts < 0 ||
        o->n_texts > 1 << 20 || o->n_prompt < 0 || o->n_prompt > INT32_MAX || o->prompt_from < 0 ||
        o->prompt_from > INT32_MAX || o->n_batch < 0 || o->n_batch > 1 << 20 || o->ram_bytes < 0 || o->vram_bytes < 0 ||
        !(o->floor >= 0))
        return err_set(e, ERR_USAGE,
                       "threads, context, depth, texts, prompt, batch, memory or floor: expected 0 or more");
    if (o->kv < 0 || o->kv >= FACTS_N_KV)
        return err_set(e, ERR_USAGE, "KV cache of type %d: expected one of moebius_kv_type", o->kv);
    return ERR_OK;
}

static err_code check_gpu(const moebius_plan *p, const moebius_plan_options *o, struct err *e)
{
    if (!o->gpu && (o->n_cpu_moe || o->vram_bytes))
        return err_set(e, ERR_USAGE, "VRAM, or layers whose experts are not there, without a GPU: expected one, too");
    if (o->gpu && !p->machine.n_gpu)
        return err_set(e, ERR_USAGE, "a plan for a GPU, and none is known of the machine%s%s",
                       o->machine ? " of " : ": moebius probe looks", o->machine ? o->machine : "");
    if (o->n_cpu_moe > p->facts.n_moe)
        return err_set(e, ERR_USAGE, "experts of %lld layers in memory: expected at most the %d that have experts",
                       (long long)o->n_cpu_moe, p->facts.n_moe);
    return ERR_OK;
}

static err_code check_kv(const moebius_plan *p, int kv, struct err *e)
{
    if (p->facts.kv[kv].works)
        return ERR_OK;
    return err_set(e, ERR_UNSUPPORTED, "%s does not run with caches of type %s", p->facts.name, p->facts.kv[kv].name);
}

static struct plan_settings settings_of(const moebius_plan *p, const moebius_plan_options *o)
{
    int64_t n_ctx = o->n_ctx ? o->n_ctx : min_i64(DEFAULT_CTX, p->facts.n_ctx_train);
    int64_t n_batch = o->n_batch ? o->n_batch : DEFAULT_BATCH;
    int n_thread = p->machine.n_thread ? p->machine.n_thread : 1;
    return (struct plan_settings){.n_ctx = n_ctx,
                                  .n_depth = o->n_depth ? min_i64(o->n_depth, n_ctx) : n_ctx,
                                  .n_texts = o->n_texts ? o->n_texts : 1,
                                  .n_batch = n_batch,
                                  .n_prompt = o->n_prompt ? o->n_prompt : n_batch,
                                  .prompt_from = o->prompt_from,
                                  .n_threads = o->n_threads ? o->n_threads : n_thread,
                                  .kv = o->kv,
                                  .ram_bytes = (uint64_t)o->ram_bytes,
                                  .vram_bytes = (uint64_t)o->vram_bytes,
                                  .uses_gpu = o->gpu,
                                  .n_cpu_moe = o->n_cpu_moe > 0   ? (int)o->n_cpu_moe
                                               : o->n_cpu_moe < 0 ? 0
                                                                  : -1,
                                  .floor = o->floor};
}

static err_code open_plan(moebius_plan *p, const char *path, const moebius_plan_options *o, struct err *e)
{
    int64_t n_batch = o->n_batch ? o->n_batch : DEFAULT_BATCH;
    const struct planning_facts_params params = {
        .n_ctx = o->n_ctx, .n_batch = o->n_ctx ? min_i64(n_batch, o->n_ctx) : n_batch, .usage = o->usage};
    TRY(check_options(o, e));
    TRY(planning_machine_read(&p->machine, o->machine, e));
    TRY(planning_facts_read(&p->facts, path, &params, e));
    TRY(check_gpu(p, o, e));
    TRY(check_kv(p, o->kv, e));
    TRY(read_receipts(p, o->receipts, e));
    const struct plan_inputs in = {
        .machine = &p->machine, .facts = &p->facts, .settings = settings_of(p, o), .calibrate = calibrate, .user = p};
    plan_make(&p->plan, &in);
    TRY(plan_text(&p->plan, &in, &p->text, e));
    return plan_json(&p->plan, &in, &p->json, e);
}

moebius_status moebius_plan_open_sized(moebius_plan **out, const char *path, const moebius_plan_options *options,
                                       size_t options_bytes, moebius_error *error)
{
    struct err e = {0};
    moebius_plan_options o = {0};
    moebius_plan *p = *out = mem_calloc(1, sizeof *p);
    if (!p)
        return engine_status(err_nomem(&e, sizeof *p, "a plan"), &e, error);
    err_code code = sized_take(&o, sizeof o, options, options_bytes, "plan options", &e);
    if (code == ERR_OK)
        code = open_plan(p, path, &o, &e);
    if (code != ERR_OK)
        moebius_plan_close(out);
    return engine_status(code, &e, error);
}

void moebius_plan_close(moebius_plan **plan)
{
    moebius_plan *p = *plan;
    if (!p)
        return;
    planning_facts_close(&p->facts);
    mem_free(p->receipts);
    mem_free(p->text);
    mem_free(p->json);
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
