/* Whether to read ahead: where wrong guesses cost more than right ones save, a trial tells. */
#ifndef ENGINE_PREFETCH_TRIAL_H
#define ENGINE_PREFETCH_TRIAL_H

#include "moebius/moebius.h"

struct prefetch_trial {
    moebius_prefetch mode;
    int64_t n_tok; /* decoded */
    bool is_single, is_on;
    bool loses;          /* what the last trial found */
    int64_t tried_ns[2]; /* tokens without and with */
};

/* Before and after a chunk: whether to read ahead in it, and how long it took. */
bool prefetch_trial_begin(struct prefetch_trial *p, bool is_single_token);
void prefetch_trial_end(struct prefetch_trial *p, int64_t n_ns);

#endif
