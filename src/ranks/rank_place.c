/* On rank 0: another rank as a place. */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ranks/rank_messages.h"

/* What rank 0 counts of a layer. */
struct layer_traffic {
    int64_t finish_wait_ns;
    uint64_t n_replica_row;
    uint64_t n_to_bytes, n_from_bytes;
};

struct rank_place {
    struct place place;
    struct ranks *ranks;
    int rank, n_layer;
    double bytes_per_s;
    const struct place_call *call; /* in hand; borrowed */
    err_code code;                 /* of place_begin */
    struct err why;
    struct layer_traffic *traffic; /* [n_layer] */
};

size_t run_bytes(const struct request *q)
{
    size_t n_id = (size_t)(q->n_tok * q->n_used);
    return sizeof *q + n_id * sizeof(int32_t) + (q->has_weights ? n_id * sizeof(float) : 0) +
           (size_t)(q->n_tok * q->n_embd) * sizeof(float);
}

static size_t result_bytes(const struct place_call *c)
{
    return (size_t)(c->n_row * c->n_embd) * sizeof(float);
}

static err_code begin_run(struct rank_place *p, const struct place_call *c, struct err *e)
{
    char *to;
    size_t n_id = (size_t)(c->n_tok * c->n_used) * sizeof *c->ids;
    struct request q = {.kind = REQUEST_RUN,
                        .number = ++p->ranks->n_request[p->rank],
                        .layer = c->layer,
                        .is_decode = c->is_decode,
                        .has_weights = c->weights != NULL,
                        .n_tok = c->n_tok,
                        .n_used = c->n_used,
                        .n_embd = c->n_embd,
                        .n_row = c->n_row,
                        .sort_cutoff = c->sort_cutoff};
    size_t n = run_bytes(&q);
    TRY(link_room(p->ranks->link, p->rank, n, (void **)&to, e));
    memcpy(to, &q, sizeof q);
    memcpy(to += sizeof q, c->ids, n_id);
    to += n_id;
    if (c->weights) {
        memcpy(to, c->weights, n_id);
        to += n_id;
    }
    memcpy(to, c->x, (size_t)(c->n_tok * c->n_embd) * sizeof *c->x);
    ranks_ask(p->ranks, p->rank, n, c->y, result_bytes(c));
    p->traffic[c->layer].n_replica_row += (uint64_t)c->n_replica_row;
    p->traffic[c->layer].n_to_bytes += n;
    p->traffic[c->layer].n_from_bytes += sizeof(struct answer) + result_bytes(c);
    return ERR_OK;
}

static void begin(struct place *place, const struct place_call *c)
{
    struct rank_place *p = (struct rank_place *)place;
    p->call = c;
    p->code = begin_run(p, c, &p->why);
}

static err_code finish(struct place *place, struct err *e)
{
    struct rank_place *p = (struct rank_place *)place;
    const struct place_call *c = p->call;
    int64_t begin_ns = clock_ns();
    p->call = NULL;
    if (p->code != ERR_OK)
        return err_set(e, p->code, "%s", p->why.text);
    TRY(ranks_answer(p->ranks, p->rank, c->cancel, result_bytes(c), e));
    if (p->ranks->answers[p->rank].layer != c->layer)
        return err_set(e, ERR_FAIL, "%s: results of layer %d: expected layer %d", ranks_name(p->ranks, p->rank),
                       p->ranks->answers[p->rank].layer, c->layer);
    p->traffic[c->layer].finish_wait_ns += clock_ns() - begin_ns;
    p->place.compute_ns = p->ranks->answers[p->rank].compute_ns;
    return ERR_OK;
}

static void cancel(struct place *place)
{
    const struct rank_place *p = (const struct rank_place *)place;
    if (p->code == ERR_OK)
        link_cancel(p->ranks->link, p->rank);
}

static err_code open_slots(struct place *place, size_t spare_bytes, const struct usage *past, struct err *e)
{
    const struct rank_place *p = (const struct rank_place *)place;
    struct request q = {.kind = REQUEST_OPEN, .number = ++p->ranks->n_request[p->rank]};
    size_t n_count = past && past->count ? (size_t)past->n_layer * (size_t)past->n_expert * sizeof *past->count : 0;
    char *room;
    q.n_spare_bytes = (int64_t)spare_bytes;
    q.n_tok = n_count ? past->n_layer : 0;
    q.n_row = n_count ? past->n_expert : 0;
    TRY(link_room(p->ranks->link, p->rank, sizeof q + n_count, (void **)&room, e));
    memcpy(room, &q, sizeof q);
    if (n_count)
        memcpy(room + sizeof q, past->count, n_count);
    ranks_ask(p->ranks, p->rank, sizeof q + n_count, NULL, 0);
    return ranks_answer(p->ranks, p->rank, NULL, 0, e);
}

/* An error here comes back from the next call. */
static void predict(struct place *place, int layer, const int32_t *ids, int64_t n, bool is_likely)
{
    const struct rank_place *p = (const struct rank_place *)place;
    struct err e;
    char *room;
    const struct request q = {.kind = REQUEST_PREDICT, .layer = layer, .n_tok = n, .is_likely = is_likely};
    size_t n_bytes = (size_t)n * sizeof *ids;
    if (link_room(p->ranks->link, p->rank, sizeof q + n_bytes, (void **)&room, &e) != ERR_OK)
        return;
    memcpy(room, &q, sizeof q);
    memcpy(room + sizeof q, ids, n_bytes);
    link_send(p->ranks->link, p->rank, sizeof q + n_bytes);
}

static err_code layer_stats(struct place *place, int layer, struct place_layer_stats *out, struct err *e)
{
    const struct rank_place *p = (const struct rank_place *)place;
    const struct request q = {.kind = REQUEST_STATS, .layer = layer};
    const struct layer_traffic *t = &p->traffic[layer];
    TRY(ranks_ask_wait(p->ranks, p->rank, &q, out, sizeof *out, e));
    out->n_replica_row = t->n_replica_row;
    out->finish_wait_ns = t->finish_wait_ns;
    out->n_to_bytes = t->n_to_bytes;
    out->n_from_bytes = t->n_from_bytes;
    return ERR_OK;
}

static err_code facts(struct place *place, struct place_facts *out, struct err *e)
{
    const struct rank_place *p = (const struct rank_place *)place;
    const struct request q = {.kind = REQUEST_FACTS};
    struct rank_figures f;
    TRY(ranks_ask_wait(p->ranks, p->rank, &q, &f, sizeof f, e));
    *out = (struct place_facts){.name = ranks_name(p->ranks, p->rank),
                                .n_expert = f.n_expert,
                                .open_bytes = (size_t)f.open_bytes,
                                .all_bytes = (size_t)f.all_bytes,
                                .bytes_per_s = p->bytes_per_s};
    return ERR_OK;
}

/* Its memory is another process's. */
static void reclaim(struct place *place, size_t n_bytes)
{
}

/* An error here comes back from the next call. */
static void forget(struct place *place)
{
    const struct rank_place *p = (const struct rank_place *)place;
    const struct request q = {.kind = REQUEST_FORGET};
    struct err e;
    err_code code = ranks_ask_wait(p->ranks, p->rank, &q, NULL, 0, &e);
    (void)code;
}

static void close_place(struct place *place)
{
    struct rank_place *p = (struct rank_place *)place;
    mem_free(p->traffic);
    mem_free(p);
}

static const struct place_vtable vtable = {.begin = begin,
                                           .finish = finish,
                                           .cancel = cancel,
                                           .predict = predict,
                                           .open = open_slots,
                                           .layer_stats = layer_stats,
                                           .facts = facts,
                                           .reclaim = reclaim,
                                           .forget = forget,
                                           .close = close_place};

err_code ranks_place(struct place **out, struct ranks *r, int rank, int n_layer, double bytes_per_s, struct err *e)
{
    struct rank_place *p = mem_calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return err_nomem(e, sizeof *p, ranks_name(r, rank));
    p->traffic = mem_calloc((size_t)n_layer, sizeof *p->traffic);
    if (!p->traffic) {
        mem_free(p);
        return err_nomem(e, (size_t)n_layer * sizeof *p->traffic, ranks_name(r, rank));
    }
    p->place.v = &vtable;
    p->ranks = r;
    p->rank = rank;
    p->n_layer = n_layer;
    p->bytes_per_s = bytes_per_s;
    *out = &p->place;
    return ERR_OK;
}
