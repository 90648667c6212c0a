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
#include "base/mem.h"
#include "base/pace.h"
#include "base/topology.h"

/* A loop of decode lasts tens of microseconds, a sleep and wake-up about as long: spin about that long first. */
enum { N_SPIN = 2000, CACHE_LINE = 64 };

/* A word to wait on. `sleepers` spares the waker a system call. */
struct event {
    _Alignas(CACHE_LINE) atomic_uint value;
    atomic_uint sleepers;
};

/* The tasks that a thread begins with and that nobody has taken yet, [first, end): end in the upper half. The thread
 * takes the first, others the last. */
struct share {
    _Alignas(CACHE_LINE) atomic_uint_least64_t tasks;
    int64_t busy_ns;              /* of the thread, so far; its own to write */
    int node_first, node_end;     /* the threads of its node */
    atomic_int_least64_t rest_ns; /* between its tasks */
    struct pace pace;
    bool is_unpaced; /* in a loop whose caller has other things to do: idle time says nothing about cores then */
};

struct pool {
    struct event start;    /* counts loops; a change starts one */
    struct event n_inside; /* workers that look at the loop, or work on it */
    struct event n_used;   /* threads that loops use, the caller counted; the others wait here */
    atomic_bool open;      /* there is a loop to join: fn, arg and the shares are its */
    struct share *shares;  /* [n_threads], n_share of them in the loop */
    struct topology *topology;
    int n_share;
    pool_fn *fn;
    void *arg;
    void (*between)(void *user); /* NULL: nothing */
    void *between_user;
    int64_t thread_ns;
    atomic_int_least64_t loop_ns; /* that loops of several threads took so far */
    atomic_int caller_cpu;        /* where the thread runs that runs the loop */
    atomic_bool stop;
    int n_spin;
    int n_threads, n_started; /* both count the caller */
    struct worker {
        struct pool *pool;
        pthread_t thread;
        int index;
    } workers[];
};

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* waits about as long; `yield` doesn't wait at all on most processors */
#endif
}

static void event_wake(struct event *ev)
{
    if (atomic_load(&ev->sleepers))
        syscall(SYS_futex, &ev->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Waits until the value equals `goal` (or, with `differ`, no longer equals it): spins, then sleeps in the kernel.
 * Returns how long it slept. */
static int64_t event_wait(struct event *ev, unsigned goal, bool differ, int n_spin)
{
    for (int i = 0; i < n_spin; i++) {
        if ((atomic_load(&ev->value) == goal) != differ)
            return 0;
        cpu_relax();
    }
    int64_t begin_ns = clock_ns();
    atomic_fetch_add(&ev->sleepers, 1);
    for (;;) {
        unsigned now = atomic_load(&ev->value);
        if ((now == goal) != differ)
            break;
        syscall(SYS_futex, &ev->value, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
    }
    atomic_fetch_sub(&ev->sleepers, 1);
    return clock_ns() - begin_ns;
}

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
        !atomic_compare_exchange_weak_explicit(&s->tasks, &tasks, left, memory_order_relaxed, memory_order_relaxed));
    return true;
}

static void call_between(struct pool *p)
{
    if (p->between)
        p->between(p->between_user);
}

/* The i-th share that a thread looks at: its own, those of its node, the others. */
static struct share *ith_share(const struct pool *p, int thread, int i)
{
    int first = p->shares[thread].node_first, end = p->shares[thread].node_end;
    int n = (end < p->n_share ? end : p->n_share) - first;
    return &p->shares[i < n ? first + (thread - first + i) % n : (first + i) % p->n_share];
}

static bool is_tired(const struct share *s)
{
    return s->pace.rests_until_ns && pace_is_due(&s->pace, &(struct pace_clock){.now_ns = clock_ns()});
}

/* A thread's own share, then what others have not got to. True: it leaves that to them, to rest. */
static bool run_tasks(struct pool *p, int thread)
{
    struct share *own = &p->shares[thread];
    size_t task;
    int64_t begin_ns = clock_ns();
    bool leaves = false;
    own->is_unpaced = p->between != NULL;
    for (int i = 0, n = p->n_share; i < n && !leaves; i++) {
        struct share *s = ith_share(p, thread, i);
        while (!leaves && take_task(s, i == 0, &task)) {
            p->fn(p->arg, task, thread);
            if (thread == 0)
                call_between(p);
            else
                leaves = is_tired(own);
        }
    }
    own->busy_ns += clock_ns() - begin_ns;
    return leaves;
}

/* Waits for a change. A single worker has nothing to do in the middle of loops only if the caller has lost its core,
 * and then should make room: for it such sleep counts as lost. */
static void wait_change(struct worker *w, struct event *ev, unsigned seen, int n_spin)
{
    int64_t slept_ns = event_wait(ev, seen, true, n_spin);
    if (w->pool->n_threads > 2)
        w->pool->shares[w->index].pace.slept_ns += slept_ns;
}

/* Sleeps, if it is time to, and sees to it that who works in bursts doesn't do so where the caller works. */
static void keep_pace(struct worker *w)
{
    struct pool *p = w->pool;
    struct share *own = &p->shares[w->index];
    struct pace_clock now = {.now_ns = clock_ns(), .loop_ns = atomic_load_explicit(&p->loop_ns, memory_order_relaxed)};
    if (own->is_unpaced)
        own->pace = (struct pace){0};
    else if (pace_is_due(&own->pace, &now)) {
        now.run_ns = clock_thread_ns();
        int64_t rest_ns = pace_rest_ns(&own->pace, &now);
        if (rest_ns > 0)
            clock_sleep_ns(rest_ns);
        atomic_fetch_add_explicit(&own->rest_ns, rest_ns, memory_order_relaxed);
    }
    if (own->pace.rests_until_ns && cpu_here() == atomic_load_explicit(&p->caller_cpu, memory_order_relaxed))
        cpu_leave();
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    bool is_late = false; /* for a loop that it has left */
    for (unsigned seen = 0, n_used;;) {
        if (!is_late)
            wait_change(w, &p->start, seen, p->n_spin);
        keep_pace(w);
        seen = atomic_load(&p->start.value);
        while (n_used = atomic_load(&p->n_used.value), (unsigned)w->index >= n_used)
            wait_change(w, &p->n_used, n_used, 0);
        if (atomic_load(&p->stop))
            return NULL;
        /* Whoever comes late finds the loop closed and is not waited for. Either this sees that it is closed, or who
         * closed it sees that somebody is inside. */
        atomic_fetch_add(&p->n_inside.value, 1);
        is_late = atomic_load(&p->open) && run_tasks(p, w->index);
        if (atomic_fetch_sub(&p->n_inside.value, 1) == 1)
            event_wake(&p->n_inside);
    }
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
    *p = (struct pool){.n_threads = n_threads, .n_started = 1, .n_used.value = (unsigned)n_threads};
    *out = p;
    p->shares = mem_alloc_aligned(CACHE_LINE, (size_t)n_threads * sizeof *p->shares);
    if (!p->shares) {
        pool_close(out);
        return err_nomem(e, (size_t)n_threads * sizeof *p->shares, "the thread pool");
    }
    for (int i = 0; i < n_threads; i++)
        p->shares[i] = (struct share){.node_end = n_threads};
    p->n_spin = n_threads <= cpu_n_available() ? N_SPIN : 0; /* else who spins keeps another from working */
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

static void start_workers(struct pool *p)
{
    atomic_fetch_add(&p->start.value, 1);
    event_wake(&p->start);
}

void pool_close(struct pool **out)
{
    struct pool *p = *out;
    if (!p)
        return;
    atomic_store(&p->stop, true);
    pool_use(p, p->n_threads);
    start_workers(p);
    for (int i = 1; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
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

int pool_n_threads(const struct pool *p)
{
    return p->n_threads;
}

void pool_use(struct pool *p, int n)
{
    assert(n >= 1 && n <= p->n_threads);
    atomic_store(&p->n_used.value, (unsigned)n);
    event_wake(&p->n_used);
}

struct pool_times pool_times(const struct pool *p)
{
    struct pool_times t = {.thread_ns = p->thread_ns};
    for (int i = 0; i < p->n_threads; i++) {
        t.busy_ns += p->shares[i].busy_ns;
        t.rest_ns += atomic_load_explicit(&p->shares[i].rest_ns, memory_order_relaxed);
    }
    return t;
}

/* Threads [first, end) begin with equal shares of the tasks [from, to). */
static void share_out(struct pool *p, int first, int end, size_t from, size_t to)
{
    uint64_t n_tasks = to - from, n = (uint64_t)(end - first);
    for (uint64_t i = 0; i < n; i++)
        atomic_store_explicit(&p->shares[first + (int)i].tasks,
                              (from + n_tasks * (i + 1) / n) << 32 | (from + n_tasks * i / n), memory_order_relaxed);
}

/* The loop itself, once the tasks are in the first n_share shares. */
static void run_shares(struct pool *p, int n_share, pool_fn *fn, void *arg)
{
    unsigned n = atomic_load_explicit(&p->n_used.value, memory_order_relaxed);
    int64_t begin_ns = clock_ns(), took_ns;
    atomic_store_explicit(&p->caller_cpu, cpu_here(), memory_order_relaxed);
    p->fn = fn;
    p->arg = arg;
    p->n_share = n_share;
    atomic_store(&p->open, true);
    start_workers(p);
    run_tasks(p, 0);
    atomic_store(&p->open, false);
    event_wait(&p->n_inside, 0, false, p->n_spin);
    took_ns = clock_ns() - begin_ns;
    p->thread_ns += (int64_t)n * took_ns;
    atomic_fetch_add_explicit(&p->loop_ns, took_ns, memory_order_relaxed);
}

void pool_run(struct pool *p, size_t n_tasks, pool_fn *fn, void *arg)
{
    int n = (int)atomic_load_explicit(&p->n_used.value, memory_order_relaxed);
    if (n == 1 || n_tasks <= 1) {
        for (size_t task = 0; task < n_tasks; task++) {
            fn(arg, task, 0);
            call_between(p);
        }
        return;
    }
    assert(n_tasks <= UINT32_MAX);
    share_out(p, 0, n, 0, n_tasks);
    run_shares(p, n, fn, arg);
}

void pool_run_nodes(struct pool *p, const size_t *first, pool_fn *fn, void *arg)
{
    int n_node = pool_n_node(p), n_used = (int)atomic_load_explicit(&p->n_used.value, memory_order_relaxed);
    size_t n_tasks = first[n_node];
    if (n_node == 1 || n_used == 1 || n_tasks <= 1) {
        pool_run(p, n_tasks, fn, arg);
        return;
    }
    assert(n_tasks <= UINT32_MAX);
    for (int node = 0; node < n_node; node++) {
        /* the tasks of a node none of whose threads is used are its first one's, and others take them over */
        int begin = topology_first_thread(p->topology, node), all = topology_first_thread(p->topology, node + 1);
        int end = all < n_used ? all : n_used > begin ? n_used : begin + 1;
        share_out(p, begin, end, first[node], first[node + 1]);
        share_out(p, end, all, 0, 0);
    }
    run_shares(p, p->n_threads, fn, arg);
}
