/* On other ranks: offers, and answers to what rank 0 asks. */
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "ranks/rank_messages.h"

/* Answers the request in hand with the first n_bytes of link_room, or with an error. */
static err_code reply(struct ranks *r, err_code code, const struct err *why, size_t n_bytes, struct err *e)
{
    struct answer a = {.number = r->n_answer, .layer = r->layer, .code = (int32_t)code, .compute_ns = r->compute_ns};
    if (code != ERR_OK)
        memcpy(a.text, why->text, sizeof a.text);
    return link_answer(r->link, &a, sizeof a, code == ERR_OK ? n_bytes : 0, e);
}

void ranks_fail(struct ranks *r, const struct err *why)
{
    struct err e;
    err_code code = reply(r, why->code, why, 0, &e);
    (void)code; /* rank 0 is lost, and nobody there to be told */
}

static err_code reply_with(struct ranks *r, const void *body, size_t n_bytes, struct err *e)
{
    void *room;
    TRY(link_room(r->link, 0, n_bytes, &room, e));
    if (n_bytes)
        memcpy(room, body, n_bytes);
    return reply(r, ERR_OK, NULL, n_bytes, e);
}

/* ---- the division -------------------------------------------------------------------------------------------- */

/* The next request, whose answer will have its number. */
static err_code take(struct ranks *r, const void **request, size_t *n_bytes, struct err *e)
{
    TRY(link_take(r->link, request, n_bytes, e));
    const struct request *q = *request;
    if (*n_bytes < sizeof *q)
        return err_set(e, ERR_FAIL, "a request of %zu bytes: expected at least %zu", *n_bytes, sizeof *q);
    r->n_answer = q->kind == REQUEST_PREDICT ? r->n_answer : q->number;
    r->layer = q->layer;
    r->compute_ns = 0;
    return ERR_OK;
}

err_code ranks_offer(struct ranks *r, const struct rank_offer *offer, int n_layer, int64_t n_expert,
                     struct division *out, struct err *e)
{
    const struct division_head agreed = {ranks_n(r), n_layer, n_expert};
    const void *request;
    size_t n;
    TRY(reply_with(r, offer, sizeof *offer, e));
    TRY(take(r, &request, &n, e));
    return rank_read_division(request, n, &agreed, out, e);
}

/* ---- serving ------------------------------------------------------------------------------------------------- */

/* Asked every few milliseconds while experts are computed. */
static bool is_cancel_wanted(void *user)
{
    link_step(user);
    return link_is_cancelled(user);
}

/* What the link's thread looks at. */
struct serving {
    const struct experts *experts;
    atomic_bool is_opening; /* slots are filled from a drive */
};

static bool is_excused(void *user)
{
    const struct serving *s = user;
    return atomic_load(&s->is_opening) || experts_is_at_drive(s->experts);
}

static err_code run(struct ranks *r, const struct rank_service *s, const struct request *q, size_t *n_result,
                    struct err *e)
{
    const struct cancel cancel = {is_cancel_wanted, r->link};
    const int64_t n_id = q->n_tok * q->n_used;
    const int32_t *ids = (const int32_t *)(q + 1);
    const float *after_ids = (const float *)(ids + n_id);
    struct place_call c = {.layer = q->layer,
                           .n_tok = q->n_tok,
                           .n_used = q->n_used,
                           .n_embd = q->n_embd,
                           .x = after_ids + (q->has_weights ? n_id : 0),
                           .ids = ids,
                           .weights = q->has_weights ? after_ids : NULL,
                           .n_row = q->n_row,
                           .sort_cutoff = q->sort_cutoff,
                           .is_decode = q->is_decode,
                           .cancel = &cancel};
    void *y;
    *n_result = (size_t)(c.n_row * c.n_embd) * sizeof *c.y;
    TRY(link_room(r->link, 0, *n_result, &y, e));
    c.y = y;
    int64_t before_ns = compute_layer_stats(s->compute, c.layer).compute_ns;
    pool_set_cancel(s->pool, &cancel);
    err_code code = compute_run(s->compute, &c, e);
    pool_set_cancel(s->pool, NULL);
    r->compute_ns = compute_layer_stats(s->compute, c.layer).compute_ns - before_ns;
    return code;
}

/* What rank 0 spares is for its operations and contexts, too; here at most one part in so many of the room is. */
enum { SPARE_SHARE = 8 };

/* Slots are opened, and filled with what was used most where rank 0 knows what that is. */
static err_code open_slots(const struct rank_service *s, const struct request *q, struct err *e)
{
    struct usage past;
    compute_trim(s->compute);
    size_t most = mem_room_bytes() / SPARE_SHARE, spare = (size_t)q->n_spare_bytes;
    TRY(experts_open(s->experts, spare < most ? spare : most, e));
    if (!q->n_tok)
        return ERR_OK;
    TRY(usage_create(&past, (int)q->n_tok, q->n_row, e));
    memcpy(past.count, q + 1, (size_t)(q->n_tok * q->n_row) * sizeof *past.count);
    for (int64_t i = 0; i < q->n_tok * q->n_row; i++)
        past.total[i / q->n_row] += past.count[i];
    err_code code = experts_warm(s->experts, &past, e);
    usage_close(&past);
    return code;
}

/* An error of the work is rank 0's to hear; only one of the link ends this rank. */
static err_code answer_work(struct ranks *r, const struct rank_service *s, const struct request *q, struct err *e)
{
    struct err why = {0};
    size_t n_result = 0;
    err_code code = q->kind == REQUEST_RUN ? run(r, s, q, &n_result, &why) : open_slots(s, q, &why);
    TRY(link_check(r->link, e));
    return reply(r, code, &why, n_result, e);
}

static err_code answer(struct ranks *r, const struct rank_service *s, const struct request *q, size_t n_bytes,
                       struct err *e)
{
    TRY(rank_check_request(s, q, n_bytes, e));
    switch ((enum request_kind)q->kind) {
    case REQUEST_RUN:
    case REQUEST_OPEN: return answer_work(r, s, q, e);
    case REQUEST_PREDICT:
        compute_predict(s->compute, q->layer, (const int32_t *)(q + 1), q->n_tok, q->is_likely);
        return ERR_OK;
    case REQUEST_STATS: {
        const struct place_layer_stats stats = compute_layer_stats(s->compute, q->layer);
        return reply_with(r, &stats, sizeof stats, e);
    }
    case REQUEST_FACTS: {
        const struct rank_figures f = {s->n_expert, experts_open_bytes(s->experts), experts_max_bytes(s->experts)};
        return reply_with(r, &f, sizeof f, e);
    }
    case REQUEST_FORGET: experts_forget(s->experts); return reply_with(r, NULL, 0, e);
    case REQUEST_DIVISION: break;
    }
    return ERR_OK;
}

static err_code serve(struct ranks *r, const struct rank_service *s, struct serving *serving, struct err *e)
{
    const struct request *q;
    const void *request;
    size_t n;
    TRY(reply_with(r, NULL, 0, e));
    for (;;) {
        err_code code = take(r, &request, &n, e);
        if (code == ERR_CANCELLED)
            return ERR_OK;
        TRY(code);
        q = request;
        atomic_store(&serving->is_opening, q->kind == REQUEST_OPEN);
        code = answer(r, s, request, n, e);
        atomic_store(&serving->is_opening, false);
        TRY(code);
    }
}

err_code ranks_serve(struct ranks *r, const struct rank_service *s, struct err *e)
{
    struct serving serving = {.experts = s->experts};
    link_watch(r->link, is_excused, &serving);
    err_code code = serve(r, s, &serving, e);
    link_watch(r->link, NULL, NULL);
    return code;
}
