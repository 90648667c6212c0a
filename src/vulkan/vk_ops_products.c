/* Products of weights with activations. */
#include <assert.h>
#include <string.h>

#include "vulkan/vk_ops.h"

enum { GROUP = VK_PRODUCT_GROUP, ROWS = LAYOUT_R16_ROWS, MAX_MATRIX = 3 };

/* Rows of x are read four elements at a time, where they allow it. */
bool vk_by_four(uint64_t x, int64_t k)
{
    enum { UNIT = 32, ALIGN = 16 };
    return x % ALIGN == 0 && k % UNIT == 0;
}

/* The tile affects speed only. Up to MANY rows of activations share the weights that are read; where there are more, as
 * in prompts, a tile has eight rows, or four where elements are loaded one by one: drivers take long to compile shaders
 * with more. */
enum { MANY = 16 };

uint32_t vk_choose_tile(int64_t m, bool by_four)
{
    enum { PROMPT_TILE = 8, ODD_TILE = 4 };
    static const uint8_t tiles[] = {1, 2, 3, 4, 6, 8, 12, MANY};
    for (size_t i = 0; i < sizeof tiles; i++)
        if (m <= tiles[i] && (by_four || m <= ODD_TILE))
            return tiles[i];
    return by_four ? PROMPT_TILE : ODD_TILE;
}

uint32_t vk_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- norms ----------------------------------------------------------------------------------------------------- */

uint32_t vk_staged(int64_t k)
{
    enum { UNIT = 32 };
    return (uint32_t)((k + UNIT - 1) / UNIT * UNIT);
}

/* Whether a product has so many workgroups (as for logits) that an additional dispatch for the norm costs less than
 * norming the row in each of them. */
static bool is_wide(const struct op *op)
{
    enum { MANY_ROWS = 16384 };
    return op->kind == OP_MATMUL && op->weight[0]->n_row > MANY_ROWS;
}

/* How many of an operation's matrices have products on integers. */
static int count_integers(const struct vk *v, const struct op *op)
{
    int n = 0;
    for (int i = 0; i < OP_MAX_OUT && op->weight[i] && op->kind == OP_MATMUL; i++)
        n += vk_is_integer(v, op->weight[i]->type->type);
    return n;
}

static int count_matrices(const struct op *op)
{
    int n = 0;
    while (n < OP_MAX_OUT && op->weight[n])
        n++;
    return n;
}

/* Whether a workgroup of a MATMUL or ROUTE has room in shared memory for its normed input, a row. */
static bool vk_norm_fits(const struct vk *v, const struct op *op)
{
    enum { PARTS = 2, ROUTE_SUMS = GROUP + 4, WORDS = 64 };
    enum { SUMS = GROUP + PARTS * (4 * GROUP + ROWS) }; /* four of each thread, and the products */
    size_t k = vk_staged(op->in[0].ne[0]), n = SUMS, row_bytes = (k + k / 8) * sizeof(float);
    if (is_wide(op))
        return false;
    if (op->kind == OP_ROUTE)
        n += ROUTE_SUMS + 3 * (size_t)op->weight[0]->n_row + 2 * (size_t)op->out[ROUTE_IDS].ne[0] +
             (size_t)op->route.n_group;
    else if (count_integers(v, op) == count_matrices(op))
        row_bytes = vk_runs_bytes(op->in[0].ne[0]);
    return n * sizeof(float) + row_bytes + WORDS <= v->limits.shared_bytes;
}

/* After the first product has written the norm's result, other products of the same stage may still compute the norm
 * themselves, as nothing can have changed its input. */
const struct vk_norm *vk_norm_of(struct vk *v, const struct op *op)
{
    const struct vk_norm *n = &v->norm;
    bool is_valid = n->out.buffer && (n->is_pending || n->stage == v->queue.stage);
    for (int i = 0; i < OP_MAX_OUT; i++)
        is_valid = is_valid && !vk_overlap(&op->out[i], &n->x);
    if (is_valid && count_integers(v, op) > 0)
        is_valid = vk_by_four(vk_address(&n->x) | vk_address(&n->w), n->x.ne[0]);
    return is_valid && vk_is_same(&n->out, &op->in[0]) && vk_norm_fits(v, op) ? n : NULL;
}

uint64_t vk_touch_norm(struct vk_touched *touched, const struct vk_norm *norm, const struct tensor *x)
{
    vk_reads(touched, norm ? &norm->x : x);
    if (!norm || !norm->is_pending)
        return 0;
    vk_writes(touched, &norm->out);
    return vk_address(&norm->out);
}

void vk_norm_done(struct vk *v)
{
    if (v->norm.is_pending)
        v->norm.stage = v->queue.stage;
    v->norm.is_pending = false;
}

/* ---- MATMUL ---------------------------------------------------------------------------------------------------- */

/* What is done with products. As in shaders/matmul.glsl. */
enum vk_then { THEN_NOTHING, THEN_ADD, THEN_ACT_MUL };

struct matmul_push {
    uint64_t x, w[MAX_MATRIX], y[MAX_MATRIX], bias[MAX_MATRIX];
    uint32_t n_row[MAX_MATRIX], stride[MAX_MATRIX];
    uint32_t k, m;
    uint64_t norm_w, normed;
};

/* A dispatch that is being put together: up to MAX_MATRIX parts of matrices of one type. */
struct batch {
    struct matmul_push push;
    struct vk_touched touched;
    enum quant_type type;
    enum vk_then then;
    enum act_fn act; /* this and the next: of THEN_ACT_MUL */
    float act_limit, act_up_limit;
    int n;
};

/* Has the input of a batch rounded, and makes the batch read the result from memory. */
static bool round_input(struct vk *v, struct batch *b, const struct vk_rows *rows, const struct tensor *x)
{
    const struct vk_access from = vk_access_tensor(x, false);
    const struct buffer *runs = vk_round_rows(v, b->type, rows, &from);
    if (!runs)
        return false;
    b->push.x = vk_buffer_address(runs);
    vk_whole(&b->touched, runs, false);
    return true;
}

/* Workgroups of so many rows that the matrices take. */
static uint32_t groups_of(const struct batch *b, int64_t rows)
{
    uint32_t n = 0;
    for (int i = 0; i < (b->then == THEN_ACT_MUL ? 1 : b->n); i++)
        n += vk_groups(b->push.n_row[i], rows);
    return n;
}

static int64_t all_rows(const struct batch *b)
{
    int64_t n = 0;
    for (int i = 0; i < b->n; i++)
        n += b->push.n_row[i];
    return n;
}

void vk_set_matrix(const struct vk *v, struct vk_program *p)
{
    enum { FIRST = 12 };
    memcpy(p->constant + FIRST, v->limits.matrix, sizeof v->limits.matrix);
    p->n = FIRST + 3;
}

static void run_batch(struct vk *v, struct batch *b, const struct op *op)
{
    const struct tensor *x = &op->in[0];
    int64_t k = x->ne[0], m = x->ne[1];
    const struct vk_norm *norm = vk_norm_of(v, op);
    if (b->n == 0)
        return;
    b->push.k = (uint32_t)k;
    b->push.m = (uint32_t)m;
    b->push.x = vk_address(norm ? &norm->x : x);
    b->push.norm_w = norm ? vk_address(&norm->w) : 0;
    b->push.normed = vk_touch_norm(&b->touched, norm, x);
    bool by_four = vk_by_four(b->push.x | b->push.norm_w, k);
    const struct vk_rows rows = {b->push.x, k, m};
    enum vk_integers integers = vk_integers_of(v, b->type, norm, &rows, m == 1);
    if (integers == VK_RUNS_IN_MEMORY && !round_input(v, b, &rows, x))
        return;
    bool is_staged = norm || integers == VK_ROUNDS, is_four = by_four || integers == VK_RUNS_IN_MEMORY;
    bool is_tiled = m > MANY && is_four && vk_is_tiled(v, b->type);
    uint32_t tile = is_tiled ? VK_TILE : vk_choose_tile(m, is_four);
    uint32_t group = is_tiled ? VK_TILE_GROUP : b->then == THEN_ACT_MUL ? 2 * GROUP : GROUP;
    struct vk_program program = VK_PROGRAM(matmul, group, b->type, tile, is_staged ? vk_staged(k) : 0, by_four,
                                           integers, vk_float_bits(norm ? norm->eps : 0), b->then, b->act,
                                           vk_float_bits(b->act_limit), vk_float_bits(b->act_up_limit));
    if (is_tiled)
        program.shader = VK_SHADER_matmul_tile;
    if (is_tiled && integers == VK_RUNS_IN_MEMORY && vk_has_matrices(v, b->type)) {
        program.shader = VK_SHADER_matmul_matrix;
        vk_set_matrix(v, &program);
    }
    VK_RUN(v, program, b->push, &b->touched, groups_of(b, is_tiled ? VK_TILE_ROWS : ROWS), vk_groups(m, tile), 1,
           all_rows(b) * k * m);
    vk_norm_done(v);
    *b = (struct batch){0};
}

/* One matrix of a product. */
struct product {
    const struct weight *w;
    struct tensor y, bias; /* bias may be absent */
};

static void add_part(struct batch *b, const struct product *p, int64_t part)
{
    const struct weight *w = p->w;
    int64_t row0 = part * w->part_rows, n = w->n_row - row0 < w->part_rows ? w->n_row - row0 : w->part_rows;
    uint64_t bias = vk_address(&p->bias);
    b->type = w->type->type;
    b->push.w[b->n] = vk_piece_address(&w->parts[part]);
    b->push.y[b->n] = vk_address(&p->y) + (uint64_t)row0 * sizeof(float);
    b->push.bias[b->n] = bias ? bias + (uint64_t)row0 * sizeof(float) : 0;
    b->push.n_row[b->n] = (uint32_t)n;
    b->push.stride[b->n] = (uint32_t)w->n_row;
    b->n++;
    vk_writes(&b->touched, &p->y);
}

/* Adds what is done with the products to a batch that is complete. */
static void add_then(struct batch *b, const struct op *op, const struct op *then)
{
    enum { RESIDUAL = 2 };
    if (!then)
        return;
    b->then = then->kind == OP_ADD ? THEN_ADD : THEN_ACT_MUL;
    if (then->kind == OP_ACT_MUL) {
        b->act = then->act;
        b->act_limit = then->act_limit;
        b->act_up_limit = then->act_up_limit;
        return;
    }
    const struct tensor *residual = vk_other_term(then, &op->out[0]);
    b->push.bias[RESIDUAL] = vk_address(residual);
    b->push.y[RESIDUAL] = vk_address(&then->out[0]);
    vk_reads(&b->touched, residual);
    vk_writes(&b->touched, &then->out[0]);
}

/* An ACT_MUL in `then` is computed with the first two matrices, which have one part each. */
void vk_matmul(struct vk *v, const struct op *op, const struct op *then)
{
    struct batch b = {0};
    for (int i = 0; i < OP_MAX_OUT && op->weight[i]; i++)
        for (int64_t part = 0; part < op->weight[i]->n_part; part++) {
            bool ends = b.n == MAX_MATRIX || (b.n && b.type != op->weight[i]->type->type);
            if (ends || (then && then->kind == OP_ACT_MUL && i == 2)) {
                add_then(&b, op, then);
                then = NULL;
                run_batch(v, &b, op);
            }
            add_part(&b, &(struct product){op->weight[i], op->out[i], op->vec[i]}, part);
        }
    add_then(&b, op, then);
    run_batch(v, &b, op);
}

void vk_scratch_matmul(struct vk *v, const struct op *op)
{
    const struct vk_rows rows = {vk_address(&op->in[0]), op->in[0].ne[0], op->in[0].ne[1]};
    for (int i = 0; i < OP_MAX_OUT && op->weight[i]; i++)
        vk_scratch_runs(v, op->weight[i]->type->type, &rows, rows.m == 1);
}

/* ---- HEADS ----------------------------------------------------------------------------------------------------- */

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
    bool by_four = vk_by_four(push.x, op->heads.n_in) && op->heads.in_dim % 4 == 0 && op->heads.in_off % 4 == 0;
    uint32_t tile = vk_choose_tile(m, by_four);
    VK_RUN(v, VK_PROGRAM(heads, GROUP, w->type->type, tile, 0, by_four, VK_FLOATS), push, &x,
           vk_groups(op->heads.n_out, ROWS), vk_groups(m, tile), (uint32_t)op->heads.n_head, w->n_row * w->k * m);
}
