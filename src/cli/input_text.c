#define _POSIX_C_SOURCE 200809L
#include "cli/input_text.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/free_memory.h"
#include "base/mem.h"

bool cli_is_piped(void)
{
    struct stat st;
    return fstat(STDIN_FILENO, &st) == 0 && (S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

const char *cli_file_or_piped(const char *file)
{
    return file || !cli_is_piped() ? file : "-";
}

err_code cli_read_file(const char *path, char **text, size_t *n, struct err *e)
{
    enum { FREE_SHARE = 2 };
    size_t free_bytes = free_memory_bytes("");
    return cli_read_file_within(path, free_bytes == SIZE_MAX ? SIZE_MAX : free_bytes / FREE_SHARE, text, n, e);
}

err_code cli_read_file_within(const char *path, size_t max_bytes, char **text, size_t *n, struct err *e)
{
    enum { LEAST_BYTES = 1 << 16 }; /* to read at a time, and a NUL */
    bool is_stdin = !strcmp(path, "-");
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (!f)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    err_code code = ERR_OK;
    char *buf = NULL;
    size_t size = 0, capacity = 0;
    for (;;) {
        code = mem_grow(&buf, &capacity, size + LEAST_BYTES, 1, path, e);
        if (code != ERR_OK)
            break;
        size_t got = fread(buf + size, 1, capacity - size - 1, f);
        size += got;
        if (size > max_bytes)
            code = err_set(e, ERR_LIMIT, "%s: expected at most %zu bytes", path, max_bytes);
        if (got == 0 || code != ERR_OK)
            break;
    }
    if (code == ERR_OK && ferror(f))
        code = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (!is_stdin)
        fclose(f);
    if (code != ERR_OK) {
        mem_free(buf);
        return code;
    }
    buf[size] = '\0';
    *text = buf;
    *n = size;
    return ERR_OK;
}
