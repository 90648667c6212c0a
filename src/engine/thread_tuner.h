/* Chooses how many threads decode. A thread that loses its core to another program in the middle of a task holds up all
 * others. Where throttling (base/throttle.h) doesn't help enough, as on a machine with more work than cores, fewer
 * threads are faster. When threads are idle or throttled for a good part of their loops, one thread less is tried, and
 * now and then one more; the time that tokens take decides. It isn't used while experts are read, as then the drive
 * decides how long tokens take. */
#ifndef ENGINE_THREAD_TUNER_H
#define ENGINE_THREAD_TUNER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"

struct thread_tuner {
    int n_less;              /* threads that don't decode */
    int n_least;             /* of these, threads that never do, as there are no processors for them */
    int trial;               /* the change of n_less that is being tried; 0: none */
    int n_tok;               /* tokens of the present block so far */
    int n_quiet;             /* blocks since the last trial */
    int patience;            /* blocks from one trial to the next */
    int64_t n_ns;            /* time of the present block so far */
    int64_t before_ns;       /* time of the block before the trial */
    int64_t trial_ns;        /* time of the trial's block; 0: it has not ended */
    struct pool_times begin; /* the pool's times when the present block began */
};

/* Of n_threads threads at most n_cpu decode. */
void thread_tuner_init(struct thread_tuner *c, int n_threads, int n_cpu);

/* How many of n_threads threads compute the next pass. Prompts take all of them, as their loops are long enough. */
int thread_tuner_n_threads(const struct thread_tuner *c, int n_threads, bool is_single_token);

/* To be called after each single token: it took n_ns, and the pool's times are `now`. */
void thread_tuner_after_token(struct thread_tuner *c, int n_threads, int64_t n_ns, struct pool_times now);

#endif
