/* What a plan says of a run that has ended, for its receipt. */
#ifndef CLI_RUN_PLAN_H
#define CLI_RUN_PLAN_H

#include "cli/common.h"
#include "planner/receipts.h"

/* Fills ceilings and bands, for what the receipt says of its regime and texts. A ceiling is the plan's, as a forecast
 * is a share of that, and what was measured beside the run where the machine was not probed, on GPUs and on several
 * machines; there is no band then. */
void run_plan_fill(struct receipt *r, const struct model_options *o);

#endif
