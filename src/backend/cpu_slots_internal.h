/* The slot pools of the CPU device: where the matrices of experts lie. */
#ifndef BACKEND_CPU_SLOTS_INTERNAL_H
#define BACKEND_CPU_SLOTS_INTERNAL_H

#include <assert.h>

#include "backend/cpu_internal.h"
#include "base/topology.h"

/* The part of a slot pool that lies on one memory node: slot after slot, the node's rows of each matrix (cpu_node_row),
 * packed as if they were a matrix of their own. */
struct slot_pool_part {
    struct layout_image image;
    size_t slot_bytes; /* bytes of a slot: the image, and room to read matrices in GGUF's order into */
    char *data;
};

/* Where a matrix lies in its slot. */
struct slot_matrix {
    size_t shift; /* bytes from its place in the image */
    bool is_raw;  /* it is in GGUF's order: the first operation that uses it packs it */
};

struct slot_pool {
    struct slot_pool_desc d;
    struct slot_matrix (*slots)[EXPERT_N_MATRIX];  /* [n_slot] */
    struct slot_pool_part part[TOPOLOGY_MAX_NODE]; /* [pool_n_node] */
    size_t slot_bytes;                             /* bytes of a slot, in all parts together */
    char *data;                                    /* the reservation of n_bytes that all parts lie in */
    size_t n_bytes;
    int64_t n_open; /* slots that are open, whose memory is committed */
};

/* The part of a slot that lies on a node, and the part of a matrix in it. */
static inline char *slot_data(const struct slot_pool *s, int node, int64_t slot)
{
    assert(slot >= 0 && slot < s->d.n_slot);
    return s->part[node].data + (size_t)slot * s->part[node].slot_bytes;
}
static inline char *slot_matrix_data(const struct slot_pool *s, int node, int64_t slot, enum expert_matrix matrix)
{
    return slot_data(s, node, slot) + s->part[node].image.off[matrix] + s->slots[slot][matrix].shift;
}

/* Packs rows [row0, row1) of a matrix in place, if it is raw; a raw matrix always lies on one node. row0 is a multiple
 * of 16, `tile` a work space of slot_tile_bytes. No other task may work on the rows meanwhile. */
void slot_pack_rows(const struct cpu *c, const struct slot_pool *s, int64_t slot, enum expert_matrix matrix,
                    int64_t row0, int64_t row1, char *tile);
size_t slot_tile_bytes(const struct slot_pool *s);

#endif
