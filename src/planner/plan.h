/* A plan: where each byte of a model goes on a machine, how fast it can be there, and whether it can work at all.
 *
 * Pure functions: the same facts give the same plan, so that plans can be tested as text. What is unknown stays
 * unknown, and nothing that works is refused. Thread-safe. */
#ifndef PLANNER_PLAN_H
#define PLANNER_PLAN_H

#include "base/err.h"
#include "planner/ceiling.h"
#include "planner/receipts.h"

enum { PLAN_MAX_ROW = 12, PLAN_MAX_LINE = 12, PLAN_LINE_BYTES = 240, PLAN_N_PROMPT = 6, PLAN_MAX_GPU_ROW = 512 };

/* What is kept free, the same in loading and in planning. */
enum {
    /* Where no bound is given, 1/PLAN_FREE_SHARE of the free memory is left to other processes. */
    PLAN_FREE_SHARE = 16,
    /* Room for what base/mem.h does not account for after the engine was opened: thread stacks, small allocations,
     * huge pages that reach beyond what was asked for. It keeps peaks below the bound (docs/tiers.md has figures). */
    PLAN_MARGIN_BYTES = 24 << 20,
    /* The part of the margin that is always taken once texts are computed, as measured. */
    PLAN_GROWTH_BYTES = 7 << 19,
    /* The most by which the program's size differs from start to start; advice on what would work includes it. */
    PLAN_VARIES_BYTES = 1 << 20,
    /* A pass of up to 1/PLAN_FEW_PART of a batch counts as one of few tokens, and needs that part of a batch's spare
     * memory (plan_spare_bytes). */
    PLAN_FEW_PART = 8,
    /* Memory of a GPU that its driver and pipelines take beside what the engine allocates. */
    PLAN_VRAM_MARGIN_BYTES = 1 << 30,
    /* Texts that can't go back to any token without one have a checkpoint every PLAN_CHECKPOINT_TOK tokens. Where no
     * bound is given, texts' state may take 1/PLAN_STATE_SHARE of the machine's memory, and checkpoints
     * 1/PLAN_CHECKPOINT_SHARE of that. */
    PLAN_CHECKPOINT_TOK = 512,
    PLAN_STATE_SHARE = 2,
    PLAN_CHECKPOINT_SHARE = 8
};

struct plan_row {
    const char *what, *tier; /* such as "experts", "ram" */
    uint64_t n_bytes;
};

/* Tokens a second. */
struct plan_speed {
    double ceiling;      /* 0: unknown */
    double part[PART_N]; /* the ceiling of each part alone; 0: unknown, or it takes no time */
    bool is_forecast;    /* low, mid and high are known, from receipts */
    double low, mid, high;
};

struct plan_prompt {
    int64_t n_tok;
    double s;                /* least time to the first token; 0: unknown */
    double cached_s;         /* the same where all but the last 64 tokens are in the prompt cache */
    struct plan_speed speed; /* forecast without the prompt cache */
};

/* What a run on a GPU takes with the experts of n_cpu_moe layers in the machine's memory. */
struct plan_gpu_row {
    int n_cpu_moe;
    uint64_t vram_bytes, ram_bytes;
    bool fits;
    struct plan_speed decode;
};

struct plan_lines {
    char text[PLAN_MAX_LINE][PLAN_LINE_BYTES];
    int n;
};

struct plan {
    struct plan_settings settings; /* as given, with what was left to the plan filled in */
    bool is_refused;
    char refusal[2 * PLAN_LINE_BYTES]; /* a sentence with the number that is too large or too small */
    struct plan_lines nearest;         /* settings near to these that would work */

    struct plan_row rows[PLAN_MAX_ROW]; /* [n_row] */
    int n_row;
    uint64_t ram_bytes, vram_bytes; /* sums of the rows */
    uint64_t ram_limit, vram_limit; /* most bytes that may be taken; 0: unknown */
    uint64_t reserve_bytes;         /* part of ram_limit that is kept free for what can't be counted beforehand */
    uint64_t least_bytes;           /* the least memory that works */
    int64_t n_slot, n_expert;       /* slots for experts, and experts, over all layers */
    int64_t n_prompt_slot;          /* slots while a prompt is computed */
    double miss;                    /* share of a decoded token's choices that are read from drives */
    double prompt_miss;             /* the same for a prompt's tokens */
    double gives_way;               /* share of those reads that cache-aware routing avoids */
    int drive;                      /* index of the machine's drive that they are read from; -1: none is known */

    double
        gpu_hit; /* share of choices that the GPU computes where GPU and processor divide each layer; 0: they don't */

    enum regime regime;
    double at;                                     /* place in the regime (struct receipt) */
    struct plan_speed decode, decode_one, prefill; /* of all texts together, of one text, of a prompt of one batch */
    struct plan_prompt prompts[PLAN_N_PROMPT];
    struct plan_gpu_row gpu[PLAN_MAX_GPU_ROW]; /* [n_gpu] */
    int n_gpu, gpu_chosen;                     /* index of the first row that fits; -1: none */

    char flags[PLAN_LINE_BYTES]; /* the options of a run with these settings, without plan_settings.given */
    struct plan_lines assumptions;
};

/* Answers from receipts what share of its ceiling a run will reach; false: they don't say. */
typedef bool plan_calibrate_fn(void *user, const struct calibration_query *q, struct calibration *out);

struct plan_inputs {
    const struct machine *machine;
    const struct plan_facts *facts;
    struct plan_settings settings;
    plan_calibrate_fn *calibrate; /* NULL: there are no receipts, and no forecasts */
    void *user;
    int n_run[MACHINE_N_RATE]; /* number of runs beside which each of the machine's rates was measured again; the
                                  machine's rates are the median then */
};

/* Memory to set aside for what operations of a session need besides their results. scratch_bytes: what its experts need
 * (model/sizes.h). This is an estimate: half of the session's bytes, or a quarter of them, for attention and dense
 * products, plus scratch_bytes, whichever is more. */
uint64_t plan_spare_bytes(uint64_t session_bytes, uint64_t scratch_bytes);

/* Memory that a process may take where no bound is given: it has own_bytes already, and finds free_bytes free. */
uint64_t plan_memory_limit(uint64_t own_bytes, uint64_t free_bytes);

/* Bytes of the largest layer with its experts, with the other weights spread evenly over the layers. */
uint64_t plan_layer_bytes(const struct plan_facts *f);

void plan_make(struct plan *out, const struct plan_inputs *in);

/* A plan as text for people. This text and those below are NUL-terminated and owned by the caller (mem_free). */
MUST_USE err_code plan_text(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e);
/* One line without a newline, which runs begin with. */
MUST_USE err_code plan_line(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e);
/* A picture of tiers and bytes, as SVG. */
MUST_USE err_code plan_svg(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e);
MUST_USE err_code plan_json(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e);

#endif
