/* Mapped memory between guard pages, for tests (mem_is_guarded in base/mem.h): a read or write beyond its ends crashes.
 * Where AddressSanitizer sees the access, both ends are exact. Where it doesn't (assembly), only one end is checked,
 * the first and the last by turns, and up to 63 bytes behind the last may go unnoticed. */
#ifndef BASE_MEM_GUARD_H
#define BASE_MEM_GUARD_H

#include <stddef.h>

/* n_bytes of zeros, aligned to 64 bytes, or to pages where n_bytes is a number of whole pages; NULL on failure. */
void *mem_guard_map(size_t n_bytes);
void mem_guard_unmap(void *p, size_t n_bytes);

#endif
