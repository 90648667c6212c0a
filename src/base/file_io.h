/* System calls on files that go on where a signal interrupts them. Failures are left in errno, as the calls leave them,
 * where nothing else is said. */
#ifndef BASE_FILE_IO_H
#define BASE_FILE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/* open(2), closed on exec; mode counts with O_CREAT. The descriptor, or -1. */
MUST_USE int file_open(const char *path, int flags, mode_t mode);
/* All n bytes, at the descriptor's place or at `offset`. */
MUST_USE bool file_write(int fd, const void *bytes, size_t n);
MUST_USE bool file_write_at(int fd, const void *bytes, size_t n, uint64_t offset);
/* All n bytes at `offset`; false where they are not there, too. */
MUST_USE bool file_read_at(int fd, void *bytes, size_t n, uint64_t offset);
/* fsync(2). */
MUST_USE bool file_sync(int fd);
MUST_USE bool file_rename(const char *from, const char *to);

/* Opens a plain file to read and write, makes it where there is none, and locks it until the descriptor is closed, so
 * that no other process that opens it so works on it. Whoever has the lock may rename or remove the file: the name is
 * then looked up again. Waits up to wait_ms for another process. */
MUST_USE err_code file_open_locked(const char *path, int64_t wait_ms, int *fd, struct err *e);

#endif
