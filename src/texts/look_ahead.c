#include "texts/look_ahead.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"

static err_code reserve_ids(struct look_ahead *a, size_t n, struct err *e)
{
    return mem_grow(&a->ids, &a->capacity, n, sizeof *a->ids, "a text", e);
}

err_code look_ahead_begin(struct look_ahead *a, moebius_engine *engine, moebius_session *session, struct err *e)
{
    size_t n = (size_t)moebius_session_pos(session);
    a->engine = engine;
    a->session = session;
    a->has_mtp = a->n_draft && moebius_has_mtp(engine);
    a->n = a->n_used = 0;
    a->n_ids = n;
    if (!a->n_draft)
        return ERR_OK;
    TRY(reserve_ids(a, n + 1, e));
    if (n)
        memcpy(a->ids, moebius_session_tokens(session), n * sizeof *a->ids);
    return ERR_OK;
}

/* Removes guesses from the session that the text has not accepted. */
static void take_back(struct look_ahead *a)
{
    if (a->n)
        draft_note(&a->odds, a->match, a->n_planned, a->n_used);
    if (a->session && (size_t)moebius_session_pos(a->session) > a->n_ids)
        moebius_session_truncate(a->session, (int64_t)a->n_ids);
    a->n = a->n_used = 0;
}

/* Has MTP guess, if that pays. Where it fails there are no guesses. */
static void guess_mtp(struct look_ahead *a, size_t most)
{
    const struct draft_odds *odds = &a->odds;
    a->match = DRAFT_MTP;
    a->n_planned = draft_choose_mtp(&a->costs, &odds, &most, 1, 1, 1, a->always);
    if (a->n_planned == 0) {
        draft_pass_over(&a->costs, &a->odds, DRAFT_MTP, 1);
        return;
    }
    const moebius_guess_item item = {.session = a->session,
                                     .id = a->guesses[0],
                                     .most = a->n_planned,
                                     .least = a->always ? 0 : (float)draft_least(&a->costs, 1, 1),
                                     .ids = a->guesses + 1,
                                     .n = &a->n};
    int64_t start_ns = clock_ns();
    if (moebius_guess_batch(a->engine, &item, 1, NULL) != MOEBIUS_OK)
        a->n = 0;
    draft_note_mtp(&a->costs, min_size(a->n + 1, a->n_planned), clock_ns() - start_ns);
    if (a->n == 0)
        draft_note(&a->odds, DRAFT_MTP, a->n_planned, 0);
}

static void guess_match(struct look_ahead *a, size_t match, size_t next, size_t most)
{
    a->match = match;
    a->n = a->n_planned = draft_choose(&a->costs, &a->odds, match, most, 1, 1, a->always);
    if (a->n)
        draft_fill(a->guesses + 1, a->n, a->ids, a->n_ids, next);
    else
        draft_pass_over(&a->costs, &a->odds, match, 1);
}

/* Guesses what follows the text, whose last token the session lacks. */
static void guess(struct look_ahead *a)
{
    int64_t room = moebius_session_n_ctx(a->session) - (int64_t)a->n_ids;
    size_t most = (size_t)max_i64(min_i64(min_i64(a->n_draft, DRAFT_MOST), room), 0), next = 0, match;
    if (most == 0 || draft_pass_ns(&a->costs, 1) <= 0)
        return;
    match = draft_match(a->ids, a->n_ids, a->always, &next);
    a->guesses[0] = a->ids[a->n_ids - 1];
    if (a->has_mtp && (!match || draft_share(&a->odds, match) < draft_share(&a->odds, DRAFT_MTP)))
        guess_mtp(a, most);
    if (a->n == 0 && match)
        guess_match(a, match, next, most);
}

static err_code reserve_logits(struct look_ahead *a, size_t n_row, struct err *e)
{
    size_t row_bytes = (size_t)moebius_n_vocab(a->engine) * sizeof *a->logits;
    if (n_row <= a->n_row)
        return ERR_OK;
    float *logits = mem_resize(a->logits, n_row, row_bytes);
    if (!logits)
        return err_nomem(e, n_row * row_bytes, "logits");
    a->logits = logits;
    a->n_row = n_row;
    return ERR_OK;
}

/* moebius_logits_fn */
static bool keep_logits(void *user, size_t i, const float *logits)
{
    struct look_ahead *a = user;
    size_t n_vocab = (size_t)moebius_n_vocab(a->engine);
    memcpy(a->logits + i * n_vocab, logits, n_vocab * sizeof *logits);
    return true;
}

static err_code compute(struct look_ahead *a, int32_t id, struct err *e)
{
    moebius_error error;
    const moebius_batch_item item = a->n ? (moebius_batch_item){.session = a->session,
                                                                .ids = a->guesses,
                                                                .n = 1 + a->n,
                                                                .is_draft = true,
                                                                .logits = keep_logits,
                                                                .user = a}
                                         : (moebius_batch_item){.session = a->session, .ids = &id, .n = 1};
    moebius_status status = moebius_eval_batch(a->engine, &item, 1, &error);
    return status == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}

err_code look_ahead_eval(struct look_ahead *a, int32_t id, int64_t *ns, struct err *e)
{
    *ns = 0;
    if (a->n_used < a->n && a->guesses[1 + a->n_used] == id) {
        a->ids[a->n_ids++] = id;
        a->n_used++;
        a->n_right++;
        return ERR_OK;
    }
    take_back(a);
    if (a->n_draft) {
        TRY(reserve_ids(a, a->n_ids + 1 + DRAFT_MOST, e));
        a->ids[a->n_ids] = id;
    }
    a->n_ids++;
    int64_t start = clock_ns(), guessed;
    if (a->n_draft)
        guess(a);
    err_code code = a->n ? reserve_logits(a, 1 + a->n, e) : ERR_OK;
    guessed = clock_ns();
    if (code == ERR_OK)
        code = compute(a, id, e);
    *ns = clock_ns() - start;
    if (code != ERR_OK) {
        a->n = 0;
        a->n_ids--;
        take_back(a);
        return code;
    }
    draft_note_pass(&a->costs, 1 + a->n, start + *ns - guessed);
    a->n_guess += a->n;
    return ERR_OK;
}

const float *look_ahead_logits(const struct look_ahead *a)
{
    return a->n ? a->logits + a->n_used * (size_t)moebius_n_vocab(a->engine) : moebius_session_logits(a->session);
}

size_t look_ahead_pos(const struct look_ahead *a)
{
    return a->n_ids;
}

void look_ahead_end(struct look_ahead *a)
{
    take_back(a);
    a->session = NULL;
}

void look_ahead_close(struct look_ahead *a)
{
    mem_free(a->ids);
    mem_free(a->logits);
    a->ids = NULL;
    a->logits = NULL;
    a->capacity = a->n_row = 0;
}
