/* How a budget of bytes is divided into slots.
 *
 * Layers whose experts have the same shape share a group of slots, whoever needs them. Pure arithmetic. */
#ifndef EXPERTS_BUDGET_H
#define EXPERTS_BUDGET_H

#include <stddef.h>
#include <stdint.h>

struct budget_group {
    int64_t n_expert;      /* of all its layers */
    int64_t n_used;        /* by one token in one layer */
    size_t slot_bytes;     /* of one expert */
    int n_layer;           /* layers in the group */
    int64_t n_expert_most; /* of the layer with most */
};

/* Adds a layer to a group; returns its index there. */
int budget_add_layer(struct budget_group *g, int64_t n_expert, int64_t n_used);

/* The least that works: one layer's top-k in each group. The most that helps: a slot for each expert. */
size_t budget_min_bytes(const struct budget_group *groups, int n_group);
size_t budget_max_bytes(const struct budget_group *groups, int n_group);

/* Slots of each group, within n_bytes (at least the minimum) together and in proportion to the groups' sizes. */
void budget_divide(const struct budget_group *groups, int n_group, size_t n_bytes, int64_t *n_slot);

#endif
