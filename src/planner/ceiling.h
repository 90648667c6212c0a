/* What speed the hardware permits, and in which regime a model runs: the denominators of efficiency.
 *
 * A ceiling is arithmetic over bytes and multiply-adds that must be moved and done and over rates that were measured.
 * Nothing real reaches it; how much of it is realised depends on the regime, and is learnt from receipts
 * (planner/receipts.h). Pure, thread-safe. */
#ifndef PLANNER_CEILING_H
#define PLANNER_CEILING_H

/* Which link bounds a run; what is realised of a ceiling in one regime says nothing about the others. */
enum regime {
    REGIME_RAM,     /* all weights in the machine's memory, computed by its processors */
    REGIME_STREAM,  /* the same, but some experts are read from drives when needed */
    REGIME_VRAM,    /* all weights in one GPU's memory */
    REGIME_OFFLOAD, /* the layers on a GPU, experts of some layers in the machine's memory */
    REGIME_TIERED,  /* experts in VRAM, in memory and on drives */
    REGIME_RANKS,   /* experts on several machines */
    REGIME_N
};

const char *regime_name(enum regime r); /* "ram", "stream", ...: what files call it */
/* Negative: there is none of that name. */
int regime_find(const char *name);

enum speed_of { SPEED_DECODE, SPEED_PREFILL, SPEED_N };

#endif
