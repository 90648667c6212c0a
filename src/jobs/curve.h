/* The table that profile and trace print: hit rates of budgets and policies, replayed from a trace. */
#ifndef JOBS_CURVE_H
#define JOBS_CURVE_H

#include "experts/trace.h"

/* Prints a line for each budget, in percent of all experts: the hit rates of the policies (of `only`, if it is not
 * NULL) and of the offline optimum, and the bytes that the default policy would read for a token. budgets: as
 * curve_check_budgets wants them; NULL: 10 to 90. */
MUST_USE err_code curve_print(const struct trace *t, const char *only, const char *budgets, struct err *e);

/* Whether it is "15,25,50" or the like. */
MUST_USE err_code curve_check_budgets(const char *budgets, struct err *e);

#endif
