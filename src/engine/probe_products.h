/* Measures how fast one thread multiplies with weights of each type, for plans. */
#ifndef ENGINE_PROBE_PRODUCTS_H
#define ENGINE_PROBE_PRODUCTS_H

#include "kernels/kernels.h"
#include "planner/machine.h"

/* Fills m->products: all types, with weights in a processor's cache, some milliseconds each. */
MUST_USE err_code probe_products(const struct kernels *kernels, struct machine *m, struct err *e);

#endif
