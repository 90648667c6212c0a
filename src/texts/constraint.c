#include "texts/constraint.h"

#include <string.h>

#include "base/mem.h"

err_code constraint_open(struct constraint *c, const struct text_request *request, moebius_sampler *sampler,
                         struct err *e)
{
    *c = (struct constraint){.grammar = request->grammar, .from = request->grammar_from, .sampler = sampler};
    if (!c->grammar || c->from != TEXT_GRAMMAR_FROM_TRIGGER)
        return ERR_OK;
    c->trigger = mem_strdup(request->trigger);
    return c->trigger ? ERR_OK : err_nomem(e, strlen(request->trigger), "a trigger");
}

/* Ends the constraint: the grammar applies no more. */
static void release(struct constraint *c)
{
    (void)moebius_sampler_set_matcher(c->sampler, NULL, NULL);
    moebius_matcher_close(&c->matcher);
}

void constraint_close(struct constraint *c)
{
    if (c->matcher)
        release(c);
    mem_free(c->trigger);
    bytes_close(&c->said);
    bytes_close(&c->said_ids);
    *c = (struct constraint){0};
}

/* The sampler follows the matcher. */
static err_code follow(struct constraint *c, struct err *e)
{
    moebius_error error;
    return moebius_sampler_set_matcher(c->sampler, c->matcher, &error) == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}

/* A grammar that was too much for a text will be so again, so that the error must not read like a full queue. */
static err_code matcher_err(struct err *e, const moebius_error *error)
{
    return error->status == MOEBIUS_LIMIT ? err_set(e, ERR_UNSUPPORTED, "%s", error->text) : err_adopt(e, error);
}

static err_code open_matcher(struct constraint *c, struct err *e)
{
    moebius_error error;
    return moebius_matcher_open(&c->matcher, c->grammar, &error) == MOEBIUS_OK ? ERR_OK : matcher_err(e, &error);
}

/* ---- choosing ------------------------------------------------------------------------------------------------- */

/* Continues the text without the grammar, which is too much for it. */
static int32_t pick_freely(struct constraint *c, const struct answer *answer, const float *logits,
                           const moebius_error *error)
{
    release(c);
    if (answer->params.fn)
        answer->params.fn(answer->params.user, MOEBIUS_REPLY_NOTE, error->text, strlen(error->text));
    return moebius_sampler_pick(c->sampler, logits);
}

/* Advances by a token that the grammar allows. */
static err_code pick_allowed(struct constraint *c, const struct answer *answer, const float *logits, int32_t *id,
                             struct err *e)
{
    moebius_error error;
    *id = moebius_sampler_pick(c->sampler, logits);
    if (*id >= 0)
        return ERR_OK;
    moebius_status status = moebius_matcher_status(c->matcher, &error);
    if (status == MOEBIUS_LIMIT && c->from == TEXT_GRAMMAR_FROM_TRIGGER) {
        *id = pick_freely(c, answer, logits, &error);
        return ERR_OK;
    }
    if (status != MOEBIUS_OK)
        return matcher_err(e, &error);
    return moebius_matcher_must_end(c->matcher)
               ? ERR_OK
               : err_set(e, ERR_FAIL, "no token of the vocabulary goes on as the grammar wants");
}

/* Checks whether the grammar's text has ended; anything may follow then. */
static err_code pick_after_trigger(struct constraint *c, const struct answer *answer, const float *logits, int32_t *id,
                                   struct err *e)
{
    if (!moebius_matcher_may_end(c->matcher))
        return pick_allowed(c, answer, logits, id, e);
    (void)moebius_sampler_set_matcher(c->sampler, NULL, NULL);
    *id = moebius_sampler_pick(c->sampler, logits);
    if (moebius_matcher_allows(c->matcher, *id))
        return follow(c, e);
    release(c);
    return ERR_OK;
}

/* Reasoning, and marks before the content, are chosen freely; the first token that is neither is the content's. */
static err_code pick_before_content(struct constraint *c, const struct answer *answer, const float *logits, int32_t *id,
                                    struct err *e)
{
    *id = moebius_sampler_pick(c->sampler, logits);
    if (answer_is_reasoning(answer))
        return ERR_OK;
    TRY(open_matcher(c, e));
    if (moebius_matcher_allows(c->matcher, *id))
        return follow(c, e);
    if (answer_is_mark(answer, *id)) {
        moebius_matcher_close(&c->matcher);
        return ERR_OK;
    }
    TRY(follow(c, e));
    return pick_allowed(c, answer, logits, id, e);
}

err_code constraint_pick(struct constraint *c, const struct answer *answer, const float *logits, int32_t *id,
                         struct err *e)
{
    if (c->grammar && !c->matcher && c->from == TEXT_GRAMMAR_FROM_START) {
        TRY(open_matcher(c, e));
        TRY(follow(c, e));
    }
    if (c->matcher)
        return c->from == TEXT_GRAMMAR_FROM_TRIGGER ? pick_after_trigger(c, answer, logits, id, e)
                                                    : pick_allowed(c, answer, logits, id, e);
    if (c->grammar && c->from == TEXT_GRAMMAR_FROM_CONTENT)
        return pick_before_content(c, answer, logits, id, e);
    *id = moebius_sampler_pick(c->sampler, logits);
    return ERR_OK;
}

/* ---- triggers ------------------------------------------------------------------------------------------------- */

/* The trigger in the text so far; NULL: it has not come. */
static const char *find_trigger(const struct constraint *c)
{
    size_t n = strlen(c->trigger);
    for (const char *s = c->said.s, *end = s + c->said.n; s && (size_t)(end - s) >= n; s++)
        if (!memcmp(s, c->trigger, n))
            return s;
    return NULL;
}

static int32_t id_at(const struct constraint *c, size_t i)
{
    int32_t id;
    memcpy(&id, c->said_ids.s + i * sizeof id, sizeof id);
    return id;
}

static size_t piece_bytes(const struct answer *a, int32_t id)
{
    size_t n;
    moebius_token_piece(a->params.vocab, id, true, &n);
    return n;
}

/* Advances by a token, the first n_skip bytes of which come before the trigger. */
static bool accept(struct constraint *c, const struct answer *a, int32_t id, size_t n_skip)
{
    size_t n, n_fit;
    const char *piece = moebius_token_piece(a->params.vocab, id, true, &n);
    return n_skip ? moebius_matcher_feed(c->matcher, piece + n_skip, n - n_skip, &n_fit)
                  : moebius_matcher_accept(c->matcher, id);
}

/* Begins the grammar with the trigger, which begins at byte `at` of the kept tokens, and what followed it. If a token
 * went on after the trigger in a way that the grammar does not allow, the answer stays free. */
static err_code begin(struct constraint *c, const struct answer *a, size_t at, struct err *e)
{
    size_t i = 0, n_ids = c->said_ids.n / sizeof(int32_t), n;
    TRY(open_matcher(c, e));
    while ((n = piece_bytes(a, id_at(c, i))) <= at) {
        at -= n;
        i++;
    }
    bool fits = accept(c, a, id_at(c, i), at);
    while (++i < n_ids && fits)
        fits = accept(c, a, id_at(c, i), 0);
    bytes_drop(&c->said, c->said.n);
    bytes_drop(&c->said_ids, c->said_ids.n);
    if (fits)
        return follow(c, e);
    moebius_matcher_close(&c->matcher);
    return ERR_OK;
}

/* Forgets the tokens that can't be a part of the trigger any more. */
static void forget(struct constraint *c, const struct answer *a)
{
    size_t n, n_trigger = strlen(c->trigger);
    while (c->said_ids.n && c->said.n - (n = piece_bytes(a, id_at(c, 0))) + 1 >= n_trigger) {
        bytes_drop(&c->said, n);
        bytes_drop(&c->said_ids, sizeof(int32_t));
    }
}

err_code constraint_note(struct constraint *c, const struct answer *answer, int32_t id, struct err *e)
{
    size_t n;
    if (!c->grammar || c->from != TEXT_GRAMMAR_FROM_TRIGGER || c->matcher || answer_is_reasoning(answer))
        return ERR_OK;
    const char *piece = moebius_token_piece(answer->params.vocab, id, true, &n), *from;
    TRY(bytes_add(&c->said, piece, n, e));
    TRY(bytes_add(&c->said_ids, &id, sizeof id, e));
    if ((from = find_trigger(c)) != NULL)
        return begin(c, answer, (size_t)(from - c->said.s), e);
    forget(c, answer);
    return ERR_OK;
}

/* ---- forced tokens ---------------------------------------------------------------------------------------------- */

err_code constraint_forced(const struct constraint *c, const struct answer *answer, int32_t **ids, size_t *n,
                           struct err *e)
{
    enum { LEAST_BYTES = 8, MOST_BYTES = 256 };
    char bytes[MOST_BYTES];
    moebius_error error;
    *ids = NULL;
    *n = 0;
    size_t n_bytes = c->matcher ? moebius_matcher_forced(c->matcher, bytes, MOST_BYTES) : 0;
    if (n_bytes < LEAST_BYTES)
        return ERR_OK;
    if (moebius_tokenize(answer->params.vocab, bytes, n_bytes, false, false, ids, n, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    if (*n)
        --*n; /* what follows may be a part of the last one */
    return ERR_OK;
}
