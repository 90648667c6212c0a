/* What was measured of a machine once, for the runs that follow: a text file in the cache directory, one for each
 * processor, build and number of threads.
 *
 *   moebius tuning 7
 *   machine AMD EPYC, avx512vnni, 2 threads of 2
 *   build 0.1.0, 12.2.0
 *   task_weights 524288                struct cpu_tuning's
 *   spins 2000
 *   prefetch_several 6144 L1           bytes ahead, and the cache: L1, L2, NTA or L2+L1
 *   products 2                         so many types were measured: prefetch for one token, the number of tokens
 *   Q4_K 2048 L1 2 16 0                from which that for several holds, that from which they go to the matrix unit
 *   Q6_K 4096 L2 3 32 16               (0: never), and that from which they are unpacked once for all (0: never)
 *   sort_cutoff 1                      and for so many models, by fingerprint, the cutoff was
 *   0123456789abcdef 4
 *
 * Refused with a sentence: other formats and versions, impossible numbers, unknown types. */
#ifndef ENGINE_TUNING_H
#define ENGINE_TUNING_H

#include <stdio.h>

#include "backend/cpu_tuning.h"
#include "base/err.h"
#include "moebius/moebius.h"

enum {
    TUNING_MACHINE_BYTES = 192,
    TUNING_BUILD_BYTES = 128,
    TUNING_MAX_CUTOFF = 1 << 20,
    TUNING_DEFAULT_CUTOFF = 1, /* docs/benchmarks.md */
    TUNING_MAX_MODEL = 64,
};

struct tuning {
    char machine[TUNING_MACHINE_BYTES], build[TUNING_BUILD_BYTES];
    struct cpu_tuning cpu;
    bool is_measured[QUANT_MAX_ID]; /* by type: cpu.one, several_from, tiles_from and panels_from were measured */
    struct {
        uint64_t model;          /* fingerprint of the GGUF */
        int64_t n_tok;           /* as in OP_EXPERTS */
    } cutoffs[TUNING_MAX_MODEL]; /* [n_cutoff], the oldest first */
    int n_cutoff;
};

/* Parses n bytes of text; `name` is for messages. A failure leaves *t as it was. */
MUST_USE err_code tuning_parse(struct tuning *t, const char *text, size_t n, const char *name, struct err *e);
void tuning_print(const struct tuning *t, FILE *f);

/* A model's sort cutoff. If it was not measured: tuning_cutoff returns the default, tuning_measured_cutoff 0. */
int64_t tuning_cutoff(const struct tuning *t, uint64_t model);
int64_t tuning_measured_cutoff(const struct tuning *t, uint64_t model);
/* Sets a model's sort cutoff. When the list is full, the oldest entry is dropped. */
void tuning_set_cutoff(struct tuning *t, uint64_t model, int64_t n_tok);

/* Words for people: "2048 bytes ahead to L1", or "none". They may be in buf. */
enum { TUNING_PREFETCH_BYTES = 48 };
const char *tuning_prefetch_name(struct kernel_prefetch p, char buf[TUNING_PREFETCH_BYTES]);

/* Reads what the cache directory has for runs on this machine with these kernels and so many threads. If there is
 * nothing, or it can't be read: the defaults. */
void tuning_look(struct tuning *t, const struct kernels *kernels, int n_threads);

/* The tuning in force; borrowed. */
const struct tuning *engine_tuning(const moebius_engine *g);
/* Puts another one in force, from the next operation on. */
void engine_use_tuning(moebius_engine *g, const struct tuning *t);
/* Writes the tuning in force to `path`; NULL: to the cache directory. *written is the path, owned by the caller
 * (mem_free). */
MUST_USE err_code engine_save_tuning(const moebius_engine *g, const char *path, char **written, struct err *e);

#endif
