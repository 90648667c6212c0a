/* What this processor (and the operating system, for the wide registers) can do. */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include <stdbool.h>

#include "base/err.h"

/* Levels of vector support, from the least to the best. A machine with one level has all levels before it, with one
 * exception: machines with AVX-512 may lack AVXVNNI. The table of kernels is chosen by level. */
enum cpu_level {
    CPU_SCALAR, /* plain C */
#if defined(__x86_64__)
    CPU_AVX2,       /* AVX2, FMA, F16C */
    CPU_AVXVNNI,    /* AVX-VNNI: VNNI for machines without AVX-512 */
    CPU_AVX512,     /* AVX-512 F, BW, DQ, VL */
    CPU_AVX512VNNI, /* AVX-512 VNNI */
    CPU_AVX512VBMI, /* AVX-512 VBMI and GFNI as well */
    CPU_AMX,        /* AMX tiles of bytes and bfloat16 as well */
#elif defined(__aarch64__)
    CPU_NEON,    /* every 64-bit Arm processor has it */
    CPU_DOTPROD, /* SDOT, from Armv8.2 on */
    CPU_I8MM,    /* SMMLA as well, from Armv8.6 on */
#endif
    CPU_N_LEVEL
};

const char *cpu_level_name(enum cpu_level level);

/* Whether this machine has a level. For CPU_AMX this asks the operating system to let the process use the tiles. */
bool cpu_has_level(enum cpu_level level);

/* The best level of this machine, or the one that the environment variable MOEBIUS_CPU names (as cpu_level_name does:
 * scalar, avx2, ... or scalar, neon, ...). A name that is unknown, or of a level that the machine lacks, is
 * ERR_USAGE. */
MUST_USE err_code cpu_level_detect(enum cpu_level *out, struct err *e);

/* The processor's own name, with single spaces between its words, such as "AMD EPYC 9R14 96-Core Processor"; "unknown"
 * where it gives none. */
void cpu_name(char *out, size_t n_bytes);

/* The number of processors that this process may run on, at least 1. */
int cpu_n_available(void);

/* The number of the processor that the calling thread runs on now; -1: not known. */
int cpu_here(void);
/* Moves the calling thread to another processor that it may run on, if there is one. */
void cpu_leave(void);

#endif
