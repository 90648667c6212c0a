/* Memory: the only place that calls the heap or mmap for memory, and the ledger that knows who holds what.
 *
 * Small things: mem_alloc and friends (NULL on failure; the caller reports ERR_NOMEM). Things with a lifetime:
 * an arena. Big things (weights, caches, scratch): mem_map, page-aligned, zero-filled, in huge pages where the
 * system gives them, counted under a tag in a process-wide ledger. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* malloc, calloc, realloc, free. mem_calloc fails on overflow; mem_resize(n, size) is realloc to n * size bytes
 * with the same check and leaves the old block alone when it fails. */
void *mem_alloc(size_t n_bytes);
void *mem_calloc(size_t n, size_t size);
void *mem_resize(void *p, size_t n, size_t size);
/* Room for n elements of `size` bytes in an owned array of *capacity that grows: where it is too small it gets at least
 * twice as large and may move. items: the address of its pointer, which may be NULL. On failure, an error that says for
 * `what`, all is as it was. mem_enlarge: where it is known to be too small. */
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

/* Maps n_bytes (rounded up to whole pages) of zeroed memory, aligned to 2 MiB when at least that big, else to pages and
 * beside other small ones, and asks for huge pages. NULL on failure. Release with mem_unmap and the same size and tag.
 * Thread-safe. */
void *mem_map(size_t n_bytes, enum mem_tag tag);
void *mem_try_map(size_t n_bytes, enum mem_tag tag); /* never asks for room below the limit (mem_make_room) */
void mem_unmap(void *p, size_t n_bytes, enum mem_tag tag);

/* Bytes of one of the system's pages: 4096, or 16384 or 65536 on some kernels for Arm. */
size_t mem_page_bytes(void);

/* What mem_map counts for n_bytes: whole pages. */
size_t mem_length(size_t n_bytes);

enum { MEM_HUGE_PAGE = 2 << 20 }; /* bytes */

/* With AddressSanitizer and MOEBIUS_GUARD_PAGES=1 in the environment, for tests: mapped memory lies between pages that
 * nobody may touch, exact in size and no more aligned than base/mem_guard.h says, and each piece of an arena is an
 * allocation of its own. */
#if defined(__SANITIZE_ADDRESS__)
bool mem_is_guarded(void);
#else
static inline bool mem_is_guarded(void)
{
    return false;
}
#endif

/* Between the two, the calling thread's mem_map and mem_reserve take memory of 2 MiB and more from the huge pages that
 * the system has set aside (hugetlb), as far as they go, and the rest as ever. mem_decommit is not for what they gave.
 * The end returns how many bytes did not come from there. */
void mem_hugetlb_begin(void);
size_t mem_hugetlb_end(void);

/* Address space without memory: nothing counts until mem_commit, and pages cost nothing until then. Aligned as mem_map
 * aligns. Thread-safe. */
void *mem_reserve(size_t n_bytes);
/* n_committed: what of it still counts. */
void mem_unreserve(void *p, size_t n_bytes, size_t n_committed, enum mem_tag tag);
/* Counts n_bytes of a reservation as in use; false when the limit forbids it. They may be touched from then on. */
MUST_USE bool mem_commit(size_t n_bytes, enum mem_tag tag);
/* They are no longer in use: for memory that a driver gave and takes back. */
void mem_uncommit(size_t n_bytes, enum mem_tag tag);
/* Has the system provide the pages of committed memory now, rather than one by one when they are touched. */
void mem_populate(void *p, size_t n_bytes);
/* Gives pages of a reservation back to the system; they no longer count. p and n_bytes must be multiples of
 * mem_page_bytes. */
void mem_decommit(void *p, size_t n_bytes, enum mem_tag tag);

/* Bytes now mapped or committed under a tag, and under all. Thread-safe. */
size_t mem_mapped_bytes(enum mem_tag tag);
size_t mem_total_bytes(void);

/* A limit on mem_total_bytes; SIZE_MAX: none (the start). When mem_map would exceed it, reclaim (unless NULL) is asked
 * to make room for n_bytes by mem_decommit; when that is not enough, mem_map fails. One for the process: false when
 * another one is in force. Set and lift it, and map while it holds, from the thread that drives the engine, or from one
 * that has a reclaim of its own. */
typedef void mem_reclaim_fn(void *user, size_t n_bytes);
MUST_USE bool mem_set_limit(size_t n_bytes, mem_reclaim_fn *reclaim, void *user);
/* Below the limit MEM_EXPERTS leaves room for MEM_SCRATCH to grow to so many bytes, as what an operation uses can't be
 * reclaimed for the scratch that it needs. Until the limit is lifted. */
void mem_keep_for_scratch(size_t n_bytes);
void mem_lift_limit(void);
/* From now on the calling thread asks this one in its place, whoever sets the limit. */
void mem_set_thread_reclaim(mem_reclaim_fn *reclaim, void *user);
size_t mem_room_bytes(void); /* what mem_commit would still allow */
/* Has reclaim make room for a mapping of n_bytes; whether there is room now. mem_map does so by itself. */
MUST_USE bool mem_make_room(size_t n_bytes);
/* Has reclaim restore, as far as it can, the room that is kept for scratch, of which state may have taken some. */
void mem_make_room_for_scratch(void);

/* An arena: allocations that live and die together. Not thread-safe. */
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
