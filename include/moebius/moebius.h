/* moebius: runs Mixture-of-Experts language models from their GGUF files.
 *
 *     moebius_engine *engine;                      a loaded model: weights, tokenizer, device
 *     moebius_session *session;                    one text: its context and position
 *     moebius_engine_open(&engine, "model.gguf", NULL, &error);
 *     moebius_session_open(&session, engine, NULL, &error);
 *     moebius_session_eval(session, ids, n, &error);
 *     const float *logits = moebius_session_logits(session);
 *
 * Every fallible function returns a status, 0 for success, and fills *error (which may be NULL) with a sentence.
 * Strings are UTF-8. Structs of options come filled from moebius_default_*(); NULL stands for the defaults.
 *
 * Thread-safety: an engine and all its sessions may be used from one thread at a time; tokenizing from any. */
#ifndef MOEBIUS_MOEBIUS_H
#define MOEBIUS_MOEBIUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define MOEBIUS_API
#else
#define MOEBIUS_API __attribute__((visibility("default")))
#endif

typedef enum moebius_status {
    MOEBIUS_OK = 0,
    MOEBIUS_FAIL = 1,
    MOEBIUS_USAGE = 2,       /* an argument or option is not one that makes sense */
    MOEBIUS_IO = 3,          /* a file can't be read or written */
    MOEBIUS_FORMAT = 4,      /* a file is damaged or not what it should be */
    MOEBIUS_UNSUPPORTED = 5, /* a file is fine, but this version can't run it */
    MOEBIUS_NOMEM = 6,
    MOEBIUS_LIMIT = 7, /* over a limit, such as the context */
    MOEBIUS_CHECK = 8, /* a self-check found a difference */
    MOEBIUS_CANCELLED = 9
} moebius_status;

enum { MOEBIUS_ERROR_BYTES = 768 };

typedef struct moebius_error {
    moebius_status status;
    char text[MOEBIUS_ERROR_BYTES]; /* a sentence in one line, whose control characters are spelled out (\x1b) */
} moebius_error;

/* "0.1.0", and what this build contains, for people. */
MOEBIUS_API const char *moebius_version(void);
MOEBIUS_API const char *moebius_build_info(void);

/* ---- engine -------------------------------------------------------------------------------------------------- */

typedef struct moebius_engine moebius_engine;

enum moebius_log_level { MOEBIUS_LOG_WARN, MOEBIUS_LOG_INFO, MOEBIUS_LOG_DEBUG };

/* How experts are read while the model runs: by io_uring or by threads, past the page cache or through it. AUTO: the
 * best that the system permits; anything else is an error where it can't be had. */
typedef enum moebius_io { MOEBIUS_IO_AUTO, MOEBIUS_IO_URING, MOEBIUS_IO_PREAD } moebius_io;
typedef enum moebius_direct { MOEBIUS_DIRECT_AUTO, MOEBIUS_DIRECT_ON, MOEBIUS_DIRECT_OFF } moebius_direct;

/* Whether experts that the next layer will probably choose are read while nothing else is: AUTO tries both ways while
 * decoding, now and then, and goes on with the faster one. */
typedef enum moebius_prefetch { MOEBIUS_PREFETCH_AUTO, MOEBIUS_PREFETCH_ON, MOEBIUS_PREFETCH_OFF } moebius_prefetch;

/* AUTO: on a machine with several memory nodes (NUMA) each thread is bound to the processors of one, and each row of
 * the weights, and head of a KV cache, lies in the memory of the node whose threads compute it. The engine's own
 * threads stay bound; the caller's is bound while it is in moebius_engine_open, moebius_engine_measure_roof and
 * moebius_session_eval*, and has its old processors back when they return (callbacks run in between, and threads that
 * they start inherit the binding). Nothing of this changes a result, and nothing of it happens with one node or in a
 * build without hwloc. */
typedef enum moebius_numa { MOEBIUS_NUMA_AUTO, MOEBIUS_NUMA_OFF } moebius_numa;

typedef struct moebius_engine_options {
    int n_threads;  /* 0: one for each processor that the process may use; of more than those as many decode */
    bool reference; /* float activations on dequantised weights: slow and exact */
    bool check_ops; /* run every operation on the reference device too and compare */
    /* more tokens than this at once: experts by sorted dispatch. 0: what moebius_engine_keep_sort_cutoff kept, or else
     * the default */
    int64_t sort_cutoff;
    /* The process's peak memory at most. 0: what it has and most of what the system and its control groups have free
     * when the model is opened. One engine at a time may have a bound: with 0 the others have none. */
    int64_t ram_bytes;
    /* Memory for routed experts alone; the others are read when needed. 0 and 0: as much as all need, or ram_bytes
     * leaves. */
    int64_t expert_ram_bytes;
    double expert_ram_share; /* of what all experts need, 0 to 1 */
    const char *policy;      /* who stays in that memory: "lfru" (NULL), "lru" or "lfu" */
    /* The file in which counts of chosen experts are kept from run to run, for a warm start: NULL: none; "": one in the
     * user's cache directory. */
    const char *usage;
    const char *const *store_dirs; /* directories of a prepared store of this model, n_store_dirs of them */
    int n_store_dirs;
    moebius_io io;
    moebius_direct direct;
    moebius_prefetch prefetch;
    moebius_numa numa;
    /* Weights in the huge pages that the system has set aside (hugetlb), as far as they go; a warning in the log tells
     * how many are missing. Refused with a bound on memory, as such pages aren't given back expert by expert, and where
     * threads are bound to several memory nodes. */
    bool hugetlb;
    bool deterministic; /* runs with cache-aware routing (moebius_car) can be repeated to the bit: it goes by what a
                           cache of the same size would hold, whenever reads end, and nothing is read on a guess.
                           Refused with ram_bytes, which leaves the number of experts in memory to the moment */
    /* NULL: silence. Lines are as printable as moebius_error's sentences */
    void (*log)(void *user, enum moebius_log_level level, const char *line);
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* while loading; NULL; from any thread */
    void *user;
} moebius_engine_options;

MOEBIUS_API moebius_engine_options moebius_default_engine_options(void);

/* Loads the model at `path` (any part of a split set). On failure *out is NULL. */
MOEBIUS_API moebius_status moebius_engine_open(moebius_engine **out, const char *path,
                                               const moebius_engine_options *options, moebius_error *error);
MOEBIUS_API void moebius_engine_close(moebius_engine **engine); /* its sessions must be closed before */

MOEBIUS_API int32_t moebius_n_vocab(const moebius_engine *engine);
MOEBIUS_API int64_t moebius_n_ctx_train(const moebius_engine *engine);
MOEBIUS_API int moebius_n_threads(const moebius_engine *engine);
MOEBIUS_API int moebius_n_memory_node(const moebius_engine *engine); /* that have threads: 1 or more */
MOEBIUS_API const char *moebius_arch(const moebius_engine *engine);
MOEBIUS_API int64_t moebius_n_layer(const moebius_engine *engine);
MOEBIUS_API int64_t moebius_n_embd(const moebius_engine *engine);
MOEBIUS_API int64_t moebius_engine_sort_cutoff(const moebius_engine *engine);

/* Keeps a cutoff that was measured with this engine in the user's cache directory, for engines with the same model,
 * processor and number of threads that are opened without one. *path: the file, owned by the caller (moebius_free). */
MOEBIUS_API moebius_status moebius_engine_keep_sort_cutoff(const moebius_engine *engine, int64_t sort_cutoff,
                                                           char **path, moebius_error *error);

/* The routed experts of a layer, counting MoE layers only. */
typedef struct moebius_moe_layer {
    int64_t n_expert, n_used;
    uint64_t slot_bytes; /* memory of one expert */
    int group;           /* layers with experts of one shape share memory: which group, from 0 */
} moebius_moe_layer;
MOEBIUS_API int moebius_n_moe_layer(const moebius_engine *engine);
MOEBIUS_API moebius_moe_layer moebius_moe_layer_at(const moebius_engine *engine, int layer);

/* What tells the model apart from others: a hash of its files' directories. */
MOEBIUS_API uint64_t moebius_fingerprint(const moebius_engine *engine);

/* Forgets which experts are in memory and which were used, as far as they are read when needed, so that what follows
 * finds what a cold start would. */
MOEBIUS_API void moebius_engine_forget_experts(moebius_engine *engine);

/* What ran, since the engine was opened. */
typedef struct moebius_counters {
    uint64_t n_direct, n_sorted; /* MoE layers computed by direct and by sorted dispatch */
    uint64_t n_expert_rows;      /* token-expert pairs computed */
    /* Experts that layers asked for, each once a layer and chunk of tokens, when not all are in memory. decode: for one
     * token; a hit was in memory, a miss had to be read. */
    uint64_t n_expert_hit, n_expert_miss, n_decode_hit, n_decode_miss;
    uint64_t n_expert_evicted, n_expert_read, n_expert_read_bytes;
    uint64_t n_prefetched, n_prefetch_used; /* experts read on a guess, and asked for next */
    /* Cache-aware routing: choices that another expert stood in for, the sum of the ratios of their scores, how many of
     * n_decode_hit are hits by that alone, and experts read in idle time after they had been stood in for. */
    uint64_t n_substituted;
    double substitute_ratio_sum;
    int64_t n_spared;
    uint64_t n_backfilled;
    int64_t stall_ns;                        /* waiting for reads with nothing to compute */
    int64_t arrival_ns;                      /* checking what was read, and packing what was not read into its slot */
    uint64_t expert_bytes, expert_all_bytes; /* memory for routed experts: now; that all would need */
    uint64_t weight_bytes, context_bytes, work_bytes; /* memory for all other weights, for contexts, to work in */
} moebius_counters;
MOEBIUS_API moebius_counters moebius_engine_counters(const moebius_engine *engine);

/* Operations of one kind since the engine was opened: how often, how long, and what they can't do without: bytes of
 * weights and state moved, multiply-adds on bytes and on floats. */
typedef struct moebius_op_stats {
    const char *name;
    uint64_t n, n_ns, n_bytes, n_int8, n_float;
} moebius_op_stats;
enum { MOEBIUS_MAX_OP = 64 };
/* Fills stats and returns how many kinds there are, at most MOEBIUS_MAX_OP. */
MOEBIUS_API int moebius_engine_op_stats(const moebius_engine *engine, moebius_op_stats stats[MOEBIUS_MAX_OP]);

/* What the machine can do with the engine's threads just now: bytes read from memory, and multiply-adds on bytes and on
 * floats, a second. Takes some 50 ms; the first time also 256 MiB or more (32 a thread), kept until the engine is
 * closed. */
typedef struct moebius_roof {
    double read_bytes_per_s, int8_per_s, float_per_s;
} moebius_roof;
MOEBIUS_API moebius_status moebius_engine_measure_roof(moebius_engine *engine, moebius_roof *roof,
                                                       moebius_error *error);
/* How experts are read, for people: "io_uring, O_DIRECT"; "" when all are in memory. Borrowed. */
MOEBIUS_API const char *moebius_expert_reader(const moebius_engine *engine);

/* What was read from where: place 0 is the model's file, then come the directories of the prepared store. False: there
 * is no such place. */
typedef struct moebius_place {
    const char *path; /* borrowed from the engine */
    uint64_t n_reads, n_bytes;
    double bytes_per_s; /* of a directory while it had something to do; 0: not known */
    bool is_gone;       /* it failed, and nothing more is read from there */
} moebius_place;
MOEBIUS_API bool moebius_engine_place(const moebius_engine *engine, int i, moebius_place *out);

/* ---- text and tokens ----------------------------------------------------------------------------------------- */

typedef struct moebius_vocab moebius_vocab; /* borrowed from an engine, or opened alone; shareable between threads */

MOEBIUS_API const moebius_vocab *moebius_engine_vocab(const moebius_engine *engine);

/* Only the tokenizer of a GGUF, which may hold no tensors. */
MOEBIUS_API moebius_status moebius_vocab_open(moebius_vocab **out, const char *path, moebius_error *error);
MOEBIUS_API void moebius_vocab_close(moebius_vocab **vocab);

/* Text of n bytes to tokens: *ids is owned by the caller (moebius_free). add_special: BOS and EOS as the file says;
 * parse_special: the texts of special tokens become those tokens. */
MOEBIUS_API moebius_status moebius_tokenize(const moebius_vocab *vocab, const char *text, size_t n, bool add_special,
                                            bool parse_special, int32_t **ids, size_t *n_ids, moebius_error *error);

/* Tokens to text, NUL-terminated, owned by the caller (moebius_free); *n_text may be NULL. special: special tokens
 * show as their text. */
MOEBIUS_API moebius_status moebius_detokenize(const moebius_vocab *vocab, const int32_t *ids, size_t n, bool special,
                                              char **text, size_t *n_text, moebius_error *error);

/* The bytes of one token in running text, borrowed; maybe part of a character. */
MOEBIUS_API const char *moebius_token_piece(const moebius_vocab *vocab, int32_t id, bool special, size_t *n);
MOEBIUS_API bool moebius_token_is_end(const moebius_vocab *vocab, int32_t id);
MOEBIUS_API int32_t moebius_vocab_size(const moebius_vocab *vocab);
MOEBIUS_API int32_t moebius_token_bos(const moebius_vocab *vocab); /* -1: none */
MOEBIUS_API bool moebius_vocab_adds_bos(const moebius_vocab *vocab);
MOEBIUS_API void moebius_free(void *p);

/* ---- chat templates ------------------------------------------------------------------------------------------- */

/* The template text in the model's file; NULL when there is none. Models may bring several: `name` is the name of one,
 * such as "tool_use", or NULL for the default. Borrowed. */
MOEBIUS_API const char *moebius_vocab_template(const moebius_vocab *vocab, const char *name);

typedef struct moebius_template moebius_template; /* read-only: shareable between threads */

/* Parses a template of n bytes. `vocab`, which must live as long, gives it the special tokens' texts (bos_token and so
 * on); NULL: there are none. */
MOEBIUS_API moebius_status moebius_template_open(moebius_template **out, const char *source, size_t n,
                                                 const moebius_vocab *vocab, moebius_error *error);
MOEBIUS_API void moebius_template_close(moebius_template **tmpl);

typedef struct moebius_template_var {
    const char *name, *json;
} moebius_template_var;

/* What a template gets, as JSON text in the form of OpenAI's and Hugging Face's interfaces. */
typedef struct moebius_template_input {
    const char *messages;             /* an array of objects: role, content, reasoning_content, tool_calls, ... */
    const char *tools;                /* an array; NULL: none */
    bool no_generation_prompt;        /* end with the last message, not with what asks for the next one */
    const moebius_template_var *vars; /* more variables, such as enable_thinking */
    size_t n_vars;
} moebius_template_input;

/* What a template makes of its input: the prompt's text, and which of it the template wrote itself. Only there may the
 * texts of special tokens become those tokens. What came from messages, tools and variables stays text, whatever it
 * looks like, so that no user and no document can end a turn or begin one; but the usual names of roles count as the
 * template's, as some templates make special tokens of them. (User-defined tokens of a vocabulary, as <think> often is,
 * are ordinary text and are found everywhere, but for those of the form <|...|>.) */
typedef struct moebius_prompt moebius_prompt; /* read-only: shareable between threads */

/* On failure *prompt is NULL. Templates are bounded in time and memory. */
MOEBIUS_API moebius_status moebius_template_render(const moebius_template *tmpl, const moebius_template_input *input,
                                                   moebius_prompt **prompt, moebius_error *error);
MOEBIUS_API void moebius_prompt_close(moebius_prompt **prompt);
/* The text, NUL-terminated, borrowed; *n may be NULL. Tokenizing it with parse_special would undo what is said above.
 */
MOEBIUS_API const char *moebius_prompt_text(const moebius_prompt *prompt, size_t *n);
/* Its tokens, BOS among them where the template writes it: *ids is owned by the caller (moebius_free). */
MOEBIUS_API moebius_status moebius_prompt_tokenize(const moebius_prompt *prompt, const moebius_vocab *vocab,
                                                   int32_t **ids, size_t *n_ids, moebius_error *error);

/* An answer as it is generated: which of it is reasoning, which is said, and where it ends. It ends with a token that
 * ends a text or that the template writes behind an answer. */
typedef struct moebius_reply moebius_reply;
typedef enum moebius_reply_part { MOEBIUS_REPLY_CONTENT, MOEBIUS_REPLY_REASONING, MOEBIUS_REPLY_N } moebius_reply_part;
typedef void moebius_reply_fn(void *user, moebius_reply_part part, const char *text, size_t n);

/* The template needs its vocabulary. `prompt`: the text of the prompt, whose end may have begun the reasoning. `fn`
 * (may be NULL) gets each new piece of text once it is clear where it belongs. */
MOEBIUS_API moebius_status moebius_reply_open(moebius_reply **out, const moebius_template *tmpl, const char *prompt,
                                              moebius_reply_fn *fn, void *user, moebius_error *error);
MOEBIUS_API void moebius_reply_close(moebius_reply **reply);
/* One more token: *end is true when it ends the answer. */
MOEBIUS_API moebius_status moebius_reply_feed(moebius_reply *reply, int32_t id, bool *end, moebius_error *error);
MOEBIUS_API void moebius_reply_finish(moebius_reply *reply); /* no more is coming: what was held back goes out */
MOEBIUS_API const char *moebius_reply_text(const moebius_reply *reply, moebius_reply_part part, size_t *n);

/* ---- session ------------------------------------------------------------------------------------------------- */

typedef struct moebius_session moebius_session;

/* Q8_0 takes heads whose size is a multiple of 32; opening is refused otherwise. */
typedef enum moebius_kv_type { MOEBIUS_KV_F16, MOEBIUS_KV_F32, MOEBIUS_KV_Q8_0 } moebius_kv_type;

/* Cache-aware routing: while tokens are computed one by one, an expert that the router chose and that is not in memory
 * may be stood in for by one that is, if the score of that is at least `threshold` of its own. Faster, and NOT the
 * model's own output (docs/car.md). Prompts in chunks of several tokens are left alone. */
typedef struct moebius_car {
    float threshold;    /* above 0 and below 1; 0, or 1 and more: off */
    bool damp;          /* substitutes weigh less, by that ratio */
    int64_t n_warmup;   /* none among the first tokens of a text */
    int64_t n_protect;  /* none in so many of the first and of the last MoE layers */
    int64_t n_backfill; /* experts that were stood in for and may be read in idle time, a token; at most 64 */
} moebius_car;

typedef struct moebius_session_options {
    int64_t n_ctx; /* positions; 0: the model's own, up to 4096 */
    /* tokens of a prompt computed together, rounded up to a multiple of 64; 0: 512, or more where experts must be read
     * and memory permits (moebius_session_chunk) */
    int64_t n_batch;
    moebius_kv_type kv;
    int64_t sort_cutoff; /* 0: the engine's */
    moebius_car car;
} moebius_session_options;

MOEBIUS_API moebius_session_options moebius_default_session_options(void);
MOEBIUS_API moebius_status moebius_session_open(moebius_session **out, moebius_engine *engine,
                                                const moebius_session_options *options, moebius_error *error);
MOEBIUS_API void moebius_session_close(moebius_session **session);

MOEBIUS_API int64_t moebius_session_n_ctx(const moebius_session *session);
MOEBIUS_API int64_t moebius_session_pos(const moebius_session *session); /* tokens so far */

/* How many of n tokens would be computed together now, each chunk of them reading the experts that are not in memory:
 * the more, the less is read; but their work space takes memory from the experts. */
MOEBIUS_API int64_t moebius_session_chunk(const moebius_session *session, size_t n);

/* Appends n >= 1 tokens and computes the logits after the last. MOEBIUS_LIMIT when they don't fit the context. After
 * a failure in the midst of them the session holds the chunks of tokens that were done, or nothing where the failed one
 * has overwritten what the next token needs, which recurrent layers always do and windowed ones in large chunks
 * (moebius_session_pos tells). */
MOEBIUS_API moebius_status moebius_session_eval(moebius_session *session, const int32_t *ids, size_t n,
                                                moebius_error *error);

/* The same with the logits after each token i >= first: called in order, `logits` valid during the call. A callback
 * that returns false cancels. */
typedef bool moebius_logits_fn(void *user, size_t i, const float *logits);
MOEBIUS_API moebius_status moebius_session_eval_each(moebius_session *session, const int32_t *ids, size_t n,
                                                     size_t first, moebius_logits_fn *fn, void *user,
                                                     moebius_error *error);

/* Asked again and again during eval, in each layer of each chunk at least, by the thread that called; true ends it with
 * MOEBIUS_CANCELLED, which leaves the session as failures do. NULL: never asked. */
typedef bool moebius_cancel_fn(void *user);
MOEBIUS_API void moebius_session_set_cancel(moebius_session *session, moebius_cancel_fn *is_wanted, void *user);

/* [n_vocab] after the last token, until the next eval; NULL before the first. */
MOEBIUS_API const float *moebius_session_logits(const moebius_session *session);

/* The tokens so far, moebius_session_pos of them; borrowed, until the session changes. */
MOEBIUS_API const int32_t *moebius_session_tokens(const moebius_session *session);

/* Bytes of device memory that the caches and recurrent state take. */
MOEBIUS_API size_t moebius_session_state_bytes(const moebius_session *session);

/* Forgets everything from position pos on (0 starts afresh) and returns the position it is then at: pos, or 0 where
 * only the start can be gone back to. That is so for models with recurrent layers, and for models with windowed layers
 * when pos lies more than a batch, or 512 tokens, behind the furthest position computed, or before that of a loaded
 * state. */
MOEBIUS_API int64_t moebius_session_truncate(moebius_session *session, int64_t pos);

/* The session to and from a file: tokens, the logits after the last, and the layers' state, so that a loaded session
 * goes on with the bits of the saved one. What samplers remember is not in it. A file appears under its name when
 * complete.
 *
 * A file may be loaded into a session of another context size or batch, if the model and the type of the KV cache are
 * the same and the tokens fit. What is damaged, of another model or type, or too long is refused, and leaves the
 * session as it was. (A file that can be read once and not again, or changes meanwhile, leaves it empty.) */
MOEBIUS_API moebius_status moebius_session_save(moebius_session *session, const char *path, moebius_error *error);
MOEBIUS_API moebius_status moebius_session_load(moebius_session *session, const char *path, moebius_error *error);
/* How many tokens a saved session has; from its header alone. */
MOEBIUS_API moebius_status moebius_saved_n_tok(const char *path, int64_t *n_tok, moebius_error *error);

/* Activations that meet a matrix of the model's file: row t is scale * x[t * stride + 0 .. k). A tensor of routed
 * experts or of heads has several matrices. */
typedef struct moebius_product {
    const char *tensor; /* its name; borrowed from the engine */
    int64_t n_matrix, matrix;
    const float *x;
    int64_t k, n_row, stride;
    float scale;
} moebius_product;

/* Looking inside, for tests and tools: called during eval, costs time. NULL turns it off. */
typedef struct moebius_trace {
    /* experts that the router chose in a layer (counting MoE layers only) for n_tok tokens: ids[t * n_used + rank],
     * best first */
    void (*routed)(void *user, int moe_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    /* the same, predicted one layer before from the residual stream of then; may be NULL */
    void (*predicted)(void *user, int moe_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    /* the residual stream [n_embd] of the chunk's last token after a layer */
    void (*hidden)(void *user, int64_t layer, const float *x);
    /* what is multiplied with matrices of weights (routers apart): of each matrix its rows in the order of the tokens
     */
    void (*product)(void *user, const moebius_product *p);
    void *user;
} moebius_trace;
MOEBIUS_API void moebius_session_trace(moebius_session *session, const moebius_trace *trace);

/* ---- sampling ------------------------------------------------------------------------------------------------ */

typedef struct moebius_sampler moebius_sampler;

typedef struct moebius_sampler_options {
    float temperature;    /* 0: always the likeliest token */
    int top_k;            /* keep the k likeliest; 0: all */
    float top_p;          /* keep the likeliest that together have this probability; 1: all */
    float min_p;          /* drop those less likely than this share of the likeliest; 0: none */
    float repeat_penalty; /* 1: none */
    int repeat_last_n;    /* tokens that the penalty looks back */
    uint64_t seed;
} moebius_sampler_options;

MOEBIUS_API moebius_sampler_options moebius_default_sampler_options(void);
MOEBIUS_API moebius_status moebius_sampler_open(moebius_sampler **out, const moebius_engine *engine,
                                                const moebius_sampler_options *options, moebius_error *error);
MOEBIUS_API void moebius_sampler_close(moebius_sampler **sampler);
/* The next token for logits [n_vocab]. Allocates nothing. */
MOEBIUS_API int32_t moebius_sampler_pick(moebius_sampler *sampler, const float *logits);
/* Tells the sampler what was appended to the text. */
MOEBIUS_API void moebius_sampler_accept(moebius_sampler *sampler, int32_t id);

#ifdef __cplusplus
}
#endif

#endif
