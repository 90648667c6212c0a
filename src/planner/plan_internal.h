/* What the files that make a plan share. */
#ifndef PLANNER_PLAN_INTERNAL_H
#define PLANNER_PLAN_INTERNAL_H

#include "planner/plan.h"

/* A plan in the making. */
struct making {
    struct plan *p;
    const struct plan_inputs *in;
    const struct machine *m;
    const struct plan_facts *f;
    const struct plan_settings *s; /* the plan's, whose context is chosen first */
    const struct plan_kv *kv;
};

/* A line more, if there is room for one. */
void plan_say(struct plan_lines *l, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* ---- bytes (plan.c) ---------------------------------------------------------------------------------------------- */

uint64_t plan_text_bytes(const struct plan_facts *f, const struct plan_kv *kv, int64_t n_ctx); /* a text's state */
uint64_t plan_host_bytes(const struct plan_facts *f, int64_t n_ctx);      /* its tokens and logits */
uint64_t plan_expert_bytes(const struct plan_facts *f, int from, int to); /* all experts of layers [from, to) */
int64_t plan_n_experts(const struct plan_facts *f);
uint64_t plan_ram_limit(const struct making *k); /* 0: unknown */
/* A row of the map, if it has bytes, which count in its tier's sum. */
void plan_add_row(struct making *k, const char *what, const char *tier, uint64_t n_bytes);
/* The program's own row, with what of the margin it takes in any case; the rest of that is reserve. */
void plan_add_program(struct making *k);
/* Of a device's experts, `all` bytes, those that may have memory. */
uint64_t plan_allowed_bytes(const struct making *k, uint64_t all);
/* Checkpoints of all texts, as far as `room` bytes have it; 0: the model's texts go back without. */
uint64_t plan_checkpoint_bytes(const struct making *k, uint64_t room);

/* ---- speed (plan.c) ---------------------------------------------------------------------------------------------- */

double plan_rate(double n, double s); /* n / s; 0: not known */
/* The ceiling of n tokens in q.time, and what receipts of this machine and model make of it; of `q` the threads,
 * machine and fingerprint are filled in. */
struct plan_speed plan_forecast(const struct making *k, struct calibration_query q, int64_t n);
/* What gives the experts that no memory has, and how fast. */
void plan_find_drives(struct making *k, struct ceiling_params *c);
/* Of decode with `c`, whose misses are a token's; prompts have the plan's. */
void plan_find_speeds(struct making *k, const struct ceiling_params *c);
/* Whether the shares of choices that are found on each device were given; if so, that of the GPU. */
bool plan_is_found(const struct making *k);
double plan_found_gpu(const struct making *k);
void plan_refuse_speed(struct making *k);
void plan_assume(struct making *k);
/* Of the flags of a run: its memory, where that decides who has slots, or was named. */
void plan_add_ram_flag(struct making *k);

/* ---- GPUs (plan_gpu.c) ------------------------------------------------------------------------------------------- */

uint64_t plan_vram_limit(const struct making *k); /* of all that have layers; 0: unknown */
/* What they need with the experts of so many layers in the machine's memory. */
uint64_t plan_vram_with(const struct making *k, int n_cpu_moe, int64_t n_ctx);
void plan_make_gpu(struct making *k);

#endif
