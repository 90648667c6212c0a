/* The machine's memory nodes (NUMA): which processors are near which memory, and keeping threads and memory together.
 *
 * hwloc knows and does it; in a build without hwloc, and wherever fewer than two nodes would get threads, there is no
 * topology: NULL, which every function here takes for a machine with one node, and does nothing. What the system
 * doesn't permit (containers often forbid to place memory) is one warning in the log, and speed is all that it costs.
 *
 * Thread-safety: one thread, the one that drives the engine. */
#ifndef BASE_TOPOLOGY_H
#define BASE_TOPOLOGY_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"

struct topology;

/* What the process may use of the machine; 0: not known. */
struct topology_counts {
    int n_socket, n_core;
    uint64_t l2_bytes, l3_bytes; /* of all caches of that level */
};

/* All 0 in a build without hwloc, and where the system doesn't say. */
void topology_count(struct topology_counts *out);

enum { TOPOLOGY_MAX_NODE = 16 }; /* processors of any further ones count as the last one's */

/* Shares threads out in proportion to the nodes' cores: those of node j are [first[j], first[j + 1]). A node may get
 * none where there are few. */
void topology_plan(const int *n_core, int n_node, int n_threads, int *first);

/* The nodes that get some of n_threads threads by topology_plan: of those with memory and processors that the calling
 * thread may use (cgroups, affinity and memory policy all count). Processors whose own node has no such memory count
 * as the last node's. `log` is borrowed. */
struct topology *topology_open(int n_threads, const struct log *log);
void topology_close(struct topology **t); /* accepts NULL */

int topology_n_node(const struct topology *t); /* at least 1 */
/* The first thread of a node; of node topology_n_node: the number of threads. Not for NULL. */
int topology_first_thread(const struct topology *t, int node);

/* Binds a thread of this process to a node's processors; which of them, the system decides. */
void topology_bind_thread(struct topology *t, pthread_t thread, int node);
/* The same for the calling thread and the first node, until topology_release_caller gives it back what it had. */
void topology_bind_caller(struct topology *t);
void topology_release_caller(struct topology *t);

/* Memory that nobody has touched yet will lie on a node, while that has room. Ranges begin at whole pages: a page that
 * two share goes to the one bound last. */
void topology_bind_memory(struct topology *t, void *p, size_t n_bytes, int node);
/* The same, its pages interleaved over all nodes. */
void topology_interleave_memory(struct topology *t, void *p, size_t n_bytes);

#endif
