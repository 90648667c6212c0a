/* How many threads decode. A thread that loses its core to another program in the middle of a task holds up all others.
 * Where resting between tasks (base/throttle.h) doesn't help enough, as on a machine with more work than cores, fewer
 * threads are faster. When threads have nothing to do, or rest, for a good part of their loops, one less is tried, and
 * now and then one more, by the time that tokens take. Not for sessions that read experts meanwhile: there the drive
 * decides it. */
#ifndef ENGINE_THREAD_TUNER_H
#define ENGINE_THREAD_TUNER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"

struct thread_tuner {
    int n_less, n_least;     /* threads fewer than there are; those that have no processor */
    int trial;               /* 0: none; else what n_less changes by, to see whether that is faster */
    int n_tok;               /* of the block in hand */
    int n_quiet, patience;   /* blocks since the last trial; those from one to the next */
    int64_t n_ns, before_ns; /* that the block took so far; the block before the trial */
    int64_t trial_ns;        /* the trial's block; 0: it has not ended */
    struct pool_times begin;
};

/* Threads that have no processor to themselves are never used for single tokens. */
void thread_tuner_init(struct thread_tuner *c, int n_threads, int n_cpu);

/* How many of n_threads compute the next token; all for a prompt, whose loops are long enough for all to pay. */
int thread_tuner_n_threads(const struct thread_tuner *c, int n_threads, bool is_single_token);

/* A token took n_ns, and the pool's times are these by now. */
void thread_tuner_after_token(struct thread_tuner *c, int n_threads, int64_t n_ns, struct pool_times now);

#endif
