/* A pool of threads that runs one parallel loop at a time.
 *
 * The engine makes the pool and passes it down; there is no global one. Each thread begins with an equal share of the
 * tasks, neighbours in ascending order, so that who walks through memory walks on; when it has done its own it takes
 * others' from the end, so that a slow core delays the loop by one task and not by a share. A thread that gets no core
 * in time is not waited for. Waiters spin for a few microseconds and then sleep, and a thread that shares its core with
 * another program can be throttled (base/throttle.h), so that a busy machine slows the pool down in proportion and no
 * more.
 *
 * On a machine with several memory nodes threads are numbered node by node, so that neighbouring tasks are a node's,
 * and take over tasks of their own node first (base/topology.h). */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/err.h"

struct pool;
struct topology;

enum {
    POOL_MAX_THREADS = 256,
    POOL_N_SPIN = 2000 /* rounds that waiters spin, unless said otherwise: as long as a loop of decode takes */
};

/* How many threads a pool gets when the user says nothing: one for each processor that the process may use, at most
 * POOL_MAX_THREADS. */
int pool_default_threads(void);

/* n_threads (1..POOL_MAX_THREADS) counts the caller of pool_run, so n_threads - 1 are started. */
MUST_USE err_code pool_create(struct pool **out, int n_threads, struct err *e);
void pool_close(struct pool **p); /* accepts NULL and half-open pools */
int pool_n_threads(const struct pool *p);

/* Calls fn(arg, task, thread) once for each task in [0, n_tasks) with thread in [0, n_threads), and returns when
 * all are done. What the tasks wrote is visible to the caller. Never allocates. Not reentrant: one loop at a time,
 * from the thread that owns the pool. */
typedef void pool_fn(void *arg, size_t task, int thread);
void pool_run(struct pool *p, size_t n_tasks, pool_fn *fn, void *arg);

/* Binds all threads but the caller's (topology_bind_caller does that) to their nodes, before the first loop. `t` was
 * opened for as many threads and is borrowed until the pool is closed; NULL: one node. */
void pool_place(struct pool *p, struct topology *t);
struct topology *pool_topology(const struct pool *p);
int pool_n_node(const struct pool *p); /* at least 1 */

/* Where a node's share of n things begins, in proportion to its threads; of node pool_n_node: n. */
size_t pool_node_first(const struct pool *p, int node, size_t n);

/* pool_run with tasks [first[j], first[j + 1]) for the threads of node j to begin with; first[0] is 0. */
void pool_run_nodes(struct pool *p, const size_t *first, pool_fn *fn, void *arg);

/* From now on loops use the first n (1..n_threads) only; the others sleep. Not within a loop. */
void pool_use(struct pool *p, int n);
int pool_n_used(const struct pool *p);

/* From now on waiters look n_spin (0: none) times before they sleep, where there are processors enough. Not within a
 * loop. */
void pool_set_spin(struct pool *p, int n_spin);

/* Whether threads that share their core with another program are throttled. Off at first. For loops that only compute:
 * a thread that waits for a drive or for pages of memory looks the same to the clocks. */
void pool_set_throttled(struct pool *p, bool is_throttled);

/* Times of loops that several threads ran. Threads have no tasks while they wait for one that lost its core, and while
 * they are throttled. */
struct pool_times {
    int64_t thread_ns;    /* of all threads, from the loops' beginnings to their ends */
    int64_t busy_ns;      /* of that, in tasks */
    int64_t throttled_ns; /* of that, asleep by the throttle */
};
struct pool_times pool_times(const struct pool *p);

/* fn(user) is called by the thread that runs a loop after each task of its own, for what can't wait until the loop
 * ends; the others take over tasks meanwhile. NULL: nothing. Not within fn: pool_run. */
void pool_set_between(struct pool *p, void (*fn)(void *user), void *user);

/* From now on the thread that runs a loop asks `c` after tasks of its own, every few milliseconds at most, whether the
 * work shall stop. Once it shall, pool_is_cancelled is true for all threads, until this is called again: tasks whose
 * results nobody will want may leave their work out. NULL: nobody is asked. `c` is borrowed. */
void pool_set_cancel(struct pool *p, const struct cancel *c);
bool pool_is_cancelled(const struct pool *p);

#endif
