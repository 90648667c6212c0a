/* A model's name on the first line, and what the Hub says behind it: what is taken from there must be fit for paths,
 * and what is refused needs a sentence. */
#include "fuzz.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "hub/hub_api.h"

static void check_file(const struct hub_file *f)
{
    assert(hub_path_is_safe(f->path) && f->n_bytes > 0 && f->n_bytes <= (uint64_t)HUB_MOST_BYTES);
    size_t n = strlen(f->digest);
    assert((n == HUB_SHA256_DIGITS || n == HUB_GIT_DIGITS) && hub_is_hex(f->digest, n));
}

static void check_tree(const struct model_name *name, const char *text, size_t n)
{
    struct model_sets sets = {0};
    const struct model_set *set = NULL;
    struct err e = {0};
    err_code code = hub_api_read_tree(text, n, "a tree", &sets, &e);
    assert((code == ERR_OK) == !*e.text);
    if (code == ERR_OK && model_sets_group(&sets, &e) == ERR_OK &&
        model_sets_choose(&sets, name->what, "a name", &set, &e) == ERR_OK) {
        assert(set->n == set->n_parts && model_set_fitness(set, name->what) > 0);
        for (int i = 0; i < set->n; i++)
            check_file(&set->files[i]);
    }
    model_sets_close(&sets);
}

static void check_commit(const char *text, size_t n)
{
    char commit[HUB_COMMIT_BYTES] = "";
    struct err e = {0};
    err_code code = hub_api_read_commit(text, n, "a revision", commit, &e);
    assert((code == ERR_OK) == !*e.text);
    assert(code != ERR_OK || (strlen(commit) == 40 && hub_is_hex(commit, 40)));
}

static void check_name(const struct model_name *name)
{
    if (name->kind != MODEL_NAME_HUB)
        return;
    assert(hub_path_is_safe(name->repo) && hub_path_is_safe(name->revision) && strchr(name->repo, '/'));
    assert(!*name->what || hub_path_is_safe(name->what));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char line[512];
    struct model_name name;
    struct err e = {0};
    const char *text = (const char *)data, *end = size ? memchr(data, '\n', size) : NULL;
    size_t n = end ? (size_t)(end - text) : 0;
    if (!end || n >= sizeof line)
        return 0;
    snprintf(line, sizeof line, "%.*s", (int)n, text);
    err_code code = model_name_parse(&name, line, "https://hub.example", &e);
    assert((code == ERR_OK) == !*e.text);
    if (code != ERR_OK)
        return 0;
    check_name(&name);
    check_tree(&name, end + 1, size - n - 1);
    check_commit(end + 1, size - n - 1);
    return 0;
}
