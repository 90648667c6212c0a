#define _GNU_SOURCE
#include "hub/aliases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/output_file.h"
#include "hub/hub_cache.h"
#include "hub/model_name.h"

enum { LINE_BYTES = HUB_URL_BYTES + 128, MOST_ALIASES = 10000 };

bool alias_is_name(const char *name)
{
    enum { MOST_BYTES = 100 };
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:";
    size_t n = strlen(name);
    return n > 0 && n <= MOST_BYTES && strspn(name, letters) == n && *name != '-' && *name != '.' &&
           !model_name_is_remote(name);
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct alias *)a)->name, ((const struct alias *)b)->name);
}

/* One line without its end, in place. */
static err_code add_line(struct aliases *a, const char *path, int number, char *line, struct err *e)
{
    char *space = strchr(line, ' ');
    if (!*line || *line == '#')
        return ERR_OK;
    if (!space || !space[1])
        return err_set(e, ERR_FORMAT, "%s: line %d: expected NAME TARGET", path, number);
    *space = '\0';
    struct alias *alias = &a->list[a->n];
    alias->name = arena_strndup(&a->arena, line, strlen(line));
    alias->target = arena_strndup(&a->arena, space + 1, strlen(space + 1));
    if (!alias_is_name(line))
        return err_set(e, ERR_FORMAT, "%s: line %d: \"%s\" is no name", path, number, line);
    a->n++;
    return alias->name && alias->target ? ERR_OK : err_nomem(e, LINE_BYTES, path);
}

static err_code read_lines(FILE *f, const char *path, struct aliases *a, struct err *e)
{
    char line[LINE_BYTES];
    for (int number = 1; fgets(line, sizeof line, f); number++) {
        size_t n = strcspn(line, "\r\n");
        if ((!line[n] && !feof(f)) || a->n == MOST_ALIASES)
            return err_set(e, ERR_FORMAT, "%s: line %d: too long, or too many of them", path, number);
        line[n] = '\0';
        TRY(add_line(a, path, number, line, e));
    }
    return ferror(f) ? err_set(e, ERR_IO, "%s: %s", path, strerror(errno)) : ERR_OK;
}

err_code aliases_read(const char *path, struct aliases *out, struct err *e)
{
    *out = (struct aliases){0};
    FILE *f = *path ? fopen(path, "re") : NULL;
    if (!f)
        return !*path || errno == ENOENT || errno == ENOTDIR || errno == EACCES
                   ? ERR_OK
                   : err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    out->list = arena_calloc(&out->arena, MOST_ALIASES, sizeof *out->list);
    err_code code = out->list ? read_lines(f, path, out, e) : err_nomem(e, MOST_ALIASES * sizeof *out->list, path);
    fclose(f);
    if (code == ERR_OK)
        qsort(out->list, out->n, sizeof *out->list, compare);
    else
        aliases_close(out);
    return code;
}

void aliases_close(struct aliases *a)
{
    arena_close(&a->arena);
    *a = (struct aliases){0};
}

const char *aliases_find(const struct aliases *a, const char *name)
{
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->list[i].name, name) == 0)
            return a->list[i].target;
    return NULL;
}

/* The lines as they will be. */
static err_code rewrite(FILE *f, const struct aliases *a, const char *name, const char *target, struct err *e)
{
    if (!target && !aliases_find(a, name))
        return err_set(e, ERR_USAGE, "there is no alias %s", name);
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->list[i].name, name) != 0)
            fprintf(f, "%s %s\n", a->list[i].name, a->list[i].target);
    if (target)
        fprintf(f, "%s %s\n", name, target);
    return ERR_OK;
}

err_code aliases_put(const char *path, const char *name, const char *target, struct err *e)
{
    struct output_file f;
    struct aliases a = {0};
    if (!*path)
        return err_set(e, ERR_FAIL, "there is no folder for aliases: set HOME or XDG_CONFIG_HOME");
    if (!alias_is_name(name))
        return err_set(e, ERR_USAGE, "\"%s\" can't be an alias: expected letters, digits, '-', '_', '.' and ':'", name);
    if (target && (!*target || strpbrk(target, "\r\n") || strlen(target) >= HUB_URL_BYTES))
        return err_set(e, ERR_USAGE, "%s: its target can't be \"%.200s\"", name, target);
    TRY(hub_cache_make_folders(path, e));
    TRY(output_file_open_shared(&f, path, e));
    err_code code = aliases_read(path, &a, e);
    if (code == ERR_OK)
        code = rewrite(f.stream, &a, name, target, e);
    if (code == ERR_OK)
        code = output_file_finish(&f, e);
    else
        output_file_abandon(&f);
    aliases_close(&a);
    return code;
}
