/* How much memory the process may still take before the system, or a control group that it runs in, runs short. The
 * functions allocate nothing. */
#ifndef BASE_FREE_MEMORY_H
#define BASE_FREE_MEMORY_H

#include <stddef.h>

/* Bytes: the least of what /proc/meminfo calls available and of what is left below the limits of each control group
 * (version 1 or 2) from the process's own up to the root, where the page cache counts as free. SIZE_MAX when the system
 * does not say. root: the path that /proc and /sys are below, "" but in tests. */
size_t free_memory_bytes(const char *root);

/* Bytes: the lowest limit of those control groups, however much of it is in use. SIZE_MAX: there is none. (A group of
 * version 1 without a limit says an absurdly large number.) */
size_t free_memory_limit_bytes(const char *root);

/* Bytes of the machine's memory; 0 when the system does not say. */
size_t machine_memory_bytes(void);

/* The process's resident set in bytes; 0 when the system does not say. */
size_t resident_memory_bytes(void);

#endif
