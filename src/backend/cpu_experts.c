/* EXPERTS: the products of routed experts, by direct or sorted dispatch (docs/architecture.md), which give the same
 * bits. */
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu_act_internal.h"
#include "backend/cpu_counters_internal.h"
#include "backend/cpu_experts_internal.h"
#include "backend/cpu_ops_internal.h"
#include "backend/cpu_slots_internal.h"

enum { TILE_TOKENS = 64 };

/* An operation in progress. */
struct expert_loop {
    struct cpu *c;
    const struct op *op;
    struct slot_pool *slot_pool;
    struct expert_plan plan;
    struct expert_cut cut;                /* how the current matrices are divided */
    struct kernel_act x[EXPERT_N_MATRIX]; /* the activations for each matrix: by token, or when sorted by plan row */
    float *hidden;    /* [n_pair][n_hidden] what down is multiplied by; direct: first gate's products */
    char *pack_tiles; /* for each thread; NULL: no expert's matrix is raw */
    size_t pack_tile_bytes;
    float *tiles; /* sorted: for each thread two of [TILE_TOKENS][chunk_rows] */
    struct {
        float *up;          /* up's products: [n_pair][n_ff], or the second halves of `hidden` */
        int64_t ld_up;      /* elements from a pair's to the next one's */
        atomic_int *n_left; /* [n_item] chunks of gate and up that are not done */
        struct cpu_act down;
    } direct;
};

static void pack_rows(const struct expert_loop *x, const struct expert_item *it, enum expert_matrix which, int64_t row0,
                      int64_t row1, int thread)
{
    if (x->pack_tiles)
        slot_pack_rows(x->c, x->slot_pool, it->slot, which, row0, row1,
                       x->pack_tiles + (size_t)thread * x->pack_tile_bytes);
}

/* Notes that these matrices of all items have been packed. */
static void note_packed(const struct expert_loop *x, enum expert_matrix first, enum expert_matrix last)
{
    for (int64_t i = 0; x->pack_tiles && i < x->plan.n_item; i++)
        for (enum expert_matrix which = first; which <= last; which++)
            x->slot_pool->slots[x->plan.items[i].slot][which].is_raw = false;
}

/* Multiplies a task's rows of one matrix by a tile of its expert's tokens and adds their bias: y [m][chunk_rows]. */
static void expert_product(const struct expert_loop *x, const struct expert_task *s, enum expert_matrix which,
                           const struct kernel_act *act, int64_t m, float *y)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    const struct expert_item *it = &x->plan.items[s->item];
    int64_t node_row0 = x->cut.node[s->node].row0, chunk_rows = x->cut.chunk_rows;
    /* kernels store at y[t * ldy + row]: shift the tile so that the task's first row lands on its first column */
    const struct kernel_matmul a = {.w = slot_matrix_data(x->slot_pool, s->node, it->slot, which),
                                    .k = slot_matrix_k(d, which),
                                    .n_row = x->cut.node[s->node].row1 - node_row0,
                                    .row0 = s->row0 - node_row0,
                                    .row1 = s->row1 - node_row0,
                                    .x = act,
                                    .m = m,
                                    .y = y - (s->row0 - node_row0),
                                    .ldy = chunk_rows,
                                    .how = cpu_how(x->c, d->type[which], m)};
    if (pool_is_cancelled(x->c->pool)) /* packing must go on even then, as items count as packed afterwards */
        return;
    x->c->kernels->matmul[d->type[which]->type](&a);
    const float *bias = tensor_data(&x->op->vec[which]);
    if (!bias)
        return;
    bias += it->expert * slot_matrix_rows(d, which) + s->row0;
    for (int64_t t = 0; t < m; t++)
        x->c->kernels->add(y + t * chunk_rows, y + t * chunk_rows, bias, s->row1 - s->row0);
}

/* Multiplies gate's and up's products of hidden rows [row, row + m) by their pairs' weights, where the operation has
 * them. */
static void weigh(const struct expert_loop *x, int64_t row, int64_t m, float *gate, float *up, int64_t n)
{
    const float *weights = tensor_data(&x->op->in[EXPERTS_WEIGHTS]);
    int64_t ld = x->cut.chunk_rows;
    for (int64_t t = 0; weights && t < m; t++)
        for (int64_t i = 0; i < n; i++) {
            gate[t * ld + i] *= weights[x->plan.pair_of_row[row + t]];
            up[t * ld + i] *= weights[x->plan.pair_of_row[row + t]];
        }
}

/* out = act(gate) * up for n elements of a hidden row. Experts without a gate: act(y) * y for n elements of each half
 * of the hidden row, where `out` lies in the first half. */
static void activate(const struct expert_loop *x, float *out, const float *gate, const float *up, int64_t n)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    enum act_fn act = x->op->experts.act;
    float limit = x->op->experts.act_limit, up_limit = x->op->experts.act_up_limit;
    cpu_act_mul(x->c->kernels, act, limit, up_limit, out, gate, d->is_ungated ? gate : up, n);
    if (d->is_ungated)
        cpu_act_mul(x->c->kernels, act, limit, up_limit, out + d->n_ff, up, up, n);
}

/* ---- sorted: an expert's tokens, tile by tile ------------------------------------------------------------------ */

static void gate_up_tiles(void *arg, size_t task, int thread)
{
    const struct expert_loop *x = arg;
    const struct expert_task s = expert_cut_task(&x->cut, x->c, task);
    const struct expert_item *it = &x->plan.items[s.item];
    int64_t n_hidden = slot_n_hidden(&x->slot_pool->d), ld = x->cut.chunk_rows;
    float *gate = x->tiles + (int64_t)thread * 2 * TILE_TOKENS * ld, *up = gate + TILE_TOKENS * ld;
    pack_rows(x, it, EXPERT_GATE, s.row0, s.row1, thread);
    pack_rows(x, it, EXPERT_UP, s.row0, s.row1, thread);
    for (int64_t i = 0; i < it->n; i += TILE_TOKENS) {
        int64_t m = it->n - i < TILE_TOKENS ? it->n - i : TILE_TOKENS, row = it->row0 + i;
        const struct kernel_act gate_x = cpu_act_skip(&x->x[EXPERT_GATE], row);
        const struct kernel_act up_x = cpu_act_skip(&x->x[EXPERT_UP], row);
        expert_product(x, &s, EXPERT_GATE, &gate_x, m, gate);
        expert_product(x, &s, EXPERT_UP, &up_x, m, up);
        weigh(x, row, m, gate, up, s.row1 - s.row0);
        for (int64_t t = 0; t < m; t++)
            activate(x, x->hidden + (row + t) * n_hidden + s.row0, gate + t * ld, up + t * ld, s.row1 - s.row0);
    }
}

static void down_tiles(void *arg, size_t task, int thread)
{
    const struct expert_loop *x = arg;
    const struct expert_task s = expert_cut_task(&x->cut, x->c, task);
    const struct expert_item *it = &x->plan.items[s.item];
    int64_t n_embd = x->slot_pool->d.n_embd, ld = x->cut.chunk_rows;
    float *tile = x->tiles + (int64_t)thread * 2 * TILE_TOKENS * ld, *y = tensor_data(&x->op->out[EXPERTS_Y]);
    pack_rows(x, it, EXPERT_DOWN, s.row0, s.row1, thread);
    for (int64_t i = 0; i < it->n; i += TILE_TOKENS) {
        int64_t m = it->n - i < TILE_TOKENS ? it->n - i : TILE_TOKENS, row = it->row0 + i;
        const struct kernel_act act = cpu_act_skip(&x->x[EXPERT_DOWN], row);
        expert_product(x, &s, EXPERT_DOWN, &act, m, tile);
        for (int64_t t = 0; t < m; t++)
            memcpy(y + x->plan.pair_of_row[row + t] * n_embd + s.row0, tile + t * ld,
                   (size_t)(s.row1 - s.row0) * sizeof *y);
    }
}

/* Runs a loop over matrices of n_row rows of k weights. */
static bool run_tiles(struct expert_loop *x, int64_t n_row, int64_t k, pool_fn *task)
{
    expert_cut_make(&x->cut, x->c, &x->plan, n_row, k, 1);
    size_t tile_bytes = align64((size_t)(TILE_TOKENS * x->cut.chunk_rows) * sizeof *x->tiles);
    x->tiles = cpu_scratch(x->c, SCRATCH_THREAD, tile_bytes * 2 * (size_t)pool_n_threads(x->c->pool));
    if (x->tiles)
        pool_run_nodes(x->c->pool, x->cut.first_task, task, x);
    return x->tiles != NULL;
}

static bool run_sorted(struct expert_loop *x)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    enum quant_act kind = kernels_act(x->c->kernels, d->type[EXPERT_DOWN]);
    if (!run_tiles(x, d->n_ff, d->n_embd, gate_up_tiles))
        return false;
    note_packed(x, EXPERT_GATE, EXPERT_UP);
    if (!cpu_act_round(x->c, SCRATCH_ACT_H + kind, kind, x->hidden, x->plan.n_pair, slot_n_hidden(d),
                       &x->x[EXPERT_DOWN]) ||
        !run_tiles(x, d->n_embd, slot_n_hidden(d), down_tiles))
        return false;
    note_packed(x, EXPERT_DOWN, EXPERT_DOWN);
    return true;
}

/* ---- direct: one token an item, its expert's matrices in the order in which they lie in the slot, so that a thread
 * walks through memory with few jumps ---------------------------------------------------------------------------- */

static void gate_up_chunk(void *arg, size_t task, int thread)
{
    const struct expert_loop *x = arg;
    const struct expert_task s = expert_cut_task(&x->cut, x->c, task);
    enum expert_matrix which = s.walked == 0 ? EXPERT_GATE : EXPERT_UP;
    int64_t n_ff = x->slot_pool->d.n_ff, n_hidden = slot_n_hidden(&x->slot_pool->d);
    float *gate = x->hidden + s.item * n_hidden, *up = x->direct.up + s.item * x->direct.ld_up;
    const struct kernel_act act = cpu_act_skip(&x->x[which], x->plan.pair_of_row[s.item] / x->plan.n_used);
    pack_rows(x, &x->plan.items[s.item], which, s.row0, s.row1, thread);
    expert_product(x, &s, which, &act, 1, (which == EXPERT_GATE ? gate : up) + s.row0);
    if (atomic_fetch_sub(&x->direct.n_left[s.item], 1) > 1)
        return;
    weigh(x, s.item, 1, gate, up, n_ff);
    activate(x, gate, gate, up, n_ff);
    if (x->direct.down.kind != QUANT_ACT_FLOAT)
        cpu_act_round_row(&x->direct.down, x->c->kernels, s.item, gate);
}

static void down_chunk(void *arg, size_t task, int thread)
{
    const struct expert_loop *x = arg;
    const struct expert_task s = expert_cut_task(&x->cut, x->c, task);
    float *y = (float *)tensor_data(&x->op->out[EXPERTS_Y]) + x->plan.pair_of_row[s.item] * x->slot_pool->d.n_embd;
    const struct kernel_act act = cpu_act_skip(&x->x[EXPERT_DOWN], s.item);
    pack_rows(x, &x->plan.items[s.item], EXPERT_DOWN, s.row0, s.row1, thread);
    expert_product(x, &s, EXPERT_DOWN, &act, 1, y + s.row0);
}

static void pack_item(void *arg, size_t task, int thread)
{
    const struct expert_loop *x = arg;
    const struct expert_item *it = &x->plan.items[task / EXPERT_N_MATRIX];
    enum expert_matrix which = (enum expert_matrix)(task % EXPERT_N_MATRIX);
    if (!it->is_again)
        pack_rows(x, it, which, 0, slot_matrix_rows(&x->slot_pool->d, which), thread);
}

/* Makes room for the rounded hidden rows; floats stay where they are. False when out of memory. */
static bool place_hidden(struct expert_loop *x)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    enum quant_act kind = kernels_act(x->c->kernels, d->type[EXPERT_DOWN]);
    x->direct.down = (struct cpu_act){.kind = kind, .k = slot_n_hidden(d), .f32 = x->hidden};
    if (kind != QUANT_ACT_FLOAT &&
        !cpu_act_place(x->c, SCRATCH_ACT_H + kind, kind, x->plan.n_pair, slot_n_hidden(d), &x->direct.down))
        return false;
    x->x[EXPERT_DOWN] = cpu_act_rows(&x->direct.down, 0);
    return true;
}

static bool run_direct(struct expert_loop *x)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    x->direct.up = x->hidden + (d->is_ungated ? d->n_ff : x->plan.n_pair * d->n_ff);
    x->direct.ld_up = slot_n_hidden(d);
    if (!place_hidden(x))
        return false;
    if (x->pack_tiles && x->op->in[EXPERTS_X].ne[1] > 1) { /* items may share an expert, so packing comes first */
        pool_run(x->c->pool, EXPERT_N_MATRIX * (size_t)x->plan.n_item, pack_item, x);
        note_packed(x, EXPERT_GATE, EXPERT_DOWN);
    }
    expert_cut_make(&x->cut, x->c, &x->plan, d->n_ff, d->n_embd, 2);
    int n_chunk = (int)expert_cut_n_chunk(&x->cut, x->c);
    for (int64_t i = 0; i < x->plan.n_item; i++)
        atomic_init(&x->direct.n_left[i], n_chunk);
    pool_run_nodes(x->c->pool, x->cut.first_task, gate_up_chunk, x);
    note_packed(x, EXPERT_GATE, EXPERT_UP);
    expert_cut_make(&x->cut, x->c, &x->plan, d->n_embd, slot_n_hidden(d), 1);
    pool_run_nodes(x->c->pool, x->cut.first_task, down_chunk, x);
    note_packed(x, EXPERT_DOWN, EXPERT_DOWN);
    return true;
}

/* ---- both ------------------------------------------------------------------------------------------------------ */

struct gather {
    const struct expert_plan *plan;
    struct kernel_act from; /* by token */
    struct cpu_act to;      /* by row of the plan */
};

static void gather_row(void *arg, size_t row, int thread)
{
    const struct gather *g = arg;
    cpu_act_copy_row(&g->to, (int64_t)row, &g->from, g->plan->pair_of_row[row] / g->plan->n_used);
}

/* Rounds the tokens for a matrix. In sorted dispatch they are then gathered in the order of the plan's rows. */
static bool prepare_input(struct expert_loop *x, enum quant_act kind, struct kernel_act *out)
{
    const struct tensor *in = &x->op->in[EXPERTS_X];
    int64_t n_embd = x->slot_pool->d.n_embd, n_pair = x->plan.n_pair;
    if (!cpu_act_round(x->c, SCRATCH_ACT + kind, kind, tensor_data(in), in->ne[1], n_embd, out))
        return false;
    if (!x->plan.is_sorted)
        return true;
    void *p = cpu_scratch(x->c, SCRATCH_GATHER + kind, cpu_act_bytes(kind, n_pair, n_embd));
    if (!p)
        return false;
    struct gather g = {.plan = &x->plan, .from = *out, .to = cpu_act_at(p, kind, n_pair, n_embd)};
    pool_run(x->c->pool, (size_t)n_pair, gather_row, &g);
    *out = cpu_act_rows(&g.to, 0);
    return true;
}

static bool prepare_inputs(struct expert_loop *x)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    enum quant_act gate = kernels_act(x->c->kernels, d->type[EXPERT_GATE]);
    enum quant_act up = kernels_act(x->c->kernels, d->type[EXPERT_UP]);
    if (!prepare_input(x, gate, &x->x[EXPERT_GATE]))
        return false;
    x->x[EXPERT_UP] = x->x[EXPERT_GATE];
    return up == gate || prepare_input(x, up, &x->x[EXPERT_UP]);
}

/* Makes room for the rows that threads pack, if any matrix is raw. False when out of memory. */
static bool prepare_packing(struct expert_loop *x)
{
    bool is_raw = false;
    for (int64_t i = 0; i < x->plan.n_item && !is_raw; i++)
        for (int which = 0; which < EXPERT_N_MATRIX; which++)
            is_raw |= x->slot_pool->slots[x->plan.items[i].slot][which].is_raw;
    if (!is_raw)
        return true;
    x->pack_tile_bytes = slot_tile_bytes(x->slot_pool);
    x->pack_tiles = cpu_scratch(x->c, SCRATCH_PACK, x->pack_tile_bytes * (size_t)pool_n_threads(x->c->pool));
    return x->pack_tiles != NULL;
}

/* Counts each expert's weights once, however many of its pairs there are. */
static void count_experts(const struct expert_loop *x)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    int64_t n_read = 0;
    for (int64_t i = 0; i < x->plan.n_item; i++)
        n_read += !x->plan.items[i].is_again;
    *(x->plan.is_sorted ? &x->c->counters.n_sorted : &x->c->counters.n_direct) += 1;
    x->c->counters.n_expert_rows += (uint64_t)x->plan.n_pair;
    x->c->counters.n_experts += (uint64_t)(x->plan.is_sorted ? x->plan.n_item : n_read);
    for (int64_t i = 0; i < x->plan.n_item; i++)
        for (int which = 0; which < EXPERT_N_MATRIX; which++)
            cpu_count_product(x->c, OP_EXPERTS, d->type[which], slot_matrix_rows(d, which), slot_matrix_k(d, which),
                              !x->plan.items[i].is_again, x->plan.items[i].n);
}

/* Copies what down was multiplied by to the second output, if there is one. */
static void give_hidden(const struct expert_loop *x)
{
    int64_t n = slot_n_hidden(&x->slot_pool->d);
    float *out = tensor_data(&x->op->out[EXPERTS_HIDDEN]);
    for (int64_t r = 0; out && r < x->plan.n_pair; r++)
        memcpy(out + x->plan.pair_of_row[r] * n, x->hidden + r * n, (size_t)n * sizeof *out);
}

void cpu_op_experts(struct cpu *c, const struct op *op)
{
    struct expert_loop x = {.c = c, .op = op, .slot_pool = op->slot_pool};
    const struct expert_choice choice = {.ids = tensor_data(&op->in[EXPERTS_IDS]),
                                         .slots = tensor_data(&op->in[EXPERTS_SLOTS]),
                                         .n_tok = op->in[EXPERTS_X].ne[1],
                                         .n_used = op->in[EXPERTS_IDS].ne[0],
                                         .n_expert = op->in[EXPERTS_SLOTS].ne[0]};
    bool is_sorted = choice.n_tok > op->experts.sort_cutoff;
    size_t plan_bytes = expert_plan_bytes(&choice);
    size_t left_bytes = (size_t)(choice.n_tok * choice.n_used) * sizeof *x.direct.n_left;
    char *plan = cpu_scratch(c, SCRATCH_ORDER, plan_bytes + left_bytes);
    if (!plan)
        return;
    expert_plan_make(&x.plan, &choice, is_sorted, plan);
    x.direct.n_left = (atomic_int *)(void *)(plan + plan_bytes);
    int64_t n_hidden = is_sorted ? slot_n_hidden(&op->slot_pool->d) : 2 * op->slot_pool->d.n_ff;
    x.hidden = cpu_scratch(c, SCRATCH_HIDDEN, (size_t)(x.plan.n_pair * n_hidden) * sizeof *x.hidden);
    if (!x.hidden || !prepare_packing(&x) || !prepare_inputs(&x) || !(is_sorted ? run_sorted : run_direct)(&x))
        return;
    count_experts(&x);
    give_hidden(&x);
}
