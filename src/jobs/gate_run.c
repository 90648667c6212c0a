#include "jobs/gate_run.h"

#include <stdio.h>

#include "jobs/profile.h"
#include "planner/ceiling.h"

/* Moves may take a sixteenth of the time, as in the live cache. If the time is not known, this is their number. */
enum { MOVE_PART = 16, MOST_MOVES = 16, UNKNOWN_MOVES = 2 };

/* ---- skew -------------------------------------------------------------------------------------------------------- */

/* Means over the layers. */
static err_code measure_skew(const struct gate_job *j, struct gate_curve *c, struct err *e)
{
    const struct trace *t = j->trace;
    double n_bytes = 0;
    for (int l = 0; l < t->n_layer; l++) {
        struct profile_skew s;
        TRY(profile_skew(j->usage, l, t->layers[l].n_expert, &s, e));
        c->share_of_90 += s.share_of_90 / t->n_layer;
        c->entropy += s.entropy / t->n_layer;
        n_bytes += (double)t->layers[l].slot_bytes / t->n_layer;
    }
    c->expert_bytes = n_bytes;
    c->n_used = (t->n_choice + t->n_layer / 2) / t->n_layer;
    return ERR_OK;
}

/* ---- the curve --------------------------------------------------------------------------------------------------- */

static int64_t most_moves(const struct gate_costs *c, const struct gate_curve *curve)
{
    double token_s = c->other_s * (double)(curve->n_layer * curve->n_used);
    if (!(c->move_s > 0) || !(token_s > 0))
        return UNKNOWN_MOVES;
    double n = token_s / MOVE_PART / c->move_s;
    return n < 1 ? 1 : n > MOST_MOVES ? MOST_MOVES : (int64_t)n;
}

/* Budgets below the least that a cache needs are left out. */
static err_code add_point(const struct gate_job *j, double share, int64_t moves, struct gate_curve *c, struct err *e)
{
    struct replay r, slots;
    struct err why;
    err_code code = trace_replay_cache(j->trace, j->policy, share, moves, &r, &why);
    if (code == ERR_OK)
        code = trace_replay(j->trace, j->policy, share, &slots, &why);
    if (code == ERR_LIMIT && share != j->share)
        return ERR_OK;
    if (code != ERR_OK)
        return err_set(e, code, "%s", why.text);
    c->points[c->n_point++] =
        (struct gate_point){share, (double)r.n_hit / (double)r.n_all, (double)r.n_moved / (double)j->trace->n_tok,
                            (double)slots.n_hit / (double)slots.n_all};
    return ERR_OK;
}

static err_code measure_curve(const struct gate_job *j, int64_t moves, struct gate_curve *c, struct err *e)
{
    static const double usual[] = {0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9};
    bool is_added = false;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        if (!is_added && j->share <= usual[i])
            TRY(add_point(j, j->share, moves, c, e));
        is_added |= j->share <= usual[i];
        if (j->share != usual[i])
            TRY(add_point(j, usual[i], moves, c, e));
    }
    return is_added ? ERR_OK : add_point(j, j->share, moves, c, e);
}

/* ---- distinct experts -------------------------------------------------------------------------------------------- */

/* The share of a layer's experts that n tokens with even choices use, on average. */
static double even_share(const struct trace *t, int64_t n)
{
    double share = 0;
    for (int l = 0; l < t->n_layer; l++)
        share += ceiling_distinct(t->layers[l].n_expert, t->layers[l].n_used, (double)n) /
                 (double)t->layers[l].n_expert / t->n_layer;
    return share;
}

/* A number of tokens is left out if the text is too short to have it in several places. */
enum { MOST_TOKENS = 512, LEAST_PLACES = 8 };

static err_code measure_distinct(const struct gate_job *j, struct gate_curve *c, struct err *e)
{
    const struct trace *t = j->trace;
    for (int64_t n = 2; n <= MOST_TOKENS && n * LEAST_PLACES <= t->n_tok; n *= 2) {
        double apart, in_row, even = even_share(t, n);
        TRY(trace_distinct(t, n, t->n_tok / n, &apart, e));
        TRY(trace_distinct(t, n, 1, &in_row, e));
        c->counts[c->n_count++] = (struct gate_count){n, apart / even, in_row / even};
    }
    return ERR_OK;
}

err_code gate_run(const struct gate_job *j, struct gate_curve *c, struct gate *out, struct err *e)
{
    *c = (struct gate_curve){.fingerprint = j->fingerprint, .n_tok = j->trace->n_tok, .n_layer = j->trace->n_layer};
    if (j->trace->n_tok < 1)
        return err_set(e, ERR_USAGE, "the text has no tokens to decide by");
    snprintf(c->policy, sizeof c->policy, "%s", policy_name(j->policy));
    TRY(measure_skew(j, c, e));
    const struct gate_costs costs = gate_costs(j->machine, c->expert_bytes, j->n_first_thread, j->n_other_thread);
    TRY(measure_curve(j, most_moves(&costs, c), c, e));
    TRY(measure_distinct(j, c, e));
    gate_decide(out, c, j->share, &costs);
    return ERR_OK;
}
