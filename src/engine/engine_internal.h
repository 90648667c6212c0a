/* What an engine and a session are made of. */
#ifndef ENGINE_ENGINE_INTERNAL_H
#define ENGINE_ENGINE_INTERNAL_H

#include <stdatomic.h>

#include "base/log.h"
#include "base/pool.h"
#include "base/topology.h"
#include "engine/cache_watch.h"
#include "engine/device_options.h"
#include "engine/engine_vocab.h"
#include "engine/gpu_choice.h"
#include "engine/prefetch_trial.h"
#include "engine/status.h"
#include "engine/thread_tuner.h"
#include "engine/tuning.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "moebius/moebius.h"
#include "planner/facts.h"
#include "store/store.h"

/* A device of this process. */
struct engine_device {
    struct asked_device asked;
    struct pool *pool;
    struct backend *device;
    struct backend *cpu; /* `device` itself or, with --check-ops, the one that is compared with the reference; borrowed;
                            NULL: this is not a CPU device */
    struct backend *vulkan;  /* `device` if it is a Vulkan device, else NULL; borrowed */
    struct compute *compute; /* computes its experts; NULL for the first device */
    char name[32];           /* "place 1 (cpu:4)", or "stage 1 (cpu:4)" where layers are divided */
    moebius_engine *engine;
    struct gpu_need need; /* what its layers take, where layers are divided */
    size_t spare_bytes;   /* if it computes layers: what slots leave free of its own memory, for operations' scratch */
};

struct moebius_engine {
    struct topology *topology; /* NULL: one memory node */
    struct engine_device devices[ENGINE_MAX_DEVICE];
    int n_device;
    struct model_stage stages[ENGINE_MAX_DEVICE]; /* [n_stage], as model_load takes them, where n_stage is above 1 */
    int n_stage;       /* devices that compute layers, the first ones of all: 1, or all where layers are divided */
    struct pool *pool; /* the first device's */
    struct thread_tuner thread_tuner;
    const struct kernels *kernels; /* of the CPU device */
    struct gguf *gguf;
    struct store *store;
    struct backend *device;    /* the first; on rank 0 it runs the layers, or those of the first stage */
    struct backend *no_layers; /* on other ranks: a null device, which stands for the layers that rank 0 runs */
    struct model *model;
    struct moebius_vocab vocab;
    struct log log;
    moebius_engine_options options;
    enum policy_kind policy;
    uint64_t total_bytes;    /* of the model's files, for progress */
    struct plan_facts facts; /* what the model takes, as plans count it; planning_facts_close */

    /* eval.c */
    struct model_work *work; /* NULL before the first session */
    int64_t n_batch;         /* the largest batch of any session; work space is for so many tokens, mostly */
    int64_t n_work;          /* tokens that there is work space for now: fewer while texts only decode and experts are
                                read, more during a long prompt (prompt_batch.h) */
    size_t work_bytes;       /* host memory of the work space */
    size_t token_bytes;      /* what one more token of a batch takes: work space, and what experts keep for it */
    struct prefetch_trial prefetch;
    atomic_bool is_interrupted; /* the evaluation that is running is to end */
    int n_few;                  /* evaluations of few tokens since the last of more */

    /* session.c */
    struct state_pool *pools[MOEBIUS_KV_Q8_0 + 1]; /* by type of the caches; NULL before the first such session */

    /* engine_places.c */
    struct device_options asked;   /* options.devices, options.split and replicas */
    struct moe_places places;      /* of the model; n_place 0: the experts are not divided */
    struct place **place;          /* [places.n_place], owned; the first is NULL */
    struct division_place *speeds; /* [places.n_place] rooms and speeds by which the experts were divided */
    struct place_speeds place_speeds;
    struct place_layer_stats *own; /* [n_moe_layer] of the first device, as moe_places has it */
    struct cache_watch cache;      /* of the first device's slots, if they are a cache */

    /* memory.c */
    size_t bound_bytes; /* the bound on the process's peak, options.ram_bytes or chosen; 0: none */
    struct engine_refused {
        size_t need_bytes; /* of that, what it needs at least; 0: none was refused */
        int64_t n_ctx;
        int kv;               /* a moebius_kv_type */
    } refused;                /* the last session that had no room */
    size_t overhead_bytes;    /* memory of the process that base/mem.h does not count */
    size_t limit_bytes;       /* the limit on what base/mem.h counts */
    size_t spare_bytes;       /* room below the limit for the scratch that operations take when they first run */
    size_t scratch_bytes;     /* how far scratch may grow in this pass; slots leave room for it */
    size_t vram_bytes;        /* options.vram_bytes; SIZE_MAX: no bound */
    bool is_limited;          /* the limit is in force */
    bool has_noted_streaming; /* the log has been told that experts are read while the model runs */
    bool has_noted_loss;      /* the log has been told that a GPU was lost */
    struct memory_guard {
        const char *root;  /* the root of /proc and /sys, borrowed; NULL: "" (tests have a tree of their own) */
        int64_t looked_ns; /* when the guard last looked; 0: never */
        size_t free_bytes; /* the system's free memory at that time */
        size_t own_bytes;  /* what this process had mapped at that time */
        int64_t short_ns;  /* when memory was last short; 0: never */
        int64_t told_ns;   /* when the log was last told so; 0: never */
        size_t from_bytes; /* limit_bytes before the guard lowered it; 0: it is not lowered */
    } guard;
    struct heat_guard {
        const char *root;  /* as in struct memory_guard */
        int64_t looked_ns; /* when the guard last looked; 0: never */
        bool is_told;      /* the log has been told of a hot sensor, and it has not cooled down since */
    } heat;
    struct tuning tuning; /* in force */
    uint64_t fingerprint; /* what engine_fingerprint returns; 0 before it was first called */
    /* warm.c */
    bool is_warm;     /* engine_warm has run: the slots were filled, or there was nothing to fill them with */
    char *usage_path; /* NULL: counts are not kept */
    /* roof.c */
    char *roof_memory; /* [roof_bytes] read to measure the memory's speed; NULL before the first measurement */
    size_t roof_bytes;
    struct pool *roof_pool; /* threads of all devices together; NULL: the one device's pool measures */
};

struct moebius_session {
    moebius_engine *engine;
    moebius_session_options options;
    struct model_state *state;
    int64_t n_batch; /* tokens of a batch; long prompts may have larger ones (prompt_batch.h) */
    struct car car;
    int64_t sort_cutoff;
    struct cancel cancel;
    moebius_progress_fn *progress; /* may be NULL */
    void *progress_user;
    struct parked_state {
        bool is_parked;
        int64_t pos; /* tokens of the text */
        char *path;  /* the file that has the state; NULL: `bytes` has it */
        char *bytes; /* [n_bytes] */
        size_t n_bytes;
    } parked;
    int32_t *ids; /* [n_ctx]; those below the state's position are the text */
    size_t ids_bytes;
    float *logits; /* [n_vocab]; NULL until session_logits_room */
    size_t logits_bytes;
    const float *last; /* `logits` if they are those after the text's last token, else NULL */
    moebius_trace trace;
    struct moe_trace moe_trace;
};

/* ---- session.c ------------------------------------------------------------------------------------------------- */

/* Makes room for a session's logits, if there is none yet. */
MUST_USE err_code session_logits_room(moebius_session *s, struct err *e);

/* ---- engine.c -------------------------------------------------------------------------------------------------- */

/* Steps of opening, in this order. After a failure the caller closes the engine. */
void engine_begin_log(moebius_engine *g);
MUST_USE err_code engine_check_options(moebius_engine *g, struct err *e);
/* Opens the GGUF, with the metadata that the options override. */
MUST_USE err_code engine_open_gguf(moebius_engine *g, const char *path, struct err *e);
/* Fills g->facts from the GGUF, which must be open; with several ranks also options.expert_ram_bytes from the share. */
MUST_USE err_code engine_size_model(moebius_engine *g, struct err *e);
/* Opens what experts are read from: the GGUF's files, with its checksums if it has some, and the prepared store. The
 * GGUF must be open. */
MUST_USE err_code engine_open_store(moebius_engine *g, struct err *e);
/* Loads the model to the devices, with the functions, that `own` names; the rest of the parameters is the engine's. */
MUST_USE err_code engine_load_model(moebius_engine *g, const struct model_load_params *own, struct err *e);

/* ---- park.c ---------------------------------------------------------------------------------------------------- */

/* Brings a parked session's state back; on failure it stays parked. */
MUST_USE err_code session_unpark(moebius_session *s, struct err *e);
void session_forget_parked(moebius_session *s);

/* ---- session_file.c -------------------------------------------------------------------------------------------- */

MUST_USE err_code session_save(moebius_session *s, const char *path, struct err *e);
MUST_USE err_code session_load_parked(moebius_session *s, struct err *e);

/* ---- gpu.c ----------------------------------------------------------------------------------------------------- */

/* What the model takes of the memory of this process's devices (in memory.c). */
struct gpu_need engine_gpu_need(const moebius_engine *g);

/* Whether options.gpu asks for a GPU: "auto" or a number. */
bool engine_asks_for_gpu(const moebius_engine *g);
MUST_USE err_code engine_check_gpu(const moebius_engine *g, struct err *e);
/* Chooses the devices, if options.gpu says that the engine shall: after the model has been sized (engine_size_model),
 * and before devices are opened. */
MUST_USE err_code engine_choose_gpu(moebius_engine *g, struct err *e);

/* ---- gpu_memory.c ---------------------------------------------------------------------------------------------- */

/* Whether a device works in memory of its own (a graphics card), which the limit on the process's memory does not
 * bound. */
bool engine_has_own_memory(const moebius_engine *g, int device);
/* Bounds the places' rooms by the devices' own memory. The layers must have been loaded. */
void engine_gpu_rooms(const moebius_engine *g, struct division_place *places);
/* Has devices ask their experts for memory when their own runs out. The model must have been loaded. */
void engine_gpu_reclaim(moebius_engine *g);
/* Warns if a driver seems to keep some of a GPU's memory in the host's. */
void engine_gpu_report(const moebius_engine *g);
/* ERR_LIMIT if a device that computes layers has too little memory for them. */
MUST_USE err_code engine_gpu_bound(const moebius_engine *g, int device, const struct gpu_need *need, struct err *e);
/* Makes room for a session's state: later_bytes [n_stage]. ERR_LIMIT if there can't be enough. */
MUST_USE err_code engine_gpu_session(moebius_engine *g, const size_t *later_bytes, struct err *e);
/* Logs, once, that a GPU was lost. To be called after an evaluation that failed. */
void engine_gpu_lost(moebius_engine *g);
/* Bytes of a device's own memory that slots leave free. */
size_t engine_gpu_spare(const moebius_engine *g, int device);

/* ---- devices.c ------------------------------------------------------------------------------------------------- */

/* Reads options.devices and options.split. */
MUST_USE err_code engine_list_devices(moebius_engine *g, struct err *e);
/* The number of layers whose experts are to be in the host's memory: options.n_cpu_moe, where a negative number means
 * none. */
int64_t engine_n_cpu_moe(const moebius_engine *g);
/* Has the last engine_n_cpu_moe layers' experts go to the last device. */
void engine_split_last(moebius_engine *g);
/* Refuses more such layers than the model has. The model must have been sized. */
MUST_USE err_code engine_check_cpu_moe(const moebius_engine *g, struct err *e);
/* Fills g->devices from g->asked. */
void engine_take_devices(moebius_engine *g);
/* Opens the devices of g->devices. They must be closed even after a failure. */
MUST_USE err_code engine_open_devices(moebius_engine *g, struct err *e);
void engine_close_devices(moebius_engine *g);
int engine_n_threads(const moebius_engine *g); /* of all devices */
/* Whether each thread of all devices has a processor of its own, so that threads may spin. */
bool engine_has_core_each(const moebius_engine *g);

/* ---- engine_stages.c ------------------------------------------------------------------------------------------- */

/* Refuses options that can't be combined with --split stages. */
MUST_USE err_code engine_check_stages(const moebius_engine *g, struct err *e);
/* Divides the layers among the open devices if --split stages asks for it, or if the first of several GPUs has too
 * little memory for the model: fills g->stages. */
MUST_USE err_code engine_choose_stages(moebius_engine *g, struct err *e);
/* Whether layers are divided among devices. */
static inline bool engine_has_stages(const moebius_engine *g)
{
    return g->n_stage > 1;
}

/* ---- engine_places.c ------------------------------------------------------------------------------------------- */

/* Divides the experts among the places; a function for model_load_params.divide. */
MUST_USE err_code engine_divide(void *engine, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                                struct division *out, struct err *e);
/* Opens the places beside the first device. The model must have been loaded; the places must be closed before it. */
MUST_USE err_code engine_open_places(moebius_engine *g, struct err *e);
void engine_close_places(moebius_engine *g);

/* The sum of a figure over the experts of all devices, without the copies that a cache holds. Must not be called while
 * a layer is computed. */
size_t engine_expert_bytes(const moebius_engine *g, size_t (*bytes)(const struct experts *x));
/* Whether some experts are read only when they are needed. */
bool engine_is_streaming(const moebius_engine *g);
/* Has each device open its share of slots in the free memory, except what is kept for scratch, and fill them with what
 * earlier runs used most (past NULL: leaves them empty). */
MUST_USE err_code engine_open_slots(moebius_engine *g, const struct usage *past, struct err *e);
/* Has each device close its share of slots, until n_bytes fit below the limit on memory. */
void engine_reclaim_experts(moebius_engine *g, size_t n_bytes);

/* ---- expert_moves.c -------------------------------------------------------------------------------------------- */

/* Whether the first device's slots are a cache of what the other places have. */
bool engine_has_cache(const moebius_engine *g);
/* A figure of the cache's slots; 0 if there is no cache. */
size_t engine_cache_bytes(const moebius_engine *g, size_t (*bytes)(const struct experts *x));
/* Fills the cache: first with the experts that its policy considers hottest, then with any. */
void engine_fill_cache(moebius_engine *g);
/* After a pass: moves hotter experts into the cache, as long as g->cache (cache_watch.h) allows it. */
void engine_move_experts(moebius_engine *g);

/* ---- engine_ranks.c -------------------------------------------------------------------------------------------- */

/* The processes of this run; NULL: this process is alone. */
struct ranks *engine_ranks(const moebius_engine *g);
int engine_rank(const moebius_engine *g); /* this process's number; 0 if it is alone */
MUST_USE err_code engine_check_ranks(moebius_engine *g, struct err *e);
/* Bytes that experts may take below the limits on memory; SIZE_MAX: no bound. all_bytes: of all experts, of which
 * expert_ram_share is a share. */
size_t engine_expert_room(const moebius_engine *g, size_t all_bytes);
/* On rank 0: fills g->speeds with what all ranks offer. */
MUST_USE err_code engine_ask_ranks(moebius_engine *g, const struct expert_layer *layers, const size_t *slot_bytes,
                                   int n_layer, struct err *e);
/* Waits until the other ranks have loaded their experts, and opens a place for each. */
MUST_USE err_code engine_open_ranks(moebius_engine *g, struct err *e);
/* engine_open_slots on the other ranks, if there are any. */
MUST_USE err_code engine_warm_ranks(moebius_engine *g, const struct usage *past, struct err *e);

/* ---- eval.c ---------------------------------------------------------------------------------------------------- */

/* Makes sure that there is work space for batches of n_batch tokens, from now until the engine is closed. (While texts
 * only decode and experts are read, it is shrunk to planning_few_tokens, and grows again when it is needed.) */
MUST_USE err_code engine_work_need(moebius_engine *g, int64_t n_batch, struct err *e);
/* Undoes engine_work_need for a session that was not admitted: n_batch is what it was before. */
void engine_work_back(moebius_engine *g, int64_t n_batch);
/* Makes the present work space fit n_batch tokens. */
MUST_USE err_code engine_work_fit(moebius_engine *g, int64_t n_batch, struct err *e);

/* ---- memory.c -------------------------------------------------------------------------------------------------- */

/* Bounds the process's memory by options.ram_bytes or, without it, by what is free. To be called when the files'
 * directories have been read, and before the weights are. ERR_LIMIT when the model needs more than the bound. */
MUST_USE err_code engine_memory_bound(moebius_engine *g, struct err *e);
void engine_memory_release(moebius_engine *g);

/* A hash of the model's shapes, its overrides and some of its weights, which tells a model's fine-tunes apart;
 * moebius_fingerprint leaves the weights out. */
MUST_USE err_code engine_fingerprint(moebius_engine *g, uint64_t *out, struct err *e);

/* To be called between passes. When the system's or the control group's free memory is below a small part of the bound,
 * or will be soon at the rate at which it falls, lowers the limit, so that experts give slots back; when there has been
 * much more for a while, raises it again. Looks at most twenty times a second, and tells the log. Does nothing if no
 * bound is in force. */
void engine_memory_guard(moebius_engine *g);
/* To be called between passes, too: logs a warning when a temperature comes near its limit, and again only after it has
 * cooled down. */
void engine_heat_guard(moebius_engine *g);

/* Creates a session by calling `create`, and makes room for it. `create` also says how much memory the session will
 * take later on each device that computes layers: later_bytes [n_stage], zeros at first. ERR_LIMIT, with the number of
 * bytes needed, when there is too little. The caller closes what was created either way. */
typedef err_code engine_create_fn(void *user, size_t *later_bytes, struct err *e);
MUST_USE err_code engine_memory_session(moebius_engine *g, engine_create_fn *create, void *user, struct err *e);
/* Whether slots and work space share memory that is bounded. */
bool engine_shares_memory(const moebius_engine *g);
/* Before a pass of n_tok tokens: has the experts' slots leave room for the scratch of its operations. */
void engine_memory_pass(moebius_engine *g, int64_t n_tok);
/* The most host memory that places beside the first device take to compute n_tok tokens. */
size_t engine_places_bytes(const moebius_engine *g, int64_t n_tok);
/* Bytes that slots must still leave free for scratch. */
size_t engine_kept_bytes(const moebius_engine *g);

/* ---- warm.c ---------------------------------------------------------------------------------------------------- */

/* How often earlier runs used each expert; *past has no counts if that is not known. The caller closes it. */
MUST_USE err_code engine_past_usage(moebius_engine *g, int n_layer, int64_t n_expert, struct usage *past,
                                    struct err *e);
/* Fills the experts' slots with what earlier runs used most. Calls after the first do nothing. */
MUST_USE err_code engine_warm(moebius_engine *g, struct err *e);
/* Adds this run's counts to those that are kept. A failure is logged. */
void engine_usage_save(moebius_engine *g);

/* ---- drive_speed.c ----------------------------------------------------------------------------------------------- */

/* Bytes a second at which experts can be read from the store, measured for a tenth of a second; 0: not measurable. */
double engine_drive_speed(const moebius_engine *g);

/* ---- roof.c ---------------------------------------------------------------------------------------------------- */

/* Bytes a second at which all threads together read from memory, measured on up to n_bytes of it; 0: there is no memory
 * to measure with. */
double engine_read_speed(moebius_engine *g, size_t n_bytes);
/* Frees the memory that measurements took. */
void engine_roof_close(moebius_engine *g);

/* ---- tuning.c -------------------------------------------------------------------------------------------------- */

/* Reads the tuning from the file that the options name, or else from the cache directory, and measures what the latter
 * lacks. */
MUST_USE err_code engine_tune(moebius_engine *g, struct err *e);

#endif
