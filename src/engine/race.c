#include "engine/race.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"

/* Every so many rounds, choices that take longer than the best by more than so much drop out. */
enum { STAGE = 5 };
static const double hopeless = 1.15;

/* A race in progress. */
struct running {
    struct race *r;
    int n_round;
    bool is_out[RACE_MAX_CHOICE];
    double ratio[RACE_MAX_CHOICE][RACE_MAX_ROUND]; /* times, over the least of their round */
};

/* A third of the n >= 1 values are not above it. */
static double lower_third(const double *values, int n)
{
    double sorted[RACE_MAX_ROUND];
    memcpy(sorted, values, (size_t)n * sizeof *values);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    return sorted[(n - 1) / 3];
}

/* Each round begins with another choice, so that what disturbs the machine regularly disturbs all. */
static bool run_round(struct running *x)
{
    struct race *r = x->r;
    int64_t times[RACE_MAX_CHOICE] = {0}, least_ns = INT64_MAX;
    for (int i = 0; i < r->n_choice; i++) {
        int c = (i + x->n_round) % r->n_choice;
        if (x->is_out[c])
            continue;
        times[c] = r->time_ns(r->user, c);
        if (times[c] <= 0)
            return false;
        least_ns = times[c] < least_ns ? times[c] : least_ns;
        r->best_ns[c] = r->best_ns[c] && r->best_ns[c] < times[c] ? r->best_ns[c] : times[c];
    }
    for (int c = 0; c < r->n_choice; c++)
        x->ratio[c][x->n_round] = (double)times[c] / (double)least_ns;
    x->n_round++;
    return true;
}

/* Brings the scores up to date and returns the best choice. */
static int score_choices(struct running *x)
{
    double *score = x->r->score;
    int best = 0;
    for (int c = 0; c < x->r->n_choice; c++) {
        score[c] = x->is_out[c] ? 0 : lower_third(x->ratio[c], x->n_round);
        if (!x->is_out[c] && score[c] < score[best])
            best = c;
    }
    return best;
}

static void drop_slow(struct running *x)
{
    double best = x->r->score[score_choices(x)];
    for (int c = 1; c < x->r->n_choice; c++)
        x->is_out[c] |= x->r->score[c] > best * hopeless;
}

int race_run(struct race *r)
{
    struct running x = {.r = r};
    int64_t start_ns = clock_ns();
    assert(r->n_choice >= 1 && r->n_choice <= RACE_MAX_CHOICE);
    memset(r->best_ns, 0, sizeof r->best_ns);
    do {
        if (!run_round(&x))
            return -1;
        if (x.n_round % STAGE == 0)
            drop_slow(&x);
    } while (x.n_round < RACE_MAX_ROUND && clock_ns() - start_ns < r->budget_ns);
    int best = score_choices(&x);
    return r->score[0] <= r->score[best] * RACE_MARGIN ? 0 : best;
}
