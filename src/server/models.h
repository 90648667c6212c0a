/* The registry of the server's models. A model is a file and, while it is loaded, an engine, its texts, and the thread
 * that drives both. Only one model is loaded at a time: when another one is asked for, the loaded one is unloaded as
 * soon as its texts have ended.
 *
 * Thread-safety: all functions may be called by any thread. */
#ifndef SERVER_MODELS_H
#define SERVER_MODELS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/log.h"
#include "moebius/moebius.h"
#include "server/call_replay.h"
#include "server/expert_picture.h"
#include "server/grammar_cache.h"
#include "server/template_needs.h"
#include "texts/texts.h"

enum served_state { SERVED_UNLOADED, SERVED_LOADING, SERVED_READY, SERVED_ENDING };

/* What is known of a model from its file; zero until the model was loaded once. */
struct served_facts {
    char arch[64];
    int64_t n_ctx, n_ctx_train; /* the most tokens that a text may have here, and had in training */
    int64_t n_vocab, n_embd, n_layer;
};

/* What the places of a model have done. If there are more than these (with ranks), none are listed, because asking each
 * of them takes a message. */
enum { MODELS_MAX_PLACE = 8 };
struct place_figures {
    int n; /* 0 where there is one place */
    moebius_place_stats did[MODELS_MAX_PLACE];
};

/* The memory that devices use, as the engine counts it. If there are more than these, none are listed. */
enum { MODELS_MAX_DEVICE = 8 };
struct device_ledger {
    int n;
    struct held_bytes {
        char device[32];                               /* "cpu:2", "vulkan:0" */
        uint64_t weights, experts, texts, activations; /* bytes */
    } held[MODELS_MAX_DEVICE];
};

struct served_model {
    char *name, *path;  /* owned */
    int64_t size_bytes; /* of the file, or of its first part */
    int64_t created;    /* when the file was written, seconds since 1970 */

    /* these are valid as long as somebody has taken the model (models_take) */
    const moebius_vocab *vocab;
    moebius_template *tmpl;      /* NULL: there is none, and template_error says why */
    struct err template_error;   /* for clients: without folders */
    struct template_needs needs; /* of the template */
    struct replay *replay;
    struct grammar_cache *grammars;
    struct texts *texts;

    struct expert_picture *picture; /* owned */

    /* these belong to the registry, which protects them with its lock */
    struct models *models;
    enum served_state state;
    struct served_facts facts;
    moebius_engine *engine;                 /* only the driving thread may use it */
    moebius_counters counters;              /* of the engine, as of the last text's end */
    struct place_figures places;            /* as of the last text's end */
    struct device_ledger ledger;            /* as of the last text's end */
    bool leaves;                            /* it takes no more texts, and is unloaded when those that it has end */
    _Atomic uint64_t load_done, load_total; /* bytes read so far, and in all, while the model is loading */
    pthread_t thread;                       /* that drives the model, if has_thread */
    bool has_thread;
    size_t n_users;   /* how many have taken the model and not given it back */
    int64_t used_ns;  /* when somebody last had it */
    struct err error; /* of the last load, if that failed */
};

/* Hears how much of a model has been loaded. May be called by any thread. */
struct load_watch {
    void (*tell)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
};

/* How a model is opened, as the command line says. All functions are called in the driving thread. */
struct model_opener {
    /* Opens the engine. *n_ctx: the most tokens that a text may have. */
    err_code (*engine)(void *user, const char *path, const struct load_watch *watch, moebius_engine **out,
                       int64_t *n_ctx, struct err *e);
    err_code (*tmpl)(void *user, const char *path, const moebius_vocab *vocab, moebius_template **out, struct err *e);
    bool needs_tmpl; /* a template was named on the command line: a model without it is not loaded */
    /* The model with this path is about to be unloaded. */
    void (*ends)(void *user, const char *path, const moebius_engine *engine, const struct texts_stats *stats);
    void *user;
};

struct models_options {
    struct model_opener opener;
    struct texts_options texts;
    int64_t idle_ns; /* after so long without use a model is unloaded; 0: never */
    const struct log *log;
};

/* A request's wait for a model. */
struct model_wait {
    struct served_model *model;
    const _Atomic bool *left; /* becomes true when nobody needs the model any more; borrowed until the wait is over */
    struct err error;         /* why the model was not taken; code ERR_OK: it was */
    /* Called when the wait is over, and the registry no longer uses this struct. Runs in any thread, and holds the
     * registry's lock: must not wait, nor call functions of this header. */
    void (*over)(void *user);
    void *user;
    struct model_wait *next; /* the registry's */
};

struct models;

MUST_USE err_code models_open(struct models **out, const struct models_options *options, struct err *e);
/* Adds a file. name NULL: the file's name without its suffix. */
MUST_USE err_code models_add(struct models *all, const char *path, const char *name, struct err *e);
/* Whether one of the models is this file, under whatever name. */
bool models_have(const struct models *all, const char *path);
/* Adds all GGUF files in a folder; of split sets, the first part. ERR_USAGE: there are none. */
MUST_USE err_code models_add_folder(struct models *all, const char *path, struct err *e);
size_t models_n(const struct models *all);
struct served_model *models_at(struct models *all, size_t i);

/* Begins to load a model and does not wait for it. If another model is loaded, that one is unloaded first, when its
 * texts have ended. ERR_LIMIT: a third model is being loaded, or waited for. */
MUST_USE err_code models_load(struct models *all, struct served_model *m, struct err *e);
/* Begins to unload a model and does not wait for it. A model that has texts, or is being loaded, takes no more texts
 * and is unloaded when they have ended if `when_done`; else that is ERR_LIMIT. A load that models_load has asked for
 * and that has not begun is dropped. ERR_USAGE: the model is not loaded. */
MUST_USE err_code models_unload(struct models *all, struct served_model *m, bool when_done, struct err *e);
/* Takes a model, which is loaded if necessary and stays loaded until models_give_back. True: the wait is over at once,
 * with its result in wait->error, and `over` is not called. Possible errors are those of loading, ERR_CANCELLED some
 * 100 ms after *left was set, and ERR_LIMIT, when as many requests wait as the texts could take. */
MUST_USE bool models_take(struct models *all, struct model_wait *wait);
void models_give_back(struct served_model *m);
size_t models_n_waiting(struct models *all); /* how many requests wait for a model */
/* The model that is loaded, being loaded or being unloaded; else the first one. */
struct served_model *models_current(struct models *all);
/* The model of this name, loaded or not; NULL: there is none. */
struct served_model *models_find(struct models *all, const char *name);

/* A copy of a model's state. `stats`, `counters`, `places` and `ledger` are zero unless the model is ready. */
struct model_view {
    enum served_state state;
    bool leaves;         /* it will be unloaded when its texts have ended */
    bool waits;          /* it will be loaded when another model has been unloaded */
    double loaded_share; /* 0 to 1, while it is being loaded */
    struct served_facts facts;
    struct texts_stats stats;
    moebius_counters counters;
    struct place_figures places;
    struct device_ledger ledger;
    struct err error; /* of the last load, if that failed */
};
struct model_view models_look(struct served_model *m);
/* Calls `look` if the model is ready; it may read what is valid as long as somebody has taken the model, and must not
 * wait. Whether it was called. */
bool models_peek(struct served_model *m, void (*look)(void *user, const struct served_model *m), void *user);
/* The text of a loaded model's template, also of one that could not be parsed; NULL: it has none. */
const char *models_template(const struct served_model *m);
const char *models_state_name(enum served_state state); /* "ready" */

/* Somebody begins or stops watching the experts; pictures are made only while somebody watches. */
void models_watch(struct models *all, bool begins);

/* Updates a model's counters when a text has ended. In the driving thread, which alone may read them. */
void models_note_end(struct served_model *m);
/* Unloads a model that was idle for too long, and makes progress with the load that somebody waits for. Must be called
 * ten times a second. */
void models_tick(struct models *all, int64_t now_ns);
/* From now on no model is loaded: whoever waits or asks for one gets the error that the server is ending. */
void models_stop_loading(struct models *all);
/* The same; also ends all texts, and returns when no model is loaded any more. */
void models_stop(struct models *all);
void models_close(struct models **all);

#endif
