/* CONV, DELTA and SSM. */
#include "vulkan/vk_ops.h"

enum { GROUP = 64 };

void vk_op_conv(struct vk *v, const struct op *op)
{
    int64_t n = op->in[CONV_X].ne[0], m = op->in[CONV_X].ne[1];
    const struct {
        uint64_t x, from, to, y, taps, bias;
        struct vk_paged state;
        uint32_t n, m;
    } push = {vk_address(&op->in[CONV_X]),
              vk_address(&op->in[CONV_FROM]),
              vk_address(&op->in[CONV_TO]),
              vk_address(&op->out[0]),
              vk_address(&op->vec[CONV_TAPS]),
              vk_address(&op->vec[CONV_BIAS]),
              vk_paged_push(&op->state[0]),
              (uint32_t)n,
              (uint32_t)m};
    struct vk_touched x = {0};
    for (int i = CONV_X; i <= CONV_TO; i++)
        vk_reads(&x, &op->in[i]);
    vk_writes(&x, &op->out[0]);
    vk_state(&x, &op->state[0], true);
    VK_RUN(v, VK_PROGRAM(conv, GROUP, (uint32_t)op->vec[CONV_TAPS].ne[1], op->conv.has_silu), push, &x,
           vk_groups(n, GROUP), 1, 1, n * m * op->vec[CONV_TAPS].ne[1]);
}

/* SSM with q and k apart. */
static bool is_selective(const struct op *op)
{
    return op->kind == OP_SSM && op->in[SSM_QK].buffer;
}

/* Decays of a head that are kept: one, or one for each key dimension. */
static uint32_t count_decays(const struct op *op)
{
    return is_selective(op) || !op->in[DELTA_ALPHA].buffer
               ? 1
               : (uint32_t)(op->in[DELTA_ALPHA].ne[0] / op->state[0].page.ne[2]);
}

/* Value dimensions of a workgroup: as many as its memory has room for the state of. 0: not even one. */
static uint32_t choose_dims(const struct vk *v, const struct op *op)
{
    enum { MOST = 16 };
    size_t dk = (size_t)op->state[0].page.ne[0], fixed = (2 * dk + 2 * GROUP + count_decays(op)) * sizeof(float);
    uint32_t n = MOST;
    while (n && n * dk * sizeof(float) + fixed > v->limits.shared_bytes)
        n /= 2;
    return n;
}

bool vk_delta_fits(const struct vk *v, const struct op *op)
{
    return choose_dims(v, op) > 0;
}

void vk_op_delta(struct vk *v, const struct op *op)
{
    const int64_t *ne = op->state[0].page.ne;
    int64_t m = op->in[DELTA_QKV].ne[1];
    uint32_t dims = choose_dims(v, op);
    bool is_space = op->kind == OP_SSM;
    const struct {
        uint64_t x, qk, alpha, beta, from, to, y, dt, a;
        struct vk_paged state;
        uint32_t n_head_k, n_head_v, dv, is_grouped, m;
        float eps, min_log_decay;
    } push = {.x = vk_address(&op->in[DELTA_QKV]),
              .qk = vk_address(&op->in[is_selective(op) ? SSM_QK : DELTA_QKV]),
              .alpha = vk_address(&op->in[DELTA_ALPHA]),
              .beta = vk_address(is_space ? &op->vec[SSM_SKIP] : &op->in[DELTA_BETA]),
              .from = vk_address(&op->in[DELTA_FROM]),
              .to = vk_address(&op->in[DELTA_TO]),
              .y = vk_address(&op->out[0]),
              .dt = vk_address(&op->vec[DELTA_DT]),
              .a = vk_address(&op->vec[DELTA_A]),
              .state = vk_paged_push(&op->state[0]),
              .n_head_k = (uint32_t)op->delta.n_head_k,
              .n_head_v = (uint32_t)ne[2],
              .dv = (uint32_t)ne[1],
              .is_grouped = op->delta.grouped,
              .m = (uint32_t)m,
              .eps = op->delta.eps,
              .min_log_decay = op->delta.min_log_decay};
    struct vk_touched x = {0};
    for (int i = DELTA_QKV; i <= DELTA_TO; i++)
        vk_reads(&x, &op->in[i]);
    vk_writes(&x, &op->out[0]);
    vk_state(&x, &op->state[0], true);
    vk_whole(&x, v->work.buffer, true);
    const struct vk_unit state = {.kind = op->kind, .n_bytes = 2 * tensor_bytes(&op->state[0].page)};
    VK_RUN(v,
           VK_PROGRAM(delta, GROUP, (uint32_t)ne[0], dims, vk_counter(v, &state), is_space, count_decays(op),
                      is_selective(op), op->in[DELTA_ALPHA].buffer == NULL),
           push, &x, vk_groups(ne[1], dims), (uint32_t)ne[2], 1, 3 * ne[0] * ne[1] * ne[2] * m);
}
