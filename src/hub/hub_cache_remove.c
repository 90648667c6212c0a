#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/minmax.h"
#include "base/split_set.h"
#include "hub/file_walk.h"
#include "hub/hub_cache_internal.h"
#include "hub/piece_table.h"

/* What is being removed, or would be. */
struct remover {
    const struct hub_places *places;
    const struct model_name *name;
    bool really;
    int fitness;        /* fitness of the best match; models with less are kept */
    struct bytes taken; /* without `really`: blobs whose links would be removed, one in each line */
    size_t n_models;
    uint64_t n_bytes;
    char repo[HUB_PLACE_BYTES];    /* its folder */
    char commit[HUB_COMMIT_BYTES]; /* commit of the only snapshot that the name matches; "": all */
};

static err_code remove_file(const char *path, struct err *e)
{
    return unlink(path) == 0 || errno == ENOENT ? ERR_OK : err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

/* ---- blobs ------------------------------------------------------------------------------------------------------ */

struct search {
    const char *blob;
    int n_link; /* that lead to it */
};

static err_code count_link(void *user, const char *path, const char *below, struct err *e)
{
    struct search *s = user;
    char blob[HUB_PLACE_BYTES];
    hub_cache_blob_of(path, blob);
    s->n_link += strcmp(blob, s->blob) == 0;
    return ERR_OK;
}

/* How many links to it would be gone by now. */
static int n_taken(struct remover *r, const char *blob)
{
    int n = 0;
    size_t length = strlen(blob);
    for (const char *p = bytes_text(&r->taken); *p; p += strcspn(p, "\n") + 1)
        n += strncmp(p, blob, length) == 0 && p[length] == '\n';
    bytes_put_text(&r->taken, blob);
    bytes_put_char(&r->taken, '\n');
    return n;
}

/* Removes a snapshot's link, and what it leads to if nothing else does. */
static err_code remove_link(struct remover *r, const char *link, uint64_t n_bytes, struct err *e)
{
    char blob[HUB_PLACE_BYTES], path[HUB_PLACE_BYTES], snapshots[HUB_PLACE_BYTES];
    struct search s = {.blob = blob};
    hub_cache_blob_of(link, blob);
    TRY(hub_cache_repo(r->places, r->name->repo, "/snapshots", snapshots, e));
    TRY(file_walk(snapshots, count_link, &s, e));
    bool is_last = s.n_link - (r->really ? 0 : n_taken(r, blob)) <= 1;
    if (r->really)
        TRY(remove_file(link, e));
    r->n_bytes += is_last ? n_bytes : 0;
    if (!is_last || !*blob || !hub_path_is_safe(blob) || !r->really)
        return ERR_OK;
    TRY(hub_cache_lock(r->places, r->name->repo, blob, path, e));
    TRY(remove_file(path, e));
    TRY(hub_cache_blob(r->places, r->name->repo, blob, path, e));
    return remove_file(path, e);
}

/* ---- snapshots -------------------------------------------------------------------------------------------------- */

static err_code find_best(void *user, const char *path, const char *commit, struct err *e)
{
    struct remover *r = user;
    struct model_sets sets = {0};
    if (*r->commit && strcmp(r->commit, commit) != 0)
        return ERR_OK;
    err_code code = hub_cache_snapshot(path, &sets, e);
    for (size_t i = 0; code == ERR_OK && i < sets.n; i++)
        r->fitness = (int)max_i64(r->fitness, model_set_fitness(&sets.sets[i], r->name->what));
    model_sets_close(&sets);
    return code;
}

static err_code remove_from_snapshot(void *user, const char *path, const char *commit, struct err *e)
{
    struct remover *r = user;
    char link[HUB_PLACE_BYTES];
    struct model_sets sets = {0};
    if (*r->commit && strcmp(r->commit, commit) != 0)
        return ERR_OK;
    err_code code = hub_cache_snapshot(path, &sets, e);
    for (size_t i = 0; code == ERR_OK && i < sets.n; i++) {
        const struct model_set *set = &sets.sets[i];
        if (r->fitness == 0 || model_set_fitness(set, r->name->what) != r->fitness)
            continue;
        r->n_models++;
        for (int k = 0; code == ERR_OK && k < set->n; k++)
            if ((size_t)snprintf(link, sizeof link, "%s/%s", path, set->files[k].path) < sizeof link)
                code = remove_link(r, link, set->files[k].n_bytes, e);
    }
    model_sets_close(&sets);
    return code;
}

/* ---- parts ------------------------------------------------------------------------------------------------------ */

static err_code remove_part(struct remover *r, const char *path, const char *lock, struct err *e)
{
    struct stat st;
    char table[HUB_PLACE_BYTES];
    r->n_models++;
    r->n_bytes += lstat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    if (!r->really)
        return ERR_OK;
    if ((size_t)snprintf(table, sizeof table, "%s.pieces", path) < sizeof table)
        TRY(remove_file(table, e));
    TRY(remove_file(lock, e));
    return remove_file(path, e);
}

/* A part is meant as the file that it is to be; one of another program, which no table names, only with all. */
static err_code part_fitness(const struct model_name *name, const char *path, int *fitness, struct err *e)
{
    char table[HUB_PLACE_BYTES];
    struct piece_label label;
    struct model_sets sets = {0};
    const char *colon = NULL;
    *fitness = !*name->what;
    if (*fitness)
        return ERR_OK;
    if ((size_t)snprintf(table, sizeof table, "%s.pieces", path) < sizeof table && piece_table_label(table, &label))
        colon = strchr(label.name + 3, ':'); /* hf:OWNER/REPO:PATH */
    if (!colon)
        return ERR_OK;
    const struct hub_file file = {.path = colon + 1};
    err_code code = model_sets_add(&sets, &file, e);
    if (code == ERR_OK)
        code = model_sets_group(&sets, e);
    if (code == ERR_OK && sets.n)
        *fitness = model_set_fitness(&sets.sets[0], name->what);
    model_sets_close(&sets);
    return code;
}

static bool is_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".incomplete") == 0;
}

static err_code find_best_part(void *user, const char *path, const char *below, struct err *e)
{
    struct remover *r = user;
    int fitness = 0;
    if (is_part(below))
        TRY(part_fitness(r->name, path, &fitness, e));
    r->fitness = (int)max_i64(r->fitness, fitness);
    return ERR_OK;
}

static err_code remove_if_part(void *user, const char *path, const char *below, struct err *e)
{
    struct remover *r = user;
    char blob[128], lock[HUB_PLACE_BYTES];
    const char *dot = strrchr(below, '.');
    int fitness = 0;
    if (is_part(below))
        TRY(part_fitness(r->name, path, &fitness, e));
    if (!fitness || fitness != r->fitness)
        return ERR_OK;
    snprintf(blob, sizeof blob, "%.*s", (int)(dot - below), below);
    TRY(hub_cache_lock(r->places, r->name->repo, blob, lock, e));
    return remove_part(r, path, lock, e);
}

/* ---- what is left ----------------------------------------------------------------------------------------------- */

/* A revision's commit whose snapshot is gone means nothing. */
static err_code remove_stale_ref(void *user, const char *path, const char *below, struct err *e)
{
    const struct remover *r = user;
    struct stat st;
    char commit[HUB_COMMIT_BYTES], snapshot[HUB_PLACE_BYTES];
    hub_cache_commit(r->places, r->name->repo, below, commit);
    if (!*commit)
        return ERR_OK;
    TRY(hub_cache_link(r->places, r->name->repo, commit, "", snapshot, e));
    return stat(snapshot, &st) == 0 ? ERR_OK : remove_file(path, e);
}

static err_code tidy(struct remover *r, struct err *e)
{
    char path[HUB_PLACE_BYTES];
    TRY(hub_cache_repo(r->places, r->name->repo, "/snapshots", path, e));
    file_walk_prune(path);
    TRY(hub_cache_repo(r->places, r->name->repo, "/refs", path, e));
    TRY(file_walk(path, remove_stale_ref, r, e));
    file_walk_prune(r->repo);
    TRY(hub_cache_lock(r->places, r->name->repo, "", path, e));
    *strrchr(path, '/') = '\0';
    file_walk_prune(path);
    return ERR_OK;
}

static err_code remove_file_of(struct remover *r, const char *url, struct err *e)
{
    struct stat st;
    char path[HUB_PLACE_BYTES], part[HUB_PLACE_BYTES], lock[HUB_PLACE_BYTES];
    TRY(hub_cache_download(r->places, url, path, e));
    if (!part_path(path, part, sizeof part) || (size_t)snprintf(lock, sizeof lock, "%s.lock", path) >= sizeof lock)
        return err_set(e, ERR_USAGE, "%s: longer than paths may be", path);
    if (stat(path, &st) == 0) {
        r->n_models++;
        r->n_bytes += (uint64_t)st.st_size;
        if (r->really)
            TRY(remove_file(path, e));
    }
    if (stat(part, &st) == 0)
        TRY(remove_part(r, part, lock, e));
    if (r->really) {
        TRY(remove_file(lock, e));
        file_walk_prune(r->places->downloads);
    }
    return ERR_OK;
}

/* The address of a part of a split set means all of them. */
static err_code remove_download(struct remover *r, struct err *e)
{
    char url[sizeof r->name->url], suffix[SPLIT_SET_SUFFIX_BYTES + 1];
    struct split_set s;
    if (!split_set_parse(&s, r->name->url, strcspn(r->name->url, "?")))
        return remove_file_of(r, r->name->url, e);
    memcpy(url, r->name->url, sizeof url);
    for (int i = 1; i <= s.n_part; i++) {
        split_set_suffix(suffix, i, s.n_part);
        memcpy(url + s.n_name, suffix, SPLIT_SET_SUFFIX_BYTES);
        TRY(remove_file_of(r, url, e));
    }
    return ERR_OK;
}

static err_code remove_from_hub(struct remover *r, struct err *e)
{
    char path[HUB_PLACE_BYTES];
    if (strcmp(r->name->revision, "main") != 0) {
        hub_cache_commit(r->places, r->name->repo, r->name->revision, r->commit);
        if (!*r->commit)
            return ERR_OK; /* nothing of it is here */
    }
    TRY(hub_cache_repo(r->places, r->name->repo, "", r->repo, e));
    TRY(hub_cache_repo(r->places, r->name->repo, "/blobs", path, e));
    TRY(file_walk_names(path, false, find_best_part, r, e));
    TRY(hub_cache_repo(r->places, r->name->repo, "/snapshots", path, e));
    TRY(file_walk_names(path, true, find_best, r, e));
    TRY(file_walk_names(path, true, remove_from_snapshot, r, e));
    TRY(hub_cache_repo(r->places, r->name->repo, "/blobs", path, e));
    TRY(file_walk_names(path, false, remove_if_part, r, e));
    return r->really ? tidy(r, e) : ERR_OK;
}

err_code hub_cache_remove(const struct hub_places *p, const struct model_name *name, bool really, size_t *n_models,
                          uint64_t *n_bytes, struct err *e)
{
    struct remover r = {.places = p, .name = name, .really = really};
    err_code code = name->kind == MODEL_NAME_URL ? remove_download(&r, e) : remove_from_hub(&r, e);
    *n_models = r.n_models;
    *n_bytes = r.n_bytes;
    bytes_close(&r.taken);
    return code;
}
