/* The file of receipts in the user's cache directory: a line of JSON each (planner/receipts.h), oldest first.
 *
 * Several processes may add at once, and none is lost: each takes the lock, reads what is there, and writes it with its
 * own behind. The oldest go beyond RECEIPTS_MAX. A damaged line costs a warning: it goes to FILE.damaged when the file
 * is next written, and all others stay as they are, byte for byte. */
#ifndef ENGINE_RECEIPTS_FILE_H
#define ENGINE_RECEIPTS_FILE_H

#include "base/log.h"
#include "planner/receipts.h"

enum { RECEIPTS_MAX = 1000 };

/* The file's path, owned by the caller (mem_free); NULL: there is no cache directory. */
MUST_USE err_code receipts_path(char **path, struct err *e);

/* Reads all receipts that are not damaged, oldest first: *list [*n], owned by the caller (mem_free); NULL when there
 * are none. */
MUST_USE err_code receipts_load(const char *path, struct receipt **list, size_t *n, const struct log *log,
                                struct err *e);
MUST_USE err_code receipts_add(const char *path, const struct receipt *more, size_t n_more, const struct log *log,
                               struct err *e);

#endif
