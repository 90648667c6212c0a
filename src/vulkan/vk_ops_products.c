/* Products of weights with activations. */
#include <assert.h>

#include "vulkan/vk_ops.h"

enum { GROUP = 128, ROWS = LAYOUT_R16_ROWS, MAX_MATRIX = 3 };

/* Rows of activations that a workgroup multiplies. It decides how fast a product is and not what it is. */
static uint32_t choose_tile(int64_t m)
{
    return m == 1 ? 1 : m == 2 ? 2 : m <= 4 ? 4 : 8;
}

struct matmul_push {
    uint64_t x, w[MAX_MATRIX], y[MAX_MATRIX], bias[MAX_MATRIX];
    uint32_t n_row[MAX_MATRIX], stride[MAX_MATRIX];
    uint32_t k, m;
    uint64_t residual, total;
};

/* A dispatch that is being put together: up to MAX_MATRIX parts of matrices of one type. */
struct batch {
    struct matmul_push push;
    struct vk_touched touched;
    enum quant_type type;
    int n;
    int64_t n_group;
};

static void run_batch(struct vk *v, struct batch *b, const struct tensor *x)
{
    uint32_t tile = choose_tile(x->ne[1]);
    if (b->n == 0)
        return;
    vk_reads(&b->touched, x);
    VK_RUN(v, VK_PROGRAM(matmul, GROUP, b->type, tile), b->push, &b->touched, (uint32_t)b->n_group,
           vk_groups(x->ne[1], tile), 1, b->n_group * ROWS * x->ne[0] * x->ne[1]);
    *b = (struct batch){.push = {.x = b->push.x, .k = b->push.k, .m = b->push.m}};
}

static void add_part(struct batch *b, const struct vk_product *p, int64_t part)
{
    const struct weight *w = p->w;
    int64_t row0 = part * w->part_rows, n = w->n_row - row0 < w->part_rows ? w->n_row - row0 : w->part_rows;
    uint64_t y = p->to ? vk_buffer_address(p->to) : vk_address(&p->y), bias = vk_address(&p->bias);
    b->type = w->type->type;
    b->push.w[b->n] = vk_piece_address(&w->parts[part]);
    b->push.y[b->n] = y + (uint64_t)row0 * sizeof(float);
    b->push.bias[b->n] = bias ? bias + (uint64_t)row0 * sizeof(float) : 0;
    b->push.n_row[b->n] = (uint32_t)n;
    b->push.stride[b->n] = (uint32_t)w->n_row;
    b->n_group += (n + ROWS - 1) / ROWS;
    b->n++;
    if (p->to)
        vk_whole(&b->touched, p->to, true);
    else
        vk_writes(&b->touched, &p->y);
}

void vk_multiply(struct vk *v, const struct tensor *x, const struct vk_product *products, int n)
{
    struct batch b = {.push = {.x = vk_address(x), .k = (uint32_t)x->ne[0], .m = (uint32_t)x->ne[1]}};
    for (int i = 0; i < n; i++)
        for (int64_t part = 0; part < products[i].w->n_part; part++) {
            if (b.n == MAX_MATRIX || (b.n && b.type != products[i].w->type->type))
                run_batch(v, &b, x);
            add_part(&b, &products[i], part);
        }
    run_batch(v, &b, x);
}

void vk_op_matmul(struct vk *v, const struct op *op)
{
    struct vk_product products[OP_MAX_OUT];
    int n = 0;
    for (int i = 0; i < OP_MAX_OUT && op->weight[i]; i++)
        products[n++] = (struct vk_product){.w = op->weight[i], .y = op->out[i], .bias = op->vec[i]};
    vk_multiply(v, &op->in[0], products, n);
}

void vk_matmul_add(struct vk *v, const struct op *op, const struct vk_sum *sum)
{
    const struct tensor *x = &op->in[0];
    struct batch b = {.push = {.x = vk_address(x),
                               .k = (uint32_t)x->ne[0],
                               .m = (uint32_t)x->ne[1],
                               .residual = vk_address(&sum->residual),
                               .total = vk_address(&sum->total)}};
    vk_reads(&b.touched, &sum->residual);
    vk_writes(&b.touched, &sum->total);
    add_part(&b, &(struct vk_product){.w = op->weight[0], .y = op->out[0], .bias = op->vec[0]}, 0);
    run_batch(v, &b, x);
}

static void copy_heads(struct vk *v, const struct op *op)
{
    enum { COPY_GROUP = 64 };
    const struct {
        uint64_t x, y;
        uint32_t in_dim, in_off, out_dim, out_off, n, n_head;
    } push = {vk_address(&op->in[0]),     vk_address(&op->out[0]),     (uint32_t)op->heads.in_dim,
              (uint32_t)op->heads.in_off, (uint32_t)op->heads.out_dim, (uint32_t)op->heads.out_off,
              (uint32_t)op->heads.n_out,  (uint32_t)op->heads.n_head};
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[0]);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(heads_copy, COPY_GROUP), push, &x, vk_groups(op->heads.n_out, COPY_GROUP),
           (uint32_t)op->heads.n_head, (uint32_t)op->in[0].ne[1], tensor_bytes(&op->in[0]));
}

void vk_op_heads(struct vk *v, const struct op *op)
{
    const struct weight *w = op->weight[0];
    int64_t m = op->in[0].ne[1];
    uint32_t tile = choose_tile(m);
    if (!w) {
        copy_heads(v, op);
        return;
    }
    assert(w->n_part == 1);
    const struct {
        uint64_t x, w, y;
        uint32_t in_dim, in_off, n_in, out_dim, out_off, n_out, n_head, m;
    } push = {vk_address(&op->in[0]),
              vk_piece_address(&w->parts[0]),
              vk_address(&op->out[0]),
              (uint32_t)op->heads.in_dim,
              (uint32_t)op->heads.in_off,
              (uint32_t)op->heads.n_in,
              (uint32_t)op->heads.out_dim,
              (uint32_t)op->heads.out_off,
              (uint32_t)op->heads.n_out,
              (uint32_t)op->heads.n_head,
              (uint32_t)m};
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[0]);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(heads, GROUP, w->type->type, tile), push, &x, vk_groups(op->heads.n_out, ROWS),
           vk_groups(m, tile), (uint32_t)op->heads.n_head, w->n_row * w->k * m);
}
