/* moebius: runs Mixture-of-Experts language models from GGUF files.
 *
 *     moebius_engine *engine;                      a loaded model: weights, tokenizer, device, and room for texts
 *     moebius_session *session;                    one text: its tokens, and its state in the model
 *     moebius_engine_open(&engine, "model.gguf", NULL, &error);
 *     moebius_session_open(&session, engine, NULL, &error);
 *     moebius_session_eval(session, ids, n, &error);
 *     const float *logits = moebius_session_logits(session);
 *
 * Every fallible function returns a status, 0 for success, and fills *error (which may be NULL) with a message. If it
 * fails to open something, the result is NULL. Every close function accepts a pointer to NULL and leaves NULL behind.
 * Strings are UTF-8. Get structs of options from moebius_default_*(); NULL means the defaults. "Borrowed" data stays
 * its owner's and must not be freed.
 *
 * A batch is the tokens of one forward pass, which may belong to several sessions: at most n_batch tokens of each.
 *
 * Thread-safety: an engine and its sessions may be used from one thread at a time; only moebius_engine_interrupt may be
 * called by any thread meanwhile. If one of a process's engines has a memory limit (ram_bytes other than -1), all of
 * them may be used from only one thread at a time, because allocations of others make it give memory back. A sampler
 * may be used from one thread at a time, independently of its engine. Vocabularies, templates, prompts and grammars are
 * read-only and may be shared between threads. */
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

/* Structs may gain fields at their end. So a caller passes the size of each struct in the header that it was compiled
 * with: the functions defined at the end of this header do that. Fields that the caller does not know have their
 * defaults; fields that the library does not know are MOEBIUS_USAGE unless they are zero. Other languages call the
 * forms that end in _sized. (moebius_car, moebius_logit_bias, moebius_logprob and moebius_template_var never change.)
 */
#define MOEBIUS_INLINE static inline

typedef enum moebius_status {
    MOEBIUS_OK = 0,
    MOEBIUS_FAIL = 1,        /* none of the following */
    MOEBIUS_USAGE = 2,       /* an argument or option makes no sense */
    MOEBIUS_IO = 3,          /* a file can't be read or written */
    MOEBIUS_FORMAT = 4,      /* a file is damaged or not what it should be */
    MOEBIUS_UNSUPPORTED = 5, /* a file is fine, but this version can't run it */
    MOEBIUS_NOMEM = 6,       /* the system has no more memory, or ram_bytes allows no more */
    MOEBIUS_LIMIT = 7,       /* something is over a limit, such as the context */
    MOEBIUS_CHECK = 8,       /* a self-check found a difference */
    MOEBIUS_CANCELLED = 9    /* a callback ended the work */
} moebius_status;

enum { MOEBIUS_ERROR_BYTES = 768 };

typedef struct moebius_error {
    moebius_status status;
    char text[MOEBIUS_ERROR_BYTES]; /* a message in one line; control characters are escaped (\x1b) */
} moebius_error;

MOEBIUS_API const char *moebius_version(void);    /* "MAJOR.MINOR.PATCH" */
MOEBIUS_API const char *moebius_build_info(void); /* devices, readers and architectures of this build, human-readable */

/* ---- engine -------------------------------------------------------------------------------------------------- */

typedef struct moebius_engine moebius_engine;
typedef struct moebius_ranks moebius_ranks; /* processes that share a model's routed experts: further down */

enum moebius_log_level { MOEBIUS_LOG_WARN, MOEBIUS_LOG_INFO, MOEBIUS_LOG_DEBUG };

/* How experts are read while the model runs: with io_uring, or with threads that call pread. AUTO takes the best that
 * the system permits; the others are an error if unavailable. */
typedef enum moebius_reader { MOEBIUS_READER_AUTO, MOEBIUS_READER_IO_URING, MOEBIUS_READER_PREAD } moebius_reader;

/* Whether reads of experts bypass the page cache (O_DIRECT). AUTO does so if the file system permits it; ON is an error
 * if it does not. */
typedef enum moebius_direct { MOEBIUS_DIRECT_AUTO, MOEBIUS_DIRECT_ON, MOEBIUS_DIRECT_OFF } moebius_direct;

/* Whether to prefetch the experts that the next layer will probably choose while the drive is idle. AUTO compares both
 * ways now and then while decoding, and continues with the faster one. */
typedef enum moebius_prefetch { MOEBIUS_PREFETCH_AUTO, MOEBIUS_PREFETCH_ON, MOEBIUS_PREFETCH_OFF } moebius_prefetch;

/* What the engine does on a machine with several NUMA nodes. AUTO binds each thread to the processors of one node, and
 * places each row of the weights and each head of a KV cache in the memory of the node whose threads compute it. The
 * engine's own threads stay bound. The caller's thread is bound within moebius_engine_open, moebius_engine_measure_roof
 * and moebius_session_eval*, and unbound when they return; callbacks run while it is bound, and threads that they start
 * inherit the binding. Results do not depend on this. With one node, or in a build without hwloc, nothing is bound. */
typedef enum moebius_numa { MOEBIUS_NUMA_AUTO, MOEBIUS_NUMA_OFF } moebius_numa;

typedef struct moebius_engine_options {
    int n_threads;  /* 0: one for each processor that the process may use. At most that many decode */
    bool reference; /* float activations on dequantised weights: slow and exact */
    bool check_ops; /* run every operation on the reference device, too, and compare */
    /* Compute experts of batches with more tokens than this by sorted dispatch. 0: the tuned value, else the default.
     */
    int64_t sort_cutoff;
    /* A file written by `moebius tune`, which affects speed only. NULL: the measurements in the user's cache directory;
     * the first run with a new processor or weight type measures for 0.1 s. */
    const char *tuning;
    /* Limit of the process's peak memory in bytes. 0: what it has, and most of what the system and its control groups
     * have free when the model is opened. -1: no limit. Only one engine at a time has a limit: others opened with 0
     * meanwhile have none. */
    int64_t ram_bytes;
    /* Memory for routed experts in bytes; experts without a slot are read when needed. 0: see expert_ram_share. If that
     * is 0, too: as much as all experts need, or as ram_bytes leaves. */
    int64_t expert_ram_bytes;
    double expert_ram_share; /* memory for routed experts as a share of what all of them need, 0 to 1 */
    const char *policy;      /* eviction policy for experts: "lfru" (NULL), "lru" or "lfu" */
    /* The file with counts of chosen experts, kept from run to run for a warm start. NULL: none; "": a file in the
     * user's cache directory. */
    const char *usage;
    const char *const *store_dirs; /* the directories of a prepared store of this model, [n_store_dirs] */
    int n_store_dirs;
    moebius_reader reader;
    moebius_direct direct;
    moebius_prefetch prefetch;
    moebius_numa numa;
    /* Put weights into the huge pages that the system has reserved (hugetlb), as far as they suffice; a warning in the
     * log says how many are missing. MOEBIUS_USAGE with a memory limit, because such pages cannot be returned expert by
     * expert, and if threads are bound to several NUMA nodes. */
    bool hugetlb;
    /* Make runs with cache-aware routing (moebius_car) repeatable to the bit: routing follows what a cache of the same
     * size would hold, independent of when reads finish, and nothing is prefetched. MOEBIUS_USAGE with ram_bytes,
     * because the number of experts in memory then differs from run to run. */
    bool deterministic;
    /* Memory for the keys, values and recurrent state of all sessions with one type of KV cache, in bytes. 0: half of
     * the machine's memory (if a GPU runs the layers, all of the GPU's), or a sixteenth of a limit on addresses
     * (RLIMIT_AS), or what one session needs if that is more; in any case within ram_bytes. */
    int64_t state_bytes;
    /* Sessions of models with recurrent or windowed layers can go back (moebius_session_truncate) only to checkpoints.
     * There is one every checkpoint_interval tokens (0: 512; less than 0: none), at the end of each prompt, and where a
     * session was forked, within checkpoint_bytes of state_bytes (0: an eighth). The least useful ones are evicted
     * first. */
    int64_t checkpoint_interval;
    int64_t checkpoint_bytes;
    /* Receives lines of the log, as printable as the text of moebius_error, from any thread. NULL: no log. */
    void (*log)(void *user, enum moebius_log_level level, const char *line);
    /* Receives the bytes read so far while the model is loaded, from any thread. May be NULL. */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user; /* for log and progress */
    /* The devices, separated by commas: "cpu:N" for N threads, "vulkan:N" for GPU N of moebius_list_gpus. The first one
     * runs the layers, and all compute routed experts, unless `split` is "stages". Their threads are not bound to NUMA
     * nodes. NULL: one device with n_threads threads; otherwise n_threads must be 0. */
    const char *devices;
    /* How to divide routed experts among several devices: "experts" (NULL), "layers", "last:N" or "random", optionally
     * followed by ":A,B,...", the devices' shares, or for random a seed. Results do not change. "stages" divides the
     * layers themselves (pipeline stages): each device computes consecutive layers, and has their weights, experts and
     * caches; ":A,B,..." are shares of the layers, otherwise memory and speed decide. NULL means "stages" if all
     * devices are GPUs with their own memory, the first one has no room for the whole model, and together they have
     * room for what cannot be read when needed. */
    const char *split;
    /* Processes that share the routed experts; this one has the text. Without a given limit, memory is first limited to
     * this process's share of what is free on the machine. NULL: this process is alone. */
    moebius_ranks *ranks;
    /* "auto": the best GPU of moebius_list_gpus, software drivers excluded, if it multiplies faster than the processor.
     * It gets the whole model if that fits; otherwise several GPUs with their own memory that together have room for it
     * divide the layers, as with split "stages"; otherwise it gets the layers and the experts that fit, and the
     * processor has the others. A line of the log says what was chosen and why. "0", "1", ...: the same with that GPU.
     * NULL, "none": none. Not with `devices`; n_threads are the processor's. */
    const char *gpu;
    /* Memory limit of each GPU in bytes. 0: what its driver gives; for GPUs in the machine's memory, what ram_bytes
     * leaves. */
    int64_t vram_bytes;
    /* Memory for replicas: copies of the hottest experts at further places, from which each layer's call chooses so
     * that all places finish at the same time. In bytes for all places together, or as a share (0 or more) of what all
     * experts need; at most what the experts leave. Both 0: none. Results do not change, except with a GPU among the
     * places; `deterministic` then lets each token's own choice decide. */
    int64_t replica_bytes;
    double replica_share;
    /* The experts of this many last layers are the last device's, and all others the first one's; less than 0: of none.
     * A single GPU (`gpu`, or alone in `devices`) gets a processor device beside it. 0: see `split`. */
    int64_t n_cpu_moe;
    /* Measure how long operations take on GPUs (moebius_engine_op_stats), with a timestamp per dispatch, which costs a
     * little time. */
    bool time_gpus;
    /* Also load the model's layers for multi-token prediction, if the file has some that can be used (moebius_has_mtp),
     * for moebius_guess_batch. They take memory like the other layers, and a few more products per token. */
    bool mtp;
    /* Metadata that replaces or completes the file's: [n_override] of "KEY=VALUE" or "KEY=TYPE:VALUE", TYPE being int,
     * float, bool or str. MOEBIUS_USAGE for a key that this model does not read. */
    const char *const *overrides;
    int n_override;
    /* Extends the trained context by this factor, above 1, with YaRN (Peng et al., 2023), for models trained for it.
     * 0: don't. MOEBIUS_USAGE if the file scales the positions already. */
    double yarn;
} moebius_engine_options;

MOEBIUS_INLINE moebius_engine_options moebius_default_engine_options(void);

/* Loads the model at `path`, any part of a split set. What the options point to is borrowed until the engine is closed.
 */
MOEBIUS_INLINE moebius_status moebius_engine_open(moebius_engine **out, const char *path,
                                                  const moebius_engine_options *options, moebius_error *error);
MOEBIUS_API void moebius_engine_close(moebius_engine **engine); /* its sessions must be closed before */

MOEBIUS_API int32_t moebius_n_vocab(const moebius_engine *engine);     /* tokens in the vocabulary */
MOEBIUS_API int64_t moebius_n_ctx_train(const moebius_engine *engine); /* the context that the model was trained for */
MOEBIUS_API int moebius_n_threads(const moebius_engine *engine);       /* of all devices */
MOEBIUS_API int moebius_n_memory_node(const moebius_engine *engine);   /* nodes that have threads: 1 or more */
MOEBIUS_API const char *moebius_arch(const moebius_engine *engine);    /* the file's general.architecture; borrowed */
MOEBIUS_API int64_t moebius_n_layer(const moebius_engine *engine);     /* of the forward pass */
MOEBIUS_API bool moebius_has_mtp(const moebius_engine *engine);   /* layers for multi-token prediction are loaded */
MOEBIUS_API int64_t moebius_n_embd(const moebius_engine *engine); /* the width of the residual stream */
MOEBIUS_API int64_t moebius_engine_sort_cutoff(const moebius_engine *engine); /* the one in force */

/* The routed experts of a layer. Layers are counted from 0, MoE layers alone. */
typedef struct moebius_moe_layer {
    int64_t n_expert;    /* how many there are */
    int64_t n_used;      /* how many each token gets */
    uint64_t slot_bytes; /* memory of one expert */
    int group;           /* layers with experts of one shape share a slot pool: its number, from 0 */
} moebius_moe_layer;
MOEBIUS_API int moebius_n_moe_layer(const moebius_engine *engine);
MOEBIUS_INLINE moebius_moe_layer moebius_moe_layer_at(const moebius_engine *engine, int layer);

/* A hash of the files' directories, which identifies the model. */
MOEBIUS_API uint64_t moebius_fingerprint(const moebius_engine *engine);

/* Whether moebius_engine_experts also counts choices in layers whose experts are all in memory; off by default. The
 * choice of such a layer is then read back from its device, which costs a little time, and more on a GPU. */
MOEBIUS_API void moebius_engine_count_experts(moebius_engine *engine, bool on);

/* How often the router of a MoE layer chose each of its experts since the engine was opened, and which are in memory at
 * place 0: n_chosen and in_memory [n_expert], each of which may be NULL. In layers whose experts are all in memory and
 * not divided among places, choices count only while moebius_engine_count_experts is on. False: there is no such layer.
 */
MOEBIUS_API bool moebius_engine_experts(const moebius_engine *engine, int layer, uint64_t *n_chosen, bool *in_memory);

/* Empties the slots of experts that are read when needed, and forgets which were used, so that what follows starts
 * cold. */
MOEBIUS_API void moebius_engine_forget_experts(moebius_engine *engine);

/* Work done since the engine was opened, and memory in use now. */
typedef struct moebius_counters {
    uint64_t n_direct, n_sorted; /* MoE layers computed by direct and by sorted dispatch, once per batch */
    uint64_t n_expert_rows;      /* pairs of a token and an expert computed */
    uint64_t n_experts;          /* the experts in these pairs, once per layer and batch */

    /* Experts that layers asked for, once per layer and batch, in layers whose experts are not all in memory. A hit was
     * in memory, a miss had to be read. n_decode_*: those of batches of one token. */
    uint64_t n_expert_hit, n_expert_miss, n_decode_hit, n_decode_miss;
    uint64_t n_expert_evicted;    /* experts evicted from their slot */
    uint64_t n_expert_read;       /* experts read */
    uint64_t n_expert_read_bytes; /* their bytes */
    uint64_t n_prefetched;        /* experts read because the next layer's choice was predicted */
    uint64_t n_prefetch_used;     /* those of them that the next layer asked for */

    /* cache-aware routing */
    uint64_t n_substituted;      /* choices replaced by another expert */
    double substitute_ratio_sum; /* the sum of the substitutes' scores over those of the experts they replace */
    int64_t n_spared;            /* those of n_decode_hit that would be misses without substitutes */
    uint64_t n_backfilled;       /* replaced experts read in idle time */

    int64_t stall_ns;   /* waiting for reads with nothing to compute */
    int64_t arrival_ns; /* checking what was read, and packing what was not read into its slot */

    uint64_t expert_bytes;     /* memory for routed experts now, including a cache and reads in flight */
    uint64_t expert_all_bytes; /* memory that all of them would need */
    uint64_t weight_bytes;     /* memory for all other weights */
    uint64_t context_bytes;    /* memory for caches and recurrent state of all sessions */
    uint64_t work_bytes;       /* memory for activations */
    uint64_t state_bytes;      /* of context_bytes, what sessions and checkpoints hold, counting shared memory once */
    uint64_t state_max_bytes;  /* limit of state_bytes; 0 before the first session */

    /* Commands to GPUs: dispatches, barriers between dependent ones, submissions to their queues. */
    uint64_t n_gpu_dispatch, n_gpu_barrier, n_gpu_submit;

    /* For experts read for several tokens at once, when drives work at full depth: the bytes, and the time during which
     * such reads were in flight. Their quotient is the drives' speed. */
    uint64_t n_many_read_bytes;
    int64_t many_read_ns;

    uint64_t roof_bytes; /* of work_bytes, what moebius_engine_measure_roof has used, and keeps for the next call */
} moebius_counters;
/* To be called by the thread that evaluates, and not from callbacks of an evaluation, because other devices may be
 * computing then. The same goes for moebius_place_at and moebius_place_did. */
MOEBIUS_INLINE moebius_counters moebius_engine_counters(const moebius_engine *engine);

/* A device of the engine, and what it holds now. The figures above are the sums over devices in the host's memory. */
typedef struct moebius_device {
    const char *name;       /* "cpu:2"; borrowed from the engine */
    uint64_t weight_bytes;  /* all weights but routed experts */
    uint64_t expert_bytes;  /* slots for routed experts */
    uint64_t context_bytes; /* caches and recurrent state */
    uint64_t work_bytes;    /* activations */
    int64_t first_layer; /* it computes n_layer layers from this one on, except for experts that other devices have */
    int64_t n_layer;     /* 0: it computes only experts */
    bool is_gpu;
} moebius_device;

/* False: there is no device i. */
MOEBIUS_INLINE bool moebius_engine_device(const moebius_engine *engine, int i, moebius_device *out);

/* A GPU listed by the Vulkan loader, or a driver that computes on the processor in the same way. */
typedef struct moebius_gpu {
    const char *kind;      /* "discrete", "integrated", "virtual", "software" or "other" */
    uint64_t memory_bytes; /* for weights */
    uint64_t budget_bytes; /* what its driver currently gives this process of that */
    int api_version[3];    /* of Vulkan: major, minor, patch */
    bool shares_memory;    /* the memory is the machine's */
    bool is_usable;        /* as "vulkan:N" in moebius_engine_options.devices */
    bool is_auto;          /* moebius_engine_options.gpu "auto" would take it, if it is fast enough */
    char name[256], driver[256];
    char why_not[256];     /* the reason, if it is not usable */
    bool has_upload_queue; /* weights are uploaded on a separate queue, beside operations */
} moebius_gpu;
/* Fills up to n_max of gpus, in the order of their numbers, and returns how many there are. If there are none, error,
 * which may be NULL, says why. */
MOEBIUS_INLINE int moebius_list_gpus(moebius_gpu *gpus, int n_max, moebius_error *error);

/* Operations of one kind since the engine was opened. */
typedef struct moebius_op_stats {
    const char *name; /* borrowed */
    uint64_t n;       /* how often it ran */
    uint64_t n_ns;    /* how long that took, in nanoseconds; on a GPU only with moebius_engine_options.time_gpus */
    uint64_t n_bytes; /* bytes of weights and state that it had to move */
    uint64_t n_int8;  /* multiply-adds on bytes that it had to do, except those in n_tile */
    uint64_t n_float; /* multiply-adds on floats that it had to do */
    uint64_t n_tile;  /* multiply-adds on bytes that a matrix unit (AMX) had to do */
} moebius_op_stats;
enum { MOEBIUS_MAX_OP = 64 };
/* Fills stats and returns how many kinds there are, at most MOEBIUS_MAX_OP. */
MOEBIUS_INLINE int moebius_engine_op_stats(const moebius_engine *engine, moebius_op_stats stats[MOEBIUS_MAX_OP]);
/* The same for device i of moebius_engine_device; 0: there is no such device. Waits for a GPU and reads its counters.
 */
MOEBIUS_INLINE int moebius_device_op_stats(const moebius_engine *engine, int i, moebius_op_stats stats[MOEBIUS_MAX_OP]);

/* Ends the running evaluation, if there is one, with MOEBIUS_CANCELLED, within some 50 ms (or once a parked session is
 * back, if that takes longer). May be called from any thread and from signal handlers. */
MOEBIUS_API void moebius_engine_interrupt(moebius_engine *engine);

/* ---- several processes ----------------------------------------------------------------------------------------- */

/* Processes that mpirun started together, on one machine or several, share the routed experts of one model. Rank 0 has
 * the text: it opens an engine with moebius_engine_options.ranks and continues as usual. All others call
 * moebius_ranks_serve with the same model and options, and compute what rank 0 asks for until it closes its ranks.
 * Texts and logits are the same to the bit as those of one process. */

/* Whether this process is one of several that were started together. */
MOEBIUS_API bool moebius_ranks_are_wanted(void);

/* Connects to the other processes. The first error is reported by all of them. Call it once, before the process creates
 * threads; SIGTERM is blocked from then on, and ends the process after a moment. `lost` (may be NULL) is called once,
 * from any thread, when another process has died or no longer responds while it is waited for, and need not return: no
 * evaluation succeeds after that. MOEBIUS_UNSUPPORTED in a build without MPI. */
MOEBIUS_API moebius_status moebius_ranks_open(moebius_ranks **out, void (*lost)(void *user, const char *sentence),
                                              void *user, moebius_error *error);
/* On rank 0: ends the others. To be called after the engine is closed. */
MOEBIUS_API void moebius_ranks_close(moebius_ranks **ranks);
MOEBIUS_API int moebius_rank(const moebius_ranks *ranks);   /* this process: 0 has the text */
MOEBIUS_API int moebius_n_rank(const moebius_ranks *ranks); /* 2 or more */
/* The link from rank 0 to another rank, as measured at the start: the round trip of a few bytes; the rate of large
 * messages. */
MOEBIUS_API double moebius_rank_round_trip_s(const moebius_ranks *ranks, int rank);
MOEBIUS_API double moebius_rank_bytes_per_s(const moebius_ranks *ranks, int rank);

/* Computes for rank 0 until that ends. Rank 0 also reports errors here. */
MOEBIUS_INLINE moebius_status moebius_ranks_serve(moebius_ranks *ranks, const char *path,
                                                  const moebius_engine_options *options, moebius_error *error);

/* What the machine can do per second now with the engine's threads. */
typedef struct moebius_roof {
    double read_bytes_per_s; /* bytes read from memory */
    double int8_per_s;       /* multiply-adds on bytes */
    double float_per_s;      /* multiply-adds on floats */
    double tile_per_s;       /* multiply-adds on bytes by a matrix unit (AMX); 0: products use none */
} moebius_roof;

/* What a GPU can do now. */
typedef struct moebius_gpu_roof {
    double bytes_per_s; /* bytes read and written by copies within its memory */
    double dispatch_s;  /* seconds that an empty dispatch takes which waits for the one before */
} moebius_gpu_roof;
/* Measures device i, a GPU. Takes at most some tenths of a second, and meanwhile 512 MiB of the GPU's memory or an
 * eighth of what is free. MOEBIUS_USAGE if the device is not a GPU. */
MOEBIUS_INLINE moebius_status moebius_device_measure_roof(moebius_engine *engine, int i, moebius_gpu_roof *roof,
                                                          moebius_error *error);

/* Takes some 50 ms. The first call also allocates 256 MiB of memory or more, 32 MiB per thread, which the engine keeps
 * until it is closed. */
MOEBIUS_INLINE moebius_status moebius_engine_measure_roof(moebius_engine *engine, moebius_roof *roof,
                                                          moebius_error *error);
/* How experts are read, human-readable: "io_uring, O_DIRECT"; "" if all are in memory. Borrowed. */
MOEBIUS_API const char *moebius_expert_reader(const moebius_engine *engine);

/* Reads from one source of experts: source 0 is the model's file, the others are the directories of the prepared store.
 */
typedef struct moebius_source {
    const char *path;   /* borrowed from the engine */
    uint64_t n_reads;   /* reads that arrived */
    uint64_t n_bytes;   /* their bytes */
    double bytes_per_s; /* of a directory while it was busy; 0: unknown */
    bool is_gone;       /* it failed, and is no longer read */
} moebius_source;

/* False: there is no source i. */
MOEBIUS_INLINE bool moebius_engine_source(const moebius_engine *engine, int i, moebius_source *out);

/* Where routed experts are computed: place 0 is the device that runs the layers; the others are the further devices
 * that the engine was opened with. Each has its own experts in its own memory; or place 0 is a cache, which computes
 * what it currently holds, and the others have all experts. */
typedef struct moebius_place {
    const char *name;    /* "place 1 (cpu:4)"; borrowed from the engine */
    uint64_t n_expert;   /* its experts over all layers; for a cache, those that there is memory for now */
    uint64_t bytes;      /* memory for them now */
    uint64_t all_bytes;  /* memory that all of them would need; for a cache, all experts of the model */
    double bytes_per_s;  /* bytes of experts per second of compute time; 0: unknown */
    bool is_cache;       /* it holds copies of other places' experts */
    bool is_off_decode;  /* the cache is not used for decoding, because that was measured to be slower */
    bool is_off_prompts; /* the same for prompts: passes of more than 16 tokens */
    uint64_t n_replica;  /* those of its experts that other places have, too */
} moebius_place;

/* The number of places: 1 if the experts are not divided, 0 for a model without experts. */
MOEBIUS_API int moebius_n_place(const moebius_engine *engine);
/* Describes place `i`; only while no pass runs. An error is that of a place that does not answer. */
MOEBIUS_INLINE moebius_status moebius_place_at(const moebius_engine *engine, int i, moebius_place *out,
                                               moebius_error *error);

/* What a place did since the engine was opened. With a single place, calls, rows and time are not counted, and layers
 * whose experts are all in memory count no hits. */
typedef struct moebius_place_stats {
    uint64_t n_call;        /* calls of a layer that had work for the place */
    uint64_t n_row;         /* pairs of a token and an expert computed */
    uint64_t n_found;       /* experts in memory when a call asked for them, once per call */
    uint64_t n_read;        /* experts that it had to wait for, once per call */
    uint64_t n_substituted; /* choices replaced by another expert */
    int64_t compute_ns;     /* computing experts */
    int64_t read_wait_ns;   /* waiting for reads with nothing to compute */
    int64_t finish_wait_ns; /* place 0 waiting for this one's results; 0 for place 0 */
    uint64_t to_bytes;      /* of rows and choices sent to the place; 0 for place 0 */
    uint64_t from_bytes;    /* of results sent back; 0 for place 0 */
    /* For a cache: */
    uint64_t n_missed;      /* experts that calls asked for and other places computed, once per call */
    uint64_t n_moved;       /* experts that were copied or read into it */
    uint64_t moved_bytes;   /* of these, in slots */
    int64_t move_ns;        /* time that moves took between passes */
    uint64_t n_replica_row; /* of n_row, pairs whose expert other places have, too */
} moebius_place_stats;

/* What place `i` did in one MoE layer (counting MoE layers only), or in all of them (layer -1); only while no pass
 * runs. */
MOEBIUS_INLINE moebius_status moebius_place_did(const moebius_engine *engine, int i, int layer,
                                                moebius_place_stats *out, moebius_error *error);

/* The places that have an expert of a MoE layer, except a cache: bit i is place i. 0: there is no such expert. */
MOEBIUS_API uint64_t moebius_expert_places(const moebius_engine *engine, int layer, int64_t expert);

/* ---- text and tokens ----------------------------------------------------------------------------------------- */

typedef struct moebius_vocab
    moebius_vocab; /* borrowed from an engine, or opened separately; shareable between threads */

MOEBIUS_API const moebius_vocab *moebius_engine_vocab(const moebius_engine *engine);

/* Opens only the tokenizer of a GGUF file, which need not hold tensors. Close it with moebius_vocab_close. */
MOEBIUS_API moebius_status moebius_vocab_open(moebius_vocab **out, const char *path, moebius_error *error);
MOEBIUS_API void moebius_vocab_close(moebius_vocab **vocab);

/* Converts n bytes of text to tokens. add_special: add BOS and EOS as the file says. parse_special: parse the texts of
 * special tokens as those tokens. *ids [*n_ids] is owned by the caller (moebius_free). */
MOEBIUS_API moebius_status moebius_tokenize(const moebius_vocab *vocab, const char *text, size_t n, bool add_special,
                                            bool parse_special, int32_t **ids, size_t *n_ids, moebius_error *error);

/* Converts n tokens to text, NUL-terminated and owned by the caller (moebius_free). special: show special tokens as
 * their text; otherwise they are left out. *n_text (may be NULL) gets the text's bytes without the NUL. */
MOEBIUS_API moebius_status moebius_detokenize(const moebius_vocab *vocab, const int32_t *ids, size_t n, bool special,
                                              char **text, size_t *n_text, moebius_error *error);

/* The n bytes of one token within a text; they may be part of a character. Borrowed. */
MOEBIUS_API const char *moebius_token_piece(const moebius_vocab *vocab, int32_t id, bool special, size_t *n);
MOEBIUS_API bool moebius_token_is_end(const moebius_vocab *vocab, int32_t id); /* the token ends a text or a turn */
MOEBIUS_API int32_t moebius_vocab_size(const moebius_vocab *vocab);            /* valid ids are below this */
MOEBIUS_API int32_t moebius_token_bos(const moebius_vocab *vocab);             /* -1: there is none */
MOEBIUS_API int32_t moebius_token_eos(const moebius_vocab *vocab);             /* -1: there is none */
MOEBIUS_API bool moebius_vocab_adds_bos(const moebius_vocab *vocab);           /* texts begin with it */
/* Special tokens with which code models fill a gap in a text (fill-in-the-middle). The prompt is <PREFIX>, the text
 * before the gap, <SUFFIX>, the text after it, and <MIDDLE>; the answer belongs into the gap. Other files may come
 * first: <REPOSITORY> and its name, then <FILE>, a name and the text of each. */
typedef enum moebius_fill {
    MOEBIUS_FILL_PREFIX,
    MOEBIUS_FILL_SUFFIX,
    MOEBIUS_FILL_MIDDLE,
    MOEBIUS_FILL_PAD,
    MOEBIUS_FILL_REPOSITORY,
    MOEBIUS_FILL_FILE
} moebius_fill;
MOEBIUS_API int32_t moebius_token_fill(const moebius_vocab *vocab, moebius_fill fill); /* -1: there is none */
MOEBIUS_API void moebius_free(void *p);                                                /* accepts NULL */

/* ---- chat templates ------------------------------------------------------------------------------------------- */

/* The text of a template in the model's file, borrowed; NULL: there is none of this name. A file may have several:
 * `name` selects one, such as "tool_use"; NULL means the default. */
MOEBIUS_API const char *moebius_vocab_template(const moebius_vocab *vocab, const char *name);

typedef struct moebius_template moebius_template; /* read-only: shareable between threads */

/* Parses a template of n bytes. `vocab` provides the special tokens' texts (bos_token and so on) and is borrowed until
 * the template is closed; NULL: there are none. */
MOEBIUS_API moebius_status moebius_template_open(moebius_template **out, const char *source, size_t n,
                                                 const moebius_vocab *vocab, moebius_error *error);
MOEBIUS_API void moebius_template_close(moebius_template **tmpl);
/* The text that it was parsed from, NUL-terminated, borrowed. */
MOEBIUS_API const char *moebius_template_source(const moebius_template *tmpl);

/* A variable of a template, with its value as JSON text. */
typedef struct moebius_template_var {
    const char *name, *json;
} moebius_template_var;

/* Input of a template, as JSON text in the form of OpenAI's and Hugging Face's APIs. */
typedef struct moebius_template_input {
    const char *messages;             /* an array of objects: role, content, reasoning_content, tool_calls, ... */
    const char *tools;                /* an array; NULL: none */
    bool no_generation_prompt;        /* end with the last message, without the beginning of an answer */
    const moebius_template_var *vars; /* more variables, such as enable_thinking */
    size_t n_vars;
} moebius_template_input;

/* A rendered template: the prompt's text, and which parts of it the template itself wrote. Only in these may the texts
 * of special tokens become tokens. What came from messages, tools and variables stays text, so no user and no document
 * can end a turn or begin one; but the usual role names count as the template's, because some templates make special
 * tokens of them. (User-defined tokens of a vocabulary, as <think> often is, are ordinary text and are parsed
 * everywhere, except those of the form <|...|>.) */
typedef struct moebius_prompt moebius_prompt; /* read-only: shareable between threads */

/* On failure *prompt is NULL. Time and memory of templates are limited. */
MOEBIUS_INLINE moebius_status moebius_template_render(const moebius_template *tmpl, const moebius_template_input *input,
                                                      moebius_prompt **prompt, moebius_error *error);
MOEBIUS_API void moebius_prompt_close(moebius_prompt **prompt);
/* The text, NUL-terminated, borrowed; n may be NULL. Tokenizing it with parse_special would undo the protection
 * described above. */
MOEBIUS_API const char *moebius_prompt_text(const moebius_prompt *prompt, size_t *n);
/* Its tokens, with BOS if the template writes it. *ids is owned by the caller (moebius_free). */
MOEBIUS_API moebius_status moebius_prompt_tokenize(const moebius_prompt *prompt, const moebius_vocab *vocab,
                                                   int32_t **ids, size_t *n_ids, moebius_error *error);

/* The model's format of tool calls: "hermes", "qwen3-coder", "gpt-oss" and so on, or "generic" if the template shows no
 * format of its own. */
MOEBIUS_API const char *moebius_template_family(const moebius_template *tmpl);

/* Which calls a grammar is for. */
typedef struct moebius_call_grammar_input {
    const char *tools; /* as in moebius_template_input */
    const char *name;  /* the only tool that may be called; NULL: any */
    bool is_required;  /* the answer must be calls, after the reasoning; otherwise the model may call or not */
    bool is_single;    /* only one call; otherwise as many as the family's format allows in a row */
    const char
        *prompt; /* for a whole answer: the prompt's text, whose end may have begun the reasoning; NULL: it has not */
    const char *schema; /* a JSON schema, an object: if no call is required, the answer is calls or an instance of it,
                           after the reasoning; NULL: anything */
} moebius_call_grammar_input;

/* Makes a grammar (GBNF with %json{SCHEMA} and %token"TEXT") of the model's calls of the tools. If calls are required,
 * or a schema is given, the whole answer follows it. Otherwise the grammar applies from *trigger on (borrowed from the
 * template), including that text. *grammar is owned by the caller (moebius_free). */
MOEBIUS_INLINE moebius_status moebius_template_call_grammar(const moebius_template *tmpl,
                                                            const moebius_call_grammar_input *input, char **grammar,
                                                            const char **trigger, moebius_error *error);

/* Parses an answer while it is generated into reasoning, content and tool calls, and finds its end: a token that ends a
 * text or that the template writes after an answer. */
typedef struct moebius_reply moebius_reply;
typedef enum moebius_reply_part {
    MOEBIUS_REPLY_CONTENT,
    MOEBIUS_REPLY_REASONING,
    MOEBIUS_REPLY_N, /* the number of parts that are kept as text; the others are only reported, after
                        moebius_reply_set_tools */
    MOEBIUS_REPLY_CALL = MOEBIUS_REPLY_N, /* a call begins; the text is the tool's name */
    MOEBIUS_REPLY_ARGUMENTS,              /* a piece of the call's arguments, which are a JSON object */
    MOEBIUS_REPLY_CALL_END,               /* the call has ended; the text is the id that the model gave it, or empty */
    MOEBIUS_REPLY_NOTE                    /* a message about something malformed, for a log */
} moebius_reply_part;
typedef void moebius_reply_fn(void *user, moebius_reply_part part, const char *text, size_t n);

/* The template must have been opened with a vocabulary, and is borrowed. `prompt`: the text of the prompt, whose end
 * may have begun the reasoning. `fn` (may be NULL) receives each new piece of n bytes as soon as its part is known. */
MOEBIUS_API moebius_status moebius_reply_open(moebius_reply **out, const moebius_template *tmpl, const char *prompt,
                                              moebius_reply_fn *fn, void *user, moebius_error *error);
MOEBIUS_API void moebius_reply_close(moebius_reply **reply);
/* To be called before the first token: calls of these tools (as in moebius_template_input) are reported as calls, one
 * after the other; without it they are content. Nothing that the model writes is lost, and nothing is an error: text
 * that begins like a call but is none, or calls an unknown tool, is content, with a note. Arguments in other notations
 * than JSON are converted to JSON, typed by the tool's schema. Malformed arguments are closed where they break, so that
 * they are valid JSON at the end of each call, and the rest is content. Ignore a call that has no end because the
 * answer was cut. */
MOEBIUS_API moebius_status moebius_reply_set_tools(moebius_reply *reply, const char *tools, moebius_error *error);
/* Adds a token; *end: whether it ends the answer. */
MOEBIUS_API moebius_status moebius_reply_feed(moebius_reply *reply, int32_t id, bool *end, moebius_error *error);
/* Whether what comes next is reasoning. *mark (may be NULL): the text that ends it, borrowed. */
MOEBIUS_API bool moebius_reply_is_reasoning(const moebius_reply *reply, const char **mark);
/* Whether a token would begin or continue a mark between reasoning and content, and so belong to neither. */
MOEBIUS_API bool moebius_reply_is_mark(const moebius_reply *reply, int32_t id);
/* Ends the answer: text that was held back because it might have become a mark goes to `fn`. If the last token ended
 * the answer, an open call is closed and ended. Otherwise the answer was cut, and the call gets no
 * MOEBIUS_REPLY_CALL_END: its arguments are incomplete and not valid JSON. */
MOEBIUS_API void moebius_reply_finish(moebius_reply *reply);
/* The text of one part (below MOEBIUS_REPLY_N) so far, NUL-terminated; *n: its bytes. Borrowed until the next token. */
MOEBIUS_API const char *moebius_reply_text(const moebius_reply *reply, moebius_reply_part part, size_t *n);

/* ---- session ------------------------------------------------------------------------------------------------- */

typedef struct moebius_session moebius_session;

/* The type of the KV cache. Q8_0 needs heads whose size is a multiple of 32; otherwise opening is MOEBIUS_UNSUPPORTED.
 */
typedef enum moebius_kv_type { MOEBIUS_KV_F16, MOEBIUS_KV_F32, MOEBIUS_KV_Q8_0 } moebius_kv_type;

/* Cache-aware routing: in batches of one token, an expert in memory may replace a chosen expert that is not, if its
 * score is at least `threshold` times the other's. Faster, and NOT the model's own output (docs/car.md). */
typedef struct moebius_car {
    float threshold;    /* above 0 and below 1; 0, or 1 and more: off */
    bool damp;          /* weigh substitutes less, by the ratio of the scores */
    int64_t n_warmup;   /* no substitutes in this many first tokens of a text */
    int64_t n_protect;  /* nor in this many first and last MoE layers */
    int64_t n_backfill; /* replaced experts that may be read in idle time per token; at most 64 */
} moebius_car;

typedef struct moebius_session_options {
    int64_t n_ctx; /* positions; 0: the model's own, up to 4096 */
    /* Largest batch, rounded up to a multiple of 64. 0: 512, or more if experts must be read and memory permits
     * (moebius_session_batch). */
    int64_t n_batch;
    moebius_kv_type kv;
    int64_t sort_cutoff; /* 0: the engine's */
    moebius_car car;
} moebius_session_options;

MOEBIUS_INLINE moebius_session_options moebius_default_session_options(void);
/* The engine is borrowed until the session is closed. A session allocates memory for its tokens as they come, and
 * returns it when it is closed. MOEBIUS_LIMIT, with the number, if the memory limit could never hold n_ctx tokens. */
MOEBIUS_INLINE moebius_status moebius_session_open(moebius_session **out, moebius_engine *engine,
                                                   const moebius_session_options *options, moebius_error *error);
MOEBIUS_API void moebius_session_close(moebius_session **session);

MOEBIUS_API int64_t moebius_session_n_ctx(const moebius_session *session);
MOEBIUS_API int64_t moebius_session_pos(const moebius_session *session); /* tokens so far */

/* Extends the context to at least n_ctx positions, for a text or a fork that becomes longer than planned; tokens,
 * logits and checkpoints stay. MOEBIUS_LIMIT, with the number, if the memory limit for state could never hold that many
 * tokens. */
MOEBIUS_API moebius_status moebius_session_grow(moebius_session *session, int64_t n_ctx, moebius_error *error);

/* How many of n tokens the first batch would take now. Each batch reads the experts that are not in memory, so larger
 * batches read less; but their work space takes memory from the experts. */
MOEBIUS_API int64_t moebius_session_batch(const moebius_session *session, size_t n);

/* Opens another session with the same beginning: it has this one's tokens, logits, options and checkpoints, and shares
 * its memory, in pages of 64 tokens, until one of the two continues. Samplers are not included (moebius_sampler_clone).
 */
MOEBIUS_API moebius_status moebius_session_fork(moebius_session **out, moebius_session *session, moebius_error *error);

/* Appends n >= 1 tokens and computes the logits after the last. MOEBIUS_LIMIT if they do not fit the context: then
 * nothing is appended. After another failure the session holds the batches that were done (see moebius_session_pos).
 * MOEBIUS_LIMIT also means that the memory for state is full. */
MOEBIUS_API moebius_status moebius_session_eval(moebius_session *session, const int32_t *ids, size_t n,
                                                moebius_error *error);

/* The same with the logits [n_vocab] after each token i >= first, in order. `logits` is valid during the call of `fn`,
 * which returns false to cancel: the session then holds all of the batch, and has logits only if they were those after
 * its last token. */
typedef bool moebius_logits_fn(void *user, size_t i, const float *logits);
MOEBIUS_API moebius_status moebius_session_eval_each(moebius_session *session, const int32_t *ids, size_t n,
                                                     size_t first, moebius_logits_fn *fn, void *user,
                                                     moebius_error *error);

/* One session's part in moebius_eval_batch. */
typedef struct moebius_batch_item {
    moebius_session *session; /* each session once */
    const int32_t *ids;       /* the tokens to append */
    size_t n;                 /* how many, 1 or more */
    /* The session may go back to any position from the first of these tokens on without computing a product again
     * (moebius_session_truncate), until the next evaluation with this engine: for guessed tokens. At most 64 tokens;
     * not with cache-aware routing. All drafts of a batch belong to sessions with the same type of cache. */
    bool is_draft;
    /* Receives the logits after each token i >= first; may be NULL. As in moebius_session_eval_each, but false ends the
     * whole call. */
    moebius_logits_fn *logits;
    void *user;
    size_t first;
    /* Compute no logits for this session (logits is NULL), because more of its prompt will follow. */
    bool no_logits;
} moebius_batch_item;

/* Appends tokens to several sessions of an engine at once, and computes the logits after the last token of each: every
 * weight is read once for all of them. Each session's logits are the same to the bit as if it were alone. Sessions with
 * one token come first in each batch, then drafts, then as many of the others' tokens as there is room for; the rest
 * waits for the next batch of the call. If an item is invalid, nothing is computed. After another failure each session
 * holds the batches that were done, or has gone back to a checkpoint before them. */
MOEBIUS_INLINE moebius_status moebius_eval_batch(moebius_engine *engine, const moebius_batch_item *items,
                                                 size_t n_items, moebius_error *error);

/* A session that continues with a token, and guesses of what follows it. */
typedef struct moebius_guess_item {
    moebius_session *session; /* each session once */
    int32_t id;               /* the token, chosen but not yet evaluated */
    size_t most;              /* most guesses, 1 to 64; the context has room for them */
    float least;              /* drop guesses that are less likely to be right, with all before them; 0 to 1 */
    int32_t *ids;             /* [most] receives the guesses */
    float *likely;            /* [most] receives how likely each is to be right, with all before it; may be NULL */
    size_t *n;                /* receives their number */
} moebius_guess_item;

/* Guesses how sessions continue, with the model's layers for multi-token prediction (moebius_has_mtp, else
 * MOEBIUS_USAGE). Evaluate the guesses as drafts with the token before them. Sessions do not change. Guesses may depend
 * on whether sessions were forked, parked or loaded; logits never do. There are no guesses if the state has no room for
 * them. L. Gloeckle et al., arXiv:2404.19737; DeepSeek-AI, arXiv:2412.19437. */
MOEBIUS_INLINE moebius_status moebius_guess_batch(moebius_engine *engine, const moebius_guess_item *items,
                                                  size_t n_items, moebius_error *error);

/* Replaces a session's tokens by those of a list: keeps the common beginning, as far as the session can go back to it,
 * and evaluates the rest, so that there are logits after the last token. *n_kept (may be NULL): tokens that were not
 * computed. After a failure the session holds the beginning of the list up to its position. */
MOEBIUS_API moebius_status moebius_session_sync(moebius_session *session, const int32_t *ids, size_t n, size_t *n_kept,
                                                moebius_error *error);

/* From now on, the evaluating thread calls `is_wanted` (NULL: nothing) during evaluations, at least every 50 ms. True
 * ends the evaluation with MOEBIUS_CANCELLED, which leaves the session as other failures do. */
typedef bool moebius_cancel_fn(void *user);
MOEBIUS_API void moebius_session_set_cancel(moebius_session *session, moebius_cancel_fn *is_wanted, void *user);

/* From now on, the evaluating thread tells `fn` (NULL: nothing) during evaluations which part of the session's tokens
 * is done, 0 to 1: at most every 50 ms, and about as often in long ones. */
typedef void moebius_progress_fn(void *user, double done);
MOEBIUS_API void moebius_session_set_progress(moebius_session *session, moebius_progress_fn *fn, void *user);

/* Moves a session's state out of the engine's memory: into a file that moebius_session_load can also read, or into
 * ordinary memory (path NULL). The session keeps its position, tokens and logits. Evaluating, forking, going back or
 * saving brings the state back first, with the same bits, or fails and leaves it parked; so does
 * moebius_session_unpark. Checkpoints are lost. The file stays when the session is closed. */
MOEBIUS_API moebius_status moebius_session_park(moebius_session *session, const char *path, moebius_error *error);
MOEBIUS_API moebius_status moebius_session_unpark(moebius_session *session, moebius_error *error);

/* The logits [n_vocab] after the last token, borrowed until the session changes. NULL if there are none: before the
 * first evaluation, after moebius_session_truncate, and if an evaluation ended before it had computed them. */
MOEBIUS_API const float *moebius_session_logits(const moebius_session *session);

/* The tokens so far [moebius_session_pos], borrowed until the session changes. */
MOEBIUS_API const int32_t *moebius_session_tokens(const moebius_session *session);

/* Bytes of device memory that the session's caches and recurrent state take, counting memory shared with forks in full.
 */
MOEBIUS_API size_t moebius_session_state_bytes(const moebius_session *session);

/* Drops all tokens from position pos on, and returns the session's new position: pos (0 if a parked session's state
 * cannot be brought back), or if that is not possible, the nearest checkpoint before it, or 0. Recurrent layers go back
 * only to checkpoints, or within a draft (moebius_batch_item). Windowed layers go back by 512 tokens, or as far as a
 * loaded state reaches, and otherwise to a checkpoint. */
MOEBIUS_API int64_t moebius_session_truncate(moebius_session *session, int64_t pos);
/* The position that moebius_session_truncate would go to now, ignoring drafts, and 0 for a parked session; nothing
 * changes. */
MOEBIUS_API int64_t moebius_session_way_back(const moebius_session *session, int64_t pos);

/* Whether that is always `pos`, because the model has neither recurrent nor windowed layers. */
MOEBIUS_API bool moebius_session_goes_back(const moebius_session *session);

/* Saves a session to a file and loads it again: the tokens, the logits after the last, and the layers' state, so that a
 * loaded session goes on with the bits of the saved one. What samplers remember is not saved. A file appears under its
 * name once it is complete.
 *
 * The context and the batch of the session that loads may be others, but the model and the type of the KV cache must be
 * the same, and the tokens must fit. A file that is damaged, of another model or type, or too long is refused, and the
 * session stays as it was. A file that changes between its two readings leaves the session empty, and so does state
 * without room (MOEBIUS_LIMIT, MOEBIUS_NOMEM). */
MOEBIUS_API moebius_status moebius_session_save(moebius_session *session, const char *path, moebius_error *error);
MOEBIUS_API moebius_status moebius_session_load(moebius_session *session, const char *path, moebius_error *error);

/* Saves what a session has at position `to` beyond what it had at `from` (0 <= from < to): with the parts before, it is
 * the session at `to`. So a growing text can be written as it grows. A saved session is a part from 0, and vice versa.
 * Logits are saved if `to` is the session's position. A part appears under its name once it is complete, but is not
 * synced to the drive: after a system crash, a torn file may remain, which is refused. moebius_session_part_end says
 * where a part can end. */
MOEBIUS_API moebius_status moebius_session_save_part(moebius_session *session, int64_t from, int64_t to,
                                                     const char *path, moebius_error *error);
/* Appends a part to a session at the part's beginning with the same tokens before it, which are compared. Such sessions
 * continue, and go back to the ends of parts, like the saved one (the latter as far as memory for checkpoints
 * suffices). What moebius_session_load refuses, and a part of another text or position, is refused, and the session
 * does not change. */
MOEBIUS_API moebius_status moebius_session_load_part(moebius_session *session, const char *path, moebius_error *error);
/* The last position in (from, to] at which a part can end, or else the first one after `to`. These are the session's
 * position; all positions, without windowed and recurrent layers; otherwise those that moebius_session_truncate can go
 * back to. */
MOEBIUS_API int64_t moebius_session_part_end(const moebius_session *session, int64_t from, int64_t to);
/* The bytes of such a part's file. Each part has the whole state of recurrent layers. */
MOEBIUS_API int64_t moebius_session_part_bytes(const moebius_session *session, int64_t from, int64_t to);

/* The header of a saved session. */
typedef struct moebius_part {
    int64_t from, n_tok;  /* tokens before the part, and with it */
    int64_t n_bytes;      /* of the file */
    uint64_t hash_before; /* of the tokens before the part: moebius_tokens_hash, begun with moebius_session_part_key */
    uint64_t hash;        /* of all tokens */
    bool has_logits;
} moebius_part;

/* The header has a checksum and agrees with the file's length; the rest of the file is not read. */
MOEBIUS_INLINE moebius_status moebius_part_read(const char *path, moebius_part *part, moebius_error *error);
/* A part's own tokens, ids[n] with n = n_tok - from, checked against the hashes in its header. */
MOEBIUS_API moebius_status moebius_part_tokens(const char *path, int32_t *ids, int64_t n, moebius_error *error);
/* The start value of the hash of tokens for parts that a session can load: it differs for each model and type of KV
 * cache, and for sessions with cache-aware routing. */
MOEBIUS_API moebius_status moebius_session_part_key(const moebius_session *session, uint64_t *key,
                                                    moebius_error *error);
/* Continues the hash `hash` of earlier tokens with more tokens. Use it to find candidates: different tokens may have
 * the same hash. */
MOEBIUS_API uint64_t moebius_tokens_hash(uint64_t hash, const int32_t *ids, size_t n);

/* Activations that are multiplied with a matrix of weights: row t is scale * x[t * stride + 0 .. k). */
typedef struct moebius_product {
    const char *tensor; /* the name of the file's tensor; borrowed from the engine */
    int64_t n_matrix;   /* matrices in the tensor: one, or one for each expert or head */
    int64_t matrix;     /* which of them */
    const float *x;     /* borrowed during the call */
    int64_t k;          /* length of a row */
    int64_t n_row;      /* rows */
    int64_t stride;     /* from one row to the next, in floats */
    float scale;
} moebius_product;

/* Callbacks for tests and tools, called by the evaluating thread. They cost time. Each may be NULL, but `predicted`
 * needs `routed`. */
typedef struct moebius_trace {
    /* The router of a layer (counting MoE layers only) chose experts ids[t * n_used + rank] for n_tok tokens, best
     * first. */
    void (*routed)(void *user, int moe_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    /* The same, as predicted one layer before. */
    void (*predicted)(void *user, int moe_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    /* The residual stream [n_embd] of the batch's last token after a layer. */
    void (*hidden)(void *user, int64_t layer, const float *x);
    /* A multiplication with weights, except routers. The rows of a matrix come in the order of the tokens. Not with
     * several devices; MOEBIUS_USAGE there. */
    void (*product)(void *user, const moebius_product *p);
    void *user;
} moebius_trace;

/* Sets the callbacks from now on; NULL turns them off. */
MOEBIUS_INLINE void moebius_session_trace(moebius_session *session, const moebius_trace *trace);

/* ---- sampling ------------------------------------------------------------------------------------------------ */

typedef struct moebius_sampler moebius_sampler;

/* Added to a token's logit: 5 makes it much likelier, -100 all but impossible, minus infinity impossible. */
typedef struct moebius_logit_bias {
    int32_t id;
    float bias; /* finite, or minus infinity */
} moebius_logit_bias;

/* The steps apply in the order of these fields, except for the temperature, which comes last. Steps that drop tokens
 * use the probabilities at temperature 1 among the tokens that earlier steps have left. By default there are no biases
 * and no penalties, and the only filters are top-k, top-p and min-p. */
typedef struct moebius_sampler_options {
    float temperature; /* divides the logits; 0: always the likeliest token, after biases and penalties */

    const moebius_logit_bias *logit_biases; /* [n_logit_biases]; those of the same token add up */
    int n_logit_biases;
    float repeat_penalty;    /* makes the last repeat_last_n tokens less likely, each once; 1: no penalty */
    float presence_penalty;  /* subtracted from the logits of those tokens, once; 0: no penalty */
    float frequency_penalty; /* subtracted for each occurrence of the token; 0: no penalty */
    int repeat_last_n;       /* how many tokens these three penalties look back; -1: all, up to 1,048,576 */
    /* DRY: if a token would continue a sequence that occurred before, after `length` >= dry_allowed_length tokens of
     * it, subtract dry_multiplier * dry_base^(length - dry_allowed_length) from its logit. 0: off. */
    float dry_multiplier;
    float dry_base;
    int dry_allowed_length;
    int dry_last_n; /* how many tokens DRY looks back; -1: all, up to 1,048,576 */
    /* Strings at which sequences end, [n_dry_breakers]: each token that contains one. A string that no token contains
     * stands for the last token that it is made of. Control tokens always end sequences. */
    const char *const *dry_breakers;
    int n_dry_breakers;

    int top_k;             /* keep the k likeliest tokens; 0: all */
    float typical_p;       /* keep the most typical tokens up to this total probability; 1: all */
    float top_p;           /* keep the likeliest tokens up to this total probability; 1: all */
    float min_p;           /* drop tokens less likely than this share of the likeliest; 0: none */
    float xtc_probability; /* probability that XTC drops tokens; 0: never */
    float xtc_threshold;   /* XTC drops all tokens with this probability or more but the least likely */

    /* 0, or 2: Mirostat 2 instead of the steps from top_k on. It keeps the mean surprise of tokens at mirostat_tau
     * bits, and corrects itself after each token by mirostat_eta of the error. */
    int mirostat;
    float mirostat_tau;
    float mirostat_eta;

    uint64_t seed; /* the same seed, logits and text give the same tokens */
} moebius_sampler_options;

MOEBIUS_INLINE moebius_sampler_options moebius_default_sampler_options(void);
/* Copies what the options point to. Tokens that the model's file forbids (suppress_tokens) are never picked.
 * MOEBIUS_USAGE, with a message, if a value is out of range. */
MOEBIUS_INLINE moebius_status moebius_sampler_open(moebius_sampler **out, const moebius_engine *engine,
                                                   const moebius_sampler_options *options, moebius_error *error);
/* Copies a sampler with its state, for a fork of the text: both give the same tokens for the same logits, until one of
 * them gets another seed. */
MOEBIUS_API moebius_status moebius_sampler_clone(moebius_sampler **out, const moebius_sampler *sampler,
                                                 moebius_error *error);
MOEBIUS_API void moebius_sampler_close(moebius_sampler **sampler);
/* Chooses the next token from logits [n_vocab]. Allocates nothing. */
MOEBIUS_API int32_t moebius_sampler_pick(moebius_sampler *sampler, const float *logits);
/* Tells the sampler which token was appended to the text, for the penalties. OpenAI's penalties count only generated
 * tokens; for these, leave out the prompt's tokens. Allocates nothing. */
MOEBIUS_API void moebius_sampler_accept(moebius_sampler *sampler, int32_t id);
/* Forgets all accepted tokens, and what Mirostat learned from them; the random stream continues. */
MOEBIUS_API void moebius_sampler_forget(moebius_sampler *sampler);
/* Starts another random stream; the accepted tokens stay. */
MOEBIUS_API void moebius_sampler_reseed(moebius_sampler *sampler, uint64_t seed);

/* A token and the natural logarithm of its probability. */
typedef struct moebius_logprob {
    int32_t id;
    double logprob; /* minus infinity: impossible */
} moebius_logprob;

/* Returns the log-probability of token `id` from the model's logits [n_vocab], at temperature 1, and stores the
 * likeliest tokens in top[0..n_top), best first, lowest id first among equals; if fewer are possible, the rest has id
 * -1. A logit that is NaN or minus infinity means "never", and so does an id outside of the vocabulary. Takes time
 * proportional to n_vocab, and for large n_top at worst to n_vocab * n_top. Thread-safe. */
MOEBIUS_API double moebius_logprobs(const float *logits, int32_t n_vocab, int32_t id, moebius_logprob *top, int n_top);

/* ---- grammars -------------------------------------------------------------------------------------------------- */

/* A compiled grammar; read-only: shareable between threads. */
typedef struct moebius_grammar moebius_grammar;
/* A position in one text that follows a grammar; used by one thread at a time. */
typedef struct moebius_matcher moebius_matcher;

/* SCHEMA: a JSON schema (draft 4 to 2020-12); an empty text means any JSON object. GBNF: rules as in llama.cpp, in
 * which %json{SCHEMA} is a JSON value and %token"TEXT" a special token; without a vocabulary, a token by its number,
 * <[ID]>, matches nothing. REGEX: a regular expression for the whole text. */
typedef enum moebius_grammar_kind {
    MOEBIUS_GRAMMAR_SCHEMA,
    MOEBIUS_GRAMMAR_GBNF,
    MOEBIUS_GRAMMAR_REGEX
} moebius_grammar_kind;

/* Skip and list what cannot be enforced of a schema, instead of failing. */
enum { MOEBIUS_GRAMMAR_LENIENT = 1 };

/* Compiles n bytes of text. vocab is borrowed until the grammar is closed; NULL: its matchers know only bytes.
 * MOEBIUS_FORMAT: the text is wrong, and the message says where; MOEBIUS_UNSUPPORTED: it cannot be enforced. */
MOEBIUS_API moebius_status moebius_grammar_open(moebius_grammar **out, const moebius_vocab *vocab,
                                                moebius_grammar_kind kind, const char *text, size_t n, unsigned flags,
                                                moebius_error *error);
/* To be called after its matchers are closed. */
MOEBIUS_API void moebius_grammar_close(moebius_grammar **grammar);
/* Approximate memory of the grammar, which grows as texts reach new states. Thread-safe. */
MOEBIUS_API size_t moebius_grammar_bytes(const moebius_grammar *grammar);
MOEBIUS_API size_t moebius_grammar_n_unenforced(const moebius_grammar *grammar);
/* A keyword that is not enforced, and its JSON pointer in *pointer, both borrowed. */
MOEBIUS_API const char *moebius_grammar_unenforced(const moebius_grammar *grammar, size_t i, const char **pointer);

/* Opens a matcher at the beginning of a text. */
MOEBIUS_API moebius_status moebius_matcher_open(moebius_matcher **out, moebius_grammar *grammar, moebius_error *error);
/* Copies a matcher at the same position, for a fork of the text. */
MOEBIUS_API moebius_status moebius_matcher_clone(moebius_matcher **out, const moebius_matcher *matcher,
                                                 moebius_error *error);
MOEBIUS_API void moebius_matcher_close(moebius_matcher **matcher);
/* Advances by a token that was appended; false: it does not fit, and the matcher does not move. After a failure
 * (memory, or the limit on states of one text) nothing fits any more, and moebius_matcher_status says why. */
MOEBIUS_API bool moebius_matcher_accept(moebius_matcher *matcher, int32_t id);
MOEBIUS_API bool moebius_matcher_allows(moebius_matcher *matcher, int32_t id); /* whether it would fit */
/* The same with n bytes: advances as far as they fit, by *n_fit of them. */
MOEBIUS_API bool moebius_matcher_feed(moebius_matcher *matcher, const char *bytes, size_t n, size_t *n_fit);
/* Sets the bits of the tokens that may come next, bit id % 64 of bits[id / 64], and clears all others. */
MOEBIUS_API void moebius_matcher_mask(moebius_matcher *matcher, uint64_t *bits);
MOEBIUS_API bool moebius_matcher_may_end(moebius_matcher *matcher);  /* the text may end here */
MOEBIUS_API bool moebius_matcher_must_end(moebius_matcher *matcher); /* and nothing else is possible */
/* Copies the bytes that must come next, at most n, and returns how many there are. */
MOEBIUS_API size_t moebius_matcher_forced(moebius_matcher *matcher, char *bytes, size_t n);
MOEBIUS_API moebius_status moebius_matcher_status(const moebius_matcher *matcher, moebius_error *error);

/* From now on, the sampler picks only what the matcher (borrowed) allows, and advances it with each accepted token;
 * NULL: anything again. A pick is first drawn as usual. If the matcher refuses that token, another is drawn among the
 * allowed ones: token x then comes with p(x) + (1 - A) p(x) / A = p(x) / A, where A is the probability of everything
 * that is allowed. (The steps that drop tokens see all tokens first, and then only allowed ones.) A pick of -1: nothing
 * is allowed. A clone of the sampler has no matcher. MOEBIUS_USAGE if the matcher's grammar has no vocabulary, or one
 * of another size than the engine's. */
MOEBIUS_API moebius_status moebius_sampler_set_matcher(moebius_sampler *sampler, moebius_matcher *matcher,
                                                       moebius_error *error);

/* ---- planning -------------------------------------------------------------------------------------------------- */

/* A machine's measurements, as JSON text (docs/planner.md). */
typedef struct moebius_machine moebius_machine;

typedef struct moebius_probe_options {
    int n_threads; /* 0: one for each processor that the process may use */
    /* Files, one on each drive to measure; the larger the better, usually a model. Borrowed. */
    const char *const *files;
    int n_files;
    bool gpus; /* also measure GPUs */
    /* Receives what is measured next and how much is done, 0 to 1; returns false to stop. May be NULL. */
    bool (*progress)(void *user, const char *what, double done);
    void *user;
} moebius_probe_options;

MOEBIUS_INLINE moebius_probe_options moebius_default_probe_options(void);
/* Measures for some seconds, a minute at most, with 1 GiB of memory or an eighth of what is free. */
MOEBIUS_INLINE moebius_status moebius_machine_probe(moebius_machine **out, const moebius_probe_options *options,
                                                    moebius_error *error);
MOEBIUS_API void moebius_machine_close(moebius_machine **machine);
MOEBIUS_API const char *moebius_machine_json(const moebius_machine *machine); /* borrowed */
/* Saves it for moebius_plan_open: to a file (NULL: to the user's cache directory, for this machine). */
MOEBIUS_API moebius_status moebius_machine_save(const moebius_machine *machine, const char *path, moebius_error *error);

typedef struct moebius_plan moebius_plan;

typedef struct moebius_plan_options {
    /* A machine file. NULL: what was saved for this machine, or else only its threads and memory. */
    const char *machine;
    int n_threads;      /* 0: all of the machine's */
    int64_t n_ctx;      /* context of a text; 0: as a session's, or chosen by the plan (n_ctx_most) */
    int64_t n_depth;    /* tokens in the context while decoding; 0: all */
    int64_t n_texts;    /* texts decoded together; 0: 1 */
    int64_t n_batch;    /* prompt tokens computed together; 0: 512 */
    int kv;             /* a moebius_kv_type */
    int64_t ram_bytes;  /* memory limit of the process; 0: what is free */
    int64_t vram_bytes; /* memory limit of each GPU; 0: what is free */
    bool gpu;           /* the machine's first GPU runs the layers */
    int64_t n_cpu_moe;  /* with `gpu`: layers whose experts stay in memory; 0: the fewest that fit; less than 0: none */
    double floor;       /* tokens per second that decoding must be able to reach; 0: none */
    const char *usage;  /* a file with expert counts; "": the one in the user's cache directory; NULL: none */
    /* A file of receipts (docs/doctor.md), on which forecasts rest; "": the one in the user's cache directory. NULL:
     * none, so only ceilings are known. */
    const char *receipts;
    int64_t n_prompt;     /* length of the prompt for the prefill forecast; 0: n_batch */
    int64_t prompt_from;  /* tokens in the context before that prompt */
    int64_t n_ctx_most;   /* if n_ctx is 0 and this is positive, the plan chooses the longest context, of at most this
                             many tokens and the trained context, that leaves all experts their memory; or else
                             the longest that takes a quarter of what texts and experts share */
    int64_t n_texts_most; /* texts at once that are possible if there is room, for reporting; 0: n_texts */
    int64_t state_bytes;  /* memory for texts' state; what texts leave caches prompts. 0: as there is room */
    /* How a GPU and the processor divide the experts, as in moebius_engine_options: "experts", "layers", "last" or
     * "cache" with their values. NULL: see n_cpu_moe. */
    const char *split;
    const char *const
        *store_dirs; /* of a prepared store, [n_store_dirs], whose drives deliver the experts. On this machine it must
                        be a finished store of the model; for another machine these are drives' names */
    int n_store_dirs;
    double car; /* the threshold of cache-aware routing; 0: off */
    /* Measured shares of a token's choices found on the GPU, in memory and on drives, 0 to 1. What is missing from 1 is
     * replaced by experts at hand. All 0: the plan computes them. */
    double found_vram, found_ram, found_drive;
    /* Memory bandwidth of n_threads, in bytes per second; 0: from the machine's file and receipts. */
    double memory_per_s;
    /* Multiply-adds per second on bytes by n_threads' vector units; 0: from the machine's file and receipts. */
    double units_per_s;
    /* Speed of the machine's only drive, in bytes per second; 0: from the machine's file and, for this machine, the
     * receipts. */
    double drive_per_s;
    /* With `gpu` and the split "stages": this many of the machine's first GPUs divide the layers. 0, 1: one GPU. */
    int n_gpu;
    const char *const *overrides; /* as in moebius_engine_options; moebius_engine_plan ignores these three */
    int n_override;
    double yarn;
} moebius_plan_options;

MOEBIUS_INLINE moebius_plan_options moebius_default_plan_options(void);
/* Plans for the model at `path`, any part of a split set; its first megabytes are enough. A plan that cannot work is
 * also returned, and says what could. */
MOEBIUS_INLINE moebius_status moebius_plan_open(moebius_plan **out, const char *path,
                                                const moebius_plan_options *options, moebius_error *error);
/* The same for texts on an engine. The plan takes the engine's threads, devices and memory as they are and ignores
 * those of the options, and `machine`. The model's file is not read again. MOEBIUS_UNSUPPORTED if several processes
 * have GPUs, or if devices in the machine's memory divide the layers. */
MOEBIUS_INLINE moebius_status moebius_engine_plan(moebius_plan **out, const moebius_engine *engine,
                                                  const moebius_plan_options *options, moebius_error *error);
MOEBIUS_API void moebius_plan_close(moebius_plan **plan);
MOEBIUS_API bool moebius_plan_is_refused(const moebius_plan *plan);
/* Tokens per second of decode, for all texts together, or of prefill: the ceiling, and the forecast band; 0: unknown.
 */
MOEBIUS_API void moebius_plan_rates(const moebius_plan *plan, bool prefill, double *ceiling, double *low, double *high);
/* What each part of the work permits alone, in tokens per second: products with weights, attention and recurrent state,
 * experts that the processor computes beside a GPU, reads of experts. 0: it takes no time, or is unknown. */
enum { MOEBIUS_PLAN_PARTS = 4 };
MOEBIUS_API void moebius_plan_part_rates(const moebius_plan *plan, bool prefill, double rates[MOEBIUS_PLAN_PARTS]);
/* What limits it: "ram", "stream", "vram", "offload", "tiered" or "ranks" (docs/planner.md). */
MOEBIUS_API const char *moebius_plan_regime(const moebius_plan *plan);
MOEBIUS_API uint64_t moebius_plan_ram_bytes(const moebius_plan *plan); /* memory that the process will take */
MOEBIUS_API int64_t moebius_plan_n_ctx(const moebius_plan *plan);      /* tokens of a text, given or chosen */
MOEBIUS_API const char *
moebius_plan_refusal(const moebius_plan *plan); /* the number that fails; borrowed; NULL: none */
/* For a refused plan, what would work instead, i from 0: flags, human-readable; borrowed. NULL: there are no more. */
MOEBIUS_API const char *moebius_plan_nearest(const moebius_plan *plan, int i);
MOEBIUS_API const char *moebius_plan_line(const moebius_plan *plan); /* one line, human-readable; borrowed */
MOEBIUS_API const char *moebius_plan_text(const moebius_plan *plan); /* human-readable; borrowed */
MOEBIUS_API const char *moebius_plan_svg(const moebius_plan *plan);  /* a picture of tiers and bytes; borrowed */
MOEBIUS_API const char *moebius_plan_json(const moebius_plan *plan); /* for programs; borrowed */

/* ---- structs with their lengths ---------------------------------------------------------------------------------- */

MOEBIUS_API moebius_status moebius_engine_open_sized(moebius_engine **out, const char *path,
                                                     const moebius_engine_options *options, size_t options_bytes,
                                                     moebius_error *error);
MOEBIUS_API moebius_status moebius_ranks_serve_sized(moebius_ranks *ranks, const char *path,
                                                     const moebius_engine_options *options, size_t options_bytes,
                                                     moebius_error *error);
MOEBIUS_API moebius_status moebius_session_open_sized(moebius_session **out, moebius_engine *engine,
                                                      const moebius_session_options *options, size_t options_bytes,
                                                      moebius_error *error);
MOEBIUS_API moebius_status moebius_sampler_open_sized(moebius_sampler **out, const moebius_engine *engine,
                                                      const moebius_sampler_options *options, size_t options_bytes,
                                                      moebius_error *error);
MOEBIUS_API void moebius_default_sampler_options_sized(moebius_sampler_options *options, size_t options_bytes);
MOEBIUS_API moebius_status moebius_template_render_sized(const moebius_template *tmpl,
                                                         const moebius_template_input *input, size_t input_bytes,
                                                         moebius_prompt **prompt, moebius_error *error);
MOEBIUS_API moebius_status moebius_template_call_grammar_sized(const moebius_template *tmpl,
                                                               const moebius_call_grammar_input *input,
                                                               size_t input_bytes, char **grammar, const char **trigger,
                                                               moebius_error *error);
MOEBIUS_API moebius_status moebius_eval_batch_sized(moebius_engine *engine, const moebius_batch_item *items,
                                                    size_t item_bytes, size_t n_items, moebius_error *error);
MOEBIUS_API moebius_status moebius_guess_batch_sized(moebius_engine *engine, const moebius_guess_item *items,
                                                     size_t item_bytes, size_t n_items, moebius_error *error);
MOEBIUS_API void moebius_session_trace_sized(moebius_session *session, const moebius_trace *trace, size_t trace_bytes);
MOEBIUS_API void moebius_moe_layer_at_sized(const moebius_engine *engine, int layer, moebius_moe_layer *out,
                                            size_t out_bytes);
MOEBIUS_API void moebius_engine_counters_sized(const moebius_engine *engine, moebius_counters *out, size_t out_bytes);
MOEBIUS_API int moebius_list_gpus_sized(moebius_gpu *gpus, int n_max, size_t gpu_bytes, moebius_error *error);
MOEBIUS_API int moebius_engine_op_stats_sized(const moebius_engine *engine, moebius_op_stats *stats, size_t stat_bytes);
MOEBIUS_API int moebius_device_op_stats_sized(const moebius_engine *engine, int i, moebius_op_stats *stats,
                                              size_t stat_bytes);
MOEBIUS_API moebius_status moebius_device_measure_roof_sized(moebius_engine *engine, int i, moebius_gpu_roof *roof,
                                                             size_t roof_bytes, moebius_error *error);
MOEBIUS_API moebius_status moebius_engine_measure_roof_sized(moebius_engine *engine, moebius_roof *roof,
                                                             size_t roof_bytes, moebius_error *error);
MOEBIUS_API bool moebius_engine_source_sized(const moebius_engine *engine, int i, moebius_source *out,
                                             size_t out_bytes);
MOEBIUS_API moebius_status moebius_place_at_sized(const moebius_engine *engine, int i, moebius_place *out,
                                                  size_t out_bytes, moebius_error *error);
MOEBIUS_API moebius_status moebius_place_did_sized(const moebius_engine *engine, int i, int layer,
                                                   moebius_place_stats *out, size_t out_bytes, moebius_error *error);
MOEBIUS_API bool moebius_engine_device_sized(const moebius_engine *engine, int i, moebius_device *out,
                                             size_t out_bytes);
MOEBIUS_API moebius_status moebius_part_read_sized(const char *path, moebius_part *out, size_t out_bytes,
                                                   moebius_error *error);

MOEBIUS_API moebius_status moebius_machine_probe_sized(moebius_machine **out, const moebius_probe_options *options,
                                                       size_t options_bytes, moebius_error *error);
MOEBIUS_API moebius_status moebius_plan_open_sized(moebius_plan **out, const char *path,
                                                   const moebius_plan_options *options, size_t options_bytes,
                                                   moebius_error *error);
MOEBIUS_API moebius_status moebius_engine_plan_sized(moebius_plan **out, const moebius_engine *engine,
                                                     const moebius_plan_options *options, size_t options_bytes,
                                                     moebius_error *error);

MOEBIUS_INLINE moebius_engine_options moebius_default_engine_options(void)
{
    static moebius_engine_options o; /* zeros */
    return o;
}

MOEBIUS_INLINE moebius_session_options moebius_default_session_options(void)
{
    static moebius_session_options o; /* zeros */
    return o;
}

MOEBIUS_INLINE moebius_sampler_options moebius_default_sampler_options(void)
{
    moebius_sampler_options o;
    moebius_default_sampler_options_sized(&o, sizeof o);
    return o;
}

MOEBIUS_INLINE moebius_status moebius_engine_open(moebius_engine **out, const char *path,
                                                  const moebius_engine_options *options, moebius_error *error)
{
    return moebius_engine_open_sized(out, path, options, sizeof *options, error);
}

MOEBIUS_INLINE moebius_status moebius_ranks_serve(moebius_ranks *ranks, const char *path,
                                                  const moebius_engine_options *options, moebius_error *error)
{
    return moebius_ranks_serve_sized(ranks, path, options, sizeof *options, error);
}

MOEBIUS_INLINE moebius_status moebius_session_open(moebius_session **out, moebius_engine *engine,
                                                   const moebius_session_options *options, moebius_error *error)
{
    return moebius_session_open_sized(out, engine, options, sizeof *options, error);
}

MOEBIUS_INLINE moebius_status moebius_sampler_open(moebius_sampler **out, const moebius_engine *engine,
                                                   const moebius_sampler_options *options, moebius_error *error)
{
    return moebius_sampler_open_sized(out, engine, options, sizeof *options, error);
}

MOEBIUS_INLINE moebius_status moebius_template_render(const moebius_template *tmpl, const moebius_template_input *input,
                                                      moebius_prompt **prompt, moebius_error *error)
{
    return moebius_template_render_sized(tmpl, input, sizeof *input, prompt, error);
}

MOEBIUS_INLINE moebius_status moebius_template_call_grammar(const moebius_template *tmpl,
                                                            const moebius_call_grammar_input *input, char **grammar,
                                                            const char **trigger, moebius_error *error)
{
    return moebius_template_call_grammar_sized(tmpl, input, sizeof *input, grammar, trigger, error);
}

MOEBIUS_INLINE moebius_status moebius_eval_batch(moebius_engine *engine, const moebius_batch_item *items,
                                                 size_t n_items, moebius_error *error)
{
    return moebius_eval_batch_sized(engine, items, sizeof *items, n_items, error);
}

MOEBIUS_INLINE moebius_status moebius_guess_batch(moebius_engine *engine, const moebius_guess_item *items,
                                                  size_t n_items, moebius_error *error)
{
    return moebius_guess_batch_sized(engine, items, sizeof *items, n_items, error);
}

MOEBIUS_INLINE void moebius_session_trace(moebius_session *session, const moebius_trace *trace)
{
    moebius_session_trace_sized(session, trace, sizeof *trace);
}

MOEBIUS_INLINE moebius_moe_layer moebius_moe_layer_at(const moebius_engine *engine, int layer)
{
    moebius_moe_layer out;
    moebius_moe_layer_at_sized(engine, layer, &out, sizeof out);
    return out;
}

MOEBIUS_INLINE moebius_counters moebius_engine_counters(const moebius_engine *engine)
{
    moebius_counters out;
    moebius_engine_counters_sized(engine, &out, sizeof out);
    return out;
}

MOEBIUS_INLINE int moebius_list_gpus(moebius_gpu *gpus, int n_max, moebius_error *error)
{
    return moebius_list_gpus_sized(gpus, n_max, sizeof *gpus, error);
}

MOEBIUS_INLINE int moebius_engine_op_stats(const moebius_engine *engine, moebius_op_stats stats[MOEBIUS_MAX_OP])
{
    return moebius_engine_op_stats_sized(engine, stats, sizeof *stats);
}

MOEBIUS_INLINE int moebius_device_op_stats(const moebius_engine *engine, int i, moebius_op_stats stats[MOEBIUS_MAX_OP])
{
    return moebius_device_op_stats_sized(engine, i, stats, sizeof *stats);
}

MOEBIUS_INLINE moebius_status moebius_device_measure_roof(moebius_engine *engine, int i, moebius_gpu_roof *roof,
                                                          moebius_error *error)
{
    return moebius_device_measure_roof_sized(engine, i, roof, sizeof *roof, error);
}

MOEBIUS_INLINE moebius_status moebius_engine_measure_roof(moebius_engine *engine, moebius_roof *roof,
                                                          moebius_error *error)
{
    return moebius_engine_measure_roof_sized(engine, roof, sizeof *roof, error);
}

MOEBIUS_INLINE bool moebius_engine_device(const moebius_engine *engine, int i, moebius_device *out)
{
    return moebius_engine_device_sized(engine, i, out, sizeof *out);
}

MOEBIUS_INLINE bool moebius_engine_source(const moebius_engine *engine, int i, moebius_source *out)
{
    return moebius_engine_source_sized(engine, i, out, sizeof *out);
}

MOEBIUS_INLINE moebius_status moebius_place_at(const moebius_engine *engine, int i, moebius_place *out,
                                               moebius_error *error)
{
    return moebius_place_at_sized(engine, i, out, sizeof *out, error);
}

MOEBIUS_INLINE moebius_status moebius_place_did(const moebius_engine *engine, int i, int layer,
                                                moebius_place_stats *out, moebius_error *error)
{
    return moebius_place_did_sized(engine, i, layer, out, sizeof *out, error);
}

MOEBIUS_INLINE moebius_status moebius_part_read(const char *path, moebius_part *part, moebius_error *error)
{
    return moebius_part_read_sized(path, part, sizeof *part, error);
}

MOEBIUS_INLINE moebius_probe_options moebius_default_probe_options(void)
{
    static moebius_probe_options o; /* zeros */
    return o;
}

MOEBIUS_INLINE moebius_status moebius_machine_probe(moebius_machine **out, const moebius_probe_options *options,
                                                    moebius_error *error)
{
    return moebius_machine_probe_sized(out, options, sizeof *options, error);
}

MOEBIUS_INLINE moebius_plan_options moebius_default_plan_options(void)
{
    static moebius_plan_options o; /* zeros */
    return o;
}

MOEBIUS_INLINE moebius_status moebius_plan_open(moebius_plan **out, const char *path,
                                                const moebius_plan_options *options, moebius_error *error)
{
    return moebius_plan_open_sized(out, path, options, sizeof *options, error);
}

MOEBIUS_INLINE moebius_status moebius_engine_plan(moebius_plan **out, const moebius_engine *engine,
                                                  const moebius_plan_options *options, moebius_error *error)
{
    return moebius_engine_plan_sized(out, engine, options, sizeof *options, error);
}

#ifdef __cplusplus
}
#endif

#endif
