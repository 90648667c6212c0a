#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/output_file.h"
#include "hub/file_walk.h"
#include "hub/hub_cache_internal.h"
#include "hub/piece_table.h"

/* A list that is being made. */
struct lister {
    const struct hub_places *places;
    struct cached_models *out;
    char repo[HUB_REPO_BYTES]; /* the repository whose folder is being read; "": it is no repository's */
};

static err_code add(struct cached_models *m, const struct cached_model *model, struct err *e)
{
    enum { MOST_MODELS = 100000 };
    if (m->n == MOST_MODELS)
        return err_set(e, ERR_LIMIT, "more than %d models in the cache", MOST_MODELS);
    if ((m->n & (m->n - 1)) == 0) {
        struct cached_model *more = arena_calloc(&m->arena, m->n ? 2 * m->n : 1, sizeof *more);
        if (!more)
            return err_nomem(e, 2 * m->n * sizeof *more, "a list of models");
        if (m->n)
            memcpy(more, m->models, m->n * sizeof *more);
        m->models = more;
    }
    struct cached_model *kept = &m->models[m->n];
    *kept = *model;
    kept->name = arena_strndup(&m->arena, model->name, strlen(model->name));
    kept->path = arena_strndup(&m->arena, model->path, strlen(model->path));
    if (!kept->name || !kept->path)
        return err_nomem(e, strlen(model->name), "a list of models");
    m->n++;
    return ERR_OK;
}

/* ---- snapshots -------------------------------------------------------------------------------------------------- */

static bool is_label_unique(const struct model_sets *sets, const struct model_set *set)
{
    int n = 0;
    for (size_t i = 0; i < sets->n; i++)
        n += strcasecmp(sets->sets[i].label, set->label) == 0;
    return *set->label && n == 1;
}

static err_code add_set(const struct lister *l, const char *folder, const char *name, const struct model_set *set,
                        struct err *e)
{
    char path[HUB_PLACE_BYTES];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, set->files[0].path) >= sizeof path)
        return ERR_OK;
    const struct cached_model model = {name,         path,         set->n == set->n_parts ? set->n_bytes : 0,
                                       set->n_bytes, set->n_parts, set->n};
    return add(l->out, &model, e);
}

static err_code list_snapshot(void *user, const char *path, const char *commit, struct err *e)
{
    const struct lister *l = user;
    char main_commit[HUB_COMMIT_BYTES], revision[HUB_COMMIT_BYTES + 1] = "";
    struct model_sets sets = {0};
    if (!hub_is_hex(commit, HUB_COMMIT_BYTES - 1) || strlen(commit) != HUB_COMMIT_BYTES - 1)
        return ERR_OK;
    hub_cache_commit(l->places, l->repo, "main", main_commit);
    if (strcmp(main_commit, commit) != 0)
        snprintf(revision, sizeof revision, "@%s", commit);
    err_code code = hub_cache_snapshot(path, &sets, e);
    for (size_t i = 0; code == ERR_OK && i < sets.n; i++) {
        const struct model_set *set = &sets.sets[i];
        char name[HUB_PLACE_BYTES];
        snprintf(name, sizeof name, "hf:%s%s:%s", l->repo, revision,
                 is_label_unique(&sets, set) ? set->label : set->files[0].path);
        code = add_set(l, path, name, set, e);
    }
    model_sets_close(&sets);
    return code;
}

/* ---- parts ------------------------------------------------------------------------------------------------------ */

/* Lists a part, PATH.incomplete, with what its table says; without a table it is another program's. */
static err_code list_part(void *user, const char *path, const char *below, struct err *e)
{
    const struct lister *l = user;
    static const char suffix[] = ".incomplete";
    char table[HUB_PLACE_BYTES], whole[HUB_PLACE_BYTES], name[HUB_PLACE_BYTES];
    struct piece_label label = {0};
    size_t n = strlen(path);
    if (n < sizeof suffix || strcmp(path + n - (sizeof suffix - 1), suffix) != 0)
        return ERR_OK;
    snprintf(whole, sizeof whole, "%.*s", (int)(n - (sizeof suffix - 1)), path);
    if (*l->repo)
        snprintf(name, sizeof name, "hf:%s", l->repo);
    else
        snprintf(name, sizeof name, "https://%.*s", (int)(strlen(below) - (sizeof suffix - 1)), below);
    if ((size_t)snprintf(table, sizeof table, "%s.pieces", path) < sizeof table && piece_table_label(table, &label))
        snprintf(name, sizeof name, "%s", label.name);
    const struct cached_model model = {name, whole, label.n_bytes, part_bytes(whole), 1, 0};
    return add(l->out, &model, e);
}

static err_code list_repo(void *user, const char *path, const char *folder, struct err *e)
{
    struct lister *l = user;
    char below[HUB_PLACE_BYTES];
    if (!hub_cache_repo_name(folder, l->repo))
        return ERR_OK;
    if ((size_t)snprintf(below, sizeof below, "%s/snapshots", path) < sizeof below)
        TRY(file_walk_names(below, true, list_snapshot, l, e));
    if ((size_t)snprintf(below, sizeof below, "%s/blobs", path) < sizeof below)
        TRY(file_walk_names(below, false, list_part, l, e));
    return ERR_OK;
}

/* ---- other addresses -------------------------------------------------------------------------------------------- */

/* The URL's scheme, from the lock file (download.c). */
static const char *scheme_of(const char *folder, const char *file)
{
    char path[HUB_PLACE_BYTES], begin[8] = "";
    FILE *f = (size_t)snprintf(path, sizeof path, "%s/%s.lock", folder, file) < sizeof path ? fopen(path, "re") : NULL;
    bool is_plain = f && fgets(begin, sizeof begin, f) && strcasecmp(begin, "http://") == 0;
    if (f)
        fclose(f);
    return is_plain ? "http://" : "https://";
}

static err_code list_downloads(struct lister *l, struct err *e)
{
    const char *folder = l->places->downloads;
    struct model_sets sets = {0};
    err_code code = hub_cache_snapshot(folder, &sets, e);
    for (size_t i = 0; code == ERR_OK && i < sets.n; i++) {
        char name[HUB_PLACE_BYTES];
        const char *file = sets.sets[i].files[0].path;
        if ((size_t)snprintf(name, sizeof name, "%s%s", scheme_of(folder, file), file) < sizeof name)
            code = add_set(l, folder, name, &sets.sets[i], e);
    }
    model_sets_close(&sets);
    l->repo[0] = '\0';
    return code == ERR_OK ? file_walk(folder, list_part, l, e) : code;
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct cached_model *)a)->name, ((const struct cached_model *)b)->name);
}

err_code hub_cache_list(const struct hub_places *p, struct cached_models *out, struct err *e)
{
    struct lister l = {.places = p, .out = out};
    if (*p->cache)
        TRY(file_walk_names(p->cache, true, list_repo, &l, e));
    if (*p->downloads)
        TRY(list_downloads(&l, e));
    if (out->n)
        qsort(out->models, out->n, sizeof *out->models, compare);
    return ERR_OK;
}

void cached_models_close(struct cached_models *m)
{
    arena_close(&m->arena);
    *m = (struct cached_models){0};
}
