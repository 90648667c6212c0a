/* A folder for the files of one test program: made once, removed with what is in it. */
#ifndef TESTS_TEMP_FOLDER_H
#define TESTS_TEMP_FOLDER_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct temp_folder {
    char path[256];
};

static inline int temp_folder_make(struct temp_folder *t)
{
    const char *base = getenv("TMPDIR");
    snprintf(t->path, sizeof t->path, "%s/moebius-test-XXXXXX", base && *base ? base : P_tmpdir);
    return mkdtemp(t->path) ? 0 : -1;
}

struct temp_path {
    char s[512];
};

static inline struct temp_path temp_path(const struct temp_folder *t, const char *name)
{
    struct temp_path p;
    snprintf(p.s, sizeof p.s, "%s/%s", t->path, name);
    return p;
}

static inline void temp_remove_all(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));) {
        char inner[1024];
        snprintf(inner, sizeof inner, "%s/%s", path, f->d_name);
        if (f->d_name[0] != '.' && unlink(inner) != 0)
            temp_remove_all(inner);
    }
    if (d)
        closedir(d);
    (void)rmdir(path);
}

static inline void temp_folder_remove(const struct temp_folder *t)
{
    temp_remove_all(t->path);
}

#endif
