#include "moe/elsewhere.h"

#include <string.h>

#include "base/minmax.h"

/* Rows of results that go to the device at a time. */
enum { CHUNK_ROWS = 256 };

/* What a place gets of a call. */
struct part {
    struct place_call call; /* n_row 0: there is nothing for it */
    float *x;               /* [n_tok][n_embd], room for the rows where the place does not get all */
    int32_t *ids;           /* [n_tok][n_used] */
    float *weights;         /* [n_tok][n_used] */
    int32_t *rows;          /* [n_row] where the results belong in y */
};

/* ARRAY(name, type, elements) of host memory, sizes being those of `d`. */
#define ELSEWHERE_ARRAYS(ARRAY)                                                                                        \
    ARRAY(x, float, d->n_batch * d->n_embd)             /* the layer's rows */                                         \
    ARRAY(part_x, float, d->n_part_tok * d->n_embd)     /* what places get of them, one after the other */             \
    ARRAY(part_ids, int32_t, d->n_part_tok * d->n_used) /* and of the choice */                                        \
    ARRAY(part_weights, float, d->n_part_tok * d->n_used)                                                              \
    ARRAY(y, float, d->n_batch * d->n_used * d->n_embd) /* results, place by place */                                  \
    ARRAY(rows, int32_t, d->n_batch * d->n_used)        /* where these belong */                                       \
    ARRAY(weights, float, d->n_batch * d->n_used)                                                                      \
    ARRAY(place, uint8_t, d->n_batch * d->n_used) /* who computes */

struct elsewhere {
    struct backend *device;
    const struct moe_places *places;
    struct part *parts; /* [n_place]; the first is not used */
#define FIELD(name, type, n) type *name;
    ELSEWHERE_ARRAYS(FIELD)
#undef FIELD
    char *memory; /* of the arrays */
    size_t n_bytes;
    struct tensor results; /* [n_embd][CHUNK_ROWS], on their way into y */
    struct tensor at;      /* I32 [CHUNK_ROWS] where they belong */
    int n_thread;          /* that the device's loops use between calls, while one left cores to others; else 0 */
    bool is_decode;        /* the call in hand */
};

/* What there is to be room for. */
struct sizes {
    int64_t n_batch, n_used, n_embd;
    int64_t n_part_tok; /* tokens of all places together */
};

enum { ALIGN = 64 };

static size_t aligned(size_t n_bytes)
{
    return (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static err_code create_all(struct elsewhere *w, const struct sizes *d, struct err *e)
{
#define ADD(name, type, n) w->n_bytes += aligned((size_t)(n) * sizeof *w->name);
    ELSEWHERE_ARRAYS(ADD)
#undef ADD
    w->parts = mem_calloc((size_t)w->places->n_place, sizeof *w->parts);
    w->memory = mem_map(w->n_bytes, MEM_SCRATCH);
    if (!w->parts || !w->memory)
        return err_nomem(e, w->n_bytes, "rows of other places");
    char *p = w->memory;
#define CUT(name, type, n)                                                                                             \
    w->name = (void *)p;                                                                                               \
    p += aligned((size_t)(n) * sizeof *w->name);
    ELSEWHERE_ARRAYS(CUT)
#undef CUT
    int64_t n_chunk = min_i64(CHUNK_ROWS, d->n_batch * d->n_used);
    TRY(backend_tensor_create(w->device, ELEM_F32, d->n_embd, n_chunk, 1, MEM_SCRATCH, &w->results, e));
    return backend_tensor_create(w->device, ELEM_I32, n_chunk, 1, 1, MEM_SCRATCH, &w->at, e);
}

err_code elsewhere_create(struct elsewhere **out, struct backend *device, const struct moe_places *places,
                          int64_t n_batch, int64_t n_used, int64_t n_embd, struct err *e)
{
    const struct sizes d = {n_batch, n_used, n_embd, n_batch * min_i64(places->n_place - 1, n_used)};
    struct elsewhere *w = *out = mem_calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w, "rows of other places");
    w->device = device;
    w->places = places;
    err_code code = create_all(w, &d, e);
    if (code != ERR_OK)
        elsewhere_close(out);
    return code;
}

void elsewhere_close(struct elsewhere **out)
{
    struct elsewhere *w = *out;
    if (!w)
        return;
    backend_buffer_close(w->device, &w->results.buffer);
    backend_buffer_close(w->device, &w->at.buffer);
    mem_unmap(w->memory, w->n_bytes, MEM_SCRATCH);
    mem_free(w->parts);
    mem_free(w);
    *out = NULL;
}

size_t elsewhere_bytes(const struct elsewhere *w)
{
    return w ? w->n_bytes + tensor_bytes(&w->results) : 0;
}

/* ---- there ------------------------------------------------------------------------------------------------------- */

/* Chooses which place computes what. If speeds are fixed, this is done for each token by itself, so that it does not
 * depend on the tokens that are computed with it. */
static void choose(struct elsewhere *w, const struct elsewhere_call *c)
{
    const struct moe_places *s = w->places;
    const double *speed = place_speeds_of(s->speeds, c->run->is_decode);
    int64_t n = c->x.ne[1] * c->n_used, n_at_once = s->speeds->is_fixed ? c->n_used : n;
    for (int64_t i = 0; i < n; i += n_at_once)
        division_choose(s->division, speed, c->layer, c->ids + i, n_at_once, w->place + i);
    for (int64_t i = 0; c->cached && i < n; i++)
        w->place[i] = c->cached[c->ids[i]] >= 0 ? 0 : w->place[i];
}

/* Counts each place's tokens and rows. */
static void count_parts(struct elsewhere *w, const struct elsewhere_call *c)
{
    int64_t m = c->x.ne[1], k = c->n_used;
    const struct division *d = w->places->division;
    for (int i = 0; i < w->places->n_place; i++)
        w->parts[i].call = (struct place_call){.layer = c->layer};
    for (int64_t t = 0; t < m; t++)
        for (int64_t r = 0; r < k; r++) {
            struct part *p = &w->parts[w->place[t * k + r]];
            bool is_first = true;
            for (int64_t before = 0; before < r; before++)
                is_first &= w->place[t * k + before] != w->place[t * k + r];
            p->call.n_row++;
            p->call.n_replica_row += d->replica_bytes && division_has_replicas(d, c->layer, c->ids[t * k + r]);
            p->call.n_tok += is_first;
        }
}

/* Gives each place its room in the arrays. */
static void share_room(struct elsewhere *w, const struct elsewhere_call *c)
{
    int64_t n_tok = 0, n_row = 0, n_embd = c->x.ne[0];
    for (int i = 1; i < w->places->n_place; i++) {
        struct part *p = &w->parts[i];
        int64_t n_here = p->call.n_tok;
        p->x = w->part_x + n_tok * n_embd;
        p->ids = w->part_ids + n_tok * c->n_used;
        p->weights = w->part_weights + n_tok * c->n_used;
        p->rows = w->rows + n_row;
        p->call = (struct place_call){.layer = c->layer,
                                      .n_tok = n_here,
                                      .n_used = c->n_used,
                                      .n_embd = n_embd,
                                      .x = n_here == c->x.ne[1] ? w->x : p->x,
                                      .ids = p->ids,
                                      .weights = c->weights.buffer ? p->weights : NULL,
                                      .n_row = p->call.n_row,
                                      .n_replica_row = p->call.n_replica_row,
                                      .y = w->y + n_row * n_embd,
                                      .sort_cutoff = c->run->sort_cutoff,
                                      .is_decode = c->run->is_decode,
                                      .cancel = c->run->cancel};
        n_tok += n_here;
        n_row += p->call.n_row;
    }
}

/* Fills a place's part with the tokens that have an expert there. */
static void gather(struct elsewhere *w, const struct elsewhere_call *c, int place)
{
    struct part *p = &w->parts[place];
    int64_t m = c->x.ne[1], n_embd = c->x.ne[0], k = c->n_used, n_tok = 0, n_row = 0;
    for (int64_t t = 0; t < m; t++) {
        const uint8_t *chosen = w->place + t * k;
        if (!memchr(chosen, place, (size_t)k))
            continue;
        for (int64_t r = 0; r < k; r++) {
            p->ids[n_tok * k + r] = chosen[r] == place ? c->ids[t * k + r] : -1;
            if (chosen[r] == place)
                p->rows[n_row++] = (int32_t)(t * k + r);
        }
        if (p->call.weights)
            memcpy(p->weights + n_tok * k, w->weights + t * k, (size_t)k * sizeof *w->weights);
        if (p->call.x == p->x)
            memcpy(p->x + n_tok * n_embd, w->x + t * n_embd, (size_t)n_embd * sizeof *w->x);
        n_tok++;
    }
}

/* Leaves the cores to places that compute. */
static void leave_cores(struct elsewhere *w)
{
    const struct moe_places *s = w->places;
    if (!s->pool || pool_n_used(s->pool) <= s->n_own_thread)
        return;
    w->n_thread = pool_n_used(s->pool);
    pool_use(s->pool, s->n_own_thread);
}

static void take_cores(struct elsewhere *w)
{
    if (w->n_thread)
        pool_use(w->places->pool, w->n_thread);
    w->n_thread = 0;
}

err_code elsewhere_begin(struct elsewhere *w, const struct elsewhere_call *c, struct elsewhere_own *own, struct err *e)
{
    const struct moe_places *s = w->places;
    int64_t n = c->x.ne[1] * c->n_used;
    choose(w, c);
    count_parts(w, c);
    *own = (struct elsewhere_own){w->parts[0].call.n_row, w->parts[0].call.n_replica_row, 0};
    w->is_decode = c->run->is_decode;
    if (own->n_row < n)
        TRY(backend_read(w->device, &c->x, w->x, e));
    if (own->n_row < n && c->weights.buffer)
        TRY(backend_read(w->device, &c->weights, w->weights, e));
    share_room(w, c);
    if (own->n_row < n)
        leave_cores(w);
    for (int i = 1; i < s->n_place; i++) {
        if (w->parts[i].call.n_row == 0)
            continue;
        gather(w, c, i);
        place_begin(s->places[i], &w->parts[i].call);
    }
    for (int64_t i = 0; i < n; i++)
        c->ids[i] = w->place[i] == 0 ? c->ids[i] : -1;
    return ERR_OK;
}

/* ---- and back ---------------------------------------------------------------------------------------------------- */

static void scatter(struct elsewhere *w, const struct part *p, const struct tensor *y)
{
    struct tensor out = *y;
    out.ne[1] *= out.ne[2];
    out.ne[2] = 1;
    for (int64_t i = 0, n; i < p->call.n_row; i += n) {
        n = min_i64(w->at.ne[0], p->call.n_row - i);
        struct tensor at = w->at, x = w->results;
        at.ne[0] = x.ne[1] = n;
        x.ne[0] = y->ne[0];
        backend_write(w->device, &at, p->rows + i);
        backend_write(w->device, &x, p->call.y + i * y->ne[0]);
        backend_enqueue(w->device, &(struct op){.kind = OP_SCATTER, .in = {x, at}, .out = {out}});
    }
}

err_code elsewhere_finish(struct elsewhere *w, const struct elsewhere_own *own, const struct tensor *y, err_code code,
                          struct err *e)
{
    const struct moe_places *s = w->places;
    struct err later;
    place_speeds_note(s->speeds, 0, w->is_decode, own->n_row, own->compute_ns);
    for (int i = 1; i < s->n_place; i++) {
        if (w->parts[i].call.n_row == 0) {
            place_speeds_note(s->speeds, i, w->is_decode, 0, 0);
            continue;
        }
        if (code != ERR_OK) {
            place_cancel(s->places[i]);
            (void)!place_finish(s->places[i], &later); /* the first error is told */
            continue;
        }
        code = place_finish(s->places[i], e);
        if (code != ERR_OK)
            continue;
        scatter(w, &w->parts[i], y);
        place_speeds_note(s->speeds, i, w->is_decode, w->parts[i].call.n_row, s->places[i]->compute_ns);
    }
    take_cores(w);
    return code;
}

void elsewhere_predict(struct elsewhere *w, int layer, const int32_t *ids, int64_t n, bool is_likely)
{
    for (int i = 1; i < w->places->n_place; i++)
        place_predict(w->places->places[i], layer, ids, n, is_likely);
}
