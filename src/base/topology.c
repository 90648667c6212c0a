#define _GNU_SOURCE
#include "base/topology.h"

#include <assert.h>
#include <stdbool.h>

#include "base/mem.h"

void topology_plan(const int *n_core, int n_node, int n_threads, int *first)
{
    int n_all = 0, n = 0;
    for (int i = 0; i < n_node; i++)
        n_all += n_core[i];
    assert(n_all > 0);
    for (int i = 0; i <= n_node; i++) {
        first[i] = (2 * n_threads * n + n_all) / (2 * n_all);
        n += i < n_node ? n_core[i] : 0;
    }
}

#if defined(MOEBIUS_WITH_HWLOC)

#include <errno.h>
#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include <hwloc/glibc-sched.h>

struct memory_node {
    hwloc_bitmap_t cpus, memory;
};

struct topology {
    hwloc_topology_t hwloc;
    const struct log *log;
    int n_node;
    struct memory_node node[TOPOLOGY_MAX_NODE];
    int first_thread[TOPOLOGY_MAX_NODE + 1];
    hwloc_bitmap_t all_memory;
    /* the first node's processors and those that the calling thread had before it was bound; as sets of the C library,
     * since hwloc's own calls allocate memory each time */
    cpu_set_t first_cpus, callers;
    bool is_caller_bound;
    bool threads_refused, memory_refused; /* and that was said */
};

/* 0 when memory ran out */
static int count_cores(const struct topology *t, hwloc_const_bitmap_t cpus)
{
    hwloc_bitmap_t one_each = hwloc_bitmap_dup(cpus);
    int n = one_each && hwloc_bitmap_singlify_per_core(t->hwloc, one_each, 0) == 0 ? hwloc_bitmap_weight(one_each) : 0;
    hwloc_bitmap_free(one_each);
    return n;
}

/* Whether a node has memory and processors for us. */
static bool is_usable(hwloc_obj_t node, hwloc_const_bitmap_t cpus, hwloc_const_bitmap_t memory)
{
    return node->attr->numanode.local_memory > 0 && hwloc_bitmap_isset(memory, node->os_index) &&
           hwloc_bitmap_intersects(cpus, node->cpuset);
}

static hwloc_obj_t next_node(const struct topology *t, hwloc_obj_t node)
{
    return hwloc_get_next_obj_by_type(t->hwloc, HWLOC_OBJ_NUMANODE, node);
}

/* Whether there is a usable node that fewer processors are near to: a part of this one's. */
static bool has_nearer(const struct topology *t, hwloc_obj_t node, hwloc_const_bitmap_t cpus,
                       hwloc_const_bitmap_t memory)
{
    for (hwloc_obj_t o = next_node(t, NULL); o; o = next_node(t, o))
        if (is_usable(o, cpus, memory) && hwloc_bitmap_isincluded(o->cpuset, node->cpuset) &&
            !hwloc_bitmap_isequal(o->cpuset, node->cpuset))
            return true;
    return false;
}

/* Finds the nodes of the given processors and memory; takes from `cpus` what they get. Of two with the same processors
 * (fast memory beside the usual) the first counts. */
static bool find_nodes(struct topology *t, hwloc_bitmap_t cpus, hwloc_const_bitmap_t memory)
{
    bool ok = true;
    for (hwloc_obj_t o = next_node(t, NULL); ok && o && t->n_node < TOPOLOGY_MAX_NODE; o = next_node(t, o)) {
        if (!is_usable(o, cpus, memory) || has_nearer(t, o, cpus, memory))
            continue;
        struct memory_node *n = &t->node[t->n_node++];
        *n = (struct memory_node){hwloc_bitmap_alloc(), hwloc_bitmap_dup(o->nodeset)};
        ok = n->cpus && n->memory && hwloc_bitmap_and(n->cpus, cpus, o->cpuset) == 0 &&
             hwloc_bitmap_andnot(cpus, cpus, o->cpuset) == 0;
    }
    if (ok && t->n_node > 0) { /* what is left has no memory near it */
        struct memory_node *last = &t->node[t->n_node - 1];
        ok = hwloc_bitmap_or(last->cpus, last->cpus, cpus) == 0;
    }
    return ok;
}

/* The same for what the calling thread may use. */
static bool find_usable_nodes(struct topology *t)
{
    hwloc_bitmap_t cpus = hwloc_bitmap_alloc(), memory = hwloc_bitmap_alloc();
    hwloc_membind_policy_t policy;
    bool ok = cpus && memory && hwloc_get_cpubind(t->hwloc, cpus, HWLOC_CPUBIND_THREAD) == 0;
    if (ok && hwloc_get_membind(t->hwloc, memory, &policy, HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) != 0)
        ok = hwloc_bitmap_copy(memory, hwloc_topology_get_allowed_nodeset(t->hwloc)) == 0; /* that is forbidden, too */
    ok = ok && find_nodes(t, cpus, memory);
    hwloc_bitmap_free(cpus);
    hwloc_bitmap_free(memory);
    return ok;
}

static void free_node(struct memory_node *n)
{
    hwloc_bitmap_free(n->cpus);
    hwloc_bitmap_free(n->memory);
}

/* Shares the threads out and keeps the nodes that got some. */
static bool plan(struct topology *t, int n_threads)
{
    int n_core[TOPOLOGY_MAX_NODE], first[TOPOLOGY_MAX_NODE + 1], n = 0;
    for (int i = 0; i < t->n_node; i++)
        if ((n_core[i] = count_cores(t, t->node[i].cpus)) == 0)
            return false;
    if (t->n_node > 0)
        topology_plan(n_core, t->n_node, n_threads, first);
    for (int i = 0; i < t->n_node; i++) {
        if (first[i] == first[i + 1]) {
            free_node(&t->node[i]);
            continue;
        }
        t->node[n] = t->node[i];
        t->first_thread[n++] = first[i];
    }
    t->n_node = n;
    t->first_thread[n] = n_threads;
    t->all_memory = hwloc_bitmap_alloc();
    bool ok = n > 1 && t->all_memory &&
              !hwloc_cpuset_to_glibc_sched_affinity(t->hwloc, t->node[0].cpus, &t->first_cpus, sizeof t->first_cpus);
    for (int i = 0; ok && i < n; i++)
        ok = hwloc_bitmap_or(t->all_memory, t->all_memory, t->node[i].memory) == 0;
    return ok;
}

/* Where /sys says nothing of processors, as in some sandboxes, hwloc's discovery for Linux complains on standard error
 * and gives up: the processors are then counted without it, as one node. */
static bool prepare_discovery(struct topology *t)
{
    return access("/sys/devices/system/cpu/cpu0/topology", F_OK) == 0 ||
           hwloc_topology_set_components(t->hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "linux") == 0;
}

/* hwloc doesn't look at what malloc returns, and crashes where memory is short: so it is asked only where there is more
 * than it takes. The memory is not malloc's, which may fill it. */
static bool has_room(void)
{
    enum { ROOM_BYTES = 32 << 20 };
    void *room = mem_reserve(ROOM_BYTES);
    mem_unreserve(room, ROOM_BYTES, 0, MEM_SCRATCH);
    return room != NULL;
}

/* hwloc loads its plugins for the first topology and unloads them with the last: this one, which is never closed, keeps
 * them, as that takes longer than discovery. */
static void keep_plugins(void)
{
    static hwloc_topology_t kept;
    (void)!hwloc_topology_init(&kept);
}

static bool discover(struct topology *t)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, keep_plugins);
    return hwloc_topology_init(&t->hwloc) == 0 &&
           hwloc_topology_set_flags(t->hwloc, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING) == 0 && prepare_discovery(t) &&
           hwloc_topology_load(t->hwloc) == 0;
}

struct topology *topology_open(int n_threads, const struct log *log)
{
    struct topology *t = has_room() ? mem_calloc(1, sizeof *t) : NULL;
    if (!t)
        return NULL;
    t->log = log;
    if (!discover(t) || !find_usable_nodes(t) || !plan(t, n_threads))
        topology_close(&t);
    return t;
}

static uint64_t cache_bytes(const struct topology *t, hwloc_obj_type_t type)
{
    uint64_t n = 0;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(t->hwloc, type, o)) != NULL;)
        n += o->attr->cache.size;
    return n;
}

static int count(const struct topology *t, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(t->hwloc, type);
    return n > 0 ? n : 0;
}

void topology_count(struct topology_counts *out)
{
    struct topology *t = has_room() ? mem_calloc(1, sizeof *t) : NULL;
    *out = (struct topology_counts){0};
    if (t && discover(t))
        *out = (struct topology_counts){.n_socket = count(t, HWLOC_OBJ_PACKAGE),
                                        .n_core = count(t, HWLOC_OBJ_CORE),
                                        .l2_bytes = cache_bytes(t, HWLOC_OBJ_L2CACHE),
                                        .l3_bytes = cache_bytes(t, HWLOC_OBJ_L3CACHE)};
    topology_close(&t);
}

void topology_close(struct topology **out)
{
    struct topology *t = *out;
    if (!t)
        return;
    for (int i = 0; i < t->n_node; i++)
        free_node(&t->node[i]);
    hwloc_bitmap_free(t->all_memory);
    if (t->hwloc)
        hwloc_topology_destroy(t->hwloc);
    mem_free(t);
    *out = NULL;
}

int topology_n_node(const struct topology *t)
{
    return t ? t->n_node : 1;
}

int topology_first_thread(const struct topology *t, int node)
{
    return t->first_thread[node];
}

/* One warning for all that the system doesn't permit of a kind. */
static void refused(const struct topology *t, bool *was_said, const char *what)
{
    if (!*was_said)
        log_line(t->log, LOG_WARN, "%s: %s", what, strerror(errno));
    *was_said = true;
}

static void refused_threads(struct topology *t)
{
    refused(t, &t->threads_refused, "threads can't be bound to memory nodes, and may run far from their memory");
}

static void refused_memory(struct topology *t)
{
    refused(t, &t->memory_refused, "memory can't be bound to nodes, and lies where it is first written");
}

void topology_bind_thread(struct topology *t, pthread_t thread, int node)
{
    if (hwloc_set_thread_cpubind(t->hwloc, thread, t->node[node].cpus, 0) != 0)
        refused_threads(t);
}

void topology_bind_caller(struct topology *t)
{
    if (!t || t->is_caller_bound)
        return;
    t->is_caller_bound = sched_getaffinity(0, sizeof t->callers, &t->callers) == 0 &&
                         sched_setaffinity(0, sizeof t->first_cpus, &t->first_cpus) == 0;
    if (!t->is_caller_bound)
        refused_threads(t);
}

void topology_release_caller(struct topology *t)
{
    if (!t || !t->is_caller_bound)
        return;
    if (sched_setaffinity(0, sizeof t->callers, &t->callers) != 0)
        refused_threads(t);
    t->is_caller_bound = false;
}

/* Without HWLOC_MEMBIND_STRICT a full node gives way to others. */
static void bind_memory(struct topology *t, void *p, size_t n_bytes, hwloc_const_bitmap_t nodes,
                        hwloc_membind_policy_t policy)
{
    if (n_bytes && hwloc_set_area_membind(t->hwloc, p, n_bytes, nodes, policy, HWLOC_MEMBIND_BYNODESET) != 0)
        refused_memory(t);
}

void topology_bind_memory(struct topology *t, void *p, size_t n_bytes, int node)
{
    if (t)
        bind_memory(t, p, n_bytes, t->node[node].memory, HWLOC_MEMBIND_BIND);
}

void topology_interleave_memory(struct topology *t, void *p, size_t n_bytes)
{
    if (t)
        bind_memory(t, p, n_bytes, t->all_memory, HWLOC_MEMBIND_INTERLEAVE);
}

#else

void topology_count(struct topology_counts *out)
{
    *out = (struct topology_counts){0};
}

struct topology *topology_open(int n_threads, const struct log *log)
{
    return NULL;
}

void topology_close(struct topology **t)
{
}

int topology_n_node(const struct topology *t)
{
    return 1;
}

int topology_first_thread(const struct topology *t, int node)
{
    return 0;
}

void topology_bind_thread(struct topology *t, pthread_t thread, int node)
{
}

void topology_bind_caller(struct topology *t)
{
}

void topology_release_caller(struct topology *t)
{
}

void topology_bind_memory(struct topology *t, void *p, size_t n_bytes, int node)
{
}

void topology_interleave_memory(struct topology *t, void *p, size_t n_bytes)
{
}

#endif
