/* System calls on files, repeated where a signal interrupts them. Unless said otherwise a failure's reason is in
 * errno. */
#ifndef BASE_FILE_IO_H
#define BASE_FILE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/* open(2) with O_CLOEXEC; `mode` is used with O_CREAT only. Returns the descriptor, or -1. */
MUST_USE int file_open(const char *path, int flags, mode_t mode);
/* Write all n bytes, at the descriptor's position or at `offset`. */
MUST_USE bool file_write(int fd, const void *bytes, size_t n);
MUST_USE bool file_write_at(int fd, const void *bytes, size_t n, uint64_t offset);
/* Reads all n bytes at `offset`; also false where the file ends before them. */
MUST_USE bool file_read_at(int fd, void *bytes, size_t n, uint64_t offset);
/* fsync(2). */
MUST_USE bool file_sync(int fd);
MUST_USE bool file_rename(const char *from, const char *to);

/* Opens a plain file for reading and writing, creating it where there is none, and locks it until the descriptor is
 * closed: of the processes that open it with this function only one has it at a time. The one with the lock may rename
 * or remove the file; the others then look the name up again. Waits up to wait_ms for another process. */
MUST_USE err_code file_open_locked(const char *path, int64_t wait_ms, int *fd, struct err *e);

#endif
