/* Measures how fast one thread computes attention, for plans. */
#ifndef ENGINE_PROBE_ATTENTION_H
#define ENGINE_PROBE_ATTENTION_H

#include "kernels/kernels.h"
#include "planner/machine.h"

/* Fills m->attention_one_per_s and m->attention_many_per_s: keys and values of one KV head in F16, in a processor's
 * cache; some milliseconds. */
MUST_USE err_code probe_attention(const struct kernels *kernels, struct machine *m, struct err *e);

#endif
