#define _GNU_SOURCE
#include "hub/hub_cache.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/output_file.h"
#include "base/split_set.h"
#include "hub/file_walk.h"
#include "hub/hub_cache_internal.h"

/* ---- places of things ------------------------------------------------------------------------------------------ */

static err_code check_length(int n, const char *what, struct err *e)
{
    return n >= 0 && n < HUB_PLACE_BYTES ? ERR_OK
                                         : err_set(e, ERR_USAGE, "%s: its path is longer than paths may be", what);
}

err_code hub_cache_repo(const struct hub_places *p, const char *repo, const char *below, char *out, struct err *e)
{
    const char *slash = strchr(repo, '/');
    if (!*p->cache)
        return err_set(e, ERR_FAIL, "there is no folder for models: set HOME or HF_HOME");
    return check_length(
        snprintf(out, HUB_PLACE_BYTES, "%s/models--%.*s--%s%s", p->cache, (int)(slash - repo), repo, slash + 1, below),
        repo, e);
}

bool hub_cache_repo_name(const char *folder, char out[HUB_REPO_BYTES])
{
    const char *owner = folder + strlen("models--");
    const char *border = strncmp(folder, "models--", 8) == 0 ? strstr(owner, "--") : NULL;
    return border && hub_path_is_safe(folder) &&
           snprintf(out, HUB_REPO_BYTES, "%.*s/%s", (int)(border - owner), owner, border + 2) < HUB_REPO_BYTES;
}

err_code hub_cache_blob(const struct hub_places *p, const char *repo, const char *digest, char *out, struct err *e)
{
    char below[128];
    snprintf(below, sizeof below, "/blobs/%s", digest);
    return hub_cache_repo(p, repo, below, out, e);
}

err_code hub_cache_lock(const struct hub_places *p, const char *repo, const char *digest, char *out, struct err *e)
{
    const char *slash = strchr(repo, '/');
    return check_length(snprintf(out, HUB_PLACE_BYTES, "%s/.locks/models--%.*s--%s/%s.lock", p->cache,
                                 (int)(slash - repo), repo, slash + 1, digest),
                        repo, e);
}

err_code hub_cache_link(const struct hub_places *p, const char *repo, const char *commit, const char *path, char *out,
                        struct err *e)
{
    char below[HUB_PATH_BYTES + 128];
    snprintf(below, sizeof below, "/snapshots/%s/%s", commit, path);
    return hub_cache_repo(p, repo, below, out, e);
}

err_code hub_cache_download(const struct hub_places *p, const char *url, char *out, struct err *e)
{
    char path[HUB_PATH_BYTES];
    const char *begin = strstr(url, "://") + 3;
    size_t n = strcspn(begin, "?"), n_user = strcspn(begin, "/");
    const char *at = memchr(begin, '@', n_user);
    if (!*p->downloads)
        return err_set(e, ERR_FAIL, "there is no folder for models: set HOME or XDG_CACHE_HOME");
    if (at)
        return err_set(e, ERR_USAGE, "%.200s: expected an address without a user's name", url);
    if (n < sizeof path)
        snprintf(path, sizeof path, "%.*s", (int)n, begin);
    if (n >= sizeof path || n < 6 || strcasecmp(path + n - 5, ".gguf") != 0 || !strchr(path, '/') ||
        !hub_path_is_safe(path))
        return err_set(e, ERR_USAGE, "%.200s: expected an address whose path ends in the name of a .gguf file", url);
    return check_length(snprintf(out, HUB_PLACE_BYTES, "%s/%s", p->downloads, path), url, e);
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

err_code hub_cache_make_folders(const char *path, struct err *e)
{
    char folder[HUB_PLACE_BYTES];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *p = strchr(folder + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST && errno != EACCES && errno != EROFS)
            return err_set(e, ERR_IO, "%s: %s", folder, strerror(errno));
        *p = '/';
    }
    return ERR_OK; /* a folder that may not be made shows when its file is written */
}

static err_code make_link(const char *target, const char *link, struct err *e)
{
    char old[HUB_PLACE_BYTES], beside[HUB_PLACE_BYTES];
    ssize_t n = readlink(link, old, sizeof old - 1);
    if (n >= 0 && (size_t)n == strlen(target) && memcmp(old, target, (size_t)n) == 0)
        return ERR_OK;
    TRY(check_length(snprintf(beside, sizeof beside, "%s.%d.tmp", link, (int)getpid()), link, e));
    (void)unlink(beside);
    if (symlink(target, beside) != 0 || rename(beside, link) != 0)
        return err_set(e, ERR_IO, "%s: %s", link, strerror(errno));
    output_file_sync_folder(link);
    return ERR_OK;
}

err_code hub_cache_put_link(const struct hub_places *p, const char *repo, const char *commit, const struct hub_file *f,
                            struct err *e)
{
    char link[HUB_PLACE_BYTES], target[HUB_PLACE_BYTES] = "../../";
    size_t n = strlen(target);
    TRY(hub_cache_link(p, repo, commit, f->path, link, e));
    for (const char *slash = strchr(f->path, '/'); slash && n + 4 < sizeof target; slash = strchr(slash + 1, '/'))
        n += (size_t)snprintf(target + n, sizeof target - n, "../");
    TRY(check_length(snprintf(target + n, sizeof target - n, "blobs/%s", f->digest) + (int)n, link, e));
    TRY(hub_cache_make_folders(link, e));
    return make_link(target, link, e);
}

err_code hub_cache_put_ref(const struct hub_places *p, const struct model_name *name, const char *commit, struct err *e)
{
    char below[HUB_REVISION_BYTES + 16], path[HUB_PLACE_BYTES];
    struct output_file f;
    if (strcmp(name->revision, commit) == 0)
        return ERR_OK;
    snprintf(below, sizeof below, "/refs/%s", name->revision);
    TRY(hub_cache_repo(p, name->repo, below, path, e));
    TRY(hub_cache_make_folders(path, e));
    TRY(output_file_open(&f, path, e));
    fputs(commit, f.stream);
    return output_file_finish(&f, e);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

void hub_cache_blob_of(const char *link, char *out)
{
    char target[HUB_PLACE_BYTES];
    ssize_t n = readlink(link, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(target, '/');
    snprintf(out, sizeof target, "%s", slash ? slash + 1 : target);
}

static err_code add_file(void *user, const char *path, const char *below, struct err *e)
{
    struct stat st;
    struct hub_file f = {.path = below, .is_there = true};
    if (!hub_path_is_safe(below) || stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return ERR_OK;
    f.n_bytes = (uint64_t)st.st_size;
    return model_sets_add(user, &f, e);
}

err_code hub_cache_snapshot(const char *folder, struct model_sets *out, struct err *e)
{
    TRY(file_walk(folder, add_file, out, e));
    return model_sets_group(out, e);
}

void hub_cache_commit(const struct hub_places *p, const char *repo, const char *revision, char out[HUB_COMMIT_BYTES])
{
    struct err e;
    char below[HUB_REVISION_BYTES + 16], path[HUB_PLACE_BYTES];
    enum { N = HUB_COMMIT_BYTES - 1 };
    out[0] = '\0';
    if (strlen(revision) == N && hub_is_hex(revision, N))
        memcpy(out, revision, N + 1);
    snprintf(below, sizeof below, "/refs/%s", revision);
    FILE *f = !*out && hub_cache_repo(p, repo, below, path, &e) == ERR_OK ? fopen(path, "re") : NULL;
    if (f && (!fgets(out, HUB_COMMIT_BYTES, f) || strlen(out) != N || !hub_is_hex(out, N)))
        out[0] = '\0';
    if (f)
        fclose(f);
}

/* Of the Hub's models. Where it can't be told which is meant although something is there, the list helps. */
static err_code find_in_hub(const struct hub_places *p, const struct model_name *name, const char *text, char *out,
                            bool *by_words, struct err *e)
{
    char commit[HUB_COMMIT_BYTES], folder[HUB_PLACE_BYTES];
    struct model_sets sets = {0};
    const struct model_set *set;
    size_t n_meant = 0;
    hub_cache_commit(p, name->repo, name->revision, commit);
    if (!*commit)
        return ERR_OK;
    TRY(hub_cache_link(p, name->repo, commit, "", folder, e));
    folder[strlen(folder) - 1] = '\0';
    err_code code = hub_cache_snapshot(folder, &sets, e);
    for (size_t i = 0; i < sets.n; i++)
        n_meant += model_set_fitness(&sets.sets[i], name->what) > 0;
    if (code == ERR_OK && n_meant > 0) {
        code = model_sets_choose(&sets, name->what, text, &set, e);
        *by_words = code == ERR_OK && *name->what && model_set_fitness(set, name->what) == 1;
        if (code == ERR_OK)
            code = hub_cache_link(p, name->repo, commit, set->files[0].path, out, e);
        else if (code == ERR_FAIL) /* parts are missing */
            code = ERR_OK;
    }
    model_sets_close(&sets);
    return code;
}

err_code hub_cache_find(const struct hub_places *p, const struct model_name *name, const char *text, char *out,
                        bool *by_words, struct err *e)
{
    struct stat st;
    struct split_set s = {0};
    char path[HUB_PLACE_BYTES], part[HUB_PLACE_BYTES];
    *out = '\0';
    *by_words = false;
    if (name->kind == MODEL_NAME_HUB)
        return *p->cache ? find_in_hub(p, name, text, out, by_words, e) : ERR_OK;
    TRY(hub_cache_download(p, name->url, path, e));
    (void)split_set_parse(&s, path, strlen(path));
    snprintf(part, sizeof part, "%s", path);
    for (int i = 1; i <= s.n_part; i++) {
        split_set_suffix(part + s.n_name, i, s.n_part);
        if (stat(part, &st) != 0)
            return ERR_OK;
    }
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        memcpy(out, path, sizeof path);
    return ERR_OK;
}
