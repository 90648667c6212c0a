#define _GNU_SOURCE /* fopencookie, realpath */
#include "base/output_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/mem.h"
#include "base/random.h"

enum { LOCK_WAIT_MS = 10000 };

/* What a stream writes to. */
struct output_sink {
    int fd;
    int failure; /* errno of the first write that failed; 0: none did */
};

/* ---- where the bytes go -------------------------------------------------------------------------------------- */

/* The standard stream that goes to this very file. */
static FILE *stream_to(const struct stat *file)
{
    FILE *const streams[] = {stdout, stderr};
    for (int i = 0; i < 2; i++) {
        struct stat st;
        if (fstat(STDOUT_FILENO + i, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino)
            return streams[i];
    }
    return NULL;
}

/* Finds out what the path means now: f->stream, f->target or neither, for what is to be opened itself. *mode: the
 * permissions of the file that will be replaced; 0: there is none. */
static err_code resolve(struct output_file *f, const char *path, mode_t *mode, struct err *e)
{
    struct stat st, link;
    char real[PATH_MAX];
    bool is_link = lstat(path, &link) == 0 && S_ISLNK(link.st_mode);
    *mode = 0;
    if (stat(path, &st) != 0) { /* which asks whether the system lets us follow the link, too */
        if (errno != ENOENT || !*path || is_link)
            return err_set(e, ERR_IO, "%s: %s", *path ? path : "\"\"",
                           is_link && errno == ENOENT ? "is a link to a file that does not exist" : strerror(errno));
    } else if (S_ISDIR(st.st_mode)) {
        return err_set(e, ERR_IO, "%s: is a directory, expected a file to write", path);
    } else if ((f->stream = stream_to(&st)) != NULL || !S_ISREG(st.st_mode)) {
        return ERR_OK;
    } else if (access(path, W_OK) != 0 || (is_link && !realpath(path, real))) {
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    } else {
        *mode = st.st_mode & 0777;
    }
    f->target = mem_strdup(is_link ? real : path);
    return f->target ? ERR_OK : err_nomem(e, strlen(path), path);
}

err_code output_file_target(const char *path, char **target, struct err *e)
{
    struct output_file f = {0};
    mode_t mode;
    err_code code = resolve(&f, path, &mode, e);
    *target = f.target;
    return code;
}

/* ---- what a signal removes ----------------------------------------------------------------------------------- */

/* The new files of this process, as their owners' tmp_path. Whoever takes one out owns it. More than these are not
 * removed by a signal. */
static _Atomic(char *) listed[64];
enum { N_LISTED = sizeof listed / sizeof *listed };

static void list(struct output_file *f)
{
    for (int i = 0; i < N_LISTED && !f->is_listed; i++) {
        char *none = NULL;
        f->is_listed = atomic_compare_exchange_strong(&listed[i], &none, f->tmp_path);
    }
}

/* Afterwards the path is the file's alone; or is_listed remains, and output_files_remove has it. */
static void unlist(struct output_file *f)
{
    for (int i = 0; i < N_LISTED && f->is_listed; i++) {
        char *path = f->tmp_path;
        f->is_listed = !atomic_compare_exchange_strong(&listed[i], &path, NULL);
    }
}

void output_files_remove(void)
{
    for (int i = 0; i < N_LISTED; i++) {
        char *path = atomic_exchange(&listed[i], NULL); /* never freed: the process ends */
        if (path)
            (void)unlink(path);
    }
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

static ssize_t write_sink(void *cookie, const char *bytes, size_t n)
{
    struct output_sink *s = cookie;
    if (file_write(s->fd, bytes, n))
        return (ssize_t)n;
    if (!s->failure)
        s->failure = errno;
    return 0; /* what the C library takes for a failure */
}

/* A new file beside the target, of a name that nobody can foresee. */
static err_code open_new(struct output_file *f, mode_t mode, struct err *e)
{
    enum { N_TRY = 100, NAME_BYTES = 200 };
    const char *slash = strrchr(f->target, '/'), *name = slash ? slash + 1 : f->target;
    int n_folder = (int)(name - f->target), fd = -1;
    size_t n = (size_t)n_folder + NAME_BYTES + sizeof ".0123456789abcdef.tmp";
    uint64_t random;
    TRY(random_from_system(&random, sizeof random, e));
    char *path = mem_alloc(n);
    if (!path)
        return err_nomem(e, n, f->path);
    errno = EEXIST;
    for (int i = 0; i < N_TRY && fd < 0 && errno == EEXIST; i++, random++) {
        snprintf(path, n, "%.*s%.*s.%016" PRIx64 ".tmp", n_folder, f->target, NAME_BYTES, name, random);
        fd = file_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode ? 0600 : 0666);
    }
    if (fd < 0) {
        mem_free(path);
        return err_set(e, ERR_IO, "%s: no file can be made there: %s", f->path, strerror(errno));
    }
    f->own->fd = fd;
    f->tmp_path = path;
    list(f);
    return ERR_OK;
}

static err_code open_shared(struct output_file *f, struct err *e)
{
    char *path = mem_print("%s.lock", f->target);
    if (!path)
        return err_nomem(e, strlen(f->target), f->path);
    err_code code = file_open_locked(path, LOCK_WAIT_MS, &f->own->fd, e);
    if (code != ERR_OK) {
        mem_free(path);
        return code;
    }
    f->tmp_path = path;
    list(f);
    return ftruncate(f->own->fd, 0) == 0 ? ERR_OK : err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

static err_code open_itself(struct output_file *f, struct err *e)
{
    f->own->fd = file_open(f->path, O_WRONLY | O_NOCTTY, 0);
    return f->own->fd >= 0 ? ERR_OK : err_set(e, ERR_IO, "%s: %s", f->path, strerror(errno));
}

/* Opens what resolve has found. */
static err_code open_found(struct output_file *f, bool shared, mode_t mode, struct err *e)
{
    f->own = mem_alloc(sizeof *f->own);
    if (!f->own)
        return err_nomem(e, sizeof *f->own, f->path);
    *f->own = (struct output_sink){.fd = -1};
    TRY(!f->target ? open_itself(f, e) : shared ? open_shared(f, e) : open_new(f, mode, e));
    if (mode)
        (void)fchmod(f->own->fd, mode); /* some file systems have no permissions */
    f->stream = fopencookie(f->own, "wb", (cookie_io_functions_t){.write = write_sink});
    return f->stream ? ERR_OK : err_nomem(e, BUFSIZ, f->path);
}

static err_code open_file(struct output_file *f, const char *path, bool shared, struct err *e)
{
    mode_t mode = 0;
    *f = (struct output_file){.path = mem_strdup(path)};
    err_code code = f->path ? resolve(f, path, &mode, e) : err_nomem(e, strlen(path), path);
    if (code == ERR_OK && !f->stream)
        code = open_found(f, shared, mode, e);
    if (code != ERR_OK)
        output_file_abandon(f);
    return code;
}

err_code output_file_open(struct output_file *f, const char *path, struct err *e)
{
    return open_file(f, path, false, e);
}

err_code output_file_open_shared(struct output_file *f, const char *path, struct err *e)
{
    return open_file(f, path, true, e);
}

err_code output_file_check(const char *path, struct err *e)
{
    struct output_file f = {0};
    char *target = NULL;
    if (!path)
        return ERR_OK;
    TRY(output_file_target(path, &target, e));
    bool is_plain = target != NULL;
    mem_free(target);
    if (!is_plain) /* opening a FIFO waits for its reader */
        return access(path, W_OK) == 0 ? ERR_OK : err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    TRY(output_file_open(&f, path, e));
    output_file_abandon(&f);
    return ERR_OK;
}

/* ---- the end ------------------------------------------------------------------------------------------------- */

/* Gives up what belongs to the file but its name. */
static void close_file(struct output_file *f)
{
    if (f->own) {
        if (f->stream)
            fclose(f->stream);
        if (f->own->fd >= 0)
            close(f->own->fd); /* and the lock, if it has one */
    }
    mem_free(f->own);
    mem_free(f->path);
    mem_free(f->target);
    unlist(f);
    if (!f->is_listed)
        mem_free(f->tmp_path);
    *f = (struct output_file){0};
}

static err_code finish(struct output_file *f, bool is_synced, struct err *e)
{
    bool ok = fflush(f->stream) == 0 && !ferror((FILE *)f->stream);
    int why = f->own && f->own->failure ? f->own->failure : errno;
    if (ok && f->tmp_path) {
        assert(f->own); /* the standard streams have no such path */
        ok = !is_synced || file_sync(f->own->fd) || errno == EINVAL;
        unlist(f); /* a lock's name may soon be another process's */
        ok = ok && file_rename(f->tmp_path, f->target);
        why = errno;
    }
    if (!ok) {
        err_code code = err_set(e, ERR_IO, "%s: %s", f->path, strerror(why));
        output_file_abandon(f);
        return code;
    }
    if (f->tmp_path && is_synced)
        output_file_sync_folder(f->target);
    close_file(f);
    return ERR_OK;
}

err_code output_file_finish(struct output_file *f, struct err *e)
{
    return finish(f, true, e);
}

err_code output_file_finish_unsynced(struct output_file *f, struct err *e)
{
    return finish(f, false, e);
}

void output_file_abandon(struct output_file *f)
{
    if (f->tmp_path)
        (void)unlink(f->tmp_path); /* before the lock is gone */
    close_file(f);
}

void output_file_sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? mem_strdup(path) : NULL;
    if (folder)
        folder[slash == path ? 1 : slash - path] = 0;
    int fd = slash && !folder ? -1 : file_open(folder ? folder : ".", O_RDONLY | O_DIRECTORY, 0);
    if (fd >= 0) {
        (void)fsync(fd); /* some file systems refuse; the file itself is complete either way */
        close(fd);
    }
    mem_free(folder);
}
