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
    int64_t n_draft;              /* the most guesses of a text's next tokens in a pass (texts/draft.h) */
    bool no_mtp;                  /* don't guess with the model's MTP layers */
    struct option_list overrides; /* of metadata: moebius_engine_options.overrides */
    float yarn;                   /* the same; 0: none */
};

/* clang-format off */
/* Rows for a command's option table. All commands that run a model have MODEL_OPTIONS, except for two that leave some
 * out: one measures batches and dispatch itself, and one needs all experts on the first device; what both write is of
 * the file as it is. */
#define MODEL_OPTIONS(o)                                                                                               \
    MODEL_BASE_OPTIONS(o), MODEL_DEVICE_OPTIONS(o), MODEL_KERNEL_OPTIONS(o), OVERRIDE_OPTIONS((o).overrides, (o).yarn)
#define MODEL_BASE_OPTIONS(o)                                                                                          \
    {"--model,-m", OPT_MODEL, &(o).path, "FILE", "the model: a GGUF file, any part of a split set, or a name; "        \
     "may be the first word instead", 0, 0, 0, GROUP_COMMON},                                                          \
    {"--ram", OPT_SIZE, &(o).ram_bytes, "SIZE", "memory limit of the whole process (16G, 2300M)", 0, 0, 0,             \
     GROUP_COMMON},                                                                                                    \
    {"--threads,-t", OPT_INT, &(o).n_threads, "N", "threads (default: all processors)", 1, 256, 0,                     \
     GROUP_COMMON},                                                                                                    \
    {"--numa", OPT_CHOICE, &(o).numa, "auto|off", "bind threads and weights to NUMA nodes (auto)", 0, 0, "auto|off",   \
     GROUP_MACHINE},                                                                                                   \
    {"--hugetlb", OPT_FLAG, &(o).hugetlb, "", "put weights in reserved huge pages (hugetlb)", 0, 0, 0,                 \
     GROUP_MACHINE},                                                                                                   \
    {"--tuning", OPT_INPUT_OLD, &(o).tuning, "FILE", "use this file of `moebius tune -o`, not the cached one", 0, 0,   \
     0, GROUP_MACHINE},                                                                                                \
    {"--kv", OPT_CHOICE, &(o).kv, "f16|f32|q8_0", "KV cache type (f16)", 0, 0, "f16|f32|q8_0", GROUP_MEMORY},          \
    {"--expert-ram", OPT_SHARE, &(o).expert_ram, "SIZE|N%",                                                            \
     "memory for routed experts; the rest is read when needed",                                                        \
     0, 0, 0, GROUP_MEMORY},                                                                                           \
    {"--policy", OPT_CHOICE, &(o).policy, "lfru|lru|lfu", "eviction policy for experts (lfru)", 0, 0,                  \
     "lfru|lru|lfu", GROUP_MEMORY},                                                                                    \
    {"--usage", OPT_OUTPUT, &(o).usage, "FILE", "file with expert counts, read at start and updated at the end", 0,    \
     0, 0, GROUP_MEMORY},                                                                                              \
    {"--cold", OPT_FLAG, &(o).cold, "", "neither use nor update expert counts", 0, 0, 0, GROUP_MEMORY},                \
    {"--prefetch", OPT_CHOICE, &(o).prefetch, "auto|on|off",                                                           \
     "prefetch the experts that the next layer may need (auto)", 0, 0,                                                 \
     "auto|on|off", GROUP_MEMORY},                                                                                     \
    {"--store", OPT_FOLDERS, &(o).store, "DIR[,DIR...]", "read experts from a store of `moebius prepare`", 0, 0, 0,    \
     GROUP_MEMORY},                                                                                                    \
    {"--io", OPT_CHOICE, &(o).io, "auto|io_uring|pread", "how experts are read (auto)", 0, 0, "auto|io_uring|pread",   \
     GROUP_MEMORY},                                                                                                    \
    {"--direct", OPT_CHOICE, &(o).direct, "auto|on|off", "bypass the page cache with O_DIRECT (auto)", 0, 0,           \
     "auto|on|off",                                                                                                    \
     GROUP_MEMORY},                                                                                                    \
    {"--offline", OPT_FLAG, &(o).offline, "", "fail rather than download a model", 0, 0, 0,                            \
     GROUP_MACHINE},                                                                                                   \
    SANDBOX_OPTION((o).no_sandbox)
#define MODEL_DEVICE_OPTIONS(o) MODEL_ONE_DEVICE_OPTIONS(o), MODEL_DIVISION_OPTIONS(o)
#define MODEL_ONE_DEVICE_OPTIONS(o)                                                                                    \
    {"--devices", OPT_DEVICES, &(o).devices, "cpu:N|vulkan:N[,...]",                                                   \
     "use these threads and GPUs, not --threads", 0, 0,                                                                \
     0, GROUP_MACHINE},                                                                                                \
    {"--gpu", OPT_GPU, &(o).gpu, "auto|none|N", "use the best GPU, none, or number N, not --devices", 0, 0,            \
     0, GROUP_COMMON},                                                                                                 \
    {"--vram", OPT_SIZE, &(o).vram_bytes, "SIZE", "memory limit of each GPU (default: what is free)", 0, 0, 0,         \
     GROUP_MEMORY}
#define MODEL_DIVISION_OPTIONS(o)                                                                                      \
    {"--n-cpu-moe", OPT_STRING, &(o).n_cpu_moe, "N", "keep the last N layers' experts in RAM, the others on the GPU",  \
     0, 0, 0, GROUP_MEMORY},                                                                                           \
    {"--split", OPT_STRING, &(o).split, "HOW[:A,B...]",                                                                \
     "divide the model: experts, layers, stages, last, cache, gate or random", 0, 0, 0, GROUP_MACHINE},                \
    {"--replicas", OPT_SHARE, &(o).replicas, "SIZE|N%", "memory for copies of hot experts on several devices (none)",  \
     0, 0, 0, GROUP_MACHINE}
#define MODEL_KERNEL_OPTIONS(o)                                                                                        \
    {"--batch,-b", OPT_INT, &(o).n_batch, "N", "prompt tokens computed together (512, or more if that is faster)", 1,  \
     1 << 20, 0,                                                                                                       \
     GROUP_MACHINE},                                                                                                   \
    {"--sort-cutoff", OPT_INT, &(o).sort_cutoff, "N", "use sorted expert dispatch above N tokens", 1, 1e15, 0,         \
     GROUP_MACHINE},                                                                                                   \
    {"--reference", OPT_FLAG, &(o).reference, "",                                                                      \
     "compute with float activations and dequantised weights (slow, exact)", 0, 0, 0,                                  \
     GROUP_CHECKS},                                                                                                    \
    {"--check-ops", OPT_FLAG, &(o).check_ops, "", "compare every operation with the reference", 0, 0, 0,               \
     GROUP_CHECKS}

/* Rows that change what the model's file says (struct option_list, float). */
#define OVERRIDE_OPTIONS(keys, factor)                                                                                 \
    {"--override-kv", OPT_LIST, &(keys), "KEY=VALUE",                                                                  \
     "override metadata, such as qwen3moe.expert_used_count=4; repeatable", 0, 0, 0, GROUP_MACHINE},                   \
    {"--yarn", OPT_FLOAT, &(factor), "X", "extend the trained context X times with YaRN", 1, 64, 0, GROUP_MACHINE}

/* More rows for commands that compute tokens one by one. */
#define CAR_OPTIONS(o)                                                                                                 \
    {"--car", OPT_FLOAT, &(o).car.threshold, "X",                                                                      \
     "replace an expert that is not in memory by one with at least X of its score", 0.001, 1, 0, GROUP_CAR},           \
    {"--car-damp", OPT_FLAG, &(o).car.damp, "", "weigh replacements less, by the ratio of the scores", 0, 0, 0,        \
     GROUP_CAR},                                                                                                       \
    {"--car-warmup", OPT_INT, &(o).car.n_warmup, "N", "replace none in the first N tokens of a text", 0, 1e12, 0,      \
     GROUP_CAR},                                                                                                       \
    {"--car-protect", OPT_INT, &(o).car.n_protect, "N", "replace none in the first and last N MoE layers", 0, 1e6, 0,  \
     GROUP_CAR},                                                                                                       \
    {"--backfill", OPT_INT, &(o).car.n_backfill, "N",                                                                  \
     "read up to N replaced experts per token while the drive is idle", 0, 64, 0,                                      \
     GROUP_CAR},                                                                                                       \
    {"--deterministic", OPT_FLAG, &(o).deterministic, "", "make --car independent of when reads finish", 0, 0,         \
     0, GROUP_CAR}
#define DRAFT_OPTIONS(o)                                                                                               \
    {"--draft", OPT_INT, &(o).n_draft, "N",                                                                            \
     "speculative decoding with up to N guesses, where that is faster (0: off)", 0, DRAFT_MOST, 0,                     \
     GROUP_MACHINE},                                                                                                   \
    {"--no-mtp", OPT_FLAG, &(o).no_mtp, "", "guess from repetition only, not with the model's MTP layers", 0, 0, 0,     \
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
