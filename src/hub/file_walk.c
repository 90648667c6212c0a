#define _GNU_SOURCE
#include "hub/file_walk.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_DEEP = 16 };

/* The next entry but "." and ".."; NULL: there is none. */
static const struct dirent *next_entry(DIR *d)
{
    const struct dirent *entry;
    do
        entry = d ? readdir(d) : NULL;
    while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    return entry;
}

static bool join(char *out, const char *folder, const char *name)
{
    return (size_t)snprintf(out, PATH_MAX, "%s/%s", folder, name) < PATH_MAX;
}

/* n: the bytes of the folder that the walk began with, and its slash. */
static err_code walk(const char *folder, size_t n, int deep, file_visit *visit, void *user, struct err *e)
{
    struct stat st;
    char path[PATH_MAX];
    err_code code = ERR_OK;
    DIR *d = deep < MOST_DEEP ? opendir(folder) : NULL;
    for (const struct dirent *entry; code == ERR_OK && (entry = next_entry(d)) != NULL;) {
        if (!join(path, folder, entry->d_name) || lstat(path, &st) != 0)
            continue;
        code = S_ISDIR(st.st_mode) ? walk(path, n, deep + 1, visit, user, e) : visit(user, path, path + n, e);
    }
    if (d)
        closedir(d);
    return code;
}

err_code file_walk(const char *folder, file_visit *visit, void *user, struct err *e)
{
    return walk(folder, strlen(folder) + 1, 0, visit, user, e);
}

err_code file_walk_names(const char *folder, bool folders, file_visit *visit, void *user, struct err *e)
{
    struct stat st;
    char path[PATH_MAX];
    err_code code = ERR_OK;
    DIR *d = opendir(folder);
    for (const struct dirent *entry; code == ERR_OK && (entry = next_entry(d)) != NULL;)
        if (join(path, folder, entry->d_name) && lstat(path, &st) == 0 && S_ISDIR(st.st_mode) == folders)
            code = visit(user, path, entry->d_name, e);
    if (d)
        closedir(d);
    return code;
}

static err_code prune_one(void *user, const char *path, const char *below, struct err *e)
{
    file_walk_prune(path);
    return ERR_OK;
}

void file_walk_prune(const char *folder)
{
    struct err e;
    (void)!file_walk_names(folder, true, prune_one, NULL, &e);
    (void)rmdir(folder);
}
