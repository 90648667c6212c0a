/* Mapped memory between pages that nobody may touch, for tests (mem_is_guarded in base/mem.h): who reads or
 * writes beyond what was asked for dies there. Exact at both ends where AddressSanitizer sees the access; elsewhere at
 * one end, by turns, and within 63 bytes behind. */
#ifndef BASE_MEM_GUARD_H
#define BASE_MEM_GUARD_H

#include <stddef.h>

/* n_bytes of zeros, aligned to 64, and to pages if they are whole ones; NULL on failure. */
void *mem_guard_map(size_t n_bytes);
void mem_guard_unmap(void *p, size_t n_bytes);

#endif
