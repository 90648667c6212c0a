#define _GNU_SOURCE
#include "base/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)
static const char *const names[CPU_N_LEVEL] = {"scalar",     "avx2",       "avxvnni", "avx512",
                                               "avx512vnni", "avx512vbmi", "amx"};
#define LEVELS "scalar, avx2, avxvnni, avx512, avx512vnni, avx512vbmi or amx"
#elif defined(__aarch64__)
static const char *const names[CPU_N_LEVEL] = {"scalar", "neon", "dotprod", "i8mm"};
#define LEVELS "scalar, neon, dotprod or i8mm"
#else
static const char *const names[CPU_N_LEVEL] = {"scalar"};
#define LEVELS "scalar"
#endif

const char *cpu_level_name(enum cpu_level level)
{
    return names[level];
}

#if defined(__x86_64__)
/* Bit 4 of EAX, leaf 7, subleaf 1 (Intel's manual, CPUID). clang 14's own detection doesn't know it. */
static bool has_avx_vnni(void)
{
    unsigned a = 0, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

/* Bits 22, 24 and 25 of EDX, leaf 7: bfloat16, tiles, bytes. Linux gives the tiles' registers to processes that ask for
 * them (Documentation/x86/xstate.rst), for all of their threads. */
static bool has_amx(void)
{
    enum { XCOMP_PERM_REQUEST = 0x1023, XCOMP_TILES = 18 };
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1) &&
           syscall(SYS_arch_prctl, XCOMP_PERM_REQUEST, XCOMP_TILES) == 0;
}
#endif

bool cpu_has_level(enum cpu_level level)
{
#if defined(__x86_64__)
    /* gcc's and clang's detection asks the operating system (XGETBV) as well; every processor with AVX2 has F16C */
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    bool vbmi = vnni && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni");
    switch (level) {
    case CPU_AVX2: return avx2;
    case CPU_AVXVNNI: return avx2 && has_avx_vnni();
    case CPU_AVX512: return avx512;
    case CPU_AVX512VNNI: return vnni;
    case CPU_AVX512VBMI: return vbmi;
    case CPU_AMX: return vbmi && has_amx();
    default: return true;
    }
#elif defined(__aarch64__)
    bool dotprod = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
    return level <= CPU_NEON || (dotprod && (level == CPU_DOTPROD || getauxval(AT_HWCAP2) & HWCAP2_I8MM));
#else
    return level == CPU_SCALAR;
#endif
}

static enum cpu_level best_level(void)
{
    enum cpu_level level = CPU_N_LEVEL - 1;
    while (!cpu_has_level(level))
        level--;
    return level;
}

/* MOEBIUS_CPU asks for a level that the machine lacks: says which it has. */
static err_code lacks_level(const char *asked, struct err *e)
{
    char has[128] = "";
    size_t n = 0;
    for (int i = 0; i < CPU_N_LEVEL; i++)
        if (cpu_has_level((enum cpu_level)i))
            n += (size_t)snprintf(has + n, sizeof has - n, "%s%s", n ? ", " : "", names[i]);
    return err_set(e, ERR_USAGE, "MOEBIUS_CPU=%s: this machine has %s only", asked, has);
}

err_code cpu_level_detect(enum cpu_level *out, struct err *e)
{
    const char *mask = getenv("MOEBIUS_CPU");
    *out = best_level();
    if (!mask || !*mask)
        return ERR_OK;
    for (int i = 0; i < CPU_N_LEVEL; i++)
        if (!strcmp(mask, names[i])) {
            *out = (enum cpu_level)i;
            return cpu_has_level(*out) ? ERR_OK : lacks_level(mask, e);
        }
    return err_set(e, ERR_USAGE, "MOEBIUS_CPU=%s: expected " LEVELS, mask);
}

void cpu_name(char *out, size_t n_bytes)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, n_bytes, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) != 0 && strncmp(line, "CPU part", 8) != 0) /* Arm has a number only */
            continue;
        char *value = strchr(line, ':'), *rest = NULL, *word = value ? strtok_r(value + 1, " \t\n", &rest) : NULL;
        for (size_t n = 0; word && n < n_bytes; word = strtok_r(NULL, " \t\n", &rest))
            n += (size_t)snprintf(out + n, n_bytes - n, "%s%s", n ? " " : "", word);
        break;
    }
    if (f)
        fclose(f);
}

int cpu_n_available(void)
{
    enum { MAX_PROCESSOR = 1 << 16 }; /* the kernel refuses a set that is smaller than its own, maybe of thousands */
    union {
        cpu_set_t set;
        unsigned char bytes[MAX_PROCESSOR / 8];
    } all;
    if (sched_getaffinity(0, sizeof all, &all.set) != 0)
        return 1;
    int n = CPU_COUNT_S(sizeof all, &all.set);
    return n > 0 ? n : 1;
}

int cpu_here(void)
{
    return sched_getcpu();
}

void cpu_leave(void)
{
    cpu_set_t all, others;
    int here = cpu_here();
    if (here < 0 || sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    others = all;
    CPU_CLR((size_t)here, &others);
    if (sched_setaffinity(0, sizeof others, &others) == 0) /* moves at once; not if it may run here alone */
        sched_setaffinity(0, sizeof all, &all);
}
