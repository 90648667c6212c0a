/* What comes by wire, held against what was agreed when the ranks met: no field of it is used as a size or an index
 * before. What is wrong is no error of the work, but ends the run. */
#include "ranks/rank_messages.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

static err_code check(const char *what, int64_t got, int64_t least, int64_t most, struct err *e)
{
    if (got >= least && got <= most)
        return ERR_OK;
    return err_set(e, ERR_FAIL, "a message of rank 0: %s %lld: expected %lld to %lld", what, (long long)got,
                   (long long)least, (long long)most);
}

static err_code check_bytes(size_t got, size_t expected, struct err *e)
{
    return check("bytes", (int64_t)got, (int64_t)expected, (int64_t)expected, e);
}

/* ids, of which there are n in the message. */
static err_code check_ids(const int32_t *ids, int64_t n, int64_t n_expert, struct err *e)
{
    for (int64_t i = 0; i < n; i++)
        TRY(check("ids", ids[i], -1, n_expert - 1, e));
    return ERR_OK;
}

static err_code check_run(const struct rank_service *s, const struct request *q, size_t n_bytes, struct err *e)
{
    const struct expert_rules *rules = &s->rules[q->layer];
    const int32_t *ids = (const int32_t *)(q + 1);
    const int64_t id_bytes = sizeof *ids + (q->has_weights ? sizeof(float) : 0);
    const int64_t tok_bytes = rules->n_used * id_bytes + rules->n_embd * (int64_t)sizeof(float);
    int64_t n_row = 0;
    TRY(check("n_embd", q->n_embd, rules->n_embd, rules->n_embd, e));
    TRY(check("n_used", q->n_used, rules->n_used, rules->n_used, e));
    TRY(check("n_tok", q->n_tok, 1, (int64_t)(n_bytes - sizeof *q) / tok_bytes, e));
    TRY(check_bytes(n_bytes, run_bytes(q), e));
    TRY(check_ids(ids, q->n_tok * q->n_used, rules->n_expert, e));
    for (int64_t i = 0; i < q->n_tok * q->n_used; i++) {
        if (ids[i] >= 0 && !(division_holders(s->division, q->layer, ids[i]) >> s->rank & 1))
            return err_set(e, ERR_FAIL, "a message of rank 0: ids %d: expected experts of layer %d that this rank has",
                           (int)ids[i], (int)q->layer);
        n_row += ids[i] >= 0;
    }
    return check("n_row", q->n_row, n_row, n_row, e);
}

static err_code check_predict(const struct rank_service *s, const struct request *q, size_t n_bytes, struct err *e)
{
    const int32_t *ids = (const int32_t *)(q + 1);
    TRY(check("n_tok", q->n_tok, 0, (int64_t)((n_bytes - sizeof *q) / sizeof *ids), e));
    TRY(check_bytes(n_bytes, sizeof *q + (size_t)q->n_tok * sizeof *ids, e));
    return check_ids(ids, q->n_tok, s->rules[q->layer].n_expert, e);
}

/* Counts of usage, or none of them. */
static err_code check_open(const struct rank_service *s, const struct request *q, size_t n_bytes, struct err *e)
{
    const struct division *d = s->division;
    if (q->n_tok == 0)
        return check_bytes(n_bytes, sizeof *q, e);
    TRY(check("n_tok (layers)", q->n_tok, d->n_layer, d->n_layer, e));
    TRY(check("n_row (experts)", q->n_row, d->n_expert, d->n_expert, e));
    return check_bytes(n_bytes, sizeof *q + (size_t)(q->n_tok * q->n_row) * sizeof(uint64_t), e);
}

err_code rank_check_request(const struct rank_service *s, const struct request *q, size_t n_bytes, struct err *e)
{
    const bool has_layer = q->kind == REQUEST_RUN || q->kind == REQUEST_PREDICT || q->kind == REQUEST_STATS;
    TRY(check("kind", q->kind, REQUEST_RUN, REQUEST_FORGET, e));
    if (has_layer)
        TRY(check("layer", q->layer, 0, s->n_layer - 1, e));
    switch ((enum request_kind)q->kind) {
    case REQUEST_RUN: return check_run(s, q, n_bytes, e);
    case REQUEST_PREDICT: return check_predict(s, q, n_bytes, e);
    case REQUEST_OPEN: return check_open(s, q, n_bytes, e);
    default: return check_bytes(n_bytes, sizeof *q, e);
    }
}

err_code rank_read_division(const struct request *q, size_t n_bytes, const struct division_head *agreed,
                            struct division *out, struct err *e)
{
    const struct division_head *h = (const struct division_head *)(q + 1);
    const uint64_t *holders = (const uint64_t *)(h + 1);
    const int64_t n_all = agreed->n_layer * agreed->n_expert;
    const size_t n_holders = (size_t)n_all * sizeof *holders;
    TRY(check("kind", q->kind, REQUEST_DIVISION, REQUEST_DIVISION, e));
    TRY(check_bytes(n_bytes, sizeof *q + sizeof *h + n_holders, e));
    TRY(check("n_place", h->n_place, agreed->n_place, agreed->n_place, e));
    TRY(check("n_layer", h->n_layer, agreed->n_layer, agreed->n_layer, e));
    TRY(check("n_expert", h->n_expert, agreed->n_expert, agreed->n_expert, e));
    for (int64_t i = 0; i < n_all; i++)
        if (h->n_place < DIVISION_MAX_PLACE && holders[i] >> h->n_place)
            return err_set(e, ERR_FAIL, "a message of rank 0: holders %llx: expected places below %d",
                           (unsigned long long)holders[i], (int)h->n_place);
    *out = (struct division){.n_place = (int)h->n_place, .n_layer = (int)h->n_layer, .n_expert = h->n_expert};
    out->holders = mem_alloc(n_holders);
    if (!out->holders)
        return err_nomem(e, n_holders, "the division of experts");
    memcpy(out->holders, holders, n_holders);
    return ERR_OK;
}

/* ---- on rank 0 --------------------------------------------------------------------------------------------------- */

static bool is_code(int32_t code)
{
    switch (code) {
#define ERR(name, number, text) case number:
#include "base/err.def"
#undef ERR
        return true;
    default: return false;
    }
}

err_code rank_check_answer(const char *rank, struct answer *a, uint32_t number, size_t n_bytes, size_t expected,
                           struct err *e)
{
    a->text[ERR_TEXT_BYTES - 1] = '\0';
    if (!is_code(a->code))
        return err_set(e, ERR_FAIL, "%s: an answer's code %d: expected one of moebius", rank, (int)a->code);
    if (a->code != ERR_OK)
        return err_set(e, (err_code)a->code, "%s: %s", rank, a->text);
    if (a->number != number || n_bytes != expected)
        return err_set(e, ERR_FAIL, "%s: answer %u of %zu bytes: expected %u of %zu", rank, a->number, n_bytes, number,
                       expected);
    if (a->compute_ns < 0)
        return err_set(e, ERR_FAIL, "%s: an answer's compute_ns %lld: expected 0 or more", rank,
                       (long long)a->compute_ns);
    return ERR_OK;
}

static err_code check_speed(const char *rank, const char *what, double got, struct err *e)
{
    return isfinite(got) && got >= 0
               ? ERR_OK
               : err_set(e, ERR_FAIL, "%s: an offer's %s %g: expected a speed, or 0", rank, what, got);
}

err_code rank_check_offer(const char *rank, const struct rank_offer *o, const struct rank_offer *mine, struct err *e)
{
    if (o->n_file_bytes != mine->n_file_bytes || o->fingerprint != mine->fingerprint)
        return err_set(e, ERR_FORMAT,
                       "%s: another model (%llu bytes, fingerprint %016llx): expected that of rank 0 (%llu, %016llx)",
                       rank, (unsigned long long)o->n_file_bytes, (unsigned long long)o->fingerprint,
                       (unsigned long long)mine->n_file_bytes, (unsigned long long)mine->fingerprint);
    if (o->is_reference != mine->is_reference)
        return err_set(e, ERR_USAGE, "%s: expected the same kernels as rank 0: --reference on all ranks, or on none",
                       rank);
    if (o->n_threads < 1 || o->n_threads > UINT16_MAX)
        return err_set(e, ERR_FAIL, "%s: an offer's n_threads %u: expected 1 to %d", rank, o->n_threads, UINT16_MAX);
    TRY(check_speed(rank, "bytes_per_s", o->bytes_per_s, e));
    return check_speed(rank, "reads_per_s", o->reads_per_s, e);
}
