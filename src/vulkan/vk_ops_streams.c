/* STREAMS_IN, STREAMS_OUT, STREAMS_MATCH, RESIDUALS and COMPRESS. */
#include "vulkan/vk_ops.h"

enum { GROUP = 64 };

static void streams_gated(struct vk *v, const struct op *op)
{
    int64_t n = op->out[STREAMS_IN_Y].ne[0], m = op->in[STREAMS_IN_X].ne[1], n_stream = op->in[STREAMS_IN_X].ne[0] / n;
    const struct vk_spread rows = vk_spread(v, m);
    const struct {
        uint64_t x, mix, gate, y;
        uint32_t n, m;
        float magnitude;
        uint32_t unused;
    } push = {.x = vk_address(&op->in[STREAMS_IN_X]),
              .mix = vk_address(&op->in[STREAMS_IN_MIX]),
              .gate = vk_address(&op->in[STREAMS_IN_GATE]),
              .y = vk_address(&op->out[STREAMS_IN_Y]),
              .n = (uint32_t)n,
              .m = (uint32_t)m,
              .magnitude = op->streams.magnitude};
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[STREAMS_IN_X]);
    vk_reads(&x, &op->in[STREAMS_IN_GATE]);
    vk_writes(&x, &op->out[STREAMS_IN_Y]);
    vk_writes(&x, &op->out[STREAMS_IN_MIXED]);
    VK_RUN(v, VK_PROGRAM(streams_gated, GROUP, (uint32_t)n_stream), push, &x, vk_groups(n, GROUP), rows.y, rows.z,
           2 * tensor_bytes(&op->in[STREAMS_IN_X]));
}

void vk_op_streams_in(struct vk *v, const struct op *op)
{
    enum { IN_GROUP = 128 };
    if (op->in[STREAMS_IN_GATE].buffer || !op->in[STREAMS_IN_MIX].buffer) {
        streams_gated(v, op);
        return;
    }
    int64_t n = op->out[STREAMS_IN_Y].ne[0], m = op->in[STREAMS_IN_X].ne[1], n_stream = op->in[STREAMS_IN_X].ne[0] / n;
    const struct vk_spread rows = vk_spread(v, m);
    const struct {
        uint64_t x, mix, y, scale, base;
        uint32_t n, m;
        float eps, magnitude;
    } push = {.x = vk_address(&op->in[STREAMS_IN_X]),
              .mix = vk_address(&op->in[STREAMS_IN_MIX]),
              .y = vk_address(&op->out[STREAMS_IN_Y]),
              .scale = vk_address(&op->vec[STREAMS_IN_SCALE]),
              .base = vk_address(&op->vec[STREAMS_IN_BASE]),
              .n = (uint32_t)n,
              .m = (uint32_t)m,
              .eps = op->streams.eps,
              .magnitude = op->streams.magnitude};
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[STREAMS_IN_X]);
    vk_writes(&x, &op->out[STREAMS_IN_Y]);
    vk_writes(&x, &op->out[STREAMS_IN_MIXED]);
    VK_RUN(v,
           VK_PROGRAM(streams_in, IN_GROUP, (uint32_t)n_stream, (uint32_t)(op->in[STREAMS_IN_MIX].ne[0] / n_stream),
                      (uint32_t)op->streams.n_iteration),
           push, &x, 1, rows.y, rows.z, tensor_bytes(&op->in[STREAMS_IN_X]));
}

void vk_op_streams_out(struct vk *v, const struct op *op)
{
    int64_t n = op->in[STREAMS_OUT_Y].ne[0], m = op->in[STREAMS_OUT_Y].ne[1], n_stream = op->out[0].ne[0] / n;
    const struct vk_spread rows = vk_spread(v, m);
    const struct {
        uint64_t y, x, mix;
        uint32_t n, m;
    } push = {vk_address(&op->in[STREAMS_OUT_Y]), vk_address(&op->out[0]), vk_address(&op->in[STREAMS_OUT_MIX]),
              (uint32_t)n, (uint32_t)m};
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[STREAMS_OUT_Y]);
    vk_reads(&x, &op->in[STREAMS_OUT_MIX]);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(streams_out, GROUP, (uint32_t)n_stream, (uint32_t)(op->in[STREAMS_OUT_MIX].ne[0] / n_stream)),
           push, &x, vk_groups(n, GROUP), rows.y, rows.z, 2 * tensor_bytes(&op->out[0]));
}

void vk_op_streams_match(struct vk *v, const struct op *op)
{
    enum { MATCH_GROUP = 128 };
    int64_t n = op->in[STREAMS_MATCH_VALUE].ne[0], m = op->in[STREAMS_MATCH_KEY].ne[1];
    const struct vk_spread rows = vk_spread(v, m);
    const struct {
        uint64_t key, query, value, y;
        uint32_t n, m;
    } push = {vk_address(&op->in[STREAMS_MATCH_KEY]),
              vk_address(&op->in[STREAMS_MATCH_QUERY]),
              vk_address(&op->in[STREAMS_MATCH_VALUE]),
              vk_address(&op->out[0]),
              (uint32_t)n,
              (uint32_t)m};
    struct vk_touched x = {0};
    for (int i = STREAMS_MATCH_KEY; i <= STREAMS_MATCH_VALUE; i++)
        vk_reads(&x, &op->in[i]);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(streams_match, MATCH_GROUP), push, &x, (uint32_t)(op->in[STREAMS_MATCH_KEY].ne[0] / n), rows.y,
           rows.z, 2 * tensor_bytes(&op->in[STREAMS_MATCH_KEY]));
}

void vk_op_residuals(struct vk *v, const struct op *op)
{
    enum { RESIDUALS_GROUP = 128 };
    int64_t n = op->in[RESIDUALS_X].ne[0], m = op->in[RESIDUALS_X].ne[1];
    const struct vk_spread rows = vk_spread(v, m);
    const struct {
        uint64_t x, bank, w, y;
        uint32_t n, n_bank, n_banked, m;
        float eps;
        uint32_t unused;
    } push = {.x = vk_address(&op->in[RESIDUALS_X]),
              .bank = vk_address(&op->in[RESIDUALS_BANK]),
              .w = vk_address(&op->vec[0]),
              .y = vk_address(&op->out[0]),
              .n = (uint32_t)n,
              .n_bank = (uint32_t)(op->in[RESIDUALS_BANK].ne[0] / n),
              .n_banked = (uint32_t)op->residuals.n_banked,
              .m = (uint32_t)m,
              .eps = op->residuals.eps};
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[RESIDUALS_X]);
    vk_reads(&x, &op->in[RESIDUALS_BANK]);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(residuals, RESIDUALS_GROUP), push, &x, 1, rows.y, rows.z,
           2 * (op->residuals.n_banked + 1) * (int64_t)tensor_bytes(&op->in[RESIDUALS_X]));
}

void vk_op_compress(struct vk *v, const struct op *op)
{
    int64_t n = op->out[0].ne[0], m = op->in[COMPRESS_AT].ne[0];
    const struct vk_spread rows = vk_spread(v, m);
    const struct {
        uint64_t at, table, pages, bias, y;
        struct vk_paged x, gate;
        uint32_t n, width, ratio, m;
    } push = {.at = vk_address(&op->in[COMPRESS_AT]),
              .table = vk_address(&op->in[COMPRESS_TABLE]),
              .pages = vk_address(&op->in[COMPRESS_PAGES]),
              .bias = vk_address(&op->vec[0]),
              .y = vk_address(&op->out[0]),
              .x = vk_paged_push(&op->state[COMPRESS_X]),
              .gate = vk_paged_push(&op->state[op->state[COMPRESS_GATE].page.buffer ? COMPRESS_GATE : COMPRESS_X]),
              .n = (uint32_t)n,
              .width = (uint32_t)op->vec[0].ne[0],
              .ratio = (uint32_t)op->vec[0].ne[1],
              .m = (uint32_t)m};
    struct vk_touched x = {0};
    for (int i = COMPRESS_AT; i <= COMPRESS_PAGES; i++)
        vk_reads(&x, &op->in[i]);
    vk_state(&x, &op->state[COMPRESS_X], false);
    if (op->state[COMPRESS_GATE].page.buffer)
        vk_state(&x, &op->state[COMPRESS_GATE], false);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(compress, GROUP, op->state[COMPRESS_GATE].page.buffer != NULL), push, &x, vk_groups(n, GROUP),
           rows.y, rows.z, 3 * m * (int64_t)sizeof(float) * tensor_n_elem(&op->vec[0]));
}
