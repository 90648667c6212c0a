/* How many threads decode. A thread that loses its core to another program in the middle of a task holds up all others.
 * Where throttling (base/throttle.h) doesn't help enough, as on a machine with more work than cores, fewer threads are
 * faster. When threads are idle or throttled for a good part of their loops, one thread less is tried, and now and then
 * one more; the time that tokens take decides. Sessions that read experts don't use it: there the drive decides. */
#ifndef ENGINE_THREAD_TUNER_H
#define ENGINE_THREAD_TUNER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"

struct thread_tuner {
    int n_less;              /* threads that don't decode */
    int n_least;             /* threads that have no processor and never decode */
    int trial;               /* change of n_less that is being tried; 0: none */
    int n_tok;               /* tokens of the block in hand */
    int n_quiet, patience;   /* blocks since the last trial, and from one trial to the next */
    int64_t n_ns;            /* time of the block in hand so far */
    int64_t before_ns;       /* time of the block before the trial */
    int64_t trial_ns;        /* time of the trial's block; 0: it has not ended */
    struct pool_times begin; /* of the block in hand */
};

/* Threads that have no processor to themselves are never used for single tokens. */
void thread_tuner_init(struct thread_tuner *c, int n_threads, int n_cpu);

/* How many of n_threads compute the next token. A prompt takes all: its loops are long enough. */
int thread_tuner_n_threads(const struct thread_tuner *c, int n_threads, bool is_single_token);

/* Tells that a token took n_ns, and the pool's times after it. */
void thread_tuner_after_token(struct thread_tuner *c, int n_threads, int64_t n_ns, struct pool_times now);

#endif
