/* Activations that are rounded for products on integers. */
#include "vulkan/vk_ops.h"

enum { RUN = 32, RUN_BYTES = 48 }; /* activations of a run, and its bytes (shaders/integers.glsl) */

size_t vk_runs_bytes(int64_t k)
{
    return (size_t)(k / RUN) * (RUN_BYTES + 2 * sizeof(uint32_t)); /* and a maximum and a sum for each */
}

enum vk_integers vk_integers_of(const struct vk *v, enum quant_type type, const struct vk_norm *norm,
                                const struct vk_rows *rows, bool one_by_one)
{
    enum { SUMS_BYTES = 2 * VK_PRODUCT_GROUP * 16 + 1024 };
    if (!vk_is_integer(v, type))
        return VK_FLOATS;
    if (norm)
        return VK_ROUNDS_NORMED;
    bool fits = vk_by_four(rows->x, rows->k) && vk_runs_bytes(rows->k) + SUMS_BYTES <= v->limits.shared_bytes;
    return one_by_one && fits ? VK_ROUNDS : VK_RUNS_IN_MEMORY;
}

static struct buffer *runs_of(struct vk *v, const struct vk_rows *rows)
{
    return vk_scratch(v, VK_SCRATCH_RUNS, (size_t)(rows->m * rows->k / RUN) * RUN_BYTES);
}

void vk_scratch_runs(struct vk *v, enum quant_type type, const struct vk_rows *rows, bool one_by_one)
{
    if (vk_integers_of(v, type, NULL, rows, one_by_one) == VK_RUNS_IN_MEMORY)
        runs_of(v, rows);
}

const struct buffer *vk_round_rows(struct vk *v, enum quant_type type, const struct vk_rows *rows,
                                   const struct vk_access *from)
{
    enum { GROUP = 64 };
    struct buffer *runs = runs_of(v, rows);
    struct vk_touched x = {.access = {*from}, .n = 1};
    if (!runs)
        return NULL;
    const struct {
        uint64_t x, runs;
        uint32_t k, m;
    } push = {rows->x, vk_buffer_address(runs), (uint32_t)rows->k, (uint32_t)rows->m};
    vk_whole(&x, runs, true);
    uint32_t n_y = rows->m < v->limits.n_workgroup_y ? (uint32_t)rows->m : v->limits.n_workgroup_y;
    VK_RUN(v, VK_PROGRAM(quantize, GROUP, type, vk_by_four(rows->x, rows->k)), push, &x,
           vk_groups(rows->k, GROUP * RUN), n_y, 1, rows->m * rows->k * (int64_t)sizeof(float));
    return runs;
}
