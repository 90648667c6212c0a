#define _DEFAULT_SOURCE
#include "engine/cache_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file_io.h"
#include "base/mem.h"

err_code cache_file_path(const char *name, char **out, struct err *e)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool xdg = cache && *cache == '/';
    *out = NULL;
    if (!xdg && (!home || *home != '/'))
        return ERR_OK;
    *out = mem_print("%s%s/moebius/%s", xdg ? cache : home, xdg ? "" : "/.cache", name);
    return *out ? ERR_OK : err_nomem(e, strlen(name), "a path");
}

err_code cache_file_make_folders(char *path, struct err *e)
{
    err_code code = ERR_OK;
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        if (mkdir(path, 0777) == 0 || errno == EEXIST)
            code = ERR_OK; /* those above are there, too */
        else if (code == ERR_OK)
            code = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
        *p = '/';
    }
    return code;
}

err_code cache_file_read(const char *path, char **text, size_t *n, struct err *e)
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
        code = err_set(e, ERR_FORMAT, "%s: not a file that moebius keeps", path);
    else if (!(*text = mem_alloc((size_t)s.st_size)))
        code = err_nomem(e, (size_t)s.st_size, path);
    else
        *n = fread(*text, 1, (size_t)s.st_size, f);
    if (code == ERR_OK && ferror(f))
        code = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    fclose(f);
    if (code != ERR_OK) {
        mem_free(*text);
        *text = NULL;
    }
    return code;
}

err_code cache_file_set_aside(const char *path, const struct log *log, struct err *e)
{
    char *aside = mem_print("%s.damaged", path);
    if (!aside)
        return err_nomem(e, strlen(path), "a path");
    err_code code = ERR_OK;
    if (file_rename(path, aside))
        log_line(log, LOG_WARN, "%s; it is now %s", e->text, aside);
    else
        code = err_set(e, ERR_IO, "%s: renaming to %s: %s", path, aside, strerror(errno));
    mem_free(aside);
    return code;
}
