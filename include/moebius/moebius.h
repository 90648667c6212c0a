/* moebius: runs Mixture-of-Experts language models from their GGUF files.
 *
 *     moebius_engine *engine;                      a loaded model: weights, tokenizer, device, and room for texts
 *     moebius_session *session;                    one text: its tokens, and what the model keeps of them
 *     moebius_engine_open(&engine, "model.gguf", NULL, &error);
 *     moebius_session_open(&session, engine, NULL, &error);
 *     moebius_session_eval(session, ids, n, &error);
 *     const float *logits = moebius_session_logits(session);
 *
 * Every fallible function returns a status, 0 for success, and fills *error (which may be NULL) with a sentence. On
 * failure what it was to open is NULL. Every close function accepts a pointer to NULL and leaves NULL behind. Strings
 * are UTF-8. Structs of options come filled from moebius_default_*(); NULL stands for the defaults. What is "borrowed"
 * stays its owner's and must not be freed.
 *
 * A batch is the tokens of one forward pass, which may be those of several sessions: n_batch tokens of each at most.
 *
 * Thread-safety: an engine and its sessions may be used from one thread at a time; moebius_engine_interrupt alone may
 * be called by any thread meanwhile. All engines of a process may be used from one thread at a time where one has a
 * bound on memory (ram_bytes, which is -1 for none), as what others take makes it give back. A sampler may be used from
 * one thread at a time, beside its engine. Vocabularies, templates, prompts and grammars are read-only and may be
 * shared between threads. */
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

/* Structs may get more fields at their ends. So whoever passes one says how long it is in the header that it was
 * compiled with: these functions, which are defined at the end of this header, do so. Fields that a caller doesn't know
 * have their defaults; fields that a library doesn't know are MOEBIUS_USAGE unless they are zero. Other languages call
 * the forms that end in _sized. (moebius_car, moebius_logit_bias, moebius_logprob and moebius_template_var stay as they
 * are.) */
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
    char text[MOEBIUS_ERROR_BYTES]; /* a sentence in one line, whose control characters are spelled out (\x1b) */
} moebius_error;

MOEBIUS_API const char *moebius_version(void); /* "MAJOR.MINOR.PATCH" */
MOEBIUS_API const char *
moebius_build_info(void); /* devices, ways to read and architectures of this build, for people */

/* ---- engine -------------------------------------------------------------------------------------------------- */

typedef struct moebius_engine moebius_engine;
typedef struct moebius_ranks moebius_ranks; /* processes that share a model's routed experts: further down */

enum moebius_log_level { MOEBIUS_LOG_WARN, MOEBIUS_LOG_INFO, MOEBIUS_LOG_DEBUG };

/* How experts are read while the model runs: by io_uring or by threads that call pread. AUTO takes the best that the
 * system permits; the others are an error where they can't be had. */
typedef enum moebius_reader { MOEBIUS_READER_AUTO, MOEBIUS_READER_IO_URING, MOEBIUS_READER_PREAD } moebius_reader;

/* Whether experts are read past the page cache (O_DIRECT). AUTO does so where the file system permits; ON is an error
 * where it doesn't. */
typedef enum moebius_direct { MOEBIUS_DIRECT_AUTO, MOEBIUS_DIRECT_ON, MOEBIUS_DIRECT_OFF } moebius_direct;

/* Whether experts that the next layer will probably choose are read while the drive has nothing else to do. AUTO
 * measures both ways now and then while decoding, and goes on with the faster one. */
typedef enum moebius_prefetch { MOEBIUS_PREFETCH_AUTO, MOEBIUS_PREFETCH_ON, MOEBIUS_PREFETCH_OFF } moebius_prefetch;

/* What the engine does on a machine with several memory nodes (NUMA). AUTO binds each thread to the processors of one
 * node, and puts each row of the weights and each head of a KV cache into the memory of the node whose threads compute
 * it. The engine's own threads stay bound. The caller's thread is bound within moebius_engine_open,
 * moebius_engine_measure_roof and moebius_session_eval*, and has its old processors back when they return; callbacks
 * run while it is bound, and threads that they start inherit the binding. No result depends on this. With one node, or
 * in a build without hwloc, nothing is bound. */
typedef enum moebius_numa { MOEBIUS_NUMA_AUTO, MOEBIUS_NUMA_OFF } moebius_numa;

typedef struct moebius_engine_options {
    int n_threads;  /* 0: one for each processor that the process may use. While decoding at most that many work */
    bool reference; /* float activations on dequantised weights: slow and exact */
    bool check_ops; /* every operation runs on the reference device, too, and the two are compared */
    /* Batches of more tokens than this compute their experts by sorted dispatch. 0: as tuned, else the default. */
    int64_t sort_cutoff;
    /* A file of what `moebius tune` measured, which decides speed alone. NULL: what earlier runs kept of this machine
     * in the user's cache directory; the first that meets a processor or a type of weights measures for 0.1 s. */
    const char *tuning;
    /* The process's peak memory in bytes. 0: what it has and most of what the system and its control groups have free
     * when the model is opened. -1: no bound. One engine at a time has a bound: others that are opened with 0 meanwhile
     * have none. */
    int64_t ram_bytes;
    /* Memory for routed experts in bytes; experts without a place are read when needed. 0: what expert_ram_share says.
     * If that is 0, too: as much as all experts need, or as ram_bytes leaves. */
    int64_t expert_ram_bytes;
    double expert_ram_share; /* memory for routed experts as a share of what all of them need, 0 to 1 */
    const char *policy;      /* which experts stay in that memory: "lfru" (NULL), "lru" or "lfu" */
    /* The file in which counts of chosen experts are kept from run to run, for a warm start. NULL: none; "": a file in
     * the user's cache directory. */
    const char *usage;
    const char *const *store_dirs; /* the directories of a prepared store of this model, [n_store_dirs] */
    int n_store_dirs;
    moebius_reader reader;
    moebius_direct direct;
    moebius_prefetch prefetch;
    moebius_numa numa;
    /* Weights lie in the huge pages that the system has set aside (hugetlb), as far as these suffice; a warning in the
     * log says how many are missing. MOEBIUS_USAGE with a bound on memory, as such pages can't be given back expert by
     * expert, and where threads are bound to several memory nodes. */
    bool hugetlb;
    /* Runs with cache-aware routing (moebius_car) can be repeated to the bit: routing goes by what a cache of the same
     * size would hold, whenever reads end, and nothing is prefetched. MOEBIUS_USAGE with ram_bytes, as the number of
     * experts in memory then differs from run to run. */
    bool deterministic;
    /* Memory for the keys, values and recurrent state of all sessions of one type of KV cache, in bytes. 0: half of the
     * machine's memory (of a GPU's own, where one runs the layers, all), or a sixteenth of a limit on addresses
     * (RLIMIT_AS), or what one session needs if that is more; in either case within ram_bytes. */
    int64_t state_bytes;
    /* Sessions of models with recurrent or windowed layers can go back (moebius_session_truncate) to checkpoints alone:
     * there is one every so many tokens (0: 512; less than 0: none), at the end of each prompt, and where a session was
     * forked, as far as their memory suffices: of state_bytes (0: an eighth of those). The least useful go first. */
    int64_t checkpoint_interval;
    int64_t checkpoint_bytes;
    /* Gets lines of the log, as printable as moebius_error's sentences, from any thread. NULL: there is no log. */
    void (*log)(void *user, enum moebius_log_level level, const char *line);
    /* Gets the bytes read so far while the model is loaded, from any thread. May be NULL. */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user; /* for log and progress */
    /* The devices that compute, the first of which runs the layers while all compute routed experts, unless `split` is
     * "stages": "cpu:N" for N threads, "vulkan:N" for GPU N of moebius_list_gpus, separated by commas. Their threads
     * are not bound to memory nodes. NULL: one device of n_threads threads, which must be 0 else. */
    const char *devices;
    /* How routed experts are divided among several devices: "experts" (NULL), "layers", "last:N" or "random", with
     * ":A,B,..." behind it the devices' shares, or for random a seed. It changes no bit of any result. "stages" divides
     * the layers themselves (pipeline stages): each device computes layers that follow each other, and has their
     * weights, experts and caches; ":A,B,..." are shares of the layers, else memory and speed decide. NULL is "stages",
     * too, where all devices are GPUs with memory of their own, the first one has no room for the whole model, and
     * together they have room for what can't be read when it is needed. */
    const char *split;
    /* Processes that share the routed experts; this one has the text. The first bound on memory is then what is free
     * over the processes of this machine. NULL: this process is alone. */
    moebius_ranks *ranks;
    /* "auto": the best GPU of moebius_list_gpus that is no driver on the processor, if it multiplies faster than the
     * processor: it gets the whole model where that fits; else several that have memory of their own and room for it
     * together divide the layers, as with split "stages"; else it gets the layers and what experts fit, while the
     * processor has the others; a line of the log says what was chosen and why. "0", "1", ...: the same with that GPU.
     * NULL, "none": none. Not with `devices`; n_threads are those of the processor. */
    const char *gpu;
    /* The memory that each GPU may take, in bytes. 0: what its driver gives; of GPUs in the machine's memory, what
     * ram_bytes leaves. */
    int64_t vram_bytes;
    /* Memory for replicas: the hottest experts have more than one place, and each layer's call chooses who computes
     * them, so that all places are through at the same time. In bytes, of all places together, or as a share (0 or
     * more) of what all experts need; as far as the experts leave memory. Both 0: none. They change no bit, but where a
     * GPU is among the places: there `deterministic` has each token's own choice decide. */
    int64_t replica_bytes;
    double replica_share;
    /* The experts of so many layers, the last ones, are the last device's, and all others the first one's; less than 0:
     * of none. One GPU (`gpu`, or alone in `devices`) gets a processor device beside it. 0: as `split` says. */
    int64_t n_cpu_moe;
    /* GPUs say how long operations take (moebius_engine_op_stats); a timestamp a dispatch, which takes a little itself.
     */
    bool time_gpus;
    /* Loads the model's layer for multi-token prediction, too, where the file has one and it is of use
     * (moebius_has_mtp): for moebius_guess_batch. It takes memory as the other layers do, and a few more products a
     * token. */
    bool mtp;
} moebius_engine_options;

MOEBIUS_INLINE moebius_engine_options moebius_default_engine_options(void);

/* Loads the model at `path`, any part of a split set. What the options point to is borrowed until the engine is
 * closed. */
MOEBIUS_INLINE moebius_status moebius_engine_open(moebius_engine **out, const char *path,
                                                  const moebius_engine_options *options, moebius_error *error);
MOEBIUS_API void moebius_engine_close(moebius_engine **engine); /* its sessions must be closed before */

MOEBIUS_API int32_t moebius_n_vocab(const moebius_engine *engine);     /* tokens in the vocabulary */
MOEBIUS_API int64_t moebius_n_ctx_train(const moebius_engine *engine); /* the context that the model was trained for */
MOEBIUS_API int moebius_n_threads(const moebius_engine *engine);       /* of all devices */
MOEBIUS_API int moebius_n_memory_node(const moebius_engine *engine);   /* nodes that have threads: 1 or more */
MOEBIUS_API const char *moebius_arch(const moebius_engine *engine);    /* the file's general.architecture; borrowed */
MOEBIUS_API int64_t moebius_n_layer(const moebius_engine *engine);     /* of the forward pass */
MOEBIUS_API bool moebius_has_mtp(const moebius_engine *engine);   /* the layer for multi-token prediction is loaded */
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

/* A hash of the files' directories, which tells the model apart from others. */
MOEBIUS_API uint64_t moebius_fingerprint(const moebius_engine *engine);

/* Whether choices of layers whose experts are all in memory count in moebius_engine_experts, too; off at first. The
 * choice of such a layer is then read back from its device, which costs a little, and more where that is a GPU. */
MOEBIUS_API void moebius_engine_count_experts(moebius_engine *engine, bool on);

/* How often the router of a MoE layer chose each of its experts since the engine was opened, and which have memory of
 * place 0: n_chosen and in_memory [n_expert], each of which may be NULL. Of layers whose experts are all in memory, and
 * not divided among places, choices count while moebius_engine_count_experts says so. False: there is no such layer. */
MOEBIUS_API bool moebius_engine_experts(const moebius_engine *engine, int layer, uint64_t *n_chosen, bool *in_memory);

/* Empties the slots of experts that are read when needed, and forgets which were used, so that what follows starts
 * cold. */
MOEBIUS_API void moebius_engine_forget_experts(moebius_engine *engine);

/* What was done since the engine was opened, and the memory that it takes now. */
typedef struct moebius_counters {
    uint64_t n_direct, n_sorted; /* MoE layers computed by direct and by sorted dispatch, each once a batch */
    uint64_t n_expert_rows;      /* pairs of a token and an expert computed */
    uint64_t n_experts;          /* experts that these were of, each once a layer and batch */

    /* Experts that layers asked for, each once a layer and batch, where not all are in memory. A hit was in memory, a
     * miss had to be read. n_decode_*: those of batches of one token. */
    uint64_t n_expert_hit, n_expert_miss, n_decode_hit, n_decode_miss;
    uint64_t n_expert_evicted;    /* experts that lost their slot to another */
    uint64_t n_expert_read;       /* experts read */
    uint64_t n_expert_read_bytes; /* their bytes */
    uint64_t n_prefetched;        /* experts read because the next layer's choice was predicted */
    uint64_t n_prefetch_used;     /* those of them that the next layer asked for */

    /* cache-aware routing */
    uint64_t n_substituted;      /* choices whose place another expert took */
    double substitute_ratio_sum; /* the sum of the substitutes' scores over those of the experts they replace */
    int64_t n_spared;            /* those of n_decode_hit that would be misses without substitutes */
    uint64_t n_backfilled;       /* experts read in idle time after they had been replaced */

    int64_t stall_ns;   /* waiting for reads with nothing to compute */
    int64_t arrival_ns; /* checking what was read, and packing what was not read into its slot */

    uint64_t expert_bytes;     /* memory for routed experts now, with what is in a cache and on its way, too */
    uint64_t expert_all_bytes; /* memory that all of them would need */
    uint64_t weight_bytes;     /* memory for all other weights */
    uint64_t context_bytes;    /* memory for caches and recurrent state of all sessions */
    uint64_t work_bytes;       /* memory for activations */
    uint64_t state_bytes;      /* of context_bytes, what sessions and checkpoints hold, shared memory counted once */
    uint64_t state_max_bytes;  /* what that may become; 0 before the first session */

    /* What GPUs were given: dispatches, barriers between those that depend on each other, submissions to their queues.
     */
    uint64_t n_gpu_dispatch, n_gpu_barrier, n_gpu_submit;

    /* Of experts that were read for several tokens at once, for which drives work at full depth: the bytes, and the
     * time in which such reads were in flight. Their quotient is what the drives gave. */
    uint64_t n_many_read_bytes;
    int64_t many_read_ns;

    uint64_t roof_bytes; /* of work_bytes, what moebius_engine_measure_roof has read, and keeps for the next time */
} moebius_counters;
/* By the thread that evaluates, and not from callbacks of an evaluation, as other devices may be computing then; the
 * same goes for moebius_place_at and moebius_place_did. */
MOEBIUS_INLINE moebius_counters moebius_engine_counters(const moebius_engine *engine);

/* A device of the engine, and what it holds now. The figures above are the sums over those in the host's memory. */
typedef struct moebius_device {
    const char *name;       /* "cpu:2"; borrowed from the engine */
    uint64_t weight_bytes;  /* all weights but routed experts */
    uint64_t expert_bytes;  /* slots for routed experts */
    uint64_t context_bytes; /* caches and recurrent state */
    uint64_t work_bytes;    /* activations */
    int64_t first_layer;    /* it computes n_layer layers from this one on, but for experts that others have */
    int64_t n_layer;        /* 0: it computes experts alone */
    bool is_gpu;
} moebius_device;

/* False: there is no device i. */
MOEBIUS_INLINE bool moebius_engine_device(const moebius_engine *engine, int i, moebius_device *out);

/* A GPU, as the Vulkan loader lists it, or a driver that computes on the processor in the same way. */
typedef struct moebius_gpu {
    const char *kind;      /* "discrete", "integrated", "virtual", "software" or "other" */
    uint64_t memory_bytes; /* for weights */
    uint64_t budget_bytes; /* what its driver gives this process of that at present */
    int api_version[3];    /* of Vulkan: major, minor, patch */
    bool shares_memory;    /* the memory is the machine's */
    bool is_usable;        /* as "vulkan:N" in moebius_engine_options.devices */
    bool is_auto;          /* moebius_engine_options.gpu "auto" would take it, if it is fast enough */
    char name[256], driver[256];
    char why_not[256];     /* a sentence, when it is not usable */
    bool has_upload_queue; /* weights are uploaded on a queue of their own, beside operations */
} moebius_gpu;
/* Fills up to n_max of gpus, in the order of their numbers, and returns how many there are. error, which may be NULL,
 * says why when there are none. */
MOEBIUS_INLINE int moebius_list_gpus(moebius_gpu *gpus, int n_max, moebius_error *error);

/* Operations of one kind since the engine was opened. */
typedef struct moebius_op_stats {
    const char *name; /* borrowed */
    uint64_t n;       /* how often it ran */
    uint64_t n_ns;    /* how long that took, nanoseconds; on a GPU with moebius_engine_options.time_gpus alone */
    uint64_t n_bytes; /* bytes of weights and state that it had to move */
    uint64_t n_int8;  /* multiply-adds on bytes that it had to do, but for those of n_tile */
    uint64_t n_float; /* multiply-adds on floats that it had to do */
    uint64_t n_tile;  /* multiply-adds on bytes that a matrix unit (AMX) had to do */
} moebius_op_stats;
enum { MOEBIUS_MAX_OP = 64 };
/* Fills stats and returns how many kinds there are, at most MOEBIUS_MAX_OP. */
MOEBIUS_INLINE int moebius_engine_op_stats(const moebius_engine *engine, moebius_op_stats stats[MOEBIUS_MAX_OP]);
/* The same of device i alone, of those that moebius_engine_device tells of; 0: there is no such device. A GPU is read,
 * and waited for. */
MOEBIUS_INLINE int moebius_device_op_stats(const moebius_engine *engine, int i, moebius_op_stats stats[MOEBIUS_MAX_OP]);

/* Ends the evaluation that is running, if there is one, with MOEBIUS_CANCELLED, within some 50 ms (or once a parked
 * session is back, if that takes longer). For any thread and for signal handlers. */
MOEBIUS_API void moebius_engine_interrupt(moebius_engine *engine);

/* ---- several processes ----------------------------------------------------------------------------------------- */

/* Processes that mpirun started together, on one machine or several, share the routed experts of one model. Rank 0 has
 * the text: it opens an engine with moebius_engine_options.ranks and goes on as ever. All others call
 * moebius_ranks_serve with the same model and options, and compute what rank 0 asks for until it closes its ranks.
 * Texts and logits are the same to the bit as those of one process. */

/* Whether this process is one of several that were started together. */
MOEBIUS_API bool moebius_ranks_are_wanted(void);

/* Meets the other processes, whose first error is the same on all. To be called once, before the process makes threads;
 * SIGTERM is blocked from then on, and ends the process after a moment. `lost` (may be NULL) is told once, from any
 * thread, when another process has died or is not heard of any more while it is waited for, and need not return: no
 * evaluation succeeds after that. MOEBIUS_UNSUPPORTED in a build without MPI. */
MOEBIUS_API moebius_status moebius_ranks_open(moebius_ranks **out, void (*lost)(void *user, const char *sentence),
                                              void *user, moebius_error *error);
/* On rank 0: ends the others. After the engine. */
MOEBIUS_API void moebius_ranks_close(moebius_ranks **ranks);
MOEBIUS_API int moebius_rank(const moebius_ranks *ranks);   /* this process: 0 has the text */
MOEBIUS_API int moebius_n_rank(const moebius_ranks *ranks); /* 2 or more */
/* The way from rank 0 to another rank, as it was timed at the start: of a few bytes there and back; of large messages.
 */
MOEBIUS_API double moebius_rank_round_trip_s(const moebius_ranks *ranks, int rank);
MOEBIUS_API double moebius_rank_bytes_per_s(const moebius_ranks *ranks, int rank);

/* Computes for rank 0 until that ends. What goes wrong here is reported by rank 0, too. */
MOEBIUS_INLINE moebius_status moebius_ranks_serve(moebius_ranks *ranks, const char *path,
                                                  const moebius_engine_options *options, moebius_error *error);

/* What the machine can do now with the engine's threads, a second. */
typedef struct moebius_roof {
    double read_bytes_per_s; /* bytes read from memory */
    double int8_per_s;       /* multiply-adds on bytes */
    double float_per_s;      /* multiply-adds on floats */
    double tile_per_s;       /* multiply-adds on bytes by a matrix unit (AMX); 0: products go to none */
} moebius_roof;

/* What a GPU can do now. */
typedef struct moebius_gpu_roof {
    double bytes_per_s; /* bytes read and written by copies within its memory */
    double dispatch_s;  /* seconds that a dispatch of no work takes which waits for the one before */
} moebius_gpu_roof;
/* Of device i, a GPU; it takes some tenths of a second at most, and 512 MiB of the GPU's memory or an eighth of what is
 * free meanwhile. MOEBIUS_USAGE where the device is none. */
MOEBIUS_INLINE moebius_status moebius_device_measure_roof(moebius_engine *engine, int i, moebius_gpu_roof *roof,
                                                          moebius_error *error);

/* Takes some 50 ms. The first call also takes 256 MiB of memory or more, 32 MiB a thread, which the engine keeps until
 * it is closed. */
MOEBIUS_INLINE moebius_status moebius_engine_measure_roof(moebius_engine *engine, moebius_roof *roof,
                                                          moebius_error *error);
/* How experts are read, for people: "io_uring, O_DIRECT"; "" where all are in memory. Borrowed. */
MOEBIUS_API const char *moebius_expert_reader(const moebius_engine *engine);

/* Reads from one source of experts: 0 is the model's file, the others are the directories of the prepared store. */
typedef struct moebius_source {
    const char *path;   /* borrowed from the engine */
    uint64_t n_reads;   /* reads that arrived */
    uint64_t n_bytes;   /* their bytes */
    double bytes_per_s; /* of a directory while it had something to do; 0: not known */
    bool is_gone;       /* it failed, and nothing more is read from there */
} moebius_source;

/* False: there is no source i. */
MOEBIUS_INLINE bool moebius_engine_source(const moebius_engine *engine, int i, moebius_source *out);

/* Where routed experts are computed: place 0 is the device that runs the layers, the others are the further devices
 * that the engine was opened with. Each has its own experts in its own memory; or place 0 is a cache, which computes
 * what it holds at present, and the others have all experts. */
typedef struct moebius_place {
    const char *name;    /* "place 1 (cpu:4)"; borrowed from the engine */
    uint64_t n_expert;   /* experts that it has, over all layers; of a cache, those that there is memory for now */
    uint64_t bytes;      /* memory for them now */
    uint64_t all_bytes;  /* memory that all of them would need; of a cache, all experts of the model */
    double bytes_per_s;  /* of experts that it computed, while it computed; 0: not known */
    bool is_cache;       /* it has copies of what others have, too */
    bool is_off_decode;  /* the cache is not used to decode, as that was found to be faster without */
    bool is_off_prompts; /* the same for prompts: passes of more than 16 tokens */
    uint64_t n_replica;  /* of its experts, those that other places have, too */
} moebius_place;

/* How many there are: 1 where the experts are not divided, 0 for a model without experts. */
MOEBIUS_API int moebius_n_place(const moebius_engine *engine);
/* What place `i` is, as long as no pass runs. An error is that of a place that does not answer. */
MOEBIUS_INLINE moebius_status moebius_place_at(const moebius_engine *engine, int i, moebius_place *out,
                                               moebius_error *error);

/* What a place did since the engine was opened. Where there is one place, calls, rows and time are not counted, and
 * layers whose experts are all in memory find nothing. */
typedef struct moebius_place_stats {
    uint64_t n_call;        /* calls of a layer that had something for the place */
    uint64_t n_row;         /* pairs of a token and an expert computed */
    uint64_t n_found;       /* experts that were in memory when a call asked for them, each once a call */
    uint64_t n_read;        /* experts that it had to wait for, each once a call */
    uint64_t n_substituted; /* choices whose place another expert took */
    int64_t compute_ns;     /* computing experts */
    int64_t read_wait_ns;   /* waiting for reads with nothing to compute */
    int64_t finish_wait_ns; /* place 0 waiting for this one's results; 0 for place 0 */
    uint64_t to_bytes;      /* of rows and choices that went to the place; 0 for place 0 */
    uint64_t from_bytes;    /* of results that came back; 0 for place 0 */
    /* Of a cache: */
    uint64_t n_missed;      /* experts that calls asked for and that other places computed, each once a call */
    uint64_t n_moved;       /* experts that were copied or read into it */
    uint64_t moved_bytes;   /* of these, in slots */
    int64_t move_ns;        /* what moves took of the time between passes */
    uint64_t n_replica_row; /* of n_row, pairs whose expert other places have, too */
} moebius_place_stats;

/* What place `i` did in one layer, MoE layers alone being counted, or in all of them (layer -1), as long as no pass
 * runs. */
MOEBIUS_INLINE moebius_status moebius_place_did(const moebius_engine *engine, int i, int layer,
                                                moebius_place_stats *out, moebius_error *error);

/* The places that have an expert of a MoE layer, but for a cache: bit i is place i. 0: there is no such expert. */
MOEBIUS_API uint64_t moebius_expert_places(const moebius_engine *engine, int layer, int64_t expert);

/* ---- text and tokens ----------------------------------------------------------------------------------------- */

typedef struct moebius_vocab moebius_vocab; /* borrowed from an engine, or opened alone; shareable between threads */

MOEBIUS_API const moebius_vocab *moebius_engine_vocab(const moebius_engine *engine);

/* Opens the tokenizer of a GGUF alone; the file may hold no tensors. To be closed with moebius_vocab_close. */
MOEBIUS_API moebius_status moebius_vocab_open(moebius_vocab **out, const char *path, moebius_error *error);
MOEBIUS_API void moebius_vocab_close(moebius_vocab **vocab);

/* Turns text of n bytes into tokens. add_special: BOS and EOS are added as the file says. parse_special: the texts of
 * special tokens become those tokens. *ids [*n_ids] is owned by the caller (moebius_free). */
MOEBIUS_API moebius_status moebius_tokenize(const moebius_vocab *vocab, const char *text, size_t n, bool add_special,
                                            bool parse_special, int32_t **ids, size_t *n_ids, moebius_error *error);

/* Turns n tokens into text, NUL-terminated and owned by the caller (moebius_free). special: special tokens show as
 * their text, else not at all. n_text gets the text's bytes without the NUL; it may be NULL. */
MOEBIUS_API moebius_status moebius_detokenize(const moebius_vocab *vocab, const int32_t *ids, size_t n, bool special,
                                              char **text, size_t *n_text, moebius_error *error);

/* The n bytes of one token within a text; they may be part of a character. Borrowed. */
MOEBIUS_API const char *moebius_token_piece(const moebius_vocab *vocab, int32_t id, bool special, size_t *n);
MOEBIUS_API bool moebius_token_is_end(const moebius_vocab *vocab, int32_t id); /* the token ends a text or a turn */
MOEBIUS_API int32_t moebius_vocab_size(const moebius_vocab *vocab);            /* valid ids are below this */
MOEBIUS_API int32_t moebius_token_bos(const moebius_vocab *vocab);             /* -1: there is none */
MOEBIUS_API bool moebius_vocab_adds_bos(const moebius_vocab *vocab);           /* texts begin with it */
MOEBIUS_API void moebius_free(void *p);                                        /* accepts NULL */

/* ---- chat templates ------------------------------------------------------------------------------------------- */

/* The text of a template in the model's file, borrowed; NULL: there is none of this name. A file may bring several:
 * `name` is that of one, such as "tool_use", or NULL for the default. */
MOEBIUS_API const char *moebius_vocab_template(const moebius_vocab *vocab, const char *name);

typedef struct moebius_template moebius_template; /* read-only: shareable between threads */

/* Parses a template of n bytes. `vocab` gives it the special tokens' texts (bos_token and so on) and is borrowed until
 * the template is closed; NULL: there are none. */
MOEBIUS_API moebius_status moebius_template_open(moebius_template **out, const char *source, size_t n,
                                                 const moebius_vocab *vocab, moebius_error *error);
MOEBIUS_API void moebius_template_close(moebius_template **tmpl);

/* A variable of a template, with its value as JSON text. */
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
MOEBIUS_INLINE moebius_status moebius_template_render(const moebius_template *tmpl, const moebius_template_input *input,
                                                      moebius_prompt **prompt, moebius_error *error);
MOEBIUS_API void moebius_prompt_close(moebius_prompt **prompt);
/* The text, NUL-terminated, borrowed; *n may be NULL. Tokenizing it with parse_special would undo what is said above.
 */
MOEBIUS_API const char *moebius_prompt_text(const moebius_prompt *prompt, size_t *n);
/* Its tokens, BOS among them where the template writes it: *ids is owned by the caller (moebius_free). */
MOEBIUS_API moebius_status moebius_prompt_tokenize(const moebius_prompt *prompt, const moebius_vocab *vocab,
                                                   int32_t **ids, size_t *n_ids, moebius_error *error);

/* How the template's model writes calls of tools: "hermes", "qwen3-coder", "gpt-oss" and so on, or "generic" where the
 * template shows no form of its own. */
MOEBIUS_API const char *moebius_template_family(const moebius_template *tmpl);

/* Which calls a grammar is for. */
typedef struct moebius_call_grammar_input {
    const char *tools;  /* as in moebius_template_input */
    const char *name;   /* the one tool that may be called; NULL: any */
    bool is_required;   /* the answer is calls, with the reasoning before; else the model may call, or not */
    bool is_single;     /* one call; else as many as the family's form lets follow each other */
    const char *prompt; /* of a whole answer: the prompt's text, whose end may have begun the reasoning; NULL: it has
                           not */
    const char *schema; /* a JSON schema, an object: where no call is required, the answer is calls or an instance of
                           it, with the reasoning before; NULL: anything */
} moebius_call_grammar_input;

/* The grammar, GBNF with %json{SCHEMA} and %token"TEXT", of what the model writes when it calls the tools. Where calls
 * are required, or a schema is given, the whole answer follows it. Else what follows it begins with *trigger (borrowed
 * from the template): from there on, that text included. *grammar is owned by the caller (moebius_free). */
MOEBIUS_INLINE moebius_status moebius_template_call_grammar(const moebius_template *tmpl,
                                                            const moebius_call_grammar_input *input, char **grammar,
                                                            const char **trigger, moebius_error *error);

/* An answer while it is generated: what of it is reasoning, content and calls of tools, and where it ends. It ends with
 * a token that ends a text or that the template writes behind an answer. */
typedef struct moebius_reply moebius_reply;
typedef enum moebius_reply_part {
    MOEBIUS_REPLY_CONTENT,
    MOEBIUS_REPLY_REASONING,
    MOEBIUS_REPLY_N, /* how many are texts, which are kept; the others are only told, after moebius_reply_set_tools */
    MOEBIUS_REPLY_CALL = MOEBIUS_REPLY_N, /* a call begins; the text is the tool's name */
    MOEBIUS_REPLY_ARGUMENTS,              /* a piece of the call's arguments, which are a JSON object */
    MOEBIUS_REPLY_CALL_END,               /* the call has ended; the text is the id that the model gave it, or empty */
    MOEBIUS_REPLY_NOTE                    /* a sentence about something malformed, for a log */
} moebius_reply_part;
typedef void moebius_reply_fn(void *user, moebius_reply_part part, const char *text, size_t n);

/* The template must have been opened with a vocabulary, and is borrowed. `prompt`: the text of the prompt, whose end
 * may have begun the reasoning. `fn` (may be NULL) gets each new piece of text, of n bytes, once it is clear what it
 * is.
 */
MOEBIUS_API moebius_status moebius_reply_open(moebius_reply **out, const moebius_template *tmpl, const char *prompt,
                                              moebius_reply_fn *fn, void *user, moebius_error *error);
MOEBIUS_API void moebius_reply_close(moebius_reply **reply);
/* Before the first token: calls of these tools (as in moebius_template_input) are told as calls, one after the other;
 * without it they are content. Nothing that the model says is lost, and nothing is an error: what begins like a call
 * and is none, or calls a tool that there isn't, is content, with a note. Arguments whose family writes other things
 * than JSON become JSON, typed by the tool's schema. Those that turn out malformed are closed there, so that what was
 * told is JSON at the end of each call, and what follows is content. A call that has no end, as the answer was cut, is
 * to be left alone. */
MOEBIUS_API moebius_status moebius_reply_set_tools(moebius_reply *reply, const char *tools, moebius_error *error);
/* Takes one more token; *end: whether it ends the answer. */
MOEBIUS_API moebius_status moebius_reply_feed(moebius_reply *reply, int32_t id, bool *end, moebius_error *error);
/* Whether what comes next is reasoning. *mark (may be NULL): the text that ends it, borrowed. */
MOEBIUS_API bool moebius_reply_is_reasoning(const moebius_reply *reply, const char **mark);
/* Whether a token would begin, or go on with, a mark between reasoning and content, and so be neither. */
MOEBIUS_API bool moebius_reply_is_mark(const moebius_reply *reply, int32_t id);
/* Ends the answer: text that was held back, as it might have become a mark, goes to `fn`. Where the last token ended
 * the answer, a call that is open is closed, and ends; else the answer was cut, and the call gets no
 * MOEBIUS_REPLY_CALL_END: its arguments are not whole, and no JSON. */
MOEBIUS_API void moebius_reply_finish(moebius_reply *reply);
/* All of one part (below MOEBIUS_REPLY_N) so far, NUL-terminated; *n: its bytes. Borrowed until the next token. */
MOEBIUS_API const char *moebius_reply_text(const moebius_reply *reply, moebius_reply_part part, size_t *n);

/* ---- session ------------------------------------------------------------------------------------------------- */

typedef struct moebius_session moebius_session;

/* The type of the KV cache. Q8_0 needs heads whose size is a multiple of 32; else opening is MOEBIUS_UNSUPPORTED. */
typedef enum moebius_kv_type { MOEBIUS_KV_F16, MOEBIUS_KV_F32, MOEBIUS_KV_Q8_0 } moebius_kv_type;

/* Cache-aware routing: in batches of one token an expert in memory may take the place of one that the router chose and
 * that is not, if its score is at least `threshold` of the other's. Faster, and NOT the model's own output
 * (docs/car.md). */
typedef struct moebius_car {
    float threshold;    /* above 0 and below 1; 0, or 1 and more: off */
    bool damp;          /* substitutes weigh less, by the ratio of the scores */
    int64_t n_warmup;   /* there are no substitutes among the first tokens of a text */
    int64_t n_protect;  /* nor in so many of the first and of the last MoE layers */
    int64_t n_backfill; /* how many experts that were replaced may be read in idle time, a token; at most 64 */
} moebius_car;

typedef struct moebius_session_options {
    int64_t n_ctx; /* positions; 0: the model's own, up to 4096 */
    /* Tokens of a batch at most, rounded up to a multiple of 64. 0: 512, or more where experts must be read and memory
     * permits (moebius_session_batch). */
    int64_t n_batch;
    moebius_kv_type kv;
    int64_t sort_cutoff; /* 0: the engine's */
    moebius_car car;
} moebius_session_options;

MOEBIUS_INLINE moebius_session_options moebius_default_session_options(void);
/* The engine is borrowed until the session is closed. A session takes memory for its tokens as they come, and gives it
 * back when it is closed. MOEBIUS_LIMIT, with the number, where the bound on memory could never hold n_ctx tokens. */
MOEBIUS_INLINE moebius_status moebius_session_open(moebius_session **out, moebius_engine *engine,
                                                   const moebius_session_options *options, moebius_error *error);
MOEBIUS_API void moebius_session_close(moebius_session **session);

MOEBIUS_API int64_t moebius_session_n_ctx(const moebius_session *session);
MOEBIUS_API int64_t moebius_session_pos(const moebius_session *session); /* tokens so far */

/* Makes the context at least n_ctx positions long, for a text or a fork that goes on further than was planned: the
 * tokens, logits and checkpoints stay. MOEBIUS_LIMIT, with the number, where the bound on memory for state could never
 * hold as many tokens. */
MOEBIUS_API moebius_status moebius_session_grow(moebius_session *session, int64_t n_ctx, moebius_error *error);

/* How many of n tokens the first batch would have now. Each batch reads the experts that are not in memory, so that
 * larger batches read less; but their work space takes memory from the experts. */
MOEBIUS_API int64_t moebius_session_batch(const moebius_session *session, size_t n);

/* Another session that begins as this one: it has its tokens, logits, options and checkpoints, and shares its memory
 * until one of the two goes on, page by page of 64 tokens. What samplers remember is not shared
 * (moebius_sampler_clone).
 */
MOEBIUS_API moebius_status moebius_session_fork(moebius_session **out, moebius_session *session, moebius_error *error);

/* Appends n >= 1 tokens and computes the logits after the last. MOEBIUS_LIMIT when they don't fit the context: then
 * nothing is appended. After another failure the session holds the batches that were done (moebius_session_pos tells):
 * MOEBIUS_LIMIT also says that the memory for state is full. */
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
     * (moebius_session_truncate), until the next evaluation with this engine: for tokens that were guessed. At most 64
     * tokens; not with cache-aware routing. All drafts of a batch are of sessions with caches of one type. */
    bool is_draft;
    /* Gets the logits after each token i >= first; may be NULL. As in moebius_session_eval_each, but false ends the
     * whole call. */
    moebius_logits_fn *logits;
    void *user;
    size_t first;
    /* No logits are computed for this session (logits is NULL): there is more to come of its prompt. */
    bool no_logits;
} moebius_batch_item;

/* Appends tokens to several sessions of an engine at once, and computes the logits after the last of each: every weight
 * is read once for all of them. Each session's logits are, to the bit, those that it would have alone. Sessions with
 * one token come first in each batch, then drafts, then as many of the others' tokens as there is room for; what is
 * left waits for the next batch of the call. Nothing is computed where an item is wrong. After another failure each
 * session holds the batches that were done, or has gone back to a checkpoint before them. */
MOEBIUS_INLINE moebius_status moebius_eval_batch(moebius_engine *engine, const moebius_batch_item *items,
                                                 size_t n_items, moebius_error *error);

/* A session that goes on with a token, and what it may go on with after that. */
typedef struct moebius_guess_item {
    moebius_session *session; /* each session once */
    int32_t id;               /* the token, which was chosen but not evaluated */
    size_t most;              /* guesses at most, 1 to 64; there is room for them in the context */
    float least;              /* no guess is given that is less likely to be right, with all before it; 0 to 1 */
    int32_t *ids;             /* [most] gets the guesses, */
    float *likely;            /* [most] and how likely each is to be right, with all before it; may be NULL */
    size_t *n;                /* gets their number */
} moebius_guess_item;

/* Guesses how sessions go on, by the model's layer for multi-token prediction (moebius_has_mtp, else MOEBIUS_USAGE): to
 * be evaluated as drafts with the token before them. No session changes. What is guessed may depend on whether sessions
 * were forked, parked or loaded, but their logits never do. There are no guesses where state has no room for them.
 * L. Gloeckle et al., arXiv:2404.19737; DeepSeek-AI, arXiv:2412.19437. */
MOEBIUS_INLINE moebius_status moebius_guess_batch(moebius_engine *engine, const moebius_guess_item *items,
                                                  size_t n_items, moebius_error *error);

/* Makes a session's tokens those of a list: keeps what is the same from the beginning, as far as the session can go
 * back to it, and evaluates the rest, so that there are logits after the last token. *n_kept (may be NULL): tokens that
 * were not computed. After a failure the session holds the beginning of the list up to its position. */
MOEBIUS_API moebius_status moebius_session_sync(moebius_session *session, const int32_t *ids, size_t n, size_t *n_kept,
                                                moebius_error *error);

/* From now on `is_wanted` (NULL: nothing) is asked during evaluations, every 50 ms or more often, by the thread that
 * called. True ends the evaluation with MOEBIUS_CANCELLED, which leaves the session as other failures do. */
typedef bool moebius_cancel_fn(void *user);
MOEBIUS_API void moebius_session_set_cancel(moebius_session *session, moebius_cancel_fn *is_wanted, void *user);

/* From now on `fn` (NULL: nothing) is told during evaluations which part of the session's tokens is done, 0 to 1: at
 * most every 50 ms, and about as often in long ones, by the thread that called. */
typedef void moebius_progress_fn(void *user, double done);
MOEBIUS_API void moebius_session_set_progress(moebius_session *session, moebius_progress_fn *fn, void *user);

/* Takes a session's state out of the engine's memory: into a file that moebius_session_load can read, too, or into
 * ordinary memory (path NULL). The session keeps its position, tokens and logits. Evaluating, forking, going back or
 * saving brings the state back first, with the same bits, or fails and leaves it parked; so does
 * moebius_session_unpark. Checkpoints are lost. The file stays when the session is closed. */
MOEBIUS_API moebius_status moebius_session_park(moebius_session *session, const char *path, moebius_error *error);
MOEBIUS_API moebius_status moebius_session_unpark(moebius_session *session, moebius_error *error);

/* The logits [n_vocab] after the last token, borrowed until the session changes. NULL where there are none: before the
 * first evaluation, after moebius_session_truncate, and where an evaluation ended before it had computed them. */
MOEBIUS_API const float *moebius_session_logits(const moebius_session *session);

/* The tokens so far [moebius_session_pos], borrowed until the session changes. */
MOEBIUS_API const int32_t *moebius_session_tokens(const moebius_session *session);

/* Bytes of device memory that the session's caches and recurrent state take, those that it shares with forks counted
 * in full. */
MOEBIUS_API size_t moebius_session_state_bytes(const moebius_session *session);

/* Forgets all tokens from position pos on, and returns the position that the session is then at: pos (0 where a parked
 * session's state can't be brought back), or where that is
 * not possible the nearest checkpoint before it, or 0. Recurrent layers go back to checkpoints alone, or within a draft
 * (moebius_batch_item). Windowed layers go back by 512 tokens, or as far as a loaded state reaches, and else to a
 * checkpoint. */
MOEBIUS_API int64_t moebius_session_truncate(moebius_session *session, int64_t pos);
/* The position that moebius_session_truncate would go to now, drafts apart, and 0 for one that is parked; nothing
 * changes. */
MOEBIUS_API int64_t moebius_session_way_back(const moebius_session *session, int64_t pos);

/* Whether that is always `pos`: the model has neither recurrent nor windowed layers. */
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
 * the session at `to`. So a text that grows is written as it grows. A saved session is a part from 0 on, and the other
 * way round. Logits are saved where `to` is the session's position. A part appears under its name once it is complete,
 * but is not synced to the drive: of a system that crashes a torn file may stay, which is refused. A part can end where
 * moebius_session_part_end says. */
MOEBIUS_API moebius_status moebius_session_save_part(moebius_session *session, int64_t from, int64_t to,
                                                     const char *path, moebius_error *error);
/* Appends a part to a session that is at the part's beginning and has the same tokens before it, which are compared.
 * Such sessions go on, and go back to the ends of parts, as the saved one (the latter as far as memory for checkpoints
 * suffices). What moebius_session_load refuses, and a part of another text or place, is refused, and the session stays
 * as it was. */
MOEBIUS_API moebius_status moebius_session_load_part(moebius_session *session, const char *path, moebius_error *error);
/* The last position in (from, to] at which a part can end, or else the first one after `to`. The session's position is
 * one; without windowed and recurrent layers all are; else those that moebius_session_truncate can go back to. */
MOEBIUS_API int64_t moebius_session_part_end(const moebius_session *session, int64_t from, int64_t to);
/* The bytes of such a part's file. Of recurrent layers each part has their whole state. */
MOEBIUS_API int64_t moebius_session_part_bytes(const moebius_session *session, int64_t from, int64_t to);

/* What the header of a saved session says. */
typedef struct moebius_part {
    int64_t from, n_tok;  /* tokens before the part, and with it */
    int64_t n_bytes;      /* of the file */
    uint64_t hash_before; /* of the tokens before the part: moebius_tokens_hash, begun with moebius_session_part_key */
    uint64_t hash;        /* of all tokens */
    bool has_logits;
} moebius_part;

/* The header has a checksum and agrees with the file's length; the rest of the file is not read. */
MOEBIUS_INLINE moebius_status moebius_part_read(const char *path, moebius_part *part, moebius_error *error);
/* A part's own tokens, ids[n] with n = n_tok - from, which the hashes in its header vouch for. */
MOEBIUS_API moebius_status moebius_part_tokens(const char *path, int32_t *ids, int64_t n, moebius_error *error);
/* What the hash of tokens begins with for parts that a session can load: another number for each model and type of KV
 * cache, and for sessions with cache-aware routing. */
MOEBIUS_API moebius_status moebius_session_part_key(const moebius_session *session, uint64_t *key,
                                                    moebius_error *error);
/* The hash of more tokens after those whose hash is `hash`. It finds candidates: different tokens may have the same. */
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

/* Callbacks for tests and tools, made during eval by the thread that called. They cost time. Each may be NULL, but
 * `predicted` needs `routed`. */
typedef struct moebius_trace {
    /* The router of a layer (MoE layers alone are counted) chose experts ids[t * n_used + rank] for n_tok tokens, best
     * first. */
    void (*routed)(void *user, int moe_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    /* The same, as predicted one layer before. */
    void (*predicted)(void *user, int moe_layer, int64_t n_tok, int64_t n_used, const int32_t *ids);
    /* The residual stream [n_embd] of the batch's last token after a layer. */
    void (*hidden)(void *user, int64_t layer, const float *x);
    /* Something is multiplied with weights, routers apart. The rows of a matrix come in the order of the tokens. Not
     * with several devices; MOEBIUS_USAGE there. */
    void (*product)(void *user, const moebius_product *p);
    void *user;
} moebius_trace;

/* From now on; NULL turns it off. */
MOEBIUS_INLINE void moebius_session_trace(moebius_session *session, const moebius_trace *trace);

/* ---- sampling ------------------------------------------------------------------------------------------------ */

typedef struct moebius_sampler moebius_sampler;

/* Added to the logit of a token: 5 makes it much likelier, -100 all but impossible, minus infinity impossible. */
typedef struct moebius_logit_bias {
    int32_t id;
    float bias; /* finite, or minus infinity */
} moebius_logit_bias;

/* The steps come in the order of these fields, but for the temperature, which comes last. Those that drop tokens go by
 * the probabilities at temperature 1 among the tokens that the steps before have left. With the defaults there are no
 * biases and no penalties, and of the filters only top-k, top-p and min-p. */
typedef struct moebius_sampler_options {
    float temperature; /* logits are divided by this; 0: always the likeliest token, after biases and penalties */

    const moebius_logit_bias *logit_biases; /* [n_logit_biases]; those of the same token add up */
    int n_logit_biases;
    float repeat_penalty;    /* makes tokens of the last repeat_last_n less likely, each once; 1: no penalty */
    float presence_penalty;  /* taken off the logits of those tokens, once; 0: no penalty */
    float frequency_penalty; /* taken off as often as the token is there; 0: no penalty */
    int repeat_last_n;       /* how many tokens these three look back; -1: all, up to 1,048,576 */
    /* DRY: a token that goes on with a sequence which the text had before, after dry_allowed_length tokens of it or
     * more, is less likely by dry_multiplier * dry_base^(length - dry_allowed_length). 0: off. */
    float dry_multiplier;
    float dry_base;
    int dry_allowed_length;
    int dry_last_n; /* how many tokens DRY looks back; -1: all, up to 1,048,576 */
    /* Strings at which sequences end, [n_dry_breakers]: each token that contains one. A string that is in no token
     * stands for the last token that it is made of. Control tokens always end sequences. */
    const char *const *dry_breakers;
    int n_dry_breakers;

    int top_k;             /* the k likeliest tokens are kept; 0: all */
    float typical_p;       /* the most typical that together have this probability are kept; 1: all */
    float top_p;           /* the likeliest that together have this probability are kept; 1: all */
    float min_p;           /* those less likely than this share of the likeliest are dropped; 0: none */
    float xtc_probability; /* how often XTC drops tokens; 0: never */
    float xtc_threshold;   /* of the tokens with this probability or more, all but the least likely are dropped */

    /* 0, or 2: Mirostat, in its second version, in place of the steps from top_k on. It draws such that tokens have a
     * surprise of mirostat_tau bits in the mean, and corrects itself after each token by mirostat_eta of the error. */
    int mirostat;
    float mirostat_tau;
    float mirostat_eta;

    uint64_t seed; /* the same seed, logits and text give the same tokens */
} moebius_sampler_options;

MOEBIUS_INLINE moebius_sampler_options moebius_default_sampler_options(void);
/* What the options point to is copied. Tokens that the model's file forbids (suppress_tokens) are never picked.
 * MOEBIUS_USAGE with a sentence when a value is out of its range. */
MOEBIUS_INLINE moebius_status moebius_sampler_open(moebius_sampler **out, const moebius_engine *engine,
                                                   const moebius_sampler_options *options, moebius_error *error);
/* Another sampler in the same state, for a fork of the text: both give the same tokens for the same logits, until one
 * of them gets another seed. */
MOEBIUS_API moebius_status moebius_sampler_clone(moebius_sampler **out, const moebius_sampler *sampler,
                                                 moebius_error *error);
MOEBIUS_API void moebius_sampler_close(moebius_sampler **sampler);
/* Chooses the next token from logits [n_vocab]. Allocates nothing. */
MOEBIUS_API int32_t moebius_sampler_pick(moebius_sampler *sampler, const float *logits);
/* Tells the sampler which token was appended to the text, for the penalties. OpenAI's count what was generated: for
 * them the prompt's tokens are left out. Allocates nothing. */
MOEBIUS_API void moebius_sampler_accept(moebius_sampler *sampler, int32_t id);
/* Forgets all tokens that were accepted, and what Mirostat learned from them; the random stream goes on. */
MOEBIUS_API void moebius_sampler_forget(moebius_sampler *sampler);
/* Starts another random stream; the tokens that were accepted stay. */
MOEBIUS_API void moebius_sampler_reseed(moebius_sampler *sampler, uint64_t seed);

/* A token and the natural logarithm of its probability. */
typedef struct moebius_logprob {
    int32_t id;
    double logprob; /* minus infinity: impossible */
} moebius_logprob;

/* Returns the log-probability of token `id` by the logits [n_vocab] as the model gave them, at temperature 1, and puts
 * the likeliest tokens in top[0..n_top), best first, of equal ones the lowest id first; where fewer are possible the
 * rest has id -1. A logit that is NaN or minus infinity means "never", and so does an id outside of the vocabulary.
 * Takes time in proportion to n_vocab, for large n_top at worst to n_vocab * n_top. Thread-safe. */
MOEBIUS_API double moebius_logprobs(const float *logits, int32_t n_vocab, int32_t id, moebius_logprob *top, int n_top);

/* ---- grammars -------------------------------------------------------------------------------------------------- */

/* What an answer may be, compiled once; read-only: shareable between threads. */
typedef struct moebius_grammar moebius_grammar;
/* A place in one text that follows a grammar; one thread's at a time. */
typedef struct moebius_matcher moebius_matcher;

/* SCHEMA: a JSON schema (draft 4 to 2020-12); an empty text means any JSON object. GBNF: rules as llama.cpp has them,
 * in which %json{SCHEMA} is a JSON value and %token"TEXT" a special token; no text has a token by its number, <[ID]>,
 * where there is no vocabulary. REGEX: a regular expression for the whole text. */
typedef enum moebius_grammar_kind {
    MOEBIUS_GRAMMAR_SCHEMA,
    MOEBIUS_GRAMMAR_GBNF,
    MOEBIUS_GRAMMAR_REGEX
} moebius_grammar_kind;

/* What schemas ask for that can't be enforced is left out, and listed, where it is an error otherwise. */
enum { MOEBIUS_GRAMMAR_LENIENT = 1 };

/* Compiles n bytes of text. vocab is borrowed until the grammar is closed; NULL: its matchers know bytes only. FORMAT:
 * the text is wrong, and the sentence says where; UNSUPPORTED: it can't be enforced. */
MOEBIUS_API moebius_status moebius_grammar_open(moebius_grammar **out, const moebius_vocab *vocab,
                                                moebius_grammar_kind kind, const char *text, size_t n, unsigned flags,
                                                moebius_error *error);
/* Its matchers must have been closed. */
MOEBIUS_API void moebius_grammar_close(moebius_grammar **grammar);
/* About how much memory it takes, which grows with what its texts meet. Thread-safe. */
MOEBIUS_API size_t moebius_grammar_bytes(const moebius_grammar *grammar);
MOEBIUS_API size_t moebius_grammar_n_unenforced(const moebius_grammar *grammar);
/* A keyword that is not enforced, and its JSON pointer in *pointer, both borrowed. */
MOEBIUS_API const char *moebius_grammar_unenforced(const moebius_grammar *grammar, size_t i, const char **pointer);

/* At a text's begin. */
MOEBIUS_API moebius_status moebius_matcher_open(moebius_matcher **out, moebius_grammar *grammar, moebius_error *error);
/* Another one at the same place, for a fork of the text. */
MOEBIUS_API moebius_status moebius_matcher_clone(moebius_matcher **out, const moebius_matcher *matcher,
                                                 moebius_error *error);
MOEBIUS_API void moebius_matcher_close(moebius_matcher **matcher);
/* Moves on by a token that was appended; false: it does not fit, and the matcher stays. After a failure (memory, or a
 * limit on states for one text) nothing fits any more, and moebius_matcher_status says why. */
MOEBIUS_API bool moebius_matcher_accept(moebius_matcher *matcher, int32_t id);
MOEBIUS_API bool moebius_matcher_allows(moebius_matcher *matcher, int32_t id); /* whether it would fit */
/* The same with n bytes: moves on as far as they fit, by *n_fit of them. */
MOEBIUS_API bool moebius_matcher_feed(moebius_matcher *matcher, const char *bytes, size_t n, size_t *n_fit);
/* Sets the bits of the tokens that may come next, bit id % 64 of bits[id / 64], and clears all others. */
MOEBIUS_API void moebius_matcher_mask(moebius_matcher *matcher, uint64_t *bits);
MOEBIUS_API bool moebius_matcher_may_end(moebius_matcher *matcher);  /* the text may end here */
MOEBIUS_API bool moebius_matcher_must_end(moebius_matcher *matcher); /* and nothing else is possible */
/* Copies the bytes that must come next, at most n, and returns how many these are. */
MOEBIUS_API size_t moebius_matcher_forced(moebius_matcher *matcher, char *bytes, size_t n);
MOEBIUS_API moebius_status moebius_matcher_status(const moebius_matcher *matcher, moebius_error *error);

/* From now on the sampler picks only what the matcher, which is borrowed, allows, and moves it on with each token that
 * it is told of; NULL: anything again. A pick is drawn as ever first. Where the matcher refuses that token, one is
 * drawn among the allowed ones: of these, token x comes with p(x) + (1 - A) p(x) / A = p(x) / A, A being the
 * probability of all that is allowed. (The steps that drop tokens see all tokens first, and only allowed ones then.) A
 * pick of -1: nothing is allowed. A clone of the sampler has no matcher. MOEBIUS_USAGE where the matcher's grammar has
 * no vocabulary, or one of another size than the engine's. */
MOEBIUS_API moebius_status moebius_sampler_set_matcher(moebius_sampler *sampler, moebius_matcher *matcher,
                                                       moebius_error *error);

/* ---- planning -------------------------------------------------------------------------------------------------- */

/* What a machine can do, as JSON text (docs/planner.md). */
typedef struct moebius_machine moebius_machine;

typedef struct moebius_probe_options {
    int n_threads; /* 0: one for each processor that the process may use */
    /* Files, one on each drive that is to be measured: the larger, the better, a model mostly. Borrowed. */
    const char *const *files;
    int n_files;
    bool gpus; /* GPUs are listed, too */
    /* What is measured next, and how much is done, 0 to 1; false: measure no more. May be NULL. */
    bool (*progress)(void *user, const char *what, double done);
    void *user;
} moebius_probe_options;

MOEBIUS_INLINE moebius_probe_options moebius_default_probe_options(void);
/* Measures for some seconds, a minute at most, with 1 GiB of memory or an eighth of what is free. */
MOEBIUS_INLINE moebius_status moebius_machine_probe(moebius_machine **out, const moebius_probe_options *options,
                                                    moebius_error *error);
MOEBIUS_API void moebius_machine_close(moebius_machine **machine);
MOEBIUS_API const char *moebius_machine_json(const moebius_machine *machine); /* borrowed */
/* Keeps it for moebius_plan_open: in a file (NULL: in the user's cache directory, as what this machine can do). */
MOEBIUS_API moebius_status moebius_machine_save(const moebius_machine *machine, const char *path, moebius_error *error);

typedef struct moebius_plan moebius_plan;

typedef struct moebius_plan_options {
    /* A file of what the machine can do. NULL: what was kept of this one, or else its threads and memory alone. */
    const char *machine;
    int n_threads;      /* 0: all that the machine has */
    int64_t n_ctx;      /* tokens of a text; 0: as a session has them, or what n_ctx_most leaves to the plan */
    int64_t n_depth;    /* tokens in the context for which decode is planned; 0: all */
    int64_t n_texts;    /* that decode together; 0: 1 */
    int64_t n_batch;    /* prompt tokens that are computed together; 0: 512 */
    int kv;             /* a moebius_kv_type */
    int64_t ram_bytes;  /* that the process may take; 0: what is free */
    int64_t vram_bytes; /* of each GPU; 0: what is free */
    bool gpu;           /* the machine's first GPU runs the layers */
    int64_t n_cpu_moe;  /* with it: layers whose experts stay in memory; 0: the least that fits; less than 0: none */
    double floor;       /* tokens a second that decode must be able to reach; 0: none */
    const char *usage;  /* a file of counts of experts; "": the one in the user's cache directory; NULL: none */
    /* A file of receipts (docs/planner.md), from which speeds are forecast; "": the one in the user's cache directory.
     * NULL: none, so that the ceilings are all that is known. */
    const char *receipts;
    int64_t n_prompt;    /* tokens of the prompt for which prefill is planned; 0: n_batch */
    int64_t prompt_from; /* tokens in the context before that prompt */
    int64_t n_ctx_most; /* more than 0, and n_ctx 0: the plan chooses the longest context, of at most so many tokens and
                           those that the model was trained for, with which all experts keep their memory; else the
                           longest that takes a quarter of what texts and experts share */
    int64_t n_texts_most; /* texts that there may be at once as room permits, to be told; 0: n_texts */
    int64_t state_bytes;  /* memory for texts' state; what texts leave has prompts that are kept. 0: as there is room */
    /* How a GPU and the processor divide the experts, as moebius_engine_options has it: "experts", "layers", "last" or
     * "cache" with what may follow. NULL: as n_cpu_moe says. */
    const char *split;
    const char *const *store_dirs; /* of a prepared store, [n_store_dirs]: its drives give the experts. Of this machine
                                      it must be a finished one of the model, of another one these are drives' names */
    int n_store_dirs;
    double car; /* the threshold of cache-aware routing; 0: off */
    /* Of a token's choices, the shares found on the GPU, in memory and on drives, 0 to 1, as somebody measured them.
     * What they lack of 1 gives way to experts at hand. All 0: the plan finds them. */
    double found_vram, found_ram, found_drive;
    /* What n_threads read from the processor's memory, in bytes a second; 0: as the machine's file and receipts say. */
    double memory_per_s;
    /* Multiply-adds on bytes of n_threads' vector units, a second; 0: as the machine's file and receipts say. */
    double units_per_s;
    /* What the machine's one drive gives, in bytes a second; 0: as the machine's file says and, of this machine, the
     * receipts. */
    double drive_per_s;
    /* With `gpu` and the split "stages": the machine's first so many GPUs divide the layers. 0, 1: one GPU. */
    int n_gpu;
} moebius_plan_options;

MOEBIUS_INLINE moebius_plan_options moebius_default_plan_options(void);
/* Plans for the model at `path`, any part of a split set, of which the first megabytes are enough. A plan that can't
 * work is one, too, and says what could. */
MOEBIUS_INLINE moebius_status moebius_plan_open(moebius_plan **out, const char *path,
                                                const moebius_plan_options *options, moebius_error *error);
/* The same for texts on an engine, whose threads, devices and memory the plan takes as they are: those of the options,
 * and `machine`, count nothing. The model's file is not read again. MOEBIUS_UNSUPPORTED where several processes have
 * GPUs, and where devices in the machine's memory divide the layers. */
MOEBIUS_INLINE moebius_status moebius_engine_plan(moebius_plan **out, const moebius_engine *engine,
                                                  const moebius_plan_options *options, moebius_error *error);
MOEBIUS_API void moebius_plan_close(moebius_plan **plan);
MOEBIUS_API bool moebius_plan_is_refused(const moebius_plan *plan);
/* Tokens a second of decode, of all texts, or of prefill: the ceiling, and the band that is forecast; 0: not known. */
MOEBIUS_API void moebius_plan_rates(const moebius_plan *plan, bool prefill, double *ceiling, double *low, double *high);
/* What each part of the work permits alone, in tokens a second: products with weights, attention and recurrent state,
 * experts that the processor computes beside a GPU, reads of experts. 0: it takes no time, or is not known. */
enum { MOEBIUS_PLAN_PARTS = 4 };
MOEBIUS_API void moebius_plan_part_rates(const moebius_plan *plan, bool prefill, double rates[MOEBIUS_PLAN_PARTS]);
/* What bounds it: "ram", "stream", "vram", "offload", "tiered" or "ranks" (docs/planner.md). */
MOEBIUS_API const char *moebius_plan_regime(const moebius_plan *plan);
MOEBIUS_API uint64_t moebius_plan_ram_bytes(const moebius_plan *plan); /* memory that the process will take */
MOEBIUS_API int64_t moebius_plan_n_ctx(const moebius_plan *plan);      /* tokens of a text, given or chosen */
MOEBIUS_API const char *
moebius_plan_refusal(const moebius_plan *plan); /* the number that fails; borrowed; NULL: none */
/* Of a refused plan, what would work instead, i from 0: flags, for people; borrowed. NULL: there is no more. */
MOEBIUS_API const char *moebius_plan_nearest(const moebius_plan *plan, int i);
MOEBIUS_API const char *moebius_plan_line(const moebius_plan *plan); /* for people, in a line; borrowed */
MOEBIUS_API const char *moebius_plan_text(const moebius_plan *plan); /* for people; borrowed */
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
