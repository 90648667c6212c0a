/* ROUTE and EXPERTS. */
#include "vulkan/vk_ops.h"

enum { GROUP = 64, PRODUCT_GROUP = 128, SORT_GROUP = 128, ROWS = LAYOUT_R16_ROWS };

void vk_op_route(struct vk *v, const struct op *op)
{
    const struct weight *w = op->weight[0];
    int64_t m = op->in[0].ne[1];
    struct buffer *logits = vk_scratch(v, VK_SCRATCH_LOGITS, (size_t)(m * w->n_row) * sizeof(float));
    if (!logits)
        return;
    vk_multiply(v, &op->in[0], &(struct vk_product){.w = w, .bias = op->vec[0], .to = logits}, 1);
    const struct {
        uint64_t logits, bias, expert_scale, ids, weights, scores;
        uint32_t k, score, is_normed, n_group, n_group_used;
        float scale;
    } push = {vk_buffer_address(logits),        vk_address(&op->vec[1]),
              vk_address(&op->vec[2]),          vk_address(&op->out[0]),
              vk_address(&op->out[1]),          vk_address(&op->out[2]),
              (uint32_t)op->out[0].ne[0],       op->route.score,
              op->route.norm_weights,           (uint32_t)op->route.n_group,
              (uint32_t)op->route.n_group_used, op->route.scale};
    struct vk_touched x = {0};
    vk_whole(&x, logits, false);
    for (int i = 0; i < 3; i++)
        vk_writes(&x, &op->out[i]);
    VK_RUN(v, VK_PROGRAM(route, GROUP, (uint32_t)w->n_row), push, &x, 1, (uint32_t)m, 1, 4 * m * w->n_row);
}

/* As in shaders/experts.comp. */
enum vk_expert_step { STEP_GATE_UP, STEP_GATE, STEP_UP, STEP_DOWN };

struct expert_push {
    uint64_t x, ids, slots, addresses, sorted, counters, weights, bias[2], y;
    uint32_t off[2], k, n_row, n_used, n_all;
};

/* An EXPERTS operation. */
struct experts {
    struct vk *v;
    const struct op *op;
    struct buffer *hidden;  /* [n_ff] for each pair */
    struct buffer *sorted;  /* NULL: direct */
    int64_t n_pair, n_used; /* pairs of a token and an expert; experts of a token */
    uint32_t tile, n_tile;  /* pairs of a tile at most; tiles, or pairs, that there may be */
};

/* What a step reads and writes. */
static struct vk_touched touched(const struct experts *x, enum vk_expert_step step)
{
    struct vk_touched t = {0};
    for (int i = 1; i < 4; i++)
        vk_reads(&t, &x->op->in[i]);
    if (step != STEP_DOWN)
        vk_reads(&t, &x->op->in[0]);
    vk_whole(&t, x->hidden, step != STEP_DOWN);
    if (x->sorted)
        vk_whole(&t, x->sorted, false);
    if (step == STEP_DOWN) {
        vk_writes(&t, &x->op->out[0]);
        vk_whole(&t, x->v->expert_counters, true);
    }
    return t;
}

static void run_step(const struct experts *x, enum vk_expert_step step)
{
    const struct op *op = x->op;
    const struct slot_pool *s = op->slot_pool;
    bool is_down = step == STEP_DOWN;
    int first = is_down ? EXPERT_DOWN : step == STEP_UP ? EXPERT_UP : EXPERT_GATE;
    int64_t n_row = is_down ? s->d.n_embd : s->d.n_ff, k = is_down ? s->d.n_ff : s->d.n_embd;
    struct expert_push push = {
        .x = is_down ? vk_buffer_address(x->hidden) : vk_address(&op->in[0]),
        .ids = vk_address(&op->in[1]),
        .slots = vk_address(&op->in[2]),
        .addresses = vk_piece_address(&s->table->piece),
        .sorted = x->sorted ? vk_buffer_address(x->sorted) : 0,
        .counters = vk_buffer_address(x->v->expert_counters),
        .weights = vk_address(&op->in[3]),
        .bias = {vk_address(&op->vec[first]), step == STEP_GATE_UP ? vk_address(&op->vec[EXPERT_UP]) : 0},
        .y = is_down ? vk_address(&op->out[0]) : vk_buffer_address(x->hidden),
        .off = {(uint32_t)s->image.off[first], (uint32_t)s->image.off[EXPERT_UP]},
        .k = (uint32_t)k,
        .n_row = (uint32_t)n_row,
        .n_used = is_down ? 1 : (uint32_t)x->n_used,
        .n_all = (uint32_t)x->n_pair};
    const struct vk_touched t = touched(x, step);
    VK_RUN(
        x->v,
        VK_PROGRAM(experts, PRODUCT_GROUP, s->d.type[first]->type, x->tile, step, x->sorted != NULL, op->experts.act),
        push, &t, vk_groups(n_row, ROWS), x->n_tile, 1, x->n_pair * n_row * k * (step == STEP_GATE_UP ? 2 : 1));
}

static void sort_pairs(const struct experts *x)
{
    const struct op *op = x->op;
    const struct {
        uint64_t ids, slots, sorted, counters;
        uint32_t n_pair, unused;
    } push = {vk_address(&op->in[1]),       vk_address(&op->in[2]),
              vk_buffer_address(x->sorted), vk_buffer_address(x->v->expert_counters),
              (uint32_t)x->n_pair,          0};
    struct vk_touched t = {0};
    vk_reads(&t, &op->in[1]);
    vk_reads(&t, &op->in[2]);
    vk_whole(&t, x->sorted, true);
    vk_whole(&t, x->v->expert_counters, true);
    VK_RUN(x->v, VK_PROGRAM(sort, SORT_GROUP, (uint32_t)op->in[2].ne[0], x->tile), push, &t, 1, 1, 1, x->n_pair);
}

/* Makes room for sorted pairs and their tiles, of which each expert may have one that is not full. */
static bool prepare_sort(struct experts *x)
{
    enum { TILE = 8 };
    int64_t n_expert = x->op->in[2].ne[0];
    x->tile = TILE;
    x->n_tile = (uint32_t)(x->n_pair / TILE + (n_expert < x->n_pair ? n_expert : x->n_pair));
    x->sorted = vk_scratch(x->v, VK_SCRATCH_SORT, (size_t)(1 + x->n_pair + 3 * (int64_t)x->n_tile) * sizeof(uint32_t));
    return x->sorted != NULL;
}

void vk_op_experts(struct vk *v, const struct op *op)
{
    const struct slot_pool_desc *d = &op->slot_pool->d;
    int64_t m = op->in[0].ne[1], k = op->in[1].ne[0];
    bool is_sorted = m > op->experts.sort_cutoff || m * k > v->limits.n_workgroup_y;
    struct experts x = {.v = v, .op = op, .n_pair = m * k, .n_used = k, .tile = 1, .n_tile = (uint32_t)(m * k)};
    x.hidden = vk_scratch(v, VK_SCRATCH_HIDDEN, (size_t)(x.n_pair * d->n_ff) * sizeof(float));
    *(is_sorted ? &v->counters.n_sorted : &v->counters.n_direct) += 1;
    if (!x.hidden || (is_sorted && !prepare_sort(&x)))
        return;
    if (is_sorted)
        sort_pairs(&x);
    if (d->type[EXPERT_GATE] == d->type[EXPERT_UP]) {
        run_step(&x, STEP_GATE_UP);
    } else {
        run_step(&x, STEP_GATE);
        run_step(&x, STEP_UP);
    }
    run_step(&x, STEP_DOWN);
}
