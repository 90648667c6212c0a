#include "engine/tuning.h"

#include <inttypes.h>
#include <string.h>

#include "base/cpu.h"
#include "base/crc32c.h"
#include "base/output_file.h"
#include "base/text_scanner.h"
#include "engine/cache_file.h"
#include "engine/engine_internal.h"
#include "engine/tune_products.h"

/* What a first run may take to race prefetches: in all, and of a type that is alone. Panels take a quarter of that
 * more, and a matrix unit half. */
static const int64_t quick_ns = 70 * 1000 * 1000, quick_type_ns = 35 * 1000 * 1000;

/* What a file begins with. Its name says so, too: a file of another form is another machine's. */
static const char form[] = "moebius tuning 7";

static const char *const cache_names[] = {
    [KERNEL_CACHE_L1] = "L1", [KERNEL_CACHE_L2] = "L2", [KERNEL_CACHE_NTA] = "NTA", [KERNEL_CACHE_BOTH] = "L2+L1"};
enum { N_CACHE = sizeof cache_names / sizeof *cache_names };

/* ---- the file ------------------------------------------------------------------------------------------------- */

static err_code parse_int(struct text_scanner *w, const char *what, int64_t min, int64_t max, int64_t *out,
                          struct err *e)
{
    uint64_t n;
    TRY(text_scanner_number(w, what, (uint64_t)min, (uint64_t)max, &n, e));
    *out = (int64_t)n;
    return ERR_OK;
}

static err_code parse_prefetch(struct text_scanner *w, struct kernel_prefetch *out, struct err *e)
{
    int64_t ahead_bytes;
    char name[8];
    TRY(parse_int(w, "bytes to prefetch ahead", 0, CPU_TUNING_MAX_AHEAD, &ahead_bytes, e));
    TRY(text_scanner_word(w, "L1, L2, NTA or L2+L1", name, sizeof name, e));
    for (int i = 0; i < N_CACHE; i++)
        if (!strcmp(name, cache_names[i])) {
            *out = (struct kernel_prefetch){(int32_t)ahead_bytes, (enum kernel_cache)i};
            return ERR_OK;
        }
    return err_set(e, ERR_FORMAT, "%s, line %d: found \"%s\", expected L1, L2, NTA or L2+L1", w->name, w->line + 1,
                   name);
}

static const struct quant_info *type_named(const char *name)
{
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++) {
        const struct quant_info *q = quant_info(id);
        if (q && !strcmp(q->name, name))
            return q;
    }
    return NULL;
}

static err_code parse_type(struct text_scanner *w, struct tuning *t, struct err *e)
{
    char name[16];
    int64_t several_from, tiles_from, panels_from;
    TRY(text_scanner_word(w, "a type of weights", name, sizeof name, e));
    const struct quant_info *q = type_named(name);
    if (!q)
        return err_set(e, ERR_FORMAT, "%s, line %d: found \"%s\", expected a type of weights", w->name, w->line + 1,
                       name);
    t->is_measured[q->type] = true;
    TRY(parse_prefetch(w, &t->cpu.one[q->type], e));
    TRY(parse_int(w, "the tokens that are several", 2, CPU_TUNING_MAX_FROM, &several_from, e));
    TRY(parse_int(w, "the tokens from which tiles are used", 0, CPU_TUNING_MAX_FROM, &tiles_from, e));
    TRY(parse_int(w, "the tokens from which weights are unpacked once", 0, CPU_TUNING_MAX_FROM, &panels_from, e));
    t->cpu.several_from[q->type] = (int32_t)several_from;
    t->cpu.tiles_from[q->type] = (int32_t)tiles_from;
    t->cpu.panels_from[q->type] = (int32_t)panels_from;
    return ERR_OK;
}

static err_code parse_types(struct text_scanner *w, struct tuning *t, struct err *e)
{
    int64_t n;
    TRY(text_scanner_literal(w, "products", e));
    TRY(parse_int(w, "the number of types", 0, QUANT_MAX_ID, &n, e));
    for (int64_t i = 0; i < n; i++)
        TRY(parse_type(w, t, e));
    return ERR_OK;
}

static err_code parse_cutoffs(struct text_scanner *w, struct tuning *t, struct err *e)
{
    int64_t n, n_tok;
    uint64_t model;
    TRY(text_scanner_literal(w, "sort_cutoff", e));
    TRY(parse_int(w, "the number of models", 0, TUNING_MAX_MODEL, &n, e));
    for (int64_t i = 0; i < n; i++) {
        TRY(text_scanner_hex(w, "a model's fingerprint", &model, e));
        TRY(parse_int(w, "the sort cutoff", 1, TUNING_MAX_CUTOFF, &n_tok, e));
        tuning_set_cutoff(t, model, n_tok);
    }
    return ERR_OK;
}

static err_code parse_numbers(struct text_scanner *w, struct cpu_tuning *c, struct err *e)
{
    int64_t n_spin;
    TRY(text_scanner_literal(w, "task_weights", e));
    TRY(parse_int(w, "the weights of a task", CPU_TUNING_MIN_TASK, CPU_TUNING_MAX_TASK, &c->task_weights, e));
    TRY(text_scanner_literal(w, "spins", e));
    TRY(parse_int(w, "the rounds that a thread waits", 0, CPU_TUNING_MAX_SPIN, &n_spin, e));
    c->n_spin = (int32_t)n_spin;
    TRY(text_scanner_literal(w, "prefetch_several", e));
    return parse_prefetch(w, &c->several, e);
}

err_code tuning_parse(struct tuning *t, const char *text, size_t n, const char *name, struct err *e)
{
    struct text_scanner w = {.p = text, .end = text + n, .name = name};
    struct tuning new = {.cpu = cpu_tuning_default()};
    TRY(text_scanner_literal(&w, form, e));
    TRY(text_scanner_literal(&w, "machine", e));
    TRY(text_scanner_line(&w, "the machine's name", new.machine, sizeof new.machine, e));
    TRY(text_scanner_literal(&w, "build", e));
    TRY(text_scanner_line(&w, "the build's name", new.build, sizeof new.build, e));
    TRY(parse_numbers(&w, &new.cpu, e));
    TRY(parse_types(&w, &new, e));
    TRY(parse_cutoffs(&w, &new, e));
    TRY(text_scanner_end(&w, e));
    *t = new;
    return ERR_OK;
}

static void print_prefetch(const char *name, struct kernel_prefetch p, FILE *f)
{
    fprintf(f, "%s %d %s", name, (int)p.ahead_bytes, cache_names[p.to]);
}

void tuning_print(const struct tuning *t, FILE *f)
{
    int n = 0;
    for (int i = 0; i < QUANT_MAX_ID; i++)
        n += t->is_measured[i];
    fprintf(f, "%s\nmachine %s\nbuild %s\ntask_weights %" PRId64 "\nspins %d\n", form, t->machine, t->build,
            t->cpu.task_weights, (int)t->cpu.n_spin);
    print_prefetch("prefetch_several", t->cpu.several, f);
    fprintf(f, "\nproducts %d\n", n);
    for (uint32_t i = 0; i < QUANT_MAX_ID; i++)
        if (t->is_measured[i]) {
            print_prefetch(quant_info(i)->name, t->cpu.one[i], f);
            fprintf(f, " %d %d %d\n", (int)t->cpu.several_from[i], (int)t->cpu.tiles_from[i],
                    (int)t->cpu.panels_from[i]);
        }
    fprintf(f, "sort_cutoff %d\n", t->n_cutoff);
    for (int i = 0; i < t->n_cutoff; i++)
        fprintf(f, "%016" PRIx64 " %" PRId64 "\n", t->cutoffs[i].model, t->cutoffs[i].n_tok);
}

const char *tuning_prefetch_name(struct kernel_prefetch p, char buf[TUNING_PREFETCH_BYTES])
{
    snprintf(buf, TUNING_PREFETCH_BYTES, "%d bytes ahead to %s", (int)p.ahead_bytes, cache_names[p.to]);
    return p.ahead_bytes ? buf : "none";
}

/* ---- cutoffs --------------------------------------------------------------------------------------------------- */

int64_t tuning_measured_cutoff(const struct tuning *t, uint64_t model)
{
    for (int i = 0; i < t->n_cutoff; i++)
        if (t->cutoffs[i].model == model)
            return t->cutoffs[i].n_tok;
    return 0;
}

int64_t tuning_cutoff(const struct tuning *t, uint64_t model)
{
    int64_t measured = tuning_measured_cutoff(t, model);
    return measured ? measured : TUNING_DEFAULT_CUTOFF;
}

void tuning_set_cutoff(struct tuning *t, uint64_t model, int64_t n_tok)
{
    int kept = 0, skip = t->n_cutoff == TUNING_MAX_MODEL;
    for (int i = 0; i < t->n_cutoff; i++)
        skip = t->cutoffs[i].model == model ? 0 : skip;
    for (int i = skip; i < t->n_cutoff; i++)
        if (t->cutoffs[i].model != model)
            t->cutoffs[kept++] = t->cutoffs[i];
    t->cutoffs[kept].model = model;
    t->cutoffs[kept].n_tok = n_tok;
    t->n_cutoff = kept + 1;
}

/* ---- the engine's ----------------------------------------------------------------------------------------------- */

const struct tuning *engine_tuning(const moebius_engine *g)
{
    return &g->tuning;
}

void engine_use_tuning(moebius_engine *g, const struct tuning *t)
{
    struct cpu_tuning cpu = t->cpu;
    g->tuning = *t;
    cpu.n_spin = g->n_device == 1 || engine_has_core_each(g) ? cpu.n_spin : 0;
    for (int i = 0; i < g->n_device; i++)
        if (g->devices[i].cpu)
            backend_cpu_tune(g->devices[i].cpu, &cpu);
}

int64_t moebius_engine_sort_cutoff(const moebius_engine *engine)
{
    int64_t given = engine->options.sort_cutoff;
    return given ? given : tuning_cutoff(&engine->tuning, gguf_fingerprint(engine->gguf));
}

/* What is measured on this machine says so. */
static void describe(const struct kernels *kernels, int n_threads, struct tuning *t)
{
    char cpu[TUNING_MACHINE_BYTES / 2];
    cpu_name(cpu, sizeof cpu);
    snprintf(t->machine, sizeof t->machine, "%s, %s, %d threads of %d", cpu, kernels->name, n_threads,
             cpu_n_available());
    snprintf(t->build, sizeof t->build, "%s, %s", MOEBIUS_VERSION, __VERSION__);
}

/* The file in the cache directory, owned by the caller (mem_free); NULL: there is no such directory. */
static err_code cache_path(const struct kernels *kernels, int n_threads, char **path, struct err *e)
{
    char name[64];
    struct tuning here;
    describe(kernels, n_threads, &here);
    uint32_t crc = crc32c(0, form, strlen(form));
    crc = crc32c(crc, here.machine, strlen(here.machine));
    snprintf(name, sizeof name, "tuning-%08" PRIx32 ".txt", crc32c(crc, here.build, strlen(here.build)));
    return cache_file_path(name, path, e);
}

static err_code write_tuning(const struct tuning *t, const char *path, struct err *e)
{
    struct output_file f;
    TRY(output_file_open(&f, path, e));
    tuning_print(t, f.stream);
    return output_file_finish(&f, e);
}

err_code engine_save_tuning(const moebius_engine *g, const char *path, char **written, struct err *e)
{
    struct tuning t = g->tuning;
    describe(g->kernels, pool_n_threads(g->pool), &t);
    *written = NULL;
    if (path) {
        *written = mem_strdup(path);
        if (!*written)
            return err_nomem(e, strlen(path), "a path");
    } else {
        TRY(cache_path(g->kernels, pool_n_threads(g->pool), written, e));
        if (!*written)
            return err_set(e, ERR_IO, "no cache directory: neither XDG_CACHE_HOME nor HOME is an absolute path");
    }
    err_code code = path ? ERR_OK : cache_file_make_folders(*written, e);
    if (code == ERR_OK)
        code = write_tuning(&t, *written, e);
    if (code != ERR_OK) {
        mem_free(*written);
        *written = NULL;
    }
    return code;
}

/* Reads a tuning. No file in the cache directory is no tuning: *t stays. */
static err_code read_tuning(const moebius_engine *g, const char *path, struct tuning *t, struct err *e)
{
    char *text;
    size_t n;
    TRY(cache_file_read(path, &text, &n, e));
    if (!text)
        return g->options.tuning ? err_set(e, ERR_IO, "%s: there is no such file", path) : ERR_OK;
    err_code code = tuning_parse(t, text, n, path, e);
    mem_free(text);
    return code;
}

void tuning_look(struct tuning *t, const struct kernels *kernels, int n_threads)
{
    struct err e;
    char *path = NULL, *text = NULL;
    size_t n;
    *t = (struct tuning){.cpu = cpu_tuning_default()};
    if (cache_path(kernels, n_threads, &path, &e) == ERR_OK && path && cache_file_read(path, &text, &n, &e) == ERR_OK &&
        text)
        (void)!tuning_parse(t, text, n, path, &e); /* a failure leaves the defaults */
    mem_free(text);
    mem_free(path);
}

/* The user's file. It may come from elsewhere: that is for the user to know. */
static err_code import_tuning(moebius_engine *g, struct tuning *t, struct err *e)
{
    struct tuning here;
    describe(g->kernels, pool_n_threads(g->pool), &here);
    TRY(read_tuning(g, g->options.tuning, t, e));
    if (strcmp(t->machine, here.machine) != 0 || strcmp(t->build, here.build) != 0)
        log_line(&g->log, LOG_INFO, "%s was measured on another machine or build: %s; build %s", g->options.tuning,
                 t->machine, t->build);
    return ERR_OK;
}

/* What earlier runs kept. A damaged file costs a warning and nothing else: it decides speed, never the result. */
static err_code recall_tuning(moebius_engine *g, struct tuning *t, struct err *e)
{
    char *path;
    struct err why;
    TRY(cache_path(g->kernels, pool_n_threads(g->pool), &path, e));
    if (!path)
        return ERR_OK;
    err_code code = read_tuning(g, path, t, &why);
    if (code == ERR_FORMAT)
        code = cache_file_set_aside(path, &g->log, &why);
    if (code != ERR_OK)
        log_line(&g->log, LOG_WARN, "what was tuned is not used: %s", why.text);
    mem_free(path);
    return ERR_OK;
}

/* Chooses for the types that have not been measured yet; false: for none. */
static bool measure_missing(moebius_engine *g)
{
    struct tune_type types[TUNE_MAX_TYPE];
    struct tuning t = g->tuning;
    struct tune_product p;
    int n = 0, n_measured = 0, n_all = tune_types(g, TUNE_MIN_BYTES, types);
    for (int i = 0; i < n_all; i++)
        if (!t.is_measured[types[i].type->type])
            types[n++] = types[i];
    int64_t each_ns = n * quick_type_ns < quick_ns ? quick_type_ns : quick_ns / n;
    for (int i = 0; i < n; i++)
        if (tune_product(g, &types[i], 1, TUNE_QUICK, each_ns, &p)) {
            t.is_measured[p.type->type] = true;
            t.cpu.one[p.type->type] = p.chosen;
            (void)tune_several(g, &types[i], p.chosen, each_ns / 4, &t.cpu.several_from[p.type->type]);
            (void)tune_panels(g, &types[i], each_ns / 4, &t.cpu.panels_from[p.type->type]);
            (void)tune_tiles(g, &types[i], each_ns / 2, &t.cpu.tiles_from[p.type->type]);
            n_measured++;
        }
    engine_use_tuning(g, &t);
    return n_measured > 0;
}

/* Whether products heed what is chosen: plain C and the reference leave prefetching to the processor. Other ranks have
 * no weights to measure with. */
static bool can_measure(const moebius_engine *g)
{
    return g->device == g->devices[0].cpu && !g->no_layers && g->kernels != kernels_reference() &&
           g->kernels != kernels_for(CPU_SCALAR);
}

err_code engine_tune(moebius_engine *g, struct err *e)
{
    struct tuning t = {.cpu = cpu_tuning_default()};
    struct err why;
    char *path;
    TRY((g->options.tuning ? import_tuning : recall_tuning)(g, &t, e));
    engine_use_tuning(g, &t);
    if (g->options.tuning || !can_measure(g) || !measure_missing(g))
        return ERR_OK;
    if (engine_save_tuning(g, NULL, &path, &why) != ERR_OK)
        log_line(&g->log, LOG_WARN, "what was tuned is not kept: %s", why.text);
    mem_free(path);
    return ERR_OK;
}
