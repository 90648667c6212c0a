/* How fast a model runs, and how fast it could: prefill and decode are timed in rounds, and before and after each
 * the machine's roof is measured. A phase's roof is the time that its operations can't go below, summed: of each, the
 * longer of its bytes over the memory's bandwidth and its multiply-adds over the peaks of their units. */
#ifndef JOBS_BENCH_H
#define JOBS_BENCH_H

#include "base/err.h"
#include "moebius/moebius.h"

struct bench_params {
    const int32_t *ids; /* n_ids tokens, walked in a circle; at least 1 */
    size_t n_ids;
    int64_t n_depth;                      /* tokens in the context before anything is timed */
    int64_t n_prefill, n_decode, n_round; /* 0: not that phase; at least 1 round */
};

/* One phase; all zero when it was not asked for. */
struct bench_phase {
    int64_t n_tok;
    double tok_per_s, min, max; /* median and range over the rounds */
    double roof_tok_per_s;
    moebius_op_stats ops[MOEBIUS_MAX_OP]; /* over all rounds */
    double n_bytes, n_int8, n_float;      /* a token */
};

struct bench_result {
    moebius_roof roof; /* the best seen during the run */
    int n_op;
    int64_t n_round;
    struct bench_phase prefill, decode;
};

/* The session needs room for n_depth + n_prefill + n_decode tokens. `progress` (may be NULL) is called after each
 * round; false cancels. */
MUST_USE err_code bench_run(moebius_engine *engine, moebius_session *session, const struct bench_params *params,
                            bool (*progress)(void *user, int64_t n_round), void *user, struct bench_result *out,
                            struct err *e);

/* The median of n >= 1 values, which it sorts. */
double bench_median(double *values, int64_t n);

/* The seconds that an operation's work takes at least on such a machine. */
double bench_op_roof_seconds(const moebius_roof *roof, const moebius_op_stats *op);

#endif
