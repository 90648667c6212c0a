/* How fast the device copies between the host's memory and its own. */
#include "base/clock.h"
#include "vulkan/vk_internal.h"

enum { N_TRANSFER = 3 }; /* of which the fastest counts */

static err_code time_copy(struct vk *v, const struct vk_piece *from, const struct vk_piece *to, double *most_per_s,
                          struct err *e)
{
    struct backend *b = &v->base;
    const struct vk_access a[2] = {vk_access_piece(from, false), vk_access_piece(to, true)};
    const VkBufferCopy region = {from->off, to->off, from->n_bytes < to->n_bytes ? from->n_bytes : to->n_bytes};
    *most_per_s = 0;
    for (int i = 0; i < N_TRANSFER; i++) {
        TRY(vk_wait(b, vk_fence(b), e));
        int64_t begin = clock_ns();
        VkCommandBuffer c = vk_record(v, region.size);
        vk_order(v, a, 2);
        if (c)
            v->api.fn.CmdCopyBuffer(c, from->block->buffer, to->block->buffer, 1, &region);
        TRY(vk_wait(b, vk_fence(b), e));
        double per_s = (double)region.size * 1e9 / (double)(clock_ns() - begin + 1);
        *most_per_s = per_s > *most_per_s ? per_s : *most_per_s;
    }
    return ERR_OK;
}

err_code vulkan_time_transfers(struct backend *b, const struct tensor *t, double *to_per_s, double *from_per_s,
                               struct err *e)
{
    struct vk *v = vk_of(b);
    struct vk_piece pinned;
    TRY(vk_piece_take(v, VK_FOR_HOST, tensor_bytes(t), "timing transfers", &pinned, e));
    err_code code = time_copy(v, &pinned, &t->buffer->piece, to_per_s, e);
    if (code == ERR_OK)
        code = time_copy(v, &t->buffer->piece, &pinned, from_per_s, e);
    vk_drain(v);
    vk_piece_give(v, &pinned);
    return code;
}
