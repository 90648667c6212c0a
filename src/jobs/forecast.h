/* What tokens take whose experts are computed by several ranks: arithmetic over what the ranks and the links between
 * them were measured to do. A layer takes as long as the slowest rank, which depends on how a token's experts happen to
 * fall on the ranks, so layers are drawn at random, the same ones in each run. */
#ifndef JOBS_FORECAST_H
#define JOBS_FORECAST_H

#include <stdint.h>

enum { FORECAST_MAX_RANK = 64 };

struct forecast_rank {
    double share;        /* of the choices of experts without replicas, that fall on its own: 0 to 1 */
    double row_s;        /* seconds to compute one choice */
    double round_trip_s; /* of a few bytes there and back; 0 for rank 0 */
    double bytes_per_s;  /* of messages; not used for rank 0 */
};

struct forecast_params {
    struct forecast_rank ranks[FORECAST_MAX_RANK]; /* [n_rank] */
    int n_rank;
    int64_t n_layer; /* MoE layers */
    int64_t n_embd, n_used;
    int64_t n_tok;        /* tokens that are computed together, at least 1 */
    double replica_share; /* of all choices, that any rank may compute: the one that is through first does */
    double other_s;       /* of each such batch, what rank 0 does besides experts */
};

struct forecast {
    double batch_s;            /* of n_tok tokens */
    double n_bytes, n_message; /* between rank 0 and the others, of a batch */
};

struct forecast forecast_make(const struct forecast_params *p);

#endif
