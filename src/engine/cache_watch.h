/* Whether slots that are a cache of another device's experts pay, and how fast experts may move into them.
 *
 * A trial, repeated now and then, alternates passes that compute in the slots what these hold with passes that leave
 * all experts to the others. Decoding and prompts are tried each by itself, as a cache may pay for one and not for the
 * other; what loses is not used until the next trial. Experts move after passes that decode, and may take a sixteenth
 * of these passes' time.
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
    bool is_fixed; /* the slots are always used, and nothing moves */
    struct cache_trial {
        int64_t n_pass;  /* so far */
        double n_ns[2];  /* of the trial's passes without and with slots, and of the moves after the latter */
        double n_tok[2]; /* of these passes */
        bool loses;      /* the last trial found passes without slots faster */
    } trials[CACHE_WATCH_N_KIND];
    enum cache_watch_kind kind; /* of the pass in hand, or of the last one */
    int64_t n_tok;              /* of this pass */
    bool is_used;               /* and it uses the slots */
    bool is_tried;              /* it is part of a trial */
    double credit_ns;           /* that moves may take */
    double move_ns;             /* that a move takes, the mean of the last few; 0: not known */
};

/* Before a pass: whether to use the slots in it. After it: how long it took. */
bool cache_watch_begin(struct cache_watch *w, int64_t n_tok);
void cache_watch_end(struct cache_watch *w, int64_t n_ns);

/* Behind a pass: whether an expert may move now; and what looking for one and moving it took. */
bool cache_watch_may_move(const struct cache_watch *w);
void cache_watch_moved(struct cache_watch *w, int64_t n_ns);

#endif
