#define _GNU_SOURCE
#include "base/mem_guard.h"

#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/mem.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { ALIGN = 64 };

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

void *mem_guard_map(size_t n_bytes)
{
    static atomic_uint n_mapped;
    size_t page = mem_page_bytes(), length = round_up(n_bytes, page);
    char *m = mmap(NULL, length + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED)
        return NULL;
    char *pages = m + page;
    if (mprotect(pages, length, PROT_READ | PROT_WRITE) != 0) {
        munmap(m, length + 2 * page);
        return NULL;
    }
    char *p = atomic_fetch_add(&n_mapped, 1) % 2 ? pages : pages + length - round_up(n_bytes, ALIGN);
    ASAN_POISON_MEMORY_REGION(pages, (size_t)(p - pages));
    ASAN_POISON_MEMORY_REGION(p + n_bytes, (size_t)(pages + length - (p + n_bytes)));
    return p;
}

void mem_guard_unmap(void *p, size_t n_bytes)
{
    size_t page = mem_page_bytes(), length = round_up(n_bytes, page);
    char *pages = (char *)((uintptr_t)p & ~(uintptr_t)(page - 1));
    /* what was poisoned, and no more: the sanitizer notes an eighth of what it is told about */
    ASAN_UNPOISON_MEMORY_REGION(pages, (size_t)((char *)p - pages));
    ASAN_UNPOISON_MEMORY_REGION((char *)p + n_bytes, (size_t)(pages + length - ((char *)p + n_bytes)));
    munmap(pages - page, length + 2 * page);
}
