/* Loading every expert of a group that is here into its slot, at the start. */
#ifndef EXPERTS_RESIDENT_H
#define EXPERTS_RESIDENT_H

#include "base/pool.h"
#include "experts/slots.h"
#include "store/store.h"

struct resident_load {
    struct expert_slots *slots; /* these three are borrowed */
    struct store *store;        /* NULL: a description, of which nothing is read */
    struct pool *pool;
    void (*progress)(void *user, uint64_t n_bytes); /* may be NULL; bytes read so far, from any thread */
    void *user;
    uint64_t n_read, n_read_bytes; /* out: experts and their bytes */
};

/* Loads the groups that have a slot, and memory for it, for each of their experts that are here, and makes them
 * resident. After a failure no group is resident. */
MUST_USE err_code resident_load(struct resident_load *d, struct err *e);

#endif
