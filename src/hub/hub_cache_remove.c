#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/file_walk.h"
#include "hub/hub_cache_internal.h"
#include "hub/piece_table.h"

/* What goes, or would. */
struct remover {
    const struct hub_places *places;
    const struct model_name *name;
    bool really;
    size_t n_models;
    uint64_t n_bytes;
    char repo[HUB_PLACE_BYTES];    /* its folder */
    char commit[HUB_COMMIT_BYTES]; /* of the one snapshot that is meant; "": all */
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

/* Removes a snapshot's link, and what it leads to if nothing else does. */
static err_code remove_link(struct remover *r, const char *link, uint64_t n_bytes, struct err *e)
{
    char blob[HUB_PLACE_BYTES], path[HUB_PLACE_BYTES], snapshots[HUB_PLACE_BYTES];
    struct search s = {.blob = blob};
    hub_cache_blob_of(link, blob);
    TRY(hub_cache_repo(r->places, r->name->repo, "/snapshots", snapshots, e));
    TRY(file_walk(snapshots, count_link, &s, e));
    bool is_last = s.n_link <= 1;
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
        if (!model_set_is_meant(set, r->name->what))
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
static bool is_part_meant(const struct model_name *name, const char *path)
{
    char table[HUB_PLACE_BYTES];
    struct piece_label label;
    const char *colon = NULL;
    if (!*name->what)
        return true;
    if ((size_t)snprintf(table, sizeof table, "%s.pieces", path) < sizeof table && piece_table_label(table, &label))
        colon = strchr(label.name + 3, ':'); /* hf:OWNER/REPO:PATH */
    const struct hub_file file = {.path = colon ? colon + 1 : ""};
    const struct model_set set = {.files = &file, .n = 1};
    return colon && model_set_is_meant(&set, name->what);
}

static err_code remove_if_part(void *user, const char *path, const char *below, struct err *e)
{
    struct remover *r = user;
    char blob[128], lock[HUB_PLACE_BYTES];
    const char *dot = strrchr(below, '.');
    if (!dot || strcmp(dot, ".incomplete") != 0 || !is_part_meant(r->name, path))
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

static err_code remove_download(struct remover *r, struct err *e)
{
    struct stat st;
    char path[HUB_PLACE_BYTES], part[HUB_PLACE_BYTES], lock[HUB_PLACE_BYTES];
    TRY(hub_cache_download(r->places, r->name->url, path, e));
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

static err_code remove_from_hub(struct remover *r, struct err *e)
{
    char path[HUB_PLACE_BYTES];
    if (strcmp(r->name->revision, "main") != 0) {
        hub_cache_commit(r->places, r->name->repo, r->name->revision, r->commit);
        if (!*r->commit)
            return ERR_OK; /* nothing of it is here */
    }
    TRY(hub_cache_repo(r->places, r->name->repo, "", r->repo, e));
    TRY(hub_cache_repo(r->places, r->name->repo, "/snapshots", path, e));
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
    return code;
}
