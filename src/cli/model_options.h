/* The options of commands that run a model, and how to open an engine and its sessions by them. */
#ifndef CLI_MODEL_OPTIONS_H
#define CLI_MODEL_OPTIONS_H

#include "cli/confine.h"
#include "cli/options.h"
#include "moebius/moebius.h"
#include "texts/draft.h"

struct model_options {
    const char *path;
    int64_t n_threads, n_ctx, n_batch, sort_cutoff;
    const char *kv, *store, *io, *direct;
    bool reference, check_ops;
    int64_t ram_bytes, state_bytes, vram_bytes;
    struct option_share expert_ram, replicas;
    const char *n_cpu_moe; /* a number, as it was written; NULL: none */
    bool time_gpus;        /* set by bench --ops alone */
    const char *policy, *usage, *prefetch, *numa, *tuning, *devices, *split, *gpu;
    bool hugetlb, cold, deterministic, no_sandbox, offline, no_receipt;
    bool quiet; /* show neither progress nor statistics; set by commands that have such an option */
    /* Also hears of the progress of loading, in any thread (moebius_engine_options.progress). May be NULL. */
    void (*loading)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *loading_user;
    moebius_car car;
    int64_t n_draft; /* the most guesses of a text's next tokens in a pass (texts/draft.h) */
    bool no_mtp;     /* don't guess with the model's MTP layer */
};

/* clang-format off */
/* Rows for a command's option table. All commands that run a model have MODEL_OPTIONS, except for two that leave some
 * out: one measures batches and dispatch itself, and one needs all experts on the first device. */
#define MODEL_OPTIONS(o) MODEL_BASE_OPTIONS(o), MODEL_DEVICE_OPTIONS(o), MODEL_KERNEL_OPTIONS(o)
#define MODEL_BASE_OPTIONS(o)                                                                                          \
    {"--model,-m", OPT_MODEL, &(o).path, "FILE", "the model: a GGUF file, any part of a split set, or a name; also "   \
     "the first word", 0, 0, 0, GROUP_COMMON},                                                                                   \
    {"--ram", OPT_SIZE, &(o).ram_bytes, "SIZE", "memory that the program may take at most (16G, 2300M)", 0, 0, 0,      \
     GROUP_COMMON},                                                                                                    \
    {"--threads,-t", OPT_INT, &(o).n_threads, "N", "threads; all processors when not given", 1, 256, 0,                \
     GROUP_COMMON},                                                                                                    \
    {"--numa", OPT_CHOICE, &(o).numa, "auto|off", "keep threads near their memory (auto)", 0, 0, "auto|off",           \
     GROUP_MACHINE},                                                                                                   \
    {"--hugetlb", OPT_FLAG, &(o).hugetlb, "", "weights in huge pages that the system has set aside", 0, 0, 0,          \
     GROUP_MACHINE},                                                                                                   \
    {"--tuning", OPT_INPUT_OLD, &(o).tuning, "FILE", "what moebius tune -o wrote, not what is kept here", 0, 0, 0,         \
     GROUP_MACHINE},                                                                                                   \
    {"--kv", OPT_CHOICE, &(o).kv, "f16|f32|q8_0", "type of the KV cache (f16)", 0, 0, "f16|f32|q8_0", GROUP_MEMORY},   \
    {"--expert-ram", OPT_SHARE, &(o).expert_ram, "SIZE|N%", "memory for routed experts; others are read when needed",  \
     0, 0, 0, GROUP_MEMORY},                                                                                           \
    {"--policy", OPT_CHOICE, &(o).policy, "lfru|lru|lfu", "which experts stay in that memory (lfru)", 0, 0,            \
     "lfru|lru|lfu", GROUP_MEMORY},                                                                                    \
    {"--usage", OPT_OUTPUT, &(o).usage, "FILE", "where counts of experts are kept for the next run", 0, 0, 0,          \
     GROUP_MEMORY},                                                                                                    \
    {"--cold", OPT_FLAG, &(o).cold, "", "neither use nor keep such counts", 0, 0, 0, GROUP_MEMORY},                    \
    {"--prefetch", OPT_CHOICE, &(o).prefetch, "auto|on|off", "read ahead what the next layer may need (auto)", 0, 0,   \
     "auto|on|off", GROUP_MEMORY},                                                                                     \
    {"--store", OPT_FOLDERS, &(o).store, "DIR[,DIR...]", "read experts from a prepared store", 0, 0, 0, GROUP_MEMORY},  \
    {"--io", OPT_CHOICE, &(o).io, "auto|io_uring|pread", "how to read experts (auto)", 0, 0, "auto|io_uring|pread",     \
     GROUP_MEMORY},                                                                                                    \
    {"--direct", OPT_CHOICE, &(o).direct, "auto|on|off", "read past the page cache (auto)", 0, 0, "auto|on|off",        \
     GROUP_MEMORY},                                                                                                    \
    {"--offline", OPT_FLAG, &(o).offline, "", "don't fetch a model that is named and is not here", 0, 0, 0,             \
     GROUP_MACHINE},                                                                                                   \
    SANDBOX_OPTION((o).no_sandbox)
#define MODEL_DEVICE_OPTIONS(o) MODEL_ONE_DEVICE_OPTIONS(o), MODEL_DIVISION_OPTIONS(o)
#define MODEL_ONE_DEVICE_OPTIONS(o)                                                                                    \
    {"--devices", OPT_DEVICES, &(o).devices, "cpu:N|vulkan:N[,...]", "threads and GPUs, in place of --threads", 0, 0,   \
     0, GROUP_MACHINE},                                                                                                \
    {"--gpu", OPT_GPU, &(o).gpu, "auto|none|N", "the best GPU, no one, or number N, in place of --devices", 0, 0, 0,    \
     GROUP_COMMON},                                                                                                    \
    {"--vram", OPT_SIZE, &(o).vram_bytes, "SIZE", "memory that each GPU may take at most (what is free)", 0, 0, 0,      \
     GROUP_MEMORY}
#define MODEL_DIVISION_OPTIONS(o)                                                                                      \
    {"--n-cpu-moe", OPT_STRING, &(o).n_cpu_moe, "N", "the last N layers' experts stay in memory, the others on the GPU",  \
     0, 0, 0, GROUP_MEMORY},                                                                                           \
    {"--split", OPT_STRING, &(o).split, "HOW[:A,B...]",                                                                \
     "experts, layers, stages, last, cache, gate or random: who has what", 0, 0, 0, GROUP_MACHINE},                    \
    {"--replicas", OPT_SHARE, &(o).replicas, "SIZE|N%", "memory for hot experts at more than one place (none)", 0, 0, \
     0, GROUP_MACHINE}
#define MODEL_KERNEL_OPTIONS(o)                                                                                         \
    {"--batch,-b", OPT_INT, &(o).n_batch, "N", "prompt tokens computed together (512, or as it pays)", 1, 1 << 20, 0,  \
     GROUP_MACHINE},                                                                                                   \
    {"--sort-cutoff", OPT_INT, &(o).sort_cutoff, "N", "more tokens at once: experts by sorted dispatch", 1, 1e15, 0,   \
     GROUP_MACHINE},                                                                                                   \
    {"--reference", OPT_FLAG, &(o).reference, "", "float activations, dequantised weights: slow, exact", 0, 0, 0,      \
     GROUP_CHECKS},                                                                                                    \
    {"--check-ops", OPT_FLAG, &(o).check_ops, "", "compare every operation with the reference's", 0, 0, 0,             \
     GROUP_CHECKS}

/* More rows for commands that compute tokens one by one. */
#define CAR_OPTIONS(o)                                                                                                 \
    {"--car", OPT_FLOAT, &(o).car.threshold, "X",                                                                      \
     "experts not in memory give way to others with X of their score (not exact)", 0.001, 1, 0, GROUP_CAR},            \
    {"--car-damp", OPT_FLAG, &(o).car.damp, "", "those weigh less, by the ratio of the scores", 0, 0, 0, GROUP_CAR},   \
    {"--car-warmup", OPT_INT, &(o).car.n_warmup, "N", "not in the first N tokens of a text", 0, 1e12, 0, GROUP_CAR},   \
    {"--car-protect", OPT_INT, &(o).car.n_protect, "N", "nor in the first and last N MoE layers", 0, 1e6, 0,           \
     GROUP_CAR},                                                                                                       \
    {"--backfill", OPT_INT, &(o).car.n_backfill, "N", "read up to N of those that gave way, when idle", 0, 64, 0,      \
     GROUP_CAR},                                                                                                       \
    {"--deterministic", OPT_FLAG, &(o).deterministic, "", "--car goes by what is used, not by when reads end", 0, 0,   \
     0, GROUP_CAR}
#define DRAFT_OPTIONS(o)                                                                                               \
    {"--draft", OPT_INT, &(o).n_draft, "N", "speculative decoding: guess up to N next tokens, where that is faster (0: off)", 0, DRAFT_MOST, 0,     \
     GROUP_MACHINE},                                                                                                   \
    {"--no-mtp", OPT_FLAG, &(o).no_mtp, "", "guess by what texts repeat alone, not by the model's MTP layer", 0, 0, 0,  \
     GROUP_MACHINE}
/* clang-format on */

/* The directories in an option's value "DIR,DIR". */
struct dir_list {
    const char *dirs[16]; /* [n], within `text` */
    int n;
    char *text; /* owned */
};
MUST_USE err_code cli_split_dirs(const char *text, struct dir_list *out, struct err *e);
void cli_dirs_close(struct dir_list *l);

/* ERR_USAGE if no model is named, or if options contradict each other. Called before a model is loaded. */
MUST_USE err_code cli_check_model(const struct model_options *o, struct err *e);
MUST_USE err_code cli_check_draft(const struct model_options *o, struct err *e); /* only the contradictions */

/* Makes the engine's options. They borrow from *store, which must be closed even after a failure. ERR_USAGE: no model
 * was named. */
MUST_USE err_code cli_engine_options(const struct model_options *o, moebius_engine_options *out, struct dir_list *store,
                                     struct err *e);

/* The moebius_kv_type for a value of --kv, which has been checked; NULL: f16. */
int cli_kv_type(const char *name);
/* Makes the options of sessions, except for the context size. */
MUST_USE err_code cli_session_options(const struct model_options *o, moebius_session_options *out, struct err *e);

/* How many GPUs `devices` names if it is "vulkan:0,vulkan:1,..." without gaps; 0: it has another form. */
int cli_count_gpus(const char *devices);

#endif
