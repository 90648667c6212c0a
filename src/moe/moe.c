#include "moe/moe.h"

#include <assert.h>
#include <string.h>

#include "backend/route.h"

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

err_code moe_work_create(struct moe_work *w, struct backend *b, const struct moe_layer *layers, int n_layer,
                         int64_t n_batch, struct arena *arena, struct err *e)
{
    int64_t used = 1, expert = 1, embd = 1, shared = 0;
    for (int i = 0; i < n_layer; i++) {
        used = max_i64(used, layers[i].n_used);
        expert = max_i64(expert, layers[i].n_expert);
        embd = max_i64(embd, layers[i].n_embd);
        shared = max_i64(shared, layers[i].shared_down ? layers[i].n_ff_shared : 0);
    }
    *w = (struct moe_work){0};
    w->host_ids = arena_calloc(arena, (size_t)(used * n_batch), sizeof *w->host_ids);
    w->host_guess = arena_calloc(arena, (size_t)(used * n_batch), sizeof *w->host_guess);
    w->host_table = arena_calloc(arena, (size_t)expert, sizeof *w->host_table);
    w->host_scores = arena_calloc(arena, (size_t)expert, sizeof *w->host_scores);
    w->host_factors = arena_calloc(arena, (size_t)expert, sizeof *w->host_factors);
    w->at_hand = arena_calloc(arena, (size_t)expert, sizeof *w->at_hand);
    w->host_wanted = arena_calloc(arena, (size_t)used, sizeof *w->host_wanted);
    w->host_weights = arena_calloc(arena, (size_t)used, sizeof *w->host_weights);
    w->host_ratio = arena_calloc(arena, (size_t)used, sizeof *w->host_ratio);
    if (!w->host_ids || !w->host_guess || !w->host_table || !w->host_scores || !w->host_factors || !w->at_hand ||
        !w->host_wanted || !w->host_weights || !w->host_ratio)
        return err_nomem(e, (size_t)(used * n_batch) * sizeof *w->host_ids, "routing");
    TRY(backend_tensor_create(b, ELEM_I32, used, n_batch, 1, MEM_SCRATCH, &w->ids, e));
    TRY(backend_tensor_create(b, ELEM_F32, used, n_batch, 1, MEM_SCRATCH, &w->weights, e));
    TRY(backend_tensor_create(b, ELEM_I32, used, n_batch, 1, MEM_SCRATCH, &w->guess_ids, e));
    TRY(backend_tensor_create(b, ELEM_F32, used, n_batch, 1, MEM_SCRATCH, &w->guess_weights, e));
    TRY(backend_tensor_create(b, ELEM_F32, embd, used, n_batch, MEM_SCRATCH, &w->y, e));
    TRY(backend_tensor_create(b, ELEM_I32, expert, 1, 1, MEM_SCRATCH, &w->slots, e));
    TRY(backend_tensor_create(b, ELEM_F32, expert, 1, 1, MEM_SCRATCH, &w->scores, e));
    if (shared == 0)
        return ERR_OK;
    TRY(backend_tensor_create(b, ELEM_F32, shared, n_batch, 1, MEM_SCRATCH, &w->shared_gate, e));
    TRY(backend_tensor_create(b, ELEM_F32, shared, n_batch, 1, MEM_SCRATCH, &w->shared_up, e));
    TRY(backend_tensor_create(b, ELEM_F32, embd, n_batch, 1, MEM_SCRATCH, &w->shared_y, e));
    return backend_tensor_create(b, ELEM_F32, 1, n_batch, 1, MEM_SCRATCH, &w->shared_weight, e);
}

enum { N_TENSOR = 11 };

static void tensors(struct moe_work *w, struct tensor *out[N_TENSOR])
{
    struct tensor *all[] = {&w->ids,          &w->weights,       &w->y,           &w->slots,     &w->scores,
                            &w->guess_ids,    &w->guess_weights, &w->shared_gate, &w->shared_up, &w->shared_y,
                            &w->shared_weight};
    _Static_assert(sizeof all / sizeof *all == N_TENSOR, "all of them");
    memcpy(out, all, sizeof all);
}

size_t moe_work_bytes(struct moe_work *w)
{
    struct tensor *all[N_TENSOR];
    size_t n = 0;
    tensors(w, all);
    for (int i = 0; i < N_TENSOR; i++)
        n += all[i]->buffer ? tensor_bytes(all[i]) : 0;
    return n;
}

void moe_work_close(struct moe_work *w, struct backend *b)
{
    struct tensor *all[N_TENSOR];
    tensors(w, all);
    for (int i = 0; i < N_TENSOR; i++)
        backend_buffer_close(b, &all[i]->buffer);
}

/* A work tensor cut to the shape of a call. */
static struct tensor cut(struct tensor t, int64_t ne0, int64_t ne1, int64_t ne2)
{
    t.ne[0] = ne0;
    t.ne[1] = ne1;
    t.ne[2] = ne2;
    return t;
}

/* Where the experts' results go. A single token's have a place for each layer: threads that write where others have
 * just read wait for those to let go, where caches are far apart. */
static struct tensor place_y(const struct moe_work *w, const struct moe_layer *l, int64_t m)
{
    struct tensor y = cut(w->y, l->n_embd, l->n_used, m);
    if (m == 1)
        y.off_bytes += (size_t)(l->experts_layer % w->y.ne[2]) * tensor_bytes(&y);
    return y;
}

/* The tensors of one call, at its number of tokens. */
struct call {
    struct tensor x, router_x, ids, weights, scores, y; /* scores: absent unless somebody may stand in */
    struct tensor shared, shared_weight;                /* absent where there is none */
};

/* scores may be absent */
static void enqueue_route(struct backend *b, const struct moe_layer *l, const struct tensor *x,
                          const struct tensor *ids, const struct tensor *weights, const struct tensor *scores)
{
    backend_enqueue(b, &(struct op){.kind = OP_ROUTE,
                                    .in = {*x},
                                    .out = {*ids, *weights, *scores},
                                    .weight = {l->router},
                                    .vec = {l->router_bias, l->choice_bias, l->expert_scale},
                                    .route = {l->score, l->norm_weights, l->scale, l->n_group, l->n_group_used}});
}

static void enqueue_experts(struct backend *b, struct experts *experts, const struct moe_layer *l, const struct call *c,
                            const struct tensor *slots, int64_t sort_cutoff)
{
    backend_enqueue(b, &(struct op){.kind = OP_EXPERTS,
                                    .in = {c->x, c->ids, *slots, l->weighs_input ? c->weights : (struct tensor){0}},
                                    .out = {c->y},
                                    .vec = {l->bias[EXPERT_GATE], l->bias[EXPERT_UP], l->bias[EXPERT_DOWN]},
                                    .slot_pool = experts_slot_pool(experts, l->experts_layer),
                                    .experts = {l->act, sort_cutoff, l->tensors}});
}

/* Shows the router the state with `sum` added. */
static err_code guess(struct backend *b, struct experts *experts, const struct moe_next *next, struct moe_work *w,
                      const struct tensor *sum, struct err *e)
{
    const struct moe_layer *l = next->layer;
    int64_t m = next->router_x.ne[1], n = m * l->n_used;
    struct tensor ids = cut(w->guess_ids, l->n_used, m, 1), weights = cut(w->guess_weights, l->n_used, m, 1);
    next->foresee(next->user, sum);
    enqueue_route(b, l, &next->router_x, &ids, &weights, &(struct tensor){0});
    TRY(backend_read(b, &ids, w->host_guess, e));
    if (next->prefetch) /* with so many tokens most experts are needed anyway */
        experts_prefetch(experts, l->experts_layer, w->host_guess, n, n >= l->n_expert);
    return ERR_OK;
}

err_code moe_guess(struct backend *b, struct experts *experts, const struct moe_next *next, struct moe_work *w,
                   const struct moe_trace *trace, struct err *e)
{
    const struct moe_layer *l = next->layer;
    TRY(guess(b, experts, next, w, &(struct tensor){0}, e));
    if (trace && trace->guessed)
        trace->guessed(trace->user, l->experts_layer, next->router_x.ne[1], l->n_used, w->host_guess);
    return ERR_OK;
}

static void enqueue_combine(struct backend *b, const struct moe_layer *l, const struct call *c,
                            const struct tensor *out)
{
    const struct tensor weights = l->weighs_input ? (struct tensor){0} : c->weights;
    backend_enqueue(
        b, &(struct op){.kind = OP_COMBINE, .in = {c->y, weights, c->shared, c->shared_weight}, .out = {*out}});
}

/* Experts that are not all at hand, as they become ready. Where some must be waited for, the guess at the next layer's
 * choice gets better with each that has added its part. */
static err_code run_waves(struct backend *b, struct experts *experts, const struct moe_layer *l, struct moe_work *w,
                          const struct call *c, const struct moe_run *run, struct err *e)
{
    struct tensor table = cut(w->slots, l->n_expert, 1, 1);
    const struct moe_next *next = run->next;
    bool refine = next && next->prefetch && c->x.ne[1] == 1 && experts_may_guess(experts);
    if (refine)
        backend_clear(b, &c->y); /* who is not there yet adds nothing */
    for (int64_t n;;) {
        TRY(cancel_check(run->cancel, e));
        TRY(experts_fetch_next(experts, w->host_table, &n, e));
        experts_backfill(experts);
        if (n == 0)
            return ERR_OK;
        backend_write(b, &table, w->host_table);
        enqueue_experts(b, experts, l, c, &table, run->sort_cutoff);
        TRY(backend_wait(b, backend_fence(b), e));
        if (refine && experts_may_guess(experts)) {
            enqueue_combine(b, l, c, &next->router_x);
            TRY(guess(b, experts, next, w, &next->router_x, e));
        }
    }
}

/* Begins the experts' turn with what the router chose, or with what stands in for some of it: that then takes its place
 * in device memory, ids and weights. */
static err_code begin_fetch(struct backend *b, struct experts *experts, const struct moe_layer *l, struct moe_work *w,
                            const struct call *c, const struct car *car, struct err *e)
{
    int64_t m = c->ids.ne[1], k = l->n_used, n = 0;
    if (car) {
        assert(m == 1);
        memcpy(w->host_wanted, w->host_ids, (size_t)k * sizeof *w->host_ids);
        TRY(backend_read(b, &c->scores, w->host_scores, e));
        experts_look(experts, l->experts_layer, w->at_hand);
        n = car_substitute(car, w->host_scores, w->at_hand, l->n_expert, k, w->host_ids, w->host_weights,
                           w->host_ratio);
    }
    if (n == 0) {
        experts_fetch_begin(experts, l->experts_layer, w->host_ids, m, k);
        return ERR_OK;
    }
    const float *factors = l->expert_scale.buffer ? w->host_factors : NULL;
    if (factors)
        TRY(backend_read(b, &l->expert_scale, w->host_factors, e));
    route_weigh(l->norm_weights || l->score == ROUTE_SOFTMAX_CHOSEN, l->scale, factors, k, w->host_ids,
                w->host_weights);
    backend_write(b, &c->ids, w->host_ids);
    backend_write(b, &c->weights, w->host_weights);
    experts_fetch_begin_instead(
        experts, l->experts_layer,
        &(struct experts_choice){w->host_wanted, w->host_ids, w->host_ratio, w->host_scores, k, car->n_backfill});
    return ERR_OK;
}

/* The shared expert and, where there is one, the logit of its gate. */
static void enqueue_shared(struct backend *b, const struct moe_layer *l, const struct moe_work *w,
                           const struct tensor *x, struct tensor *y, struct tensor *weight)
{
    int64_t m = x->ne[1];
    struct tensor gate = cut(w->shared_gate, l->n_ff_shared, m, 1), up = cut(w->shared_up, l->n_ff_shared, m, 1);
    *y = cut(w->shared_y, l->n_embd, m, 1);
    struct op first = {.kind = OP_MATMUL, .in = {*x}, .out = {gate, up}, .weight = {l->shared_gate, l->shared_up}};
    if (l->shared_gate_inp) {
        *weight = cut(w->shared_weight, 1, m, 1);
        first.out[2] = *weight;
        first.weight[2] = l->shared_gate_inp;
    }
    backend_enqueue(b, &first);
    backend_enqueue(b, &(struct op){.kind = OP_ACT_MUL, .in = {gate, up}, .out = {gate}, .act = l->act});
    backend_enqueue(b, &(struct op){.kind = OP_MATMUL, .in = {gate}, .out = {*y}, .weight = {l->shared_down}});
}

/* resident: the slot table of a layer whose experts are all in their slots, else NULL. */
static err_code forward(struct backend *b, struct experts *experts, const struct moe_layer *l, struct moe_work *w,
                        const struct tensor *x, const struct tensor *router_x, const struct tensor *out,
                        const struct moe_run *run, const struct tensor *resident, struct err *e)
{
    int64_t m = x->ne[1];
    const struct car *car = resident ? NULL : run->car;
    struct call c = {.x = *x,
                     .router_x = *router_x,
                     .ids = cut(w->ids, l->n_used, m, 1),
                     .weights = cut(w->weights, l->n_used, m, 1),
                     .scores = car ? cut(w->scores, l->n_expert, 1, 1) : (struct tensor){0},
                     .y = place_y(w, l, m)};
    enqueue_route(b, l, &c.router_x, &c.ids, &c.weights, &c.scores);
    if (!resident || run->trace)
        TRY(backend_read(b, &c.ids, w->host_ids, e));
    if (run->trace)
        run->trace->routed(run->trace->user, l->experts_layer, m, l->n_used, w->host_ids);
    if (!resident)
        TRY(begin_fetch(b, experts, l, w, &c, car, e));
    err_code code = run->next ? moe_guess(b, experts, run->next, w, run->trace, e) : ERR_OK;
    if (l->shared_down) /* while experts are on their way */
        enqueue_shared(b, l, w, x, &c.shared, &c.shared_weight);
    if (resident) {
        enqueue_experts(b, experts, l, &c, resident, run->sort_cutoff);
    } else {
        if (code == ERR_OK)
            code = run_waves(b, experts, l, w, &c, run, e);
        experts_fetch_end(experts);
    }
    TRY(code);
    enqueue_combine(b, l, &c, out);
    return ERR_OK;
}

err_code moe_forward(struct backend *b, struct experts *experts, const struct moe_layer *l, struct moe_work *w,
                     const struct tensor *x, const struct tensor *router_x, const struct tensor *out,
                     const struct moe_run *run, struct err *e)
{
    const struct tensor *resident = experts_pin(experts, l->experts_layer);
    err_code code = forward(b, experts, l, w, x, router_x, out, run, resident, e);
    experts_unpin(experts, l->experts_layer);
    return code;
}
