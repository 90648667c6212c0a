/* From how many tokens on sorted dispatch of the experts is faster than direct dispatch: both are timed on ever larger
 * batches, through the whole model. */
#ifndef JOBS_TUNE_H
#define JOBS_TUNE_H

#include "base/err.h"
#include "moebius/moebius.h"

enum { TUNE_MAX_TOK = 64, TUNE_MAX_ROW = 16 };

struct tune_row {
    int64_t n_tok;
    double direct_ns, sorted_ns; /* time of the experts of all layers, the best of some rounds */
};

struct tune_result {
    struct tune_row rows[TUNE_MAX_ROW];
    int n_row;
    int64_t sort_cutoff; /* the cutoff for which the geometric mean of the rows' times is least */
};

/* The sessions, of one engine, compute as many as TUNE_MAX_TOK tokens at once: `direct` has a sort cutoff of as many,
 * `sorted` of 1. ids: as many tokens at least. `progress` (may be NULL) is called before each row; false cancels. */
MUST_USE err_code tune_run(const moebius_engine *engine, moebius_session *direct, moebius_session *sorted,
                           const int32_t *ids, bool (*progress)(void *user, int64_t n_tok), void *user,
                           struct tune_result *out, struct err *e);

/* The cutoff for n rows. */
int64_t tune_choose(const struct tune_row *rows, int n);

#endif
