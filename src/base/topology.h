/* The machine's memory nodes (NUMA): which processors are near which memory. Binds threads and memory to nodes, so that
 * threads work on memory of their own node.
 *
 * All of it is done through hwloc. In a build without hwloc, and where fewer than two nodes would get threads,
 * topology_open returns NULL, for which the functions below do nothing and say that there is one node. Where the system
 * doesn't permit something (containers often forbid to bind memory), the log gets one warning, and only speed is lost.
 *
 * Thread-safety: only the thread that drives the engine may call these functions. */
#ifndef BASE_TOPOLOGY_H
#define BASE_TOPOLOGY_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"

struct topology;

/* The part of the machine that the process may use; 0: not known. */
struct topology_counts {
    int n_socket, n_core;
    uint64_t l2_bytes, l3_bytes; /* sums over all caches of the level */
};

/* Sets all to 0 in a build without hwloc. */
void topology_count(struct topology_counts *out);

enum { TOPOLOGY_MAX_NODE = 16 }; /* processors of any further nodes count as the last one's */

/* Shares n_threads threads out in proportion to the nodes' cores. Node j gets threads [first[j], first[j + 1]), which
 * may be none where there are few threads. first has n_node + 1 elements. */
void topology_plan(const int *n_core, int n_node, int n_threads, int *first);

/* The nodes that get at least one of n_threads threads by topology_plan. Only nodes with memory and processors that the
 * calling thread may use count (cgroups, affinity and memory policy decide). Processors whose own node has no such
 * memory count as the last node's. `log` is borrowed. */
struct topology *topology_open(int n_threads, const struct log *log);
void topology_close(struct topology **t); /* accepts a pointer to NULL */

int topology_n_node(const struct topology *t); /* at least 1 */
/* The first thread of a node. For node topology_n_node it is the number of threads. `t` must not be NULL. */
int topology_first_thread(const struct topology *t, int node);

/* Binds a thread of this process to the processors of a node; the system chooses among these. */
void topology_bind_thread(struct topology *t, pthread_t thread, int node);
/* The same for the calling thread and the first node, until topology_release_caller restores its affinity. */
void topology_bind_caller(struct topology *t);
void topology_release_caller(struct topology *t);

/* Binds memory that has not been touched yet to a node, for as long as that has room. A page that two ranges share goes
 * to the node that is bound last. */
void topology_bind_memory(struct topology *t, void *p, size_t n_bytes, int node);
/* The same, but with the pages interleaved over all nodes. */
void topology_interleave_memory(struct topology *t, void *p, size_t n_bytes);

#endif
