/* How much memory the process may still take before the system, or a control group that it runs in, is short of it.
 * Allocates nothing. */
#ifndef BASE_FREE_MEMORY_H
#define BASE_FREE_MEMORY_H

#include <stddef.h>

/* Bytes: what /proc/meminfo calls available, and in each control group (version 1 or 2) from the process's own up to
 * the top what is left below its limits, where the page cache counts as free; the least of these. SIZE_MAX when the
 * system does not say. root: "" (tests have a tree of their own). */
size_t free_memory_bytes(const char *root);

/* Bytes: the tightest limit of those control groups, whatever is in use; a group without one of version 1 says an
 * absurdly large number. SIZE_MAX: there is none. */
size_t free_memory_limit_bytes(const char *root);

/* Bytes of memory that the machine has; 0 when the system does not say. */
size_t machine_memory_bytes(void);

/* Bytes of memory that the process has now; 0 when the system does not say. */
size_t resident_memory_bytes(void);

#endif
