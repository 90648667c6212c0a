/* What the files of operations share: addresses and accesses of tensors, and a function for each kind. */
#ifndef VULKAN_VK_OPS_H
#define VULKAN_VK_OPS_H

#include <assert.h>

#include "vulkan/vk_internal.h"

/* As struct Paged in shaders/paged.glsl. */
struct vk_paged {
    uint64_t base, table;
    uint32_t page_bytes, part_bytes;
};

/* What a dispatch touches. */
struct vk_touched {
    struct vk_access access[24];
    int n;
};

uint64_t vk_address(const struct tensor *t); /* 0: absent */
uint64_t vk_buffer_address(const struct buffer *buf);
struct vk_paged vk_paged_push(const struct paged *s);

/* Absent tensors are left out. */
void vk_reads(struct vk_touched *x, const struct tensor *t);
void vk_writes(struct vk_touched *x, const struct tensor *t);
void vk_state(struct vk_touched *x, const struct paged *s, bool is_write);
void vk_whole(struct vk_touched *x, const struct buffer *buf, bool is_write);

static inline uint32_t vk_groups(int64_t n, int64_t size) /* size: not 0 */
{
    assert(size > 0);
    return (uint32_t)((n + size - 1) / size);
}

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

/* One matrix of a product. */
struct vk_product {
    const struct weight *w;
    struct tensor y, bias; /* y NULL: `to`; bias may be absent */
    struct buffer *to;     /* rows of w->n_row */
};

/* y_i = w_i . x for n matrices, in as few dispatches as their types allow. */
void vk_multiply(struct vk *v, const struct tensor *x, const struct vk_product *products, int n);

/* total = residual + what an operation gives, which is written, too. Both absent: nothing is added. */
struct vk_sum {
    struct tensor residual, total;
};

/* MATMUL of one matrix in one part, COMBINE, and the ADD behind it; RMS_NORM of heads in place, and their ROPE. */
void vk_matmul_add(struct vk *v, const struct op *op, const struct vk_sum *sum);
void vk_combine(struct vk *v, const struct op *op, const struct vk_sum *sum);
void vk_norm_rope(struct vk *v, const struct op *norm, const struct op *rope);

/* ---- vk_fuse.c ------------------------------------------------------------------------------------------------- */

/* Whether another operation, if it is the next one, may share a dispatch with this one. */
bool vk_may_begin(const struct op *op);
/* Records both in one dispatch; false: they don't go together, and nothing was done. */
bool vk_run_pair(struct vk *v, const struct op *first, const struct op *second);

typedef void vk_op_fn(struct vk *v, const struct op *op);
vk_op_fn vk_op_embed, vk_op_rms_norm, vk_op_matmul, vk_op_heads, vk_op_rope_table, vk_op_rope, vk_op_kv_store,
    vk_op_attention, vk_op_conv, vk_op_delta, vk_op_act_mul, vk_op_add, vk_op_scale, vk_op_softcap, vk_op_slice,
    vk_op_scatter, vk_op_route, vk_op_experts, vk_op_combine;

/* Whether shapes fit what a workgroup has. */
bool vk_attention_fits(const struct vk *v, const struct op *op);
bool vk_delta_fits(const struct vk *v, const struct op *op);

#endif
