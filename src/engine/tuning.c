#include "engine/tuning.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/crc32c.h"
#include "base/output_file.h"
#include "engine/cache_file.h"
#include "engine/engine_internal.h"
#include "base/text_scanner.h"
#include "kernels/kernels.h"

/* More tokens than this at once and sorted dispatch is the faster one, where nothing was measured
 * (docs/benchmarks.md). */
enum { DEFAULT_SORT_CUTOFF = 1 };

err_code tuning_parse(struct tuning *t, const char *text, size_t n, const char *name, struct err *e)
{
    struct text_scanner w = {.p = text, .end = text + n, .name = name};
    uint64_t model, cutoff;
    TRY(text_scanner_literal(&w, "moebius tuning 1", e));
    TRY(text_scanner_literal(&w, "model", e));
    TRY(text_scanner_hex(&w, "the model's fingerprint", &model, e));
    if (model != t->model)
        return err_set(e, ERR_FORMAT, "%s: tuning of another model (%016" PRIx64 "), expected %016" PRIx64, name, model,
                       t->model);
    TRY(text_scanner_literal(&w, "machine", e));
    TRY(text_scanner_literal(&w, t->machine, e));
    TRY(text_scanner_literal(&w, "sort_cutoff", e));
    TRY(text_scanner_number(&w, "the sort cutoff", 1, TUNING_MAX_CUTOFF, &cutoff, e));
    TRY(text_scanner_end(&w, e));
    t->sort_cutoff = (int64_t)cutoff;
    return ERR_OK;
}

err_code tuning_save(const struct tuning *t, const char *path, struct err *e)
{
    struct output_file f;
    TRY(output_file_open(&f, path, e));
    fprintf(f.stream, "moebius tuning 1\nmodel %016" PRIx64 "\nmachine %s\nsort_cutoff %" PRId64 "\n", t->model,
            t->machine, t->sort_cutoff);
    return output_file_finish(&f, e);
}

/* What the engine's tuning is about, and the file that it is kept in (NULL: nowhere). */
static err_code describe(const moebius_engine *g, struct tuning *t, char **path, struct err *e)
{
    char cpu[TUNING_MACHINE_BYTES / 2], name[64];
    cpu_name(cpu, sizeof cpu);
    *t = (struct tuning){.model = gguf_fingerprint(g->gguf)};
    snprintf(t->machine, sizeof t->machine, "%s, %s, %d threads of %d", cpu, g->kernels->name, pool_n_threads(g->pool),
             cpu_n_available());
    snprintf(name, sizeof name, "tuning-%016" PRIx64 "-%08" PRIx32 ".txt", t->model,
             crc32c(0, t->machine, strlen(t->machine)));
    return cache_file_path(name, path, e);
}

/* A tuning that is damaged costs a warning and nothing else: it decides speed, never the result. */
err_code engine_tune(moebius_engine *g, struct err *e)
{
    struct tuning t;
    struct err why;
    char *path, *text = NULL;
    size_t n;
    if (g->options.sort_cutoff)
        return ERR_OK;
    g->options.sort_cutoff = DEFAULT_SORT_CUTOFF;
    TRY(describe(g, &t, &path, e));
    if (!path)
        return ERR_OK;
    err_code code = cache_file_read(path, &text, &n, &why);
    if (code == ERR_OK && text)
        code = tuning_parse(&t, text, n, path, &why);
    if (code != ERR_OK)
        log_line(&g->log, LOG_WARN, "what was tuned is not used: %s", why.text);
    else if (text)
        g->options.sort_cutoff = t.sort_cutoff;
    mem_free(text);
    mem_free(path);
    return ERR_OK;
}

moebius_status moebius_engine_keep_sort_cutoff(const moebius_engine *engine, int64_t sort_cutoff, char **path,
                                               moebius_error *error)
{
    struct err e = {0};
    struct tuning t;
    err_code code = describe(engine, &t, path, &e);
    t.sort_cutoff = sort_cutoff;
    if (code == ERR_OK && (sort_cutoff < 1 || sort_cutoff > TUNING_MAX_CUTOFF))
        code = err_set(&e, ERR_USAGE, "sort cutoff %lld: expected 1 to %d", (long long)sort_cutoff, TUNING_MAX_CUTOFF);
    if (code == ERR_OK && !*path)
        code = err_set(&e, ERR_IO, "no cache directory: neither XDG_CACHE_HOME nor HOME is an absolute path");
    if (code == ERR_OK) {
        cache_file_make_folders(*path);
        code = tuning_save(&t, *path, &e);
    }
    if (code != ERR_OK) {
        mem_free(*path);
        *path = NULL;
    }
    return engine_status(code, &e, error);
}

int64_t moebius_engine_sort_cutoff(const moebius_engine *engine)
{
    return engine->options.sort_cutoff;
}
