/* A set of names, each with a number: open addressing, grown by doubling.
 *
 * The hash has a random key, so that no file can be made whose names all fall into one slot. Names are borrowed: they
 * must outlive the set. Internal to gguf/. */
#ifndef GGUF_INDEX_H
#define GGUF_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/siphash.h"

struct gguf_index {
    struct gguf_index_slot *slots; /* n_slots of them, a power of two */
    size_t n_slots, n_used;
    struct siphash_key key;
};

enum { GGUF_INDEX_NONE = -1 };

/* The name's number, or GGUF_INDEX_NONE. */
int64_t gguf_index_find(const struct gguf_index *ix, const char *name, size_t n);

/* Adds a name that is not in the set. *old: the number that the name already has (then nothing is added),
 * else GGUF_INDEX_NONE. Fails only for want of memory or random numbers. */
MUST_USE err_code gguf_index_add(struct gguf_index *ix, const char *name, size_t n, int64_t number, int64_t *old,
                                 struct err *e);

void gguf_index_close(struct gguf_index *ix);

#endif
