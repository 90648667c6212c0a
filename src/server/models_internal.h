/* What the registry of models is made of, for the files that implement it (models.c, model_drive.c, model_files.c). */
#ifndef SERVER_MODELS_INTERNAL_H
#define SERVER_MODELS_INTERNAL_H

#include "server/models.h"

enum { MAX_MODELS = 256 };

struct models {
    struct models_options options;
    struct served_model *list[MAX_MODELS]; /* [n], owned */
    size_t n;
    atomic_size_t n_watchers; /* clients that watch experts */

    pthread_mutex_t lock;         /* protects all that follows, and the models' fields that change */
    pthread_cond_t changed;       /* signalled when a model's n_users changes */
    struct served_model *current; /* the model that has a thread; NULL: none */
    struct served_model *told;    /* the model that models_load has asked for, until it is ready; NULL: none */
    struct model_wait *waits;     /* [n_waits] requests that wait for a model, oldest first */
    size_t n_waits;
    bool stops;
};

/* ---- models.c; all with the lock held -------------------------------------------------------------------------- */

/* Ends all waits for a model; m NULL: for all models. e NULL: with the model. */
void models_end_waits(struct models *all, const struct served_model *m, const struct err *e);
/* Notes that a model can't be loaded, and ends the waits for it. */
void models_give_up(struct models *all, struct served_model *m, const struct err *e);

/* ---- model_drive.c --------------------------------------------------------------------------------------------- */

/* What the thread of a model does: loads it, drives its texts until they are stopped, and unloads it. Returns NULL. */
void *model_drive(void *model);

#endif
