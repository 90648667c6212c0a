/* Structs of the public interface come with their size, as the caller may have been compiled with another version of
 * the header. So a new field must make its struct longer: where it would fit into the padding at the old end, explicit
 * padding goes in front of it, because old callers leave the padding unset. */
#ifndef ENGINE_SIZED_H
#define ENGINE_SIZED_H

#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"

/* Copies a caller's struct (NULL: none) over one of ours, which holds the defaults: as many bytes as both have.
 * ERR_USAGE when the caller's is longer, and what we don't know of it is not zero. `name` is for the message. */
MUST_USE err_code sized_take(void *to, size_t to_bytes, const void *from, size_t from_bytes, const char *name,
                             struct err *e);

/* The same for an array of n structs: *out [n] of ours is in the arena, or is the caller's own array if the sizes are
 * equal. */
MUST_USE err_code sized_take_list(struct arena *arena, const void **out, size_t to_bytes, const void *from,
                                  size_t from_bytes, size_t n, const char *name, struct err *e);

/* Copies one of our structs into a caller's; fields that we don't know become zero. */
void sized_give(void *to, size_t to_bytes, const void *from, size_t from_bytes);

#endif
