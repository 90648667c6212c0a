#define _GNU_SOURCE
/* What the doctor says of machines that are a folder of files: each case changes a healthy one, and names the line that
 * must come of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "jobs/doctor.h"
#include "temp_folder.h"

#define CPU   "/sys/devices/system/cpu/"
#define FREQ  CPU "cpu0/cpufreq/"
#define HWMON "/sys/class/hwmon/hwmon0/"
#define NVME  "/sys/bus/pci/devices/0000:01:00.0/"
#define GPU   "/sys/bus/pci/devices/0000:02:00.0/"
#define BLOCK "/sys/dev/block/259:1/"
#define LIMITS(memlock)                                                                                                \
    "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         " memlock    \
    "               unlimited            bytes\n"
#define FLAGS(flags) "processor : 0\nmodel name : Some CPU\nflags\t\t: fpu avx2 fma f16c" flags "\nbugs :\n"

struct file {
    const char *path, *text;
};

static const struct file healthy[] = {
    {"/proc/cpuinfo", FLAGS(" avx512f avx512bw avx512dq avx512vl avx512_vnni")},
    {"/proc/meminfo", "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\nSwapTotal: 8000000 kB\nSwapFree: 8000000 kB\n"
                      "HugePages_Free: 0\nHugepagesize: 2048 kB\n"},
    {"/proc/loadavg", "0.10 0.1 0.1 1/1 1\n"},
    {"/proc/self/limits", LIMITS("8388608")},
    {"/proc/self/cgroup", "0::/a/b\n"},
    {"/proc/self/mountinfo", "29 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n"},
    {"/proc/sys/kernel/osrelease", "6.1.0\n"},
    {"/proc/sys/kernel/numa_balancing", "1\n"},
    {"/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"},
    {"/proc/pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"},
    {"/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"},
    {"/sys/devices/system/node/online", "0\n"},
    {CPU "online", "0-7\n"},
    {FREQ "scaling_governor", "performance\n"},
    {HWMON "name", "coretemp\n"},
    {HWMON "temp1_label", "Package id 0\n"},
    {HWMON "temp1_input", "48000\n"},
    {HWMON "temp1_crit", "100000\n"},
    {BLOCK "dev", "259:1\n"},
    {BLOCK "queue/rotational", "0\n"},
    {BLOCK "queue/scheduler", "[none] mq-deadline\n"},
    {BLOCK "device/device/current_link_speed", "16.0 GT/s PCIe\n"},
    {BLOCK "device/device/max_link_speed", "16.0 GT/s PCIe\n"},
    {BLOCK "device/device/current_link_width", "4\n"},
    {BLOCK "device/device/max_link_width", "4\n"},
    {NVME "class", "0x010802\n"},
    {NVME "current_link_speed", "16.0 GT/s PCIe\n"},
    {NVME "max_link_speed", "16.0 GT/s PCIe\n"},
    {NVME "current_link_width", "4\n"},
    {NVME "max_link_width", "4\n"},
    {GPU "class", "0x030000\n"},
    {GPU "vendor", "0x10de\n"},
    {GPU "current_link_speed", "32.0 GT/s PCIe\n"},
    {GPU "max_link_speed", "32.0 GT/s PCIe\n"},
    {GPU "current_link_width", "16\n"},
    {GPU "max_link_width", "16\n"},
};

static moebius_gpu gpu = {.kind = "discrete", .is_usable = true, .name = "A card"};
static const struct doctor_live live_healthy = {
    .n_processors = 8,
    .kernels = "avx512vnni",
    .has_drive = true,
    .major = 259,
    .minor = 1,
    .drive_bytes_per_s = 6e9,
    .model_bytes = 10000000000,
    .gpus = &gpu,
    .n_gpu = 1,
};

static struct doctor_report report;
static int n_root;

/* The healthy machine with some files changed; text NULL: removed. */
static void look(const struct file *files, size_t n, const struct doctor_live *live)
{
    char root[600];
    snprintf(root, sizeof root, "%s/%d", folder.path, n_root++);
    assert_int_equal(mkdir(root, 0700), 0);
    for (size_t i = 0; i < sizeof healthy / sizeof *healthy; i++)
        write_text_below(root, healthy[i].path, healthy[i].text);
    for (size_t i = 0; i < n && files[i].path; i++)
        if (files[i].text) {
            write_text_below(root, files[i].path, files[i].text);
        } else {
            char full[1024];
            snprintf(full, sizeof full, "%s%s", root, files[i].path);
            assert_int_equal(unlink(full), 0);
        }
    memset(&report, 0, sizeof report);
    doctor_look(&report, root, live);
}

static const struct doctor_line *find_line(const char *topic, enum doctor_state state)
{
    for (int i = 0; i < report.n_line; i++)
        if (!strcmp(report.lines[i].topic, topic) && report.lines[i].state == state)
            return &report.lines[i];
    return NULL;
}

static void print_report(void)
{
    doctor_print(&report, stderr);
}

/* The one line that is not fine; models have no checksums. */
static void assert_only(enum doctor_state state, const char *topic, const char *said)
{
    const struct doctor_line *l = find_line(topic, state);
    int n = 0;
    for (int i = 0; i < report.n_line; i++)
        n += report.lines[i].state != DOCTOR_OK && strcmp(report.lines[i].topic, "checksums") != 0;
    if (!l || n != 1 || !strstr(l->said, said)) {
        print_report();
        fail_msg("expected one line that is not fine, of %s, with \"%s\"", topic, said);
    }
    assert_true(state != DOCTOR_FINDING || *l->remedy);
}

static void a_healthy_machine_has_no_findings(void **state)
{
    (void)state;
    look(NULL, 0, &live_healthy);
    if (doctor_n_findings(&report))
        print_report();
    assert_int_equal(doctor_n_findings(&report), 0);
    for (int i = 0; i < report.n_line; i++)
        assert_int_equal(report.lines[i].state, DOCTOR_OK);
}

static void each_fault_is_the_one_finding(void **state)
{
    static const struct {
        struct file files[4];
        const char *topic, *said;
    } cases[] = {
        {{{"/proc/cpuinfo", FLAGS("")}, {FREQ "scaling_governor", "powersave\n"}}, "clock", "powersave"},
        {{{FREQ "scaling_governor", "conservative\n"}, {FREQ "scaling_driver", "intel_pstate\n"}}, "clock", "conserv"},
        {{{FREQ "energy_performance_preference", "power\n"}, {FREQ "scaling_driver", "amd-pstate-epp\n"}},
         "clock",
         "saving power (power)"},
        {{{FREQ "scaling_max_freq", "2000000\n"}, {FREQ "cpuinfo_max_freq", "5000000\n"}}, "clock", "2.00 of 5.00 GHz"},
        {{{CPU "intel_pstate/no_turbo", "1\n"}}, "clock", "boost is off"},
        {{{CPU "cpufreq/boost", "0\n"}}, "clock", "boost is off"},
        {{{HWMON "temp1_input", "93000\n"}}, "heat", "coretemp Package id 0 is at 93 of at most 100"},
        {{{HWMON "temp1_input", "93000\n"}, {CPU "cpu0/thermal_throttle/package_throttle_count", "7\n"}},
         "heat",
         "slowed down 7 times"},
        {{{"/sys/class/hwmon/hwmon4/name", "nvme\n"},
          {"/sys/class/hwmon/hwmon4/temp2_input", "80850\n"},
          {"/sys/class/hwmon/hwmon4/temp2_max", "83850\n"}},
         "heat",
         "nvme is at 81 of at most 84"},
        {{{CPU "online", "0-11,16-19\n"}}, "processors", "8 of 16"},
        {{{"/sys/fs/cgroup/a/cpu.max", "250000 100000\n"}}, "processor limit", "2.5 processors: 8 threads"},
        {{{"/proc/self/cgroup", "3:cpu,cpuacct:/x\n"},
          {"/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "100000\n"},
          {"/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"}},
         "processor limit",
         "1.0 processors"},
        {{{"/proc/loadavg", "6.00 5.0 5.0 1/1 1\n"}}, "load", "6.0 programs"},
        {{{"/sys/devices/system/node/online", "0-1\n"}}, "memory nodes", "2 memory nodes"},
        {{{"/proc/meminfo", "MemTotal: 64000000 kB\nMemAvailable: 5000000 kB\n"}}, "memory", "5.1 of 65.5 GB"},
        {{{"/proc/meminfo",
           "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\nSwapTotal: 9000000 kB\nSwapFree: 0 kB\n"}},
         "swap",
         "9.2 GB"},
        {{{"/proc/meminfo",
           "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\nHugePages_Free: 5000\nHugepagesize: 2048 kB\n"}},
         "hugetlb pages",
         "10.5 GB"},
        {{{"/sys/fs/cgroup/a/memory.max", "8000000000\n"}}, "memory limit", "8.0 of the machine's 65.5 GB"},
        {{{"/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"}}, "huge pages", "are off"},
        {{{"/proc/self/limits", LIMITS("65536")}, {"/proc/sys/kernel/osrelease", "5.10.0\n"}}, "memlock", "64 KiB"},
        {{{"/proc/pressure/memory", "some avg10=0.00 avg60=12.00 avg300=0.00 total=0\n"}}, "page cache", "12%"},
        {{{"/proc/pressure/io", "some avg10=0.00 avg60=50.00 avg300=0.00 total=0\n"}}, "drives' load", "50%"},
        {{{"/proc/self/mountinfo", "29 1 259:1 / /m rw shared:1 - nfs4 host:/m rw\n"}}, "drive", "over a network"},
        {{{"/proc/self/mountinfo", "29 1 259:1 / /m rw - fuseblk /dev/sdb1 rw\n"}}, "drive", "a program serves"},
        {{{BLOCK "queue/scheduler", "none [bfq]\n"}}, "drive's queue", "bfq"},
        {{{BLOCK "dm/uuid", "CRYPT-LUKS2-1\n"}}, "drive", "encrypted"},
        {{{NVME "current_link_width", "2\n"}}, "PCIe link", "NVMe drive 0000:01:00.0: runs with 2 of 4 lanes"},
        {{{NVME "current_link_speed", "8.0 GT/s PCIe\n"}}, "PCIe link", "runs at 8.0 of 16.0 GT/s"},
        {{{GPU "current_link_width", "8\n"}}, "PCIe link", "GPU 0000:02:00.0: runs with 8 of 16 lanes"},
        {{{GPU "current_link_width", "4\n"}, {"/sys/bus/pci/devices/max_link_width", "4\n"}},
         "PCIe link",
         "its slot has 4 of the 16 lanes"},
        {{{GPU "current_link_speed", "16.0 GT/s PCIe\n"}, {"/sys/bus/pci/devices/max_link_speed", "16.0 GT/s PCIe\n"}},
         "PCIe link",
         "its slot runs at 16.0 of the 32.0 GT/s"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct doctor_live live = live_healthy;
        live.kernels = i == 0 ? "avx2" : live.kernels; /* without AVX-512 */
        look(cases[i].files, 4, &live);
        assert_only(DOCTOR_FINDING, cases[i].topic, cases[i].said);
    }
}

static void what_is_not_said_is_unknown(void **state)
{
    static const struct {
        struct file file;
        const char *topic;
    } cases[] = {
        {{"/proc/cpuinfo", NULL}, "instructions"},
        {{FREQ "scaling_governor", NULL}, "clock"},
        {{HWMON "temp1_crit", NULL}, "heat"},
        {{HWMON "temp1_input", "nothing\n"}, "heat"},
        {{HWMON "name", NULL}, "heat"},
        {{"/proc/loadavg", NULL}, "load"},
        {{CPU "online", NULL}, "processors"},
        {{"/proc/meminfo", NULL}, "memory"},
        {{"/proc/self/limits", NULL}, "memlock"},
        {{BLOCK "queue/rotational", NULL}, "drive"},
        {{NVME "max_link_speed", NULL}, "PCIe link"},
        {{"/sys/kernel/mm/transparent_hugepage/enabled", NULL}, "huge pages"},
        {{BLOCK "device/device/max_link_speed", NULL}, "drive's speed"},
        {{GPU "current_link_speed", "2.5 GT/s PCIe\n"}, "PCIe link"}, /* it rests */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        look(&cases[i].file, 1, &live_healthy);
        assert_only(DOCTOR_UNKNOWN, cases[i].topic, "");
    }
}

static void what_was_tried_makes_findings(void **state)
{
    (void)state;
    struct doctor_live live = live_healthy;
    live.kernels = "avx2";
    look(NULL, 0, &live);
    assert_only(DOCTOR_FINDING, "instructions", "avx512vnni kernels need, and avx2");
    live.is_lowered = true;
    look(NULL, 0, &live);
    assert_string_equal(find_line("instructions", DOCTOR_FINDING)->remedy, "unset MOEBIUS_CPU");

    live = live_healthy;
    live.kernels = "scalar";
    look(&(struct file){"/proc/cpuinfo", "a\nflags : fpu hypervisor\n"}, 1, &live);
    assert_only(DOCTOR_FINDING, "instructions", "shows no AVX2");

    live = live_healthy;
    live.n_threads = 12;
    look(NULL, 0, &live);
    assert_only(DOCTOR_FINDING, "threads", "12 threads on 8");

    live = live_healthy;
    live.no_io_uring = "io_uring: Operation not permitted";
    look(NULL, 0, &live);
    assert_only(DOCTOR_FINDING, "io_uring", "Operation not permitted");
    look(&(struct file){"/proc/sys/kernel/io_uring_disabled", "2\n"}, 1, &live);
    assert_only(DOCTOR_FINDING, "io_uring", "io_uring_disabled=2");

    live = live_healthy;
    live.drive_bytes_per_s = 1e9;
    look(NULL, 0, &live);
    assert_only(DOCTOR_FINDING, "drive's speed", "1000 MB/s in random reads; NVMe drives on a link of 16 GT/s");
    live.drive_bytes_per_s = 0;
    live.no_drive_speed = "the file is too small for that";
    look(NULL, 0, &live);
    assert_only(DOCTOR_UNKNOWN, "drive's speed", "too small");
}

static void a_hard_disk_is_told_from_a_virtual_drive(void **state)
{
    static const struct file disk[] = {{BLOCK "queue/rotational", "1\n"},
                                       {BLOCK "device/device/max_link_speed", NULL},
                                       {BLOCK "device/vendor", "ATA     \n"}};
    (void)state;
    struct doctor_live live = live_healthy;
    live.drive_bytes_per_s = 150e6;
    look(disk, 3, &live);
    assert_only(DOCTOR_FINDING, "drive", "hard disk");
    look(disk, 2, &live);
    assert_only(DOCTOR_UNKNOWN, "drive's speed", "150 MB/s");
}

static void a_gpu_without_a_driver_is_a_finding(void **state)
{
    (void)state;
    struct doctor_live live = live_healthy;
    moebius_gpu others[] = {{.kind = "software", .is_usable = true, .name = "on the processor"}};
    live.gpus = others;
    look(NULL, 0, &live);
    assert_only(DOCTOR_FINDING, "GPU driver", "has no Vulkan driver");
    assert_non_null(strstr(find_line("GPU driver", DOCTOR_FINDING)->remedy, "NVIDIA"));
    look(&(struct file){GPU "vendor", "0x1a03\n"}, 1, &live); /* of a server's console */
    assert_int_equal(doctor_n_findings(&report), 0);
    moebius_gpu broken[] = {{.kind = "discrete", .name = "A card", .why_not = "it lacks 16-bit storage"}};
    live.gpus = broken;
    look(NULL, 0, &live);
    assert_only(DOCTOR_FINDING, "GPU driver", "it lacks 16-bit storage");
}

static void a_limit_that_leaves_room_for_the_model_is_fine(void **state)
{
    (void)state;
    look(&(struct file){"/sys/fs/cgroup/a/b/memory.max", "20000000000\n"}, 1, &live_healthy);
    assert_int_equal(doctor_n_findings(&report), 0);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void examine(const char *path, bool deep)
{
    struct err e;
    memset(&report, 0, sizeof report);
    assert_int_equal(doctor_look_at_model(&report, &(struct doctor_model){.path = path, .deep = deep}, &e), ERR_OK);
}

/* A copy of a golden model, with n bytes from `at`, counted from the end, overwritten. */
static struct temp_path damaged_copy(const char *name, long at, size_t n, int value)
{
    char from[512];
    size_t n_bytes;
    struct temp_path to = temp_path(&folder, name);
    snprintf(from, sizeof from, GOLDEN "/%s", name);
    char *bytes = read_file(from, &n_bytes);
    assert_true((size_t)at <= n_bytes && n <= (size_t)at);
    memset(bytes + n_bytes - at, value, n);
    write_file(to.s, bytes, n_bytes);
    free(bytes);
    return to;
}

static void whole_files_of_all_types_pass(void **state)
{
    static const char *const names[] = {"q_iq4_xs", "q_mix_iq", "q_mix_kt",  "q_mix_small", "q_mxfp4",
                                        "q_q2_k",   "q_q3_k",   "q_q4_0",    "q_q4_k",      "q_q5_k",
                                        "q_q6_k",   "q_q8_0",   "qwen35moe", "gpt_oss",     "gemma4"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        snprintf(path, sizeof path, GOLDEN "/%s.gguf", names[i]);
        examine(path, true);
        if (doctor_n_findings(&report))
            print_report();
        assert_int_equal(doctor_n_findings(&report), 0);
        assert_non_null(find_line("values", DOCTOR_OK));
    }
}

static void damage_is_found_by_its_values(void **state)
{
    static const struct {
        int value;
        const char *said;
    } cases[] = {{0xff, "NaN or infinite"}, {0, "all zeros"}};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct temp_path p = damaged_copy("q_q4_k.gguf", 40000, 40000, cases[i].value);
        examine(p.s, false);
        assert_int_equal(doctor_n_findings(&report), 0);
        examine(p.s, true);
        assert_only(DOCTOR_FINDING, "values", cases[i].said);
    }
}

static void a_file_cut_short_is_a_finding(void **state)
{
    (void)state;
    struct temp_path p = damaged_copy("q_q8_0.gguf", 0, 0, 0);
    struct stat st;
    assert_int_equal(stat(p.s, &st), 0);
    assert_int_equal(truncate(p.s, st.st_size - 5000), 0);
    examine(p.s, true);
    assert_int_equal(doctor_n_findings(&report), 1);
    assert_non_null(find_line("model", DOCTOR_FINDING));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_healthy_machine_has_no_findings),
        cmocka_unit_test(each_fault_is_the_one_finding),
        cmocka_unit_test(what_is_not_said_is_unknown),
        cmocka_unit_test(what_was_tried_makes_findings),
        cmocka_unit_test(a_hard_disk_is_told_from_a_virtual_drive),
        cmocka_unit_test(a_gpu_without_a_driver_is_a_finding),
        cmocka_unit_test(a_limit_that_leaves_room_for_the_model_is_fine),
        cmocka_unit_test(whole_files_of_all_types_pass),
        cmocka_unit_test(damage_is_found_by_its_values),
        cmocka_unit_test(a_file_cut_short_is_a_finding),
    };
    return cmocka_run_group_tests_name("doctor", tests, folder_setup, folder_teardown);
}
