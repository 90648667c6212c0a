/* A place in this process: a thread that drives a device with experts. */
#ifndef PLACES_WORKER_H
#define PLACES_WORKER_H

#include "places/compute.h"

/* Starts the thread. From then until place_close nobody else drives the device, runs loops on its pool or touches its
 * experts; `compute`, the device and the experts are borrowed, `name` is copied. What operations lack below the limit on
 * memory (base/mem.h) the worker takes from its own slots. */
MUST_USE err_code worker_open(struct place **out, const char *name, struct compute *compute, struct backend *device,
                              struct experts *experts, struct err *e);

#endif
