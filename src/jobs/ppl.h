/* Perplexity of a model on a text, by the procedure of llama.cpp's tool, so that figures can be compared: the tokens
 * are cut into windows of n_ctx, each starts afresh, and the second half's tokens but the first are scored; where the
 * model adds a BOS it takes the place of each window's first token.
 *
 * A second session may be compared with: how far the predictions of the first are from those of the second, in the same
 * run and on the same tokens. */
#ifndef JOBS_PPL_H
#define JOBS_PPL_H

#include "base/err.h"
#include "jobs/ppl_resume.h"
#include "moebius/moebius.h"

struct ppl_result {
    int64_t n_window, n_scored;
    int64_t n_resumed;     /* windows of an earlier run among them */
    double nll, nll_error; /* mean negative log-likelihood and its standard error */
    double ppl, ppl_error;
    /* against the other session, if there is one */
    double other_ppl;
    double ratio, ratio_error;           /* of the perplexities, from the tokens' differences */
    double divergence, divergence_error; /* mean Kullback-Leibler divergence from the other's predictions, nats */
    double same_top, same_top_error;     /* the share of tokens whose likeliest is the other's */
};

struct ppl_params {
    int64_t n_ctx, n_window;      /* how many windows at most; 0: all */
    bool by_token;                /* the scored half is computed token by token, as when it is generated */
    bool forget;                  /* each window begins with no experts in memory and no memory of their use */
    moebius_session *against;     /* of the same engine; NULL: none. It computes each window first, in chunks */
    const char *resume;           /* the file to go on from and to write after each window; NULL: none */
    struct ppl_identity identity; /* for it */
    /* Called after each window with the result so far; false ends the run. May be NULL. */
    bool (*progress)(void *user, const struct ppl_result *so_far, int64_t n_window);
    void *user;
};

/* Scores windows with a session that has a context of n_ctx or more. ERR_USAGE when the text is shorter than a window;
 * ERR_FORMAT when the file is not one of this model, text and settings. */
MUST_USE err_code ppl_run(moebius_engine *engine, moebius_session *session, const int32_t *ids, size_t n,
                          const struct ppl_params *p, struct ppl_result *out, struct err *e);

#endif
