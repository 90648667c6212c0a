/* Reading and writing whole files in tests: what fails ends the program. */
#ifndef TESTS_WHOLE_FILES_H
#define TESTS_WHOLE_FILES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline FILE *open_or_abort(const char *path, const char *mode)
{
    FILE *f = fopen(path, mode);
    if (!f) {
        perror(path);
        abort();
    }
    return f;
}

/* A file's bytes, with a NUL behind them; owned (free). */
static inline char *read_file(const char *path, size_t *n)
{
    FILE *f = open_or_abort(path, "rb");
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(*n + 1);
    if (!p || fread(p, 1, *n, f) != *n) {
        perror(path);
        abort();
    }
    p[*n] = '\0';
    fclose(f);
    return p;
}

static inline void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = open_or_abort(path, "wb");
    if (fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        abort();
    }
}

static inline void write_text_file(const char *path, const char *text)
{
    write_file(path, text, strlen(text));
}

#endif
