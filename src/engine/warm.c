/* Counts of chosen experts, kept from one run to the next. Runs may share a file: each adds its own counts to what is
 * there when it ends, so that none are lost, in whatever order they come. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/output_file.h"
#include "engine/cache_file.h"
#include "engine/engine_internal.h"

/* Whether the file is one that moebius named, in its cache directory. */
static bool is_ours(const moebius_engine *g)
{
    return !*g->options.usage;
}

static err_code choose_path(moebius_engine *g, struct err *e)
{
    char name[64];
    if (!is_ours(g)) {
        g->usage_path = mem_strdup(g->options.usage);
        return g->usage_path ? ERR_OK : err_nomem(e, strlen(g->options.usage), "a path");
    }
    snprintf(name, sizeof name, "usage-%016" PRIx64 ".txt", gguf_fingerprint(g->gguf));
    return cache_file_path(name, &g->usage_path, e);
}

/* What is in the file, to be closed; no counts where there is no file. */
static err_code read_past(const moebius_engine *g, int n_layer, int64_t n_expert, struct usage *past, struct err *e)
{
    char *text;
    size_t n;
    *past = (struct usage){0};
    TRY(cache_file_read(g->usage_path, &text, &n, e));
    if (!text)
        return ERR_OK;
    err_code code = usage_parse(past, text, n, g->usage_path, gguf_fingerprint(g->gguf), n_layer, n_expert, e);
    mem_free(text);
    return code;
}

static void forget_path(moebius_engine *g)
{
    mem_free(g->usage_path);
    g->usage_path = NULL;
}

err_code engine_past_usage(moebius_engine *g, int n_layer, int64_t n_expert, struct usage *past, struct err *e)
{
    *past = (struct usage){0};
    if (!g->options.usage)
        return ERR_OK;
    if (!g->usage_path)
        TRY(choose_path(g, e));
    if (!g->usage_path)
        return ERR_OK;
    err_code code = read_past(g, n_layer, n_expert, past, e);
    if (code != ERR_OK && is_ours(g)) { /* it decides speed, never the result */
        log_line(&g->log, LOG_WARN, "earlier usage of experts is not known: %s", e->text);
        code = ERR_OK;
    }
    if (code != ERR_OK)
        forget_path(g); /* what is there is not ours to write over */
    return code;
}

err_code engine_warm(moebius_engine *g, struct err *e)
{
    struct usage past;
    if (g->is_warm || !(engine_is_streaming(g) || engine_has_cache(g) || engine_ranks(g)))
        return ERR_OK;
    g->is_warm = true;
    TRY(engine_open_slots(g, NULL, e));
    TRY(engine_warm_ranks(g, NULL, e));
    const struct usage *seen = experts_usage(g->model->experts);
    TRY(engine_past_usage(g, seen->n_layer, seen->n_expert, &past, e));
    err_code code = past.count ? engine_open_slots(g, &past, e) : ERR_OK;
    if (code == ERR_OK && past.count)
        code = engine_warm_ranks(g, &past, e);
    usage_close(&past);
    if (code == ERR_OK && engine_has_cache(g))
        engine_fill_cache(g);
    return code;
}

/* The counts of the file, with this run's added. */
static err_code add_usage(const moebius_engine *g, struct usage *all, struct err *e)
{
    const struct usage *seen = experts_usage(g->model->experts);
    err_code code = read_past(g, seen->n_layer, seen->n_expert, all, e);
    if (code == ERR_FORMAT && is_ours(g))
        code = cache_file_set_aside(g->usage_path, &g->log, e);
    TRY(code);
    if (!all->count)
        TRY(usage_create(all, seen->n_layer, seen->n_expert, e));
    for (int i = 0; i < g->model->n_stage; i++) /* each has counted its layers */
        usage_merge(all, experts_usage(g->model->stages[i].experts));
    return ERR_OK;
}

static err_code update_usage(moebius_engine *g, struct err *e)
{
    struct output_file f;
    struct usage all = {0};
    if (is_ours(g))
        TRY(cache_file_make_folders(g->usage_path, e));
    TRY(output_file_open_shared(&f, g->usage_path, e));
    err_code code = add_usage(g, &all, e);
    if (code == ERR_OK) {
        usage_print(&all, gguf_fingerprint(g->gguf), f.stream);
        code = output_file_finish(&f, e);
    }
    output_file_abandon(&f);
    usage_close(&all);
    return code;
}

void engine_usage_save(moebius_engine *g)
{
    struct err e;
    if (g->usage_path && g->model && g->model->experts && update_usage(g, &e) != ERR_OK)
        log_line(&g->log, LOG_WARN, "usage of experts is not kept: %s", e.text);
    forget_path(g);
}
