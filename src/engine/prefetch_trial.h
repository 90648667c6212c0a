/* Whether to prefetch experts while decoding: a trial, repeated now and then, tells whether right predictions save more
 * than wrong ones cost. */
#ifndef ENGINE_PREFETCH_TRIAL_H
#define ENGINE_PREFETCH_TRIAL_H

#include "moebius/moebius.h"

struct prefetch_trial {
    moebius_prefetch mode;
    int64_t n_tok;       /* decoded so far */
    bool is_single;      /* the forward pass in hand is of a single token */
    bool is_on;          /* and prefetches */
    bool loses;          /* the last trial found tokens without prefetching faster */
    int64_t tried_ns[2]; /* the trial's time of tokens without and with prefetching */
};

/* Before a forward pass: whether to prefetch in it. After it: how long it took. */
bool prefetch_trial_begin(struct prefetch_trial *p, bool is_single_token);
void prefetch_trial_end(struct prefetch_trial *p, int64_t n_ns);

#endif
