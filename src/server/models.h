/* The models that the server has: each is a file and, while it is loaded, an engine, its texts and the thread that
 * drives both. One at a time is loaded: when another one is asked for, it goes once its texts have ended.
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

/* What a file says of itself; zero until it was loaded once. */
struct served_facts {
    char arch[64];
    int64_t n_ctx, n_ctx_train; /* tokens of a text here at most, and in training */
    int64_t n_vocab, n_embd, n_layer;
};

/* What the places of a model did. With more than these (ranks) none are told, as asking them takes a message each. */
enum { MODELS_MAX_PLACE = 8 };
struct place_figures {
    int n; /* 0 where there is one place */
    moebius_place_stats did[MODELS_MAX_PLACE];
};

/* What devices hold, as the engine counts it. With more of them than these none are told. */
enum { MODELS_MAX_DEVICE = 8 };
struct device_ledger {
    int n;
    struct held_bytes {
        char device[32]; /* "cpu:2", "vulkan:0" */
        uint64_t weights, experts, texts, activations;
    } held[MODELS_MAX_DEVICE];
};

struct served_model {
    char *name, *path;  /* owned */
    int64_t size_bytes; /* of the file, or of the first part */
    int64_t created;    /* when it was written, seconds since 1970 */

    /* while somebody has it */
    const moebius_vocab *vocab;
    moebius_template *tmpl;      /* NULL: there is none, and template_error says why */
    struct err template_error;   /* as clients are told */
    struct template_needs needs; /* the template's */
    struct replay *replay;
    struct grammar_cache *grammars;
    struct texts *texts;

    struct expert_picture *picture; /* of its experts; owned */

    /* the registry's */
    struct models *models;
    enum served_state state;
    struct served_facts facts;
    moebius_engine *engine;                 /* the driving thread's alone */
    moebius_counters counters;              /* of the engine, when a text ended last */
    struct place_figures places;            /* of its places, likewise */
    struct device_ledger ledger;            /* of its devices, likewise */
    bool leaves;                            /* it goes once its texts have ended, and takes no more */
    _Atomic uint64_t load_done, load_total; /* bytes, while it is loaded */
    pthread_t thread;
    bool has_thread;
    size_t n_users;   /* who has it */
    int64_t used_ns;  /* when somebody had it last */
    struct err error; /* of the last load, if that failed */
};

/* Who is told how much of a model has been loaded, in any thread. */
struct load_watch {
    void (*tell)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
};

/* How a model is opened: what the command line says of engines and templates. Called in the driving thread, all of
 * them. */
struct model_opener {
    /* *n_ctx: tokens of a text at most */
    err_code (*engine)(void *user, const char *path, const struct load_watch *watch, moebius_engine **out,
                       int64_t *n_ctx, struct err *e);
    err_code (*tmpl)(void *user, const char *path, const moebius_vocab *vocab, moebius_template **out, struct err *e);
    bool needs_tmpl; /* somebody has named it: without it no model is loaded */
    /* The model of this path goes, after what `stats` says. */
    void (*ends)(void *user, const char *path, const moebius_engine *engine, const struct texts_stats *stats);
    void *user;
};

struct models_options {
    struct model_opener opener;
    struct texts_options texts;
    int64_t idle_ns; /* after which a model goes that nobody uses; 0: never */
    const struct log *log;
};

/* Somebody waits for a model. */
struct model_wait {
    struct served_model *model;
    const _Atomic bool *left; /* says once that nobody waits any more; borrowed until the wait is over */
    struct err error;         /* why there is no model; its code is ERR_OK where it was taken */
    /* The wait is over, and no more the registry's. In any thread, within a lock: must not wait, nor ask for models. */
    void (*over)(void *user);
    void *user;
    struct model_wait *next; /* the registry's */
};

struct models;

MUST_USE err_code models_open(struct models **out, const struct models_options *options, struct err *e);
/* Adds a file; name NULL: the file's, without its suffix. */
MUST_USE err_code models_add(struct models *all, const char *path, const char *name, struct err *e);
/* Whether one of them is this file, whatever it is called. */
bool models_have(const struct models *all, const char *path);
/* Adds all GGUF files in a folder, of split sets the first part. ERR_USAGE where there is none. */
MUST_USE err_code models_add_folder(struct models *all, const char *path, struct err *e);
size_t models_n(const struct models *all);
struct served_model *models_at(struct models *all, size_t i);

/* Has a model be loaded, and does not wait: another one goes once its texts have ended. ERR_LIMIT while a third one is
 * being loaded, or waited for. */
MUST_USE err_code models_load(struct models *all, struct served_model *m, struct err *e);
/* Has a model go, and does not wait. One that has texts, or is being loaded: with `when_done` once they have ended, of
 * which it takes no more; else ERR_LIMIT. One that only waits to be loaded does so no more. ERR_USAGE: it is not
 * loaded. */
MUST_USE err_code models_unload(struct models *all, struct served_model *m, bool when_done, struct err *e);
/* Has a model be there, and keeps it so until it is given back. True: the wait is over at once, and `over` is not
 * called. ERR_CANCELLED after *left was set, within some 100 ms; ERR_LIMIT: as many wait as its texts could take. */
MUST_USE bool models_take(struct models *all, struct model_wait *wait);
void models_give_back(struct served_model *m);
/* How many wait for models. */
size_t models_n_waiting(struct models *all);
/* The one that is loaded, or comes or goes; else the first. */
struct served_model *models_current(struct models *all);
/* The model of this name whether it is loaded or not; NULL: there is none. */
struct served_model *models_find(struct models *all, const char *name);

/* What may change meanwhile; `error` is of the last load, if that failed. `stats`, `counters`, `places` and `ledger`
 * are zero unless it is ready. */
struct model_view {
    enum served_state state;
    bool leaves;         /* it goes once its texts have ended */
    bool waits;          /* it is to be loaded once another one has gone */
    double loaded_share; /* 0 to 1, while it is loaded */
    struct served_facts facts;
    struct texts_stats stats;
    moebius_counters counters;
    struct place_figures places;
    struct device_ledger ledger;
    struct err error;
};
struct model_view models_look(struct served_model *m);
const char *models_state_name(enum served_state state); /* "ready" */

/* Somebody begins or ends to look at the experts, whose pictures are made meanwhile alone. */
void models_watch(struct models *all, bool begins);

/* A text has ended; in the driving thread, which alone may read the engine's counters. */
void models_note_end(struct served_model *m);
/* Unloads what nobody has used for long, and has what somebody waits for come nearer; to be called ten times a second.
 */
void models_tick(struct models *all, int64_t now_ns);
/* Who waits, or asks for a model that is not there, is told that the server is ending. */
void models_stop_loading(struct models *all);
/* The same, and all texts end, and no model is there any more. */
void models_stop(struct models *all);
void models_close(struct models **all);

#endif
