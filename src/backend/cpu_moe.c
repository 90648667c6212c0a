/* The MoE layer on the CPU: the router, the experts by direct or sorted dispatch, and their weighted sum. */
#include "backend/cpu_internal.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/route.h"

struct route_loop {
    struct cpu *c;
    const struct op *op;
    float *logits, *choice; /* [n_expert][M] */
    int64_t n_expert, k;
};

static void route_row(void *arg, size_t t, int thread)
{
    const struct route_loop *l = arg;
    int64_t i = (int64_t)t;
    float *scores = tensor_data(&l->op->out[2]);
    const struct route_token token = {.op = l->op,
                                      .bias = tensor_data(&l->op->vec[1]),
                                      .expert_scale = tensor_data(&l->op->vec[2]),
                                      .n = l->n_expert,
                                      .k = l->k,
                                      .logits = l->logits + i * l->n_expert,
                                      .choice = l->choice + i * l->n_expert,
                                      .ids = (int32_t *)tensor_data(&l->op->out[0]) + i * l->k,
                                      .weights = (float *)tensor_data(&l->op->out[1]) + i * l->k,
                                      .scores = scores ? scores + i * l->n_expert : NULL};
    route_choose(l->c->kernels, &token);
}

void cpu_op_route(struct cpu *c, const struct op *op)
{
    struct weight *w = op->weight[0];
    int64_t m = op->in[0].ne[1];
    struct route_loop l = {.c = c, .op = op, .n_expert = w->n_row, .k = op->out[0].ne[0]};
    l.logits = cpu_scratch(c, SCRATCH_LOGITS, (size_t)(2 * m * w->n_row) * sizeof *l.logits);
    if (!l.logits)
        return;
    l.choice = l.logits + m * w->n_row;
    const float *bias = tensor_data(&op->vec[0]);
    if (!cpu_matmul(c, 1, &w, tensor_data(&op->in[0]), m, &l.logits, &bias))
        return;
    if (m == 1)
        route_row(&l, 0, 0);
    else
        pool_run(c->pool, (size_t)m, route_row, &l);
}

/* ---- experts ------------------------------------------------------------------------------------------------- */

/* Work is cut into (item, chunk of rows), node by node of the memory that the rows lie on. In direct dispatch an item
 * is a token-expert pair, in sorted dispatch an expert with all its pairs, which stand together in expert order. */
struct item {
    int32_t slot, expert;
    bool is_again;   /* an item before this one has the same expert */
    int32_t row0, n; /* rows of the hidden block, and of the gathered activations in sorted dispatch */
};

/* The rows of a matrix that lie on a node. */
struct node_rows {
    int64_t row0, row1, n_chunk;
};

struct experts {
    struct cpu *c;
    const struct op *op;
    struct slot_pool *slot_pool;
    bool sorted;
    int64_t k, n_item, n_pair;
    struct item *items;   /* [n_item] */
    int32_t *pair_of_row; /* hidden row -> token * k + rank */
    struct kernel_act gate_x, up_x, down_x;
    float *hidden;                /* [n_pair][n_ff] */
    int64_t chunk_rows, n_walked; /* matrices of an item that a loop walks through, one after the other */
    struct node_rows rows[TOPOLOGY_MAX_NODE];
    size_t first_task[TOPOLOGY_MAX_NODE + 1];
    char *pack_tile; /* a thread pack_bytes; NULL: no expert's matrix is raw */
    size_t pack_bytes;
    float *work; /* sorted: two tiles a thread of TILE_TOKENS x chunk */
    /* direct: */
    float *up;          /* [n_pair][n_ff] */
    atomic_int *n_left; /* [n_item] chunks of gate and up that are not done */
    struct cpu_act_rows down_rows;
};

enum { TILE_TOKENS = 64 };

/* What a task is: rows [row0, row1) of an item's matrix that lie on a node. */
struct span {
    int node, walked; /* walked: which of the n_walked matrices, from 0 */
    int64_t item, row0, row1;
};

static struct span span_of(const struct experts *x, size_t task)
{
    int node = pool_n_node(x->c->pool) - 1;
    while (task < x->first_task[node])
        node--;
    const struct node_rows *r = &x->rows[node];
    int64_t i = (int64_t)(task - x->first_task[node]), walk = x->n_walked * r->n_chunk;
    struct span s = {.node = node, .walked = (int)(i % walk / r->n_chunk), .item = i / walk};
    s.row0 = r->row0 + i % r->n_chunk * x->chunk_rows;
    s.row1 = s.row0 + x->chunk_rows < r->row1 ? s.row0 + x->chunk_rows : r->row1;
    return s;
}

/* A matrix in a slot, as far as it lies on a node. */
static char *matrix_data(const struct experts *x, int node, int32_t slot, enum expert_matrix which)
{
    const struct slot_pool_part *part = &x->slot_pool->part[node];
    return part->data + (size_t)slot * part->slot_bytes + part->image.off[which] +
           x->slot_pool->slots[slot][which].shift;
}

/* Packs rows of a raw matrix, which then lies on one node. No other task may work on them. */
static void pack_rows(const struct experts *x, const struct item *it, enum expert_matrix which, int64_t row0,
                      int64_t row1, int thread)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    if (x->slot_pool->slots[it->slot][which].is_raw)
        layout_pack_in_place(x->slot_pool->part[0].image.layout[which], d->type[which],
                             matrix_data(x, 0, it->slot, which), (uint64_t)row0, (uint64_t)(row1 - row0),
                             (uint64_t)slot_matrix_rows(d, which), (uint64_t)slot_matrix_k(d, which),
                             x->c->kernels->r16_put, x->pack_tile + (size_t)thread * x->pack_bytes);
}

/* All tasks on these matrices of the items are done. */
static void note_packed(const struct experts *x, enum expert_matrix first, enum expert_matrix last)
{
    for (int64_t i = 0; x->pack_tile && i < x->n_item; i++)
        for (enum expert_matrix which = first; which <= last; which++)
            x->slot_pool->slots[x->items[i].slot][which].is_raw = false;
}

/* A span's rows of one matrix of its expert, times a tile of its tokens, plus its bias: into a tile [m][chunk]. */
static void expert_product(const struct experts *x, const struct span *s, enum expert_matrix which,
                           const struct kernel_act *act, int64_t m, float *y)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    const struct item *it = &x->items[s->item];
    const struct node_rows *r = &x->rows[s->node];
    /* kernels store at y[t * ldy + row]: shift the tile so that the span's first row lands on its first column */
    const struct kernel_matmul a = {.w = matrix_data(x, s->node, it->slot, which),
                                    .k = slot_matrix_k(d, which),
                                    .n_row = r->row1 - r->row0,
                                    .row0 = s->row0 - r->row0,
                                    .row1 = s->row1 - r->row0,
                                    .x = act,
                                    .m = m,
                                    .y = y - (s->row0 - r->row0),
                                    .ldy = x->chunk_rows};
    x->c->kernels->matmul[d->type[which]->type](&a);
    const float *bias = tensor_data(&x->op->vec[which]);
    if (!bias)
        return;
    bias += it->expert * slot_matrix_rows(d, which) + s->row0;
    for (int64_t t = 0; t < m; t++)
        x->c->kernels->add(y + t * x->chunk_rows, y + t * x->chunk_rows, bias, s->row1 - s->row0);
}

/* The products of hidden rows [row, row + m) times their experts' weights, in a family that weighs what goes in. */
static void weigh(const struct experts *x, int64_t row, int64_t m, float *gate, float *up, int64_t n)
{
    const float *weights = tensor_data(&x->op->in[3]);
    for (int64_t t = 0; weights && t < m; t++)
        for (int64_t i = 0; i < n; i++) {
            gate[t * x->chunk_rows + i] *= weights[x->pair_of_row[row + t]];
            up[t * x->chunk_rows + i] *= weights[x->pair_of_row[row + t]];
        }
}

/* ---- sorted: an item's tokens, tile by tile */

static void gate_up_tiles(void *arg, size_t task, int thread)
{
    const struct experts *x = arg;
    const struct slot_pool_desc *d = &x->slot_pool->d;
    struct span s = span_of(x, task);
    const struct item *it = &x->items[s.item];
    float *gate = x->work + (int64_t)thread * 2 * TILE_TOKENS * x->chunk_rows;
    float *up = gate + TILE_TOKENS * x->chunk_rows;
    pack_rows(x, it, EXPERT_GATE, s.row0, s.row1, thread);
    pack_rows(x, it, EXPERT_UP, s.row0, s.row1, thread);
    for (int64_t i = 0; i < it->n; i += TILE_TOKENS) {
        int64_t m = it->n - i < TILE_TOKENS ? it->n - i : TILE_TOKENS;
        struct kernel_act ga = cpu_act_row(&x->gate_x, it->row0 + i), ua = cpu_act_row(&x->up_x, it->row0 + i);
        expert_product(x, &s, EXPERT_GATE, &ga, m, gate);
        expert_product(x, &s, EXPERT_UP, &ua, m, up);
        weigh(x, it->row0 + i, m, gate, up, s.row1 - s.row0);
        for (int64_t t = 0; t < m; t++)
            x->c->kernels->act_mul(cpu_act_fn(x->op->experts.act), x->hidden + (it->row0 + i + t) * d->n_ff + s.row0,
                                   gate + t * x->chunk_rows, up + t * x->chunk_rows, s.row1 - s.row0);
    }
}

static void down_tiles(void *arg, size_t task, int thread)
{
    const struct experts *x = arg;
    const struct slot_pool_desc *d = &x->slot_pool->d;
    struct span s = span_of(x, task);
    const struct item *it = &x->items[s.item];
    float *tile = x->work + (int64_t)thread * 2 * TILE_TOKENS * x->chunk_rows;
    float *y = tensor_data(&x->op->out[0]);
    pack_rows(x, it, EXPERT_DOWN, s.row0, s.row1, thread);
    for (int64_t i = 0; i < it->n; i += TILE_TOKENS) {
        int64_t m = it->n - i < TILE_TOKENS ? it->n - i : TILE_TOKENS;
        struct kernel_act act = cpu_act_row(&x->down_x, it->row0 + i);
        expert_product(x, &s, EXPERT_DOWN, &act, m, tile);
        for (int64_t t = 0; t < m; t++)
            memcpy(y + x->pair_of_row[it->row0 + i + t] * d->n_embd + s.row0, tile + t * x->chunk_rows,
                   (size_t)(s.row1 - s.row0) * sizeof *y);
    }
}

/* ---- direct: one token an item, its expert's matrices in the order in which they lie in the slot, so that a thread
 * walks through memory with few jumps */

static void gate_up_chunk(void *arg, size_t task, int thread)
{
    const struct experts *x = arg;
    const struct slot_pool_desc *d = &x->slot_pool->d;
    struct span s = span_of(x, task);
    enum expert_matrix which = s.walked == 0 ? EXPERT_GATE : EXPERT_UP;
    float *gate = x->hidden + s.item * d->n_ff, *up = x->up + s.item * d->n_ff;
    struct kernel_act act = cpu_act_row(which == EXPERT_GATE ? &x->gate_x : &x->up_x, x->pair_of_row[s.item] / x->k);
    pack_rows(x, &x->items[s.item], which, s.row0, s.row1, thread);
    expert_product(x, &s, which, &act, 1, (which == EXPERT_GATE ? gate : up) + s.row0);
    if (atomic_fetch_sub(&x->n_left[s.item], 1) > 1)
        return;
    weigh(x, s.item, 1, gate, up, d->n_ff);
    x->c->kernels->act_mul(cpu_act_fn(x->op->experts.act), gate, gate, up, d->n_ff);
    cpu_round_row(&x->down_rows, s.item);
}

static void down_chunk(void *arg, size_t task, int thread)
{
    const struct experts *x = arg;
    struct span s = span_of(x, task);
    struct kernel_act act = cpu_act_row(&x->down_x, s.item);
    pack_rows(x, &x->items[s.item], EXPERT_DOWN, s.row0, s.row1, thread);
    expert_product(x, &s, EXPERT_DOWN, &act, 1,
                   (float *)tensor_data(&x->op->out[0]) + x->pair_of_row[s.item] * x->slot_pool->d.n_embd + s.row0);
}

/* ---- the plan: what is computed, in which order */

/* Direct: one item for each pair whose expert has a slot, in token and rank order. `seen` has n_expert places. */
static void plan_direct(struct experts *x, const int32_t *ids, const int32_t *slots, int64_t n_pair, int64_t n_expert,
                        int32_t *seen)
{
    memset(seen, 0, (size_t)n_expert * sizeof *seen);
    for (int64_t p = 0; p < n_pair; p++) {
        int32_t slot = slots[ids[p]];
        if (slot < 0)
            continue;
        x->pair_of_row[x->n_item] = (int32_t)p;
        x->items[x->n_item] = (struct item){
            .slot = slot, .expert = ids[p], .is_again = seen[ids[p]]++, .row0 = (int32_t)x->n_item, .n = 1};
        x->n_item++;
    }
    x->n_pair = x->n_item;
}

/* Sorted: histogram, prefix sum, scatter; one item for each expert that has pairs. `first` has n_expert + 1 places. */
static void plan_sorted(struct experts *x, const int32_t *ids, const int32_t *slots, int64_t n_pair, int64_t n_expert,
                        int32_t *first)
{
    memset(first, 0, (size_t)(n_expert + 1) * sizeof *first);
    for (int64_t p = 0; p < n_pair; p++)
        if (slots[ids[p]] >= 0)
            first[ids[p] + 1]++;
    for (int64_t e = 0; e < n_expert; e++) {
        if (first[e + 1])
            x->items[x->n_item++] =
                (struct item){.slot = slots[e], .expert = (int32_t)e, .row0 = first[e], .n = first[e + 1]};
        first[e + 1] += first[e];
    }
    x->n_pair = first[n_expert];
    for (int64_t p = 0; p < n_pair; p++)
        if (slots[ids[p]] >= 0)
            x->pair_of_row[first[ids[p]]++] = (int32_t)p;
#ifndef NDEBUG
    for (int64_t i = 0; i < x->n_item; i++) /* the contract with the kernels: an item's rows are its expert's */
        for (int32_t r = 0; r < x->items[i].n; r++)
            assert(slots[ids[x->pair_of_row[x->items[i].row0 + r]]] == x->items[i].slot);
#endif
}

/* Each expert's weights once, however many of its pairs. `seen` has n_expert places. */
static void count_experts(struct experts *x, const int32_t *ids, const int32_t *slots, int64_t n_pair, int32_t *seen,
                          int64_t n_expert)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    int64_t n_read = 0;
    memset(seen, 0, (size_t)n_expert * sizeof *seen);
    for (int64_t p = 0; p < n_pair; p++)
        n_read += slots[ids[p]] >= 0 && !seen[ids[p]]++;
    x->c->counters.n_expert_rows += (uint64_t)x->n_pair;
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        cpu_count_product(x->c, OP_EXPERTS, d->type[i], slot_matrix_rows(d, i), slot_matrix_k(d, i), n_read, x->n_pair);
}

struct gather {
    const struct experts *x;
    struct kernel_act from;
    float *f32;
    int8_t *q;
    float *d;
    int16_t *sum;
};

static void gather_row(void *arg, size_t row, int thread)
{
    const struct gather *g = arg;
    int64_t k = g->from.k, r = (int64_t)row;
    struct kernel_act a = cpu_act_row(&g->from, g->x->pair_of_row[r] / g->x->k);
    if (g->f32) {
        memcpy(g->f32 + r * k, a.f32, (size_t)k * sizeof *g->f32);
        return;
    }
    int64_t n_scale = kernel_act_n_scale(a.kind, k), n_sum = kernel_act_n_sum(a.kind, k);
    memcpy(g->q + r * k, a.q, (size_t)k);
    memcpy(g->d + r * n_scale, a.d, (size_t)n_scale * sizeof *g->d);
    memcpy(g->sum + r * n_sum, a.sum, (size_t)n_sum * sizeof *g->sum);
}

/* The activations of x's pairs in expert order, in place of those by token. */
static bool gather_act(struct experts *x, struct kernel_act *a)
{
    int64_t n = x->n_pair, k = a->k, n_scale = kernel_act_n_scale(a->kind, k), n_sum = kernel_act_n_sum(a->kind, k);
    bool is_float = a->kind == QUANT_ACT_FLOAT;
    size_t q_bytes = align64((size_t)(n * k) * (is_float ? sizeof(float) : 1));
    size_t d_bytes = align64((size_t)(n * n_scale) * sizeof(float));
    char *p = cpu_scratch(x->c, SCRATCH_GATHER + a->kind, q_bytes + d_bytes + (size_t)(n * n_sum) * sizeof(int16_t));
    if (!p)
        return false;
    struct gather g = {.x = x, .from = *a};
    if (is_float) {
        a->f32 = g.f32 = (float *)p;
    } else {
        a->q = g.q = (int8_t *)p;
        a->d = g.d = (float *)(p + q_bytes);
        a->sum = g.sum = (int16_t *)(p + q_bytes + d_bytes);
    }
    pool_run(x->c->pool, (size_t)n, gather_row, &g);
    return true;
}

/* Cuts the n_row rows of length k of the items' matrices into chunks; returns how many an item has. */
static int64_t cut_items(struct experts *x, int64_t n_row, int64_t k, int n_walked)
{
    int n_node = pool_n_node(x->c->pool);
    int64_t n_chunk = 0;
    x->chunk_rows = cpu_chunk_rows(x->c, n_row * x->n_item, k, x->sorted ? x->n_pair : 1);
    if (x->chunk_rows > n_row)
        x->chunk_rows = (n_row + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS * LAYOUT_R16_ROWS;
    x->n_walked = n_walked;
    for (int i = 0; i < n_node; i++) {
        struct node_rows *r = &x->rows[i];
        *r = (struct node_rows){.row0 = cpu_node_row(x->c, i, n_row), .row1 = cpu_node_row(x->c, i + 1, n_row)};
        r->n_chunk = (r->row1 - r->row0 + x->chunk_rows - 1) / x->chunk_rows;
        x->first_task[i] = (size_t)(x->n_item * n_chunk);
        n_chunk += n_walked * r->n_chunk;
    }
    x->first_task[n_node] = (size_t)(x->n_item * n_chunk);
    return n_chunk;
}

static bool run_tiles(struct experts *x, int64_t n_row, int64_t k, pool_fn *task)
{
    cut_items(x, n_row, k, 1);
    size_t tile_bytes = align64((size_t)(TILE_TOKENS * x->chunk_rows) * sizeof *x->work);
    x->work = cpu_scratch(x->c, SCRATCH_THREAD, tile_bytes * 2 * (size_t)pool_n_threads(x->c->pool));
    if (x->work)
        pool_run_nodes(x->c->pool, x->first_task, task, x);
    return x->work != NULL;
}

/* Rounds the rows of `in` to what the gate and up products take, by token or, sorted, in expert order. */
static bool prepare_inputs(struct experts *x, const float *in, int64_t m)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    enum quant_act gate = x->c->kernels->act[d->type[EXPERT_GATE]->type],
                   up = x->c->kernels->act[d->type[EXPERT_UP]->type];
    if (!cpu_round_act(x->c, SCRATCH_ACT + gate, gate, in, m, d->n_embd, &x->gate_x) ||
        (x->sorted && !gather_act(x, &x->gate_x)))
        return false;
    if (up == gate) {
        x->up_x = x->gate_x;
        return true;
    }
    return cpu_round_act(x->c, SCRATCH_ACT + up, up, in, m, d->n_embd, &x->up_x) &&
           (!x->sorted || gather_act(x, &x->up_x));
}

/* Shows an observer what each expert's matrices were multiplied by. */
static void observe_experts(const struct experts *x)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    int64_t n_expert = x->op->in[2].ne[0];
    if (!x->c->observer || !x->op->experts.tensors)
        return;
    const float *in = tensor_data(&x->op->in[0]), *weights = tensor_data(&x->op->in[3]);
    for (int which = 0; which < EXPERT_N_MATRIX; which++) {
        struct observed o = {.tensor = x->op->experts.tensors[which], .n_matrix = n_expert, .n_row = 1, .scale = 1};
        o.stride = o.k = slot_matrix_k(d, which);
        for (int64_t i = 0; o.tensor && i < x->n_item; i++)
            for (int64_t r = x->items[i].row0; r < x->items[i].row0 + x->items[i].n; r++) {
                int32_t pair = x->pair_of_row[r];
                o.matrix = x->items[i].expert;
                o.x = which == EXPERT_DOWN ? x->hidden + r * o.k : in + pair / x->k * o.k;
                if (weights && which != EXPERT_DOWN)
                    o.scale = weights[pair];
                x->c->observer(x->c->observer_user, &o);
            }
    }
}

static bool run_sorted(struct experts *x)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    enum quant_act kind = x->c->kernels->act[d->type[EXPERT_DOWN]->type];
    if (!run_tiles(x, d->n_ff, d->n_embd, gate_up_tiles))
        return false;
    note_packed(x, EXPERT_GATE, EXPERT_UP);
    if (!cpu_round_act(x->c, SCRATCH_ACT_H + kind, kind, x->hidden, x->n_pair, d->n_ff, &x->down_x) ||
        !run_tiles(x, d->n_embd, d->n_ff, down_tiles))
        return false;
    note_packed(x, EXPERT_DOWN, EXPERT_DOWN);
    return true;
}

static void pack_item(void *arg, size_t task, int thread)
{
    const struct experts *x = arg;
    const struct item *it = &x->items[task / EXPERT_N_MATRIX];
    enum expert_matrix which = (enum expert_matrix)(task % EXPERT_N_MATRIX);
    if (!it->is_again)
        pack_rows(x, it, which, 0, slot_matrix_rows(&x->slot_pool->d, which), thread);
}

static bool run_direct(struct experts *x)
{
    const struct slot_pool_desc *d = &x->slot_pool->d;
    enum quant_act kind = x->c->kernels->act[d->type[EXPERT_DOWN]->type];
    if (!cpu_place_act(x->c, SCRATCH_ACT_H + kind, kind, x->hidden, x->n_pair, d->n_ff, &x->down_rows, &x->down_x))
        return false;
    if (x->pack_tile && x->op->in[0].ne[1] > 1) { /* several items may have one expert: it is packed before */
        pool_run(x->c->pool, EXPERT_N_MATRIX * (size_t)x->n_item, pack_item, x);
        note_packed(x, EXPERT_GATE, EXPERT_DOWN);
    }
    int64_t n_chunk = cut_items(x, d->n_ff, d->n_embd, 2);
    for (int64_t i = 0; i < x->n_item; i++)
        atomic_init(&x->n_left[i], (int)n_chunk);
    pool_run_nodes(x->c->pool, x->first_task, gate_up_chunk, x);
    note_packed(x, EXPERT_GATE, EXPERT_UP);
    cut_items(x, d->n_embd, d->n_ff, 1);
    pool_run_nodes(x->c->pool, x->first_task, down_chunk, x);
    note_packed(x, EXPERT_DOWN, EXPERT_DOWN);
    return true;
}

static bool any_raw(const struct slot_pool *slot_pool, const int32_t *ids, const int32_t *slots, int64_t n_pair)
{
    for (int64_t p = 0; p < n_pair; p++)
        for (int which = 0; which < EXPERT_N_MATRIX && slots[ids[p]] >= 0; which++)
            if (slot_pool->slots[slots[ids[p]]][which].is_raw)
                return true;
    return false;
}

/* Room for what a thread packs at once. */
static bool prepare_packing(struct experts *x)
{
    for (int which = 0; which < EXPERT_N_MATRIX; which++) {
        size_t n = 0;
        quant_row_bytes(x->slot_pool->d.type[which], (uint64_t)slot_matrix_k(&x->slot_pool->d, which), &n);
        n = align64(n * LAYOUT_R16_ROWS);
        x->pack_bytes = n > x->pack_bytes ? n : x->pack_bytes;
    }
    x->pack_tile = cpu_scratch(x->c, SCRATCH_PACK, x->pack_bytes * (size_t)pool_n_threads(x->c->pool));
    return x->pack_tile != NULL;
}

void cpu_op_experts(struct cpu *c, const struct op *op)
{
    const struct slot_pool_desc *d = &op->slot_pool->d;
    int64_t m = op->in[0].ne[1], k = op->in[1].ne[0], n_expert = op->in[2].ne[0], n_pair = m * k;
    const int32_t *ids = tensor_data(&op->in[1]), *slots = tensor_data(&op->in[2]);
    bool raw = any_raw(op->slot_pool, ids, slots, n_pair);
    struct experts x = {.c = c, .op = op, .slot_pool = op->slot_pool, .k = k, .sorted = m > op->experts.sort_cutoff};
    size_t items_bytes = align64((size_t)n_pair * sizeof *x.items);
    size_t pairs_bytes = align64((size_t)n_pair * sizeof *x.pair_of_row);
    size_t left_bytes = align64((size_t)n_pair * sizeof *x.n_left);
    size_t by_expert_bytes = (size_t)(n_expert + 1) * sizeof(int32_t);
    char *plan = cpu_scratch(c, SCRATCH_ORDER, items_bytes + pairs_bytes + left_bytes + by_expert_bytes);
    if (!plan)
        return;
    x.items = (struct item *)plan;
    x.pair_of_row = (int32_t *)(plan + items_bytes);
    x.n_left = (atomic_int *)(plan + items_bytes + pairs_bytes);
    int32_t *by_expert = (int32_t *)(plan + items_bytes + pairs_bytes + left_bytes);
    if (x.sorted)
        plan_sorted(&x, ids, slots, n_pair, n_expert, by_expert);
    else
        plan_direct(&x, ids, slots, n_pair, n_expert, by_expert);
    x.hidden = cpu_scratch(c, SCRATCH_HIDDEN, (size_t)((x.sorted ? 1 : 2) * x.n_pair * d->n_ff) * sizeof *x.hidden);
    if (!x.hidden || (raw && !prepare_packing(&x)) || !prepare_inputs(&x, tensor_data(&op->in[0]), m))
        return;
    x.up = x.hidden + x.n_pair * d->n_ff;
    if (!(x.sorted ? run_sorted : run_direct)(&x))
        return;
    *(x.sorted ? &c->counters.n_sorted : &c->counters.n_direct) += 1;
    count_experts(&x, ids, slots, n_pair, by_expert, n_expert);
    observe_experts(&x);
}

/* ---- combine ------------------------------------------------------------------------------------------------- */

struct combine_loop {
    struct cpu *c;
    const struct op *op;
};

static void combine_row(void *arg, size_t t, int thread)
{
    const struct combine_loop *l = arg;
    const struct kernels *kern = l->c->kernels;
    const struct op *op = l->op;
    int64_t n = op->out[0].ne[0], k = op->in[0].ne[1], i = (int64_t)t;
    const float *y = (const float *)tensor_data(&op->in[0]) + i * k * n;
    const float *w = tensor_data(&op->in[1]);
    const float *shared = tensor_data(&op->in[2]), *shared_gate = tensor_data(&op->in[3]);
    float *out = (float *)tensor_data(&op->out[0]) + i * n;
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t r = 0; r < k; r++)
        kern->fma_scalar(out, y + r * n, w ? w[i * k + r] : 1, n);
    if (!shared)
        return;
    if (shared_gate) {
        float e, sum, minus = -shared_gate[i];
        kern->exp_sum(&e, &minus, 0, 1, &sum);
        kern->fma_scalar(out, shared + i * n, 1 / (1 + e), n);
    } else {
        kern->add(out, out, shared + i * n, n);
    }
}

void cpu_op_combine(struct cpu *c, const struct op *op)
{
    struct combine_loop l = {c, op};
    int64_t m = op->out[0].ne[1];
    if (m > 4)
        pool_run(c->pool, (size_t)m, combine_row, &l);
    else
        for (int64_t t = 0; t < m; t++)
            combine_row(&l, (size_t)t, 0);
}
