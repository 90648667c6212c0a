/* Processors: what they can do, how fast they may run, how many there are, and who else uses them. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/temperature.h"
#include "jobs/doctor_internal.h"

/* ---- instructions ------------------------------------------------------------------------------------------------ */

enum { N_FLAG = 6 };

/* What kernels are called, and the flags of /proc/cpuinfo that they need; the best first. The first of one processor
 * that has them all is the level that it should run. */
static const struct level {
    const char *name;
    const char *flags[N_FLAG];
} levels[] = {
    {"amx", {"avx512_vnni", "avx512vbmi", "gfni", "amx_tile", "amx_int8", "amx_bf16"}},
    {"avx512vbmi", {"avx512_vnni", "avx512bw", "avx512vbmi", "gfni"}},
    {"avx512vnni", {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"}},
    {"avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}},
    {"avxvnni", {"avx2", "fma", "avx_vnni"}},
    {"avx2", {"avx2", "fma", "f16c"}},
    {"i8mm", {"asimd", "asimddp", "i8mm"}},
    {"dotprod", {"asimd", "asimddp"}},
    {"neon", {"asimd"}},
    {"scalar", {NULL}},
};

enum { N_LEVEL = sizeof levels / sizeof *levels, INFO_BYTES = 16384 };

static bool has_flag(const char *flags, const char *flag)
{
    size_t n = strlen(flag);
    for (const char *p = flags; (p = strstr(p, flag)) != NULL; p += n)
        if ((p == flags || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return true;
    return false;
}

static int best_level(const char *flags)
{
    for (int i = 0; i < N_LEVEL; i++) {
        bool has_all = true;
        for (int k = 0; k < N_FLAG && levels[i].flags[k]; k++)
            has_all = has_all && has_flag(flags, levels[i].flags[k]);
        if (has_all)
            return i;
    }
    return N_LEVEL - 1;
}

static int level_named(const char *name)
{
    int i = 0;
    while (i < N_LEVEL - 1 && strcmp(levels[i].name, name) != 0)
        i++;
    return i;
}

/* The flags of the first processor, within info; NULL: it does not say. */
static char *find_flags(char *info)
{
    char *line = strstr(info, "\nflags");
    if (!line)
        line = strstr(info, "\nFeatures");
    char *flags = line ? strchr(line, ':') : NULL;
    if (flags)
        flags[strcspn(flags, "\n")] = '\0';
    return flags ? flags + 1 : NULL;
}

static void look_at_instructions(struct doctor *d)
{
    char info[INFO_BYTES];
    const char *flags = doctor_read(d, info, sizeof info, "/proc/cpuinfo") ? find_flags(info) : NULL;
    const char *kernels = d->live->kernels;
    if (!flags) {
        doctor_say(d->report, DOCTOR_UNKNOWN, "instructions", NULL,
                   "the system does not say what the processor has; kernels: %s", kernels);
        return;
    }
    int best = best_level(flags);
    if (best < level_named(kernels))
        doctor_say(d->report, DOCTOR_FINDING, "instructions",
                   d->live->is_lowered ? "unset MOEBIUS_CPU" : "report it: the processor is not recognised",
                   "the processor has what %s kernels need, and %s ones run", levels[best].name, kernels);
    else if (has_flag(flags, "hypervisor") && !strcmp(kernels, "scalar"))
        doctor_say(d->report, DOCTOR_FINDING, "instructions",
                   "give the virtual machine the host's processor (-cpu host, host-passthrough, type host)",
                   "the virtual machine shows no AVX2, which its host has most likely: plain C kernels run");
    else
        doctor_say(d->report, DOCTOR_OK, "instructions", NULL, "%s kernels, the best for this processor", kernels);
}

/* ---- clock ------------------------------------------------------------------------------------------------------- */

#define CPUFREQ "/sys/devices/system/cpu/cpu0/cpufreq/"

static const char governor_remedy[] =
    "as root: echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; or powerprofilesctl set "
    "performance; and the mains rather than the battery";

/* What holds the clock down, if something does. */
static bool say_slow_governor(struct doctor *d, const char *governor)
{
    char driver[64] = "", preference[64] = "";
    (void)doctor_read(d, driver, sizeof driver, CPUFREQ "scaling_driver");
    (void)doctor_read(d, preference, sizeof preference, CPUFREQ "energy_performance_preference");
    bool chooses_itself = !strcmp(driver, "intel_pstate") || !strcmp(driver, "amd-pstate-epp"); /* by the preference */
    if (!strcmp(preference, "power") || !strcmp(preference, "balance_power")) {
        doctor_say(d->report, DOCTOR_FINDING, "clock", governor_remedy, "the processor prefers saving power (%s)",
                   preference);
        return true;
    }
    if ((!strcmp(governor, "powersave") && !chooses_itself) || !strcmp(governor, "conservative")) {
        doctor_say(d->report, DOCTOR_FINDING, "clock", governor_remedy, "the frequency governor is %s", governor);
        return true;
    }
    return false;
}

static bool say_capped(struct doctor *d)
{
    double most, could, no_turbo = 0, boost = 1;
    static const double small_part = 0.97;
    bool is_capped = doctor_number(d, &most, CPUFREQ "scaling_max_freq") &&
                     doctor_number(d, &could, CPUFREQ "cpuinfo_max_freq") && most < small_part * could;
    if (is_capped) {
        doctor_say(d->report, DOCTOR_FINDING, "clock",
                   "as root: cpupower frequency-set -u with the higher figure; look at TLP's and tuned's settings",
                   "the processor is held at %.2f of %.2f GHz", most / 1e6, could / 1e6);
        return true;
    }
    (void)doctor_number(d, &no_turbo, "/sys/devices/system/cpu/intel_pstate/no_turbo");
    (void)doctor_number(d, &boost, "/sys/devices/system/cpu/cpufreq/boost");
    if (no_turbo <= 0 && boost > 0)
        return false;
    doctor_say(d->report, DOCTOR_FINDING, "clock",
               "as root: echo 0 > /sys/devices/system/cpu/intel_pstate/no_turbo, or echo 1 > "
               "/sys/devices/system/cpu/cpufreq/boost; the BIOS may have switched it off, too",
               "the processor's boost is off");
    return true;
}

static void look_at_clock(struct doctor *d)
{
    char governor[64];
    if (!doctor_read(d, governor, sizeof governor, CPUFREQ "scaling_governor")) {
        doctor_say(d->report, DOCTOR_UNKNOWN, "clock", NULL, "the system shows no frequency governor");
        return;
    }
    bool is_slow = say_slow_governor(d, governor), is_capped = say_capped(d);
    if (!is_slow && !is_capped)
        doctor_say(d->report, DOCTOR_OK, "clock", NULL, "the frequency governor is %s", governor);
}

/* ---- heat -------------------------------------------------------------------------------------------------------- */

static void look_at_heat(struct doctor *d)
{
    static const double near_c = 10;
    struct temperature t;
    double n_throttled = 0;
    char often[128] = "";
    (void)doctor_number(d, &n_throttled, "/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count");
    if (n_throttled >= 1 && n_throttled < INT_MAX)
        snprintf(often, sizeof often, "; the processor was slowed down %d time%s since the system started",
                 (int)n_throttled, n_throttled < 2 ? "" : "s");
    if (!temperature_look(d->root, &t))
        doctor_say(d->report, DOCTOR_UNKNOWN, "heat", NULL, "the system shows no temperature with a limit%s", often);
    else if (t.limit_c - t.now_c < near_c)
        doctor_say(d->report, DOCTOR_FINDING, "heat",
                   "check the fans and clean out dust; a lower power limit costs less than throttling",
                   "%s is at %.0f of at most %.0f degrees%s", t.sensor, t.now_c, t.limit_c, often);
    else
        doctor_say(d->report, DOCTOR_OK, "heat", NULL, "%s, the nearest to its limit, is at %.0f of %.0f degrees%s",
                   t.sensor, t.now_c, t.limit_c, often);
}

/* ---- how many ---------------------------------------------------------------------------------------------------- */

/* "0-3,8" */
static int count_list(const char *list)
{
    int n = 0;
    for (char *end; *list; list = *end == ',' ? end + 1 : "") {
        long first = strtol(list, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        n += last >= first ? (int)(last - first) + 1 : 0;
    }
    return n;
}

static double quota_of(const struct doctor *d, const char *folder)
{
    char text[64];
    double quota, period;
    if (doctor_read(d, text, sizeof text, "%s/cpu.max", folder)) {
        char *end;
        quota = strtod(text, &end);
        period = strtod(end, NULL);
        return end != text && quota > 0 && period > 0 ? quota / period : 0;
    }
    if (doctor_number(d, &quota, "%s/cpu.cfs_quota_us", folder) &&
        doctor_number(d, &period, "%s/cpu.cfs_period_us", folder) && quota > 0 && period > 0)
        return quota / period;
    return 0;
}

/* The least of a group and those above it; 0: there is none. path: as /proc/self/cgroup has it. */
static double quota_above(const struct doctor *d, const char *mount, const char *path)
{
    char folder[1024];
    double least = 0;
    size_t n_mount = strlen(mount);
    if ((size_t)snprintf(folder, sizeof folder, "%s%s", mount, strcmp(path, "/") ? path : "") >= sizeof folder)
        return 0;
    for (;;) {
        double quota = quota_of(d, folder);
        least = quota > 0 && (least <= 0 || quota < least) ? quota : least;
        char *slash = strrchr(folder + n_mount, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

/* How many processors' time the control groups allow; 0: no bound. */
static double read_quota(const struct doctor *d)
{
    char text[4096], *next;
    double least = 0;
    if (!doctor_read(d, text, sizeof text, "/proc/self/cgroup"))
        return 0;
    for (char *line = text; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = '\0';
        char *controller = strchr(line, ':'), *path = controller ? strchr(controller + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        bool is_cpu = !strcmp(controller + 1, "cpu") || !strcmp(controller + 1, "cpu,cpuacct");
        double quota = controller[1] == '\0' ? quota_above(d, "/sys/fs/cgroup", path)
                       : is_cpu              ? quota_above(d, "/sys/fs/cgroup/cpu", path)
                                             : 0;
        least = quota > 0 && (least <= 0 || quota < least) ? quota : least;
    }
    return least;
}

static void look_at_count(struct doctor *d)
{
    char online[256];
    int n = d->live->n_processors, n_online = 0, n_threads = d->live->n_threads ? d->live->n_threads : n;
    double quota = read_quota(d);
    if (doctor_read(d, online, sizeof online, "/sys/devices/system/cpu/online"))
        n_online = count_list(online);
    if (n_threads > n)
        doctor_say(d->report, DOCTOR_FINDING, "threads", "give -t no more than there are processors, or leave it out",
                   "%d threads on %d processors wait for each other", n_threads, n);
    if (quota > 0 && quota < n_threads)
        doctor_say(d->report, DOCTOR_FINDING, "processor limit",
                   "run with -t of at most that many, or raise it: docker run --cpus, systemd CPUQuota=, Kubernetes "
                   "limits.cpu",
                   "a control group allows the time of %.1f processors: %d threads are stopped again and again", quota,
                   n_threads);
    if (n < n_online)
        doctor_say(d->report, DOCTOR_FINDING, "processors",
                   "look at taskset, numactl, systemd AllowedCPUs=, docker run --cpuset-cpus, the batch system's "
                   "allocation",
                   "the process may use %d of %d processors", n, n_online);
    else if (n_online)
        doctor_say(d->report, DOCTOR_OK, "processors", NULL, "%d, and all may be used", n);
    else
        doctor_say(d->report, DOCTOR_UNKNOWN, "processors", NULL,
                   "%d may be used; the system does not say how many there are", n);
}

/* ---- others ------------------------------------------------------------------------------------------------------ */

static void look_at_load(struct doctor *d)
{
    static const double much = 0.2; /* of all processors */
    double load;
    if (!doctor_number(d, &load, "/proc/loadavg"))
        doctor_say(d->report, DOCTOR_UNKNOWN, "load", NULL, "the system does not say what else runs");
    else if (load > much * d->live->n_processors)
        doctor_say(d->report, DOCTOR_FINDING, "load",
                   "find the program with top; threads that lose their processor delay all others",
                   "in the last minute, %.1f programs wanted to run at once on %d processors", load,
                   d->live->n_processors);
    else
        doctor_say(d->report, DOCTOR_OK, "load", NULL, "hardly anything else runs (%.1f)", load);
}

static void look_at_numa_balancing(struct doctor *d)
{
    char nodes[64];
    double on;
    if (doctor_read(d, nodes, sizeof nodes, "/sys/devices/system/node/online") && count_list(nodes) > 1 &&
        doctor_number(d, &on, "/proc/sys/kernel/numa_balancing") && on > 0)
        doctor_say(d->report, DOCTOR_FINDING, "memory nodes", "as root: sysctl kernel.numa_balancing=0",
                   "the kernel moves pages between %d memory nodes, though weights lie where their threads are",
                   count_list(nodes));
}

void doctor_processor(struct doctor *d)
{
    look_at_instructions(d);
    look_at_clock(d);
    look_at_heat(d);
    look_at_count(d);
    look_at_load(d);
    look_at_numa_balancing(d);
}
