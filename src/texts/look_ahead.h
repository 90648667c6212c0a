/* A text that is alone in its session, and goes on token by token with guesses (texts/draft.h): what was guessed is
 * computed with the token before, and is there when it is asked for. The session may be ahead of the text meanwhile;
 * nobody else uses it between look_ahead_begin and look_ahead_end. */
#ifndef TEXTS_LOOK_AHEAD_H
#define TEXTS_LOOK_AHEAD_H

#include "base/err.h"
#include "moebius/moebius.h"
#include "texts/draft.h"

struct look_ahead {
    int64_t n_draft; /* guesses at most; 0: tokens are computed one by one. The caller sets it, and the next one */
    bool always;     /* whether they pay or not, after single tokens, too: for tests */
    bool has_mtp;    /* the engine guesses, too: look_ahead_begin sets it */

    moebius_engine *engine;   /* borrowed, as the session is */
    moebius_session *session; /* NULL: not between begin and end */
    int32_t *ids;             /* [n_ids], the text's tokens; owned */
    size_t n_ids, capacity;
    struct draft_costs costs;
    struct draft_odds odds;
    int32_t guesses[1 + DRAFT_MOST]; /* the token before, and [n] guesses that were computed with it */
    size_t n, n_used, match;         /* n_used: of these, how many the text has gone on with */
    size_t n_planned;                /* guesses that were hoped for, of which MTP may have made fewer */
    float *logits;                   /* [1 + n][n_vocab], after each; owned */
    size_t n_row;                    /* of them */
    uint64_t n_guess, n_right;       /* so far */
};

/* The text is what the session holds. */
MUST_USE err_code look_ahead_begin(struct look_ahead *a, moebius_engine *engine, moebius_session *session,
                                   struct err *e);
/* The text goes on with a token; *ns: what computing took, 0 where it was there already. After a failure the session
 * holds the text without it, or less. */
MUST_USE err_code look_ahead_eval(struct look_ahead *a, int32_t id, int64_t *ns, struct err *e);
/* As moebius_session_logits, after the text's last token. */
const float *look_ahead_logits(const struct look_ahead *a);
size_t look_ahead_pos(const struct look_ahead *a); /* tokens of the text */
/* The session holds the text and no more; logits may be gone. Keeps what was learnt. */
void look_ahead_end(struct look_ahead *a);
void look_ahead_close(struct look_ahead *a); /* accepts one that is zero */

#endif
