/* Whether a cache of another device's experts pays off, and how fast experts may move into its slots.
 *
 * A trial, repeated now and then, alternates passes that use the cache with passes that leave all experts to the other
 * devices. Decoding and prompts have trials of their own, as a cache may pay off for one and not for the other; where
 * it loses, it is not used until the next trial. Experts move after passes that decode, and may take a sixteenth of
 * these passes' time.
 *
 * Pure arithmetic over times. Thread-safety: one thread at a time. */
#ifndef ENGINE_CACHE_WATCH_H
#define ENGINE_CACHE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* Passes of up to so many tokens count as decoding: sampled tokens of a few texts, and drafts. */
enum { CACHE_WATCH_FEW_TOK = 16 };

enum cache_watch_kind { CACHE_WATCH_DECODE, CACHE_WATCH_PROMPT, CACHE_WATCH_N_KIND };

struct cache_watch {
    bool is_fixed; /* the cache is always used, and nothing moves */
    struct cache_trial {
        int64_t n_pass; /* passes so far */
        double
            n_ns[2]; /* time of the trial's passes without and with the cache, the latter with the moves after them */
        double n_tok[2]; /* tokens of these passes */
        bool loses;      /* in the last trial passes without the cache were faster */
    } trials[CACHE_WATCH_N_KIND];
    enum cache_watch_kind kind; /* of the present pass, or between passes of the last one */
    int64_t n_tok;              /* tokens of this pass */
    bool is_used;               /* this pass uses the cache */
    bool is_tried;              /* this pass is part of a trial */
    double credit_ns;           /* time that moves may take */
    double move_ns;             /* time that a move takes, averaged over the last few; 0: not known */
};

/* Before a pass of n_tok tokens: whether it shall use the cache. */
bool cache_watch_begin(struct cache_watch *w, int64_t n_tok);
/* After the pass: it took n_ns. */
void cache_watch_end(struct cache_watch *w, int64_t n_ns);

/* After a pass: whether an expert may move into the cache now. */
bool cache_watch_may_move(const struct cache_watch *w);
/* One has moved; finding and moving it took n_ns. */
void cache_watch_moved(struct cache_watch *w, int64_t n_ns);

#endif
