#include "texts/draft.h"

#include <math.h>

enum { MOST_MATCH = 64 };

/* ---- what passes take -------------------------------------------------------------------------------------------- */

static void note_time(int64_t *ns, uint8_t *n_seen, int64_t took_ns)
{
    enum { PART = 4 }; /* a new figure counts for one part of so many, as a single pass may have been disturbed */
    if (*n_seen < 2)
        *ns = (*n_seen)++ && *ns < took_ns ? *ns : took_ns;
    else
        *ns += (took_ns - *ns) / PART;
}

void draft_note_pass(struct draft_costs *c, size_t n_rows, int64_t took_ns)
{
    if (n_rows <= DRAFT_MOST_ROWS)
        note_time(&c->ns[n_rows], &c->n_seen[n_rows], took_ns);
}

void draft_note_mtp(struct draft_costs *c, size_t n, int64_t took_ns)
{
    note_time(&c->mtp_ns, &c->n_mtp_seen, took_ns / (int64_t)n);
}

/* The time of a guess by MTP; until it has been measured, a usual part of a pass's. */
static double mtp_ns(const struct draft_costs *c)
{
    const double usual = 0.1;
    return c->n_mtp_seen < 2 ? usual * draft_pass_ns(c, 1) : (double)c->mtp_ns;
}

/* The next number of tokens from n on, upwards or downwards, with which a pass has run; 0: there is none. */
static size_t known(const struct draft_costs *c, size_t n, int step)
{
    while (n > 0 && n <= DRAFT_MOST_ROWS && c->n_seen[n] < 2)
        n += (size_t)step;
    return n <= DRAFT_MOST_ROWS ? n : 0;
}

double draft_pass_ns(const struct draft_costs *c, size_t n_rows)
{
    const double more = 0.3; /* assumed time of each further token, relative to a pass of one */
    size_t below = known(c, n_rows, -1), above = known(c, n_rows, 1);
    if (below == 0)
        return 0;
    double ns = (double)c->ns[below];
    if (above == 0) {
        size_t less = known(c, below - 1, -1);
        double slope = less ? (ns - (double)c->ns[less]) / (double)(below - less) : more * ns / (double)below;
        return ns + (slope > 0 ? slope : 0) * (double)(n_rows - below);
    }
    double part = above > below ? (double)(n_rows - below) / (double)(above - below) : 0;
    return ns + part * ((double)c->ns[above] - ns);
}

/* ---- guesses -------------------------------------------------------------------------------------------------------
 */

size_t draft_match(const int32_t *ids, size_t n, bool always, size_t *next)
{
    const size_t least = always ? 1 : 3; /* fewer say too little */
    size_t best = least - 1;
    *next = n;
    for (size_t end = n; --end > best && best < MOST_MATCH;) { /* ids[0 .. end) */
        size_t k = 0;
        while (k < end && k < MOST_MATCH && ids[end - 1 - k] == ids[n - 1 - k])
            k++;
        if (k > best) {
            best = k;
            *next = end;
        }
    }
    return best < least ? 0 : best;
}

static int kind_of(size_t match)
{
    return match == DRAFT_MTP ? 4 : match < 6 ? 0 : match < 12 ? 1 : match < 24 ? 2 : 3;
}

/* The share of guesses that are right. It starts with usual figures, as if a few guesses had been seen already. */
double draft_share(const struct draft_odds *o, size_t match)
{
    static const double usual[DRAFT_N_KIND] = {0.4, 0.6, 0.8, 0.9, 0.6};
    const double n_usual = 4;
    int kind = kind_of(match);
    return (o->n_right[kind] + usual[kind] * n_usual) / (o->n_tried[kind] + n_usual);
}

double draft_expected(const struct draft_odds *o, size_t match, size_t n)
{
    double p = draft_share(o, match);
    return p < 1 ? p * (1 - pow(p, (double)n)) / (1 - p) : (double)n;
}

size_t draft_choose(const struct draft_costs *c, const struct draft_odds *o, size_t match, size_t most, size_t n_rows,
                    double n_tok, bool always)
{
    const double margin = always ? 0 : 1.1;
    size_t best = 0;
    double best_rate = margin * n_tok / draft_pass_ns(c, n_rows);
    for (size_t n = 1; match && n <= most; n = 2 * n + 1) {
        double rate = (n_tok + draft_expected(o, match, n)) / draft_pass_ns(c, n_rows + n);
        best = rate > best_rate ? n : best;
        best_rate = rate > best_rate ? rate : best_rate;
    }
    return best;
}

/* The tokens per nanosecond of a pass in which MTP makes n guesses for each text. */
static double mtp_rate(const struct draft_costs *c, const struct draft_odds *const *odds, const size_t *most,
                       size_t n_text, size_t n_rows, double n_tok, size_t n)
{
    for (size_t i = 0; i < n_text; i++) {
        size_t some = n < most[i] ? n : most[i];
        n_rows += some;
        n_tok += draft_expected(odds[i], DRAFT_MTP, some);
    }
    return n_tok / (draft_pass_ns(c, n_rows) + mtp_ns(c) * (double)n);
}

size_t draft_choose_mtp(const struct draft_costs *c, const struct draft_odds *const *odds, const size_t *most,
                        size_t n_text, size_t n_rows, double n_tok, bool always)
{
    const double margin = always ? 0 : 1.1;
    size_t best = 0, n_most = 0;
    double best_rate = margin * n_tok / draft_pass_ns(c, n_rows);
    for (size_t i = 0; i < n_text; i++)
        n_most = most[i] > n_most ? most[i] : n_most;
    for (size_t n = 1; n <= n_most; n++) {
        double rate = mtp_rate(c, odds, most, n_text, n_rows, n_tok, n);
        best = rate > best_rate ? n : best;
        best_rate = rate > best_rate ? rate : best_rate;
    }
    return best;
}

double draft_least(const struct draft_costs *c, size_t n_rows, double n_tok)
{
    double ns = draft_pass_ns(c, n_rows);
    return (draft_pass_ns(c, n_rows + 1) - ns) * n_tok / ns;
}

/* Guesses after the first wrong one tell nothing, and are not counted. */
void draft_note(struct draft_odds *o, size_t match, size_t n, size_t n_right)
{
    const double kept = 0.98; /* each new figure reduces the weight of earlier ones to this share */
    int kind = kind_of(match);
    for (size_t i = 0; i < n && i <= n_right; i++) {
        o->n_tried[kind] = o->n_tried[kind] * kept + 1;
        o->n_right[kind] = o->n_right[kind] * kept + (i < n_right);
    }
}

void draft_pass_over(struct draft_costs *c, struct draft_odds *o, size_t match, size_t n_rows)
{
    enum { PART = 100 };
    int kind = kind_of(match);
    o->n_tried[kind] -= o->n_tried[kind] / PART;
    o->n_right[kind] -= o->n_right[kind] / PART;
    for (size_t i = n_rows + 1; c && i <= DRAFT_MOST_ROWS; i++)
        c->ns[i] -= c->ns[i] / PART;
    if (c && match == DRAFT_MTP)
        c->mtp_ns -= c->mtp_ns / PART;
}

void draft_fill(int32_t *guesses, size_t n, const int32_t *ids, size_t n_ids, size_t next)
{
    for (size_t i = 0; i < n; i++)
        guesses[i] = next + i < n_ids ? ids[next + i] : guesses[next + i - n_ids];
}
