#define _GNU_SOURCE
#include "hub/pull.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/mem.h"
#include "base/split_set.h"
#include "hub/download.h"
#include "hub/hub_api.h"
#include "hub/hub_cache.h"
#include "hub/piece_table.h"

/* A file of the model. Strings are the arena's. */
struct pull_file {
    struct download d;
    const struct hub_file *hub; /* NULL: of another address */
};

struct pull {
    struct pull_options o;
    struct model_name name;
    char text[HUB_PATH_BYTES]; /* what the user wrote */
    char commit[HUB_COMMIT_BYTES];
    struct http_client *client;
    struct model_sets sets;
    struct pull_file *files; /* [n] */
    int n;
    uint64_t n_before; /* bytes of the files before the one that is fetched */
    struct arena arena;
};

const char *pull_library(void)
{
    return "libcurl " LIBCURL_VERSION;
}

/* ---- what there is ---------------------------------------------------------------------------------------------- */

static err_code keep(struct pull *p, const char **out, const char *text, struct err *e)
{
    *out = arena_strndup(&p->arena, text, strlen(text));
    return *out ? ERR_OK : err_nomem(e, strlen(text), "a name");
}

static err_code add_hub_file(struct pull *p, struct pull_file *f, const struct hub_file *hub, struct err *e)
{
    char path[HUB_PLACE_BYTES], name[HUB_REPO_BYTES + HUB_PATH_BYTES + 8];
    const char *repo = p->name.repo;
    *f = (struct pull_file){.d = {.n_bytes = hub->n_bytes, .digest = hub->digest, .etag = ""}, .hub = hub};
    TRY(hub_cache_blob(p->o.places, repo, hub->digest, path, e));
    TRY(keep(p, &f->d.path, path, e));
    TRY(hub_cache_lock(p->o.places, repo, hub->digest, path, e));
    TRY(keep(p, &f->d.lock, path, e));
    snprintf(name, sizeof name, "hf:%s:%s", repo, hub->path);
    TRY(keep(p, &f->d.name, name, e));
    char *url = hub_api_file_url(p->o.places->endpoint, repo, p->commit, hub->path);
    err_code code = url ? keep(p, &f->d.url, url, e) : err_nomem(e, HUB_URL_BYTES, "an address");
    mem_free(url);
    return code;
}

static err_code make_files(struct pull *p, int n, struct err *e)
{
    p->files = arena_calloc(&p->arena, (size_t)n, sizeof *p->files);
    p->n = p->files ? n : 0;
    return p->files ? ERR_OK : err_nomem(e, (size_t)n * sizeof *p->files, "a list of files");
}

static err_code ask_hub(struct pull *p, struct err *e)
{
    const struct model_set *set;
    TRY(hub_api_models(p->client, p->o.places->endpoint, &p->name, p->commit, &p->sets, e));
    TRY(model_sets_choose(&p->sets, p->name.what, p->text, &set, e));
    TRY(make_files(p, set->n, e));
    for (int i = 0; i < set->n; i++)
        TRY(add_hub_file(p, &p->files[i], &set->files[i], e));
    return ERR_OK;
}

static err_code add_address(struct pull *p, struct pull_file *f, const char *url, struct err *e)
{
    char path[HUB_PLACE_BYTES], etag[130];
    TRY(hub_cache_download(p->o.places, url, path, e));
    TRY(keep(p, &f->d.path, path, e));
    TRY(keep(p, &f->d.url, url, e));
    TRY(keep(p, &f->d.name, url, e));
    if (strlen(path) + sizeof ".lock" > sizeof path)
        return err_set(e, ERR_USAGE, "%.200s: its path is longer than paths may be", url);
    TRY(keep(p, &f->d.lock, strcat(path, ".lock"), e));
    TRY(download_probe(p->client, url, &f->d.n_bytes, etag, e));
    return keep(p, &f->d.etag, etag, e);
}

/* The address of a part of a split set means all of them. */
static err_code ask_address(struct pull *p, struct err *e)
{
    enum { MOST_PARTS = 999 };
    char url[sizeof p->name.url], suffix[SPLIT_SET_SUFFIX_BYTES + 1];
    struct split_set s;
    if (!split_set_parse(&s, p->name.url, strcspn(p->name.url, "?"))) {
        TRY(make_files(p, 1, e));
        return add_address(p, &p->files[0], p->name.url, e);
    }
    if (s.n_part > MOST_PARTS)
        return err_set(e, ERR_USAGE, "%.200s: expected 1 to %d parts", p->name.url, MOST_PARTS);
    TRY(make_files(p, s.n_part, e));
    memcpy(url, p->name.url, sizeof url);
    for (int i = 0; i < s.n_part; i++) {
        split_set_suffix(suffix, i + 1, s.n_part);
        memcpy(url + s.n_name, suffix, SPLIT_SET_SUFFIX_BYTES);
        TRY(add_address(p, &p->files[i], url, e));
    }
    return ERR_OK;
}

err_code pull_open(struct pull **out, const struct model_name *name, const char *text, const struct pull_options *o,
                   struct err *e)
{
    const struct http_client_options client = {.token = o->places->token,
                                               .origin = o->places->endpoint,
                                               .n_retry = o->n_retry,
                                               .goes_on = o->goes_on,
                                               .say = o->say,
                                               .user = o->user};
    *out = NULL;
    if (o->places->is_offline)
        return err_set(e, ERR_FAIL, "%s: it is not here, and the network is not to be used (HF_HUB_OFFLINE, --offline)",
                       text);
    struct pull *p = mem_calloc(1, sizeof *p);
    if (!p)
        return err_nomem(e, sizeof *p, text);
    p->o = *o;
    p->name = *name;
    snprintf(p->text, sizeof p->text, "%s", text);
    err_code code = http_client_open(&p->client, &client, e);
    if (code == ERR_OK)
        code = name->kind == MODEL_NAME_HUB ? ask_hub(p, e) : ask_address(p, e);
    if (code == ERR_OK)
        *out = p;
    else
        pull_close(&p);
    return code;
}

void pull_close(struct pull **p)
{
    if (!*p)
        return;
    http_client_close(&(*p)->client);
    model_sets_close(&(*p)->sets);
    arena_close(&(*p)->arena);
    mem_free(*p);
    *p = NULL;
}

int pull_n_files(const struct pull *p)
{
    return p->n;
}

const char *pull_file_name(const struct pull *p, int i)
{
    const char *name = p->files[i].hub ? p->files[i].hub->path : p->files[i].d.path, *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

uint64_t pull_file_bytes(const struct pull *p, int i)
{
    return p->files[i].d.n_bytes;
}

uint64_t pull_bytes(const struct pull *p)
{
    uint64_t n = 0;
    for (int i = 0; i < p->n; i++)
        n += p->files[i].d.n_bytes;
    return n;
}

/* Of a file that is whole, or of its part. */
static uint64_t there_bytes(const struct pull_file *f)
{
    struct stat st;
    uint64_t n_part = part_bytes(f->d.path);
    if (stat(f->d.path, &st) == 0)
        return f->d.n_bytes;
    return n_part < f->d.n_bytes ? n_part : f->d.n_bytes;
}

uint64_t pull_there_bytes(const struct pull *p)
{
    uint64_t n = 0;
    for (int i = 0; i < p->n; i++)
        n += there_bytes(&p->files[i]);
    return n;
}

/* ---- fetching --------------------------------------------------------------------------------------------------- */

static void on_progress(void *user, uint64_t n_there, uint64_t n_bytes)
{
    const struct pull *p = user;
    if (p->o.progress)
        p->o.progress(p->o.user, p->n_before + n_there, pull_bytes(p));
}

static void on_line(void *user, const char *line)
{
    const struct pull *p = user;
    if (p->o.say)
        p->o.say(p->o.user, line);
}

static err_code fetch(struct pull *p, const struct pull_file *f, uint64_t n_first, struct err *e)
{
    const struct download_hooks hooks = {on_progress, on_line, p};
    struct stat st;
    if (stat(f->d.path, &st) == 0 && (uint64_t)st.st_size == f->d.n_bytes)
        return ERR_OK;
    if (stat(f->d.path, &st) == 0)
        return err_set(e, ERR_CHECK,
                       "%s: has %lld bytes, where the server's file has %llu: remove it (moebius rm) first", f->d.path,
                       (long long)st.st_size, (unsigned long long)f->d.n_bytes);
    TRY(hub_cache_make_folders(f->d.path, e));
    TRY(hub_cache_make_folders(f->d.lock, e));
    return download_run(&f->d, n_first, p->client, &hooks, e);
}

err_code pull_beginning(struct pull *p, int i, uint64_t n, char *path, struct err *e)
{
    struct stat st;
    const struct pull_file *f = &p->files[i];
    TRY(fetch(p, f, n, e));
    if (stat(f->d.path, &st) == 0)
        snprintf(path, HUB_PLACE_BYTES, "%s", f->d.path);
    else if (!part_path(f->d.path, path, HUB_PLACE_BYTES))
        return err_set(e, ERR_USAGE, "%s: longer than paths may be", f->d.path);
    return ERR_OK;
}

/* Before hours of work. */
static err_code check_room(const struct pull *p, struct err *e)
{
    struct statvfs fs;
    const char *folder = p->name.kind == MODEL_NAME_HUB ? p->o.places->cache : p->o.places->downloads;
    uint64_t n = pull_bytes(p) - pull_there_bytes(p);
    if (n == 0 || statvfs(folder, &fs) != 0)
        return ERR_OK;
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (n <= room)
        return ERR_OK;
    return err_set(e, ERR_IO, "%s: needs %.2f GB more in %s, where %.2f GB are free", p->text, (double)n / 1e9, folder,
                   (double)room / 1e9);
}

err_code pull_run(struct pull *p, char *path, struct err *e)
{
    const struct hub_places *places = p->o.places;
    TRY(hub_cache_make_folders(p->files[0].d.path, e));
    TRY(check_room(p, e));
    p->n_before = 0;
    for (int i = 0; i < p->n; i++) {
        const struct pull_file *f = &p->files[i];
        TRY(fetch(p, f, UINT64_MAX, e));
        if (f->hub)
            TRY(hub_cache_put_link(places, p->name.repo, p->commit, f->hub, e));
        p->n_before += f->d.n_bytes;
    }
    const struct hub_file *first = p->files[0].hub;
    if (first) {
        TRY(hub_cache_put_ref(places, &p->name, p->commit, e));
        return hub_cache_link(places, p->name.repo, p->commit, first->path, path, e);
    }
    snprintf(path, HUB_PLACE_BYTES, "%s", p->files[0].d.path);
    return ERR_OK;
}
