/* The table that profile and trace print: what budgets and policies make of a trace. */
#ifndef JOBS_CURVE_H
#define JOBS_CURVE_H

#include "experts/trace.h"

/* A line for each budget, in percent of all experts: the hit rate of each policy (of `only`, if it is not NULL) and of
 * the offline optimum, and what the default policy would read for a token. budgets NULL: 10 to 90. */
MUST_USE err_code curve_print(const struct trace *t, const char *only, const char *budgets, struct err *e);

#endif
