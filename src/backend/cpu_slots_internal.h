/* Slot pools of the CPU device: where an expert's matrices lie. */
#ifndef BACKEND_CPU_SLOTS_INTERNAL_H
#define BACKEND_CPU_SLOTS_INTERNAL_H

#include <assert.h>

#include "backend/cpu_internal.h"
#include "base/topology.h"

/* The part of a slot pool that lies on one memory node: some rows of each expert's matrices (cpu_node_row), slot after
 * slot, each matrix's as if they were a matrix of their own. */
struct slot_pool_part {
    struct layout_image image;
    size_t slot_bytes; /* the image, and room to read matrices into */
    char *data;
};

/* Where a matrix lies in its slot. */
struct slot_matrix {
    size_t shift; /* bytes from its place in the image */
    bool is_raw;  /* as it was read: the first operation that uses it packs it */
};

struct slot_pool {
    struct slot_pool_desc d;
    struct slot_matrix (*slots)[EXPERT_N_MATRIX];  /* [n_slot] */
    struct slot_pool_part part[TOPOLOGY_MAX_NODE]; /* [pool_n_node] */
    size_t slot_bytes;                             /* of all parts */
    char *data;
    size_t n_bytes; /* reserved */
    int64_t n_open; /* slots that count as memory */
};

/* The part of a slot that lies on a node, and of a matrix in it. */
static inline char *slot_data(const struct slot_pool *s, int node, int64_t slot)
{
    assert(slot >= 0 && slot < s->d.n_slot);
    return s->part[node].data + (size_t)slot * s->part[node].slot_bytes;
}
static inline char *slot_matrix_data(const struct slot_pool *s, int node, int64_t slot, enum expert_matrix matrix)
{
    return slot_data(s, node, slot) + s->part[node].image.off[matrix] + s->slots[slot][matrix].shift;
}

/* Packs rows [row0, row1) of a matrix, if it is raw, where they lie; it then lies on one node. row0: a multiple of 16;
 * tile: slot_tile_bytes to work in. No other task may work on the rows. */
void slot_pack_rows(const struct cpu *c, const struct slot_pool *s, int64_t slot, enum expert_matrix matrix,
                    int64_t row0, int64_t row1, char *tile);
size_t slot_tile_bytes(const struct slot_pool *s);

#endif
