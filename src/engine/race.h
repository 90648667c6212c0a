/* The fastest of a few choices, on a machine that others use too.
 *
 * All choices are timed in turn, round after round. What counts is a choice's time over the least of the same round,
 * and of that the lower third over the rounds: a machine that slows down for a while does so for all choices, and what
 * interrupts one spoils some of its rounds. Choices that are clearly slower than the best drop out after a few rounds,
 * so that the time goes to those that are hard to tell apart. */
#ifndef ENGINE_RACE_H
#define ENGINE_RACE_H

#include <stdint.h>

enum { RACE_MAX_CHOICE = 64, RACE_MAX_ROUND = 128 };

struct race {
    int n_choice;      /* 1..RACE_MAX_CHOICE; choice 0 is what is in force */
    int64_t budget_ns; /* no round begins later; there is one at least */
    /* Nanoseconds that a choice takes now, above 0; 0: it can't be said, which ends the race. */
    int64_t (*time_ns)(void *user, int choice);
    void *user;
    /* out: of each choice that didn't drop out, its time over the best of its rounds; else 0. Choice 0 never does. */
    double score[RACE_MAX_CHOICE];
    int64_t best_ns[RACE_MAX_CHOICE]; /* out: the least time of each choice */
};

/* What must be so many times as fast as what is in force to take its place. */
#define RACE_MARGIN 1.03

/* The choice of the best score; 0 unless another one wins by RACE_MARGIN; -1 when the race could not be run. */
int race_run(struct race *r);

#endif
