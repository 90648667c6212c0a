/* Preloaded into a program: the K-th call of a kind fails, once. FAIL_CALLS says which, as in "alloc:17". Without, none
 * does, and how many calls there are of each kind goes to the file that FAIL_REPORT names when the program ends.
 *
 * Kinds: alloc (memory, from the program and from libraries on its behalf), read, write (files and standard output),
 * sync, rename, thread; and signal, where reads, writes, syncs, renames, opening and locking are interrupted (EINTR).
 *
 * hwloc is left alone: it does not look at what malloc returns, and base/topology.c makes sure of memory before it asks
 * hwloc. So are the dynamic linker and sanitizers, which end the program. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE   /* whose inline functions would stand in the way of those here */
#undef _FILE_OFFSET_BITS /* so that pread is not another name for pread64 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

enum kind { NONE, ALLOC, READ, WRITE, SYNC, RENAME, THREAD, SIGNAL, N_KIND };

static const char *const names[N_KIND] = {"none", "alloc", "read", "write", "sync", "rename", "thread", "signal"};

static enum kind kind; /* NONE: all are counted */
static unsigned long fails_at;
static atomic_ulong n_calls[N_KIND];
static int report_fd = -1; /* opened before the program confines itself to its own files */

/* Until the real functions are known, which dlsym allocates to find out, and a sanitizer is ready: from here. */
static int has_begun;
static char early[1 << 20];
static atomic_size_t early_used;

static void *early_alloc(size_t n)
{
    size_t at = atomic_fetch_add(&early_used, (n + 63) / 64 * 64);
    return at + n <= sizeof early ? early + at : NULL;
}

static int is_early(const void *p)
{
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

#define REAL(name)                                                                                                     \
    static __typeof__(name) *real_##name;                                                                              \
    static int find_##name(void)                                                                                       \
    {                                                                                                                  \
        static _Thread_local int finding;                                                                              \
        if (!real_##name && !finding) {                                                                                \
            finding = 1;                                                                                               \
            *(void **)&real_##name = dlsym(RTLD_NEXT, #name);                                                          \
            finding = 0;                                                                                               \
        }                                                                                                              \
        return real_##name != NULL;                                                                                    \
    }

/* Whether this call of kind k is the one to fail. */
static int fails(enum kind k)
{
    return (k == kind || kind == NONE) && atomic_fetch_add(&n_calls[k], 1) + 1 == fails_at;
}

static int is_interrupted(void)
{
    if (!fails(SIGNAL))
        return 0;
    errno = EINTR;
    return 1;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static _Thread_local int is_inside; /* what is left alone */

static int is_spared(const void *caller)
{
    Dl_info info;
    is_inside++;
    int spared = !dladdr(caller, &info) || strstr(info.dli_fname, "/ld-") || strstr(info.dli_fname, "hwloc") ||
                 strstr(info.dli_fname, "/libasan");
    is_inside--;
    return spared;
}

static int alloc_fails(const void *caller)
{
    if (!has_begun || (kind != ALLOC && kind != NONE) || is_inside || is_spared(caller) || !fails(ALLOC))
        return 0;
    errno = ENOMEM;
    return 1;
}

#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

REAL(malloc)
REAL(calloc)
REAL(realloc)
REAL(aligned_alloc)
REAL(posix_memalign)
REAL(mmap)
REAL(mmap64)
REAL(pthread_getattr_np)
static void (*real_free)(void *);

void *malloc(size_t n)
{
    return alloc_fails(CALLER) ? NULL : has_begun && find_malloc() ? real_malloc(n) : early_alloc(n);
}

void *calloc(size_t n, size_t size)
{
    return alloc_fails(CALLER) ? NULL : has_begun && find_calloc() ? real_calloc(n, size) : early_alloc(n * size);
}

void *realloc(void *p, size_t n)
{
    if (alloc_fails(CALLER))
        return NULL;
    if (has_begun && !is_early(p) && find_realloc())
        return real_realloc(p, n);
    void *copy = has_begun ? malloc(n) : early_alloc(n);
    size_t most = p ? (size_t)(early + sizeof early - (char *)p) : 0; /* of what p may hold */
    return copy ? memcpy(copy, p ? p : copy, n < most ? n : most) : NULL;
}

void *aligned_alloc(size_t align, size_t n)
{
    return alloc_fails(CALLER) || !find_aligned_alloc() ? NULL : real_aligned_alloc(align, n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    return alloc_fails(CALLER) || !find_posix_memalign() ? ENOMEM : real_posix_memalign(p, align, n);
}

void *mmap(void *p, size_t n, int protection, int flags, int fd, off_t off)
{
    return alloc_fails(CALLER) || !find_mmap() ? MAP_FAILED : real_mmap(p, n, protection, flags, fd, off);
}

void *mmap64(void *p, size_t n, int protection, int flags, int fd, off64_t off)
{
    return alloc_fails(CALLER) || !find_mmap64() ? MAP_FAILED : real_mmap64(p, n, protection, flags, fd, off);
}

void free(void *p)
{
    if (is_early(p))
        return;
    if (!real_free)
        *(void **)&real_free = dlsym(RTLD_NEXT, "free");
    real_free(p);
}

int hwloc_topology_load(void *topology); /* without its header, which builds may lack */
int hwloc_topology_load(void *topology)
{
    static int (*real)(void *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "hwloc_topology_load");
    is_inside++;
    int r = real(topology);
    is_inside--;
    return r;
}

/* The address sanitizer calls it in each thread. */
int pthread_getattr_np(pthread_t thread, pthread_attr_t *attr)
{
    is_inside++;
    int r = find_pthread_getattr_np() ? real_pthread_getattr_np(thread, attr) : ENOMEM;
    is_inside--;
    return r;
}

/* ---- reading and writing ------------------------------------------------------------------------------------- */

REAL(read)
REAL(pread64)
REAL(fread)
REAL(fgets)
REAL(getline)
REAL(write)
REAL(pwrite64)

static int read_fails(void)
{
    if (is_interrupted())
        return 1;
    if (!fails(READ))
        return 0;
    errno = EIO;
    return 1;
}

static int write_fails(void)
{
    if (is_interrupted())
        return 1;
    if (!fails(WRITE))
        return 0;
    errno = ENOSPC;
    return 1;
}

ssize_t read(int fd, void *p, size_t n)
{
    return read_fails() || !find_read() ? -1 : real_read(fd, p, n);
}

ssize_t pread64(int fd, void *p, size_t n, off64_t off)
{
    return read_fails() || !find_pread64() ? -1 : real_pread64(fd, p, n, off);
}

ssize_t write(int fd, const void *p, size_t n)
{
    return write_fails() || !find_write() ? -1 : real_write(fd, p, n);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t off)
{
    return write_fails() || !find_pwrite64() ? -1 : real_pwrite64(fd, p, n, off);
}

/* The C library's own reads can't be made to fail from here: its functions are. */
static int stdio_fails(FILE *f)
{
    if (!fails(READ))
        return 0;
    f->_flags |= 0x20; /* what ferror looks at */
    errno = EIO;
    return 1;
}

size_t fread(void *p, size_t size, size_t n, FILE *f)
{
    return stdio_fails(f) || !find_fread() ? 0 : real_fread(p, size, n, f);
}

char *fgets(char *p, int n, FILE *f)
{
    return stdio_fails(f) || !find_fgets() ? NULL : real_fgets(p, n, f);
}

ssize_t getline(char **p, size_t *n, FILE *f)
{
    return stdio_fails(f) || !find_getline() ? -1 : real_getline(p, n, f);
}

/* Standard output through the calls above. */
static ssize_t write_stdout(void *cookie, const char *p, size_t n)
{
    (void)cookie;
    ssize_t done;
    do
        done = write(STDOUT_FILENO, p, n);
    while (done < 0 && errno == EINTR);
    return done < 0 ? 0 : done;
}

/* ---- the rest ------------------------------------------------------------------------------------------------ */

REAL(fsync)
REAL(rename)
REAL(flock)
REAL(open64)
REAL(pthread_create)

int fsync(int fd)
{
    if (is_interrupted())
        return -1;
    if (fails(SYNC)) {
        errno = EIO;
        return -1;
    }
    return find_fsync() ? real_fsync(fd) : -1;
}

int rename(const char *from, const char *to)
{
    if (is_interrupted())
        return -1;
    if (fails(RENAME)) {
        errno = EIO;
        return -1;
    }
    return find_rename() ? real_rename(from, to) : -1;
}

int flock(int fd, int operation)
{
    return is_interrupted() || !find_flock() ? -1 : real_flock(fd, operation);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    return is_interrupted() || !find_open64() ? -1 : real_open64(path, flags, mode);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
    return fails(THREAD) || !find_pthread_create() ? EAGAIN : real_pthread_create(thread, attr, start, arg);
}

__attribute__((constructor)) static void begin(void)
{
    const char *what = getenv("FAIL_CALLS"), *report = getenv("FAIL_REPORT");
    size_t n = what ? strcspn(what, ":") : 0;
    report_fd = report ? open(report, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    stdout = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_stdout});
    fails_at = what && what[n] ? strtoul(what + n + 1, NULL, 10) : 0;
    for (int i = 1; i < N_KIND; i++)
        if (what && strlen(names[i]) == n && !memcmp(what, names[i], n))
            kind = (enum kind)i;
    has_begun = 1;
}

__attribute__((destructor)) static void report(void)
{
    unsigned long n[N_KIND];
    for (int i = 0; i < N_KIND; i++)
        n[i] = atomic_load(&n_calls[i]);
    for (int i = 1; kind == NONE && report_fd >= 0 && i < N_KIND; i++)
        dprintf(report_fd, "%s %lu\n", names[i], n[i]);
}
