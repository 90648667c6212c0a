/* What an engine and a session are made of. */
#ifndef ENGINE_ENGINE_INTERNAL_H
#define ENGINE_ENGINE_INTERNAL_H

#include <stdatomic.h>

#include "base/log.h"
#include "base/pool.h"
#include "base/topology.h"
#include "engine/cache_watch.h"
#include "engine/device_options.h"
#include "engine/gpu_choice.h"
#include "engine/thread_tuner.h"
#include "engine/prefetch_trial.h"
#include "engine/tuning.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "moebius/moebius.h"
#include "planner/facts.h"
#include "reply/reply.h"
#include "store/store.h"
#include "template/template.h"
#include "tokenizer/tokenizer.h"

/* A chat template of the file. */
struct vocab_template {
    const char *name;   /* "": the default one */
    const char *source; /* its text */
    struct vocab_template *next;
};

struct moebius_vocab {
    struct tokenizer *tokenizer;
    struct vocab_template *templates; /* owned by the arena */
    struct vocab_bytes *bytes;        /* the tokens as grammars need them, once a grammar does */
    struct arena arena;
};

/* ---- grammars.c ------------------------------------------------------------------------------------------------ */

MUST_USE err_code vocab_bytes_open(struct vocab_bytes **out, struct err *e);
void vocab_bytes_close(struct vocab_bytes **b);
int32_t matcher_n_vocab(const moebius_matcher *m); /* tokens of its grammar's vocabulary; 0: it has none */

/* ---- chat_template.c ------------------------------------------------------------------------------------------- */

/* Takes in all that the file says of its vocabulary. To be emptied, after a failure, too. */
MUST_USE err_code vocab_fill(struct moebius_vocab *v, const struct gguf *g, struct err *e);
void vocab_empty(struct moebius_vocab *v);

struct moebius_template {
    struct template *template;
    const moebius_vocab *vocab;    /* borrowed; may be NULL */
    const char *source;            /* owned by the arena */
    struct template_var tokens[4]; /* [n_token], special tokens by name; their texts are owned by the arena */
    int n_token;
    int32_t end;              /* the token that the template writes behind an answer, or TOKEN_NONE */
    struct reply_style style; /* how its model writes reasoning and calls */
    struct arena arena;
};

/* A device of this process. */
struct engine_device {
    struct asked_device asked;
    struct pool *pool;
    struct backend *device;
    struct backend *cpu; /* `device`, or the one that is compared with the reference; borrowed; NULL: no CPU device */
    struct backend *vulkan;  /* the same of a Vulkan device */
    struct compute *compute; /* of its experts; NULL for the first device */
    char name[32];           /* "place 1 (cpu:4)", or "stage 1 (cpu:4)" where layers are divided */
    moebius_engine *engine;
    struct gpu_need need; /* what its layers take, where layers are divided */
    size_t spare_bytes;   /* of its own memory, if it computes layers: room for what operations take at first */
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
    struct backend *device;    /* the first, which runs the layers, or those of the first stage, unless rank 0 does */
    struct backend *no_layers; /* on other ranks: the device of what rank 0 has */
    struct model *model;
    struct moebius_vocab vocab;
    struct log log;
    moebius_engine_options options;
    enum policy_kind policy;
    uint64_t total_bytes;    /* of the model's files, for progress */
    struct plan_facts facts; /* what the model takes, as plans count it; planning_facts_close */

    /* eval.c */
    struct model_work *work; /* NULL before the first session */
    int64_t n_batch;         /* tokens of a batch, but for long prompts and where few do */
    int64_t n_work;          /* tokens that there is work space for now */
    size_t work_bytes;       /* of the host's memory, what work space has */
    size_t token_bytes;      /* work space of one more token of a batch, with what experts keep for it */
    struct prefetch_trial prefetch;
    atomic_bool is_interrupted; /* the evaluation that is running is to end */
    int n_few;                  /* evaluations of few tokens since the last of more */

    /* session.c */
    struct state_pool *pools[MOEBIUS_KV_Q8_0 + 1]; /* by type of the caches; NULL before the first such session */

    /* engine_places.c */
    struct device_options asked;   /* options.devices, options.split and replicas */
    struct moe_places places;      /* of the model; n_place 0: the experts are not divided */
    struct place **place;          /* [places.n_place], owned; the first is NULL */
    struct division_place *speeds; /* [places.n_place] what the places offered */
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
    size_t spare_bytes;       /* room below the limit for what operations take when they first run */
    size_t scratch_bytes;     /* what scratch may grow to in this pass: slots leave room for that */
    size_t vram_bytes;        /* options.vram_bytes; SIZE_MAX: no bound */
    bool is_limited;          /* the limit is in force */
    bool has_noted_streaming; /* the log has been told that experts stream */
    bool has_noted_loss;      /* the log has been told that a GPU was lost */
    struct memory_guard {
        const char *root;             /* of the system's files, borrowed; NULL: "" (tests have a tree of their own) */
        int64_t looked_ns;            /* when it last looked what is free; 0: never */
        size_t free_bytes, own_bytes; /* what was then, and what this process had mapped */
        int64_t short_ns;             /* when memory was last short, */
        int64_t told_ns;              /* and when the log was last told; 0: never */
        size_t from_bytes;            /* limit_bytes before it was lowered; 0: it was not */
    } guard;
    struct heat_guard {
        const char *root;  /* as above */
        int64_t looked_ns; /* when it last looked; 0: never */
        bool is_told;      /* the log was, and nothing has cooled down since */
    } heat;
    struct tuning tuning; /* in force */
    uint64_t fingerprint; /* of engine_fingerprint; 0 before it was asked for */
    /* warm.c */
    bool is_warm;     /* the slots were filled, or there was nothing to fill them with */
    char *usage_path; /* NULL: counts are not kept */
    /* roof.c */
    char *roof_memory; /* [roof_bytes] what is read to measure; NULL before the first time */
    size_t roof_bytes;
    struct pool *roof_pool; /* as many threads as several devices have; NULL: the one device's measure */
};

struct moebius_session {
    moebius_engine *engine;
    moebius_session_options options;
    struct model_state *state;
    int64_t n_batch; /* tokens of a batch, but for long prompts (prompt_batch.h) */
    struct car car;
    int64_t sort_cutoff;
    struct cancel cancel;
    moebius_progress_fn *progress; /* may be NULL */
    void *progress_user;
    struct parked_state {
        bool is_parked;
        int64_t pos;
        char *path;  /* NULL: in `bytes` */
        char *bytes; /* [n_bytes] */
        size_t n_bytes;
    } parked;
    int32_t *ids; /* [n_ctx]; those below the state's position are the text */
    size_t ids_bytes;
    float *logits; /* [n_vocab]; NULL before there are some */
    size_t logits_bytes;
    const float *last; /* `logits` where they are those after the text's last token, else NULL */
    moebius_trace trace;
    struct moe_trace moe_trace;
};

/* ---- session.c ------------------------------------------------------------------------------------------------- */

/* Room for a session's logits, from the first time on. */
MUST_USE err_code session_logits_room(moebius_session *s, struct err *e);

/* ---- engine.c -------------------------------------------------------------------------------------------------- */

/* Steps of opening, in this order; after a failure the engine is to be closed. */
void engine_begin_log(moebius_engine *g);
MUST_USE err_code engine_check_options(moebius_engine *g, struct err *e);
/* Fills g->facts, and under ranks options.expert_ram_bytes from the share: the GGUF is open. */
MUST_USE err_code engine_size_model(moebius_engine *g, struct err *e);
/* The experts' bytes: the GGUF, which is open, with its checksums if it has some, and the prepared store. */
MUST_USE err_code engine_open_store(moebius_engine *g, struct err *e);
MUST_USE err_code engine_load_model(moebius_engine *g, const struct model_load_params *params, struct err *e);

/* ---- park.c ---------------------------------------------------------------------------------------------------- */

/* Brings a parked session's state back; on failure it stays parked. */
MUST_USE err_code session_unpark(moebius_session *s, struct err *e);
void session_forget_parked(moebius_session *s);

/* ---- session_file.c -------------------------------------------------------------------------------------------- */

MUST_USE err_code session_save(moebius_session *s, const char *path, struct err *e);
MUST_USE err_code session_load_parked(moebius_session *s, struct err *e);

/* ---- gpu.c ----------------------------------------------------------------------------------------------------- */

/* What the model takes of this process's devices (memory.c). */
struct gpu_need engine_gpu_need(const moebius_engine *g);

bool engine_asks_for_gpu(const moebius_engine *g);
MUST_USE err_code engine_check_gpu(const moebius_engine *g, struct err *e);
/* Chooses the devices where options.gpu is to; between reading the model's description and opening devices. */
MUST_USE err_code engine_choose_gpu(moebius_engine *g, struct err *e);

/* ---- gpu_memory.c ---------------------------------------------------------------------------------------------- */

/* Whether a device works in memory of its own, which the limit on the process's does not bound. */
bool engine_has_own_memory(const moebius_engine *g, int device);
/* Bounds the places' rooms by such memory, once the layers are loaded. */
void engine_gpu_rooms(const moebius_engine *g, struct division_place *places);
/* Has experts give such memory back when there is no more, once the model is loaded. */
void engine_gpu_reclaim(moebius_engine *g);
/* Warns where the driver seems to keep some of it in the host's memory. */
void engine_gpu_report(const moebius_engine *g);
/* ERR_LIMIT where a device that computes layers has not room for what these take. */
MUST_USE err_code engine_gpu_bound(const moebius_engine *g, int device, const struct gpu_need *need, struct err *e);
/* Makes room for a session's state: later_bytes [n_stage]. ERR_LIMIT where there can't be enough. */
MUST_USE err_code engine_gpu_session(moebius_engine *g, const size_t *later_bytes, struct err *e);
/* Says once that a GPU was lost, after an evaluation that failed. */
void engine_gpu_lost(moebius_engine *g);
/* What slots leave free of a device's own memory. */
size_t engine_gpu_spare(const moebius_engine *g, int device);

/* ---- devices.c ------------------------------------------------------------------------------------------------- */

/* Reads options.devices and options.split. */
MUST_USE err_code engine_list_devices(moebius_engine *g, struct err *e);
/* Layers whose experts are not to be on the GPU, of options.n_cpu_moe, of which less than 0 asks for none. */
int64_t engine_n_cpu_moe(const moebius_engine *g);
/* Splits the experts as options.n_cpu_moe says, which is checked once the model is sized. */
void engine_split_last(moebius_engine *g);
MUST_USE err_code engine_check_cpu_moe(const moebius_engine *g, struct err *e);
/* Takes g->asked over as the list. */
void engine_take_devices(moebius_engine *g);
/* Opens the devices that are listed; after a failure, too, they are to be closed. */
MUST_USE err_code engine_open_devices(moebius_engine *g, struct err *e);
void engine_close_devices(moebius_engine *g);
int engine_n_threads(const moebius_engine *g); /* of all devices */
/* Whether all devices' threads have a processor each, so that threads may spin. */
bool engine_has_core_each(const moebius_engine *g);

/* ---- engine_stages.c ------------------------------------------------------------------------------------------- */

/* Refuses what does not go together with layers that are divided. */
MUST_USE err_code engine_check_stages(const moebius_engine *g, struct err *e);
/* Divides the layers among the devices, which are open, where that is asked for, or the first of several GPUs has no
 * room for all: fills g->stages. */
MUST_USE err_code engine_choose_stages(moebius_engine *g, struct err *e);
/* Whether layers are divided among devices. */
static inline bool engine_has_stages(const moebius_engine *g)
{
    return g->n_stage > 1;
}

/* ---- engine_places.c ------------------------------------------------------------------------------------------- */

/* Divides the experts among the places: as model_load_params.divide, of an engine. */
MUST_USE err_code engine_divide(void *engine, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                                struct division *out, struct err *e);
/* Opens the places beside the first device, when the model is loaded. To be closed before the model. */
MUST_USE err_code engine_open_places(moebius_engine *g, struct err *e);
void engine_close_places(moebius_engine *g);

/* The sum of a figure over the experts of all devices, but for copies in a cache. Not while a layer is computed. */
size_t engine_expert_bytes(const moebius_engine *g, size_t (*bytes)(const struct experts *x));
/* Whether experts are read when they are needed. */
bool engine_is_streaming(const moebius_engine *g);
/* Has the devices open their slots, each its share of the room that there is but for what is kept for scratch, and fill
 * them with what earlier runs used (NULL: leaves them). */
MUST_USE err_code engine_open_slots(moebius_engine *g, const struct usage *past, struct err *e);
/* Has the devices close slots, each its share, until n_bytes fit below the limit on memory. */
void engine_reclaim_experts(moebius_engine *g, size_t n_bytes);

/* ---- expert_moves.c -------------------------------------------------------------------------------------------- */

/* Whether the first device's slots are a cache of what the other places have. */
bool engine_has_cache(const moebius_engine *g);
/* A figure of these slots; 0 where there is no cache. */
size_t engine_cache_bytes(const moebius_engine *g, size_t (*bytes)(const struct experts *x));
/* Fills these slots: with what the policy knows as hottest, then with anything. */
void engine_fill_cache(moebius_engine *g);
/* Behind a pass: moves what is hotter into these slots, as long as the watch allows it. */
void engine_move_experts(moebius_engine *g);

/* ---- engine_ranks.c -------------------------------------------------------------------------------------------- */

/* options.ranks; NULL: this process is alone. */
struct ranks *engine_ranks(const moebius_engine *g);
int engine_rank(const moebius_engine *g); /* 0 for one that is alone */
MUST_USE err_code engine_check_ranks(moebius_engine *g, struct err *e);
/* Room for experts below the limits on memory; SIZE_MAX: no bound. all_bytes: what expert_ram_share is a share of. */
size_t engine_expert_room(const moebius_engine *g, size_t all_bytes);
/* On rank 0: g->speeds, which has room for all, as the ranks offer them. */
MUST_USE err_code engine_ask_ranks(moebius_engine *g, const struct expert_layer *layers, const size_t *slot_bytes,
                                   int n_layer, struct err *e);
/* Waits until the other ranks have loaded theirs, and makes places of them. */
MUST_USE err_code engine_open_ranks(moebius_engine *g, struct err *e);
/* engine_open_slots for the other ranks, if there are some. */
MUST_USE err_code engine_warm_ranks(moebius_engine *g, const struct usage *past, struct err *e);

/* ---- eval.c ---------------------------------------------------------------------------------------------------- */

/* Work space for batches of n_batch tokens, until the engine is closed; while experts are read and texts only decode,
 * for planning_few_tokens. */
MUST_USE err_code engine_work_need(moebius_engine *g, int64_t n_batch, struct err *e);
/* The work space is for n_batch tokens again: a session that needed more is not admitted. */
void engine_work_back(moebius_engine *g, int64_t n_batch);
/* Makes what there is room for n_batch tokens. */
MUST_USE err_code engine_work_fit(moebius_engine *g, int64_t n_batch, struct err *e);
/* Appends tokens to sessions: moebius_eval_batch. */
MUST_USE err_code engine_eval(moebius_engine *g, const moebius_batch_item *items, size_t n_items, struct err *e);

/* ---- status.c -------------------------------------------------------------------------------------------------- */

/* Hands an internal error out through the public struct, which may be NULL; returns its status. */
moebius_status engine_status(err_code code, const struct err *e, moebius_error *out);

/* ---- memory.c -------------------------------------------------------------------------------------------------- */

/* Puts a bound in force, options.ram_bytes or else what is free. To be called when the files' directories have been
 * read, and before the weights are. ERR_LIMIT when the bound is less than the model can do with. */
MUST_USE err_code engine_memory_bound(moebius_engine *g, struct err *e);
void engine_memory_release(moebius_engine *g);

/* Of the weights, which tells a model's fine-tunes apart; moebius_fingerprint is of its shapes alone. */
MUST_USE err_code engine_fingerprint(moebius_engine *g, uint64_t *out, struct err *e);

/* To be called between passes: when what the system or a control group has left is less than a small part of the bound,
 * or will soon be at the rate at which it falls, lowers the limit, and experts give slots back; when there is much more
 * again for a while, raises it. Looks twenty times a second at most, and tells the log. Does nothing where no bound is
 * in force. */
void engine_memory_guard(moebius_engine *g);
/* Between passes, too: warns once when a sensor comes near its limit, and again after it has cooled down. */
void engine_heat_guard(moebius_engine *g);

/* Creates a session by `create`, which also says how much memory it will take later on each device that computes layers
 * (later_bytes [n_stage], zeros before), and makes room for it. ERR_LIMIT, with the number, when there is too little;
 * what was created is the caller's to close either way. */
typedef err_code engine_create_fn(void *user, size_t *later_bytes, struct err *e);
MUST_USE err_code engine_memory_session(moebius_engine *g, engine_create_fn *create, void *user, struct err *e);
/* Whether slots and work space share memory that has a bound. */
bool engine_shares_memory(const moebius_engine *g);
/* Before a pass of n_tok tokens: has experts' slots leave room for what its operations keep besides their results. */
void engine_memory_pass(moebius_engine *g, int64_t n_tok);
/* What places beside the first device take in the host's memory to compute n_tok tokens, at most. */
size_t engine_places_bytes(const moebius_engine *g, int64_t n_tok);
size_t engine_kept_bytes(const moebius_engine *g); /* what of that scratch has not taken yet */

/* ---- warm.c ---------------------------------------------------------------------------------------------------- */

/* What earlier runs used, to be closed; no counts where that is not known. */
MUST_USE err_code engine_past_usage(moebius_engine *g, int n_layer, int64_t n_expert, struct usage *past,
                                    struct err *e);
/* Fills the experts' slots with what earlier runs used. Only the first call does something. */
MUST_USE err_code engine_warm(moebius_engine *g, struct err *e);
/* Keeps the counts of what this run used. A failure is logged. */
void engine_usage_save(moebius_engine *g);

/* ---- drive_speed.c ----------------------------------------------------------------------------------------------- */

/* Bytes a second that the store gives of experts, a tenth of a second long; 0 where that can't be measured. */
double engine_drive_speed(const moebius_engine *g);

/* ---- roof.c ---------------------------------------------------------------------------------------------------- */

/* Bytes a second that all threads read from memory, with up to n_bytes of it; 0 where there is no room for that. */
double engine_read_speed(moebius_engine *g, size_t n_bytes);
/* Frees the memory that measuring took. */
void engine_roof_close(moebius_engine *g);

/* ---- tuning.c -------------------------------------------------------------------------------------------------- */

/* Takes the tuning that the options name, or that earlier runs kept, and measures quickly what that lacks. */
MUST_USE err_code engine_tune(moebius_engine *g, struct err *e);

#endif
