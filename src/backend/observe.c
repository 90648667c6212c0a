/* Shows an observer what weights are multiplied by, on any device: reads the inputs of an operation back before it is
 * enqueued, and the inputs of experts' down matrices behind it. */
#include "backend/vtable.h"

/* What is read back. */
enum { X, IDS, SLOTS, WEIGHTS, HIDDEN, N_READ };

struct observing {
    backend_observer *observer;
    void *user;
    struct tensor hidden; /* on the device, as large as was ever needed */
    struct {
        void *p;
        size_t n_bytes;
    } host[N_READ];
    struct err error; /* the first one since the last report */
};

err_code backend_observe(struct backend *b, backend_observer *observer, void *user, struct err *e)
{
    b->observing = mem_calloc(1, sizeof *b->observing);
    if (!b->observing)
        return err_nomem(e, sizeof *b->observing, "observing products");
    b->observing->observer = observer;
    b->observing->user = user;
    return ERR_OK;
}

void backend_observe_end(struct backend *b)
{
    struct observing *g = b->observing;
    if (!g)
        return;
    backend_buffer_close(b, &g->hidden.buffer);
    for (int i = 0; i < N_READ; i++)
        mem_free(g->host[i].p);
    mem_free(g);
    b->observing = NULL;
}

err_code observe_report(struct backend *b, struct err *e)
{
    return b->observing ? backend_report(&b->observing->error, e) : ERR_OK;
}

/* Reads a tensor's elements; NULL: it is absent, or there was an error. */
static const void *read_back(struct backend *b, const struct tensor *t, int which)
{
    struct observing *g = b->observing;
    size_t n_bytes = tensor_bytes(t);
    if (!t->buffer || g->error.code != ERR_OK)
        return NULL;
    if (g->host[which].n_bytes < n_bytes) {
        void *p = mem_resize(g->host[which].p, n_bytes, 1);
        if (!p) {
            err_nomem(&g->error, n_bytes, "observing products");
            return NULL;
        }
        g->host[which].p = p;
        g->host[which].n_bytes = n_bytes;
    }
    return backend_read(b, t, g->host[which].p, &g->error) == ERR_OK ? g->host[which].p : NULL;
}

static void show(const struct observing *g, const struct observed *o)
{
    g->observer(g->user, o);
}

static void observe_matmul(struct backend *b, const struct op *op)
{
    const float *x = NULL;
    for (int i = 0; i < OP_MAX_OUT && op->weight[i]; i++) {
        const struct weight_shape w = b->v->weight_shape(b, op->weight[i]);
        if (w.observed && !x)
            x = read_back(b, &op->in[0], X);
        if (w.observed && x)
            show(b->observing, &(struct observed){.tensor = w.observed,
                                                  .n_matrix = 1,
                                                  .x = x,
                                                  .k = w.k,
                                                  .n_row = op->in[0].ne[1],
                                                  .stride = w.k,
                                                  .scale = 1});
    }
}

static void observe_heads(struct backend *b, const struct op *op)
{
    const struct weight_shape w = op->weight[0] ? b->v->weight_shape(b, op->weight[0]) : (struct weight_shape){0};
    const float *x = w.observed ? read_back(b, &op->in[0], X) : NULL;
    for (int64_t i = 0; x && i < op->heads.n_head; i++)
        show(b->observing, &(struct observed){.tensor = w.observed,
                                              .n_matrix = op->heads.n_head,
                                              .matrix = i,
                                              .x = x + op->heads.in_off + i * op->heads.in_dim,
                                              .k = op->heads.n_in,
                                              .n_row = op->in[0].ne[1],
                                              .stride = op->in[0].ne[0],
                                              .scale = 1});
}

/* The inputs of an EXPERTS operation on the host. */
struct pairs {
    const float *x, *weights, *hidden; /* weights NULL: 1; hidden NULL: they have not been computed */
    const int32_t *ids, *slots;
};

static void show_pairs(struct backend *b, const struct op *op, const struct pairs *p, enum expert_matrix which)
{
    int64_t n_used = op->in[EXPERTS_IDS].ne[0], n_pair = n_used * op->in[EXPERTS_IDS].ne[1];
    bool is_down = which == EXPERT_DOWN, are_shared = op->experts.are_shared;
    struct observed o = {.tensor = op->experts.tensors[which],
                         .n_matrix =
                             are_shared ? b->v->slot_pool_shape(b, op->slot_pool).n_slot : op->in[EXPERTS_SLOTS].ne[0],
                         .n_row = 1,
                         .scale = 1};
    o.stride = o.k = is_down ? op->out[EXPERTS_HIDDEN].ne[0] : op->in[EXPERTS_X].ne[0];
    for (int64_t i = 0; o.tensor && i < n_pair; i++) {
        int32_t id = p->ids[i];
        if (id < 0 || p->slots[id] < 0)
            continue;
        o.matrix = are_shared ? p->slots[id] : id;
        o.x = is_down ? p->hidden + i * o.k : p->x + i / n_used * o.k;
        if (!is_down && p->weights)
            o.scale = p->weights[i];
        show(b->observing, &o);
    }
}

/* Makes room on the device for what down is multiplied by. */
static bool place_hidden(struct backend *b, const struct op *op, struct tensor *out)
{
    struct observing *g = b->observing;
    const struct slot_pool_desc d = b->v->slot_pool_shape(b, op->slot_pool);
    struct tensor t = {.type = ELEM_F32,
                       .ne = {slot_n_hidden(&d), op->in[EXPERTS_IDS].ne[0], op->in[EXPERTS_IDS].ne[1]}};
    if (!g->hidden.buffer || tensor_bytes(&g->hidden) < tensor_bytes(&t)) {
        backend_buffer_close(b, &g->hidden.buffer);
        g->hidden = t;
        if (backend_buffer_create(b, tensor_bytes(&t), 1, MEM_SCRATCH, &g->hidden.buffer, &g->error) != ERR_OK)
            return false;
    }
    t.buffer = g->hidden.buffer;
    *out = t;
    return true;
}

static void observe_experts(struct backend *b, const struct op *op)
{
    struct op o = *op;
    struct pairs p = {.x = read_back(b, &op->in[EXPERTS_X], X),
                      .ids = read_back(b, &op->in[EXPERTS_IDS], IDS),
                      .slots = read_back(b, &op->in[EXPERTS_SLOTS], SLOTS),
                      .weights = read_back(b, &op->in[EXPERTS_WEIGHTS], WEIGHTS)};
    bool is_placed = p.x && p.ids && p.slots && place_hidden(b, op, &o.out[EXPERTS_HIDDEN]);
    b->v->enqueue(b, &o);
    p.hidden = is_placed ? read_back(b, &o.out[EXPERTS_HIDDEN], HIDDEN) : NULL;
    for (enum expert_matrix which = 0; which < EXPERT_N_MATRIX && p.hidden; which++)
        show_pairs(b, &o, &p, which);
}

void observe_enqueue(struct backend *b, const struct op *op)
{
    if (op->kind == OP_EXPERTS && op->experts.tensors && op->in[0].ne[1] > 0) {
        observe_experts(b, op);
        return;
    }
    if (op->kind == OP_MATMUL)
        observe_matmul(b, op);
    else if (op->kind == OP_HEADS)
        observe_heads(b, op);
    b->v->enqueue(b, op);
}
