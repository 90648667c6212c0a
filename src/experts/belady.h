/* The offline optimum: the hits of the best possible replacement policy, which knows the future (L. A. Belady, 1966).
 *
 * No policy can do better with the same trace and slots, so the distance to it is the most that a better policy could
 * win. */
#ifndef EXPERTS_BELADY_H
#define EXPERTS_BELADY_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Hits among n accesses to keys 0..n_key-1 with n_slot slots. Accesses come in fetches: fetch_end[i] is where the i-th
 * ends, keys of one fetch are distinct and must all be in slots together (n_slot is at least the longest fetch). Every
 * key that is accessed takes a slot. */
MUST_USE err_code belady_hits(const int32_t *keys, size_t n, const size_t *fetch_end, size_t n_fetch, int32_t n_key,
                              int64_t n_slot, uint64_t *n_hit, struct err *e);

#endif
