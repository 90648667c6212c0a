/* Counts of chosen experts, kept from one run to the next. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/engine_internal.h"

/* Makes the folders of a path, as far as they are missing. */
static void make_folders(char *path)
{
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        mkdir(path, 0777); /* one that can't be made shows when the file is written */
        *p = '/';
    }
}

static err_code choose_path(moebius_engine *g, struct err *e)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (*g->options.usage) {
        g->usage_path = mem_strdup(g->options.usage);
        return g->usage_path ? ERR_OK : err_nomem(e, strlen(g->options.usage), "a path");
    }
    bool xdg = cache && *cache == '/';
    if (!xdg && (!home || *home != '/'))
        return ERR_OK; /* nowhere to keep them */
    size_t n = strlen(xdg ? cache : home) + 64;
    g->usage_path = mem_alloc(n);
    if (!g->usage_path)
        return err_nomem(e, n, "a path");
    snprintf(g->usage_path, n, "%s%s/moebius/usage-%016" PRIx64 ".txt", xdg ? cache : home, xdg ? "" : "/.cache",
             gguf_fingerprint(g->gguf));
    return ERR_OK;
}

static err_code read_file(const char *path, char **text, size_t *n, struct err *e)
{
    enum { MOST = 64 << 20 };
    FILE *f = fopen(path, "rb");
    *text = NULL;
    *n = 0;
    if (!f)
        return errno == ENOENT ? ERR_OK : err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    struct stat s;
    err_code code = ERR_OK;
    if (fstat(fileno(f), &s) != 0 || !S_ISREG(s.st_mode) || s.st_size > MOST)
        code = err_set(e, ERR_FORMAT, "%s: not a file of usage counts", path);
    else if (!(*text = mem_alloc((size_t)s.st_size)))
        code = err_nomem(e, (size_t)s.st_size, path);
    else
        *n = fread(*text, 1, (size_t)s.st_size, f);
    if (code == ERR_OK && ferror(f))
        code = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    fclose(f);
    return code;
}

err_code engine_warm(moebius_engine *g, struct err *e)
{
    struct experts *x = g->model->experts;
    if (g->is_warm || !x || experts_all_resident(x))
        return ERR_OK;
    g->is_warm = true;
    experts_open(x, g->spare_bytes);
    if (!g->options.usage)
        return ERR_OK;
    char *text;
    size_t n;
    const struct usage *seen = experts_usage(x);
    TRY(choose_path(g, e));
    if (!g->usage_path)
        return ERR_OK;
    err_code code = read_file(g->usage_path, &text, &n, e);
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
        make_folders(g->usage_path);
        code = usage_save(&g->past, g->usage_path, gguf_fingerprint(g->gguf), &e);
    }
    if (code != ERR_OK)
        log_line(&g->log, LOG_WARN, "usage of experts is not kept: %s", e.text);
    usage_close(&g->past);
    mem_free(g->usage_path);
    g->usage_path = NULL;
}
