/* Plans: facts are gathered here, by the code that loads and runs models; planner/ does the arithmetic. */
#include "engine/planning.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/free_memory.h"
#include "base/minmax.h"
#include "base/output_file.h"
#include "engine/cache_file.h"
#include "engine/engine_internal.h"
#include "engine/sized.h"
#include "experts/budget.h"
#include "gguf/gguf_facts.h"
#include "kernels/kernels.h"
#include "model/sizes.h"

/* What the program takes more once it computes, as measured: code of kernels, stacks, small allocations. */
enum { AT_WORK_BYTES = 7 << 20 };

enum { DEFAULT_CTX = 4096, DEFAULT_BATCH = 512, LOGITS_ROWS = 32, LEAST_CTX = 256, MOST_CTX = 1 << 20 };

_Static_assert((int)FACTS_MAX_CACHE >= (int)SIZES_MAX_CACHE, "room for all kinds of caches");

/* ---- this machine ---------------------------------------------------------------------------------------------- */

static uint64_t resident_bytes(void)
{
    unsigned long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%lu %lu", &pages, &resident) != 2)
            resident = 0;
        fclose(f);
    }
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

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

/* ---- the model -------------------------------------------------------------------------------------------------- */

/* A model's files, and a device that answers for those that will run it. */
struct gathering {
    struct plan_facts *f;
    const struct planning_facts_params *p;
    struct gguf *g;
    struct moebius_vocab vocab;
    struct pool *pool;
    struct backend *cpu, *null;
    struct model *model; /* the description */
};

static int compare_lengths(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The lengths of texts for which memory is sized: powers of two, and the one that is asked for. */
static void list_lengths(struct plan_facts *f, int64_t n_ctx)
{
    f->n_ctx[f->n_n_ctx++] = n_ctx;
    for (int64_t n = LEAST_CTX; n <= MOST_CTX; n *= 2)
        if (n != n_ctx)
            f->n_ctx[f->n_n_ctx++] = n;
    qsort(f->n_ctx, (size_t)f->n_n_ctx, sizeof *f->n_ctx, compare_lengths);
}

static struct plan_cost cost(struct model_cost c)
{
    return (struct plan_cost){(double)c.n_bytes, (double)c.n_int8, (double)c.n_float};
}

static void take_sizes(struct plan_facts *f, struct plan_kv *kv, const struct model_sizes *s)
{
    f->weight_bytes = s->weight_bytes;
    f->work_bytes = s->work_bytes;
    f->scratch_bytes = s->scratch_bytes;
    f->token = cost(s->token);
    f->output = cost(s->output);
    f->recurrent = cost(s->recurrent);
    kv->works = true;
    kv->n_cache = s->n_cache;
    for (int i = 0; i < s->n_cache; i++)
        kv->caches[i] =
            (struct plan_cache){s->caches[i].window, (double)s->caches[i].n_bytes, (double)s->caches[i].n_float};
}

/* Sizes with each type of caches: a model that runs with none is refused as when it is loaded. */
static err_code size_all(struct gathering *x, struct err *e)
{
    static const enum elem_type types[FACTS_N_KV] = {ELEM_F16, ELEM_F32, ELEM_Q8_0}; /* as moebius_kv_type */
    static const char *const names[FACTS_N_KV] = {"f16", "f32", "q8_0"};
    struct plan_facts *f = x->f;
    bool works = false;
    for (int i = 0; i < FACTS_N_KV; i++) {
        struct model_sizes s;
        struct err why = {0};
        f->kv[i].name = names[i];
        err_code code = model_sizes_ask(&s, x->g, x->cpu, types[i], x->p->n_batch, LOGITS_ROWS, f->n_ctx,
                                        f->kv[i].text_bytes, f->n_n_ctx, &why);
        if (code != ERR_OK && (code != ERR_UNSUPPORTED || (i == FACTS_N_KV - 1 && !works)))
            return err_set(e, code, "%s", why.text);
        if (code == ERR_OK)
            take_sizes(f, &f->kv[i], &s);
        works |= code == ERR_OK;
    }
    return ERR_OK;
}

/* The least that experts of one shape need: the layer with most of them for a token. */
static uint64_t least_slots(const struct model *m, const struct plan_layer *layers)
{
    uint64_t n = 0;
    for (int i = 0; i < m->n_moe_layer; i++) {
        bool is_first = true;
        for (int j = 0; j < i; j++)
            is_first &=
                memcmp(&m->expert_layers[j].shape, &m->expert_layers[i].shape, sizeof m->expert_layers[i].shape) != 0;
        n += is_first ? (uint64_t)layers[i].n_used * layers[i].slot_bytes : 0;
    }
    return n;
}

static err_code list_layers(struct gathering *x, struct err *e)
{
    const struct model *m = x->model;
    struct plan_layer *layers = mem_calloc((size_t)m->n_moe_layer + 1, sizeof *layers);
    if (!layers)
        return err_nomem(e, (size_t)m->n_moe_layer * sizeof *layers, "a plan");
    x->f->layers = layers;
    x->f->n_moe = m->n_moe_layer;
    for (int i = 0; i < m->n_moe_layer; i++) {
        const struct expert_layer *y = &m->expert_layers[i];
        layers[i] = (struct plan_layer){y->n_expert, y->n_used, backend_slot_pool_slot_bytes(x->cpu, &y->shape),
                                        cost(model_expert_cost(&y->shape))};
    }
    x->f->least_slot_bytes = least_slots(m, layers);
    return ERR_OK;
}

/* ---- earlier runs ---------------------------------------------------------------------------------------------- */

static int compare_falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Each expert's share of all choices, the largest first, summed up. */
static err_code sum_mass(struct plan_facts *f, const struct usage *u, struct err *e)
{
    int64_t n = 0;
    double sum = 0, *mass = mem_calloc((size_t)(u->n_layer * u->n_expert) + 1, sizeof *mass);
    if (!mass)
        return err_nomem(e, (size_t)(u->n_layer * u->n_expert) * sizeof *mass, "counts of experts");
    f->mass = mass;
    for (int l = 0; l < u->n_layer && l < f->n_moe; l++)
        for (int64_t i = 0; i < f->layers[l].n_expert; i++, n++) {
            mass[n] = u->total[l] ? (double)u->count[l * u->n_expert + i] / (double)u->total[l] : 0;
            sum += mass[n];
        }
    qsort(mass, (size_t)n, sizeof *mass, compare_falling);
    for (int64_t i = 0; i < n && sum > 0; i++)
        mass[i] = mass[i] / sum + (i ? mass[i - 1] : 0);
    f->n_mass = sum > 0 ? n : 0;
    return ERR_OK;
}

static err_code read_usage(struct gathering *x, struct err *e)
{
    char name[64], *path = NULL, *text = NULL;
    size_t n;
    struct usage u = {0};
    int64_t n_expert = 0;
    err_code code;
    if (!x->p->usage || x->f->n_moe == 0)
        return ERR_OK;
    for (int i = 0; i < x->f->n_moe; i++)
        n_expert = max_i64(n_expert, x->f->layers[i].n_expert);
    snprintf(name, sizeof name, "usage-%016" PRIx64 ".txt", x->f->fingerprint);
    if (!*x->p->usage)
        TRY(cache_file_path(name, &path, e));
    if (!*x->p->usage && !path)
        return ERR_OK;
    const char *from = path ? path : x->p->usage;
    TRY_OUT(cache_file_read(from, &text, &n, e));
    if (text)
        TRY_OUT(usage_parse(&u, text, n, from, x->f->fingerprint, x->f->n_moe, n_expert, e));
    else if (!path)
        code = err_set(e, ERR_IO, "%s: expected a file of counts, there is none", from);
    if (u.count)
        code = sum_mass(x->f, &u, e);
out:
    usage_close(&u);
    mem_free(text);
    mem_free(path);
    return code;
}

/* ---- gathering -------------------------------------------------------------------------------------------------- */

static void copy_string(char *to, size_t n_to, struct gguf_string s, const char *instead)
{
    snprintf(to, n_to, "%.*s", (int)min_i64((int64_t)s.n, (int64_t)n_to - 1), s.s ? s.s : "");
    if (!*to)
        snprintf(to, n_to, "%s", instead);
}

static err_code take_names(struct gathering *x, const char *path, struct err *e)
{
    struct model_facts facts;
    struct plan_facts *f = x->f;
    const char *slash = strrchr(path, '/');
    TRY(gguf_facts_compute(&facts, x->g, e));
    copy_string(f->name, sizeof f->name, facts.name, slash ? slash + 1 : path);
    copy_string(f->arch, sizeof f->arch, facts.architecture, "unknown");
    gguf_facts_close(&facts);
    f->fingerprint = gguf_fingerprint(x->g);
    f->n_file = gguf_n_files(x->g);
    for (int i = 0; i < f->n_file; i++)
        f->file_bytes += gguf_file_bytes(x->g, i);
    return ERR_OK;
}

static err_code open_device(struct gathering *x, struct err *e)
{
    enum cpu_level level;
    TRY(cpu_level_detect(&level, e));
    TRY(pool_create(&x->pool, 1, e));
    TRY(backend_cpu_open(&x->cpu, x->pool, kernels_for(level), e));
    return backend_null_open(&x->null, e);
}

static err_code gather(struct gathering *x, const char *path, struct err *e)
{
    struct plan_facts *f = x->f;
    const struct model_load_params describe = {.describes_experts = true};
    TRY(gguf_open_header(&x->g, path, &f->is_header, e));
    TRY(vocab_fill(&x->vocab, x->g, e));
    TRY(open_device(x, e));
    TRY(take_names(x, path, e));
    f->process_bytes = resident_bytes() + AT_WORK_BYTES;
    struct model_load_params p = describe;
    p.device = x->null;
    TRY(model_load(&x->model, x->g, &p, e));
    f->n_layer = x->model->n_layer;
    f->n_vocab = x->model->n_vocab;
    f->n_ctx_train = x->model->n_ctx_train;
    list_lengths(f, x->p->n_ctx ? x->p->n_ctx : min_i64(DEFAULT_CTX, f->n_ctx_train));
    TRY(list_layers(x, e));
    TRY(size_all(x, e));
    return read_usage(x, e);
}

err_code planning_facts_read(struct plan_facts *f, const char *path, const struct planning_facts_params *p,
                             struct err *e)
{
    struct gathering x = {.f = f, .p = p};
    *f = (struct plan_facts){0};
    err_code code = gather(&x, path, e);
    model_close(&x.model);
    backend_close(&x.null);
    backend_close(&x.cpu);
    pool_close(&x.pool);
    vocab_empty(&x.vocab);
    gguf_close(&x.g);
    return code;
}

void planning_facts_close(struct plan_facts *f)
{
    mem_free((void *)f->layers);
    mem_free((void *)f->mass);
    *f = (struct plan_facts){0};
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
static err_code parse_receipts(moebius_plan *p, const char *text, size_t n, const char *path, struct err *e)
{
    size_t n_line = 1;
    struct err why;
    for (size_t i = 0; i < n; i++)
        n_line += text[i] == '\n';
    p->receipts = mem_calloc(n_line, sizeof *p->receipts);
    if (!p->receipts)
        return err_nomem(e, n_line * sizeof *p->receipts, "receipts");
    for (const char *at = text, *end = text + n; at < end;) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        line_end = line_end ? line_end : end;
        if (receipt_parse(&p->receipts[p->n_receipt], at, (size_t)(line_end - at), path, &why) == ERR_OK)
            p->n_receipt++;
        at = line_end + 1;
    }
    return ERR_OK;
}

static err_code read_receipts(moebius_plan *p, const char *from, struct err *e)
{
    char *kept = NULL, *text = NULL;
    size_t n;
    err_code code;
    if (!from)
        return ERR_OK;
    if (!*from)
        TRY(cache_file_path("receipts.jsonl", &kept, e));
    if (!*from && !kept)
        return ERR_OK;
    TRY_OUT(cache_file_read(kept ? kept : from, &text, &n, e));
    if (text)
        code = parse_receipts(p, text, n, kept ? kept : from, e);
    else if (!kept)
        code = err_set(e, ERR_IO, "%s: expected a file of receipts, there is none", from);
out:
    mem_free(text);
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
        o->n_texts > 1 << 20 || o->n_batch < 0 || o->n_batch > 1 << 20 || o->ram_bytes < 0 || o->vram_bytes < 0 ||
        !(o->floor >= 0))
        return err_set(e, ERR_USAGE, "threads, context, depth, texts, batch, memory or floor: expected 0 or more");
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
    int n_thread = p->machine.n_thread ? p->machine.n_thread : 1;
    return (struct plan_settings){.n_ctx = n_ctx,
                                  .n_depth = o->n_depth ? min_i64(o->n_depth, n_ctx) : n_ctx,
                                  .n_texts = o->n_texts ? o->n_texts : 1,
                                  .n_batch = o->n_batch ? o->n_batch : DEFAULT_BATCH,
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
