/* What the files of operations share: addresses of tensors, accesses to them, and a function for each kind of
 * operation. */
#ifndef VULKAN_VK_OPS_H
#define VULKAN_VK_OPS_H

#include <assert.h>

#include "vulkan/vk_internal.h"

/* As struct Paged in shaders/paged.glsl. */
struct vk_paged {
    uint64_t base, table;
    uint32_t page_bytes, part_bytes;
};

/* What a dispatch reads and writes. */
struct vk_touched {
    struct vk_access access[24];
    int n;
};

uint64_t vk_address(const struct tensor *t); /* 0: absent */
uint64_t vk_buffer_address(const struct buffer *buf);
struct vk_paged vk_paged_push(const struct paged *s);

/* Add an access of a dispatch; absent tensors are ignored. vk_whole: to all of a buffer. */
void vk_reads(struct vk_touched *x, const struct tensor *t);
void vk_writes(struct vk_touched *x, const struct tensor *t);
void vk_state(struct vk_touched *x, const struct paged *s, bool is_write);
void vk_whole(struct vk_touched *x, const struct buffer *buf, bool is_write);

static inline uint32_t vk_groups(int64_t n, int64_t size) /* size: not 0 */
{
    assert(size > 0);
    return (uint32_t)((n + size - 1) / size);
}

/* Spreads n workgroups over y and z, as devices may have no more than 65,535 in y. There may be a few more than n, for
 * which shaders test (row_of_group in shaders/common.glsl). */
struct vk_spread {
    uint32_t y, z;
};
struct vk_spread vk_spread(const struct vk *v, int64_t n);

/* Records a dispatch of x by y by z workgroups. push: a struct of push constants. */
#define VK_RUN(v, program_, push_, touched, x_, y_, z_, work_)                                                         \
    vk_dispatch(v, &(struct vk_dispatch){.program = (program_),                                                        \
                                         .push = &(push_),                                                             \
                                         .push_bytes = sizeof(push_),                                                  \
                                         .x = (x_),                                                                    \
                                         .y = (y_),                                                                    \
                                         .z = (z_),                                                                    \
                                         .work = (uint64_t)(work_),                                                    \
                                         .access = (touched)->access,                                                  \
                                         .n_access = (touched)->n})

#define VK_PROGRAM(name, ...)                                                                                          \
    (struct vk_program)                                                                                                \
    {                                                                                                                  \
        .shader = VK_SHADER_##name, .n = (int)(sizeof((uint32_t[]){__VA_ARGS__}) / 4), .constant = { __VA_ARGS__ }     \
    }

/* ---- products that read a norm (vk_ops_products.c) ------------------------------------------------------------- */

/* The RMS_NORM whose result is the input of an operation that is recorded next, if the operation may compute it itself;
 * else NULL. */
const struct vk_norm *vk_norm_of(struct vk *v, const struct op *op);
/* The room for a row of k elements, in elements, where a product's workgroups keep it in shared memory. */
uint32_t vk_staged(int64_t k);
/* Adds the accesses of a product that computes the norm of its input, or that reads x where `norm` is NULL. Returns the
 * address that the product must write the norm's result to, or 0: an earlier product has done so. */
uint64_t vk_touch_norm(struct vk_touched *touched, const struct vk_norm *norm, const struct tensor *x);
/* To be called when the product has been recorded. */
void vk_norm_done(struct vk *v);
uint32_t vk_float_bits(float x); /* for specialization constants */

enum { VK_PRODUCT_GROUP = 128 }; /* threads of a product's workgroup for each of its matrices */
/* A workgroup in shaders/tile.glsl: its rows of activations and of weights, its threads, and the most shared memory
 * that it takes. */
enum { VK_TILE = 32, VK_TILE_ROWS = 128, VK_TILE_GROUP = 128, VK_TILE_BYTES = 21 << 10 };
enum { VK_MATRIX_BYTES = 32 << 10 }; /* the most shared memory in shaders/matrix.glsl */
/* Sets the specialization constants for the size of the device's cooperative matrices. */
void vk_set_matrix(const struct vk *v, struct vk_program *p);

/* ---- products of integers (vk_integers.c) ------------------------------------------------------------------------ */

/* Where a product gets its rounded activations from. The values are those in shaders/integers.glsl. */
enum vk_integers {
    VK_FLOATS,         /* it is a product of floats, which are not rounded */
    VK_RUNS_IN_MEMORY, /* another dispatch has rounded them (vk_round_rows) */
    VK_ROUNDS,         /* its workgroups round their row themselves */
    VK_ROUNDS_NORMED   /* its workgroups norm their row, and then round it */
};

/* The bytes of shared memory that a workgroup needs to round a row of k elements. */
size_t vk_runs_bytes(int64_t k);

/* The activations of a product: m rows of k floats from address x on. */
struct vk_rows {
    uint64_t x;
    int64_t k, m;
};
/* How a product with weights of a type is computed. one_by_one: each workgroup has one row of activations. */
enum vk_integers vk_integers_of(const struct vk *v, enum quant_type type, const struct vk_norm *norm,
                                const struct vk_rows *rows, bool one_by_one);
/* Takes scratch memory for the rounded rows of such a product, if it reads them from memory. */
void vk_scratch_runs(struct vk *v, enum quant_type type, const struct vk_rows *rows, bool one_by_one);
/* Records a dispatch that rounds rows for weights of a type; `from` is its access to them. Returns the buffer with the
 * result; NULL after an error. */
const struct buffer *vk_round_rows(struct vk *v, enum quant_type type, const struct vk_rows *rows,
                                   const struct vk_access *from);

/* Whether a product may load four elements at a time from rows of k floats at address x. */
bool vk_by_four(uint64_t x, int64_t k);
/* How many rows of activations a workgroup multiplies, where it has no tile in shared memory. */
uint32_t vk_choose_tile(int64_t m, bool by_four);

/* ---- operations that share a dispatch with the ones behind them; NULL: with none ------------------------------- */

/* then: ADD of the product to something else, or ACT_MUL of two products. */
void vk_matmul(struct vk *v, const struct op *op, const struct op *then);
/* gate: ACT_MUL of a gate with the result. */
void vk_attention(struct vk *v, const struct op *op, const struct op *gate);
void vk_rms_norm(struct vk *v, const struct op *op, const struct op *gate);
void vk_combine(struct vk *v, const struct op *op, const struct op *add);
void vk_experts(struct vk *v, const struct op *op, const struct op *combine, const struct op *add);
/* other: a MATMUL of the router's input whose matrix 2 is multiplied, too (vk_may_join_router). */
void vk_route(struct vk *v, const struct op *op, const struct op *other);
bool vk_may_join_router(const struct vk *v, const struct op *route, const struct op *matmul);

/* Any of: RMS_NORM and ROPE of the heads of q and of k in place, and KV_STORE of k and of v. */
struct vk_qkv {
    struct vk_heads {
        struct tensor x;              /* absent: neither of the two */
        int64_t dim;                  /* elements of a head */
        const struct op *norm, *rope; /* or NULL */
    } q, k;
    const struct op *store_k, *store_v; /* or NULL */
};
void vk_qkv(struct vk *v, const struct vk_qkv *x);
bool vk_head_fits(const struct vk *v, int64_t dim);
/* Whether all parts of an RMS_NORM's rows have the same weights. */
bool vk_norm_is_shared(const struct op *norm);

/* The term of an ADD that is not `sum`. */
const struct tensor *vk_other_term(const struct op *add, const struct tensor *sum);

/* ---- vk_fuse.c ------------------------------------------------------------------------------------------------- */

bool vk_is_same(const struct tensor *a, const struct tensor *b);
bool vk_overlap(const struct tensor *a, const struct tensor *b);

/* Records the first of n operations together with those behind it that can share its dispatch. Returns how many it
 * recorded. It may also record a part of a later operation, which it then removes from that operation in `ops`. */
int vk_run_first(struct vk *v, struct op *ops, int n);

typedef void vk_op_fn(struct vk *v, const struct op *op);
/* Take all the scratch memory that an operation may need when it is recorded (vk_scratch). */
vk_op_fn vk_scratch_matmul, vk_scratch_index, vk_scratch_attention, vk_scratch_route, vk_scratch_experts;
vk_op_fn vk_op_layer_norm, vk_op_index; /* vk_ops_index.c */
vk_op_fn vk_op_embed, vk_op_heads, vk_op_rope_table, vk_op_conv, vk_op_delta, vk_op_act_mul, vk_op_add, vk_op_scale,
    vk_op_softcap, vk_op_clamp, vk_op_slice, vk_op_scatter;
vk_op_fn vk_op_streams_in, vk_op_streams_out, vk_op_streams_match, vk_op_residuals,
    vk_op_compress; /* vk_ops_streams.c */

/* Whether the device's workgroups have enough threads and shared memory for an operation's shapes. */
bool vk_attention_fits(const struct vk *v, const struct op *op);
bool vk_index_fits(const struct vk *v, const struct op *op);
bool vk_delta_fits(const struct vk *v, const struct op *op);
/* Elements [first, first + n) of a list. */
struct tensor vk_list_part(struct tensor t, int64_t first, int64_t n);

#endif
