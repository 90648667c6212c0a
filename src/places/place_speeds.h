/* How fast places compute experts. A call chooses by it which place computes experts that several places have. At first
 * the speeds are those that were known when the experts were divided; once all places have been timed, they are what
 * was measured. Sampled tokens and prompts are timed apart.
 *
 * Thread-safety: one thread, the one that runs the layers. */
#ifndef PLACES_PLACE_SPEEDS_H
#define PLACES_PLACE_SPEEDS_H

#include "places/division.h"

/* How fast a place was, compared with its known speed. */
struct place_timing {
    double factor; /* rows a second over the known speed: the mean over calls */
    int n_call;    /* calls that were timed, up to the number that the mean is over */
};

/* All speeds are relative to each other. */
struct place_speeds {
    int n_place;
    bool is_fixed;                                     /* times are ignored */
    bool is_used[DIVISION_MAX_PLACE];                  /* the place has experts */
    double known[DIVISION_MAX_PLACE];                  /* the speeds by which the experts were divided */
    struct place_timing timing[2][DIVISION_MAX_PLACE]; /* of prompts [0] and of sampled tokens [1] */
    double current[DIVISION_MAX_PLACE];                /* what place_speeds_of returned last */
};

void place_speeds_init(struct place_speeds *s, const struct division *d, const struct division_place *places,
                       bool is_fixed);

/* Notes that a place computed its n_row rows of a call in compute_ns (0: not known). If it had no rows, its factor
 * moves a little towards the others', so that a place that once was slow is tried again. */
void place_speeds_note(struct place_speeds *s, int place, bool is_decode, int64_t n_row, int64_t compute_ns);

/* The speeds for a call, [n_place], as division_choose takes them; valid until the next call of this function. */
const double *place_speeds_of(struct place_speeds *s, bool is_decode);

#endif
