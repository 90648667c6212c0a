/* A place in this process: a thread that drives a device with experts. */
#ifndef PLACES_WORKER_H
#define PLACES_WORKER_H

#include "base/pool.h"
#include "places/compute.h"

/* What a worker drives. Everything but the name is borrowed. */
struct worker_params {
    const char *name;
    struct compute *compute;
    int n_layer; /* MoE layers of the model */
    struct backend *device;
    struct pool *pool; /* the device's */
    struct experts *experts;
    int n_spin; /* rounds that the thread, and whoever waits for it, spin before they sleep; 0 if there are more threads
                   than processors */
};

/* Starts the thread. From then until place_close nobody else may drive the device, run loops on its pool or touch its
 * experts, except to read figures between calls. When its operations find too little memory below the limit
 * (base/mem.h), the worker closes slots of its own. */
MUST_USE err_code worker_open(struct place **out, const struct worker_params *p, struct err *e);

#endif
