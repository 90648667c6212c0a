/* The drive that a model lies on, and how it is read. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "gguf/gguf.h"
#include "jobs/doctor_internal.h"
#include "store/store.h"

/* ---- io_uring ---------------------------------------------------------------------------------------------------- */

void doctor_try_io_uring(struct doctor_live *live, struct err *why)
{
    struct store *s = NULL;
    struct store_queue *q = NULL;
    err_code code = store_open_file(&s, "/proc/self/exe", why);
    if (code == ERR_OK)
        code = store_queue_open(&q, s, &(struct store_queue_params){.engine = STORE_ENGINE_IO_URING}, why);
    live->no_io_uring = code == ERR_OK ? NULL : why->text;
    store_queue_close(&q);
    store_close(&s);
}

static void look_at_io_uring(struct doctor *d)
{
    double disabled = 0;
    bool is_set = doctor_number(d, &disabled, "/proc/sys/kernel/io_uring_disabled") && disabled > 0;
    if (!d->live->no_io_uring)
        doctor_say(d->report, DOCTOR_OK, "io_uring", NULL, "permitted");
    else if (is_set)
        doctor_say(
            d->report, DOCTOR_FINDING, "io_uring", "as root: sysctl kernel.io_uring_disabled=0",
            "the system forbids it (kernel.io_uring_disabled=%.0f): experts are read by threads, which is slower",
            disabled);
    else
        doctor_say(d->report, DOCTOR_FINDING, "io_uring",
                   "in a container: docker run --security-opt seccomp=unconfined, or a profile that permits "
                   "io_uring_setup and io_uring_enter; else a kernel from 5.6 on, and moebius built with liburing",
                   "refused (%s): experts are read by threads, which is slower", d->live->no_io_uring);
}

/* ---- which drive ------------------------------------------------------------------------------------------------- */

/* The line of /proc/self/mountinfo about a device: its file system's type and what is mounted. */
static bool find_mount(const struct doctor *d, char type[64], char source[256])
{
    char text[1 << 15];
    char number[32];
    if (!doctor_read(d, text, sizeof text, "/proc/self/mountinfo"))
        return false;
    snprintf(number, sizeof number, " %u:%u ", d->live->major, d->live->minor);
    for (char *line = text, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = '\0';
        const char *at = strstr(line, number), *rest = strstr(line, " - ");
        if (at && rest && at < rest && sscanf(rest, " - %63s %255s", type, source) == 2)
            return true;
    }
    return false;
}

static bool is_one_of(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (!strcmp(word, *words))
            return true;
    return false;
}

static bool say_slow_file_system(struct doctor *d, const char *type)
{
    static const char *const networks[] = {"nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "virtiofs", "afs", NULL};
    static const char *const shims[] = {"fuse", "fuseblk", "drvfs", "ecryptfs", "fuse.sshfs", NULL};
    bool is_network = is_one_of(type, networks);
    if (!is_network && !is_one_of(type, shims))
        return false;
    doctor_say(d->report, DOCTOR_FINDING, "drive",
               is_network ? "copy the model to a drive of this machine"
                          : "put the model on a file system of the kernel's own (ext4, xfs)",
               "the model lies on a file system of type %s, which %s", type,
               is_network ? "is read over a network or from another system" : "a program serves for each read");
    return true;
}

/* The folder of the block device below /sys, of a partition the whole drive's, of a volume that stands on one drive
 * that one's. */
static bool find_drive(const struct doctor *d, char *folder, size_t n_folder, const char *source)
{
    char text[64];
    snprintf(folder, n_folder, "/sys/dev/block/%u:%u", d->live->major, d->live->minor);
    if (!doctor_read(d, text, sizeof text, "%s/dev", folder)) { /* of btrfs and overlays the number is no device's */
        if (strncmp(source, "/dev/", 5) != 0)
            return false;
        snprintf(folder, n_folder, "/sys/class/block/%s", source + 5);
    }
    if (doctor_read(d, text, sizeof text, "%s/partition", folder)) {
        size_t n = strlen(folder);
        snprintf(folder + n, n_folder - n, "/..");
    }
    return doctor_read(d, text, sizeof text, "%s/queue/rotational", folder);
}

/* ---- how fast ---------------------------------------------------------------------------------------------------- */

/* Whether a drive is one of SATA, and a disk. Virtual drives call themselves disks, whatever they are. */
static bool is_ata(const struct doctor *d, const char *folder, bool *is_disk)
{
    char vendor[64];
    double rotational;
    if (!doctor_read(d, vendor, sizeof vendor, "%s/device/vendor", folder) || strncmp(vendor, "ATA", 3) != 0 ||
        !doctor_number(d, &rotational, "%s/queue/rotational", folder))
        return false;
    *is_disk = rotational > 0;
    return true;
}

/* What a drive of its class reads, bytes a second, and the class; 0: not known, as of virtual drives. */
static double class_speed(const struct doctor *d, const char *folder, char *name, size_t n_name)
{
    /* of what a link carries: large random reads in a good depth reach more of it on any drive that deserves its link
     */
    static const double nvme_share = 0.5, sata_ssd = 300e6, disk = 80e6;
    char device[512 + sizeof "/device/device"]; /* of a folder of doctor_drive */
    struct doctor_link link;
    snprintf(device, sizeof device, "%s/device/device", folder);
    if (doctor_read_link(d, device, &link)) {
        snprintf(name, n_name, "NVMe drives on a link of %.0f GT/s with %.0f lanes", link.speed, link.width);
        return nvme_share * doctor_link_bytes_per_s(&link);
    }
    bool is_disk = false;
    if (!is_ata(d, folder, &is_disk))
        return 0;
    snprintf(name, n_name, "%s", is_disk ? "hard disks" : "SATA drives");
    return is_disk ? disk : sata_ssd;
}

static void look_at_speed(struct doctor *d, const char *folder)
{
    char class[128];
    double speed = d->live->drive_bytes_per_s, expected = class_speed(d, folder, class, sizeof class);
    if (speed <= 0)
        doctor_say(d->report, DOCTOR_UNKNOWN, "drive's speed", NULL, "not measured%s%s",
                   d->live->no_drive_speed ? ": " : "", d->live->no_drive_speed ? d->live->no_drive_speed : "");
    else if (expected <= 0)
        doctor_say(d->report, DOCTOR_UNKNOWN, "drive's speed", NULL,
                   "%.0f MB/s in random reads; what it should reach is unknown", speed / 1e6);
    else if (speed < expected)
        doctor_say(d->report, DOCTOR_FINDING, "drive's speed",
                   "see whether it is hot (nvme smart-log), nearly full, busy, or behind encryption; run fstrim; move "
                   "it to a slot of the processor's own",
                   "%.0f MB/s in random reads; %s do %.0f and more", speed / 1e6, class, expected / 1e6);
    else
        doctor_say(d->report, DOCTOR_OK, "drive's speed", NULL, "%.0f MB/s in random reads", speed / 1e6);
}

static void look_at_queue(struct doctor *d, const char *folder)
{
    char scheduler[128], uuid[128];
    bool is_disk = false;
    if (is_ata(d, folder, &is_disk) && is_disk)
        doctor_say(d->report, DOCTOR_FINDING, "drive", "move the model to an SSD, best to NVMe",
                   "the model lies on a hard disk: experts that are not in memory take about 10 ms each");
    if (doctor_read(d, scheduler, sizeof scheduler, "%s/queue/scheduler", folder) && strstr(scheduler, "[bfq]") &&
        !is_disk)
        doctor_say(d->report, DOCTOR_FINDING, "drive's queue",
                   "as root: echo none > /sys/block/DRIVE/queue/scheduler (or a rule of udev)",
                   "the scheduler of its requests is bfq, which limits fast drives");
    if (doctor_read(d, uuid, sizeof uuid, "/sys/dev/block/%u:%u/dm/uuid", d->live->major, d->live->minor) &&
        !strncmp(uuid, "CRYPT-", 6))
        doctor_say(d->report, DOCTOR_FINDING, "drive",
                   "keep the model on a volume without encryption, or open it with cryptsetup --perf-no_read_workqueue",
                   "the model lies on an encrypted volume: each read is decrypted by the processor");
}

void doctor_drive(struct doctor *d)
{
    char folder[512], type[64] = "", source[256] = "";
    look_at_io_uring(d);
    if (!d->live->has_drive)
        return;
    bool is_mounted = find_mount(d, type, source);
    bool is_slow = is_mounted && say_slow_file_system(d, type);
    if (find_drive(d, folder, sizeof folder, source)) {
        look_at_queue(d, folder);
        look_at_speed(d, folder);
    } else if (!is_slow) {
        doctor_say(d->report, DOCTOR_UNKNOWN, "drive", NULL, "the system does not show which drive the model lies on");
    }
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

enum { READ_BYTES = 1 << 20, N_FLYING = 32 };
static const int64_t measure_ns = 700 * 1000 * 1000;

/* Random reads of a file, N_FLYING at once; false: one failed. reads: [N_FLYING]. */
static bool read_randomly(struct store_queue *q, struct store_read *reads, char *buf, uint64_t n_bytes,
                          double *bytes_per_s)
{
    struct store_read *next;
    uint64_t n_done = 0, n_place = n_bytes / READ_BYTES;
    struct random random = random_seed(1);
    int64_t start = clock_ns();
    bool ok = true;
    for (int i = 0; i < N_FLYING; i++) {
        reads[i] = (struct store_read){.n_bytes = READ_BYTES, .buf = buf + (size_t)i * READ_BYTES};
        reads[i].offset = random_u32(&random) % n_place * READ_BYTES;
        next = &reads[i];
        store_queue_submit(q, &next, 1);
    }
    for (int n_flying = N_FLYING; n_flying > 0; n_flying--) {
        store_queue_collect(q, &next, 1, true);
        n_done++;
        ok = ok && !next->failure;
        if (!ok || clock_ns() - start > measure_ns)
            continue; /* what is in flight is waited for */
        next->offset = random_u32(&random) % n_place * READ_BYTES;
        store_queue_submit(q, &next, 1);
        n_flying++;
    }
    *bytes_per_s = (double)n_done * READ_BYTES * 1e9 / (double)(clock_ns() - start);
    return ok;
}

static const char *measure(struct doctor_live *live, const char *path)
{
    struct store *s = NULL;
    struct store_queue *q = NULL;
    struct err e;
    static const uint64_t least = (uint64_t)64 * READ_BYTES;
    const struct store_queue_params direct = {.depth = N_FLYING, .direct = STORE_DIRECT_ON};
    const char *why = NULL;
    struct stat st;
    char *buf = mem_map((size_t)N_FLYING * READ_BYTES, MEM_SCRATCH);
    struct store_read *reads = mem_calloc(N_FLYING, sizeof *reads);
    if (stat(path, &st) != 0 || (uint64_t)st.st_size < least)
        why = "the file is too small for that";
    else if (!buf || !reads || store_open_file(&s, path, &e) != ERR_OK)
        why = "the file can't be opened";
    else if (store_queue_open(&q, s, &direct, &e) != ERR_OK)
        why = "the file system does not permit reading past the page cache";
    else if (!read_randomly(q, reads, buf, (uint64_t)st.st_size, &live->drive_bytes_per_s))
        why = "a read failed";
    if (why)
        live->drive_bytes_per_s = 0;
    store_queue_close(&q);
    store_close(&s);
    mem_free(reads);
    if (buf)
        mem_unmap(buf, (size_t)N_FLYING * READ_BYTES, MEM_SCRATCH);
    return why;
}

/* The bytes of a model, in all its parts; of what is none, of the file. */
static uint64_t count_bytes(const char *path, const struct stat *st)
{
    struct gguf *g;
    struct err e;
    uint64_t n = 0;
    if (gguf_open(&g, path, &e) != ERR_OK)
        return (uint64_t)st->st_size;
    for (int i = 0; i < gguf_n_files(g); i++)
        n += gguf_file_bytes(g, i);
    gguf_close(&g);
    return n;
}

void doctor_measure_drive(struct doctor_live *live, const char *path)
{
    struct stat st;
    live->has_drive = stat(path, &st) == 0;
    if (!live->has_drive)
        return;
    live->major = major(st.st_dev);
    live->minor = minor(st.st_dev);
    live->model_bytes = count_bytes(path, &st);
    live->no_drive_speed = measure(live, path);
}
