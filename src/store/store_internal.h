/* What a store implementation provides. Included by the implementations and store.c alone. */
#ifndef STORE_INTERNAL_H
#define STORE_INTERNAL_H

#include <stdatomic.h>

#include "store/store.h"

struct store_ops {
    /* One range, whole, or an error that names file and bytes. Called from any thread. */
    err_code (*read)(struct store *s, const struct store_range *r, struct err *e);
    /* Advice that these ranges are read next; may be NULL. */
    void (*prefetch)(struct store *s, const struct store_range *ranges, size_t n);
    /* Releases everything, the struct included; accepts half-open stores. */
    void (*close)(struct store *s);
};

/* The first member of every implementation's struct. */
struct store {
    const struct store_ops *ops;
    atomic_uint_fast64_t n_reads, n_bytes, n_ns;
};

#endif
