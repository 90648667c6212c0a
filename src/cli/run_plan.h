/* Uses the planner for a run: a line when it begins, advice when there is too little memory, and the ceilings in its
 * receipt. */
#ifndef CLI_RUN_PLAN_H
#define CLI_RUN_PLAN_H

#include "cli/model_options.h"
#include "planner/receipts.h"

/* If no context size is given, decoding is forecast for this many tokens of context, as chats have, not for the
 * longest. */
enum { RUN_PLAN_DEPTH = 4096 };

/* What texts a run will have. */
struct run_texts {
    int64_t n_texts;      /* texts that decode together; 0: 1 */
    int64_t n_texts_most; /* the most texts at once, if there is room; 0: n_texts */
    int64_t n_ctx;        /* tokens of each text; 0: the plan chooses */
    int64_t n_ctx_most;   /* the most that it may choose; 0: what the model was trained for */
};

/* Plans these texts on the engine, and prints a line about it on standard error unless the options say quiet. Returns
 * the context size of a text: the given one, the plan's choice, or n_ctx_most if no plan can be made. */
int64_t run_plan_begin(const struct model_options *o, const moebius_engine *engine, const struct run_texts *texts);

/* Adds to an error about too little memory (ERR_LIMIT, ERR_NOMEM) what would work instead. engine: NULL if the model
 * could not be opened; nothing is added then if several devices or processes divide it. */
void run_plan_advise(const struct model_options *o, const moebius_engine *engine, int64_t n_ctx, struct err *e);

/* Fills the receipt's ceilings and bands, by its regime and texts. A ceiling is normally the plan's, since forecasts
 * are shares of that. It is the one measured during the run, without a band, if the machine was not probed, on several
 * machines, if GPUs use the machine's memory, and if experts have three tiers. */
void run_plan_fill(struct receipt *r, const struct model_options *o, const moebius_engine *engine);

#endif
