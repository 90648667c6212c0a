/* How fast places compute experts, by which a call chooses who computes those that several have: at first what was
 * known when the experts were divided, and once all places have been timed, what they did. Apart for sampled tokens and
 * for prompts.
 *
 * Thread-safety: one thread, the one that runs the layers. */
#ifndef PLACES_PLACE_SPEEDS_H
#define PLACES_PLACE_SPEEDS_H

#include "places/division.h"

/* What a place did, beside what was known of it. */
struct place_timing {
    double factor; /* rows a second over the known speed, the mean of calls */
    int n_call;    /* how many of them */
};

/* Speeds are in proportion to each other. */
struct place_speeds {
    int n_place;
    bool is_fixed;                                     /* what is timed does not count */
    bool is_used[DIVISION_MAX_PLACE];                  /* the place has experts */
    double known[DIVISION_MAX_PLACE];                  /* when the experts were divided */
    struct place_timing timing[2][DIVISION_MAX_PLACE]; /* of prompts and of sampled tokens */
    double current[DIVISION_MAX_PLACE];                /* what place_speeds_of gave last */
};

void place_speeds_init(struct place_speeds *s, const struct division *d, const struct division_place *places,
                       bool is_fixed);

/* Notes that a place took compute_ns for the n_row rows that it had of a call. compute_ns 0: it does not say. Without
 * rows what was timed counts a little less, so that a place that was found to be slow is tried again. */
void place_speeds_note(struct place_speeds *s, int place, bool is_decode, int64_t n_row, int64_t compute_ns);

/* The speeds for a call, [n_place], as division_choose takes them; until the next question. */
const double *place_speeds_of(struct place_speeds *s, bool is_decode);

#endif
