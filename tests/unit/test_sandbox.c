#define _GNU_SOURCE
/* Each test does what it is about in a process of its own, which enters a sandbox first. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sandbox.h"
#include "temp_folder.h"

/* FOLDER/given, which may be read, FOLDER/open, which may be written, and FOLDER/other, which nobody named. */
static int setup(void **state)
{
    if (temp_folder_make(&folder) != 0)
        return -1;
    static const char *const folders[] = {"given", "given/below", "open", "other"};
    for (int i = 0; i < 4; i++)
        if (mkdir(temp_path(&folder, folders[i]).s, 0777) != 0)
            return -1;
    write_text_file(temp_path(&folder, "given/below/file").s, "text");
    write_text_file(temp_path(&folder, "open/file").s, "text");
    write_text_file(temp_path(&folder, "other/file").s, "text");
    write_text_file(temp_path(&folder, "other/one").s, "text");
    return symlink(temp_path(&folder, "other/file").s, temp_path(&folder, "given/link").s);
}

/* Makes a false condition known by its line; what the process ends with. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, strerror(errno));                              \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

#define CHECK_FAILS(call, code) CHECK((call) == -1 && errno == (code))

static void enter(unsigned needs)
{
    struct sandbox s;
    struct err e;
    CHECK(sandbox_open(&s, needs, &e) == ERR_OK);
    CHECK(sandbox_allow(&s, temp_path(&folder, "given").s, SANDBOX_READ, &e) == ERR_OK);
    CHECK(sandbox_allow(&s, temp_path(&folder, "open").s, SANDBOX_WRITE, &e) == ERR_OK);
    CHECK(sandbox_allow(&s, temp_path(&folder, "other/one").s, SANDBOX_READ, &e) == ERR_OK);
    CHECK(sandbox_allow(&s, temp_path(&folder, "nowhere").s, SANDBOX_WRITE, &e) == ERR_OK);
    CHECK(sandbox_allow(&s, "/proc/self", SANDBOX_READ, &e) == ERR_OK);
    CHECK(sandbox_enter(&s, &e) == ERR_OK);
    sandbox_close(&s);
}

static void in_process(bool is_confined, void (*fn)(void))
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (is_confined)
            enter(0);
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void in_sandbox(void (*fn)(void))
{
    in_process(true, fn);
}

static void need_landlock(void)
{
    if (!sandbox_landlock_version())
        skip();
}

static void need_seccomp(void)
{
    if (!sandbox_has_seccomp())
        skip();
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static int open_in(const char *name, int flags)
{
    return open(temp_path(&folder, name).s, flags | O_CLOEXEC, 0666);
}

static void try_reading(void)
{
    CHECK(open_in("given/below/file", O_RDONLY) >= 0);
    CHECK(open_in("given/below", O_RDONLY | O_DIRECTORY) >= 0);
    CHECK(open_in("open/file", O_RDONLY) >= 0);
    CHECK(open_in("other/one", O_RDONLY) >= 0);
    CHECK_FAILS(open_in("other/file", O_RDONLY), EACCES);
    CHECK_FAILS(open_in("given/link", O_RDONLY), EACCES); /* what a link means counts, not where it is */
    CHECK_FAILS(open_in("other", O_RDONLY | O_DIRECTORY), EACCES);
    CHECK_FAILS(open("/etc/passwd", O_RDONLY), EACCES);
    CHECK_FAILS(open_in("other/nowhere", O_RDONLY), ENOENT); /* no other error than without a sandbox */
}

static void reads_what_it_was_given_and_nothing_else(void **state)
{
    need_landlock();
    in_sandbox(try_reading);
}

static void try_writing(void)
{
    int fd = open_in("open/new", O_WRONLY | O_CREAT | O_EXCL);
    CHECK(fd >= 0 && write(fd, "1234", 4) == 4 && ftruncate(fd, 2) == 0 && fchmod(fd, 0600) == 0 && fsync(fd) == 0);
    CHECK(rename(temp_path(&folder, "open/new").s, temp_path(&folder, "open/file").s) == 0);
    CHECK(open_in("open/file", O_WRONLY | O_TRUNC) >= 0);
    CHECK(mkdir(temp_path(&folder, "open/below").s, 0777) == 0);
    CHECK(open_in("open/below/file", O_WRONLY | O_CREAT) >= 0);
    CHECK(unlink(temp_path(&folder, "open/below/file").s) == 0);
    CHECK_FAILS(open_in("given/below/file", O_WRONLY), EACCES);
    CHECK_FAILS(open_in("given/new", O_WRONLY | O_CREAT), EACCES);
    CHECK_FAILS(open_in("other/file", O_WRONLY), EACCES);
    CHECK_FAILS(open_in("other/new", O_WRONLY | O_CREAT), EACCES);
    CHECK_FAILS(unlink(temp_path(&folder, "given/below/file").s), EACCES);
    CHECK_FAILS(mkdir(temp_path(&folder, "given/folder").s, 0777), EACCES);
    CHECK_FAILS(symlink("/etc/passwd", temp_path(&folder, "open/link").s), EACCES);
    CHECK(rename(temp_path(&folder, "given/below/file").s, temp_path(&folder, "open/moved").s) == -1);
    CHECK(link(temp_path(&folder, "other/file").s, temp_path(&folder, "open/linked").s) == -1);
}

static void writes_where_it_may_and_nowhere_else(void **state)
{
    need_landlock();
    in_sandbox(try_writing);
}

static void try_changing_names(void)
{
    const struct temp_path path = temp_path(&folder, "open/file");
    CHECK_FAILS(chmod(path.s, 0777), EPERM);
    CHECK_FAILS(chown(path.s, 1, 1), EPERM);
    CHECK_FAILS(truncate(path.s, 0), EPERM);
    CHECK_FAILS(chroot(temp_path(&folder, "open").s), EPERM);
    CHECK_FAILS(mount(path.s, path.s, NULL, MS_BIND, NULL), EPERM);
    CHECK_FAILS(unshare(CLONE_NEWUSER), EPERM);
    CHECK_FAILS(syscall(SYS_clone, CLONE_NEWUSER, NULL, NULL, NULL, NULL), EPERM);
}

static void changes_no_modes_owners_or_mounts(void **state)
{
    need_seccomp();
    in_sandbox(try_changing_names);
}

/* ---- beyond files -------------------------------------------------------------------------------------------- */

static void try_programs(void)
{
    char path[] = "/bin/true", *argv[] = {path, NULL};
    errno = 0;
    CHECK_FAILS(execv(path, argv), EPERM);
    CHECK_FAILS(syscall(SYS_execveat, AT_FDCWD, path, argv, NULL, 0), EPERM);
}

static void starts_no_program(void **state)
{
    need_seccomp();
    in_sandbox(try_programs);
}

static void try_sockets(void)
{
    CHECK_FAILS(socket(AF_INET, SOCK_STREAM, 0), EPERM);
    CHECK_FAILS(socket(AF_INET6, SOCK_DGRAM, 0), EPERM);
    CHECK_FAILS(socket(AF_UNIX, SOCK_STREAM, 0), EPERM);
}

static void opens_no_socket(void **state)
{
    need_seccomp();
    in_sandbox(try_sockets);
}

static int inherited;

static void try_connecting(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(connect(inherited, (struct sockaddr *)&to, sizeof to) == -1 && (errno == EPERM || errno == EACCES));
    CHECK(bind(inherited, (struct sockaddr *)&to, sizeof to) == -1 && (errno == EPERM || errno == EACCES));
}

static void connects_no_socket_that_it_inherited(void **state)
{
    need_seccomp();
    inherited = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(inherited >= 0);
    in_sandbox(try_connecting);
    close(inherited);
}

/* What accept says of a socket that listens and has no connection. */
static int accept_nothing(void)
{
    int client = accept(inherited, NULL, NULL);
    return client < 0 ? errno : 0;
}

static void try_accepting(void)
{
    CHECK(accept_nothing() == EPERM);
}

static void takes_connections_only_if_it_may(void **state)
{
    int status;
    need_seccomp();
    inherited = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (inherited < 0 || listen(inherited, 1) != 0)
        skip(); /* this system has no network */
    in_sandbox(try_accepting);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        enter(SANDBOX_ACCEPT);
        CHECK(accept_nothing() == EAGAIN);
        try_sockets();
        _exit(0);
    }
    close(inherited);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* A terminal's other end stands for a GPU: what can be asked of it is an ioctl. */
static void try_device(enum sandbox_access access, bool is_controlled)
{
    struct sandbox s;
    struct err e;
    int number;
    CHECK(sandbox_open(&s, 0, &e) == ERR_OK);
    CHECK(sandbox_allow(&s, "/dev/ptmx", access, &e) == ERR_OK);
    CHECK(sandbox_allow(&s, "/dev/pts", access, &e) == ERR_OK); /* where a container's is */
    CHECK(sandbox_enter(&s, &e) == ERR_OK);
    sandbox_close(&s);
    int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    CHECK(fd >= 0);
    if (is_controlled)
        CHECK(ioctl(fd, TIOCGPTN, &number) == 0);
    else
        CHECK_FAILS(ioctl(fd, TIOCGPTN, &number), EACCES);
}

static void try_a_device(void)
{
    try_device(SANDBOX_DEVICES, true);
}

static void try_a_file_of_a_device(void)
{
    try_device(SANDBOX_WRITE, sandbox_landlock_version() < 5);
}

static void controls_devices_that_it_was_given(void **state)
{
    need_landlock();
    if (access("/dev/ptmx", R_OK | W_OK) != 0)
        skip();
    in_process(false, try_a_device);
    in_process(false, try_a_file_of_a_device);
}

static void try_processes(void)
{
    char byte;
    const pid_t parent = getppid();
    CHECK_FAILS(syscall(SYS_process_vm_readv, parent, NULL, 0, NULL, 0, 0), EPERM);
#if !defined(__SANITIZE_ADDRESS__)
    CHECK_FAILS(ptrace(PTRACE_ATTACH, parent, NULL, NULL), EPERM);
#endif
    CHECK_FAILS(ioctl(STDERR_FILENO, TIOCSTI, &byte), EPERM);
    CHECK_FAILS(ioctl(STDERR_FILENO, (unsigned long)TIOCSTI | 1UL << 32, &byte), EPERM); /* the kernel reads 32 bits */
    CHECK_FAILS(syscall(SYS_bpf, 0, NULL, 0), EPERM);
    CHECK_FAILS(syscall(SYS_perf_event_open, NULL, 0, 0, 0, 0), EPERM);
}

static void reaches_no_other_process_and_no_keyboard(void **state)
{
    need_seccomp();
    in_sandbox(try_processes);
}

static long make_ring(void)
{
    char params[120] = {0}; /* struct io_uring_params, which old headers lack */
    return syscall(425, 4, params);
}

static void try_ring(void)
{
    CHECK_FAILS(make_ring(), EPERM);
}

static void makes_rings_only_if_it_may(void **state)
{
    need_seccomp();
    in_sandbox(try_ring);
    long ring = make_ring();
    if (ring < 0)
        skip(); /* this system has none */
    close((int)ring);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        enter(SANDBOX_IO_URING);
        _exit(make_ring() >= 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void *try_in_thread(void *unused)
{
    if (sandbox_landlock_version())
        try_reading();
    if (sandbox_has_seccomp())
        try_sockets();
    return unused;
}

static void try_threads(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, try_in_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void binds_the_threads_that_come_later(void **state)
{
    need_seccomp();
    in_sandbox(try_threads);
}

/* ---- what a library made before -------------------------------------------------------------------------------- */

static int go[2]; /* a pipe: the thread begins when something comes */

static void *try_sockets_when_told(void *unused)
{
    char byte;
    CHECK(read(go[0], &byte, 1) == 1);
    CHECK((socket(AF_UNIX, SOCK_STREAM, 0) == -1 && errno == EPERM) == (byte == 'n'));
    return unused;
}

/* A thread that is older than the sandbox, which binds it only if it is asked to; n: no sockets. */
static void try_older_thread(unsigned needs, char expected)
{
    pthread_t thread;
    CHECK(pipe(go) == 0);
    CHECK(pthread_create(&thread, NULL, try_sockets_when_told, NULL) == 0);
    enter(needs);
    CHECK(write(go[1], &expected, 1) == 1);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void try_older_thread_bound(void)
{
    try_older_thread(SANDBOX_ALL_THREADS, 'n');
}

static void try_older_thread_free(void)
{
    try_older_thread(0, 'y');
}

static void binds_older_threads_if_asked_to(void **state)
{
    need_seccomp();
    in_process(false, try_older_thread_bound);
    in_process(false, try_older_thread_free);
}

static void try_removing(void)
{
    struct sandbox s;
    struct err e;
    CHECK(sandbox_open(&s, 0, &e) == ERR_OK);
    CHECK(sandbox_allow(&s, temp_path(&folder, "open").s, SANDBOX_REMOVE, &e) == ERR_OK);
    CHECK(sandbox_enter(&s, &e) == ERR_OK);
    sandbox_close(&s);
    CHECK_FAILS(open_in("open/removed", O_RDONLY), EACCES);
    CHECK_FAILS(open_in("open/removed", O_WRONLY), EACCES);
    CHECK_FAILS(open_in("open/made", O_WRONLY | O_CREAT), EACCES);
    CHECK(unlink(temp_path(&folder, "open/removed").s) == 0);
    CHECK_FAILS(unlink(temp_path(&folder, "other/file").s), EACCES);
}

static void removes_files_where_it_may_do_no_more(void **state)
{
    need_landlock();
    write_text_file(temp_path(&folder, "open/removed").s, "text");
    in_process(false, try_removing);
}

static void try_keeping(void)
{
    struct sandbox s;
    struct err e;
    CHECK(sandbox_open(&s, 0, &e) == ERR_OK);
    CHECK(sandbox_allow(&s, temp_path(&folder, "open").s, SANDBOX_KEEP, &e) == ERR_OK);
    CHECK(sandbox_enter(&s, &e) == ERR_OK);
    sandbox_close(&s);
    CHECK(mkdir(temp_path(&folder, "open/kept").s, 0777) == 0);
    CHECK(symlink("../../other/file", temp_path(&folder, "open/kept/link").s) == 0);
    CHECK_FAILS(open_in("open/kept/link", O_RDONLY), EACCES); /* it leads out, and so to nothing */
    CHECK(unlink(temp_path(&folder, "open/kept/link").s) == 0);
    CHECK(rmdir(temp_path(&folder, "open/kept").s) == 0);
    CHECK_FAILS(symlink("file", temp_path(&folder, "other/link").s), EACCES);
    CHECK_FAILS(rmdir(temp_path(&folder, "given/below").s), EACCES);
}

static void keeps_links_and_folders_where_it_may(void **state)
{
    need_landlock();
    in_process(false, try_keeping);
}

static struct sockaddr_in address; /* of a socket that listens */

static void try_fetching(void)
{
    enter(SANDBOX_CONNECT);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    address.sin_port = 0;
    int other = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_FAILS(bind(other, (const struct sockaddr *)&address, sizeof address), EPERM);
    CHECK_FAILS(listen(other, 1), EPERM);
    CHECK(accept_nothing() == EPERM);
    try_programs();
    if (sandbox_landlock_version())
        CHECK_FAILS(open_in("other/file", O_RDONLY), EACCES);
}

static void connects_if_it_may_and_listens_to_nobody(void **state)
{
    socklen_t n = sizeof address;
    need_seccomp();
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    inherited = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (inherited < 0 || bind(inherited, (const struct sockaddr *)&address, n) != 0 || listen(inherited, 4) != 0 ||
        getsockname(inherited, (struct sockaddr *)&address, &n) != 0)
        skip(); /* this system has no network */
    in_process(false, try_fetching);
    close(inherited);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_it_was_given_and_nothing_else),
        cmocka_unit_test(writes_where_it_may_and_nowhere_else),
        cmocka_unit_test(changes_no_modes_owners_or_mounts),
        cmocka_unit_test(starts_no_program),
        cmocka_unit_test(opens_no_socket),
        cmocka_unit_test(connects_no_socket_that_it_inherited),
        cmocka_unit_test(takes_connections_only_if_it_may),
        cmocka_unit_test(controls_devices_that_it_was_given),
        cmocka_unit_test(reaches_no_other_process_and_no_keyboard),
        cmocka_unit_test(makes_rings_only_if_it_may),
        cmocka_unit_test(binds_the_threads_that_come_later),
        cmocka_unit_test(binds_older_threads_if_asked_to),
        cmocka_unit_test(removes_files_where_it_may_do_no_more),
        cmocka_unit_test(keeps_links_and_folders_where_it_may),
        cmocka_unit_test(connects_if_it_may_and_listens_to_nobody),
    };
    return cmocka_run_group_tests(tests, setup, folder_teardown);
}
