/* Perplexity of a model on a text, by the procedure of llama.cpp's tool, so that figures can be compared: the tokens
 * are cut into windows of n_ctx, each starts afresh, and the second half's tokens but the first are scored; where the
 * model adds a BOS it takes the place of each window's first token. */
#ifndef JOBS_PPL_H
#define JOBS_PPL_H

#include "base/err.h"
#include "moebius/moebius.h"

struct ppl_result {
    int64_t n_window, n_scored;
    double nll, nll_error; /* mean negative log-likelihood and its standard error */
    double ppl, ppl_error;
};

/* Scores up to n_window windows (0: all) of a session with a context of n_ctx or more. `progress` (may be NULL) is
 * called after each window with the result so far; false cancels. ERR_USAGE when the text is shorter than a window. */
MUST_USE err_code ppl_run(moebius_session *session, const moebius_engine *engine, const int32_t *ids, size_t n,
                          int64_t n_ctx, int64_t n_window,
                          bool (*progress)(void *user, const struct ppl_result *so_far, int64_t n_window), void *user,
                          struct ppl_result *out, struct err *e);

#endif
