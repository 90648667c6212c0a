#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/file_io.h"
#include "base/mem.h"
#include "base/output_file.h"
#include "temp_folder.h"

static struct temp_path in_folder(const char *name)
{
    return temp_path(&folder, name);
}

static void assert_holds(const char *path, const char *text)
{
    size_t n;
    char *found = read_file(path, &n);
    assert_string_equal(found, text);
    free(found);
}

static err_code write_text(const char *path, const char *text, struct err *e)
{
    struct output_file f;
    TRY(output_file_open(&f, path, e));
    fputs(text, f.stream);
    return output_file_finish(&f, e);
}

/* Names in the folder that end so. */
static int count_files(const char *end)
{
    int n = 0;
    DIR *d = opendir(folder.path);
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        size_t length = strlen(f->d_name);
        n += length >= strlen(end) && !strcmp(f->d_name + length - strlen(end), end);
    }
    closedir(d);
    return n;
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 07777;
}

/* ---- whole or not at all ------------------------------------------------------------------------------------- */

static void a_file_appears_when_it_is_finished(void **state)
{
    struct err e = {0};
    struct output_file f;
    struct temp_path path = in_folder("appears");
    assert_int_equal(output_file_open(&f, path.s, &e), ERR_OK);
    fputs("whole", f.stream);
    assert_int_not_equal(access(path.s, F_OK), 0);
    assert_int_equal(output_file_finish(&f, &e), ERR_OK);
    assert_holds(path.s, "whole");
    assert_int_equal(output_file_open(&f, path.s, &e), ERR_OK);
    fputs("another", f.stream);
    output_file_abandon(&f);
    output_file_abandon(&f);
    assert_holds(path.s, "whole");
    assert_int_equal(count_files(".tmp"), 0);
}

static void permissions_are_the_umasks_or_those_of_the_file_before(void **state)
{
    struct err e = {0};
    struct temp_path path = in_folder("mode");
    mode_t before = umask(027);
    assert_int_equal(write_text(path.s, "1", &e), ERR_OK);
    assert_int_equal(mode_of(path.s), 0640);
    assert_int_equal(chmod(path.s, 0604), 0);
    assert_int_equal(write_text(path.s, "2", &e), ERR_OK);
    umask(before);
    assert_int_equal(mode_of(path.s), 0604);
    assert_holds(path.s, "2");
}

static void a_file_that_may_not_be_written_is_not_replaced(void **state)
{
    struct err e = {0};
    struct temp_path path = in_folder("protected");
    if (geteuid() == 0)
        skip(); /* root may write it */
    write_text_file(path.s, "old");
    assert_int_equal(chmod(path.s, 0444), 0);
    assert_int_equal(write_text(path.s, "new", &e), ERR_IO);
    assert_holds(path.s, "old");
}

static void nothing_at_a_name_that_could_be_foreseen_is_touched(void **state)
{
    struct err e = {0};
    struct temp_path path = in_folder("target"), planted = in_folder("target.tmp"), victim = in_folder("victim");
    write_text_file(victim.s, "precious");
    assert_int_equal(symlink(victim.s, planted.s), 0);
    assert_int_equal(write_text(path.s, "text", &e), ERR_OK);
    assert_holds(path.s, "text");
    assert_holds(victim.s, "precious");
    assert_int_equal(unlink(planted.s), 0);
}

static void several_processes_may_write_one_file(void **state)
{
    enum { N_PROCESS = 4, N_TIME = 100 };
    struct err e = {0};
    struct temp_path path = in_folder("contended");
    pid_t children[N_PROCESS];
    for (int i = 0; i < N_PROCESS; i++)
        if ((children[i] = fork()) == 0) {
            char text[64];
            snprintf(text, sizeof text, "%0*d", 10 + 10 * i, i);
            for (int k = 0; k < N_TIME; k++)
                if (write_text(path.s, text, &e) != ERR_OK)
                    _exit(1);
            _exit(0);
        }
    for (int i = 0; i < N_PROCESS; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    struct stat st;
    assert_int_equal(stat(path.s, &st), 0);
    assert_int_equal(st.st_size % 10, 0); /* one of theirs, whole */
    assert_int_equal(count_files(".tmp"), 0);
}

static void a_long_name_has_room_for_its_temporary_file(void **state)
{
    struct err e = {0};
    char name[256];
    memset(name, 'n', 255);
    name[255] = 0;
    assert_int_equal(write_text(in_folder(name).s, "text", &e), ERR_OK);
    assert_holds(in_folder(name).s, "text");
}

static struct output_file open_files[2];

static void end(int number)
{
    struct err e;
    output_files_remove();
    _exit(output_file_finish(&open_files[0], &e) == ERR_IO ? 7 : 0); /* as threads do that go on */
}

static void unfinished_files_can_be_removed_by_a_signals_handler(void **state)
{
    struct err e = {0};
    struct temp_path done = in_folder("done"), old = in_folder("unfinished"), shared = in_folder("shared");
    write_text_file(old.s, "old");
    pid_t child = fork();
    if (child == 0) {
        signal(SIGTERM, end);
        if (write_text(done.s, "whole", &e) != ERR_OK || output_file_open(&open_files[0], old.s, &e) != ERR_OK ||
            output_file_open_shared(&open_files[1], shared.s, &e) != ERR_OK)
            _exit(0);
        raise(SIGTERM);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 7);
    assert_int_equal(count_files(".tmp") + count_files(".lock"), 0);
    assert_holds(done.s, "whole");
    assert_holds(old.s, "old");
    assert_int_not_equal(access(shared.s, F_OK), 0);
}

/* ---- what is no plain file ----------------------------------------------------------------------------------- */

static void a_link_stays_and_the_file_that_it_means_is_replaced(void **state)
{
    struct err e = {0};
    struct stat st;
    struct temp_path file = in_folder("linked"), link = in_folder("link"), nowhere = in_folder("nowhere");
    write_text_file(file.s, "old");
    assert_int_equal(symlink("linked", link.s), 0);
    assert_int_equal(write_text(link.s, "new", &e), ERR_OK);
    assert_int_equal(lstat(link.s, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_holds(file.s, "new");
    assert_int_equal(symlink("missing", nowhere.s), 0);
    assert_int_equal(write_text(nowhere.s, "new", &e), ERR_IO);
    assert_non_null(strstr(e.text, "nowhere: is a link to a file that does not exist"));
    assert_int_not_equal(access(in_folder("missing").s, F_OK), 0);
}

/* One of the machine's devices; root, who could replace it, gets a copy. */
static struct temp_path device(const char *name, unsigned minor)
{
    struct temp_path path = in_folder(name);
    if (geteuid() != 0)
        snprintf(path.s, sizeof path.s, "/dev/%s", name);
    else if (mknod(path.s, S_IFCHR | 0600, makedev(1, minor)) != 0)
        skip();
    int fd = open(path.s, O_WRONLY);
    if (fd < 0)
        skip(); /* no devices on this file system */
    close(fd);
    return path;
}

static void a_device_is_written_to_and_stays(void **state)
{
    struct err e = {0};
    struct stat st;
    struct temp_path null = device("null", 3), full = device("full", 7);
    assert_int_equal(output_file_check(null.s, &e), ERR_OK);
    assert_int_equal(write_text(null.s, "text", &e), ERR_OK);
    assert_int_equal(stat(null.s, &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    assert_int_equal(write_text(full.s, "text", &e), ERR_IO);
    assert_non_null(strstr(e.text, "full: No space left on device"));
}

static void *read_slowly(void *path)
{
    enum { MOST = 1 << 20 };
    char *all = malloc(MOST);
    size_t n = 0;
    int fd = open(path, O_RDONLY);
    for (ssize_t got = 1; got != 0; n += got > 0 ? (size_t)got : 0) {
        usleep(500);
        got = read(fd, all + n, MOST - n < 4096 ? MOST - n : 4096);
    }
    close(fd);
    for (size_t i = 0; i < n; i++)
        if (all[i] != 'x')
            n = 0;
    free(all);
    return (void *)(uintptr_t)n;
}

static void tick(int number)
{
    (void)number;
}

static void a_fifo_gets_all_bytes_though_signals_interrupt(void **state)
{
    enum { N = 300000 };
    struct err e = {0};
    struct stat st;
    struct output_file f;
    struct temp_path path = in_folder("fifo");
    struct sigaction action = {.sa_handler = tick}, before; /* without SA_RESTART */
    const struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    pthread_t reader;
    void *n_read;
    sigset_t alarms;
    assert_int_equal(mkfifo(path.s, 0600), 0);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, NULL); /* inherited by the reader */
    assert_int_equal(pthread_create(&reader, NULL, read_slowly, path.s), 0);
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &every, NULL), 0);
    assert_int_equal(output_file_open(&f, path.s, &e), ERR_OK);
    for (int i = 0; i < N; i++)
        fputc('x', f.stream);
    err_code code = output_file_finish(&f, &e);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    assert_int_equal(pthread_join(reader, &n_read), 0);
    assert_string_equal(e.text, "");
    assert_int_equal(code, ERR_OK);
    assert_int_equal((uintptr_t)n_read, N);
    assert_int_equal(stat(path.s, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
}

/* In a process of its own, whose standard output is a file. */
static void standard_output_is_written_through_its_stream(void **state)
{
    struct temp_path path = in_folder("stdout");
    pid_t child = fork();
    if (child == 0) {
        struct err e = {0};
        int fd = open(path.s, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        bool ok = fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0;
        printf("before\n");
        ok = ok && write_text("/dev/stdout", "in between\n", &e) == ERR_OK;
        printf("after\n");
        _exit(fflush(stdout) == 0 && ok ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_holds(path.s, "before\nin between\nafter\n");
}

static void what_cannot_be_written_is_refused_by_its_own_name(void **state)
{
    struct err e = {0};
    assert_int_equal(output_file_check(folder.path, &e), ERR_IO);
    assert_non_null(strstr(e.text, "is a directory"));
    assert_int_equal(output_file_check("", &e), ERR_IO);
    assert_int_equal(output_file_check(in_folder("none/file").s, &e), ERR_IO);
    assert_non_null(strstr(e.text, "none/file: no file can be made there: No such file"));
    assert_null(strstr(e.text, ".tmp"));
    assert_int_equal(output_file_check(in_folder("fine").s, &e), ERR_OK);
    assert_int_not_equal(access(in_folder("fine").s, F_OK), 0);
    assert_int_equal(output_file_check(NULL, &e), ERR_OK);
}

/* ---- shared files -------------------------------------------------------------------------------------------- */

/* Adds one to the number in a file. */
static err_code add_one(const char *path, struct err *e)
{
    int n = 0;
    struct output_file f;
    TRY(output_file_open_shared(&f, path, e));
    FILE *old = fopen(path, "r");
    if (old && fscanf(old, "%d", &n) != 1)
        n = 1 << 20;
    if (old)
        fclose(old);
    fprintf(f.stream, "%d\n", n + 1);
    return output_file_finish(&f, e);
}

static void processes_that_share_a_file_lose_nothing(void **state)
{
    enum { N_PROCESS = 8, N_TIME = 20 };
    struct err e = {0};
    struct temp_path path = in_folder("sum");
    write_text_file(in_folder("sum.lock").s, "of a run that was killed");
    pid_t children[N_PROCESS];
    for (int i = 0; i < N_PROCESS; i++)
        if ((children[i] = fork()) == 0) {
            for (int k = 0; k < N_TIME; k++)
                if (add_one(path.s, &e) != ERR_OK)
                    _exit(1);
            _exit(0);
        }
    for (int i = 0; i < N_PROCESS; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_holds(path.s, "160\n");
    assert_int_equal(count_files(".lock"), 0);
}

static void a_lock_is_a_plain_file_or_refused(void **state)
{
    struct err e = {0};
    int fd;
    struct temp_path path = in_folder("locked"), victim = in_folder("victim");
    write_text_file(victim.s, "precious");
    assert_int_equal(symlink(victim.s, path.s), 0);
    assert_int_equal(file_open_locked(path.s, 0, &fd, &e), ERR_IO);
    assert_non_null(strstr(e.text, "is a link"));
    assert_holds(victim.s, "precious");
    assert_int_equal(unlink(path.s), 0);
    assert_int_equal(mkfifo(path.s, 0600), 0);
    assert_int_equal(file_open_locked(path.s, 0, &fd, &e), ERR_IO);
    assert_non_null(strstr(e.text, "is not a plain file"));
    assert_int_equal(unlink(path.s), 0);
}

static void a_second_lock_is_refused_while_there_is_one(void **state)
{
    struct err e = {0};
    int fd, second;
    struct temp_path path = in_folder("one.lock");
    assert_int_equal(file_open_locked(path.s, 0, &fd, &e), ERR_OK);
    assert_int_equal(file_open_locked(path.s, 20, &second, &e), ERR_IO);
    assert_non_null(strstr(e.text, "another moebius is at work on it"));
    close(fd);
    assert_int_equal(file_open_locked(path.s, 0, &fd, &e), ERR_OK);
    close(fd);
    assert_int_equal(unlink(path.s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_appears_when_it_is_finished),
        cmocka_unit_test(permissions_are_the_umasks_or_those_of_the_file_before),
        cmocka_unit_test(a_file_that_may_not_be_written_is_not_replaced),
        cmocka_unit_test(nothing_at_a_name_that_could_be_foreseen_is_touched),
        cmocka_unit_test(several_processes_may_write_one_file),
        cmocka_unit_test(a_long_name_has_room_for_its_temporary_file),
        cmocka_unit_test(unfinished_files_can_be_removed_by_a_signals_handler),
        cmocka_unit_test(a_link_stays_and_the_file_that_it_means_is_replaced),
        cmocka_unit_test(a_device_is_written_to_and_stays),
        cmocka_unit_test(a_fifo_gets_all_bytes_though_signals_interrupt),
        cmocka_unit_test(standard_output_is_written_through_its_stream),
        cmocka_unit_test(what_cannot_be_written_is_refused_by_its_own_name),
        cmocka_unit_test(processes_that_share_a_file_lose_nothing),
        cmocka_unit_test(a_lock_is_a_plain_file_or_refused),
        cmocka_unit_test(a_second_lock_is_refused_while_there_is_one),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
