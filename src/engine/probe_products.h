/* Measures how fast one thread multiplies with weights of each type, and attends to positions, for plans. */
#ifndef ENGINE_PROBE_PRODUCTS_H
#define ENGINE_PROBE_PRODUCTS_H

#include "kernels/kernels.h"
#include "planner/machine.h"

/* Fills m->products: all types, with weights in a processor's cache, some milliseconds each. */
MUST_USE err_code probe_products(const struct kernels *kernels, struct machine *m, struct err *e);

/* Fills m->attention_*: keys and values of one KV head in F16, in a processor's cache; some milliseconds. */
MUST_USE err_code probe_attention(const struct kernels *kernels, struct machine *m, struct err *e);

#endif
