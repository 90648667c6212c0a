/* Measures thoroughly what decides the speed of a model on this machine, and never its results: how products prefetch
 * their weights, how large decode's tasks are, how long threads spin, and from how many tokens on sorted dispatch of
 * the experts is faster than direct dispatch. */
#ifndef JOBS_TUNE_H
#define JOBS_TUNE_H

#include "base/err.h"
#include "engine/tune_products.h"
#include "engine/tuning.h"
#include "moebius/moebius.h"

enum { TUNE_MAX_TOK = 64, TUNE_MAX_ROW = 16, TUNE_MAX_PRODUCT = TUNE_MAX_TYPE + 1, TUNE_N_NUMBER = 2 };

struct tune_row {
    int64_t n_tok;
    double direct_ns, sorted_ns; /* time of the experts of all layers, the best of some rounds */
};

/* A number of struct cpu_tuning that whole tokens are timed for. */
struct tune_number {
    const char *name;       /* as in the file */
    int64_t before, chosen; /* what was in force, and the fastest */
    double gain;            /* time of a token before over time now */
};

struct tune_result {
    struct tune_product products[TUNE_MAX_PRODUCT]; /* each type with one token, and the first with several */
    int n_product;
    struct tune_number numbers[TUNE_N_NUMBER];
    struct tune_row rows[TUNE_MAX_ROW]; /* [n_row]: none where the model has no routed experts */
    int n_row;
    int64_t sort_cutoff; /* as tune_choose says */
};

struct tune_params {
    /* Sessions of one engine that compute as many as TUNE_MAX_TOK tokens at once: `direct` has a sort cutoff of as
     * many, `sorted` of 1. */
    moebius_session *direct, *sorted;
    const int32_t *ids; /* [TUNE_MAX_TOK] */
    /* Called with what will be measured; false cancels. May be NULL. */
    bool (*progress)(void *user, const char *what);
    void *user;
};

/* The engine goes by what was found from now on, and its tuning says so: engine_save_tuning keeps it. A cancelled run
 * leaves what was in force. */
MUST_USE err_code tune_run(moebius_engine *engine, const struct tune_params *p, struct tune_result *out, struct err *e);

/* The cutoff for n rows: the one for which the geometric mean of their times is least, if that of the rows which it
 * changes is RACE_MARGIN better than with `now`, else `now`. */
int64_t tune_choose(const struct tune_row *rows, int n, int64_t now);

#endif
