/* Finds the fastest of a few choices, on a machine that other programs use, too.
 *
 * All choices are timed in turn, round after round. A choice's ratio in a round is its time over the least time of that
 * round; its score is the lower third (the 33rd percentile) of its ratios. So it does not matter when the machine slows
 * down for a while, as that affects all choices, or when something interrupts one choice in some rounds. Choices that
 * are clearly slower than the best drop out after a few rounds, so that the time goes to those that are hard to tell
 * apart. */
#ifndef ENGINE_RACE_H
#define ENGINE_RACE_H

#include <stdint.h>

enum { RACE_MAX_CHOICE = 64, RACE_MAX_ROUND = 128 };

struct race {
    int n_choice;      /* 1..RACE_MAX_CHOICE; choice 0 is what is in force */
    int64_t budget_ns; /* no round begins later than this; there is at least one */
    /* Runs a choice and returns the nanoseconds that it took, above 0. 0: it can't be timed, which ends the race. */
    int64_t (*time_ns)(void *user, int choice);
    void *user;
    double score[RACE_MAX_CHOICE];    /* out: each choice's score; 0: it dropped out, which choice 0 never does */
    int64_t best_ns[RACE_MAX_CHOICE]; /* out: each choice's least time */
};

/* A choice must be so many times as fast as choice 0 to take its place. */
#define RACE_MARGIN 1.03

/* Returns the choice with the best score, but 0 unless another one wins by RACE_MARGIN; -1: the race ended early. */
int race_run(struct race *r);

#endif
