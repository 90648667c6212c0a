/* Speculative decoding (texts/draft.h) of a single text: guessed tokens are computed together with the token before
 * them, and are already there when they are asked for. So the session may be ahead of the text, and nobody else may use
 * it between look_ahead_begin and look_ahead_end. */
#ifndef TEXTS_LOOK_AHEAD_H
#define TEXTS_LOOK_AHEAD_H

#include "base/err.h"
#include "moebius/moebius.h"
#include "texts/draft.h"

struct look_ahead {
    int64_t n_draft; /* the most guesses; 0: tokens are computed one by one. Set by the caller */
    bool always;     /* for tests: guess even if it does not pay, and after single tokens. Set by the caller */
    bool has_mtp;    /* the engine can guess by MTP; look_ahead_begin sets it */

    moebius_engine *engine;   /* borrowed */
    moebius_session *session; /* borrowed; NULL except between begin and end */
    int32_t *ids;             /* [n_ids], the text's tokens; owned */
    size_t n_ids, capacity;
    struct draft_costs costs;
    struct draft_odds odds;
    int32_t guesses[1 + DRAFT_MOST]; /* the token before the guesses, and n guesses that were computed with it */
    size_t n;                        /* guesses in the session */
    size_t n_used;                   /* how many of them the text has accepted so far */
    size_t match;                    /* the length of the match that they follow, or DRAFT_MTP */
    size_t n_planned;                /* guesses that were wanted; MTP may have made fewer */
    float *logits;                   /* [1 + n][n_vocab] after each of these tokens; owned */
    size_t n_row;                    /* rows that `logits` has room for */
    uint64_t n_guess, n_right;       /* guesses in all, and those that were right */
};

/* Begins with the text that the session holds. */
MUST_USE err_code look_ahead_begin(struct look_ahead *a, moebius_engine *engine, moebius_session *session,
                                   struct err *e);
/* Appends a token to the text. *ns: how long that took; 0: the token was computed already. After a failure the session
 * holds the text without the token, or less. */
MUST_USE err_code look_ahead_eval(struct look_ahead *a, int32_t id, int64_t *ns, struct err *e);
/* The logits after the text's last token, as moebius_session_logits. */
const float *look_ahead_logits(const struct look_ahead *a);
size_t look_ahead_pos(const struct look_ahead *a); /* tokens of the text */
/* Ends: the session holds exactly the text again, perhaps without logits. Keeps the statistics for the next text. */
void look_ahead_end(struct look_ahead *a);
void look_ahead_close(struct look_ahead *a); /* accepts zeros */

#endif
