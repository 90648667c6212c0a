#define _GNU_SOURCE
#include "base/sandbox.h"

#if defined(__linux__)

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file_io.h"

/* ---- Landlock ------------------------------------------------------------------------------------------------ */

/* The kernel's interface, which headers older than the kernel lack; the numbers are the same on all processors. */
enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446, VERSION_FLAG = 1, RULE_PATH = 1 };

struct ruleset {
    uint64_t files, network, scopes; /* what is denied unless a rule allows it; the last two know no rule here */
};

struct path_rule {
    uint64_t files;
    int32_t fd;
} __attribute__((packed));

enum {
    FILE_EXECUTE = 1 << 0,
    FILE_WRITE = 1 << 1,
    FILE_READ = 1 << 2,
    FOLDER_LIST = 1 << 3,
    FOLDER_REMOVE_FOLDER = 1 << 4,
    FOLDER_REMOVE_FILE = 1 << 5,
    FOLDER_MAKE_FOLDER = 1 << 7,
    FOLDER_MAKE_FILE = 1 << 8,
    FOLDER_MAKE_LINK = 1 << 12,
    FILE_MOVE = 1 << 13, /* to another folder */
    FILE_TRUNCATE = 1 << 14,
    FILE_CONTROL_DEVICE = 1 << 15,
    VERSION_1_FILES = (1 << 13) - 1,
    TCP_BIND = 1,
    TCP_CONNECT = 2,
    SOCKETS_AND_SIGNALS = 3,
    READ_FILE = FILE_READ,
    READ_FOLDER = READ_FILE | FOLDER_LIST,
    WRITE_FILE = READ_FILE | FILE_WRITE | FILE_TRUNCATE,
    WRITE_FOLDER = WRITE_FILE | READ_FOLDER | FOLDER_REMOVE_FILE | FOLDER_MAKE_FOLDER | FOLDER_MAKE_FILE,
    KEEP_FOLDER = WRITE_FOLDER | FOLDER_REMOVE_FOLDER | FOLDER_MAKE_LINK,
};

/* All that this version of Landlock can deny, but what is needed. */
static struct ruleset everything(int version, unsigned needs)
{
    struct ruleset r = {.files = VERSION_1_FILES};
    r.files |= version >= 2 ? FILE_MOVE : 0;
    r.files |= version >= 3 ? FILE_TRUNCATE : 0;
    r.files |= version >= 5 ? FILE_CONTROL_DEVICE : 0;
    r.network = version >= 4 ? TCP_BIND | (needs & SANDBOX_CONNECT ? 0 : TCP_CONNECT) : 0;
    r.scopes = version >= 6 ? SOCKETS_AND_SIGNALS : 0;
    return r;
}

int sandbox_landlock_version(void)
{
    long version = syscall(CREATE_RULESET, NULL, 0, VERSION_FLAG);
    return version > 0 ? (int)version : 0;
}

static err_code failed(struct err *e, const char *what)
{
    return err_set(e, ERR_FAIL, "the sandbox could not be made: %s: %s", what, strerror(errno));
}

err_code sandbox_open(struct sandbox *s, unsigned needs, struct err *e)
{
    *s = (struct sandbox){.landlock = sandbox_landlock_version(), .needs = needs, .ruleset_fd = -1};
    if (!s->landlock)
        return ERR_OK;
    struct ruleset r = everything(s->landlock, s->needs);
    s->ruleset_fd =
        (int)syscall(CREATE_RULESET, &r, sizeof r, 0); /* an older kernel takes zeros that it doesn't know */
    return s->ruleset_fd >= 0 ? ERR_OK : failed(e, "Landlock");
}

void sandbox_close(struct sandbox *s)
{
    if (s->ruleset_fd >= 0)
        close(s->ruleset_fd);
    s->ruleset_fd = -1;
}

err_code sandbox_allow(struct sandbox *s, const char *path, enum sandbox_access access, struct err *e)
{
    struct stat st;
    if (s->ruleset_fd < 0)
        return ERR_OK;
    int fd = file_open(path, O_PATH, 0);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        return failed(e, path);
    if (fd < 0)
        return ERR_OK;
    bool is_folder = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    struct path_rule rule = {.fd = fd};
    if (access == SANDBOX_REMOVE)
        rule.files = is_folder ? FOLDER_REMOVE_FILE : 0;
    else if (access == SANDBOX_KEEP)
        rule.files = is_folder ? KEEP_FOLDER : WRITE_FILE;
    else if (access == SANDBOX_DEVICES)
        rule.files = (is_folder ? READ_FOLDER : 0) | WRITE_FILE | FILE_CONTROL_DEVICE;
    else if (access == SANDBOX_WRITE)
        rule.files = is_folder ? WRITE_FOLDER : WRITE_FILE;
    else
        rule.files = is_folder ? READ_FOLDER : READ_FILE;
    rule.files &= everything(s->landlock, s->needs).files;
    err_code code = ERR_OK;
    /* EBADFD: a pipe or a socket, which Landlock lets everybody open who has it */
    if (rule.files && syscall(ADD_RULE, s->ruleset_fd, RULE_PATH, &rule, 0) != 0 && errno != EBADFD)
        code = failed(e, path);
    close(fd);
    return code;
}

/* ---- seccomp ------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#endif

#if defined(NATIVE_ARCH)

/* Newer calls, by number: headers may lack them, and from 424 on all processors have the same ones. */
enum {
    NR_io_uring_setup = 425,
    NR_open_tree = 428,
    NR_move_mount,
    NR_fsopen,
    NR_fsconfig,
    NR_fsmount,
    NR_fspick,
    NR_clone3 = 435,
    NR_pidfd_getfd = 438,
    NR_process_madvise = 440,
    NR_mount_setattr = 442,
    NR_quotactl_fd,
    NR_fchmodat2 = 452,
    NR_setxattrat = 463,
    NR_removexattrat = 466,
    NR_open_tree_attr,
    NR_file_setattr = 469,
};

#if defined(__SANITIZE_ADDRESS__)
#define HAS_LEAK_CHECK
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_LEAK_CHECK
#endif
#endif

static const int denied[] = {
#if !defined(HAS_LEAK_CHECK) /* a sanitizer's leak check is a process that traces this one */
    SYS_ptrace,
#endif
#if defined(__x86_64__)
    SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat, SYS_kexec_file_load, SYS_iopl, SYS_ioperm,
    SYS_modify_ldt,
#endif
    /* programs, and the memory and files of other processes */
    SYS_execve, SYS_execveat, SYS_process_vm_readv, SYS_process_vm_writev, NR_process_madvise, NR_pidfd_getfd,
    /* sockets that others connect to */
    SYS_bind, SYS_listen,
    /* other views of the file systems, and files without their names */
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_unshare, SYS_setns, NR_open_tree, NR_open_tree_attr,
    NR_move_mount, NR_fsopen, NR_fsconfig, NR_fsmount, NR_fspick, NR_mount_setattr, SYS_name_to_handle_at,
    SYS_open_by_handle_at, SYS_fanotify_init,
    /* what Landlock doesn't see, or not from its first version on */
    SYS_truncate, SYS_fchmodat, NR_fchmodat2, SYS_fchownat, SYS_utimensat, SYS_setxattr, SYS_lsetxattr, SYS_removexattr,
    SYS_lremovexattr, NR_setxattrat, NR_removexattrat, NR_file_setattr,
    /* the machine, and parts of the kernel that are of no use here */
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct,
    SYS_quotactl, NR_quotactl_fd, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime, SYS_sethostname,
    SYS_setdomainname, SYS_syslog, SYS_vhangup, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_add_key,
    SYS_request_key, SYS_keyctl};

enum {
    N_DENIED = sizeof denied / sizeof *denied,
    MAX_CODE = 2 * N_DENIED + 40,
    X32_CALLS = 0x40000000, /* from here on: the same calls by other numbers */
    NEW_NAMESPACES =
        CLONE_NEWCGROUP | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUSER | CLONE_NEWUTS,
};

struct filter {
    struct sock_filter code[MAX_CODE];
    unsigned short n;
};

static void add(struct filter *f, struct sock_filter instruction)
{
    f->code[f->n++] = instruction;
}

static void load(struct filter *f, size_t off)
{
    add(f, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)off));
}

static void answer(struct filter *f, uint32_t action)
{
    add(f, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

/* Goes on with the next instruction where what was loaded compares so (BPF_JEQ and the like), else after n_skip more.
 */
static void unless(struct filter *f, uint16_t comparison, uint32_t value, uint8_t n_skip)
{
    add(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_K | comparison, value, 0, n_skip));
}

static void deny(struct filter *f, int call, int code)
{
    unless(f, BPF_JEQ, (uint32_t)call, 1);
    answer(f, SECCOMP_RET_ERRNO | (uint32_t)code);
}

static void make_filter(struct filter *f, unsigned needs)
{
    const uint32_t no = SECCOMP_RET_ERRNO | EPERM;
    const size_t first = offsetof(struct seccomp_data, args),
                 second = first + sizeof(uint64_t); /* their lower halves */
    f->n = 0;
    load(f, offsetof(struct seccomp_data, arch)); /* another processor's numbers mean other calls */
    add(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_K | BPF_JEQ, NATIVE_ARCH, 1, 0));
    answer(f, no);
    load(f, offsetof(struct seccomp_data, nr));
#if defined(__x86_64__)
    unless(f, BPF_JGE, X32_CALLS, 1);
    answer(f, no);
#endif
    for (int i = 0; i < N_DENIED; i++)
        deny(f, denied[i], EPERM);
    if (!(needs & SANDBOX_IO_URING))
        deny(f, NR_io_uring_setup, EPERM);
    if (!(needs & SANDBOX_CONNECT)) {
        deny(f, SYS_socket, EPERM);
        deny(f, SYS_connect, EPERM);
    }
    if (!(needs & SANDBOX_ACCEPT)) {
        deny(f, SYS_accept, EPERM);
        deny(f, SYS_accept4, EPERM);
    }
    deny(f, NR_clone3, ENOSYS); /* its flags lie in memory, which filters can't read: the C library turns to clone */
    unless(f, BPF_JEQ, SYS_clone, 4);
    load(f, first);
    unless(f, BPF_JSET, NEW_NAMESPACES, 1);
    answer(f, no);
    answer(f, SECCOMP_RET_ALLOW);
    unless(f, BPF_JEQ, SYS_ioctl, 5);
    load(f, second);
    unless(f, BPF_JEQ, TIOCSTI, 1);
    answer(f, no);
    deny(f, TIOCLINUX, EPERM);
    answer(f, SECCOMP_RET_ALLOW);
}

bool sandbox_has_seccomp(void)
{
    uint32_t action = SECCOMP_RET_ERRNO;
    return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

/* SPEC_ALLOW: kernels before 5.16 otherwise switch off what makes loads fast, as a shield of one part of a process
 * against another. Kernels before 4.17 don't know it. */
static err_code enter_filter(unsigned needs, struct err *e)
{
    struct filter f;
    make_filter(&f, needs);
    const struct sock_fprog program = {f.n, f.code};
    const unsigned all = needs & SANDBOX_ALL_THREADS ? SECCOMP_FILTER_FLAG_TSYNC : 0;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, all | SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) == 0 ||
        (errno == EINVAL && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, all, &program) == 0))
        return ERR_OK;
    return failed(e, "seccomp");
}

#else

bool sandbox_has_seccomp(void)
{
    return false;
}

static err_code enter_filter(unsigned needs, struct err *e)
{
    return ERR_OK;
}

#endif

err_code sandbox_enter(struct sandbox *s, struct err *e)
{
    bool seccomp = sandbox_has_seccomp();
    if (!s->landlock && !seccomp)
        return ERR_OK;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) /* what both ask of those without privilege */
        return failed(e, "no_new_privs");
    if (s->landlock && syscall(RESTRICT_SELF, s->ruleset_fd, 0) != 0)
        return failed(e, "Landlock");
    return seccomp ? enter_filter(s->needs, e) : ERR_OK;
}

#else

int sandbox_landlock_version(void)
{
    return 0;
}

bool sandbox_has_seccomp(void)
{
    return false;
}

err_code sandbox_open(struct sandbox *s, unsigned needs, struct err *e)
{
    *s = (struct sandbox){.needs = needs, .ruleset_fd = -1};
    return ERR_OK;
}

void sandbox_close(struct sandbox *s)
{
}

err_code sandbox_allow(struct sandbox *s, const char *path, enum sandbox_access access, struct err *e)
{
    return ERR_OK;
}

err_code sandbox_enter(struct sandbox *s, struct err *e)
{
    return ERR_OK;
}

#endif
