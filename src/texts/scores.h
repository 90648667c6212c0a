/* The log-probabilities of a prompt's tokens, where somebody wants them. They come in order, each from the logits after
 * the tokens before it; the first token has none. Texts that begin alike take them over with the session that computed
 * them, as each session that goes on behind a token has to know those up to it. */
#ifndef TEXTS_SCORES_H
#define TEXTS_SCORES_H

#include "base/err.h"
#include "moebius/moebius.h"

/* Zero: nobody wants any. */
struct scores {
    moebius_logprob *rows; /* [n_tok][1 + n_top]: a token, and behind it the likeliest in its place; owned */
    size_t n_tok;          /* of the prompt */
    size_t n;              /* tokens whose rows are known, from the first on */
    int n_top;
    int32_t n_vocab;
};

MUST_USE err_code scores_open(struct scores *s, const int32_t *ids, size_t n_tok, int n_top, int32_t n_vocab,
                              struct err *e);
void scores_close(struct scores *s); /* leaves it zero */

/* Whether some are wanted and not known. */
bool scores_are_missing(const struct scores *s);
/* The logits after all tokens whose rows are known: adds the next row, unless all are known. */
void scores_add(struct scores *s, const float *logits);
/* How many of the first n tokens, which another prompt begins with, too, may come from its session without a row that
 * is missing then, when so many of its rows are known. */
size_t scores_usable(const struct scores *s, const struct scores *other, size_t n_known, size_t n);
/* Takes over another's rows of the first n tokens, as far as they are missing; both prompts begin with these. */
void scores_take(struct scores *s, const struct scores *other, size_t n);
/* Whether whoever wants what `b` has may as well have `a`, whose prompt begins alike. */
bool scores_cover(const struct scores *a, const struct scores *b);

#endif
