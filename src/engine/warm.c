/* Counts of chosen experts, kept from one run to the next. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/cache_file.h"
#include "engine/engine_internal.h"

static err_code choose_path(moebius_engine *g, struct err *e)
{
    char name[64];
    if (*g->options.usage) {
        g->usage_path = mem_strdup(g->options.usage);
        return g->usage_path ? ERR_OK : err_nomem(e, strlen(g->options.usage), "a path");
    }
    snprintf(name, sizeof name, "usage-%016" PRIx64 ".txt", gguf_fingerprint(g->gguf));
    return cache_file_path(name, &g->usage_path, e);
}

err_code engine_warm(moebius_engine *g, struct err *e)
{
    struct experts *x = g->model->experts;
    if (g->is_warm || !x || experts_all_resident(x))
        return ERR_OK;
    g->is_warm = true;
    TRY(experts_open(x, g->spare_bytes, e));
    if (!g->options.usage)
        return ERR_OK;
    char *text;
    size_t n;
    const struct usage *seen = experts_usage(x);
    TRY(choose_path(g, e));
    if (!g->usage_path)
        return ERR_OK;
    err_code code = cache_file_read(g->usage_path, &text, &n, e);
    if (code == ERR_OK && text) {
        code =
            usage_parse(&g->past, text, n, g->usage_path, gguf_fingerprint(g->gguf), seen->n_layer, seen->n_expert, e);
        if (code == ERR_OK)
            code = experts_warm(x, &g->past, e);
    }
    mem_free(text);
    if (code != ERR_OK) { /* what is there is not ours to write over */
        mem_free(g->usage_path);
        g->usage_path = NULL;
    }
    return code;
}

void engine_usage_save(moebius_engine *g)
{
    struct err e;
    if (!g->usage_path)
        return;
    const struct usage *seen = experts_usage(g->model->experts);
    err_code code = g->past.count ? ERR_OK : usage_create(&g->past, seen->n_layer, seen->n_expert, &e);
    if (code == ERR_OK) {
        usage_merge(&g->past, seen);
        cache_file_make_folders(g->usage_path);
        code = usage_save(&g->past, g->usage_path, gguf_fingerprint(g->gguf), &e);
    }
    if (code != ERR_OK)
        log_line(&g->log, LOG_WARN, "usage of experts is not kept: %s", e.text);
    usage_close(&g->past);
    mem_free(g->usage_path);
    g->usage_path = NULL;
}
