/* A folder for the files of one test program: made once, removed with what is in it. */
#ifndef TESTS_TEMP_FOLDER_H
#define TESTS_TEMP_FOLDER_H

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "whole_files.h"

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

/* Removes what is in a folder, and closes fd. */
static inline void temp_folder_empty(int fd)
{
    DIR *d = fdopendir(fd);
    for (struct dirent *f; d && (f = readdir(d));) {
        if (f->d_name[0] == '.' || unlinkat(fd, f->d_name, 0) == 0)
            continue;
        int inner = openat(fd, f->d_name, O_RDONLY | O_DIRECTORY);
        if (inner >= 0)
            temp_folder_empty(inner);
        (void)unlinkat(fd, f->d_name, AT_REMOVEDIR);
    }
    if (d)
        closedir(d);
}

static inline void temp_folder_remove(const struct temp_folder *t)
{
    int fd = open(t->path, O_RDONLY | O_DIRECTORY);
    if (fd >= 0)
        temp_folder_empty(fd);
    (void)rmdir(t->path);
}

/* The program's own, for cmocka's groups of tests. */
static struct temp_folder folder;

static inline int folder_setup(void **state)
{
    (void)state;
    return temp_folder_make(&folder);
}

static inline int folder_teardown(void **state)
{
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

/* Writes ROOT/path, in folders that are made. */
static inline void write_text_below(const char *root, const char *path, const char *text)
{
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    write_text_file(full, text);
}

#endif
