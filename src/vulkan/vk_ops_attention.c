/* KV_STORE and ATTENTION. */
#include "vulkan/vk_ops.h"

enum { GROUP = 64 };

void vk_op_kv_store(struct vk *v, const struct op *op)
{
    enum { Q8_LEN = 32 };
    const struct tensor *cache = &op->state[0].page;
    int64_t dim = cache->ne[0], n_head = cache->ne[2], m = op->in[0].ne[1];
    int64_t len = cache->type == ELEM_Q8_0 ? Q8_LEN : cache->type == ELEM_F16 ? 2 : 1, n_piece = (dim + len - 1) / len;
    const struct {
        uint64_t x, pos, table, pages;
        struct vk_paged cache;
        uint32_t dim, n_head, n_piece, unused;
    } push = {vk_address(&op->in[0]),
              vk_address(&op->in[1]),
              vk_address(&op->in[2]),
              vk_address(&op->in[3]),
              vk_paged_push(&op->state[0]),
              (uint32_t)dim,
              (uint32_t)n_head,
              (uint32_t)n_piece,
              0};
    struct vk_touched x = {0};
    for (int i = 0; i < 4; i++)
        vk_reads(&x, &op->in[i]);
    vk_state(&x, &op->state[0], true);
    if (m)
        VK_RUN(v, VK_PROGRAM(kv_store, GROUP, cache->type), push, &x, vk_groups(n_head * n_piece, GROUP), (uint32_t)m,
               1, tensor_bytes(&op->in[0]));
}

/* How many query heads share a workgroup: as its memory and its threads' registers have room for. */
static uint32_t choose_heads(const struct vk *v, const struct op *op)
{
    enum { MOST = 8, MAX_VALUES = 32, KEPT_BYTES = 256 };
    int64_t dk = op->state[0].page.ne[0], columns = vk_groups(op->state[1].page.ne[0], ATTENTION_BLOCK);
    int64_t n = op->attention.n_head / op->state[0].page.ne[2];
    n = n < MOST ? n : MOST;
    while (n > 1 && n * columns > MAX_VALUES)
        n--;
    while (n > 0 && (size_t)(n * (dk + ATTENTION_BLOCK)) * sizeof(float) + KEPT_BYTES > v->limits.shared_bytes)
        n--;
    return (uint32_t)n;
}

bool vk_attention_fits(const struct vk *v, const struct op *op)
{
    return choose_heads(v, op) > 0;
}

/* How ATTENTION is cut: heads of a workgroup, and the spans of a token that are workgroups of their own (0: none). */
struct cut {
    uint32_t heads, n_share; /* workgroups that share a KV head's query heads */
    uint32_t n_span;
    struct buffer *spans;
};

/* Single tokens of a few texts have few workgroups; then each span is one. There are as many as texts' pages may be. */
static struct cut make_cut(struct vk *v, const struct op *op)
{
    enum { FEW = 128, MAX_BYTES = 64 << 20 };
    int64_t n_kv = op->state[0].page.ne[2], m = op->in[0].ne[1], n_head = op->attention.n_head;
    struct cut c = {.heads = choose_heads(v, op)};
    c.n_share = vk_groups(n_head / n_kv, c.heads);
    int64_t n_span = op->in[3].ne[0] * ATTENTION_BLOCK / ATTENTION_SPAN + 2;
    size_t n_bytes = (size_t)(m * n_head * n_span * (op->state[1].page.ne[0] + 2)) * sizeof(float);
    if (m * n_kv * c.n_share >= FEW || n_bytes > MAX_BYTES || n_span > v->limits.n_workgroup_z)
        return c;
    c.n_span = (uint32_t)n_span;
    c.spans = vk_scratch(v, VK_SCRATCH_SPANS, n_bytes);
    return c;
}

static void fold_spans(struct vk *v, const struct op *op, const struct cut *c)
{
    const struct {
        uint64_t spans, pos, out, sinks;
        uint32_t n_head, dv, window, is_chunked, n_span, unused;
    } push = {vk_buffer_address(c->spans),
              vk_address(&op->in[1]),
              vk_address(&op->out[0]),
              vk_address(&op->vec[0]),
              (uint32_t)op->attention.n_head,
              (uint32_t)op->state[1].page.ne[0],
              (uint32_t)op->attention.window,
              op->attention.chunked,
              c->n_span,
              0};
    struct vk_touched x = {0};
    vk_whole(&x, c->spans, false);
    vk_reads(&x, &op->in[1]);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(spans, GROUP), push, &x, push.n_head, (uint32_t)op->in[0].ne[1], 1, tensor_bytes(&op->out[0]));
}

/* Multiply-adds of a token at most, as nobody here knows its position: with all pages that are listed. */
static int64_t token_work(const struct op *op)
{
    int64_t n_seen = op->in[3].ne[0] * ATTENTION_BLOCK, window = op->attention.window;
    n_seen = window && window < n_seen ? window : n_seen;
    return op->attention.n_head * (op->state[0].page.ne[0] + op->state[1].page.ne[0]) * n_seen;
}

/* Some of an operation's tokens. */
static void attend(struct vk *v, const struct op *op)
{
    const struct tensor *k = &op->state[0].page, *value = &op->state[1].page;
    int64_t n_head = op->attention.n_head, m = op->in[0].ne[1];
    const struct cut c = make_cut(v, op);
    if (c.n_span && !c.spans)
        return;
    const struct {
        uint64_t q, pos, table, pages, out, sinks;
        struct vk_paged k, v;
        uint32_t n_head, n_group, dv, window, is_chunked, n_share;
        float scale;
        uint32_t unused;
    } push = {.q = vk_address(&op->in[0]),
              .pos = vk_address(&op->in[1]),
              .table = vk_address(&op->in[2]),
              .pages = vk_address(&op->in[3]),
              .out = c.n_span ? vk_buffer_address(c.spans) : vk_address(&op->out[0]),
              .sinks = vk_address(&op->vec[0]),
              .k = vk_paged_push(&op->state[0]),
              .v = vk_paged_push(&op->state[1]),
              .n_head = (uint32_t)n_head,
              .n_group = (uint32_t)(n_head / k->ne[2]),
              .dv = (uint32_t)value->ne[0],
              .window = (uint32_t)op->attention.window,
              .is_chunked = op->attention.chunked,
              .n_share = c.n_share,
              .scale = op->attention.scale};
    struct vk_touched x = {0};
    for (int i = 0; i < 4; i++)
        vk_reads(&x, &op->in[i]);
    vk_state(&x, &op->state[0], false);
    vk_state(&x, &op->state[1], false);
    if (c.n_span)
        vk_whole(&x, c.spans, true);
    else
        vk_writes(&x, &op->out[0]);
    VK_RUN(v,
           VK_PROGRAM(attention, GROUP, k->type, c.heads, vk_groups(value->ne[0], ATTENTION_BLOCK), (uint32_t)k->ne[0],
                      c.n_span > 0),
           push, &x, (uint32_t)k->ne[2] * c.n_share, (uint32_t)m, c.n_span ? c.n_span : 1, m * token_work(op));
    if (c.n_span)
        fold_spans(v, op, &c);
}

static struct tensor list_part(struct tensor t, int64_t first, int64_t n)
{
    t.off_bytes += (size_t)first * sizeof(int32_t);
    t.ne[0] = n;
    return t;
}

/* Many tokens of a long text would take a dispatch longer than drivers wait for one. */
void vk_op_attention(struct vk *v, const struct op *op)
{
    int64_t m = op->in[0].ne[1], most = VK_MAX_WORK / token_work(op) + 1;
    for (int64_t t = 0; t < m; t += most) {
        int64_t n = m - t < most ? m - t : most;
        struct op part = *op;
        part.in[0] = tensor_rows(op->in[0], t, n);
        part.in[1] = list_part(op->in[1], t, n);
        part.in[2] = list_part(op->in[2], t, n);
        part.out[0] = tensor_rows(op->out[0], t, n);
        attend(v, &part);
    }
}
