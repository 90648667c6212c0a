#include "places/place_speeds.h"

#include <math.h>

/* Calls that must have been timed before they count, and those that the average goes over. */
enum { N_ENOUGH = 8, N_AVERAGE = 32 };

static bool has_any(const struct division *d, int place)
{
    for (int64_t i = 0; i < d->n_layer * d->n_expert; i++)
        if (d->holders[i] >> place & 1)
            return true;
    return false;
}

void place_speeds_init(struct place_speeds *s, const struct division *d, const struct division_place *places,
                       bool is_fixed)
{
    *s = (struct place_speeds){.n_place = d->n_place, .is_fixed = is_fixed};
    division_speeds(places, d->n_place, s->known);
    for (int i = 0; i < d->n_place; i++)
        s->is_used[i] = has_any(d, i);
}

/* The mean of the places' factors; 0: some are not known yet. */
static double mean_factor(const struct place_speeds *s, bool is_decode)
{
    double sum = 0, n = 0;
    for (int i = 0; i < s->n_place; i++) {
        const struct place_timing *t = &s->timing[is_decode][i];
        if (!s->is_used[i])
            continue;
        if (t->n_call < N_ENOUGH)
            return 0;
        sum += t->factor;
        n++;
    }
    return n > 0 ? sum / n : 0;
}

void place_speeds_note(struct place_speeds *s, int place, bool is_decode, int64_t n_row, int64_t compute_ns)
{
    struct place_timing *t = &s->timing[is_decode][place];
    if (n_row == 0) {
        double mean = mean_factor(s, is_decode);
        t->factor += mean > 0 ? (mean - t->factor) / N_AVERAGE : 0;
    } else if (compute_ns > 0) {
        double now = (double)n_row * 1e9 / (double)compute_ns / s->known[place];
        t->n_call += t->n_call < N_AVERAGE;
        t->factor += ((t->n_call > N_ENOUGH ? fmin(now, 4 * t->factor) : now) - t->factor) / t->n_call;
    }
}

const double *place_speeds_of(struct place_speeds *s, bool is_decode)
{
    bool is_timed = !s->is_fixed && mean_factor(s, is_decode) > 0;
    for (int i = 0; i < s->n_place; i++)
        s->current[i] = is_timed && s->is_used[i] ? s->known[i] * s->timing[is_decode][i].factor : s->known[i];
    return s->current;
}
