/* How fast a model runs, and how fast it could: prefill and decode are timed in rounds. Shared machines change their
 * speed within seconds, so the roof is measured right before and after each stretch that is timed, a prompt or a few
 * decoded tokens, and is the mean of the two. It is the time that the stretch's operations can't go below, summed: of
 * each, the longer of its bytes over the memory's bandwidth and its multiply-adds over the peaks of their units. Of a
 * GPU it is its bytes over its memory's bandwidth, measured once; where devices compute together, the longest one's. */
#ifndef JOBS_BENCH_H
#define JOBS_BENCH_H

#include "base/err.h"
#include "moebius/moebius.h"

struct bench_params {
    const int32_t *ids; /* [n_ids], at least one; when they are used up they begin again */
    size_t n_ids;
    int64_t n_depth;   /* tokens in the context before anything is timed */
    int64_t n_prefill; /* tokens of a round's prompt; 0: prompts are not timed */
    int64_t n_decode;  /* tokens that a round decodes, of each text; 0: decoding is not timed */
    int64_t n_texts;   /* texts that decode together, at least 1 */
    int64_t n_round;   /* at least 1 */
};

enum { BENCH_MAX_PLACE = 64 };

struct bench_spread {
    double median, min, max;
};

struct bench_op {
    moebius_op_stats did; /* what ran in all rounds */
    double roof_s;        /* the least time that it could take */
};

/* One phase, prefill or decode; all zero when it was not asked for. */
struct bench_phase {
    int64_t n_tok; /* tokens of a round, of all texts */
    /* over the rounds: the speed, the speed that the roof permits, and the first over the second */
    struct bench_spread tok_per_s, roof_tok_per_s, roof_fraction;
    /* Tokens of all rounds in whose stretch the roof changed by more than a tenth. For the last two spreads they count
     * only in rounds that have no others. */
    int64_t n_unsteady;
    struct bench_op ops[MOEBIUS_MAX_OP];
    double n_bytes, n_int8, n_float, n_tile;     /* as in moebius_op_stats, for each token */
    double n_dispatch;                           /* of GPUs, for each token */
    double n_experts;                            /* experts that a MoE layer computed for a batch, each once */
    moebius_place_stats places[BENCH_MAX_PLACE]; /* what each of several places did in all rounds */
};

struct bench_result {
    moebius_roof best, least, mean; /* of the roofs that were measured, rate by rate; zeros: GPUs compute all */
    moebius_gpu_roof gpu;           /* of the first GPU; zeros: there is none */
    bool is_gpu_alone;              /* it computes all */
    int n_op;                       /* kinds of operations in `ops` */
    int64_t n_round;                /* rounds that were run */
    struct bench_phase prefill, decode;
};

/* The session needs room for n_depth + n_prefill + n_decode tokens. Further texts are sessions like it, with other
 * tokens; their prompts are not timed. `progress` (may be NULL) is called after each round; false ends it there:
 * out->n_round tells how many there were. */
MUST_USE err_code bench_run(moebius_engine *engine, moebius_session *session, const struct bench_params *params,
                            bool (*progress)(void *user, int64_t n_round), void *user, struct bench_result *out,
                            struct err *e);

/* The spread of n >= 1 values, which are sorted. */
struct bench_spread bench_spread(double *values, int64_t n);

#endif
