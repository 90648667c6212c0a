/* A place in this process: a thread that drives a device with experts. */
#ifndef PLACES_WORKER_H
#define PLACES_WORKER_H

#include "base/pool.h"
#include "places/compute.h"

/* What a worker drives. Everything but the name is borrowed. */
struct worker_params {
    const char *name;
    struct compute *compute;
    int n_layer; /* that it has experts of */
    struct backend *device;
    struct pool *pool; /* the device's */
    struct experts *experts;
    int n_spin; /* rounds that the thread, and who waits for it, look before they sleep; 0 where threads are more than
                   processors */
};

/* Starts the thread. From then until place_close nobody else drives the device, runs loops on its pool or touches its
 * experts, but for figures between calls. What operations lack below the limit on memory (base/mem.h) the worker takes
 * from its own slots. */
MUST_USE err_code worker_open(struct place **out, const struct worker_params *p, struct err *e);

#endif
