/* What this processor (and the operating system, for the wide registers) can do. */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include <stdbool.h>

#include "base/err.h"

/* Levels of vector support, from the least to the best. A machine that has one has those before it, but for AVXVNNI,
 * which machines with AVX-512 may lack. A kernel table is chosen by level. */
enum cpu_level {
    CPU_SCALAR, /* plain C */
#if defined(__x86_64__)
    CPU_AVX2,       /* AVX2, FMA, F16C */
    CPU_AVXVNNI,    /* AVX-VNNI: VNNI for machines without AVX-512 */
    CPU_AVX512,     /* AVX-512 F, BW, DQ, VL */
    CPU_AVX512VNNI, /* AVX-512 VNNI */
    CPU_AVX512VBMI, /* AVX-512 VBMI and GFNI as well */
    CPU_AMX,        /* AMX's tiles of bytes and bfloat16 as well */
#elif defined(__aarch64__)
    CPU_NEON,    /* what every such processor has */
    CPU_DOTPROD, /* SDOT, from Armv8.2 on */
    CPU_I8MM,    /* SMMLA as well, from Armv8.6 on */
#endif
    CPU_N_LEVEL
};

const char *cpu_level_name(enum cpu_level level);

/* Whether this machine has a level. Asks the operating system to let this process use its registers. */
bool cpu_has_level(enum cpu_level level);

/* The best level of this machine, or the lower one that the environment variable MOEBIUS_CPU asks for by
 * cpu_level_name (scalar, avx2, ...; scalar, neon, ...). An unknown name, or what the machine lacks, is ERR_USAGE. */
MUST_USE err_code cpu_level_detect(enum cpu_level *out, struct err *e);

/* What the processor calls itself, words with single spaces: "AMD EPYC 9R14 96-Core Processor"; "unknown" where it
 * doesn't say. */
void cpu_name(char *out, size_t n_bytes);

/* Processors that this process may run on. */
int cpu_n_available(void);

/* The processor that the caller runs on, if -1 isn't one; and to another one that it may run on, if there is one. */
int cpu_here(void);
void cpu_leave(void);

#endif
