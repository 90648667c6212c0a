/* The CPU device's own parts. */
#ifndef BACKEND_CPU_INTERNAL_H
#define BACKEND_CPU_INTERNAL_H

#include "backend/backend_internal.h"
#include "base/pool.h"
#include "base/topology.h"
#include "kernels/kernels.h"

struct buffer {
    char *base;
    size_t n_bytes;
    enum mem_tag tag;
};

struct weight {
    const struct quant_info *type;
    enum quant_layout layout;
    int64_t k, n_row;
    void *data;
    size_t n_bytes;
    const char *observed; /* the tensor's name; NULL: not to be observed */
};

/* What of a slot pool lies on one memory node: some rows of each expert's matrices (cpu_node_row), slot after slot,
 * each matrix's as if they were a matrix of their own. */
struct slot_pool_part {
    struct layout_image image;
    size_t slot_bytes; /* the image, and room to read matrices into */
    char *data;
};

/* Where a matrix begins in its slot, counted from its place in the image, and whether it lies there as it was read, to
 * be packed by the first operation that uses it. */
struct slot_matrix {
    size_t shift;
    bool is_raw;
};

struct slot_pool {
    struct slot_pool_desc d;
    struct slot_matrix (*slots)[EXPERT_N_MATRIX];  /* [n_slot] */
    struct slot_pool_part part[TOPOLOGY_MAX_NODE]; /* [pool_n_node] */
    size_t slot_bytes;                             /* of all parts */
    char *data;
    size_t n_bytes; /* reserved */
    int64_t n_open; /* slots that count */
};

/* The length and number of the rows of a matrix. */
static inline int64_t slot_matrix_k(const struct slot_pool_desc *d, enum expert_matrix matrix)
{
    return matrix == EXPERT_DOWN ? d->n_ff : d->n_embd;
}
static inline int64_t slot_matrix_rows(const struct slot_pool_desc *d, enum expert_matrix matrix)
{
    return matrix == EXPERT_DOWN ? d->n_embd : d->n_ff;
}

/* Work space that an operation needs besides its tensors: one block a purpose, grown when a bigger one is asked for
 * and kept, so that decode allocates nothing after its first step. */
enum cpu_scratch {
    SCRATCH_ACT,                                   /* activations rounded for a product: one for each kind */
    SCRATCH_ACT_H = SCRATCH_ACT + QUANT_N_ACT,     /* the same for the experts' hidden rows */
    SCRATCH_GATHER = SCRATCH_ACT_H + QUANT_N_ACT,  /* rounded activations in expert order */
    SCRATCH_HIDDEN = SCRATCH_GATHER + QUANT_N_ACT, /* experts' hidden rows */
    SCRATCH_ORDER,                                 /* sorted dispatch: order, counts, offsets */
    SCRATCH_LOGITS,                                /* router logits */
    SCRATCH_SPANS,                                 /* a token's softmaxes over spans of positions */
    SCRATCH_THREAD,                                /* per thread */
    SCRATCH_PACK,                                  /* per thread: 16 rows of an expert's matrix */
    N_SCRATCH
};

struct cpu {
    struct backend base;
    struct pool *pool;
    const struct kernels *kernels;
    struct err error; /* the first since the last report */
    uint64_t n_fence;
    size_t n_placed; /* rounded activations, so far */
    struct backend_counters counters;
    backend_observer *observer; /* mostly NULL */
    void *observer_user;
    struct {
        void *p;
        size_t n_bytes;
    } scratch[N_SCRATCH];
    size_t missing_bytes; /* of the scratch that the running operation could not have below the limit on memory */
};

static inline struct cpu *cpu_of(struct backend *b)
{
    return (struct cpu *)b;
}

static inline size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* The host address; NULL for an absent tensor. */
static inline void *tensor_data(const struct tensor *t)
{
    return t->buffer ? t->buffer->base + t->off_bytes : NULL;
}

/* At least n_bytes, 64-byte aligned, contents undefined; NULL when out of memory, and the operation then ends without
 * having changed anything that it reads: it runs once more when memory has been reclaimed (cpu_enqueue). */
void *cpu_scratch(struct cpu *c, enum cpu_scratch id, size_t n_bytes);

/* Rounds m rows of k activations to a kind, in parallel, into scratch block `id` (unused for FLOAT, which borrows x).
 * False when out of memory. */
bool cpu_round_act(struct cpu *c, enum cpu_scratch id, enum quant_act kind, const float *x, int64_t m, int64_t k,
                   struct kernel_act *out);

/* The same in two steps, for rows that become known one by one: a place for m rows, then each row (once). */
struct cpu_act_rows {
    const struct kernels *kernels;
    enum quant_act kind;
    int64_t k, n_scale, n_sum;
    const float *x;
    int8_t *q;
    float *d;
    int16_t *sum;
};
bool cpu_place_act(struct cpu *c, enum cpu_scratch id, enum quant_act kind, const float *x, int64_t m, int64_t k,
                   struct cpu_act_rows *r, struct kernel_act *out);
void cpu_round_row(const struct cpu_act_rows *r, int64_t row);

/* Row m of a block of activations, for a product of a single token or of those from m on. */
struct kernel_act cpu_act_row(const struct kernel_act *a, int64_t m);

/* The first of a matrix's n_row rows that a node's threads compute (and whose memory it has), at the beginning of a
 * group of LAYOUT_R16_ROWS; of node pool_n_node: n_row. */
int64_t cpu_node_row(const struct cpu *c, int node, int64_t n_row);

/* Rows that a task of a product takes on: a multiple of 16, enough to be worth handing out, few enough that threads
 * finish together. n_row: rows in all; k: their length; m: tokens that meet them. */
int64_t cpu_chunk_rows(const struct cpu *c, int64_t n_row, int64_t k, int64_t m);

/* weight[i] . x for up to OP_MAX_OUT matrices that share their input; bias NULL or per matrix NULL. False when out of
 * memory. */
bool cpu_matmul(struct cpu *c, int n_weight, struct weight *const *w, const float *x, int64_t m, float *const *y,
                const float *const *bias);

void cpu_enqueue(struct backend *b, const struct op *op);
bool cpu_supports(struct backend *b, const struct op *op);

static inline enum kernel_act_fn cpu_act_fn(enum act_fn act)
{
    static const enum kernel_act_fn fns[] = {[ACT_SILU] = KERNEL_SILU,
                                             [ACT_GELU] = KERNEL_GELU,
                                             [ACT_SIGMOID] = KERNEL_SIGMOID,
                                             [ACT_SWIGLU_OAI] = KERNEL_SWIGLU_OAI};
    return fns[act];
}

/* Adds one operation that took n_ns to the counters. OP_EXPERTS counts its own work. */
void cpu_count(struct cpu *c, const struct op *op, int64_t n_ns);
/* n_read matrices [n_row][k] read once, and products with m rows of activations in all. */
void cpu_count_product(struct cpu *c, enum op_kind kind, const struct quant_info *type, int64_t n_row, int64_t k,
                       int64_t n_read, int64_t m);

/* Operations with files of their own. */
void cpu_op_attention(struct cpu *c, const struct op *op);
void cpu_op_kv_store(struct cpu *c, const struct op *op);
void cpu_op_heads(struct cpu *c, const struct op *op);
void cpu_op_conv(struct cpu *c, const struct op *op);
void cpu_op_delta(struct cpu *c, const struct op *op);
void cpu_op_route(struct cpu *c, const struct op *op);
void cpu_op_experts(struct cpu *c, const struct op *op);
void cpu_op_combine(struct cpu *c, const struct op *op);

#endif
