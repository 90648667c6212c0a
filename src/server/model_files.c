/* The files of models: which there are, and what clients call them. */
#define _POSIX_C_SOURCE 200809L /* scandir */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/printable.h"
#include "base/split_set.h"
#include "server/models_internal.h"

/* Makes a name that clients can write in JSON from any file name. Owned by the caller. */
static char *printable_name(const char *name)
{
    char text[PRINTABLE_FORMAT_BYTES];
    (void)printable_line(name, strlen(name), text, sizeof text);
    return mem_strdup(text);
}

/* The NAME in "DIR/NAME.gguf" or "DIR/NAME-00001-of-00003.gguf". Owned by the caller. */
static char *name_of(const char *path)
{
    static const char suffix[] = ".gguf";
    struct split_set s;
    const char *slash = strrchr(path, '/');
    char *name = printable_name(slash ? slash + 1 : path);
    size_t n = name ? strlen(name) : 0;
    if (name && split_set_parse(&s, name, n) && s.n_name > 0)
        name[s.n_name] = '\0';
    else if (n > sizeof suffix - 1 && !strcmp(name + n - (sizeof suffix - 1), suffix))
        name[n - (sizeof suffix - 1)] = '\0';
    return name;
}

err_code models_add(struct models *all, const char *path, const char *name, struct err *e)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (all->n == MAX_MODELS)
        return err_set(e, ERR_LIMIT, "%s: expected at most %d models", path, MAX_MODELS);
    struct served_model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_nomem(e, sizeof *m, "a model");
    all->list[all->n++] = m;
    *m = (struct served_model){.models = all, .size_bytes = st.st_size, .created = st.st_mtime};
    TRY(expert_picture_open(&m->picture, e));
    m->path = mem_strdup(path);
    m->name = name ? printable_name(name) : name_of(path);
    return m->path && m->name ? ERR_OK : err_nomem(e, strlen(path), "a model's name");
}

bool models_have(const struct models *all, const char *path)
{
    struct stat st, other;
    for (size_t i = 0; stat(path, &st) == 0 && i < all->n; i++)
        if (stat(all->list[i]->path, &other) == 0 && other.st_dev == st.st_dev && other.st_ino == st.st_ino)
            return true;
    return false;
}

/* Whether a file is a model, or the first part of one. */
static bool is_model_file(const char *name)
{
    struct split_set s;
    size_t n = strlen(name);
    if (n < 6 || strcmp(name + n - 5, ".gguf") != 0 || name[0] == '.')
        return false;
    return !split_set_parse(&s, name, n) || s.part == 1;
}

static err_code add_entry(struct models *all, const char *folder, const char *name, struct err *e)
{
    struct bytes path = {0};
    err_code code = bytes_print(&path, e, "%s/%s", folder, name);
    if (code == ERR_OK)
        code = models_add(all, path.s, NULL, e);
    bytes_close(&path);
    return code;
}

err_code models_add_folder(struct models *all, const char *path, struct err *e)
{
    struct dirent **entries = NULL;
    err_code code = ERR_OK;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (code == ERR_OK && is_model_file(entries[i]->d_name))
            code = add_entry(all, path, entries[i]->d_name, e);
        free(entries[i]);
    }
    free(entries);
    return code == ERR_OK && all->n == 0 ? err_set(e, ERR_USAGE, "%s: there is no GGUF file", path) : code;
}
