#define _GNU_SOURCE
#include "base/pool.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/event.h"
#include "base/mem.h"
#include "base/throttle.h"
#include "base/topology.h"

enum { CACHE_LINE = 64 };

/* Cancelling is asked about no more often. */
enum { ASK_NS = 4 * 1000 * 1000 };

/* What the thread that runs loops tells another, all in one cache line: between caches far apart a line takes a fifth
 * of a microsecond, and a loop of decode lasts a few dozen. */
struct share {
    _Alignas(CACHE_LINE) struct event start; /* counts loops; a change starts one */
    /* The tasks that the thread begins with and that no thread has taken yet, [first, end): end in the upper half. The
     * thread takes the first, others the last. A thread that has taken a task knows that the loop lasts until it says
     * that the task is done, and so that fn and arg are this loop's. */
    atomic_uint_least64_t tasks;
    _Atomic(pool_fn *) fn;
    _Atomic(void *) arg;
    atomic_int_least64_t loop_ns; /* time that loops of several threads took before */
    atomic_int caller_cpu;        /* that the thread runs on which runs the loop */
    atomic_short n_share;         /* of the loop */
    atomic_bool may_throttle;     /* the loop only computes, on cores enough for all threads */

    /* What the thread tells the one that runs loops. */
    _Alignas(CACHE_LINE) atomic_size_t n_done; /* tasks so far */
    int64_t busy_ns;                           /* time in tasks so far */
    atomic_int_least64_t throttled_ns;         /* time slept by the throttle so far */
    struct throttle throttle;
    int node_first, node_end; /* the threads of its node */
};

struct pool {
    _Alignas(CACHE_LINE) struct event n_used;  /* threads that loops use, the caller counted; others wait here */
    _Alignas(CACHE_LINE) struct event done;    /* changes, when the caller sleeps, if a thread has done its tasks */
    _Alignas(CACHE_LINE) struct share *shares; /* [n_threads] */
    struct topology *topology;
    size_t n_done;               /* tasks of all loops */
    void (*between)(void *user); /* NULL: nothing */
    void *between_user;
    const struct cancel *cancel; /* NULL: nobody is asked */
    int64_t asked_ns;            /* when it was asked */
    atomic_bool is_cancelled;    /* it said that the work shall stop */
    int64_t thread_ns, loop_ns;  /* time of loops of several threads: of all their threads, of the loops */
    bool is_throttled;
    atomic_bool stop;
    int n_cpu;    /* that the process may use */
    int max_spin; /* rounds before a thread sleeps, where there are processors enough */
    atomic_int n_spin;
    int n_threads, n_started; /* both count the caller */
    struct worker {
        struct pool *pool;
        pthread_t thread;
        int index;
    } workers[];
};

/* Takes the first or the last task of a share; false: it has none. */
static bool take_task(struct share *s, bool first, size_t *task)
{
    uint64_t tasks = atomic_load_explicit(&s->tasks, memory_order_relaxed), left;
    do {
        uint32_t from = (uint32_t)tasks, end = (uint32_t)(tasks >> 32);
        if (from == end)
            return false;
        *task = first ? from : end - 1;
        left = first ? tasks + 1 : tasks - ((uint64_t)1 << 32);
    } while (
        !atomic_compare_exchange_weak_explicit(&s->tasks, &tasks, left, memory_order_acquire, memory_order_relaxed));
    return true;
}

/* Asks whether the work shall stop, unless that was a moment ago. */
static void ask_cancel(struct pool *p)
{
    int64_t now_ns = clock_ns();
    if (now_ns - p->asked_ns < ASK_NS || pool_is_cancelled(p))
        return;
    p->asked_ns = now_ns;
    if (cancel_is_wanted(p->cancel))
        atomic_store_explicit(&p->is_cancelled, true, memory_order_relaxed);
}

static void call_between(struct pool *p)
{
    if (p->between)
        p->between(p->between_user);
    if (p->cancel)
        ask_cancel(p);
}

/* The i-th of n_share shares that a thread takes tasks from: its own, those of its node, the others. */
static struct share *ith_share(const struct pool *p, int thread, int i, int n_share)
{
    int first = p->shares[thread].node_first, end = p->shares[thread].node_end;
    int n = (end < n_share ? end : n_share) - first;
    return &p->shares[i < n ? first + (thread - first + i) % n : (first + i) % n_share];
}

static bool must_sleep(const struct share *s)
{
    return s->throttle.throttled_until_ns &&
           throttle_is_due(&s->throttle, &(struct throttle_clock){.now_ns = clock_ns()});
}

/* Tells the thread that runs the loop that n more tasks are done. */
static void say_done(struct pool *p, struct share *own, size_t n)
{
    atomic_store(&own->n_done, atomic_load_explicit(&own->n_done, memory_order_relaxed) + n);
    if (!atomic_load(&p->done.sleepers))
        return;
    event_signal(&p->done);
}

/* Runs the thread's own share, then tasks that others have not begun. True: the throttle wants the thread to sleep,
 * and the others take its tasks. */
static bool run_tasks(struct pool *p, int thread)
{
    struct share *own = &p->shares[thread];
    size_t task, n_done = 0;
    int64_t begin_ns = clock_ns();
    bool leaves = false;
    for (int i = 0, n = atomic_load_explicit(&own->n_share, memory_order_relaxed); i < n && !leaves; i++) {
        struct share *s = ith_share(p, thread, i, n);
        while (!leaves && take_task(s, i == 0, &task)) {
            pool_fn *fn = atomic_load_explicit(&s->fn, memory_order_relaxed);
            fn(atomic_load_explicit(&s->arg, memory_order_relaxed), task, thread);
            n_done++;
            if (thread == 0)
                call_between(p);
            else
                leaves = must_sleep(own);
        }
    }
    if (n_done) {
        own->busy_ns += clock_ns() - begin_ns;
        say_done(p, own, n_done);
    }
    return leaves;
}

/* Waits for a change. Where there is one worker, it has nothing to do in the middle of loops only when the caller has
 * lost its core; the worker should then make room, so that its sleep counts as lost time. */
static void wait_change(struct worker *w, struct event *ev, unsigned seen, int n_spin)
{
    int64_t slept_ns = event_wait(ev, seen, n_spin, 0);
    if (pool_n_used(w->pool) > 2)
        w->pool->shares[w->index].throttle.slept_ns += slept_ns;
}

/* Sleeps when the throttle says so. A throttled thread leaves the core that the caller runs on. */
static void throttle_thread(struct share *own)
{
    struct throttle_clock now = {.now_ns = clock_ns(),
                                 .loop_ns = atomic_load_explicit(&own->loop_ns, memory_order_relaxed)};
    if (!atomic_load_explicit(&own->may_throttle, memory_order_relaxed))
        own->throttle = (struct throttle){0};
    else if (throttle_is_due(&own->throttle, &now)) {
        now.run_ns = clock_thread_ns();
        int64_t sleep_ns = throttle_sleep_ns(&own->throttle, &now);
        if (sleep_ns > 0)
            clock_sleep_ns(sleep_ns);
        atomic_fetch_add_explicit(&own->throttled_ns, sleep_ns, memory_order_relaxed);
    }
    if (own->throttle.throttled_until_ns && cpu_here() == atomic_load_explicit(&own->caller_cpu, memory_order_relaxed))
        cpu_leave();
}

/* Prefetches the cache lines at a loop's argument, all at once. */
static void ask_for_arg(const struct share *own)
{
    enum { N_LINE = 8 };
    const char *arg = atomic_load_explicit(&own->arg, memory_order_relaxed);
    for (int i = 0; i < N_LINE; i++)
        __builtin_prefetch(arg + i * CACHE_LINE);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    struct share *own = &p->shares[w->index];
    bool is_late = false; /* the throttle made the thread leave a loop, which may not be over */
    for (unsigned seen = 0, n_used;;) {
        if (!is_late)
            wait_change(w, &own->start, seen, atomic_load_explicit(&p->n_spin, memory_order_relaxed));
        ask_for_arg(own);
        throttle_thread(own);
        seen = atomic_load_explicit(&own->start.value, memory_order_acquire);
        while (n_used = atomic_load(&p->n_used.value), (unsigned)w->index >= n_used)
            wait_change(w, &p->n_used, n_used, 0);
        if (atomic_load_explicit(&p->stop, memory_order_acquire))
            return NULL;
        is_late = run_tasks(p, w->index); /* a late thread finds no tasks, or those of the next loop */
    }
}

int pool_default_threads(void)
{
    int n = cpu_n_available();
    return n < POOL_MAX_THREADS ? n : POOL_MAX_THREADS;
}

err_code pool_create(struct pool **out, int n_threads, struct err *e)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > POOL_MAX_THREADS)
        return err_set(e, ERR_USAGE, "%d threads: expected 1 to %d", n_threads, POOL_MAX_THREADS);
    size_t n_bytes = sizeof(struct pool) + (size_t)n_threads * sizeof(struct worker);
    struct pool *p = mem_alloc_aligned(CACHE_LINE, n_bytes);
    if (!p)
        return err_nomem(e, n_bytes, "the thread pool");
    *p = (struct pool){.n_threads = n_threads, .n_started = 1};
    *out = p;
    p->shares = mem_alloc_aligned(CACHE_LINE, (size_t)n_threads * sizeof *p->shares);
    if (!p->shares) {
        pool_close(out);
        return err_nomem(e, (size_t)n_threads * sizeof *p->shares, "the thread pool");
    }
    for (int i = 0; i < n_threads; i++)
        p->shares[i] = (struct share){.node_end = n_threads};
    p->n_cpu = cpu_n_available();
    p->max_spin = POOL_N_SPIN;
    pool_use(p, n_threads);
    for (int i = 1; i < n_threads; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){.pool = p, .index = i};
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            pool_close(out);
            return err_set(e, ERR_NOMEM, "could not start thread %d of %d", i + 1, n_threads);
        }
        p->n_started++;
    }
    return ERR_OK;
}

void pool_close(struct pool **out)
{
    struct pool *p = *out;
    if (!p)
        return;
    atomic_store(&p->stop, true);
    pool_use(p, p->n_threads);
    for (int i = 1; i < p->n_started; i++) {
        event_signal(&p->shares[i].start);
        pthread_join(p->workers[i].thread, NULL);
    }
    mem_free(p->shares);
    mem_free(p);
    *out = NULL;
}

void pool_place(struct pool *p, struct topology *t)
{
    p->topology = t;
    for (int node = 0; t && node < topology_n_node(t); node++) {
        int first = topology_first_thread(t, node), end = topology_first_thread(t, node + 1);
        for (int i = first; i < end; i++) {
            p->shares[i].node_first = first;
            p->shares[i].node_end = end;
            if (i > 0)
                topology_bind_thread(t, p->workers[i].thread, node);
        }
    }
}

struct topology *pool_topology(const struct pool *p)
{
    return p->topology;
}

int pool_n_node(const struct pool *p)
{
    return topology_n_node(p->topology);
}

size_t pool_node_first(const struct pool *p, int node, size_t n)
{
    if (!p->topology)
        return node ? n : 0;
    return n * (size_t)topology_first_thread(p->topology, node) / (size_t)p->n_threads;
}

void pool_set_between(struct pool *p, void (*fn)(void *user), void *user)
{
    p->between = fn;
    p->between_user = user;
}

void pool_set_cancel(struct pool *p, const struct cancel *c)
{
    p->cancel = c;
    p->asked_ns = 0;
    atomic_store_explicit(&p->is_cancelled, false, memory_order_relaxed);
}

bool pool_is_cancelled(const struct pool *p)
{
    return atomic_load_explicit(&p->is_cancelled, memory_order_relaxed);
}

void pool_set_throttled(struct pool *p, bool is_throttled)
{
    p->is_throttled = is_throttled;
}

int pool_n_threads(const struct pool *p)
{
    return p->n_threads;
}

/* With more threads than processors a spinning thread keeps another from working. */
static void set_spin(struct pool *p, int n_used)
{
    atomic_store_explicit(&p->n_spin, n_used <= p->n_cpu ? p->max_spin : 0, memory_order_relaxed);
}

void pool_set_spin(struct pool *p, int n_spin)
{
    p->max_spin = n_spin;
    set_spin(p, pool_n_used(p));
}

void pool_use(struct pool *p, int n)
{
    assert(n >= 1 && n <= p->n_threads);
    if (n == pool_n_used(p))
        return;
    set_spin(p, n);
    atomic_store(&p->n_used.value, (unsigned)n);
    event_wake(&p->n_used);
}

int pool_n_used(const struct pool *p)
{
    return (int)atomic_load_explicit(&p->n_used.value, memory_order_relaxed);
}

struct pool_times pool_times(const struct pool *p)
{
    struct pool_times t = {.thread_ns = p->thread_ns};
    for (int i = 0; i < p->n_threads; i++) {
        t.busy_ns += p->shares[i].busy_ns;
        t.throttled_ns += atomic_load_explicit(&p->shares[i].throttled_ns, memory_order_relaxed);
    }
    return t;
}

/* A loop, to be shared out. */
struct pool_loop {
    pool_fn *fn;
    void *arg;
    int n_share, caller_cpu;
    bool may_throttle;
};

static struct pool_loop make_loop(const struct pool *p, pool_fn *fn, void *arg, int n_share)
{
    return (struct pool_loop){.fn = fn,
                              .arg = arg,
                              .n_share = n_share,
                              .caller_cpu = cpu_here(),
                              .may_throttle = p->is_throttled && !p->between && pool_n_used(p) <= p->n_cpu};
}

/* Threads [first, end) begin with equal shares of the tasks [from, to). */
static void share_out(struct pool *p, const struct pool_loop *l, int first, int end, size_t from, size_t to)
{
    uint64_t n_tasks = to - from, n = (uint64_t)(end - first);
    for (uint64_t i = 0; i < n; i++) {
        struct share *s = &p->shares[first + (int)i];
        unsigned n_started = atomic_load_explicit(&s->start.value, memory_order_relaxed);
        atomic_store_explicit(&s->fn, l->fn, memory_order_relaxed);
        atomic_store_explicit(&s->arg, l->arg, memory_order_relaxed);
        atomic_store_explicit(&s->n_share, (short)l->n_share, memory_order_relaxed);
        atomic_store_explicit(&s->caller_cpu, l->caller_cpu, memory_order_relaxed);
        atomic_store_explicit(&s->loop_ns, p->loop_ns, memory_order_relaxed);
        atomic_store_explicit(&s->may_throttle, l->may_throttle, memory_order_relaxed);
        atomic_store_explicit(&s->tasks, (from + n_tasks * (i + 1) / n) << 32 | (from + n_tasks * i / n),
                              memory_order_release);
        atomic_store_explicit(&s->start.value, n_started + 1, memory_order_release);
    }
}

static bool is_done(const struct pool *p, size_t goal)
{
    size_t n = 0;
    for (int i = 0; i < p->n_threads; i++)
        n += atomic_load(&p->shares[i].n_done);
    return n == goal;
}

/* Waits until all tasks of all loops are done. */
static void wait_done(struct pool *p)
{
    int n_spin = atomic_load_explicit(&p->n_spin, memory_order_relaxed);
    for (int i = 0; i < n_spin; i++) {
        if (is_done(p, p->n_done))
            return;
        cpu_relax();
    }
    atomic_fetch_add(&p->done.sleepers, 1);
    for (unsigned seen; seen = atomic_load(&p->done.value), !is_done(p, p->n_done);)
        syscall(SYS_futex, &p->done.value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&p->done.sleepers, 1);
}

/* The loop itself, of n_tasks, once they are shared out. */
static void run_shares(struct pool *p, int n_share, size_t n_tasks, int64_t begin_ns)
{
    atomic_thread_fence(memory_order_seq_cst); /* a thread that doesn't see the change is seen to sleep */
    for (int i = 1; i < n_share; i++)
        event_wake(&p->shares[i].start);
    p->n_done += n_tasks;
    run_tasks(p, 0);
    wait_done(p);
    int64_t took_ns = clock_ns() - begin_ns;
    p->thread_ns += pool_n_used(p) * took_ns;
    p->loop_ns += took_ns;
}

void pool_run(struct pool *p, size_t n_tasks, pool_fn *fn, void *arg)
{
    int n = pool_n_used(p);
    if (n == 1 || n_tasks <= 1) {
        for (size_t task = 0; task < n_tasks; task++) {
            fn(arg, task, 0);
            call_between(p);
        }
        return;
    }
    assert(n_tasks <= UINT32_MAX);
    int64_t begin_ns = clock_ns();
    const struct pool_loop l = make_loop(p, fn, arg, n);
    share_out(p, &l, 0, n, 0, n_tasks);
    run_shares(p, n, n_tasks, begin_ns);
}

void pool_run_nodes(struct pool *p, const size_t *first, pool_fn *fn, void *arg)
{
    int n_node = pool_n_node(p), n_used = pool_n_used(p);
    size_t n_tasks = first[n_node];
    if (n_node == 1 || n_used == 1 || n_tasks <= 1) {
        pool_run(p, n_tasks, fn, arg);
        return;
    }
    assert(n_tasks <= UINT32_MAX);
    int64_t begin_ns = clock_ns();
    const struct pool_loop l = make_loop(p, fn, arg, p->n_threads);
    for (int node = 0; node < n_node; node++) {
        /* the tasks of a node none of whose threads is used are its first one's, and others take them over */
        int begin = topology_first_thread(p->topology, node), all = topology_first_thread(p->topology, node + 1);
        int end = all < n_used ? all : n_used > begin ? n_used : begin + 1;
        share_out(p, &l, begin, end, first[node], first[node + 1]);
        share_out(p, &l, end, all, 0, 0);
    }
    run_shares(p, p->n_threads, n_tasks, begin_ns);
}
