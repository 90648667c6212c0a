/* What speed the hardware permits, and in which regime a model runs: the denominators of efficiency.
 *
 * A ceiling is computed from the bytes that must be read, the multiply-adds that must be done, and measured rates. A
 * product takes the time of its reads or of its multiply-adds, whichever is longer; products run one after the other;
 * reads from drives overlap with all of them. No real run reaches the ceiling.
 *
 * A forecast takes a run's time as the sum of its parts, reads included, since real runs overlap little of them. Each
 * part is slower than computed by a factor that receipts show (planner/receipts.h). Forecasts use the measured rate of
 * products with weights of each type and as many tokens as each weight meets; ceilings use the peak rate.
 * Pure, thread-safe. */
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

const char *regime_name(enum regime r); /* as in files: "ram", "stream", ... */
/* Negative: no regime has that name. */
int regime_find(const char *name);

enum speed_of { SPEED_DECODE, SPEED_PREFILL, SPEED_N };

/* Multiply-adds a second of products whose weights are in a cache, or of attention whose keys and values are; 0: not
 * known. */
struct ceiling_rate {
    double one_per_s;  /* with one token; 0: as many_per_s */
    double many_per_s; /* with many: MACHINE_MANY in products; 0: the peak */
};

/* Where a model's bytes are, and how fast each place can be read; a rate of 0 is unknown. */
struct ceiling_params {
    const struct plan_facts *facts;
    const struct plan_kv *kv;
    double read_per_s;              /* bytes/s at which the layers' weights and state are read: memory, or the GPU's */
    double int8_per_s, float_per_s; /* peaks of the device that runs the layers */
    struct ceiling_rate product[QUANT_MAX_ID]; /* with weights of each type */
    struct ceiling_rate attention;             /* to a KV cache in F16 */
    int n_cpu_moe;         /* on a GPU: the experts of the last n_cpu_moe layers are in the machine's memory */
    bool is_divided;       /* GPU and processor both compute in each layer */
    double gpu_hit;        /* is_divided: share of the choices that the GPU computes */
    double cpu_read_per_s; /* bytes/s at which the processor reads its experts */
    double miss;           /* share of chosen experts that must be read from drives, 0 to 1 */
    double missing_bytes;  /* bytes of all experts that have no slot */
    double drive_per_s;    /* bytes/s at which drives are read */
    double n_pass;         /* how often each byte from a drive passes through memory before a product reads it */
    double rank_most;      /* share of a layer's experts on the rank that all wait for; 0: there is one machine */
    double rank_round_trip_s;
};

/* What the time of a run is made of. */
enum ceiling_part {
    PART_PRODUCTS, /* products with weights on the device that runs the layers, and messages between machines */
    PART_STATE,    /* attention and recurrent state */
    PART_BESIDE,   /* experts that the processor computes beside a GPU */
    PART_READS,    /* reads of experts from drives into their slots; of prompts only what computing doesn't hide */
    PART_N
};

extern const char *const ceiling_part_names[PART_N]; /* as in files: "products", "state", ... */

/* Seconds; all 0: some rate is unknown. */
struct ceiling_time {
    double least_s;        /* the least time that the whole can take */
    double part_s[PART_N]; /* the least time of each part alone */
};

/* The time of a step in which n_texts texts with n_depth tokens each decode one token. */
struct ceiling_time ceiling_step(const struct ceiling_params *p, int64_t n_texts, int64_t n_depth);
/* The time to compute tokens [from, to) of a prompt, n_batch at a time, and the last one's logits. */
struct ceiling_time ceiling_prompt(const struct ceiling_params *p, int64_t from, int64_t to, int64_t n_batch);

/* How many different experts of n_expert are chosen by n tokens that take n_used each, if all are equally likely. */
double ceiling_distinct(int64_t n_expert, int64_t n_used, double n);
/* The share of a decoded token's choices that miss when n_slot of n_expert experts have slots: from the curve that
 * `moebius profile --gate` measured, else from counts of earlier runs, else as if all were equally likely. */
double ceiling_decode_miss(const struct plan_facts *f, int64_t n_slot, int64_t n_expert);
/* The same for passes of a prompt, which use nearly all experts, however often each is chosen. */
double ceiling_prompt_miss(int64_t n_slot, int64_t n_expert);
/* The share of choices that hit when a device has copies of n_copy of n_expert experts; estimated as above. */
double ceiling_copies_hit(const struct plan_facts *f, int64_t n_copy, int64_t n_expert);

/* Among choices whose expert has no slot, the share that cache-aware routing with this threshold replaces by others,
 * where slot_share of the experts have slots: as measured with the bundled model (docs/car.md), interpolated linearly
 * between the measurements. */
double ceiling_gives_way(double threshold, double slot_share);

#endif
