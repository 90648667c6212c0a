/* How a text uses a model's experts: a trace of its routing, and figures from it. */
#ifndef JOBS_PROFILE_H
#define JOBS_PROFILE_H

#include <stdio.h>

#include "experts/trace.h"
#include "experts/usage.h"
#include "moebius/moebius.h"

struct profile {
    struct trace trace;
    uint64_t n_predicted; /* choices that were predicted one layer before */
    uint64_t n_right;     /* those of them that the layer made */
};

struct profile_params {
    size_t n_ctx; /* tokens of a window */
    /* Called after each window; false ends the recording. May be NULL. */
    bool (*progress)(void *user, size_t n_done);
    void *user;
};

/* Records the routing of a text in windows that each start afresh. ERR_USAGE for a model without experts. Close the
 * result with trace_close. */
MUST_USE err_code profile_record(moebius_engine *engine, moebius_session *session, const int32_t *ids, size_t n,
                                 const struct profile_params *p, struct profile *out, struct err *e);

/* How often each expert was chosen. Close the result with usage_close. */
MUST_USE err_code profile_usage(const struct trace *t, struct usage *out, struct err *e);

/* The share of choices that one of the `within` tokens before made in the same layer, too. */
MUST_USE err_code profile_reuse(const struct trace *t, int64_t within, double *out, struct err *e);

/* How unevenly a layer uses its experts. */
struct profile_skew {
    double share_of_90; /* the share of experts that make up 90% of the choices */
    double entropy;     /* of the choices, divided by the entropy of an even use: 1 is even */
};
MUST_USE err_code profile_skew(const struct usage *u, int layer, int64_t n_expert, struct profile_skew *out,
                               struct err *e);

/* A picture, layers downwards and experts to the right, darker for more used; and a table of layer, expert, count and,
 * where the engine has several places, those that have the expert, as 0 or 0+1. */
void profile_svg(const struct trace *t, const struct usage *u, const moebius_engine *engine, FILE *f);
void profile_csv(const struct trace *t, const struct usage *u, const moebius_engine *engine, FILE *f);

/* Where the engine has several places, a line with the share of the choices that each has the expert for. */
void profile_print_places(const struct trace *t, const struct usage *u, const moebius_engine *engine, FILE *f);

#endif
