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
    int64_t k, n_row; /* elements of a row, and rows */
    void *data;
    size_t n_bytes;
    const char *observed; /* the tensor's name for observers; NULL: it is not to be observed */
};

/* The blocks of scratch memory, by use. A block grows when an operation needs more of it, and is kept, so that decoding
 * allocates nothing after its first step. */
enum cpu_scratch {
    SCRATCH_ACT,                                   /* activations rounded for a product: a block for each kind */
    SCRATCH_ACT_H = SCRATCH_ACT + QUANT_N_ACT,     /* the same for the experts' hidden rows */
    SCRATCH_GATHER = SCRATCH_ACT_H + QUANT_N_ACT,  /* the same for tokens that are sorted by expert */
    SCRATCH_HIDDEN = SCRATCH_GATHER + QUANT_N_ACT, /* experts' hidden rows; DELTA's and SSM's q, k and gates */
    SCRATCH_ORDER,                                 /* the plan of EXPERTS (struct expert_plan) */
    SCRATCH_LOGITS,                                /* router logits */
    SCRATCH_UNITS,                                 /* the units of work that ATTENTION is divided into */
    SCRATCH_SPANS,                                 /* ATTENTION's softmaxes over spans; INDEX's scores */
    SCRATCH_THREAD,                                /* work space of each thread */
    SCRATCH_PACK,                                  /* for each thread: 16 rows of an expert's matrix to be packed */
    N_SCRATCH
};

struct cpu {
    struct backend base;
    struct pool *pool;             /* borrowed */
    const struct kernels *kernels; /* borrowed */
    struct cpu_tuning tuning;
    struct err error; /* the first one since the last report */
    uint64_t n_fence;
    size_t n_placed; /* blocks of rounded activations so far */
    struct backend_counters counters;
    struct {
        void *p;
        size_t n_bytes;
    } scratch[N_SCRATCH];
    size_t missing_bytes; /* scratch that the running operation needed but could not get below the limit on memory */
    atomic_size_t held_bytes[MEM_N_TAG];
};

/* With fewer elements than this a parallel loop costs more than it saves. */
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

/* The functions of base/mem.h, which also count the bytes as held by this device. All of its memory comes from these.
 * Thread-safe. */
void *cpu_map(struct cpu *c, size_t n_bytes, enum mem_tag tag);
void cpu_unmap(struct cpu *c, void *p, size_t n_bytes, enum mem_tag tag);
MUST_USE bool cpu_commit(struct cpu *c, size_t n_bytes, enum mem_tag tag);
void cpu_decommit(struct cpu *c, void *p, size_t n_bytes, enum mem_tag tag);
void cpu_unreserve(struct cpu *c, void *p, size_t n_bytes, size_t n_committed, enum mem_tag tag);
size_t cpu_held_bytes(struct backend *b, enum mem_tag tag);

/* A block of at least n_bytes, 64-byte aligned, with undefined contents. NULL when out of memory: the operation must
 * then return without having changed anything that it reads, as it is run again after memory has been reclaimed
 * (cpu_enqueue). */
void *cpu_scratch(struct cpu *c, enum cpu_scratch id, size_t n_bytes);
void cpu_scratch_release(struct cpu *c); /* frees all blocks */

/* Rows of a matrix are shared out to the memory nodes, in groups of LAYOUT_R16_ROWS: the first of n_row rows that lies
 * on a node and is computed by its threads. For node pool_n_node it is n_row. */
int64_t cpu_node_row(const struct cpu *c, int node, int64_t n_row);

/* How the kernels should multiply weights of a type by m tokens. */
static inline struct kernel_how cpu_how(const struct cpu *c, const struct quant_info *type, int64_t m)
{
    const struct cpu_tuning *t = &c->tuning;
    return (struct kernel_how){.prefetch = m < t->several_from[type->type] ? t->one[type->type] : t->several,
                               .tiles_from = t->tiles_from[type->type],
                               .panels_from = t->panels_from[type->type]};
}

/* Bytes of n_row rows of k weights in this device's layout. n_row is a multiple of 16, or all rows of a matrix. */
size_t cpu_packed_bytes(const struct cpu *c, const struct quant_info *type, int64_t n_row, int64_t k);

#endif
