/* Memory: how much there is for this process, in which pages, and who is short of it. */
#include <stdio.h>
#include <string.h>

#include "base/free_memory.h"
#include "jobs/doctor_internal.h"

enum { FILE_BYTES = 8192 };

static double gb(double n_bytes)
{
    return n_bytes / 1e9;
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

static void look_at_room(struct doctor *d, double available, double total)
{
    double model = (double)d->live->model_bytes;
    if (model > available)
        doctor_say(d->report, DOCTOR_FINDING, "memory",
                   "close other programs or choose a smaller quantization; else keep the file, or a prepared store "
                   "(moebius prepare), on the fastest drive",
                   "%.1f of %.1f GB are available and the model has %.1f GB: experts without room are read when needed",
                   gb(available), gb(total), gb(model));
    else
        doctor_say(d->report, DOCTOR_OK, "memory", NULL, "%.1f of %.1f GB are available", gb(available), gb(total));
}

/* Pages that are set aside for hugetlb are nobody else's. */
static void look_at_set_aside(struct doctor *d, const char *info, double total)
{
    double n_free, kib;
    enum { MANY = 20 }; /* one part of all memory in so many */
    if (!doctor_find_number(info, "HugePages_Free:", &n_free) || !doctor_find_number(info, "Hugepagesize:", &kib) ||
        n_free * kib * 1024 <= total / MANY)
        return;
    doctor_say(d->report, DOCTOR_FINDING, "hugetlb pages",
               "run with --hugetlb, or give them back: sysctl vm.nr_hugepages=0",
               "%.1f GB are set aside for huge pages that nobody uses", gb(n_free * kib * 1024));
}

static void look_at_swap(struct doctor *d, const char *info, double total)
{
    double swap, swap_free;
    enum { MUCH = 16 }; /* one part of all memory in so many */
    if (!doctor_find_number(info, "SwapTotal:", &swap) || !doctor_find_number(info, "SwapFree:", &swap_free))
        return;
    double used = (swap - swap_free) * 1024;
    if (used > total / MUCH)
        doctor_say(d->report, DOCTOR_FINDING, "swap",
                   "close other programs, lower --ram, and bring back what was swapped out: swapoff -a && swapon -a",
                   "%.1f GB of programs' memory are swapped out", gb(used));
}

static void look_at_group(struct doctor *d, double total)
{
    double limit = (double)free_memory_limit_bytes(d->root), model = (double)d->live->model_bytes;
    static const double over_model = 1.1; /* contexts and activations */
    if (limit >= total)
        doctor_say(d->report, DOCTOR_OK, "memory limit", NULL, "no control group limits memory");
    else if (model > 0 && limit > over_model * model)
        doctor_say(d->report, DOCTOR_OK, "memory limit", NULL,
                   "a control group allows %.1f of %.1f GB, which is room enough", gb(limit), gb(total));
    else
        doctor_say(d->report, DOCTOR_FINDING, "memory limit",
                   "raise it: docker run --memory, systemd MemoryMax= and MemoryHigh=, Kubernetes limits.memory",
                   "a control group allows %.1f of the machine's %.1f GB", gb(limit), gb(total));
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static void look_at_huge_pages(struct doctor *d)
{
    char text[128];
    if (!doctor_read(d, text, sizeof text, "/sys/kernel/mm/transparent_hugepage/enabled"))
        doctor_say(d->report, DOCTOR_UNKNOWN, "huge pages", NULL, "the system does not say whether it gives any");
    else if (strstr(text, "[never]"))
        doctor_say(d->report, DOCTOR_FINDING, "huge pages",
                   "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (transparent_hugepage=madvise "
                   "on the kernel's command line lasts)",
                   "transparent huge pages are off: weights are read through 4 KiB pages");
    else
        doctor_say(d->report, DOCTOR_OK, "huge pages", NULL, "given (%s)",
                   strstr(text, "[always]") ? "always" : "when asked for");
}

/* Whether a kernel counts the memory of rings as locked: before 5.12. */
static bool counts_rings(const struct doctor *d)
{
    char text[64];
    int major, minor;
    return doctor_read(d, text, sizeof text, "/proc/sys/kernel/osrelease") &&
           sscanf(text, "%d.%d", &major, &minor) == 2 && (major < 5 || (major == 5 && minor < 12));
}

static void look_at_memlock(struct doctor *d)
{
    static const char key[] = "Max locked memory";
    static const double enough = 1 << 20;
    char text[FILE_BYTES];
    double n_bytes;
    const char *line = doctor_read(d, text, sizeof text, "/proc/self/limits") ? strstr(text, key) : NULL;
    if (!line)
        doctor_say(d->report, DOCTOR_UNKNOWN, "memlock", NULL, "the system does not say how much may be locked");
    else if (!doctor_find_number(line, key, &n_bytes))
        doctor_say(d->report, DOCTOR_OK, "memlock", NULL, "no limit on locked memory");
    else if (n_bytes < enough && counts_rings(d))
        doctor_say(d->report, DOCTOR_FINDING, "memlock",
                   "ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, docker run --ulimit memlock=-1",
                   "%.0f KiB may be locked, and this kernel counts the rings of io_uring, which need more",
                   n_bytes / 1024);
    else
        doctor_say(d->report, DOCTOR_OK, "memlock", NULL, "%.1f MiB may be locked, which suffices",
                   n_bytes / (1 << 20));
}

/* ---- pressure ---------------------------------------------------------------------------------------------------- */

/* The share of the last minute, in percent, in which some task waited for a resource. */
static bool read_pressure(const struct doctor *d, const char *what, double *percent)
{
    char text[512];
    return doctor_read(d, text, sizeof text, "/proc/pressure/%s", what) &&
           sscanf(text, "some avg10=%*f avg60=%lf", percent) == 1;
}

static void look_at_pressure(struct doctor *d)
{
    static const double much_memory = 1, much_io = 25;
    double memory = 0, io = 0;
    bool has_memory = read_pressure(d, "memory", &memory), has_io = read_pressure(d, "io", &io);
    if (has_memory && memory >= much_memory)
        doctor_say(d->report, DOCTOR_FINDING, "page cache",
                   "close other programs or lower --ram: files fall out of the page cache and are read again",
                   "programs waited for memory in %.0f%% of the last minute", memory);
    if (has_io && io >= much_io)
        doctor_say(d->report, DOCTOR_FINDING, "drives' load", "wait until other reads and writes have finished",
                   "programs waited for drives in %.0f%% of the last minute", io);
    if (!has_memory && !has_io)
        doctor_say(d->report, DOCTOR_UNKNOWN, "page cache", NULL,
                   "the kernel does not tell how often programs wait for memory (psi=1 on its command line)");
    else if (memory < much_memory && io < much_io)
        doctor_say(d->report, DOCTOR_OK, "page cache", NULL, "nobody has waited for memory or drives lately");
}

void doctor_memory(struct doctor *d)
{
    char info[FILE_BYTES];
    double total, available;
    if (doctor_read(d, info, sizeof info, "/proc/meminfo") && doctor_find_number(info, "MemTotal:", &total) &&
        doctor_find_number(info, "MemAvailable:", &available)) {
        total *= 1024;
        look_at_room(d, available * 1024, total);
        look_at_set_aside(d, info, total);
        look_at_swap(d, info, total);
        look_at_group(d, total);
    } else {
        doctor_say(d->report, DOCTOR_UNKNOWN, "memory", NULL, "the system does not say how much there is");
    }
    look_at_huge_pages(d);
    look_at_memlock(d);
    look_at_pressure(d);
}
