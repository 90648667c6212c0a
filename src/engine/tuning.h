/* What was measured of a model on a machine, once, for the runs that follow: a text file in the cache directory, for
 * each model and machine one.
 *
 *   moebius tuning 1
 *   model 0123456789abcdef             fingerprint of the GGUF
 *   machine AMD EPYC, avx512vnni, 2 threads of 2
 *   sort_cutoff 4
 *
 * Refused with a sentence: other formats and versions, another model or machine, impossible numbers. */
#ifndef ENGINE_TUNING_H
#define ENGINE_TUNING_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { TUNING_MACHINE_BYTES = 192, TUNING_MAX_CUTOFF = 1 << 20 };

struct tuning {
    uint64_t model;
    char machine[TUNING_MACHINE_BYTES];
    int64_t sort_cutoff;
};

/* n bytes of text, `name` for messages: fills t->sort_cutoff if the rest is as t says. */
MUST_USE err_code tuning_parse(struct tuning *t, const char *text, size_t n, const char *name, struct err *e);
/* The file appears under its name only when whole. */
MUST_USE err_code tuning_save(const struct tuning *t, const char *path, struct err *e);

#endif
