/* Making an importance matrix: the squares of what a model's weights are multiplied by, summed over a text. */
#ifndef JOBS_IMATRIX_GATHER_H
#define JOBS_IMATRIX_GATHER_H

#include <stdio.h>

#include "base/err.h"
#include "moebius/moebius.h"

struct imatrix_gather;

struct imatrix_gather_params {
    int64_t n_ctx;    /* tokens of a window */
    int64_t n_window; /* how many windows at most; 0: all */
    /* Called before each window with windows done and wanted; false ends early, with what there is. May be NULL. */
    bool (*progress)(void *user, int64_t n_done, int64_t n_window);
    void *user;
};

/* Runs the windows of a text, each afresh and with the model's BOS, if it has one, in place of its first token. Sums
 * are in double, in the order of the tokens, so that they depend on nothing else. ERR_USAGE when the text fills no
 * window. */
MUST_USE err_code imatrix_gather_run(struct imatrix_gather **out, moebius_session *session,
                                     const moebius_engine *engine, const int32_t *ids, size_t n,
                                     const struct imatrix_gather_params *p, struct err *e);
void imatrix_gather_close(struct imatrix_gather **g);

/* Writes the file that imatrix.h reads. text: the name of the text's file. */
MUST_USE err_code imatrix_gather_save(const struct imatrix_gather *g, const char *path, const char *text,
                                      struct err *e);

/* Prints what was gathered, and which layers' experts saw too few tokens. */
void imatrix_gather_report(const struct imatrix_gather *g, FILE *out);

#endif
