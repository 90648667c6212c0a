/* The CPU device: its state, its buffers and weights, and the memory that its operations work in. */
#ifndef BACKEND_CPU_INTERNAL_H
#define BACKEND_CPU_INTERNAL_H

#include <stdatomic.h>

#include "backend/cpu_tuning.h"
#include "backend/vtable.h"
#include "base/pool.h"
#include "kernels/kernels.h"

struct buffer {
    char *base;
    size_t n_bytes;
    enum mem_tag tag;
    bool is_reserved;   /* memory comes by committing */
    size_t n_committed; /* bytes of such a buffer that have memory */
};

struct weight {
    const struct quant_info *type;
    enum quant_layout layout;
    int64_t k, n_row; /* row length, rows */
    void *data;
    size_t n_bytes;
    const char *observed; /* the tensor's name; NULL: not to be observed */
};

/* What a block of scratch is for. An operation asks for as many bytes as it needs; a block grows when more are asked
 * for, and is kept, so that decoding allocates nothing after its first step. */
enum cpu_scratch {
    SCRATCH_ACT,                                   /* activations rounded for a product: a block for each kind */
    SCRATCH_ACT_H = SCRATCH_ACT + QUANT_N_ACT,     /* the same for the experts' hidden rows */
    SCRATCH_GATHER = SCRATCH_ACT_H + QUANT_N_ACT,  /* the same for tokens in expert order */
    SCRATCH_HIDDEN = SCRATCH_GATHER + QUANT_N_ACT, /* experts' hidden rows; DELTA's and SSM's q, k and gates */
    SCRATCH_ORDER,                                 /* the experts' plan */
    SCRATCH_LOGITS,                                /* router logits */
    SCRATCH_UNITS,                                 /* how attention is cut */
    SCRATCH_SPANS,                                 /* tokens' softmaxes over spans of positions */
    SCRATCH_THREAD,                                /* a share for each thread */
    SCRATCH_PACK,                                  /* for each thread: 16 rows of an expert's matrix */
    N_SCRATCH
};

struct cpu {
    struct backend base;
    struct pool *pool;             /* borrowed */
    const struct kernels *kernels; /* borrowed */
    struct cpu_tuning tuning;
    struct err error; /* the first since the last report */
    uint64_t n_fence;
    size_t n_placed; /* blocks of rounded activations so far */
    struct backend_counters counters;
    struct {
        void *p;
        size_t n_bytes;
    } scratch[N_SCRATCH];
    size_t missing_bytes; /* of the scratch that the running operation could not have below the limit on memory */
    atomic_size_t held_bytes[MEM_N_TAG];
};

/* Below this many elements a parallel loop costs more than it saves. */
enum { CPU_SERIAL_ELEMS = 16384 };

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

/* Where a part of a page begins. */
static inline char *paged_data(const struct paged *s, int64_t page, int64_t part)
{
    return (char *)tensor_data(&s->page) + (size_t)page * s->page_bytes + (size_t)part * s->part_bytes;
}

/* Row i of a tensor of floats, of ne[0] elements. */
static inline float *tensor_row(const struct tensor *t, int64_t i)
{
    return (float *)tensor_data(t) + i * t->ne[0];
}

/* Whether ATTENTION is latent: its two caches are one, whose rows are both keys and values. */
static inline bool cpu_attention_is_latent(const struct op *op)
{
    const struct tensor *k = &op->state[ATTENTION_K].page, *v = &op->state[ATTENTION_V].page;
    return k->buffer == v->buffer && k->off_bytes == v->off_bytes;
}

/* y = act(gate) * up of n elements, with limits as ACT_MUL has them */
static inline void cpu_act_mul(const struct kernels *k, enum act_fn act, float limit, float up_limit, float *y,
                               const float *gate, const float *up, int64_t n)
{
    static const enum kernel_act_fn fns[] = {
        [ACT_SILU] = KERNEL_SILU,         [ACT_GELU] = KERNEL_GELU,
        [ACT_SIGMOID] = KERNEL_SIGMOID,   [ACT_SWIGLU_OAI] = KERNEL_SWIGLU_OAI,
        [ACT_NONE] = KERNEL_NO_ACT,       [ACT_RELU] = KERNEL_RELU,
        [ACT_SOFTPLUS] = KERNEL_SOFTPLUS, [ACT_SILU_CLAMPED] = KERNEL_SILU_CLAMPED};
    if (act == ACT_SITU)
        k->situ(limit, up_limit, y, gate, up, n);
    else
        k->act_mul(fns[act], limit, y, gate, up, n);
}

/* The functions of base/mem.h, whose bytes count as this device's, too. For all of its memory. Thread-safe. */
void *cpu_map(struct cpu *c, size_t n_bytes, enum mem_tag tag);
void cpu_unmap(struct cpu *c, void *p, size_t n_bytes, enum mem_tag tag);
MUST_USE bool cpu_commit(struct cpu *c, size_t n_bytes, enum mem_tag tag);
void cpu_decommit(struct cpu *c, void *p, size_t n_bytes, enum mem_tag tag);
void cpu_unreserve(struct cpu *c, void *p, size_t n_bytes, size_t n_committed, enum mem_tag tag);
size_t cpu_held_bytes(struct backend *b, enum mem_tag tag);

/* At least n_bytes, 64-byte aligned, contents undefined; NULL when out of memory, and the operation then ends without
 * having changed anything that it reads: it runs once more when memory has been reclaimed (cpu_enqueue). */
void *cpu_scratch(struct cpu *c, enum cpu_scratch id, size_t n_bytes);
void cpu_scratch_release(struct cpu *c); /* all blocks */

/* The first of a matrix's n_row rows that a node's threads compute (and whose memory it has), at the beginning of a
 * group of LAYOUT_R16_ROWS; of node pool_n_node: n_row. */
int64_t cpu_node_row(const struct cpu *c, int node, int64_t n_row);

/* How weights of a type meet m tokens. */
static inline struct kernel_how cpu_how(const struct cpu *c, const struct quant_info *type, int64_t m)
{
    const struct cpu_tuning *t = &c->tuning;
    return (struct kernel_how){.prefetch = m < t->several_from[type->type] ? t->one[type->type] : t->several,
                               .tiles_from = t->tiles_from[type->type],
                               .panels_from = t->panels_from[type->type]};
}

/* Bytes of n_row rows of k weights as this device's kernels want them; n_row: a multiple of 16, or all of a matrix. */
size_t cpu_packed_bytes(const struct cpu *c, const struct quant_info *type, int64_t n_row, int64_t k);

#endif
