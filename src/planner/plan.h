/* A plan: where each byte of a model goes on a machine, how fast it can be there, and whether it can work at all.
 *
 * Pure: the same facts give the same plan, so that plans are tested as text. What is unknown stays unknown, and nothing
 * that works is refused. Thread-safe. */
#ifndef PLANNER_PLAN_H
#define PLANNER_PLAN_H

#include "base/err.h"
#include "planner/ceiling.h"
#include "planner/receipts.h"

enum { PLAN_MAX_ROW = 12, PLAN_MAX_LINE = 12, PLAN_LINE_BYTES = 240, PLAN_N_PROMPT = 6, PLAN_MAX_GPU_ROW = 512 };

/* Loading and planning leave the same aside. */
enum {
    /* One part in so many of the memory that is free is left to others where no bound is named. */
    PLAN_FREE_SHARE = 16,
    /* What the ledger of base/mem.h doesn't see grow after the engine was opened: thread stacks, small allocations,
     * huge pages that reach beyond what was asked for. With it peaks stay below the bound (docs/tiers.md has figures).
     */
    PLAN_MARGIN_BYTES = 24 << 20,
    /* What of it is taken in any case once texts are computed, as measured. */
    PLAN_GROWTH_BYTES = 7 << 19,
    /* What the program's size differs by from start to start, at most: what is said to work has it as well. */
    PLAN_VARIES_BYTES = 1 << 20,
    /* A pass is of few tokens up to one part in so many of a batch, and has one part of what is spared for a batch. */
    PLAN_FEW_PART = 8,
    /* What a GPU's driver and its pipelines take of its memory, beside what an engine counts there. */
    PLAN_VRAM_MARGIN_BYTES = 1 << 30,
    /* Texts that can't go back anywhere have a checkpoint every so many tokens. Texts' state may take one part in so
     * many of the machine's memory where nothing is said, and checkpoints of that. */
    PLAN_CHECKPOINT_TOK = 512,
    PLAN_STATE_SHARE = 2,
    PLAN_CHECKPOINT_SHARE = 8
};

struct plan_row {
    const char *what, *tier; /* "experts", "ram" */
    uint64_t n_bytes;
};

/* Tokens a second. */
struct plan_speed {
    double ceiling;      /* 0: unknown */
    double part[PART_N]; /* what each part alone permits; 0: unknown, or it takes no time */
    bool is_forecast;    /* the other three are known, from receipts */
    double low, mid, high;
};

struct plan_prompt {
    int64_t n_tok;
    double s;                /* at least, to its first token; 0: unknown */
    double cached_s;         /* where all but its last 64 tokens are in the prompt cache */
    struct plan_speed speed; /* forecast of the first */
};

/* With so many layers' experts in the machine's memory. */
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
    struct plan_settings settings; /* with what was left to the plan */
    bool is_refused;
    char refusal[2 * PLAN_LINE_BYTES]; /* the number that fails */
    struct plan_lines nearest;         /* what would work instead */

    struct plan_row rows[PLAN_MAX_ROW]; /* [n_row] */
    int n_row;
    uint64_t ram_bytes, vram_bytes; /* sums of the rows */
    uint64_t ram_limit, vram_limit; /* that there may be; 0: unknown */
    uint64_t reserve_bytes;         /* of the limit, left for what can't be counted before */
    uint64_t least_bytes;           /* of memory, with which it just works */
    int64_t n_slot, n_expert;       /* of experts, over all layers */
    int64_t n_prompt_slot;          /* slots while a prompt is computed */
    double miss;                    /* the share of a decoded token's choices that drives give */
    double prompt_miss;             /* the same of a prompt's */
    double gives_way;               /* of those that they would give, what cache-aware routing spares */
    int drive;                      /* the machine's, from which they come; -1: none is known */

    double gpu_hit; /* of choices, those that the GPU has where both compute each layer; 0: they do not */

    enum regime regime;
    double at;                                     /* where in the regime (planner/receipts.h) */
    struct plan_speed decode, decode_one, prefill; /* of all texts, of one, of a prompt of one batch */
    struct plan_prompt prompts[PLAN_N_PROMPT];
    struct plan_gpu_row gpu[PLAN_MAX_GPU_ROW]; /* [n_gpu] */
    int n_gpu, gpu_chosen;                     /* the smallest that fits; -1: none */

    char flags[PLAN_LINE_BYTES]; /* that a run would use */
    struct plan_lines assumptions;
};

/* Says what receipts realised; NULL: nothing is known, and ceilings are all there is. */
typedef bool plan_calibrate_fn(void *user, const struct calibration_query *q, struct calibration *out);

struct plan_inputs {
    const struct machine *machine;
    const struct plan_facts *facts;
    struct plan_settings settings;
    plan_calibrate_fn *calibrate; /* may be NULL */
    void *user;
    int n_run[MACHINE_N_RATE]; /* beside so many runs the machine's rate was measured, too; the median counts */
};

/* What is kept back for what operations keep besides their results: of a session that takes so many bytes, with
 * scratch_bytes (model/sizes.h) for its experts. An estimate: half of the session, or a quarter, for attention and
 * dense products, and the experts' scratch, whichever is more. */
uint64_t plan_spare_bytes(uint64_t session_bytes, uint64_t scratch_bytes);

/* What a process may take that has own_bytes of the memory and finds free_bytes free beside these, where no bound is
 * named. */
uint64_t plan_memory_limit(uint64_t own_bytes, uint64_t free_bytes);

/* The largest layer with its experts, as if all layers had as much of the other weights. */
uint64_t plan_layer_bytes(const struct plan_facts *f);

void plan_make(struct plan *out, const struct plan_inputs *in);

/* A plan for people and for programs. NUL-terminated, owned by the caller (mem_free). */
MUST_USE err_code plan_text(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e);
/* In a line, without a newline: what a run begins with. */
MUST_USE err_code plan_line(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e);
/* A picture of tiers and bytes, as SVG. */
MUST_USE err_code plan_svg(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e);
MUST_USE err_code plan_json(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e);

#endif
