/* Structs of the public interface, whose lengths callers may know from another version of its header. A new field makes
 * its struct longer: what would fit into the padding at the old end gets padding in front, as callers leave that unset.
 */
#ifndef ENGINE_SIZED_H
#define ENGINE_SIZED_H

#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"

/* Takes a caller's struct over into one of ours, which holds the defaults: as many fields as both know. NULL: none.
 * ERR_USAGE where the caller has more, and these are not zero. `name` is for the message. */
MUST_USE err_code sized_take(void *to, size_t to_bytes, const void *from, size_t from_bytes, const char *name,
                             struct err *e);

/* The same of n structs that follow each other; *out, [n] of ours, is the arena's, or the caller's list where both know
 * the same fields. */
MUST_USE err_code sized_take_list(struct arena *arena, const void **out, size_t to_bytes, const void *from,
                                  size_t from_bytes, size_t n, const char *name, struct err *e);

/* Fills a caller's struct from one of ours; fields that we don't know are zero. */
void sized_give(void *to, size_t to_bytes, const void *from, size_t from_bytes);

#endif
