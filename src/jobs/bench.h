/* How fast a model runs, and how fast it could run. Prefill and decode are timed in rounds.
 *
 * The roof is the least time that the operations of a timed stretch can take: for each operation its bytes divided by
 * the memory's bandwidth, or its multiply-adds divided by the peak of their unit, whichever is longer. Shared machines
 * change their speed within seconds, so bandwidth and peaks are measured right before and after each stretch (a prompt,
 * or a few decoded tokens), and their mean counts. For a GPU the roof is its bytes divided by its memory's bandwidth,
 * which is measured once. Where devices compute at the same time, the slowest one's roof counts. */
#ifndef JOBS_BENCH_H
#define JOBS_BENCH_H

#include "base/err.h"
#include "moebius/moebius.h"

struct bench_params {
    const int32_t *ids; /* [n_ids], at least one; they are repeated when they are used up */
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
    double roof_s;        /* the least time that this could take */
};

/* One phase, prefill or decode; all zero if it was not asked for. */
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
    moebius_roof best, least, mean; /* of each measured rate; zeros: GPUs compute everything */
    moebius_gpu_roof gpu;           /* of the first GPU; zeros: there is none */
    bool is_gpu_alone;              /* the GPU computes everything */
    int n_op;                       /* kinds of operations in `ops` */
    int64_t n_round;                /* rounds that have run */
    struct bench_phase prefill, decode;
};

/* The session needs room for n_depth + n_prefill + n_decode tokens. Further texts have sessions like it with other
 * tokens; their prompts are not timed. `progress` (may be NULL) is called after each round; false ends the run, and
 * out->n_round is the number of rounds so far. */
MUST_USE err_code bench_run(moebius_engine *engine, moebius_session *session, const struct bench_params *params,
                            bool (*progress)(void *user, int64_t n_round), void *user, struct bench_result *out,
                            struct err *e);

/* The spread of n >= 1 values. Sorts the values. */
struct bench_spread bench_spread(double *values, int64_t n);

#endif
