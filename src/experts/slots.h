/* The slots that a device has for routed experts. Layers whose experts have the same shape share a group of slots: a
 * slot pool on the device, and a policy that says which expert has which slot. This file knows nothing of reads and
 * time.
 *
 * The room's files build on each other in this order: slots, read requests (read_requests.c), prefetches (prefetch.c),
 * fetches (fetch.c). None uses a later one. */
#ifndef EXPERTS_SLOTS_H
#define EXPERTS_SLOTS_H

#include "experts/budget.h"
#include "experts/experts.h"

struct slot_group {
    struct slot_pool_desc shape;
    struct budget_group size;
    int64_t n_slot; /* the most slots that the group may have open */
    struct slot_pool *slot_pool;
    struct policy *policy;
    struct policy *logical; /* the logical cache of the deterministic mode (substitutes.c), else NULL */
    bool is_resident;       /* every expert that is here has a slot for good */
};

struct slot_layer {
    struct expert_layer d; /* its is_here is the arena's */
    int64_t n_here;        /* experts that this device has */
    struct slot_group *group;
    int index;           /* of the layer in its group */
    struct tensor table; /* I32 [n_expert], the slot table of a resident layer */
};

struct expert_slots {
    struct backend *device; /* borrowed */
    struct slot_layer *layers;
    int n_layer;
    struct slot_group *groups;
    int n_group;
    int64_t n_expert; /* of the layer with most */
};

/* Groups the layers, divides the budget, and opens the fewest slots that each group can work with. A group none of
 * whose experts is here has no slot pool and counts as resident. The arena owns what is not on the device. slots_close
 * accepts half-open ones. */
MUST_USE err_code slots_create(struct expert_slots *s, const struct experts_params *p,
                               const struct expert_layer *layers, int n_layer, struct arena *arena, struct err *e);
void slots_close(struct expert_slots *s);

/* The bytes of the groups' slots: the least that works, and what all experts need. */
size_t slots_min_bytes(const struct expert_slots *s);
size_t slots_max_bytes(const struct expert_slots *s);

/* Whether the device has an expert at all. */
bool slots_is_here(const struct expert_slots *s, int layer, int32_t expert);

/* The slot of an expert, or -1. It may still be being read (read_requests.h). */
int64_t slots_find(const struct expert_slots *s, int layer, int32_t expert);

/* A slot for an expert that has none, held, or -1: policy_take. */
int64_t slots_take(struct expert_slots *s, int layer, int32_t expert, bool *evicted);

/* Hold and release an expert that has a slot. A held one keeps it. */
void slots_hold(struct expert_slots *s, int layer, int32_t expert);
void slots_release(struct expert_slots *s, int layer, int32_t expert);

/* Opens one more slot of a group. False: all are open, or the limit on memory forbids it. */
bool slots_open_one(struct expert_slots *s, struct slot_group *g);
/* Opens a slot for each of the group's experts that are here, and gives it to the expert. False: there is not enough
 * memory. */
bool slots_open_all(struct expert_slots *s, struct slot_group *g);
/* Tells the device where a layer's experts are. */
MUST_USE err_code slots_write_table(struct expert_slots *s, int layer, struct err *e);
/* Of the groups that may have more open slots, the one with the smallest part of its slots open; NULL: none. */
struct slot_group *slots_neediest(const struct expert_slots *s);

/* Closes slots until n_bytes fit under the limit on memory or none can be spared. */
void slots_reclaim(struct expert_slots *s, size_t n_bytes);

#endif
