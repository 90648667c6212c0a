/* Preloaded into a program: counts every call that gets memory, over the whole process, and writes the count to the
 * file that COUNT_ALLOCS names when it ends. The calls still do what they should. */
#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS /* so that mmap is not another name for mmap64: both are counted */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_ulong n_calls;

/* dlsym itself may allocate before the real functions are known: from here. */
static char early[65536];
static atomic_size_t early_used;

static void *early_alloc(size_t n)
{
    size_t at = atomic_fetch_add(&early_used, (n + 63) / 64 * 64);
    return at + n <= sizeof early ? early + at : NULL;
}

#define REAL(name)                                                                                                     \
    static __typeof__(name) *real_##name;                                                                              \
    static _Thread_local int finding_##name;                                                                           \
    static int find_##name(void)                                                                                       \
    {                                                                                                                  \
        if (!real_##name && !finding_##name) {                                                                         \
            finding_##name = 1;                                                                                        \
            *(void **)&real_##name = dlsym(RTLD_NEXT, #name);                                                          \
            finding_##name = 0;                                                                                        \
        }                                                                                                              \
        atomic_fetch_add(&n_calls, 1);                                                                                 \
        return real_##name != NULL;                                                                                    \
    }

REAL(malloc)
REAL(calloc)
REAL(realloc)
REAL(aligned_alloc)
REAL(memalign)
REAL(posix_memalign)
REAL(mmap)
REAL(mmap64)
static void (*real_free)(void *);

void *malloc(size_t n)
{
    return find_malloc() ? real_malloc(n) : early_alloc(n);
}

void *calloc(size_t n, size_t size)
{
    return find_calloc() ? real_calloc(n, size) : early_alloc(n * size);
}

void *realloc(void *p, size_t n)
{
    return find_realloc() ? real_realloc(p, n) : NULL;
}

void *aligned_alloc(size_t align, size_t n)
{
    return find_aligned_alloc() ? real_aligned_alloc(align, n) : NULL;
}

void *memalign(size_t align, size_t n)
{
    return find_memalign() ? real_memalign(align, n) : NULL;
}

int posix_memalign(void **p, size_t align, size_t n)
{
    return find_posix_memalign() ? real_posix_memalign(p, align, n) : ENOMEM;
}

void *mmap(void *p, size_t n, int protection, int flags, int fd, off_t off)
{
    return find_mmap() ? real_mmap(p, n, protection, flags, fd, off) : MAP_FAILED;
}

void *mmap64(void *p, size_t n, int protection, int flags, int fd, off64_t off)
{
    return find_mmap64() ? real_mmap64(p, n, protection, flags, fd, off) : MAP_FAILED;
}

void free(void *p)
{
    if ((char *)p >= early && (char *)p < early + sizeof early)
        return;
    if (!real_free)
        *(void **)&real_free = dlsym(RTLD_NEXT, "free");
    real_free(p);
}

static int report_fd = -1;

/* Before the program enters its sandbox. */
__attribute__((constructor)) static void open_report(void)
{
    const char *path = getenv("COUNT_ALLOCS");
    if (path)
        report_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

__attribute__((destructor)) static void report(void)
{
    unsigned long n = atomic_load(&n_calls);
    if (report_fd >= 0)
        dprintf(report_fd, "%lu\n", n);
}
