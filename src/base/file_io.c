#define _GNU_SOURCE /* flock */
#include "base/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

int file_open(const char *path, int flags, mode_t mode)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* A write that wrote nothing leaves no reason. */
static bool write_failed(ssize_t done)
{
    if (done == 0)
        errno = EIO;
    return false;
}

bool file_write(int fd, const void *bytes, size_t n)
{
    for (const char *p = bytes; n > 0;) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return write_failed(done);
        p += done;
        n -= (size_t)done;
    }
    return true;
}

bool file_write_at(int fd, const void *bytes, size_t n, uint64_t offset)
{
    for (const char *p = bytes; n > 0;) {
        ssize_t done = pwrite(fd, p, n, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return write_failed(done);
        p += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
    return true;
}

bool file_read_at(int fd, void *bytes, size_t n, uint64_t offset)
{
    for (char *p = bytes; n > 0;) {
        ssize_t done = pread(fd, p, n, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        p += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
    return true;
}

bool file_sync(int fd)
{
    int r;
    do
        r = fsync(fd);
    while (r != 0 && errno == EINTR);
    return r == 0;
}

bool file_rename(const char *from, const char *to)
{
    int r;
    do
        r = rename(from, to);
    while (r != 0 && errno == EINTR);
    return r == 0;
}

/* Asks again and again, as flock(2) can't wait for a limited time. */
static bool lock(int fd, int64_t wait_ms)
{
    enum { EVERY_NS = 10 * 1000 * 1000 };
    int64_t end_ns = clock_ns() + wait_ms * 1000 * 1000;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EINTR && (errno != EWOULDBLOCK || clock_ns() >= end_ns))
            return false;
        if (errno == EWOULDBLOCK)
            clock_sleep_ns(EVERY_NS);
    }
    return true;
}

/* One try; *is_named: the name still means the file that is locked now. */
static err_code try_locked(const char *path, int64_t wait_ms, int *fd, bool *is_named, struct err *e)
{
    struct stat st, named;
    *fd = file_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (*fd < 0)
        return err_set(e, ERR_IO, "%s: %s", path,
                       errno == ELOOP ? "is a link, expected a plain file" : strerror(errno));
    if (fstat(*fd, &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: is not a plain file", path);
    if (!lock(*fd, wait_ms))
        return err_set(e, ERR_IO, "%s: %s", path,
                       errno == EWOULDBLOCK ? "another moebius is at work on it" : strerror(errno));
    *is_named = lstat(path, &named) == 0 && named.st_dev == st.st_dev && named.st_ino == st.st_ino;
    return ERR_OK;
}

err_code file_open_locked(const char *path, int64_t wait_ms, int *fd, struct err *e)
{
    for (;;) {
        bool is_named = false;
        err_code code = try_locked(path, wait_ms, fd, &is_named, e);
        if (code == ERR_OK && is_named)
            return ERR_OK;
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        TRY(code);
    }
}
