/* Memory nodes: what hwloc's made-up machines become, the threads' shares, and what the caller's thread has afterwards.
 * HWLOC_SYNTHETIC describes a machine; with HWLOC_THISSYSTEM hwloc binds to it as if it were this one. */
#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/pool.h"
#include "base/topology.h"
#include "moebius/moebius.h"

static void threads_are_shared_out_by_cores(void **state)
{
    static const struct {
        int n_core[4], n_node, n_threads, first[5];
    } cases[] = {
        {{4, 4}, 2, 8, {0, 4, 8}},
        {{4, 4}, 2, 4, {0, 2, 4}},
        {{4, 4}, 2, 3, {0, 2, 3}},
        {{4, 4}, 2, 1, {0, 1, 1}},
        {{4, 4}, 2, 20, {0, 10, 20}}, /* more than cores */
        {{6, 2}, 2, 8, {0, 6, 8}},
        {{6, 2}, 2, 4, {0, 3, 4}},
        {{1, 1}, 2, 255, {0, 128, 255}},
        {{8, 8, 8, 8}, 4, 2, {0, 1, 1, 2, 2}}, /* fewer than nodes: as far from each other as can be */
        {{8, 1, 8}, 3, 2, {0, 1, 1, 2}},
        {{3}, 1, 7, {0, 7}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int first[5] = {0};
        topology_plan(cases[i].n_core, cases[i].n_node, cases[i].n_threads, first);
        assert_memory_equal(first, cases[i].first, (size_t)(cases[i].n_node + 1) * sizeof *first);
    }
}

static void skip_without_hwloc(void)
{
    if (!strstr(moebius_build_info(), "hwloc"))
        skip();
}

/* The topology of a made-up machine, in hwloc's words. */
static struct topology *open_synthetic(const char *machine, int n_threads)
{
    setenv("HWLOC_SYNTHETIC", machine, 1);
    struct topology *t = topology_open(n_threads, NULL);
    unsetenv("HWLOC_SYNTHETIC");
    return t;
}

static void machines_have_the_nodes_that_get_threads(void **state)
{
    static const struct {
        const char *machine;
        int n_threads, n_node, first[5];
    } cases[] = {
        {"numa:2 core:4 pu:1", 8, 2, {0, 4, 8}},
        {"numa:2 core:4 pu:2", 4, 2, {0, 2, 4}},
        {"numa:2 core:4 pu:1", 100, 2, {0, 50, 100}},
        {"numa:4 core:2 pu:1", 2, 2, {0, 1, 2}},
        {"pack:2 numa:2 core:3 pu:2", 12, 4, {0, 3, 6, 9, 12}},
        /* memory that is as near to all processors, and fast memory beside the usual */
        {"[numa(memory=1GB)] pack:2 [numa(memory=1GB)] core:2 pu:1", 4, 2, {0, 2, 4}},
        {"pack:2 [numa(memory=1GB)] [numa(memory=1GB)] core:2 pu:1", 4, 2, {0, 2, 4}},
        {"numa:20 core:1 pu:1", 20, TOPOLOGY_MAX_NODE, {0, 1, 2, 3, 4}}, /* the last one has the rest, too */
    };
    skip_without_hwloc();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct topology *t = open_synthetic(cases[i].machine, cases[i].n_threads);
        assert_int_equal(topology_n_node(t), cases[i].n_node);
        for (int j = 0; j <= cases[i].n_node && j < 5; j++)
            assert_int_equal(topology_first_thread(t, j), cases[i].first[j]);
        assert_int_equal(topology_first_thread(t, cases[i].n_node), cases[i].n_threads);
        topology_close(&t);
    }
}

static void one_node_is_no_topology(void **state)
{
    static const char *const machines[] = {"numa:1 core:4 pu:2", "core:4 pu:2",
                                           "[numa(memory=1GB)] pack:2 core:4 pu:1"};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        assert_null(open_synthetic(machines[i], 8));
    assert_null(open_synthetic("numa:2 core:4 pu:1", 1)); /* the thread is on one of the two */
    assert_int_equal(topology_n_node(NULL), 1);
    topology_bind_caller(NULL);
    topology_release_caller(NULL);
    topology_bind_memory(NULL, NULL, 1, 1);
    topology_interleave_memory(NULL, NULL, 1);
}

/* Packages of some cores with a node each, as hwloc writes machines down; in the form that it reads without libxml,
 * which is a package of its own. */
struct machine {
    int n_node, n_core[4];
    bool has_memory[4];
};

static void write_object(FILE *f, const char *type, int index, unsigned cpus, unsigned nodes, const char *more)
{
    static int id;
    fprintf(f,
            "<object type=\"%s\" os_index=\"%d\" cpuset=\"0x%x\" complete_cpuset=\"0x%x\" nodeset=\"0x%x\" "
            "complete_nodeset=\"0x%x\" gp_index=\"%d\" %s\n",
            type, index, cpus, cpus, nodes, nodes, ++id, more);
}

static struct topology *open_machine(const struct machine *m, int n_threads)
{
    char path[] = "/tmp/moebius-machine-XXXXXX";
    int n_core = 0;
    FILE *f = fdopen(mkstemp(path), "w");
    assert_non_null(f);
    for (int i = 0; i < m->n_node; i++)
        n_core += m->n_core[i];
    fprintf(f, "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n");
    write_object(f, "Machine", 0, (1u << n_core) - 1, (1u << m->n_node) - 1, ">");
    for (int i = 0, core = 0; i < m->n_node; i++) {
        unsigned cpus = ((1u << m->n_core[i]) - 1) << core, node = 1u << i;
        write_object(f, "Package", i, cpus, node, ">");
        write_object(f, "NUMANode", i, cpus, node, m->has_memory[i] ? "local_memory=\"1073741824\"/>" : "/>");
        for (int end = core + m->n_core[i]; core < end; core++) {
            write_object(f, "Core", core, 1u << core, node, ">");
            write_object(f, "PU", core, 1u << core, node, "/>");
            fprintf(f, "</object>\n");
        }
        fprintf(f, "</object>\n");
    }
    fprintf(f, "</object>\n</topology>\n");
    fclose(f);
    setenv("HWLOC_XMLFILE", path, 1);
    struct topology *t = topology_open(n_threads, NULL);
    unsetenv("HWLOC_XMLFILE");
    unlink(path);
    return t;
}

static void uneven_nodes_and_nodes_without_memory(void **state)
{
    static const struct {
        struct machine machine;
        int n_threads, n_node, first[5];
    } cases[] = {
        {{2, {6, 2}, {true, true}}, 8, 2, {0, 6, 8}},
        {{3, {4, 1, 7}, {true, true, true}}, 12, 3, {0, 4, 5, 12}},
        {{3, {4, 4, 4}, {true, false, true}}, 12, 2, {0, 4, 12}}, /* the last has the other's cores */
        {{3, {4, 4, 4}, {true, true, false}}, 6, 2, {0, 2, 6}},
        {{3, {8, 1, 8}, {true, true, true}}, 2, 2, {0, 1, 2}},
    };
    skip_without_hwloc();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct topology *t = open_machine(&cases[i].machine, cases[i].n_threads);
        assert_int_equal(topology_n_node(t), cases[i].n_node);
        for (int j = 0; j <= cases[i].n_node; j++)
            assert_int_equal(topology_first_thread(t, j), cases[i].first[j]);
        topology_close(&t);
    }
    assert_null(open_machine(&(struct machine){2, {4, 4}, {true, false}}, 8));
}

/* ---- binding ------------------------------------------------------------------------------------------------- */

/* Two nodes of one processor each, in place of this machine: hwloc then binds for real. Skips where there is no second
 * processor. */
static struct topology *open_two(int n_threads, const struct log *log)
{
    cpu_set_t cpus;
    skip_without_hwloc();
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0 || !CPU_ISSET(0, &cpus) || !CPU_ISSET(1, &cpus))
        skip();
    setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    struct topology *t = topology_open(n_threads, log);
    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_THISSYSTEM");
    assert_int_equal(topology_n_node(t), 2);
    return t;
}

static void the_caller_gets_its_processors_back(void **state)
{
    cpu_set_t before, now;
    struct topology *t = open_two(2, NULL);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    for (int i = 0; i < 2; i++) {
        topology_bind_caller(t);
        topology_bind_caller(t); /* calls within calls */
        sched_getaffinity(0, sizeof now, &now);
        assert_true(CPU_COUNT(&now) == 1 && CPU_ISSET(0, &now));
        topology_release_caller(t);
        topology_release_caller(t);
        sched_getaffinity(0, sizeof now, &now);
        assert_true(CPU_EQUAL(&now, &before));
    }
    topology_close(&t);
}

static void affinity_decides_what_may_be_used(void **state)
{
    cpu_set_t before, one;
    struct topology *two = open_two(2, NULL);
    topology_close(&two);
    sched_getaffinity(0, sizeof before, &before);
    CPU_ZERO(&one);
    CPU_SET(1, &one);
    sched_setaffinity(0, sizeof one, &one);
    setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    struct topology *t = topology_open(2, NULL);
    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_THISSYSTEM");
    sched_setaffinity(0, sizeof before, &before);
    assert_null(t);
}

static void count_line(void *user, enum log_level level, const char *line)
{
    assert_int_equal(level, LOG_WARN);
    ++*(int *)user;
}

static void what_is_not_permitted_is_said_once(void **state)
{
    int n = 0;
    const struct log log = {count_line, &n};
    struct topology *t = open_two(2, &log);
    char *p = NULL;
    for (int i = 0; i < 3; i++) { /* nobody's memory, which no system places */
        topology_bind_memory(t, p, 4096, 0);
        topology_interleave_memory(t, p, 4096);
    }
    assert_int_equal(n, 1);
    topology_close(&t);
}

/* ---- loops --------------------------------------------------------------------------------------------------- */

enum { N_TASK = 1000 };

struct tally {
    atomic_int hits[N_TASK];
    atomic_int n_strange; /* on a thread of the other node */
    size_t first[3];
    struct topology *t;
    int slow; /* a thread that does nothing before the others have done it all; -1: none */
    atomic_int n_done;
};

static void count_task(void *arg, size_t task, int thread)
{
    struct tally *t = arg;
    int node = task >= t->first[1];
    while (thread == t->slow && atomic_load(&t->n_done) < N_TASK - 1)
        sched_yield();
    if (thread < topology_first_thread(t->t, node) || thread >= topology_first_thread(t->t, node + 1))
        atomic_fetch_add(&t->n_strange, 1);
    atomic_fetch_add(&t->hits[task], 1);
    atomic_fetch_add(&t->n_done, 1);
}

static void loops_give_each_node_its_tasks_and_each_task_a_thread(void **state)
{
    struct err e = {0};
    for (int n = 2; n <= 4; n++) {
        struct pool *p;
        struct topology *t = open_two(n, NULL);
        assert_int_equal(pool_create(&p, n, &e), ERR_OK);
        pool_place(p, t);
        assert_int_equal(pool_n_node(p), 2);
        assert_int_equal(pool_node_first(p, 0, N_TASK), 0);
        assert_int_equal(pool_node_first(p, 1, N_TASK), N_TASK * topology_first_thread(t, 1) / n);
        assert_int_equal(pool_node_first(p, 2, N_TASK), N_TASK);
        for (int round = 0; round < 200; round++) {
            struct tally c = {.t = t, .first = {0, (size_t)(round * 37 % (N_TASK + 1)), N_TASK}, .slow = -1};
            pool_use(p, 1 + round % n); /* some of the threads: whole nodes have none then */
            pool_run_nodes(p, c.first, count_task, &c);
            for (int i = 0; i < N_TASK; i++)
                assert_int_equal(c.hits[i], 1);
        }
        pool_use(p, n);
        /* one thread waits for the others to do all: they must have taken its node's tasks over */
        struct tally c = {.t = t, .first = {0, N_TASK / 2, N_TASK}, .slow = n - 1};
        pool_run_nodes(p, c.first, count_task, &c);
        for (int i = 0; i < N_TASK; i++)
            assert_int_equal(c.hits[i], 1);
        if (n == 2) /* its node has nobody else */
            assert_true(c.n_strange >= N_TASK / 2 - 1);
        pool_close(&p);
        topology_close(&t);
    }
}

/* Takes all memory that the process may have but for `n_left` KiB, and looks for nodes. */
static void look_with_little_memory(int n_left)
{
    static void *blocks[1 << 16];
    enum { N_BLOCK = sizeof blocks / sizeof *blocks };
    const struct rlimit little = {8 << 20, 8 << 20}; /* less than there is already */
    int n = 0;
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler would go on with the next test */
    signal(SIGABRT, SIG_DFL);
    if (setrlimit(RLIMIT_AS, &little) != 0)
        _exit(1);
    while (n < N_BLOCK && (blocks[n] = malloc(1000)))
        n++;
    for (int i = n > n_left ? n - n_left : 0; i < n; i++)
        free(blocks[i]);
    struct topology *t = topology_open(2, NULL);
    topology_close(&t);
    _exit(0);
}

static void short_memory_is_no_crash(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* the sanitizer's memory is address space, too */
#endif
    for (int n_left = 1; n_left < 400; n_left += 3) {
        int status = -1;
        pid_t child = fork();
        if (child == 0)
            look_with_little_memory(n_left);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_memory_is_no_crash),
        cmocka_unit_test(threads_are_shared_out_by_cores),
        cmocka_unit_test(machines_have_the_nodes_that_get_threads),
        cmocka_unit_test(one_node_is_no_topology),
        cmocka_unit_test(uneven_nodes_and_nodes_without_memory),
        cmocka_unit_test(the_caller_gets_its_processors_back),
        cmocka_unit_test(affinity_decides_what_may_be_used),
        cmocka_unit_test(what_is_not_permitted_is_said_once),
        cmocka_unit_test(loops_give_each_node_its_tasks_and_each_task_a_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
