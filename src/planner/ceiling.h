/* What speed the hardware permits, and in which regime a model runs: the denominators of efficiency.
 *
 * A ceiling is arithmetic over bytes and multiply-adds that must be moved and done, and over rates that were measured.
 * A product takes as long as the longer of the two, products follow each other, and reads from drives go on beside
 * all of them. Nothing real reaches it. A run's time is taken as the sum of its parts, each slower than arithmetic says
 * by a factor that receipts tell (planner/receipts.h): reads, too, as real runs overlap little of them. Multiply-adds
 * of parts are done as fast as products with weights of their type were measured, with as many tokens as each weight
 * meets; those of ceilings at the peak. Pure, thread-safe. */
#ifndef PLANNER_CEILING_H
#define PLANNER_CEILING_H

#include "planner/facts.h"
#include "planner/machine.h"

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

/* Multiply-adds a second of products whose weights are in a cache; 0: not known. */
struct ceiling_rate {
    double one_per_s;  /* where each weight meets one token; 0: as many_per_s */
    double many_per_s; /* and MACHINE_MANY; 0: the peak */
};

/* Where a model's bytes are, and how fast each place gives them; a rate of 0 is unknown. */
struct ceiling_params {
    const struct plan_facts *facts;
    const struct plan_kv *kv;
    double read_per_s;              /* what the layers' weights and state are read with: memory, or the GPU's */
    double int8_per_s, float_per_s; /* peaks of what runs the layers */
    struct ceiling_rate product[QUANT_MAX_ID]; /* with weights of each type */
    int n_cpu_moe;   /* of a run on a GPU: so many layers' experts, the last ones', are in the machine's memory */
    bool is_divided; /* both compute in each layer: the GPU gpu_hit of the choices, the processor the others */
    double gpu_hit;
    double cpu_read_per_s; /* with which those are read */
    double miss;           /* the share of chosen experts that drives must give, 0 to 1 */
    double missing_bytes;  /* of all experts, those that have no slot */
    double drive_per_s;    /* with which they give them */
    double n_pass;         /* how often each byte that they give passes memory before a product reads it */
    double rank_most;      /* the part of a layer's experts for which all ranks wait; 0: there is one machine */
    double rank_round_trip_s;
};

/* What the time of a run is made of. */
enum ceiling_part {
    PART_PRODUCTS, /* with weights, by what runs the layers, and messages between machines */
    PART_STATE,    /* attention and recurrent state */
    PART_BESIDE,   /* experts that the processor computes beside a GPU */
    PART_READS, /* experts from drives, and through memory into their slots; of prompts what computing doesn't hide */
    PART_N
};

extern const char *const ceiling_part_names[PART_N]; /* "products", "state", ...: what files call them */

/* Seconds; all 0: some rate is unknown. */
struct ceiling_time {
    double least_s; /* of the whole: nothing is faster */
    double part_s[PART_N];
};

/* Of a step in which n_texts texts with n_depth tokens each decode one token. */
struct ceiling_time ceiling_step(const struct ceiling_params *p, int64_t n_texts, int64_t n_depth);
/* Of computing tokens [from, to) of a prompt, n_batch at a time, and the last one's logits. */
struct ceiling_time ceiling_prompt(const struct ceiling_params *p, int64_t from, int64_t to, int64_t n_batch);

/* How many of n_expert experts n tokens choose that take n_used each, if all are as likely. */
double ceiling_distinct(int64_t n_expert, int64_t n_used, double n);
/* The share of a decoded token's choices that miss when n_slot of n_expert experts in all have slots: of the curve that
 * `moebius profile --gate` measured, or by counts of earlier runs, or as if all were as likely. */
double ceiling_decode_miss(const struct plan_facts *f, int64_t n_slot, int64_t n_expert);
/* The same of a prompt's passes, which use nearly all experts, whatever is hot. */
double ceiling_prompt_miss(int64_t n_slot, int64_t n_expert);
/* The share of choices whose experts are among n_copy of n_expert that a device has copies of, as above. */
double ceiling_copies_hit(const struct plan_facts *f, int64_t n_copy, int64_t n_expert);

/* Of choices whose expert has no slot, the share that cache-aware routing of this threshold gives to others, where a
 * share of the experts has slots: as measured with the bundled model (docs/car.md), between the measurements in
 * proportion. */
double ceiling_gives_way(double threshold, double slot_share);

#endif
