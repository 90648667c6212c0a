/* The plan of an EXPERTS operation: the order in which token-expert pairs are computed, and how the rows of the
 * experts' matrices are divided into tasks. */
#ifndef BACKEND_CPU_EXPERTS_INTERNAL_H
#define BACKEND_CPU_EXPERTS_INTERNAL_H

#include "backend/cpu_internal.h"
#include "base/topology.h"

/* In direct dispatch an item is one token-expert pair, in sorted dispatch an expert with all its pairs. */
struct expert_item {
    int32_t slot, expert;
    bool is_again;   /* an earlier item has the same expert */
    int32_t row0, n; /* hidden rows [row0, row0 + n) are those of the item's pairs */
};

struct expert_plan {
    bool is_sorted;
    int64_t n_used; /* experts of each token */
    int64_t n_item;
    struct expert_item *items;
    int64_t n_pair;       /* pairs whose expert has a slot; each has a hidden row */
    int32_t *pair_of_row; /* [n_pair] token * n_used + rank */
};

/* What the plan is made from: ids and slots of the operation. */
struct expert_choice {
    const int32_t *ids;   /* [n_tok][n_used]; -1: none */
    const int32_t *slots; /* [n_expert]; -1: the expert is left out this time */
    int64_t n_tok, n_used, n_expert;
};

/* Makes the plan in memory of expert_plan_bytes, which must be 64-byte aligned. */
size_t expert_plan_bytes(const struct expert_choice *choice);
void expert_plan_make(struct expert_plan *p, const struct expert_choice *choice, bool is_sorted, void *memory);

/* How the rows of the items' matrices are divided into chunks, on each memory node for itself. A loop over the chunks
 * goes through n_walked matrices of each item, one after the other; each chunk is a task. */
struct expert_cut {
    int n_walked;
    int64_t chunk_rows;
    struct {
        int64_t row0, row1, n_chunk; /* the rows of a matrix that lie on the node, and their chunks */
    } node[TOPOLOGY_MAX_NODE];
    size_t first_task[TOPOLOGY_MAX_NODE + 1]; /* each node's first task; then the number of tasks */
};

/* Divides matrices of n_row rows of k weights. */
void expert_cut_make(struct expert_cut *cut, const struct cpu *c, const struct expert_plan *p, int64_t n_row, int64_t k,
                     int n_walked);
/* The chunks of one item, on all nodes and in all n_walked matrices. */
int64_t expert_cut_n_chunk(const struct expert_cut *cut, const struct cpu *c);

/* A task: rows [row0, row1) of one matrix of an item. */
struct expert_task {
    int node;   /* the node that the rows lie on */
    int walked; /* which of the n_walked matrices */
    int64_t item, row0, row1;
};
struct expert_task expert_cut_task(const struct expert_cut *cut, const struct cpu *c, size_t task);

#endif
