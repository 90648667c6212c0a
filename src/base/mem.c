#define _GNU_SOURCE
#include "base/mem.h"
#include "base/mem_guard.h"

#include <assert.h>
#include <errno.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK = 64 << 20, ARENA_CHUNK = 64 << 10, ALIGN = 64 };

static atomic_size_t mapped[MEM_N_TAG], total;

static struct {
    atomic_size_t n_bytes;       /* SIZE_MAX: none */
    atomic_size_t scratch_bytes; /* for which there is to be room */
    mem_reclaim_fn *reclaim;
    void *user;
} limit = {.n_bytes = SIZE_MAX};

/* The thread's own, in place of the limit's; NULL: none. */
static _Thread_local mem_reclaim_fn *thread_reclaim;
static _Thread_local void *thread_reclaim_user;

void *mem_alloc(size_t n_bytes)
{
    return malloc(n_bytes ? n_bytes : 1);
}

void *mem_calloc(size_t n, size_t size)
{
    return calloc(n ? n : 1, size ? size : 1);
}

void *mem_resize(void *p, size_t n, size_t size)
{
    size_t n_bytes;
    if (!mem_mul(n, size, &n_bytes))
        return NULL;
    return realloc(p, n_bytes ? n_bytes : 1);
}

err_code mem_enlarge(void *items, size_t *capacity, size_t n, size_t size, const char *what, struct err *e)
{
    enum { LEAST = 16 };
    size_t twice, n_bytes;
    if (!mem_mul(*capacity, 2, &twice) || twice < n)
        twice = n;
    size_t wanted = twice < LEAST ? LEAST : twice;
    void *old, *larger = NULL;
    memcpy(&old, items, sizeof old); /* a pointer to any type */
    if (!mem_mul(wanted, size, &n_bytes))
        n_bytes = SIZE_MAX;
    else
        larger = mem_resize(old, wanted, size);
    if (!larger)
        return err_nomem(e, n_bytes, what);
    memcpy(items, &larger, sizeof larger);
    *capacity = wanted;
    return ERR_OK;
}

void *mem_alloc_aligned(size_t align, size_t n_bytes)
{
    return aligned_alloc(align, (n_bytes + align - 1) / align * align);
}

void mem_free(void *p)
{
    free(p);
}

char *mem_strdup(const char *s)
{
    return strdup(s);
}

char *mem_print(const char *fmt, ...)
{
    va_list args;
    char *text;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    return n >= 0 ? text : NULL;
}

void mem_trim(void)
{
#if defined(__GLIBC__)
    enum { LARGE = 256 << 10 }; /* else glibc takes larger and larger blocks from heaps, of which each thread has one */
    mallopt(M_MMAP_THRESHOLD, LARGE);
    malloc_trim(0);
#endif
}

bool mem_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool mem_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

const char *mem_tag_name(enum mem_tag tag)
{
    static const char *const names[MEM_N_TAG] = {"weights", "experts", "state", "scratch"};
    return names[tag];
}

size_t mem_page_bytes(void)
{
    static atomic_size_t known;
    size_t n = atomic_load_explicit(&known, memory_order_relaxed);
    if (n == 0) {
        n = (size_t)sysconf(_SC_PAGESIZE);
        atomic_store_explicit(&known, n, memory_order_relaxed);
    }
    return n;
}

size_t mem_length(size_t n_bytes)
{
    size_t unit = n_bytes >= MEM_HUGE_PAGE ? MEM_HUGE_PAGE : mem_page_bytes();
    return (n_bytes + unit - 1) / unit * unit;
}

static size_t bytes_kept_from(enum mem_tag tag)
{
    size_t scratch = atomic_load(&limit.scratch_bytes), now = atomic_load(&mapped[MEM_SCRATCH]);
    return tag == MEM_EXPERTS && now < scratch ? scratch - now : 0;
}

bool mem_commit(size_t n_bytes, enum mem_tag tag)
{
    size_t now = atomic_load(&total), most = atomic_load(&limit.n_bytes), kept = bytes_kept_from(tag);
    most = kept < most ? most - kept : 0;
    do
        if (n_bytes > most || now > most - n_bytes)
            return false;
    while (!atomic_compare_exchange_weak(&total, &now, now + n_bytes));
    atomic_fetch_add(&mapped[tag], n_bytes);
    return true;
}

void mem_uncommit(size_t n_bytes, enum mem_tag tag)
{
    atomic_fetch_sub(&mapped[tag], n_bytes);
    atomic_fetch_sub(&total, n_bytes);
}

/* ---- huge pages that were set aside --------------------------------------------------------------------------- */

static _Thread_local bool wants_hugetlb, has_hugetlb;
static _Thread_local size_t n_not_hugetlb;

/* The system keeps as many pages for a mapping as it has, or refuses it. */
static void *map_hugetlb(size_t length)
{
#if defined(MAP_HUGETLB)
    enum { OF_2_MIB = 21 << 26 }; /* MAP_HUGE_2MB */
    void *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | OF_2_MIB, -1, 0);
    return p != MAP_FAILED ? p : NULL;
#else
    return NULL;
#endif
}

/* That a control group may not have such pages shows only when one is touched, by a signal: so one is asked for, which
 * Linux has had a call for since 5.14. */
static bool probe_hugetlb(void)
{
    void *p = map_hugetlb(MEM_HUGE_PAGE);
    bool ok = p != NULL;
#if defined(MADV_POPULATE_WRITE)
    ok = ok && (madvise(p, MEM_HUGE_PAGE, MADV_POPULATE_WRITE) == 0 || errno == EINVAL);
#endif
    if (p)
        munmap(p, MEM_HUGE_PAGE);
    return ok;
}

void mem_hugetlb_begin(void)
{
    wants_hugetlb = true;
    has_hugetlb = probe_hugetlb();
    n_not_hugetlb = 0;
}

size_t mem_hugetlb_end(void)
{
    wants_hugetlb = has_hugetlb = false;
    return n_not_hugetlb;
}

/* ---- mapping -------------------------------------------------------------------------------------------------- */

static void *map_anywhere(size_t length)
{
    size_t slack = length >= MEM_HUGE_PAGE ? MEM_HUGE_PAGE : 0;
    char *m = mmap(NULL, length + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return NULL;
    char *p = m;
    if (slack) { /* keep the aligned middle, give the ends back */
        p = (char *)(((uintptr_t)m + MEM_HUGE_PAGE - 1) & ~(uintptr_t)(MEM_HUGE_PAGE - 1));
        if (p > m)
            munmap(m, (size_t)(p - m));
        if (p + length < m + length + slack)
            munmap(p + length, (size_t)(m + slack - p));
        madvise(p, length, MADV_HUGEPAGE); /* advice: 4 KiB pages are as right, only slower */
    }
    return p;
}

#if defined(__SANITIZE_ADDRESS__)
bool mem_is_guarded(void)
{
    enum { UNKNOWN, NO, YES };
    static atomic_int known;
    if (atomic_load(&known) == UNKNOWN) {
        const char *asked = getenv("MOEBIUS_GUARD_PAGES");
        atomic_store(&known, asked && !strcmp(asked, "1") ? YES : NO);
    }
    return atomic_load(&known) == YES;
}
#endif

void *mem_reserve(size_t n_bytes)
{
    if (n_bytes == 0 || n_bytes > SIZE_MAX / 2)
        return NULL;
    if (mem_is_guarded())
        return mem_guard_map(mem_length(n_bytes));
    size_t length = mem_length(n_bytes);
    void *p = has_hugetlb && length >= MEM_HUGE_PAGE ? map_hugetlb(length) : NULL;
    if (wants_hugetlb && length >= MEM_HUGE_PAGE && !p)
        n_not_hugetlb += length;
    return p ? p : map_anywhere(length);
}

void mem_unreserve(void *p, size_t n_bytes, size_t n_committed, enum mem_tag tag)
{
    if (!p)
        return;
    if (mem_is_guarded())
        mem_guard_unmap(p, mem_length(n_bytes));
    else
        munmap(p, mem_length(n_bytes));
    mem_uncommit(n_committed, tag);
}

void mem_populate(void *p, size_t n_bytes)
{
#if defined(MADV_POPULATE_WRITE)
    if (madvise(p, n_bytes, MADV_POPULATE_WRITE) == 0)
        return;
#endif
    for (volatile char *q = p, *end = q + n_bytes; q < end; q += mem_page_bytes())
        *q = *q;
}

void mem_decommit(void *p, size_t n_bytes, enum mem_tag tag)
{
    /* the kernel would round the length up, and empty pages that others use */
    assert((uintptr_t)p % mem_page_bytes() == 0 && n_bytes % mem_page_bytes() == 0);
    /* without the second advice the kernel might fill the hole with a huge page again */
    madvise(p, n_bytes, MADV_DONTNEED);
    madvise(p, n_bytes, MADV_NOHUGEPAGE);
    mem_uncommit(n_bytes, tag);
}

/* What is smaller than a huge page shares some with its like: a processor knows where a few thousand pages are, and has
 * to look in memory for the others. Pieces stand one after the other in blocks of address space. What is given back
 * goes to the system at once and leaves a hole, which later pieces fill first: a hole is two mappings more, of which
 * the system allows a process some 65,000 (vm.max_map_count). A block goes with its last piece. */
static struct {
    pthread_mutex_t lock;
    struct block {
        struct block *next;
        char *base;
        size_t used, n_piece;
        struct hole {
            struct hole *next;
            char *base;
            size_t length;
        } * holes; /* the last one made first */
    } * blocks;    /* pieces that fill no hole come from the first */
} small = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct block *add_block(void)
{
    struct block *b = malloc(sizeof *b);
    char *base = b ? map_anywhere(BLOCK) : NULL;
    if (!base) {
        free(b);
        return NULL;
    }
    *b = (struct block){.next = small.blocks, .base = base};
    return small.blocks = b;
}

/* A piece from the first hole of a block that is long enough; NULL: there is none. */
static char *fill_hole(struct block *b, size_t length)
{
    struct hole **at = &b->holes, *h;
    while (*at && (*at)->length < length)
        at = &(*at)->next;
    h = *at;
    if (!h)
        return NULL;
    char *p = h->base;
    h->base += length;
    h->length -= length;
    if (h->length == 0) {
        *at = h->next;
        free(h);
    }
    madvise(p, length, MADV_HUGEPAGE);
    return p;
}

/* Joins the hole to one beside it, if there is one. Without memory for a note its addresses are not used again. */
static void add_hole(struct block *b, char *p, size_t length)
{
    for (struct hole *h = b->holes; h; h = h->next)
        if (h->base == p + length || h->base + h->length == p) {
            h->base = h->base < p ? h->base : p;
            h->length += length;
            return;
        }
    struct hole *h = malloc(sizeof *h);
    if (!h)
        return;
    *h = (struct hole){b->holes, p, length};
    b->holes = h;
}

static void *map_piece(size_t length)
{
    char *p = NULL;
    pthread_mutex_lock(&small.lock);
    struct block *b = small.blocks;
    while (b && !(p = fill_hole(b, length)))
        b = b->next;
    if (!p) {
        b = small.blocks && BLOCK - small.blocks->used >= length ? small.blocks : add_block();
        if (b) {
            p = b->base + b->used;
            b->used += length;
        }
    }
    if (b)
        b->n_piece++;
    pthread_mutex_unlock(&small.lock);
    return p;
}

static void close_block(struct block *b)
{
    for (struct hole *h = b->holes, *next; h; h = next) {
        next = h->next;
        free(h);
    }
    free(b);
}

static void unmap_piece(char *p, size_t length, enum mem_tag tag)
{
    pthread_mutex_lock(&small.lock);
    struct block **at = &small.blocks, *b;
    while (p < (*at)->base || p >= (*at)->base + BLOCK)
        at = &(*at)->next;
    b = *at;
    if (--b->n_piece) {
        mem_decommit(p, length, tag);
        add_hole(b, p, length);
    } else {
        *at = b->next;
        mem_unreserve(b->base, BLOCK, length, tag);
        close_block(b);
    }
    pthread_mutex_unlock(&small.lock);
}

void *mem_map(size_t n_bytes, enum mem_tag tag)
{
    return mem_make_room(n_bytes) ? mem_try_map(n_bytes, tag) : NULL;
}

void *mem_try_map(size_t n_bytes, enum mem_tag tag)
{
    size_t length = n_bytes && n_bytes <= SIZE_MAX / 2 ? mem_length(n_bytes) : 0;
    if (length == 0 || !mem_commit(length, tag))
        return NULL;
    void *p = mem_is_guarded()         ? mem_guard_map(n_bytes)
              : length < MEM_HUGE_PAGE ? map_piece(length)
                                       : mem_reserve(n_bytes);
    if (!p)
        mem_uncommit(length, tag);
    return p;
}

void mem_unmap(void *p, size_t n_bytes, enum mem_tag tag)
{
    size_t length = mem_length(n_bytes);
    if (p && mem_is_guarded()) {
        mem_guard_unmap(p, n_bytes);
        mem_uncommit(length, tag);
    } else if (!p || length >= MEM_HUGE_PAGE) {
        mem_unreserve(p, n_bytes, length, tag);
    } else {
        unmap_piece(p, length, tag);
    }
}

size_t mem_mapped_bytes(enum mem_tag tag)
{
    return atomic_load(&mapped[tag]);
}

size_t mem_total_bytes(void)
{
    return atomic_load(&total);
}

bool mem_set_limit(size_t n_bytes, mem_reclaim_fn *reclaim, void *user)
{
    if (atomic_load(&limit.n_bytes) != SIZE_MAX)
        return false;
    limit.reclaim = reclaim;
    limit.user = user;
    atomic_store(&limit.n_bytes, n_bytes);
    return true;
}

void mem_set_thread_reclaim(mem_reclaim_fn *reclaim, void *user)
{
    thread_reclaim = reclaim;
    thread_reclaim_user = user;
}

size_t mem_room_bytes(void)
{
    size_t most = atomic_load(&limit.n_bytes), now = atomic_load(&total);
    return now < most ? most - now : 0;
}

bool mem_make_room(size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 2)
        return false;
    size_t length = mem_length(n_bytes);
    if (mem_room_bytes() < length && thread_reclaim)
        thread_reclaim(thread_reclaim_user, length);
    else if (mem_room_bytes() < length && limit.reclaim)
        limit.reclaim(limit.user, length);
    return mem_room_bytes() >= length;
}

void mem_make_room_for_scratch(void)
{
    (void)!mem_make_room(bytes_kept_from(MEM_EXPERTS));
}

void mem_keep_for_scratch(size_t n_bytes)
{
    atomic_store(&limit.scratch_bytes, n_bytes);
}

void mem_lift_limit(void)
{
    mem_keep_for_scratch(0);
    atomic_store(&limit.n_bytes, SIZE_MAX);
    limit.reclaim = NULL;
}

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size; /* of the bytes after this header, which starts ALIGN bytes in */
};

void *arena_alloc(struct arena *a, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 2)
        return NULL;
    size_t want = mem_is_guarded() ? n_bytes : (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    struct arena_chunk *c = a->chunks;
    if (!c || c->size - c->used < want ||
        mem_is_guarded()) { /* guarded: a chunk of its own, for the allocator to watch */
        size_t size = want > ARENA_CHUNK || mem_is_guarded() ? want : ARENA_CHUNK;
        void *chunk;
        if (posix_memalign(&chunk, ALIGN, ALIGN + size) != 0)
            return NULL;
        c = chunk;
        *c = (struct arena_chunk){.next = a->chunks, .size = size};
        a->chunks = c;
    }
    void *p = (char *)c + ALIGN + c->used;
    c->used += want;
    a->n_bytes += want;
    return memset(p, 0, want);
}

void *arena_calloc(struct arena *a, size_t n, size_t size)
{
    size_t n_bytes;
    return mem_mul(n, size, &n_bytes) ? arena_alloc(a, n_bytes) : NULL;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    if (p)
        memcpy(p, s, n);
    return p;
}

void arena_close(struct arena *a)
{
    for (struct arena_chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *a = (struct arena){0};
}
