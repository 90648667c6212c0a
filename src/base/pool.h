/* A pool of threads that runs one parallel loop at a time.
 *
 * The engine creates the pool and passes it down; there is no global one. Each thread begins with an equal share of the
 * tasks, which are neighbours and run in ascending order, so that memory is read in sequence. When it is done with its
 * share it takes tasks from the ends of the others' shares, so that a slow core delays the loop by one task instead of
 * by a share. A thread that gets no core in time is not waited for. Waiting threads spin for a few microseconds and
 * then sleep, and a thread that shares its core with another program can be throttled (base/throttle.h), so that a busy
 * machine slows the pool down in proportion and not by more.
 *
 * On a machine with several memory nodes, threads are numbered node by node, so that neighbouring tasks run on the same
 * node, and a thread takes over tasks of its own node first (base/topology.h). */
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
    POOL_N_SPIN = 2000 /* rounds that waiting threads spin by default: about as long as one loop of a decode step */
};

/* How many threads a pool gets when the user says nothing: one for each processor that the process may use, at most
 * POOL_MAX_THREADS. */
int pool_default_threads(void);

/* n_threads (1..POOL_MAX_THREADS) includes the thread that calls pool_run: n_threads - 1 threads are started. */
MUST_USE err_code pool_create(struct pool **out, int n_threads, struct err *e);
void pool_close(struct pool **p); /* accepts a pointer to NULL */
int pool_n_threads(const struct pool *p);

/* Calls fn(arg, task, thread) once for each task in [0, n_tasks), with thread in [0, n_threads), and returns when all
 * calls are done. What the tasks wrote is visible to the caller. Never allocates. Not reentrant: one loop at a time,
 * from the thread that owns the pool. */
typedef void pool_fn(void *arg, size_t task, int thread);
void pool_run(struct pool *p, size_t n_tasks, pool_fn *fn, void *arg);

/* Binds all threads but the caller's (topology_bind_caller does that) to their nodes. To be called before the first
 * loop. `t` must have been opened for the same number of threads and is borrowed until the pool is closed; NULL: the
 * machine counts as one node. */
void pool_place(struct pool *p, struct topology *t);
struct topology *pool_topology(const struct pool *p);
int pool_n_node(const struct pool *p); /* at least 1 */

/* Shares out n things to the nodes in proportion to their threads: the index of a node's first one. For node
 * pool_n_node it is n. */
size_t pool_node_first(const struct pool *p, int node, size_t n);

/* pool_run whose tasks [first[j], first[j + 1]) are the shares that the threads of node j begin with. first[0] is 0,
 * first[pool_n_node] the number of tasks. */
void pool_run_nodes(struct pool *p, const size_t *first, pool_fn *fn, void *arg);

/* From now on loops use the first n (1..n_threads) threads only; the others sleep. Not to be called within a loop. */
void pool_use(struct pool *p, int n);
int pool_n_used(const struct pool *p);

/* From now on waiting threads spin n_spin (0: no) rounds before they sleep, if there are enough processors. Not to be
 * called within a loop. */
void pool_set_spin(struct pool *p, int n_spin);

/* Sets whether threads that share their core with another program are throttled; they are not at first. Only for loops
 * that compute: to the clocks, a thread that waits for a drive or a page fault looks the same as one without a core. */
void pool_set_throttled(struct pool *p, bool is_throttled);

/* Times of all loops that several threads ran, summed over the threads. A thread has no task while it waits for one
 * that lost its core, and while it is throttled. */
struct pool_times {
    int64_t thread_ns;    /* from each loop's beginning to its end */
    int64_t busy_ns;      /* part of thread_ns: running tasks */
    int64_t throttled_ns; /* part of thread_ns: sleeping because of the throttle */
};
struct pool_times pool_times(const struct pool *p);

/* From now on the thread that calls pool_run calls fn(user) after each task of its own, for work that can't wait until
 * the loop ends; the other threads take over its tasks meanwhile. NULL: nothing is called. fn must not call
 * pool_run. */
void pool_set_between(struct pool *p, void (*fn)(void *user), void *user);

/* From now on the thread that calls pool_run asks `c`, between its tasks and every few milliseconds at most, whether
 * the work should stop. Once it should, pool_is_cancelled is true for all threads until this function is called again,
 * and tasks may skip their work, as nobody will use the results. NULL: nobody is asked. `c` is borrowed. */
void pool_set_cancel(struct pool *p, const struct cancel *c);
bool pool_is_cancelled(const struct pool *p);

#endif
