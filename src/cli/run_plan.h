/* What a plan says of a run: a line when it begins, what would work where it can't, and the ceilings of its receipt. */
#ifndef CLI_RUN_PLAN_H
#define CLI_RUN_PLAN_H

#include "cli/model_options.h"
#include "planner/receipts.h"

/* Decode is forecast for a context that chats and answers have, not for the longest, where none was named. */
enum { RUN_PLAN_DEPTH = 4096 };

/* What texts a run will have. */
struct run_texts {
    int64_t n_texts;      /* that decode together; 0: 1 */
    int64_t n_texts_most; /* that there may be at once, as there is room; 0: no more */
    int64_t n_ctx;        /* tokens of each; 0: the plan chooses */
    int64_t n_ctx_most;   /* where it does: at most so many; 0: as the model was trained for */
};

/* Plans them on the engine, and says so in a line on standard error, unless the options want it quiet. The context of
 * a text: as given, as the plan chooses, or at most that where no plan can be made. */
int64_t run_plan_begin(const struct model_options *o, const moebius_engine *engine, const struct run_texts *texts);

/* Adds to a sentence about what has no room (ERR_LIMIT, ERR_NOMEM) what would work instead. engine: NULL where the
 * model could not be opened. */
void run_plan_advise(const struct model_options *o, const moebius_engine *engine, int64_t n_ctx, struct err *e);

/* Fills ceilings and bands, for what the receipt says of its regime and texts. A ceiling is the plan's, as a forecast
 * is a share of that, and what was measured beside the run where the machine was not probed, on several machines, and
 * where GPUs work in the machine's memory or experts have three tiers; there is no band then. */
void run_plan_fill(struct receipt *r, const struct model_options *o, const moebius_engine *engine);

#endif
