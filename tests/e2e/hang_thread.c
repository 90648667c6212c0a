/* Preloaded into the processes of a run: in the one whose OMPI_COMM_WORLD_RANK is HANG_RANK the first thread stands
 * still for ever HANG_MS after its beginning, wherever the program looks at the clock then. Its other threads go on.
 * With HANG_READ_MS it goes on, too, and one read of a file by another thread takes so long instead. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS /* so that pread is not another name for pread64 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

static int (*real_gettime)(clockid_t, struct timespec *);
static const void *program; /* where it is loaded; NULL: this process goes on */
static ssize_t (*real_pread)(int, void *, size_t, off64_t);
static double hang_s; /* CLOCK_MONOTONIC */
static int read_ms;   /* 0: the thread hangs */
static atomic_flag has_read = ATOMIC_FLAG_INIT;

static double seconds(const struct timespec *t)
{
    return (double)t->tv_sec + (double)t->tv_nsec / 1e9;
}

static const void *base_of(const void *address)
{
    Dl_info about;
    return dladdr(address, &about) ? about.dli_fbase : NULL;
}

__attribute__((constructor)) static void begin(void)
{
    const char *self = getenv("OMPI_COMM_WORLD_RANK"), *who = getenv("HANG_RANK"), *ms = getenv("HANG_MS"),
               *read = getenv("HANG_READ_MS");
    struct timespec now;
    *(void **)&real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    *(void **)&real_pread = dlsym(RTLD_NEXT, "pread64");
    real_gettime(CLOCK_MONOTONIC, &now);
    read_ms = read ? atoi(read) : 0;
    hang_s = seconds(&now) + (ms ? strtod(ms, NULL) / 1e3 : 0);
    if (self && who && !strcmp(self, who))
        program = base_of((const void *)getauxval(AT_ENTRY)); /* NOLINT: an address */
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    if (!real_gettime)
        *(void **)&real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real_gettime(id, t);
    if (!program || read_ms || id != CLOCK_MONOTONIC || gettid() != getpid() || seconds(t) < hang_s ||
        base_of(__builtin_return_address(0)) != program)
        return code;
    for (;;)
        pause();
}

ssize_t pread64(int fd, void *p, size_t n, off64_t off)
{
    struct timespec now;
    real_gettime(CLOCK_MONOTONIC, &now);
    if (program && read_ms && gettid() != getpid() && seconds(&now) >= hang_s && !atomic_flag_test_and_set(&has_read)) {
        const struct timespec rest = {read_ms / 1000, read_ms % 1000 * 1000000L};
        nanosleep(&rest, NULL);
        dprintf(STDERR_FILENO, "a read took %d ms\n", read_ms);
    }
    return real_pread(fd, p, n, off);
}
