/* Memory: the only code that calls malloc or mmap for memory, and the ledger of how much is used for what.
 *
 * Small allocations use mem_alloc and its like (NULL on failure; the caller reports ERR_NOMEM), allocations with a
 * common lifetime an arena. Big ones (weights, caches, scratch) use mem_map: page-aligned, zero-filled, in huge pages
 * where the system gives them, and counted under a tag in a process-wide ledger. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* malloc, calloc, realloc and free. mem_calloc fails when n * size overflows; mem_resize is realloc to n * size bytes
 * with the same check, and leaves the old block as it is when it fails. */
void *mem_alloc(size_t n_bytes);
void *mem_calloc(size_t n, size_t size);
void *mem_resize(void *p, size_t n, size_t size);
/* mem_grow makes room for n elements of `size` bytes in an owned array with room for *capacity: where that is too few,
 * the array at least doubles and may move. items: the address of the array's pointer, which may be NULL. The error says
 * what the memory was for (`what`), and the array is then unchanged. mem_enlarge is the part of it for an array that is
 * too small. */
MUST_USE err_code mem_enlarge(void *items, size_t *capacity, size_t n, size_t size, const char *what, struct err *e);
MUST_USE static inline err_code mem_grow(void *items, size_t *capacity, size_t n, size_t size, const char *what,
                                         struct err *e)
{
    return n <= *capacity ? ERR_OK : mem_enlarge(items, capacity, n, size, what, e);
}
void *mem_alloc_aligned(size_t align, size_t n_bytes); /* align: a power of two */
void mem_free(void *p);
char *mem_strdup(const char *s);
char *mem_print(const char *fmt, ...) PRINTF_LIKE(1, 2); /* what printf would print; NULL: there is no memory */
/* Free memory of the heap goes back to the system, as far as it can (glibc): of large blocks from the first call on as
 * soon as they are free, of others with the next call. Thread-safe; takes milliseconds, in which other threads may wait
 * for the heap. */
void mem_trim(void);

/* a * b and a + b; false on overflow, *out untouched. */
bool mem_mul(size_t a, size_t b, size_t *out);
bool mem_add(size_t a, size_t b, size_t *out);

enum mem_tag {
    MEM_WEIGHTS, /* everything but routed experts */
    MEM_EXPERTS, /* routed experts */
    MEM_STATE,   /* KV caches and recurrent state */
    MEM_SCRATCH, /* activations */
    MEM_N_TAG
};

const char *mem_tag_name(enum mem_tag tag);

/* Maps n_bytes (rounded up to whole pages) of zeroed memory and asks for huge pages. Mappings of 2 MiB and more are
 * aligned to 2 MiB, smaller ones to pages. NULL on failure. Release with mem_unmap and the same size and tag.
 * Thread-safe. */
void *mem_map(size_t n_bytes, enum mem_tag tag);
void *mem_try_map(size_t n_bytes, enum mem_tag tag); /* never reclaims memory: fails where the limit leaves no room */
void mem_unmap(void *p, size_t n_bytes, enum mem_tag tag);

/* Bytes of one of the system's pages: 4096, or 16384 or 65536 on some kernels for Arm. */
size_t mem_page_bytes(void);

/* What mem_map counts for n_bytes: whole pages. */
size_t mem_length(size_t n_bytes);

enum { MEM_HUGE_PAGE = 2 << 20 }; /* bytes */

/* For tests, in builds with AddressSanitizer and with MOEBIUS_GUARD_PAGES=1 in the environment: mapped memory lies
 * between guard pages, has exactly the size that was asked for and no more alignment than base/mem_guard.h says, and
 * each piece of an arena is an allocation of its own. */
#if defined(__SANITIZE_ADDRESS__)
bool mem_is_guarded(void);
#else
static inline bool mem_is_guarded(void)
{
    return false;
}
#endif

/* Between these two calls, the calling thread's mem_map and mem_reserve take memory of 2 MiB and more from the huge
 * pages that the system has set aside (hugetlb) while there are any left, and ordinary memory after that. Memory from
 * hugetlb must not be passed to mem_decommit. mem_hugetlb_end returns how many bytes did not come from hugetlb. */
void mem_hugetlb_begin(void);
size_t mem_hugetlb_end(void);

/* Reserves address space, which neither takes memory nor counts until mem_commit. Aligned as by mem_map; NULL on
 * failure. Thread-safe. */
void *mem_reserve(size_t n_bytes);
/* Releases a reservation. n_committed: the bytes of it that are committed still. */
void mem_unreserve(void *p, size_t n_bytes, size_t n_committed, enum mem_tag tag);
/* Counts n_bytes of a reservation as in use, after which they may be touched; false when the limit forbids it. */
MUST_USE bool mem_commit(size_t n_bytes, enum mem_tag tag);
/* Stops counting n_bytes, without giving pages back: for memory that comes from a driver and goes back to it. */
void mem_uncommit(size_t n_bytes, enum mem_tag tag);
/* Has the system provide the pages of committed memory now, instead of one by one at their first use. */
void mem_populate(void *p, size_t n_bytes);
/* Gives pages of a reservation back to the system and stops counting them. p and n_bytes must be multiples of
 * mem_page_bytes. */
void mem_decommit(void *p, size_t n_bytes, enum mem_tag tag);

/* Bytes that are mapped or committed now, under one tag and under all of them. Thread-safe. */
size_t mem_mapped_bytes(enum mem_tag tag);
size_t mem_total_bytes(void);

/* A limit on mem_total_bytes; there is none at first. When mem_map would exceed it, it calls `reclaim` (unless NULL),
 * which should make room for n_bytes with mem_decommit; where that is not enough, mem_map fails. The process has one
 * limit: mem_set_limit returns false while one is in force. A limit is set and lifted, and memory mapped while it is in
 * force, by the thread that drives the engine only, or by one that has a reclaim function of its own. */
typedef void mem_reclaim_fn(void *user, size_t n_bytes);
MUST_USE bool mem_set_limit(size_t n_bytes, mem_reclaim_fn *reclaim, void *user);
/* Until the limit is lifted, MEM_EXPERTS leaves enough room below it for MEM_SCRATCH to grow to n_bytes: experts that
 * an operation uses can't be reclaimed for the scratch that the same operation needs. */
void mem_keep_for_scratch(size_t n_bytes);
void mem_lift_limit(void);
/* From now on the calling thread calls this function in place of the limit's, even of a limit that is set later. */
void mem_set_thread_reclaim(mem_reclaim_fn *reclaim, void *user);
size_t mem_room_bytes(void); /* the most that mem_commit would allow now */
/* Reclaims memory until a mapping of n_bytes has room; false: it hasn't. mem_map does so by itself. */
MUST_USE bool mem_make_room(size_t n_bytes);
/* Reclaims, as far as possible, the room that is kept for scratch, where state has taken some of it. */
void mem_make_room_for_scratch(void);

/* An arena: allocations that are freed together. Starts as zeros. Not thread-safe. */
struct arena {
    struct arena_chunk *chunks;
    size_t n_bytes; /* handed out */
};

/* Zeroed memory aligned to 64 bytes, owned by the arena; NULL on failure. */
void *arena_alloc(struct arena *a, size_t n_bytes);
void *arena_calloc(struct arena *a, size_t n, size_t size); /* NULL on overflow, too */
char *arena_strndup(struct arena *a, const char *s, size_t n);
void arena_close(struct arena *a); /* frees everything; the arena may be used again */

#endif
