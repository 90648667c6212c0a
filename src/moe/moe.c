#include "moe/moe.h"

#include <assert.h>
#include <string.h>

#include "backend/route.h"
#include "base/minmax.h"
#include "moe/elsewhere.h"
#include "places/waves.h"

/* What the work space has room for. */
struct moe_sizes {
    int64_t n_batch, n_car;
    int64_t n_used, n_expert, n_embd, n_ff_shared; /* the largest of any layer */
    int64_t n_latent;                              /* of those with a latent; 0: none has */
    int64_t n_y;                                   /* of what experts give */
    int64_t n_shared;                              /* n_batch where a layer has a shared expert or adjugates, else 0 */
};

/* TENSOR(name, type, ne0, ne1, ne2) of device memory, sizes being those of `d`. A tensor of no elements is absent. */
#define MOE_TENSORS(TENSOR)                                                                                            \
    TENSOR(ids, ELEM_I32, d->n_used, d->n_batch, 1)     /* the experts of each token, best first */                    \
    TENSOR(weights, ELEM_F32, d->n_used, d->n_batch, 1) /* their weights */                                            \
    TENSOR(next_ids, ELEM_I32, d->n_used, d->n_batch, 1)                                                               \
    TENSOR(next_weights, ELEM_F32, d->n_used, d->n_batch, 1)                                                           \
    TENSOR(y, ELEM_F32, d->n_y, d->n_used, d->n_batch) /* each expert's result */                                      \
    TENSOR(latent_x, ELEM_F32, d->n_latent, d->n_batch, 1)                                                             \
    TENSOR(latent_sum, ELEM_F32, d->n_latent, d->n_batch, 1)                                                           \
    TENSOR(slots, ELEM_I32, d->n_expert, 1, 1)         /* the slot table of a wave */                                  \
    TENSOR(scores, ELEM_F32, d->n_expert, d->n_car, 1) /* the router's, of tokens that may have substitutes */         \
    TENSOR(shared_gate, ELEM_F32, d->n_ff_shared, d->n_shared, 1)                                                      \
    TENSOR(shared_up, ELEM_F32, d->n_ff_shared, d->n_shared, 1)                                                        \
    TENSOR(shared_y, ELEM_F32, d->n_embd, d->n_shared, 1)                                                              \
    TENSOR(shared_weight, ELEM_F32, 1, d->n_shared, 1) /* the logit of the shared expert's gate */

/* ARRAY(name, type, elements) of host memory. */
#define MOE_ARRAYS(ARRAY)                                                                                              \
    ARRAY(host_ids, int32_t, d->n_used * d->n_batch)                                                                   \
    ARRAY(host_next_ids, int32_t, d->n_used * d->n_batch)                                                              \
    ARRAY(host_slots, int32_t, d->n_expert)                                                                            \
    ARRAY(host_scores, float, d->n_expert * d->n_car) /* the rest: substitutes (car.h) */                              \
    ARRAY(host_factors, float, d->n_expert)           /* the layer's expert_scale */                                   \
    ARRAY(at_hand, bool, d->n_expert)                                                                                  \
    ARRAY(host_wanted, int32_t, d->n_used * d->n_batch) /* the router's choice */                                      \
    ARRAY(host_weights, float, d->n_used * d->n_car)                                                                   \
    ARRAY(host_ratio, float, d->n_used * d->n_car)                                                                     \
    ARRAY(host_value, float, d->n_used)

struct moe_work {
    struct backend *device;
    struct experts *experts;
    struct elsewhere *elsewhere;     /* the other places; NULL: there are none */
    const struct moe_places *places; /* with others: who they are; borrowed. NULL: there are none */
    struct arena arena;              /* of the arrays */
#define FIELD(name, ...) struct tensor name;
    MOE_TENSORS(FIELD)
#undef FIELD
#define FIELD(name, type, n) type *name;
    MOE_ARRAYS(FIELD)
#undef FIELD
};

static struct moe_sizes largest(const struct moe_layer *layers, int n_layer, int64_t n_batch)
{
    struct moe_sizes d = {
        .n_batch = n_batch, .n_car = min_i64(n_batch, MOE_MAX_CAR), .n_used = 1, .n_expert = 1, .n_embd = 1, .n_y = 1};
    for (int i = 0; i < n_layer; i++) {
        d.n_used = max_i64(d.n_used, layers[i].n_used);
        d.n_expert = max_i64(d.n_expert, layers[i].n_expert);
        d.n_embd = max_i64(d.n_embd, layers[i].n_embd);
        d.n_y = max_i64(d.n_y, layers[i].n_latent);
        if (layers[i].latent_down)
            d.n_latent = max_i64(d.n_latent, layers[i].n_latent);
        d.n_ff_shared = max_i64(d.n_ff_shared, layers[i].n_ff_shared);
        if (layers[i].shared_down || layers[i].adjugates)
            d.n_shared = n_batch;
    }
    return d;
}

static err_code create_all(struct moe_work *w, const struct moe_sizes *d, struct err *e)
{
#define CREATE(name, type, ne0, ne1, ne2)                                                                              \
    if ((ne0) * (ne1) * (ne2) > 0)                                                                                     \
        TRY(backend_tensor_create(w->device, type, ne0, ne1, ne2, MEM_SCRATCH, &w->name, e));
    MOE_TENSORS(CREATE)
#undef CREATE
#define CREATE(name, type, n)                                                                                          \
    w->name = arena_calloc(&w->arena, (size_t)(n), sizeof *w->name);                                                   \
    if (!w->name)                                                                                                      \
        return err_nomem(e, (size_t)(n) * sizeof *w->name, "routing");
    MOE_ARRAYS(CREATE)
#undef CREATE
    return ERR_OK;
}

err_code moe_work_create(struct moe_work **out, struct backend *device, struct experts *experts,
                         const struct moe_places *places, const struct moe_layer *layers, int n_layer, int64_t n_batch,
                         struct err *e)
{
    const struct moe_sizes sizes = largest(layers, n_layer, n_batch);
    struct moe_work *w = *out = mem_calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w, "routing");
    w->device = device;
    w->experts = experts;
    err_code code = create_all(w, &sizes, e);
    w->places = places;
    if (code == ERR_OK && places)
        code = elsewhere_create(&w->elsewhere, device, places, sizes.n_batch, sizes.n_used, sizes.n_y, e);
    if (code != ERR_OK)
        moe_work_close(out);
    return code;
}

size_t moe_work_bytes(const struct moe_work *w)
{
    size_t n = 0;
#define ADD(name, ...) n += w->name.buffer ? tensor_bytes(&w->name) : 0;
    if (w) {
        MOE_TENSORS(ADD)
        n += elsewhere_bytes(w->elsewhere);
    }
#undef ADD
    return n;
}

void moe_work_close(struct moe_work **out)
{
    struct moe_work *w = *out;
    if (!w)
        return;
#define CLOSE(name, ...) backend_buffer_close(w->device, &w->name.buffer);
    MOE_TENSORS(CLOSE)
#undef CLOSE
    elsewhere_close(&w->elsewhere);
    arena_close(&w->arena);
    mem_free(w);
    *out = NULL;
}

/* A work tensor cut to the shape of a call. */
static struct tensor cut(struct tensor t, int64_t ne0, int64_t ne1, int64_t ne2)
{
    t.ne[0] = ne0;
    t.ne[1] = ne1;
    t.ne[2] = ne2;
    return t;
}

/* Where the experts' results go. Those of a single token go to another place in each layer: threads that write where
 * others have just read would wait for cache lines to move between the processors. */
static struct tensor place_y(const struct moe_work *w, const struct moe_layer *l, int64_t m)
{
    struct tensor y = cut(w->y, l->n_latent, l->n_used, m);
    if (m == 1)
        y.off_bytes += (size_t)(l->experts_layer % w->y.ne[2]) * tensor_bytes(&y);
    return y;
}

/* The tensors of one call, cut to its number of tokens. */
struct call {
    struct tensor x, router_x; /* what goes into the layer and into the router */
    struct tensor tokens;
    struct tensor latent; /* what goes into routed experts: x where there is no latent */
    struct tensor ids, weights;
    int64_t n_car;        /* tokens that may have substitutes, the first ones */
    struct tensor scores; /* of these */
    struct tensor y;
    struct tensor shared, shared_weight; /* absent where there is none */
};

/* scores may be absent */
static void enqueue_route(struct backend *b, const struct moe_layer *l, const struct tensor *x,
                          const struct tensor *tokens, const struct tensor *ids, const struct tensor *weights,
                          const struct tensor *scores)
{
    backend_enqueue(b, &(struct op){.kind = OP_ROUTE,
                                    .in = {*x, l->token_experts.buffer ? *tokens : (struct tensor){0}},
                                    .out = {[ROUTE_IDS] = *ids, [ROUTE_WEIGHTS] = *weights, [ROUTE_SCORES] = *scores},
                                    .weight = {l->router},
                                    .vec = {[ROUTE_BIAS] = l->router_bias,
                                            [ROUTE_CHOICE_BIAS] = l->choice_bias,
                                            [ROUTE_EXPERT_SCALE] = l->expert_scale,
                                            [ROUTE_TOKEN_EXPERTS] = l->token_experts},
                                    .route = {l->score, l->norm_weights, l->scale, l->n_group, l->n_group_used}});
}

/* The layer's experts on the device. */
static struct waves make_waves(const struct moe_work *w, const struct moe_layer *l, const struct call *c,
                               const struct moe_run *run)
{
    return (struct waves){.device = w->device,
                          .experts = w->experts,
                          .layer = l->experts_layer,
                          .act = l->act,
                          .act_limit = l->act_limit,
                          .act_up_limit = l->act_up_limit,
                          .bias = l->bias,
                          .tensors = l->tensors,
                          .x = c->latent,
                          .ids = c->ids,
                          .weights = l->weighs_input ? c->weights : (struct tensor){0},
                          .y = c->y,
                          .slots = cut(w->slots, l->n_expert, 1, 1),
                          .host_slots = w->host_slots,
                          .sort_cutoff = run->sort_cutoff};
}

/* out = what the layer comes to */
static void enqueue_combine(const struct moe_work *w, const struct moe_layer *l, const struct call *c,
                            const struct tensor *out)
{
    const struct tensor weights = l->weighs_input ? (struct tensor){0} : c->weights;
    const struct tensor sum = cut(w->latent_sum, l->n_latent, c->x.ne[1], 1);
    if (!l->latent_up) {
        backend_enqueue(w->device, &(struct op){.kind = OP_COMBINE,
                                                .in = {[COMBINE_Y] = c->y,
                                                       [COMBINE_WEIGHTS] = weights,
                                                       [COMBINE_SHARED] = c->shared,
                                                       [COMBINE_SHARED_GATE] = c->shared_weight},
                                                .out = {*out}});
        return;
    }
    backend_enqueue(
        w->device,
        &(struct op){.kind = OP_COMBINE, .in = {[COMBINE_Y] = c->y, [COMBINE_WEIGHTS] = weights}, .out = {sum}});
    if (l->latent_norm.buffer)
        backend_enqueue(w->device, &(struct op){.kind = OP_RMS_NORM,
                                                .in = {sum},
                                                .out = {sum},
                                                .vec = {l->latent_norm},
                                                .norm = {.n = l->n_latent, .eps = l->norm_eps}});
    backend_enqueue(w->device, &(struct op){.kind = OP_MATMUL, .in = {sum}, .out = {*out}, .weight = {l->latent_up}});
    if (c->shared.buffer)
        backend_enqueue(w->device, &(struct op){.kind = OP_ADD, .in = {*out, c->shared}, .out = {*out}});
}

/* With so many choices most experts are needed anyway. */
static bool is_likely(const struct moe_layer *l, int64_t n)
{
    return n >= l->n_expert;
}

/* The next layer's choice if this layer adds `sum`, into host_next_ids. */
static err_code predict_ids(struct moe_work *w, const struct moe_next *next, const struct tensor *sum, struct err *e)
{
    const struct moe_layer *l = next->layer;
    int64_t m = next->router_x.ne[1];
    struct tensor ids = cut(w->next_ids, l->n_used, m, 1), weights = cut(w->next_weights, l->n_used, m, 1);
    next->fill_router_x(next->user, sum);
    enqueue_route(w->device, l, &next->router_x, &next->tokens, &ids, &weights, &(struct tensor){0});
    return backend_read(w->device, &ids, w->host_next_ids, e);
}

/* The same, for this device's slots. */
static err_code predict(struct moe_work *w, const struct moe_next *next, const struct tensor *sum, struct err *e)
{
    const struct moe_layer *l = next->layer;
    int64_t n = next->router_x.ne[1] * l->n_used;
    TRY(predict_ids(w, next, sum, e));
    if (next->prefetch && experts_is_fetching(w->experts, l->experts_layer))
        experts_prefetch(w->experts, l->experts_layer, w->host_next_ids, n, is_likely(l, n));
    return ERR_OK;
}

err_code moe_predict(struct moe_work *w, const struct moe_next *next, const struct moe_trace *trace, struct err *e)
{
    const struct moe_layer *l = next->layer;
    TRY(predict(w, next, &(struct tensor){0}, e));
    if (trace && trace->predicted)
        trace->predicted(trace->user, l->experts_layer, next->router_x.ne[1], l->n_used, w->host_next_ids);
    return ERR_OK;
}

/* Runs the chosen experts as they become ready. Where some must be waited for, the prediction of the next layer's
 * choice gets better with each that has added its part. */
static err_code run_waves(struct moe_work *w, const struct moe_layer *l, const struct call *c,
                          const struct moe_run *run, struct err *e)
{
    struct backend *b = w->device;
    const struct waves waves = make_waves(w, l, c, run);
    const struct moe_next *next = run->next;
    bool refine = next && next->prefetch && c->x.ne[1] == 1 && experts_may_predict(w->experts);
    if (refine)
        backend_clear(b, &c->y); /* experts of later waves add zeros */
    for (int64_t n;;) {
        TRY(cancel_check(run->cancel, e));
        TRY(waves_next(&waves, &n, e));
        if (n == 0)
            return ERR_OK;
        if (refine && experts_may_predict(w->experts)) {
            enqueue_combine(w, l, c, &next->router_x);
            TRY(predict(w, next, &next->router_x, e));
        }
    }
}

/* Puts substitutes for some of a token's experts into host_ids, and the weights that follow into host_weights. Returns
 * how many there are; without any, both stay as they are. */
static int64_t substitute(struct moe_work *w, const struct moe_layer *l, const struct car *car, int64_t t)
{
    int32_t *ids = w->host_ids + t * l->n_used;
    float *ratio = w->host_ratio + t * l->n_used, *value = w->host_value;
    int64_t n =
        car_substitute(car, w->host_scores + t * l->n_expert, w->at_hand, l->n_expert, l->n_used, ids, value, ratio);
    if (n == 0)
        return 0;
    route_weigh(l->norm_weights || l->score == ROUTE_SOFTMAX_CHOSEN, l->scale,
                l->expert_scale.buffer ? w->host_factors : NULL, l->n_used, ids, value);
    memcpy(w->host_weights + t * l->n_used, value, (size_t)l->n_used * sizeof *value);
    return n;
}

/* Substitutes for the tokens that may have some: *n of them in all. */
static err_code substitute_all(struct moe_work *w, const struct moe_layer *l, const struct call *c,
                               const struct moe_run *run, int64_t *n, struct err *e)
{
    const struct tensor weights = tensor_rows(c->weights, 0, c->n_car);
    memcpy(w->host_wanted, w->host_ids, (size_t)tensor_n_elem(&c->ids) * sizeof *w->host_ids);
    TRY(backend_read(w->device, &c->scores, w->host_scores, e));
    TRY(backend_read(w->device, &weights, w->host_weights, e));
    if (l->expert_scale.buffer)
        TRY(backend_read(w->device, &l->expert_scale, w->host_factors, e));
    experts_look(w->experts, l->experts_layer, w->at_hand);
    *n = 0;
    for (int64_t t = 0; t < c->n_car; t++)
        if (run->car[t])
            *n += substitute(w, l, run->car[t], t);
    return ERR_OK;
}

/* Begins to fetch what the router chose or, where there are any, its substitutes: ids and weights in device memory are
 * then replaced. */
static err_code begin_fetch(struct moe_work *w, const struct moe_layer *l, const struct call *c,
                            const struct moe_run *run, struct err *e)
{
    int64_t n = 0, n_backfill = 0;
    if (c->n_car)
        TRY(substitute_all(w, l, c, run, &n, e));
    if (n == 0) {
        experts_fetch_begin(w->experts, l->experts_layer, w->host_ids, c->ids.ne[1], l->n_used, run->is_decode);
        return ERR_OK;
    }
    const struct tensor ids = tensor_rows(c->ids, 0, c->n_car), weights = tensor_rows(c->weights, 0, c->n_car);
    backend_write(w->device, &ids, w->host_ids);
    backend_write(w->device, &weights, w->host_weights);
    for (int64_t t = 0; t < c->n_car; t++)
        n_backfill = run->car[t] ? max_i64(n_backfill, run->car[t]->n_backfill) : n_backfill;
    experts_fetch_begin_instead(w->experts, l->experts_layer,
                                &(struct experts_choice){.n_tok = c->ids.ne[1],
                                                         .n_used = l->n_used,
                                                         .wanted = w->host_wanted,
                                                         .ids = w->host_ids,
                                                         .is_decode = run->is_decode,
                                                         .n_car = c->n_car,
                                                         .ratio = w->host_ratio,
                                                         .scores = w->host_scores,
                                                         .n_backfill = n_backfill});
    return ERR_OK;
}

/* The shared expert and, where there is one, the logit of its gate. */
static void enqueue_shared(const struct moe_work *w, const struct moe_layer *l, struct call *c)
{
    struct backend *b = w->device;
    int64_t m = c->x.ne[1];
    struct tensor gate = cut(w->shared_gate, l->n_ff_shared, m, 1), up = cut(w->shared_up, l->n_ff_shared, m, 1);
    c->shared = cut(w->shared_y, l->n_embd, m, 1);
    struct op first = {.kind = OP_MATMUL, .in = {c->x}, .out = {gate, up}, .weight = {l->shared_gate, l->shared_up}};
    if (l->shared_gate_inp) {
        int i = l->shared_up ? 2 : 1;
        c->shared_weight = cut(w->shared_weight, 1, m, 1);
        first.out[i] = c->shared_weight;
        first.weight[i] = l->shared_gate_inp;
    }
    if (!l->shared_up)
        up = gate;
    backend_enqueue(b, &first);
    backend_enqueue(b, &(struct op){.kind = OP_ACT_MUL,
                                    .in = {gate, up},
                                    .out = {gate},
                                    .act = l->act,
                                    .act_limit = l->shared_act_limit,
                                    .act_up_limit = l->act_up_limit});
    backend_enqueue(b, &(struct op){.kind = OP_MATMUL, .in = {gate}, .out = {c->shared}, .weight = {l->shared_down}});
}

/* What the adjugates of the chosen experts add up to, which goes where a shared expert's result does. Theirs lie in y
 * until the experts' do. */
static void enqueue_adjugates(const struct moe_work *w, const struct moe_layer *l, struct call *c,
                              const struct moe_run *run)
{
    c->shared = cut(w->shared_y, l->n_embd, c->x.ne[1], 1);
    backend_enqueue(
        w->device, &(struct op){.kind = OP_EXPERTS,
                                .in = {[EXPERTS_X] = c->x, [EXPERTS_IDS] = c->ids, [EXPERTS_SLOTS] = l->adjugate_slots},
                                .out = {c->y},
                                .slot_pool = l->adjugates,
                                .experts = {.act = l->act,
                                            .sort_cutoff = run->sort_cutoff,
                                            .tensors = l->adjugate_tensors,
                                            .are_shared = true}});
    backend_enqueue(w->device, &(struct op){.kind = OP_COMBINE,
                                            .in = {[COMBINE_Y] = c->y, [COMBINE_WEIGHTS] = c->weights},
                                            .out = {c->shared}});
    backend_enqueue(w->device,
                    &(struct op){.kind = OP_SCALE, .in = {c->shared}, .out = {c->shared}, .scale = l->adjugate_scale});
}

/* Routes all tokens: those that may have substitutes with their scores. */
static void route(const struct moe_work *w, const struct moe_layer *l, struct call *c)
{
    int64_t n = c->n_car, m = c->x.ne[1];
    c->scores = cut(w->scores, l->n_expert, n, 1);
    for (int64_t first = 0, end; first < m; first = end) {
        const struct tensor none = {0};
        end = first < n ? n : m;
        const struct tensor x = tensor_rows(c->router_x, first, end - first);
        const struct tensor ids = tensor_rows(c->ids, first, end - first);
        const struct tensor weights = tensor_rows(c->weights, first, end - first);
        struct tensor tokens = c->tokens;
        tokens.off_bytes += (size_t)first * sizeof(int32_t);
        tokens.ne[0] = end - first;
        enqueue_route(w->device, l, &x, &tokens, &ids, &weights, first < n ? &c->scores : &none);
    }
}

/* What the device computes itself. resident: the slot table of a layer all of whose experts that are chosen here are in
 * their slots, else NULL; n_own: how many it was chosen for. */
static err_code compute_own(struct moe_work *w, const struct moe_layer *l, struct call *c,
                            const struct tensor *resident, int64_t n_own, const struct moe_run *run, struct err *e)
{
    if (!resident)
        TRY(begin_fetch(w, l, c, run, e));
    err_code code = run->next ? moe_predict(w, run->next, run->trace, e) : ERR_OK;
    if (l->shared_down) /* while experts are on their way */
        enqueue_shared(w, l, c);
    if (resident && n_own > 0) {
        const struct waves waves = make_waves(w, l, c, run);
        waves_enqueue(&waves, resident);
    } else if (!resident) {
        if (code == ERR_OK)
            code = run_waves(w, l, c, run, e);
        experts_fetch_end(w->experts);
    }
    return code;
}

/* The same, counted: where there is one place nobody asks. */
static err_code compute_counted(struct moe_work *w, const struct moe_layer *l, struct call *c,
                                const struct tensor *resident, struct elsewhere_own *own, const struct moe_run *run,
                                struct err *e)
{
    struct place_layer_stats *s = &w->places->own[l->experts_layer];
    uint64_t begin_ns = backend_op_ns(w->device, OP_EXPERTS);
    err_code code = compute_own(w, l, c, resident, own->n_row, run, e);
    own->compute_ns = (int64_t)(backend_op_ns(w->device, OP_EXPERTS) - begin_ns);
    s->n_call += own->n_row > 0;
    s->n_row += (uint64_t)own->n_row;
    s->n_replica_row += (uint64_t)own->n_replica_row;
    s->compute_ns += own->compute_ns;
    return code;
}

static bool is_cache(const struct moe_work *w)
{
    return w->places && w->places->division->has_cache;
}

/* Finds what slots that are a cache have of the choice, and tells the device. */
static void look_up(struct moe_work *w, const struct moe_layer *l, const struct call *c, const struct tensor *table)
{
    int64_t n = experts_cache_begin(w->experts, l->experts_layer, w->host_ids, c->ids.ne[1], l->n_used,
                                    w->places->is_cache_used, w->host_slots);
    if (n > 0)
        backend_write(w->device, table, w->host_slots);
}

/* Tells the other places what the next layer is likely to choose. Of a single token this layer's result is known by
 * now, which makes the prediction better. */
static err_code predict_elsewhere(struct moe_work *w, const struct moe_layer *l, const struct call *c,
                                  const struct moe_next *next, struct err *e)
{
    int64_t m = next->router_x.ne[1], n = m * next->layer->n_used;
    if (m == 1) {
        enqueue_combine(w, l, c, &next->router_x);
        TRY(predict_ids(w, next, &next->router_x, e));
    }
    elsewhere_predict(w->elsewhere, next->layer->experts_layer, w->host_next_ids, n, is_likely(next->layer, n));
    return ERR_OK;
}

/* What the device computes, while other places compute what they have. */
static err_code compute_everywhere(struct moe_work *w, const struct moe_layer *l, struct call *c,
                                   const struct tensor *resident, const struct moe_run *run, struct err *e)
{
    const struct moe_next *next = run->next;
    struct elsewhere_own own;
    int64_t n = tensor_n_elem(&c->ids);
    const struct elsewhere_call call = {.layer = l->experts_layer,
                                        .x = c->latent,
                                        .weights = l->weighs_input ? c->weights : (struct tensor){0},
                                        .ids = w->host_ids,
                                        .n_used = l->n_used,
                                        .cached = is_cache(w) ? w->host_slots : NULL,
                                        .run = run};
    experts_count_choice(w->experts, l->experts_layer, w->host_ids, n);
    if (is_cache(w))
        look_up(w, l, c, resident);
    TRY(elsewhere_begin(w->elsewhere, &call, &own, e));
    backend_write(w->device, &c->ids, w->host_ids);
    if (resident && !is_cache(w))
        experts_count_resident(w->experts, l->experts_layer, w->host_ids, n);
    err_code code = compute_counted(w, l, c, resident, &own, run, e);
    backend_start(w->device); /* while the others' results are waited for */
    TRY(elsewhere_finish(w->elsewhere, &own, &c->y, code, e));
    return next && next->prefetch ? predict_elsewhere(w, l, c, next, e) : ERR_OK;
}

/* resident: as in compute_own */
static err_code forward(struct moe_work *w, const struct moe_layer *l, struct call *c, const struct tensor *resident,
                        const struct tensor *out, const struct moe_run *run, struct err *e)
{
    int64_t m = c->x.ne[1];
    bool is_counted = resident && !w->elsewhere && experts_counts_all(w->experts);
    c->n_car = resident ? 0 : run->n_car;
    route(w, l, c);
    if (l->adjugates) /* before others get the choice to work on */
        enqueue_adjugates(w, l, c, run);
    if (!resident || run->trace || w->elsewhere || is_counted)
        TRY(backend_read(w->device, &c->ids, w->host_ids, e));
    if (is_counted)
        experts_count_choice(w->experts, l->experts_layer, w->host_ids, m * l->n_used);
    if (run->trace)
        run->trace->routed(run->trace->user, l->experts_layer, m, l->n_used, w->host_ids);
    if (l->latent_down)
        backend_enqueue(w->device,
                        &(struct op){.kind = OP_MATMUL, .in = {c->x}, .out = {c->latent}, .weight = {l->latent_down}});
    TRY(w->elsewhere ? compute_everywhere(w, l, c, resident, run, e)
                     : compute_own(w, l, c, resident, m * l->n_used, run, e));
    enqueue_combine(w, l, c, out);
    return ERR_OK;
}

err_code moe_forward(struct moe_work *w, const struct moe_layer *l, const struct tensor *x,
                     const struct tensor *router_x, const struct tensor *out, const struct moe_run *run, struct err *e)
{
    int64_t m = x->ne[1];
    struct call c = {.x = *x,
                     .router_x = *router_x,
                     .tokens = run->tokens,
                     .latent = l->latent_down ? cut(w->latent_x, l->n_latent, m, 1) : *x,
                     .ids = cut(w->ids, l->n_used, m, 1),
                     .weights = cut(w->weights, l->n_used, m, 1),
                     .y = place_y(w, l, m)};
    const struct tensor cached = cut(w->slots, l->n_expert, 1, 1);
    const struct tensor *resident = is_cache(w) ? &cached : experts_pin(w->experts, l->experts_layer);
    err_code code = forward(w, l, &c, resident, out, run, e);
    experts_unpin(w->experts, l->experts_layer);
    return code;
}
