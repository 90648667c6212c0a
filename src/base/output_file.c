#define _POSIX_C_SOURCE 200809L
#include "base/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

err_code output_file_open(struct output_file *f, const char *path, struct err *e)
{
    size_t n = strlen(path) + 5;
    *f = (struct output_file){.path = mem_strdup(path), .tmp_path = mem_alloc(n)};
    if (!f->path || !f->tmp_path) {
        output_file_abandon(f);
        return err_nomem(e, n, path);
    }
    snprintf(f->tmp_path, n, "%s.tmp", path);
    f->stream = fopen(f->tmp_path, "wb");
    if (!f->stream) {
        err_code code = err_set(e, ERR_IO, "%s: %s", f->tmp_path, strerror(errno));
        mem_free(f->tmp_path);
        f->tmp_path = NULL;
        output_file_abandon(f);
        return code;
    }
    return ERR_OK;
}

err_code output_file_finish(struct output_file *f, struct err *e)
{
    FILE *stream = f->stream;
    bool ok = !ferror(stream) && fflush(stream) == 0 && (fsync(fileno(stream)) == 0 || errno == EINVAL);
    int saved = errno;
    ok = fclose(stream) == 0 && ok;
    f->stream = NULL;
    err_code code = ERR_OK;
    if (!ok || rename(f->tmp_path, f->path) != 0)
        code = err_set(e, ERR_IO, "%s: %s", f->path, strerror(ok ? errno : saved));
    if (code == ERR_OK) {
        mem_free(f->tmp_path);
        f->tmp_path = NULL;
    }
    output_file_abandon(f);
    return code;
}

void output_file_abandon(struct output_file *f)
{
    if (f->stream)
        fclose(f->stream);
    if (f->tmp_path)
        remove(f->tmp_path);
    mem_free(f->tmp_path);
    mem_free(f->path);
    *f = (struct output_file){0};
}

void output_file_sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? mem_strdup(path) : NULL;
    if (folder)
        folder[slash == path ? 1 : slash - path] = 0;
    int fd = slash && !folder ? -1 : open(folder ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* some file systems refuse; the file itself is complete either way */
        close(fd);
    }
    mem_free(folder);
}
