/* What a plan says of a run that has ended, for its receipt. */
#ifndef CLI_RUN_PLAN_H
#define CLI_RUN_PLAN_H

#include "cli/common.h"
#include "planner/receipts.h"

/* Fills the ceilings and bands that were not measured beside the run, for what the receipt says of its regime and
 * texts. They stay unknown where the machine was not probed, and on GPUs and several machines. */
void run_plan_fill(struct receipt *r, const struct model_options *o);

#endif
