#include "places/compute.h"

#include "base/clock.h"
#include "base/minmax.h"
#include "places/waves.h"

/* A tensor that grows when a call needs more elements than it has memory for. */
struct room {
    struct tensor t; /* with the last call's shape */
    int64_t n_elem;  /* elements that it has memory for */
};

struct compute {
    struct backend *device;
    struct experts *experts;
    const struct expert_rules *rules; /* [n_layer] */
    int n_layer;
    struct place_layer_stats *stats; /* [n_layer] */
    int64_t n_expert;                /* of the layer with most */
    uint64_t *named_by;              /* [n_expert] the call that named each expert last */
    uint64_t n_call;                 /* so far */
    struct tensor slots;             /* I32 [n_expert], the slot table of a wave */
    int32_t *host_slots;             /* [n_expert] */
    struct room x, ids, weights, y;  /* of a call */
    struct room rows, packed;        /* if the call doesn't want all rows of y: which it wants, and these rows */
    int32_t *host_rows;              /* [n_host_rows] */
    int64_t n_host_rows;
};

err_code compute_create(struct compute **out, struct backend *device, struct experts *experts,
                        const struct expert_rules *rules, int n_layer, struct err *e)
{
    struct compute *c = *out = mem_calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, sizeof *c, "a place");
    c->device = device;
    c->experts = experts;
    c->rules = rules;
    c->n_layer = n_layer;
    for (int i = 0; i < n_layer; i++)
        c->n_expert = max_i64(c->n_expert, rules[i].n_expert);
    c->stats = mem_calloc((size_t)n_layer, sizeof *c->stats);
    c->host_slots = mem_calloc((size_t)c->n_expert, sizeof *c->host_slots);
    c->named_by = mem_calloc((size_t)c->n_expert, sizeof *c->named_by);
    bool has_all = c->stats && c->host_slots && c->named_by;
    err_code code = has_all ? ERR_OK : err_nomem(e, (size_t)n_layer * sizeof *c->stats, "a place");
    if (code == ERR_OK)
        code = backend_tensor_create(device, ELEM_I32, c->n_expert, 1, 1, MEM_SCRATCH, &c->slots, e);
    if (code != ERR_OK)
        compute_close(out);
    return code;
}

void compute_trim(struct compute *c)
{
    struct room *const all[] = {&c->x, &c->ids, &c->weights, &c->y, &c->rows, &c->packed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        backend_buffer_close(c->device, &all[i]->t.buffer);
        *all[i] = (struct room){0};
    }
    mem_free(c->host_rows);
    c->host_rows = NULL;
    c->n_host_rows = 0;
    backend_trim(c->device);
}

void compute_close(struct compute **out)
{
    struct compute *c = *out;
    if (!c)
        return;
    compute_trim(c);
    backend_buffer_close(c->device, &c->slots.buffer);
    mem_free(c->host_slots);
    mem_free(c->named_by);
    mem_free(c->stats);
    mem_free(c);
    *out = NULL;
}

/* As take and fit_rows shape them; host_rows is small. */
size_t compute_room_bytes(const struct compute *c, int64_t n_tok)
{
    size_t most = 0;
    for (int i = 0; i < c->n_layer; i++) {
        size_t n_pair = (size_t)(n_tok * c->rules[i].n_used), row = (size_t)c->rules[i].n_embd * sizeof(float);
        size_t x = mem_length((size_t)n_tok * row), y = mem_length(n_pair * row),
               ids = mem_length(n_pair * sizeof(float));
        most = max_size(most, x + 2 * y + 3 * ids); /* y and packed; ids, weights and rows */
    }
    return most;
}

static err_code fit(struct compute *c, struct room *r, enum elem_type type, int64_t ne0, int64_t ne1, int64_t ne2,
                    struct err *e)
{
    if (ne0 * ne1 * ne2 > r->n_elem) {
        backend_buffer_close(c->device, &r->t.buffer);
        *r = (struct room){0};
        TRY(backend_tensor_create(c->device, type, ne0, ne1, ne2, MEM_SCRATCH, &r->t, e));
        r->n_elem = ne0 * ne1 * ne2;
    }
    r->t.ne[0] = ne0;
    r->t.ne[1] = ne1;
    r->t.ne[2] = ne2;
    return ERR_OK;
}

/* Room for n of the rows that a call wants. */
static err_code fit_rows(struct compute *c, int64_t n_embd, int64_t n, struct err *e)
{
    if (n > c->n_host_rows) {
        int32_t *more = mem_resize(c->host_rows, (size_t)n, sizeof *more);
        if (!more)
            return err_nomem(e, (size_t)n * sizeof *more, "a place");
        c->host_rows = more;
        c->n_host_rows = n;
    }
    TRY(fit(c, &c->rows, ELEM_I32, n, 1, 1, e));
    return fit(c, &c->packed, ELEM_F32, n_embd, n, 1, e);
}

/* Takes a call's rows to the device. */
static err_code take(struct compute *c, const struct place_call *call, struct err *e)
{
    int64_t n = call->n_tok, k = call->n_used;
    TRY(fit(c, &c->x, ELEM_F32, call->n_embd, n, 1, e));
    TRY(fit(c, &c->ids, ELEM_I32, k, n, 1, e));
    TRY(fit(c, &c->y, ELEM_F32, call->n_embd, k, n, e));
    TRY(fit_rows(c, call->n_embd, k, e)); /* what one token may want, so that decode takes no more memory */
    backend_write(c->device, &c->x.t, call->x);
    backend_write(c->device, &c->ids.t, call->ids);
    if (call->weights) {
        TRY(fit(c, &c->weights, ELEM_F32, k, n, 1, e));
        backend_write(c->device, &c->weights.t, call->weights);
    }
    return ERR_OK;
}

/* Lists the rows of y that the call wants. */
static void list_rows(struct compute *c, const struct place_call *call)
{
    int64_t n = 0;
    for (int64_t i = 0; i < call->n_tok * call->n_used; i++)
        if (call->ids[i] >= 0)
            c->host_rows[n++] = (int32_t)i;
}

/* Brings the results back, in the call's order. */
static err_code give(struct compute *c, const struct place_call *call, struct err *e)
{
    int64_t n_all = call->n_tok * call->n_used;
    struct tensor y = c->y.t;
    y.ne[1] = n_all;
    y.ne[2] = 1;
    if (call->n_row == n_all)
        return backend_read(c->device, &y, call->y, e);
    TRY(fit_rows(c, call->n_embd, call->n_row, e));
    list_rows(c, call);
    backend_write(c->device, &c->rows.t, c->host_rows);
    backend_enqueue(c->device, &(struct op){.kind = OP_SLICE, .in = {y, c->rows.t}, .out = {c->packed.t}});
    return backend_read(c->device, &c->packed.t, call->y, e);
}

static err_code run_waves(const struct waves *w, const struct place_call *call, struct err *e)
{
    for (int64_t n = 1; n > 0;) {
        TRY(cancel_check(call->cancel, e));
        TRY(waves_next(w, &n, e));
    }
    return ERR_OK;
}

static err_code run_experts(struct compute *c, const struct place_call *call, struct err *e)
{
    const struct expert_rules *r = &c->rules[call->layer];
    struct waves w = {.device = c->device,
                      .experts = c->experts,
                      .layer = call->layer,
                      .act = r->act,
                      .act_limit = r->act_limit,
                      .act_up_limit = r->act_up_limit,
                      .bias = r->bias,
                      .tensors = r->tensors,
                      .x = c->x.t,
                      .ids = c->ids.t,
                      .weights = call->weights ? c->weights.t : (struct tensor){0},
                      .y = c->y.t,
                      .slots = c->slots,
                      .host_slots = c->host_slots,
                      .sort_cutoff = call->sort_cutoff};
    const struct tensor *resident = experts_pin(c->experts, call->layer);
    err_code code = ERR_OK;
    w.slots.ne[0] = r->n_expert;
    if (resident) {
        waves_enqueue(&w, resident);
        code = backend_wait(c->device, backend_fence(c->device), e);
    } else {
        experts_fetch_begin(c->experts, call->layer, call->ids, call->n_tok, call->n_used, call->is_decode);
        code = run_waves(&w, call, e);
        experts_fetch_end(c->experts);
    }
    experts_unpin(c->experts, call->layer);
    return code == ERR_OK ? cancel_check(call->cancel, e) : code; /* the operations may have been left out */
}

/* Experts that a call names. The device counts them, too, but asking it takes a wait. */
static uint64_t count_experts(struct compute *c, const struct place_call *call)
{
    uint64_t n = 0;
    c->n_call++;
    for (int64_t i = 0; i < call->n_tok * call->n_used; i++)
        if (call->ids[i] >= 0 && c->named_by[call->ids[i]] != c->n_call) {
            c->named_by[call->ids[i]] = c->n_call;
            n++;
        }
    return n;
}

err_code compute_run(struct compute *c, const struct place_call *call, struct err *e)
{
    struct place_layer_stats *s = &c->stats[call->layer];
    const struct experts_counters x0 = experts_counters(c->experts);
    int64_t begin_ns = clock_ns();
    TRY(take(c, call, e));
    TRY(run_experts(c, call, e));
    TRY(give(c, call, e));
    const struct experts_counters x1 = experts_counters(c->experts);
    uint64_t n_read = x1.n_miss - x0.n_miss;
    s->n_call++;
    s->n_row += (uint64_t)call->n_row;
    s->n_read += n_read;
    s->n_found += count_experts(c, call) - n_read;
    s->read_wait_ns += x1.stall_ns - x0.stall_ns;
    s->compute_ns += clock_ns() - begin_ns - (x1.stall_ns - x0.stall_ns);
    return ERR_OK;
}

void compute_predict(struct compute *c, int layer, const int32_t *ids, int64_t n, bool is_likely)
{
    if (experts_is_fetching(c->experts, layer))
        experts_prefetch(c->experts, layer, ids, n, is_likely);
}

struct place_layer_stats compute_layer_stats(const struct compute *c, int layer)
{
    return c->stats[layer];
}
