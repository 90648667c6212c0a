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

/* Adds a line if there is room for it. */
void plan_say(struct plan_lines *l, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* ---- bytes (plan.c) ---------------------------------------------------------------------------------------------- */

uint64_t plan_text_bytes(const struct plan_facts *f, const struct plan_kv *kv, int64_t n_ctx); /* a text's state */
uint64_t plan_host_bytes(const struct plan_facts *f, int64_t n_ctx);      /* its tokens and logits */
uint64_t plan_expert_bytes(const struct plan_facts *f, int from, int to); /* all experts of layers [from, to) */
int64_t plan_n_experts(const struct plan_facts *f);
uint64_t plan_ram_limit(const struct making *k); /* 0: unknown */
/* Adds a row to the map and its bytes to the tier's sum; nothing for 0 bytes. */
void plan_add_row(struct making *k, const char *what, const char *tier, uint64_t n_bytes);
/* Adds the program's row, with the part of the margin that is always taken; the rest of the margin becomes reserve. */
void plan_add_program(struct making *k);
/* How many bytes of a device's experts (`all` bytes) may have memory. */
uint64_t plan_allowed_bytes(const struct making *k, uint64_t all);
/* Bytes of all texts' checkpoints, `room` at most; 0: the model's texts need none. */
uint64_t plan_checkpoint_bytes(const struct making *k, uint64_t room);

/* ---- speed (plan.c) ---------------------------------------------------------------------------------------------- */

double plan_rate(double n, double s); /* n / s; 0: not known */
/* The ceiling of n tokens in q.time, with the forecast of receipts. Fills in q's threads, machine and fingerprint. */
struct plan_speed plan_forecast(const struct making *k, struct calibration_query q, int64_t n);
/* Finds the drives that experts without a slot are read from, and their speed. */
void plan_find_drives(struct making *k, struct ceiling_params *c);
/* Fills in the plan's speeds. c->miss is that of a decoded token; prompts take the plan's prompt_miss. */
void plan_find_speeds(struct making *k, const struct ceiling_params *c);
/* Whether the shares of choices that each device has were given (--found). */
bool plan_is_found(const struct making *k);
/* If so, the GPU's share, with its part of the choices that cache-aware routing replaces. */
double plan_found_gpu(const struct making *k);
void plan_refuse_speed(struct making *k);
void plan_assume(struct making *k);
/* Appends --ram to the options of a run, where it decides how many experts have slots, or was given. */
void plan_add_ram_flag(struct making *k);

/* ---- GPUs (plan_gpu.c) ------------------------------------------------------------------------------------------- */

uint64_t plan_vram_limit(const struct making *k); /* memory of all GPUs that have layers; 0: unknown */
/* What these GPUs need with the experts of n_cpu_moe layers in the machine's memory. */
uint64_t plan_vram_with(const struct making *k, int n_cpu_moe, int64_t n_ctx);
void plan_make_gpu(struct making *k);

#endif
