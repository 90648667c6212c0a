/* Decides whether experts are prefetched while decoding: a trial, repeated now and then, shows whether right
 * predictions save more time than wrong ones cost. */
#ifndef ENGINE_PREFETCH_TRIAL_H
#define ENGINE_PREFETCH_TRIAL_H

#include "moebius/moebius.h"

struct prefetch_trial {
    moebius_prefetch mode;
    int64_t n_tok;       /* tokens decoded so far */
    bool is_single;      /* the present pass has a single token */
    bool is_on;          /* the present pass prefetches */
    bool loses;          /* in the last trial tokens without prefetching were faster */
    int64_t tried_ns[2]; /* the trial's time of tokens without and with prefetching */
};

/* Before a forward pass: whether it shall prefetch. */
bool prefetch_trial_begin(struct prefetch_trial *p, bool is_single_token);
/* After the pass: it took n_ns. */
void prefetch_trial_end(struct prefetch_trial *p, int64_t n_ns);

#endif
