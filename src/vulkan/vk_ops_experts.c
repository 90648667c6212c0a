/* ROUTE and EXPERTS. */
#include "vulkan/vk_ops.h"

enum { SORT_GROUP = 128, ROWS = LAYOUT_R16_ROWS };

bool vk_may_join_router(const struct vk *v, const struct op *route, const struct op *matmul)
{
    const struct weight *w = matmul->weight[2];
    return !route->vec[ROUTE_TOKEN_EXPERTS].buffer && vk_is_same(&route->in[ROUTE_X], &matmul->in[0]) && w &&
           !matmul->weight[3] && w->n_row <= ROWS && !matmul->vec[2].buffer && w->type == route->weight[0]->type &&
           !vk_is_integer(v, w->type->type);
}

/* Scratch memory for n counters of finished workgroups. */
static struct buffer *done_counters(struct vk *v, int64_t n)
{
    return vk_scratch(v, VK_SCRATCH_DONE, (size_t)n * sizeof(uint32_t));
}

static struct buffer *router_logits(struct vk *v, const struct op *op)
{
    return vk_scratch(v, VK_SCRATCH_LOGITS, (size_t)(op->in[ROUTE_X].ne[1] * op->weight[0]->n_row) * sizeof(float));
}

/* Counters of a router's finished workgroups: one for each row of activations, which is the most that they need. */
static struct buffer *router_done(struct vk *v, const struct op *op)
{
    return done_counters(v, op->in[ROUTE_X].ne[1]);
}

void vk_scratch_route(struct vk *v, const struct op *op)
{
    router_logits(v, op);
    router_done(v, op);
}

void vk_route(struct vk *v, const struct op *op, const struct op *other)
{
    static const struct tensor none;
    enum { WORDS = 5 };      /* of shared memory for each expert, at most */
    enum { ROUTE_ROWS = 8 }; /* of a workgroup */
    const struct weight *w = op->weight[0], *w2 = other ? other->weight[2] : NULL;
    const struct tensor *y2 = other ? &other->out[2] : &none;
    bool is_given = op->vec[ROUTE_TOKEN_EXPERTS].buffer != NULL;
    int64_t m = op->in[ROUTE_X].ne[1], k = op->in[ROUTE_X].ne[0], n = w->n_row;
    const struct vk_norm *norm = vk_norm_of(v, op);
    bool by_four = vk_by_four(norm ? vk_address(&norm->x) | vk_address(&norm->w) : vk_address(&op->in[ROUTE_X]), k);
    uint32_t tile = vk_choose_tile(m, by_four);
    struct buffer *logits = router_logits(v, op), *done = router_done(v, op);
    struct vk_touched x = {0};
    if (!logits || !done)
        return;
    const struct {
        uint64_t x, norm_w, normed, router, router_bias, logits, bias, expert_scale, ids, weights, scores, done, other,
            other_y;
        uint32_t k, m, n_other, unused;
    } push = {.x = vk_address(norm ? &norm->x : &op->in[ROUTE_X]),
              .norm_w = norm ? vk_address(&norm->w) : 0,
              .normed = vk_touch_norm(&x, norm, &op->in[ROUTE_X]),
              .router = vk_piece_address(&w->parts[0]),
              .router_bias = vk_address(&op->vec[ROUTE_BIAS]),
              .logits = vk_buffer_address(logits),
              .bias = vk_address(&op->vec[ROUTE_CHOICE_BIAS]),
              .expert_scale = vk_address(&op->vec[ROUTE_EXPERT_SCALE]),
              .ids = vk_address(&op->out[ROUTE_IDS]),
              .weights = vk_address(&op->out[ROUTE_WEIGHTS]),
              .scores = vk_address(&op->out[ROUTE_SCORES]),
              .done = vk_buffer_address(done),
              .other = w2         ? vk_piece_address(&w2->parts[0])
                       : is_given ? vk_address(&op->in[ROUTE_TOKENS])
                                  : 0,
              .other_y = vk_address(is_given ? &op->vec[ROUTE_TOKEN_EXPERTS] : y2),
              .k = (uint32_t)k,
              .m = (uint32_t)m,
              .n_other = w2 ? (uint32_t)w2->n_row : 0};
    if (is_given)
        vk_reads(&x, &op->in[ROUTE_TOKENS]);
    vk_whole(&x, logits, true);
    vk_whole(&x, done, true);
    for (int i = ROUTE_IDS; i <= ROUTE_SCORES; i++)
        vk_writes(&x, &op->out[i]);
    vk_writes(&x, y2);
    VK_RUN(v,
           VK_PROGRAM(route, VK_PRODUCT_GROUP, w->type->type, tile, norm ? vk_staged(k) : 0, by_four, VK_FLOATS,
                      vk_float_bits(norm ? norm->eps : 0), (uint32_t)n, (uint32_t)op->out[ROUTE_IDS].ne[0],
                      op->route.score, op->route.norm_weights, (uint32_t)op->route.n_group,
                      (uint32_t)op->route.n_group_used, vk_float_bits(op->route.scale), is_given),
           push, &x, vk_groups(n, ROUTE_ROWS) + (w2 ? vk_groups(w2->n_row, ROUTE_ROWS) : 0), vk_groups(m, tile), 1,
           m * n * (k + WORDS));
    vk_norm_done(v);
}

/* As in shaders/experts.glsl. */
enum vk_expert_step { STEP_GATE_UP, STEP_GATE, STEP_UP, STEP_DOWN };

struct expert_push {
    uint64_t x, ids, slots, addresses, sorted, weights, bias[2], y;
    uint32_t off[2], k, n_row, n_used, n_all, n_y, unused;
};

/* An EXPERTS operation. */
struct experts {
    struct vk *v;
    const struct op *op;
    struct tensor hidden;   /* [n_hidden] for each pair */
    struct buffer *sorted;  /* the sorted pairs; NULL: dispatch is direct */
    struct buffer *done;    /* for direct dispatch: a counter for each workgroup of a token's sum */
    int64_t n_pair, n_used; /* pairs of a token and an expert; experts of each token */
    uint32_t tile, n_tile;  /* the most pairs of a tile; the most tiles (in direct dispatch, pairs) */
    bool is_tiled;          /* tiles are in shared memory (shaders/tile.glsl) */
};

/* What a step reads and writes. */
static struct vk_touched touched(const struct experts *x, enum vk_expert_step step)
{
    struct vk_touched t = {0};
    for (int i = EXPERTS_IDS; i <= EXPERTS_WEIGHTS; i++)
        vk_reads(&t, &x->op->in[i]);
    if (step != STEP_DOWN)
        vk_reads(&t, &x->op->in[EXPERTS_X]);
    (step == STEP_DOWN ? vk_reads : vk_writes)(&t, &x->hidden);
    if (x->sorted)
        vk_whole(&t, x->sorted, false);
    if (step == STEP_DOWN)
        vk_writes(&t, &x->op->out[EXPERTS_Y]);
    return t;
}

/* Has the input of a step rounded, and makes the step read the result from memory. */
static bool round_input(const struct experts *x, enum quant_type type, const struct vk_rows *rows, bool is_down,
                        uint64_t *address, struct vk_touched *touched)
{
    const struct vk_access from = vk_access_tensor(is_down ? &x->hidden : &x->op->in[EXPERTS_X], false);
    const struct buffer *runs = vk_round_rows(x->v, type, rows, &from);
    if (!runs)
        return false;
    *address = vk_buffer_address(runs);
    vk_whole(touched, runs, false);
    return true;
}

/* The activations that a step multiplies. */
static struct vk_rows rows_of(const struct experts *x, bool is_down)
{
    const struct slot_pool_desc *d = &x->op->slot_pool->d;
    return is_down ? (struct vk_rows){vk_address(&x->hidden), slot_n_hidden(d), x->n_pair}
                   : (struct vk_rows){vk_address(&x->op->in[EXPERTS_X]), d->n_embd, x->op->in[EXPERTS_X].ne[1]};
}

static void run_step(const struct experts *x, enum vk_expert_step step)
{
    const struct op *op = x->op;
    const struct slot_pool *s = op->slot_pool;
    bool is_down = step == STEP_DOWN;
    int first = is_down ? EXPERT_DOWN : step == STEP_UP ? EXPERT_UP : EXPERT_GATE;
    const struct vk_rows rows = rows_of(x, is_down);
    int64_t n_row = slot_matrix_rows(&s->d, first), k = rows.k;
    struct expert_push push = {
        .x = rows.x,
        .ids = vk_address(&op->in[EXPERTS_IDS]),
        .slots = vk_address(&op->in[EXPERTS_SLOTS]),
        .addresses = vk_piece_address(&s->table->piece),
        .sorted = x->sorted ? vk_buffer_address(x->sorted) : 0,
        .weights = vk_address(&op->in[EXPERTS_WEIGHTS]),
        .bias = {vk_address(&op->vec[first]), step == STEP_GATE_UP ? vk_address(&op->vec[EXPERT_UP]) : 0},
        .y = is_down ? vk_address(&op->out[EXPERTS_Y]) : vk_address(&x->hidden),
        .off = {(uint32_t)s->image.off[first], (uint32_t)s->image.off[EXPERT_UP]},
        .k = (uint32_t)k,
        .n_row = (uint32_t)n_row,
        .n_used = is_down ? 1 : (uint32_t)x->n_used,
        .n_all = (uint32_t)x->n_pair,
        .n_y = (uint32_t)(is_down ? n_row : slot_n_hidden(&s->d))};
    struct vk_touched t = touched(x, step);
    enum quant_type type = s->d.type[first]->type;
    enum vk_integers integers = vk_integers_of(x->v, type, NULL, &rows, !x->sorted);
    bool by_four = vk_by_four(push.x, k);
    uint32_t group = x->is_tiled ? VK_TILE_GROUP : step == STEP_GATE_UP ? 2 * VK_PRODUCT_GROUP : VK_PRODUCT_GROUP;
    const struct vk_spread tiles = vk_spread(x->v, x->n_tile);
    if (integers == VK_RUNS_IN_MEMORY && !round_input(x, type, &rows, is_down, &push.x, &t))
        return;
    struct vk_program program =
        VK_PROGRAM(experts, group, type, x->tile, integers == VK_ROUNDS ? vk_staged(k) : 0, by_four, integers, step,
                   x->sorted != NULL, op->experts.act, s->d.is_ungated, vk_float_bits(op->experts.act_limit),
                   vk_float_bits(op->experts.act_up_limit));
    if (x->is_tiled)
        program.shader = VK_SHADER_experts_tile;
    if (x->is_tiled && integers == VK_RUNS_IN_MEMORY && vk_has_matrices(x->v, type)) {
        program.shader = VK_SHADER_experts_matrix;
        vk_set_matrix(x->v, &program);
    }
    VK_RUN(x->v, program, push, &t, vk_groups(n_row, x->is_tiled ? VK_TILE_ROWS : ROWS), tiles.y, tiles.z,
           x->n_pair * n_row * k * (step == STEP_GATE_UP ? 2 : 1));
}

/* The address of the counter of pairs, and of the experts that they belong to. */
static uint64_t expert_counter(const struct experts *x)
{
    const struct slot_pool_desc *d = &x->op->slot_pool->d;
    struct vk_unit unit = {.kind = OP_EXPERTS};
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        vk_unit_add(x->v, &unit, d->type[i], slot_matrix_rows(d, i), slot_matrix_k(d, i));
    return vk_counter_address(x->v, &unit);
}

/* COMBINE and ADD, which the last step of direct dispatch can compute as well. */
struct sum {
    const struct op *combine, *add; /* or NULL */
};

/* The last step of direct dispatch. */
static void run_down(const struct experts *x, const struct sum *sum)
{
    static const struct op none;
    const struct op *op = x->op, *combine = sum->combine ? sum->combine : &none, *add = sum->add ? sum->add : &none;
    const struct slot_pool *s = op->slot_pool;
    const struct vk_rows rows = rows_of(x, true);
    int64_t n_row = s->d.n_embd, k = rows.k, n_group = vk_groups(n_row, ROWS);
    const struct tensor *residual = sum->add ? vk_other_term(add, &combine->out[0]) : &none.in[0];
    struct vk_touched t = touched(x, STEP_DOWN);
    uint64_t hidden = rows.x;
    enum quant_type type = s->d.type[EXPERT_DOWN]->type;
    enum vk_integers integers = vk_integers_of(x->v, type, NULL, &rows, true);
    bool by_four = vk_by_four(hidden, k);
    if (integers == VK_RUNS_IN_MEMORY && !round_input(x, type, &rows, true, &hidden, &t))
        return;
    const struct {
        uint64_t x, ids, slots, addresses, counter, bias, y, weights, shared, shared_gate, out, residual, total, done;
        uint32_t off, k, n_row, n_used;
    } push = {hidden,
              vk_address(&op->in[EXPERTS_IDS]),
              vk_address(&op->in[EXPERTS_SLOTS]),
              vk_piece_address(&s->table->piece),
              expert_counter(x),
              vk_address(&op->vec[EXPERT_DOWN]),
              vk_address(&op->out[EXPERTS_Y]),
              vk_address(&combine->in[COMBINE_WEIGHTS]),
              vk_address(&combine->in[COMBINE_SHARED]),
              vk_address(&combine->in[COMBINE_SHARED_GATE]),
              vk_address(&combine->out[0]),
              vk_address(residual),
              vk_address(&add->out[0]),
              vk_buffer_address(x->done),
              (uint32_t)s->image.off[EXPERT_DOWN],
              (uint32_t)k,
              (uint32_t)n_row,
              (uint32_t)x->n_used};
    for (int i = COMBINE_WEIGHTS; i <= COMBINE_SHARED_GATE; i++)
        vk_reads(&t, &combine->in[i]);
    vk_reads(&t, residual);
    vk_writes(&t, &combine->out[0]);
    vk_writes(&t, &add->out[0]);
    vk_whole(&t, x->done, true);
    vk_whole(&t, x->v->work.buffer, true);
    VK_RUN(x->v,
           VK_PROGRAM(down, VK_PRODUCT_GROUP, type, 1, integers == VK_ROUNDS ? vk_staged(k) : 0, by_four, integers),
           push, &t, (uint32_t)n_group, (uint32_t)x->n_pair, 1, x->n_pair * n_row * k);
}

static void sort_pairs(const struct experts *x)
{
    const struct op *op = x->op;
    const struct {
        uint64_t ids, slots, sorted, counter;
        uint32_t n_pair, unused;
    } push = {vk_address(&op->in[EXPERTS_IDS]),
              vk_address(&op->in[EXPERTS_SLOTS]),
              vk_buffer_address(x->sorted),
              expert_counter(x),
              (uint32_t)x->n_pair,
              0};
    struct vk_touched t = {0};
    vk_reads(&t, &op->in[EXPERTS_IDS]);
    vk_reads(&t, &op->in[EXPERTS_SLOTS]);
    vk_whole(&t, x->sorted, true);
    vk_whole(&t, x->v->work.buffer, true);
    VK_RUN(x->v, VK_PROGRAM(sort, SORT_GROUP, (uint32_t)op->in[EXPERTS_SLOTS].ne[0], x->tile), push, &t, 1, 1, 1,
           x->n_pair);
}

/* Whether all three matrices have tiles in shared memory, and experts have enough pairs to fill them. */
static bool are_tiled(const struct experts *x, int64_t room, bool by_four)
{
    bool are = by_four && room >= VK_TILE;
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        are = are && vk_is_tiled(x->v, x->op->slot_pool->d.type[i]->type);
    return are;
}

/* The number of pairs in a tile. In shared memory a tile is halved where an expert's share of the pairs would fill only
 * few tiles, as the last of them is seldom full; other tiles have room for twice that share (`room`). */
static uint32_t choose_tile(const struct experts *x, int64_t room, bool by_four)
{
    enum { FEW = 2 }; /* tiles */
    if (x->is_tiled)
        return room < 2 * FEW * VK_TILE ? VK_TILE / 2 : VK_TILE;
    return vk_choose_tile(room > 1 ? room : 1, by_four);
}

/* Sets how pairs are sorted and divided into tiles, and takes the memory for that. Each expert may have one tile that
 * is not full. */
static void prepare_sort(struct experts *x)
{
    int64_t n_expert = x->op->in[EXPERTS_SLOTS].ne[0], room = 2 * x->n_pair / n_expert;
    const struct slot_pool_desc *d = &x->op->slot_pool->d;
    bool by_four = vk_by_four(vk_address(&x->op->in[EXPERTS_X]), d->n_embd | slot_n_hidden(d));
    x->is_tiled = are_tiled(x, room, by_four);
    x->tile = choose_tile(x, room, by_four);
    x->n_tile = (uint32_t)(x->n_pair / x->tile + (n_expert < x->n_pair ? n_expert : x->n_pair));
    x->sorted = vk_scratch(x->v, VK_SCRATCH_SORT, (size_t)(1 + x->n_pair + 3 * (int64_t)x->n_tile) * sizeof(uint32_t));
}

/* Runs the last step. In sorted dispatch COMBINE and ADD take another dispatch, as a token's experts are in tiles with
 * other tokens'. */
static void finish(const struct experts *x, const struct sum *sum)
{
    if (!x->sorted) {
        run_down(x, sum);
        return;
    }
    run_step(x, STEP_DOWN);
    if (sum->combine)
        vk_combine(x->v, sum->combine, sum->add);
}

/* Decides how an operation is run, and takes its scratch memory; false after an error. */
static bool prepare(struct vk *v, const struct op *op, struct experts *x)
{
    const struct slot_pool_desc *d = &op->slot_pool->d;
    int64_t m = op->in[EXPERTS_X].ne[1], k = op->in[EXPERTS_IDS].ne[0];
    *x = (struct experts){.v = v, .op = op, .n_pair = m * k, .n_used = k, .tile = 1, .n_tile = (uint32_t)(m * k)};
    x->hidden = op->out[EXPERTS_HIDDEN].buffer ? op->out[EXPERTS_HIDDEN]
                                               : (struct tensor){.type = ELEM_F32, .ne = {slot_n_hidden(d), k, m}};
    if (!x->hidden.buffer)
        x->hidden.buffer = vk_scratch(v, VK_SCRATCH_HIDDEN, tensor_bytes(&x->hidden));
    if (m > op->experts.sort_cutoff || m * k > v->limits.n_workgroup_y)
        prepare_sort(x);
    else
        x->done = done_counters(v, m * vk_groups(d->n_embd, ROWS));
    return x->hidden.buffer && (x->sorted || x->done);
}

void vk_scratch_experts(struct vk *v, const struct op *op)
{
    struct experts x;
    if (!prepare(v, op, &x))
        return;
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        const struct vk_rows rows = rows_of(&x, i == EXPERT_DOWN);
        vk_scratch_runs(v, op->slot_pool->d.type[i]->type, &rows, !x.sorted);
    }
}

void vk_experts(struct vk *v, const struct op *op, const struct op *combine, const struct op *add)
{
    const struct slot_pool_desc *d = &op->slot_pool->d;
    struct experts x;
    if (!prepare(v, op, &x))
        return;
    *(x.sorted ? &v->counters.n_sorted : &v->counters.n_direct) += 1;
    if (x.sorted)
        sort_pairs(&x);
    if (d->type[EXPERT_GATE] == d->type[EXPERT_UP]) {
        run_step(&x, STEP_GATE_UP);
    } else {
        run_step(&x, STEP_GATE);
        run_step(&x, STEP_UP);
    }
    finish(&x, &(struct sum){combine, add});
}
