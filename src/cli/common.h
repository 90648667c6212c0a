/* What several commands share: the options that every model takes, opening it with a progress line, and reading
 * prompts. */
#ifndef CLI_COMMON_H
#define CLI_COMMON_H

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
    bool time_gpus;        /* no option of all commands: bench --ops */
    const char *policy, *usage, *prefetch, *numa, *tuning, *devices, *split, *gpu;
    bool hugetlb, cold, deterministic, no_sandbox, offline, no_receipt;
    bool quiet; /* neither progress nor statistics; set by commands that have the option */
    /* Who else is told of loading, in any thread, as moebius_engine_options.progress. NULL: nobody is. */
    void (*loading)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *loading_user;
    moebius_car car;
    int64_t n_draft; /* guesses of a text's next tokens in a pass at most (texts/draft.h) */
    bool no_mtp;
};

/* clang-format off */
/* Rows for a command's option table. MODEL_OPTIONS are those of all commands that run a model but two: one that tries
 * batches and dispatch itself, and one that sees all experts on the first device. */
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

/* Directories that were given as "DIR,DIR". */
struct dir_list {
    const char *dirs[16]; /* [n], within `text` */
    int n;
    char *text; /* owned */
};
MUST_USE err_code cli_split_dirs(const char *text, struct dir_list *out, struct err *e);
void cli_dirs_close(struct dir_list *l);

/* A line of progress on a terminal's standard error, a few times a second, from any thread; zero but for `what`,
 * "loading" or the like. The callback always goes on (returns true) until an interrupt. */
struct progress {
    const char *what;
    int64_t start_ns;
    _Atomic int64_t shown_ns;
};
void cli_progress_begin(struct progress *p, const char *what);    /* NULL: shows nothing */
bool cli_progress(void *progress, uint64_t done, uint64_t total); /* say_progress_end ends it */

/* What a command works with. Close it after a failure, too. */
struct opened {
    moebius_engine *engine;
    moebius_session *session;
    int64_t load_ns;
};

/* What the options say of the engine; `store` is borrowed by them, and to be closed in any case. ERR_USAGE when no
 * model was named. */
MUST_USE err_code cli_engine_options(const struct model_options *o, moebius_engine_options *out, struct dir_list *store,
                                     struct err *e);
/* Fails with ERR_USAGE when no model was named. Shows progress on a terminal's
 * standard error, and warns where --ctx is longer than what the model was trained with. */
MUST_USE err_code cli_open_engine(const struct model_options *o, struct opened *out, struct err *e);
/* A moebius_kv_type by the name that --kv gives it, which has been checked; NULL: f16. */
int cli_kv_type(const char *name);
/* What the options say of sessions, but for the context. */
MUST_USE err_code cli_session_options(const struct model_options *o, moebius_session_options *out, struct err *e);
MUST_USE err_code cli_open_session(const struct model_options *o, int64_t n_ctx, struct opened *out, struct err *e);
void cli_close(struct opened *o);
/* Whether several devices divide the layers. */
bool cli_has_stages(const moebius_engine *engine);

/* How many GPUs "vulkan:0,vulkan:1,..." names, from the first one on; 0: it names others, or something else. */
int cli_count_gpus(const char *devices);

/* The context of a text of n_prompt tokens, which `what` names in messages, and n_more others (-1: as many as there is
 * room for): what these need, within --ctx or what the model was trained for. ERR_LIMIT when the prompt is longer. */
MUST_USE err_code cli_context_size(const struct model_options *o, const moebius_engine *engine, const char *what,
                                   int64_t n_prompt, int64_t n_more, int64_t *n_ctx, struct err *e);

/* Whether standard input is a file, a pipe or a socket: something that ends, and that somebody has put there. */
bool cli_is_piped(void);
/* `file`, or "-" where none was named and something is piped; NULL: neither. */
const char *cli_file_or_piped(const char *file);

/* Reads all of a file, or of standard input for "-". *text is NUL-terminated and owned by the caller (mem_free). */
MUST_USE err_code cli_read_file(const char *path, char **text, size_t *n, struct err *e);
/* The same; ERR_LIMIT if the file has more than max_bytes. */
MUST_USE err_code cli_read_file_within(const char *path, size_t max_bytes, char **text, size_t *n, struct err *e);

/* Reads a text file's tokens, with BOS and EOS as the vocabulary says. CR LF counts as LF, so that copies of a text
 * from different systems have the same tokens. *ids [*n] is owned by the caller (mem_free). */
MUST_USE err_code cli_read_tokens(const char *path, const moebius_vocab *vocab, int32_t **ids, size_t *n,
                                  struct err *e);

/* Tokens to measure with, at least one: those of a text file or, for NULL, random ones that are the same in every run.
 * *ids [*n] is owned by the caller (mem_free). */
MUST_USE err_code cli_bench_tokens(const char *path, const moebius_engine *engine, int32_t **ids, size_t *n,
                                   struct err *e);

/* Opens the template in a file, or else (file NULL) the model's own, from `vocab`. `model` is the model's path, for
 * messages. */
MUST_USE err_code cli_open_template(const char *file, const char *model, const moebius_vocab *vocab,
                                    moebius_template **out, struct err *e);

/* --var NAME=JSON, as often as given: the names are copied. */
struct cli_vars {
    moebius_template_var vars[OPTION_LIST_MAX];
    char names[OPTION_LIST_MAX][64];
    size_t n;
};
MUST_USE err_code cli_parse_vars(const struct option_list *list, struct cli_vars *out, struct err *e);

/* Parses "1,2,3" or "1 2 3". *ids [*n], which may be empty, is owned by the caller (mem_free). */
MUST_USE err_code cli_parse_ids(const char *text, int32_t **ids, size_t *n, struct err *e);

/* A prompt that is given as text, file or token ids: exactly one is not NULL. */
struct prompt_options {
    const char *text, *file, *tokens;
    bool continues; /* the prompt goes on with a session's text: it gets no BOS, and may be missing */
};
#define PROMPT_OPTIONS(p)                                                                                               \
    {"--prompt,-p", OPT_STRING, &(p).text, "TEXT", "the prompt", 0, 0, 0},                                              \
        {"--file,-f", OPT_INPUT, &(p).file, "FILE", "the prompt is the contents of FILE (-: standard input)", 0, 0, 0}, \
    {                                                                                                                   \
        "--tokens", OPT_STRING, &(p).tokens, "1,2,3", "the prompt is exactly these tokens", 0, 0, 0                     \
    }
/* ERR_USAGE unless a model is named, or one prompt: to be asked before a model is loaded. */
MUST_USE err_code cli_check_model(const struct model_options *o, struct err *e);
/* ERR_USAGE where options don't go together: of cli_check_model, too. */
MUST_USE err_code cli_check_draft(const struct model_options *o, struct err *e);
MUST_USE err_code cli_check_prompt(const struct prompt_options *p, struct err *e);
/* cli_prompt_text reads the text of -p or -f, cli_prompt its tokens; both are owned by the caller (mem_free). */
/* Where no prompt is named, they take standard input, if that is a file or a pipe. */
MUST_USE err_code cli_prompt_text(const struct prompt_options *p, char **text, size_t *n, struct err *e);
MUST_USE err_code cli_prompt(const struct prompt_options *p, const moebius_vocab *vocab, int32_t **ids, size_t *n,
                             struct err *e);

/* moebius_session_eval, which an interrupt ends with ERR_CANCELLED; a prompt that takes more than a second shows on a
 * terminal how far it is. */
MUST_USE err_code cli_eval_prompt(const struct model_options *o, moebius_session *session, const int32_t *ids, size_t n,
                                  struct err *e);
/* Makes the session's tokens these, as moebius_session_sync, in the same way. */
MUST_USE err_code cli_sync_prompt(const struct model_options *o, moebius_session *session, const int32_t *ids, size_t n,
                                  size_t *n_kept, struct err *e);

/* From now on the first interrupt (Ctrl-C) is noted, and a second one ends the program. An interrupt that was noted
 * before is forgotten. */
void cli_catch_interrupt(void);
void cli_release_interrupt(void); /* from now on an interrupt ends the program */
bool cli_interrupted(void);       /* an interrupt was noted */
/* While it is on, an interrupt ends the reads of this thread, with EINTR: also one that begins after it, within a
 * second. */
void cli_end_reads(bool on);

#endif
