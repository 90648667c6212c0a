/* How much memory the process may still take before the system, or a control group that it runs in, is short of it. */
#ifndef BASE_FREE_MEMORY_H
#define BASE_FREE_MEMORY_H

#include <stddef.h>

/* Bytes: what /proc/meminfo calls available, and in each control group (version 1 or 2) from the process's own up to
 * the top what is left below the limit, where the page cache counts as free; the least of these. SIZE_MAX when the
 * system does not say. root: "" (tests have a tree of their own). */
size_t free_memory_bytes(const char *root);

#endif
