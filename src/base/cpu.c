#define _GNU_SOURCE
#include "base/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)
static const char *const names[CPU_N_LEVEL] = {"scalar", "avx2", "avx512", "avx512vnni"};
#define LEVELS "scalar, avx2, avx512 or avx512vnni"
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

static enum cpu_level best_level(void)
{
#if defined(__x86_64__)
    /* gcc's and clang's detection asks the operating system (XGETBV) as well */
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) /* every such processor has F16C */
        return CPU_SCALAR;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return CPU_AVX2;
    return __builtin_cpu_supports("avx512vnni") ? CPU_AVX512VNNI : CPU_AVX512;
#elif defined(__aarch64__)
    if (!(getauxval(AT_HWCAP) & HWCAP_ASIMDDP))
        return CPU_NEON;
    return getauxval(AT_HWCAP2) & HWCAP2_I8MM ? CPU_I8MM : CPU_DOTPROD;
#else
    return CPU_SCALAR;
#endif
}

err_code cpu_level_detect(enum cpu_level *out, struct err *e)
{
    enum cpu_level best = best_level();
    const char *mask = getenv("MOEBIUS_CPU");
    *out = best;
    if (!mask || !*mask)
        return ERR_OK;
    for (int i = 0; i < CPU_N_LEVEL; i++)
        if (!strcmp(mask, names[i])) {
            if ((enum cpu_level)i > best)
                return err_set(e, ERR_USAGE, "MOEBIUS_CPU=%s: this machine goes up to %s", mask, names[best]);
            *out = (enum cpu_level)i;
            return ERR_OK;
        }
    return err_set(e, ERR_USAGE, "MOEBIUS_CPU=%s: expected " LEVELS, mask);
}

struct cpu_prefetch cpu_prefetch(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_is("amdfam19h")) /* Zen 3 and 4: their own prefetching is good, and ours to L1 in its way */
        return (struct cpu_prefetch){256, true};
#endif
    return (struct cpu_prefetch){6144, false};
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
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
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
