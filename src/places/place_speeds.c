#include "places/place_speeds.h"

#include <math.h>
#include <string.h>

/* Of a call, in what is known of its place. */
static const double call_weight = 1.0 / 32;

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

void place_speeds_note(struct place_speeds *s, int place, bool is_decode, int64_t n_row, int64_t compute_ns)
{
    double *timed = &s->timed[is_decode][place];
    if (n_row == 0 || compute_ns <= 0)
        return;
    double now = (double)n_row * 1e9 / (double)compute_ns;
    *timed = *timed > 0 ? *timed + call_weight * (fmax(*timed / 4, fmin(now, *timed * 4)) - *timed) : now;
}

const double *place_speeds_of(struct place_speeds *s, bool is_decode)
{
    const double *timed = s->timed[is_decode];
    bool is_timed = !s->is_fixed;
    for (int i = 0; i < s->n_place; i++)
        is_timed &= !s->is_used[i] || timed[i] > 0;
    for (int i = 0; i < s->n_place; i++)
        s->current[i] = is_timed && s->is_used[i] ? timed[i] : s->known[i];
    return s->current;
}
