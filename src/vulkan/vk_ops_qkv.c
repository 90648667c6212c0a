/* RMS_NORM and ROPE of heads, and KV_STORE: what attention needs of q, k and v. */
#include "vulkan/vk_ops.h"

enum { GROUP = 128, Q = 0, K = 1, V = 2 };

bool vk_head_fits(const struct vk *v, int64_t dim)
{
    enum { SUMS = GROUP };
    return (size_t)(dim + SUMS) * sizeof(float) <= v->limits.shared_bytes;
}

struct qkv_push {
    uint64_t x[3], norm_w[2], cs[2], pos, table, pages;
    struct vk_paged k, v;
};

/* What a shader's constants say of the heads. */
struct qkv_constants {
    uint32_t n_head[3], dim, n_pair, first, is_neox;
    uint32_t is_normed, is_rotated; /* bits, of q and of k */
    float eps;
};

static void add_heads(struct qkv_push *push, struct qkv_constants *c, struct vk_touched *touched,
                      const struct vk_heads *h, int which)
{
    push->x[which] = vk_address(&h->x);
    if (!h->x.buffer)
        return;
    c->dim = (uint32_t)h->dim;
    c->n_head[which] = (uint32_t)(h->x.ne[0] / h->dim);
    if (h->norm) {
        push->norm_w[which] = vk_address(&h->norm->vec[NORM_W]);
        c->is_normed |= 1u << which;
        c->eps = h->norm->norm.eps;
    }
    if (h->rope) {
        push->cs[which] = vk_address(&h->rope->in[ROPE_COS_SIN]);
        vk_reads(touched, &h->rope->in[ROPE_COS_SIN]);
        c->is_rotated |= 1u << which;
        c->n_pair = (uint32_t)(h->rope->rope.n_rot / 2);
        c->first = (uint32_t)h->rope->rope.off;
        c->is_neox = h->rope->rope.mode == ROPE_NEOX;
    }
    if (h->norm || h->rope)
        vk_writes(touched, &h->x);
    else
        vk_reads(touched, &h->x);
}

static void add_store(struct qkv_push *push, struct vk_touched *touched, const struct op *store)
{
    push->pos = vk_address(&store->in[KV_STORE_POS]);
    push->table = vk_address(&store->in[KV_STORE_TABLE]);
    push->pages = vk_address(&store->in[KV_STORE_PAGES]);
    for (int i = KV_STORE_POS; i <= KV_STORE_PAGES; i++)
        vk_reads(touched, &store->in[i]);
    vk_state(touched, &store->state[0], true);
}

void vk_qkv(struct vk *v, const struct vk_qkv *x)
{
    const struct op *store_v = x->store_v;
    uint32_t cache[2] = {0}, dim_v = 1, m = (uint32_t)(x->q.x.buffer ? x->q.x : x->k.x).ne[1];
    struct qkv_push push = {0};
    struct qkv_constants c = {0};
    struct vk_touched touched = {0};
    add_heads(&push, &c, &touched, &x->q, Q);
    add_heads(&push, &c, &touched, &x->k, K);
    if (x->store_k) {
        add_store(&push, &touched, x->store_k);
        push.k = vk_paged_push(&x->store_k->state[0]);
        cache[0] = x->store_k->state[0].page.type;
    }
    if (store_v) {
        add_store(&push, &touched, store_v);
        push.v = vk_paged_push(&store_v->state[0]);
        push.x[V] = vk_address(&store_v->in[KV_STORE_X]);
        vk_reads(&touched, &store_v->in[KV_STORE_X]);
        cache[1] = store_v->state[0].page.type;
        dim_v = (uint32_t)store_v->state[0].page.ne[0];
        c.n_head[V] = (uint32_t)store_v->state[0].page.ne[2];
    }
    uint32_t n_head = c.n_head[Q] + c.n_head[K] + c.n_head[V];
    if (m)
        VK_RUN(v,
               VK_PROGRAM(qkv, GROUP, c.n_head[Q], c.n_head[K], c.n_head[V], c.dim, dim_v, c.n_pair, c.is_neox,
                          c.is_normed, c.is_rotated, cache[0], cache[1], vk_float_bits(c.eps), c.first),
               push, &touched, n_head, m, 1, (size_t)m * n_head * c.dim * sizeof(float));
}
