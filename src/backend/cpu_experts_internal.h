/* EXPERTS, planned: which token-expert pairs are computed in which order, and how their rows are cut into tasks. */
#ifndef BACKEND_CPU_EXPERTS_INTERNAL_H
#define BACKEND_CPU_EXPERTS_INTERNAL_H

#include "backend/cpu_internal.h"
#include "base/topology.h"

/* In direct dispatch an item is a token-expert pair, in sorted dispatch an expert with all its pairs. */
struct expert_item {
    int32_t slot, expert;
    bool is_again;   /* an item before this one has the same expert */
    int32_t row0, n; /* its pairs' hidden rows: [row0, row0 + n) */
};

struct expert_plan {
    bool is_sorted;
    int64_t n_used; /* experts of a token */
    int64_t n_item;
    struct expert_item *items;
    int64_t n_pair;       /* pairs whose expert has a slot; each has a hidden row */
    int32_t *pair_of_row; /* [n_pair] token * n_used + rank */
};

/* What the plan is made from. */
struct expert_choice {
    const int32_t *ids;   /* [n_tok][n_used] */
    const int32_t *slots; /* [n_expert]; -1: not this time */
    int64_t n_tok, n_used, n_expert;
};

/* Makes the plan in memory of so many bytes, 64-byte aligned. */
size_t expert_plan_bytes(const struct expert_choice *choice);
void expert_plan_make(struct expert_plan *p, const struct expert_choice *choice, bool is_sorted, void *memory);

/* The rows of the items' matrices, cut into chunks, node by node of the memory that they lie on. A loop over them walks
 * through n_walked matrices of each item, one after the other. */
struct expert_cut {
    int n_walked;
    int64_t chunk_rows;
    struct {
        int64_t row0, row1, n_chunk;
    } node[TOPOLOGY_MAX_NODE];
    size_t first_task[TOPOLOGY_MAX_NODE + 1]; /* of each node */
};

/* Cuts matrices of n_row rows of k weights. */
void expert_cut_make(struct expert_cut *cut, const struct cpu *c, const struct expert_plan *p, int64_t n_row, int64_t k,
                     int n_walked);
/* The chunks of one item, on all nodes and in all matrices that are walked through. */
int64_t expert_cut_n_chunk(const struct expert_cut *cut, const struct cpu *c);

/* A task: rows [row0, row1) of an item's matrix. */
struct expert_task {
    int node;   /* that they lie on */
    int walked; /* which of the n_walked matrices */
    int64_t item, row0, row1;
};
struct expert_task expert_cut_task(const struct expert_cut *cut, const struct cpu *c, size_t task);

#endif
