/* Operations that take rows, or numbers, by themselves. */
#include "vulkan/vk_ops.h"

enum { GROUP = 64 };

void vk_op_embed(struct vk *v, const struct op *op)
{
    const struct weight *w = op->weight[0];
    const struct {
        uint64_t ids, parts, out;
        uint32_t k, part_rows;
        float scale;
        uint32_t m;
    } push = {vk_address(&op->in[0]),   vk_piece_address(&w->table->piece),
              vk_address(&op->out[0]),  (uint32_t)w->k,
              (uint32_t)w->part_rows,   op->scale,
              (uint32_t)op->in[0].ne[0]};
    const struct vk_spread rows = vk_spread(v, push.m);
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[0]);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(embed, GROUP, w->type->type), push, &x, vk_groups(w->k, 4 * GROUP), rows.y, rows.z,
           tensor_bytes(&op->out[0]));
}

bool vk_norm_is_shared(const struct op *norm)
{
    return !norm->vec[NORM_W].buffer || norm->vec[NORM_W].ne[0] == norm->norm.n;
}

void vk_rms_norm(struct vk *v, const struct op *op, const struct op *gate)
{
    enum { NORM_GROUP = 128 };
    static const struct tensor none;
    const struct tensor *g = gate ? &gate->in[ACT_MUL_GATE] : &none;
    int64_t n = op->norm.n, m = op->in[0].ne[1] * op->in[0].ne[2];
    const struct vk_spread rows = vk_spread(v, m);
    const struct {
        uint64_t x, w, bias, gate, y;
        uint32_t n;
        float eps;
        uint32_t m, w_step;
    } push = {vk_address(&op->in[0]),
              vk_address(&op->vec[NORM_W]),
              vk_address(&op->vec[NORM_BIAS]),
              vk_address(g),
              vk_address(&op->out[0]),
              (uint32_t)n,
              op->norm.eps,
              (uint32_t)m,
              (uint32_t)(vk_norm_is_shared(op) ? 0 : n)};
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[0]);
    vk_reads(&x, g);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(rms_norm, NORM_GROUP, gate ? gate->act : 0), push, &x, (uint32_t)(op->in[0].ne[0] / n), rows.y,
           rows.z, tensor_bytes(&op->out[0]));
}

/* As in shaders/elements.comp. */
enum vk_elements { ELEMENTS_ADD, ELEMENTS_ACT_MUL, ELEMENTS_SCALE, ELEMENTS_SOFTCAP, ELEMENTS_CLAMP };

static void elements(struct vk *v, const struct op *op, enum vk_elements kind, uint32_t act, const struct tensor *b,
                     float scale)
{
    int64_t n = tensor_n_elem(&op->out[0]), n_group = vk_groups(n, GROUP);
    uint32_t wide = (uint32_t)(n_group < v->limits.n_workgroup_x ? n_group : v->limits.n_workgroup_x);
    const struct {
        uint64_t a, b, y;
        uint32_t n, n_each;
        float scale, up_limit;
    } push = {vk_address(&op->in[0]),
              vk_address(b),
              vk_address(&op->out[0]),
              (uint32_t)n,
              (uint32_t)(op->out[0].ne[0] / op->in[0].ne[0]),
              scale,
              kind == ELEMENTS_ACT_MUL ? op->act_up_limit : 0};
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[0]);
    vk_reads(&x, b);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(elements, GROUP, kind, act), push, &x, wide, vk_groups(n_group, wide), 1, 4 * n);
}

void vk_op_add(struct vk *v, const struct op *op)
{
    elements(v, op, ELEMENTS_ADD, 0, &op->in[1], 0);
}

void vk_op_act_mul(struct vk *v, const struct op *op)
{
    elements(v, op, ELEMENTS_ACT_MUL, op->act, &op->in[ACT_MUL_UP], op->act_limit);
}

void vk_op_scale(struct vk *v, const struct op *op)
{
    elements(v, op, ELEMENTS_SCALE, 0, &op->vec[0], op->scale);
}

void vk_op_softcap(struct vk *v, const struct op *op)
{
    elements(v, op, ELEMENTS_SOFTCAP, 0, &op->vec[0], op->scale);
}

void vk_op_clamp(struct vk *v, const struct op *op)
{
    elements(v, op, ELEMENTS_CLAMP, 0, &op->vec[0], op->scale);
}

/* SLICE and SCATTER: out[to[t]] = n elements of x[from[t]] from `first` on. */
static void copy_rows(struct vk *v, const struct op *op, const struct tensor *from, const struct tensor *to, int64_t n,
                      int64_t m, int64_t first)
{
    const struct {
        uint64_t x, y, from, to;
        uint32_t n, stride, first, out_stride, m, unused;
    } push = {.x = vk_address(&op->in[0]),
              .y = vk_address(&op->out[0]),
              .from = vk_address(from),
              .to = vk_address(to),
              .n = (uint32_t)n,
              .stride = (uint32_t)op->in[0].ne[0],
              .first = (uint32_t)first,
              .out_stride = (uint32_t)op->out[0].ne[0],
              .m = (uint32_t)m};
    const struct vk_spread spread = vk_spread(v, m);
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[0]);
    vk_reads(&x, from);
    vk_reads(&x, to);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(rows, GROUP), push, &x, vk_groups(n, GROUP), spread.y, spread.z, 4 * n * m);
}

void vk_op_slice(struct vk *v, const struct op *op)
{
    static const struct tensor none;
    copy_rows(v, op, &op->in[SLICE_ROWS], &none, op->out[0].ne[0], op->out[0].ne[1], op->slice_off);
}

void vk_op_scatter(struct vk *v, const struct op *op)
{
    static const struct tensor none;
    copy_rows(v, op, &none, &op->in[SCATTER_ROWS], op->in[SCATTER_X].ne[0], op->in[SCATTER_X].ne[1], 0);
}

void vk_combine(struct vk *v, const struct op *op, const struct op *add)
{
    static const struct tensor none;
    const struct tensor *residual = add ? vk_other_term(add, &op->out[0]) : &none, *total = add ? &add->out[0] : &none;
    int64_t n = op->out[0].ne[0], m = op->out[0].ne[1];
    const struct {
        uint64_t y, weights, shared, shared_gate, out, residual, total;
        uint32_t n, k, m, unused;
    } push = {.y = vk_address(&op->in[COMBINE_Y]),
              .weights = vk_address(&op->in[COMBINE_WEIGHTS]),
              .shared = vk_address(&op->in[COMBINE_SHARED]),
              .shared_gate = vk_address(&op->in[COMBINE_SHARED_GATE]),
              .out = vk_address(&op->out[0]),
              .residual = vk_address(residual),
              .total = vk_address(total),
              .n = (uint32_t)n,
              .k = (uint32_t)op->in[COMBINE_Y].ne[1],
              .m = (uint32_t)m};
    const struct vk_spread rows = vk_spread(v, m);
    struct vk_touched x = {0};
    for (int i = COMBINE_Y; i <= COMBINE_SHARED_GATE; i++)
        vk_reads(&x, &op->in[i]);
    vk_reads(&x, residual);
    vk_writes(&x, &op->out[0]);
    vk_writes(&x, total);
    VK_RUN(v, VK_PROGRAM(combine, GROUP), push, &x, vk_groups(n, GROUP), rows.y, rows.z,
           tensor_bytes(&op->in[COMBINE_Y]));
}
