#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/random.h"
#include "base/siphash.h"
#include "base/split_set.h"

static void error_carries_code_and_sentence(void **state)
{
    struct err e = {0};
    assert_int_equal(err_set(&e, ERR_IO, "read %d of %d", 3, 4), ERR_IO);
    err_prefix(&e, "file %s", "x");
    assert_string_equal(e.text, "file x: read 3 of 4");
    assert_int_equal(e.code, ERR_IO);
    assert_string_equal(err_code_text(ERR_IO), "input/output error");
}

static void text_is_printed_into_memory_of_its_own(void **state)
{
    char *text = mem_print("%s/%d", "folder", 12);
    assert_string_equal(text, "folder/12");
    mem_free(text);
}

static void sizes_are_checked(void **state)
{
    size_t n = 7;
    assert_false(mem_mul(SIZE_MAX / 2, 3, &n));
    assert_false(mem_add(SIZE_MAX, 1, &n));
    assert_int_equal(n, 7);
    assert_null(mem_resize(NULL, SIZE_MAX / 2, 4));
    struct arena a = {0};
    assert_null(arena_calloc(&a, SIZE_MAX / 2, 4));
    arena_close(&a);
}

static void arrays_grow_to_twice_their_size_or_stay_as_they_are(void **state)
{
    uint64_t *items = NULL;
    size_t capacity = 0, at_most = 0;
    struct err e;
    for (size_t i = 0; i < 1000; i++) {
        size_t before = capacity;
        assert_int_equal(mem_grow(&items, &capacity, i + 1, sizeof *items, "items", &e), ERR_OK);
        assert_true(capacity > i && (capacity == before || capacity >= 2 * before));
        at_most += capacity != before;
        items[i] = i;
    }
    assert_true(at_most < 10);
    assert_int_equal(mem_grow(&items, &capacity, 5 * capacity, sizeof *items, "items", &e), ERR_OK);
    uint64_t *kept = items;
    size_t kept_capacity = capacity;
    assert_int_equal(mem_grow(&items, &capacity, SIZE_MAX / 4, sizeof *items, "items", &e), ERR_NOMEM);
    assert_non_null(strstr(e.text, "for items"));
    assert_true(items == kept && capacity == kept_capacity);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(items[i], i);
    mem_free(items);
}

static void mapped_memory_is_zero_aligned_and_counted(void **state)
{
    size_t before = mem_mapped_bytes(MEM_SCRATCH), n = (size_t)5 << 20;
    char *p = mem_map(n, MEM_SCRATCH);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % (2 << 20), 0);
    for (size_t i = 0; i < n; i += 997)
        assert_int_equal(p[i], 0);
    assert_true(mem_mapped_bytes(MEM_SCRATCH) - before >= n);
    mem_unmap(p, n, MEM_SCRATCH);
    assert_int_equal(mem_mapped_bytes(MEM_SCRATCH), before);
}

static unsigned long meminfo(const char *name)
{
    char line[128], *colon;
    unsigned long n = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if ((colon = strchr(line, ':')) && (size_t)(colon - line) == strlen(name) && !strncmp(line, name, strlen(name)))
            n = strtoul(colon + 1, NULL, 10);
    fclose(f);
    return n;
}

/* KiB of the pages that a mapping is made of; those that the system merges don't count. */
static unsigned long page_kib(const void *p)
{
    char line[512];
    unsigned long from = 0, to = 0, a, b, kib = 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    assert_non_null(f);
    while (kib == 0 && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &a, &b) == 2) {
            from = a;
            to = b;
        }
        if ((uintptr_t)p >= from && (uintptr_t)p < to)
            (void)sscanf(line, "KernelPageSize: %lu kB", &kib);
    }
    fclose(f);
    return kib;
}

static void memory_comes_from_pages_set_aside_as_far_as_they_go(void **state)
{
    bool has_some = meminfo("Hugepagesize") == 2048 && meminfo("HugePages_Free") >= 2 + meminfo("HugePages_Rsvd");
    size_t n = (size_t)3 << 20, n_small = 4096, n_too_much = (meminfo("HugePages_Total") + 1) << 21;
    unsigned long page = (unsigned long)sysconf(_SC_PAGESIZE) / 1024;
    mem_hugetlb_begin();
    char *p = mem_map(n, MEM_SCRATCH), *small = mem_map(n_small, MEM_SCRATCH), *too_much = mem_reserve(n_too_much);
    size_t n_elsewhere = mem_hugetlb_end();
    char *after = mem_map(n, MEM_SCRATCH);
    assert_true(p && small && too_much && after);
    assert_int_equal((uintptr_t)p % (2 << 20), 0);
    for (size_t i = 0; i < n; i += 4096)
        assert_int_equal(p[i]++ | after[i]++, 0);
    assert_int_equal(page_kib(p), has_some ? 2048 : page);
    assert_int_equal(page_kib(small), page);
    assert_int_equal(page_kib(too_much), page);
    assert_int_equal(page_kib(after), page);
    assert_int_equal(n_elsewhere, mem_length(n_too_much) + (has_some ? 0 : mem_length(n)));
    mem_unmap(p, n, MEM_SCRATCH);
    mem_unmap(small, n_small, MEM_SCRATCH);
    mem_unreserve(too_much, n_too_much, 0, MEM_SCRATCH);
    mem_unmap(after, n, MEM_SCRATCH);
}

static void small_pieces_share_pages_and_nothing_else(void **state)
{
    enum { N = 60, N_BYTES = (2 << 20) - 4096 - 1 }; /* more than fit one block of addresses */
    size_t before = mem_mapped_bytes(MEM_SCRATCH), length = mem_length(N_BYTES);
    char *p[N];
    unsigned char resident[512];
    for (int i = 0; i < N; i++) {
        p[i] = mem_map(N_BYTES, MEM_SCRATCH);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 4096, 0);
        for (size_t j = 0; j < N_BYTES; j += 4096)
            assert_int_equal(p[i][j], 0);
        memset(p[i], i + 1, N_BYTES);
    }
    assert_int_equal(mem_mapped_bytes(MEM_SCRATCH) - before, N * length);
    for (int i = 1; i < N; i += 2)
        mem_unmap(p[i], N_BYTES, MEM_SCRATCH);
    assert_int_equal(mem_mapped_bytes(MEM_SCRATCH) - before, N / 2 * length);
    assert_int_equal(mincore(p[1], length, resident), 0); /* beside p[0], which is still there */
    for (size_t i = 0; i < length / 4096; i++)
        assert_int_equal(resident[i] & 1, 0);
    for (int i = 0; i < N; i += 2) {
        for (size_t j = 0; j < N_BYTES; j += 997)
            assert_int_equal(p[i][j], i + 1);
        mem_unmap(p[i], N_BYTES, MEM_SCRATCH);
    }
    assert_int_equal(mem_mapped_bytes(MEM_SCRATCH), before);
}

static int count_mappings(void)
{
    int n = 0, c;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    while ((c = fgetc(f)) != EOF)
        n += c == '\n';
    fclose(f);
    return n;
}

/* As of a matrix of F32 that is kept as BF16: the system allows a process some 65,000 mappings, and a hole takes two.
 */
static void small_pieces_fill_the_holes_of_others(void **state)
{
    enum { N = 2000, N_BYTES = 8192 };
    static char *kept[N];
    int before = count_mappings();
    for (int i = 0; i < N; i++) {
        char *p = mem_map(N_BYTES, MEM_SCRATCH);
        kept[i] = mem_map(N_BYTES / 2, MEM_SCRATCH);
        assert_true(p && kept[i]);
        for (int j = 0; j < N_BYTES; j++)
            assert_int_equal(p[j], 0);
        memset(p, 1, N_BYTES);
        mem_unmap(p, N_BYTES, MEM_SCRATCH);
        memset(kept[i], 2, N_BYTES / 2);
    }
    assert_in_range(count_mappings() - before, 0, 20);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N_BYTES / 2; j++)
            assert_int_equal(kept[i][j], 2);
        mem_unmap(kept[i], N_BYTES / 2, MEM_SCRATCH);
    }
}

static void arena_memory_is_zero_and_aligned(void **state)
{
    struct arena a = {0};
    for (size_t n = 1; n < 200000; n = n * 3 + 1) {
        unsigned char *p = arena_alloc(&a, n);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xff, n);
    }
    arena_close(&a);
}

struct tally {
    atomic_int hits[1000];
    int max_thread;
};

static void count_task(void *arg, size_t task, int thread)
{
    struct tally *t = arg;
    atomic_fetch_add(&t->hits[task], 1);
    assert_true(thread >= 0 && thread < t->max_thread);
}

static void count_task_slowly(void *arg, size_t task, int thread)
{
    for (int64_t begin_ns = clock_ns(); clock_ns() - begin_ns < 5000;)
        ;
    count_task(arg, task, thread);
}

static void pool_runs_each_task_once(void **state)
{
    struct err e = {0};
    for (int n = 1; n <= 4; n++) {
        struct pool *p;
        assert_int_equal(pool_create(&p, n, &e), ERR_OK);
        assert_int_equal(pool_n_threads(p), n);
        for (int round = 0; round < 300; round++) {
            struct tally t = {.max_thread = n};
            size_t n_tasks = (size_t)(round * 7 % 1000);
            pool_use(p, 1 + round % n); /* some of the threads, or all */
            pool_run(p, n_tasks, count_task, &t);
            for (size_t i = 0; i < 1000; i++)
                assert_int_equal(t.hits[i], i < n_tasks);
        }
        struct pool_times times = pool_times(p);
        assert_true(n == 1 ? times.thread_ns == 0 : times.thread_ns > 0 && times.busy_ns > 0);
        pool_close(&p);
        assert_null(p);
    }
    struct pool *p;
    assert_int_equal(pool_create(&p, 0, &e), ERR_USAGE);
}

struct between {
    pthread_t owner;
    int n;
};

static void count_between(void *user)
{
    struct between *b = user;
    assert_true(pthread_equal(pthread_self(), b->owner));
    b->n++;
}

static void pool_calls_between_tasks_on_the_thread_that_runs_the_loop(void **state)
{
    struct err e = {0};
    for (int n = 1; n <= 2; n++) {
        struct between b = {.owner = pthread_self()};
        struct tally t = {.max_thread = n};
        struct pool *p;
        assert_int_equal(pool_create(&p, n, &e), ERR_OK);
        pool_set_between(p, count_between, &b);
        pool_run(p, 1000, count_task, &t);
        assert_in_range(b.n, n == 1 ? 1000 : 0, 1000);
        pool_set_between(p, NULL, NULL);
        pool_close(&p);
    }
}

struct asked {
    pthread_t thread;
    int n; /* times */
    bool is_elsewhere;
};

static bool ask(void *user)
{
    struct asked *a = user;
    a->n++;
    a->is_elsewhere |= !pthread_equal(pthread_self(), a->thread);
    return a->n >= 3;
}

static void nap_task(void *arg, size_t task, int thread)
{
    nanosleep(&(struct timespec){.tv_nsec = 200 * 1000}, NULL);
}

/* After the first task already; and once the answer is yes nobody asks again. */
static void pool_asks_now_and_then_whether_to_stop(void **state)
{
    for (int n = 1; n <= 3; n += 2) {
        struct pool *p;
        struct err e;
        struct asked a = {.thread = pthread_self()};
        const struct cancel c = {ask, &a};
        assert_int_equal(pool_create(&p, n, &e), ERR_OK);
        pool_set_cancel(p, &c);
        assert_false(pool_is_cancelled(p));
        pool_run(p, 1, nap_task, NULL);
        assert_int_equal(a.n, 1);
        for (int i = 0; i < 1000 && !pool_is_cancelled(p); i++)
            pool_run(p, 20, nap_task, NULL);
        assert_true(pool_is_cancelled(p));
        assert_int_equal(a.n, 3);
        assert_false(a.is_elsewhere);
        pool_set_cancel(p, NULL);
        assert_false(pool_is_cancelled(p));
        pool_run(p, 50, nap_task, NULL);
        assert_int_equal(a.n, 3);
        pool_close(&p);
    }
}

enum { FAST_TASK_NS = 2000000, SLOWNESS = 3 };

/* Waits as long as a fast core computes, or one that is SLOWNESS times slower (odd threads). */
static void fast_or_slow_task(void *arg, size_t task, int thread)
{
    clock_sleep_ns(thread % 2 ? SLOWNESS * FAST_TASK_NS : FAST_TASK_NS);
    count_task(arg, task, thread);
}

/* Two fast and two slow threads, eight tasks for each, as products have them. Equal shares would take a slow thread 48
 * ms; the best that can be is 24, and a slow task that begins late adds 6 to that. */
static void pool_gives_slow_cores_less_work(void **state)
{
    enum { N_THREAD = 4, N_TASK = 8 * N_THREAD };
    const int64_t ideal_ns = N_TASK * FAST_TASK_NS * SLOWNESS / (N_THREAD / 2 * (SLOWNESS + 1));
    int64_t best_ns = INT64_MAX;
    struct err e = {0};
    struct pool *p;
    assert_int_equal(pool_create(&p, N_THREAD, &e), ERR_OK);
    for (int round = 0; round < 20 && best_ns > ideal_ns * 5 / 4; round++) { /* other programs make sleeps longer */
        struct tally t = {.max_thread = N_THREAD};
        int64_t begin_ns = clock_ns();
        pool_run(p, N_TASK, fast_or_slow_task, &t);
        int64_t took_ns = clock_ns() - begin_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    pool_close(&p);
    assert_in_range(best_ns, ideal_ns, ideal_ns * 5 / 4);
}

/* Other work on every core that there is. */
struct neighbours {
    pthread_t threads[POOL_MAX_THREADS];
    int n;
    atomic_bool stop;
};

static void *spin(void *arg)
{
    struct neighbours *b = arg;
    while (!atomic_load_explicit(&b->stop, memory_order_relaxed))
        ;
    return NULL;
}

static void wait_task(void *arg, size_t task, int thread)
{
    clock_sleep_ns(20000000);
    count_task(arg, task, thread);
}

/* Threads that wait, as for a drive, look to the clocks like threads without a core. */
static void pool_rests_only_where_that_is_asked_for(void **state)
{
    struct err e = {0};
    for (int is_throttled = 0; is_throttled <= 1; is_throttled++) {
        struct pool *p;
        struct tally t = {.max_thread = 2};
        assert_int_equal(pool_create(&p, 2, &e), ERR_OK);
        pool_set_throttled(p, is_throttled);
        bool may_throttle = is_throttled && cpu_n_available() > 1;
        for (int round = 0; round < (may_throttle ? 50 : 2) && pool_times(p).throttled_ns == 0; round++) {
            for (int i = 0; i < 4; i++)
                pool_run(p, 6, wait_task, &t);
            for (int i = 0; i < 10; i++)
                pool_run(p, 1000, count_task_slowly, &t);
        }
        assert_int_equal(pool_times(p).throttled_ns > 0, may_throttle);
        pool_close(&p);
    }
}

static void pool_works_in_bursts_beside_others(void **state)
{
    struct err e = {0};
    struct neighbours b = {.n = cpu_n_available() < POOL_MAX_THREADS ? cpu_n_available() : POOL_MAX_THREADS};
    for (int i = 0; i < b.n; i++)
        assert_int_equal(pthread_create(&b.threads[i], NULL, spin, &b), 0);
    for (int n = 2; n <= 3 && n <= cpu_n_available(); n++) { /* more threads than processors never rest */
        struct pool *p;
        assert_int_equal(pool_create(&p, n, &e), ERR_OK);
        pool_set_throttled(p, true);
        int64_t give_up_ns = clock_ns() + (int64_t)20 * 1000000000, more = 50;
        for (int round = 0; more > 0; round++) { /* until threads rest, and a bit longer */
            struct tally t = {.max_thread = n};
            pool_use(p, round % 50 ? n : 1 + round / 50 % n);
            pool_run(p, 1000, count_task_slowly, &t);
            for (size_t i = 0; i < 1000; i++)
                assert_int_equal(t.hits[i], 1);
            more -= pool_times(p).throttled_ns > 0;
            assert_true(clock_ns() < give_up_ns);
        }
        pool_close(&p);
    }
    atomic_store(&b.stop, true);
    for (int i = 0; i < b.n; i++)
        pthread_join(b.threads[i], NULL);
}

static void random_is_reproducible_and_spread(void **state)
{
    struct random a = random_seed(42), b = random_seed(42), c = random_seed(43);
    double sum = 0;
    int same = 0;
    for (int i = 0; i < 10000; i++) {
        uint32_t x = random_u32(&a);
        assert_int_equal(x, random_u32(&b));
        same += x == random_u32(&c);
    }
    assert_true(same < 5);
    for (int i = 0; i < 10000; i++) {
        double u = random_unit(&a);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(sum > 4800 && sum < 5200);
}

static void levels_that_the_processor_has_can_be_asked_for(void **state)
{
    const char *mask = getenv("MOEBIUS_CPU");
    char *saved = mask ? strdup(mask) : NULL;
    enum cpu_level best, level;
    struct err e = {0};
    unsetenv("MOEBIUS_CPU");
    assert_int_equal(cpu_level_detect(&best, &e), ERR_OK);
    assert_true(cpu_has_level(best) && cpu_has_level(CPU_SCALAR));
    for (int i = 0; i < CPU_N_LEVEL; i++) {
        const char *name = cpu_level_name((enum cpu_level)i);
        setenv("MOEBIUS_CPU", name, 1);
        if (cpu_has_level((enum cpu_level)i)) {
            assert_int_equal(cpu_level_detect(&level, &e), ERR_OK);
            assert_int_equal(level, i);
            assert_true(i <= (int)best);
        } else {
            assert_int_equal(cpu_level_detect(&level, &e), ERR_USAGE);
            assert_non_null(strstr(e.text, name));
            assert_non_null(strstr(e.text, "this machine has scalar"));
        }
    }
    setenv("MOEBIUS_CPU", "abacus", 1);
    assert_int_equal(cpu_level_detect(&level, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, cpu_level_name(CPU_N_LEVEL - 1)));
    if (saved)
        setenv("MOEBIUS_CPU", saved, 1);
    else
        unsetenv("MOEBIUS_CPU");
    free(saved);
}

/* The values are those of RFC 3720, appendix B.4, and the usual check value. */
static void crc32c_is_castagnolis(void **state)
{
    unsigned char zeros[32] = {0}, ones[32], up[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++)
        up[i] = (unsigned char)i;
    uint32_t (*const all[])(uint32_t, const void *, size_t) = {crc32c, crc32c_portable};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(all[i](0, "123456789", 9), 0xe3069283);
        assert_int_equal(all[i](0, zeros, 32), 0x8a9136aa);
        assert_int_equal(all[i](0, ones, 32), 0x62a8ab43);
        assert_int_equal(all[i](0, up, 32), 0x46dd794e);
        assert_int_equal(all[i](0, up, 0), 0);
    }
}

static void crc32c_goes_on_where_it_stopped(void **state)
{
    unsigned char x[200];
    struct random r = random_seed(7);
    for (size_t i = 0; i < sizeof x; i++)
        x[i] = (unsigned char)random_u32(&r);
    for (size_t first = 0; first < 20; first++)
        for (size_t cut = first; cut <= sizeof x; cut++) {
            uint32_t whole = crc32c_portable(0, x + first, sizeof x - first);
            assert_int_equal(crc32c(crc32c(0, x + first, cut - first), x + cut, sizeof x - cut), whole);
        }
}

/* Long runs are summed in three lanes of 8 KiB. */
static void crc32c_of_long_runs_is_the_same(void **state)
{
    static unsigned char x[3 * 24576 + 100];
    struct random r = random_seed(8);
    for (size_t i = 0; i < sizeof x; i++)
        x[i] = (unsigned char)random_u32(&r);
    for (size_t n = 24576; n < sizeof x; n += 24576 / 2)
        for (size_t more = 0; more < 10; more++)
            assert_int_equal(crc32c(5, x + more, n - 5 + more), crc32c_portable(5, x + more, n - 5 + more));
}

/* SipHash-2-4 of the bytes 0 to 14 with the key of the bytes 0 to 15: appendix A of the paper. SipHash-1-3 with the key
 * 0: what CPython, which hashes bytes with it, prints with PYTHONHASHSEED=0. */
static void siphash_is_that_of_the_paper(void **state)
{
    static const struct {
        size_t n;
        uint64_t hash;
    } cases[] = {{1, 0x68a914128e01e473},  {2, 0x010bac45c41e3669}, {3, 0x4d4c9a4a8ef6e0ad}, {4, 0x7cc43f98813e4dbd},
                 {5, 0x5abe2169dff36275},  {7, 0x2f098ab0c751325a}, {8, 0xead411e67ebe2eea}, {15, 0xf30eb725bb91c9ea},
                 {16, 0x8972188433a5c5b7}, {63, 0x385d3e39e5f37359}};
    unsigned char bytes[64];
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)i;
    const struct siphash_key key = {0x0706050403020100, 0x0f0e0d0c0b0a0908}, zero = {0};
    assert_true(siphash(key, bytes, 15, 2, 4) == 0xa129ca6149be45e5);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(siphash13(zero, bytes, cases[i].n) == cases[i].hash);
}

static void no_two_keys_of_a_hash_are_alike(void **state)
{
    struct siphash_key a, b;
    struct err e = {0};
    assert_int_equal(siphash_key_make(&a, &e), ERR_OK);
    assert_int_equal(siphash_key_make(&b, &e), ERR_OK);
    assert_memory_not_equal(&a, &b, sizeof a);
    assert_true(a.k0 != a.k1);
}

/* ---- events, memory of several threads ------------------------------------------------------------------------- */

struct shared_memory {
    struct event asked;
    struct event answered;
    size_t n_wanted[2]; /* bytes that the reclaims of the process and of the thread were asked for */
    bool has_room;
};

static void note_process(void *user, size_t n_bytes)
{
    ((struct shared_memory *)user)->n_wanted[0] += n_bytes;
}

static void note_thread(void *user, size_t n_bytes)
{
    ((struct shared_memory *)user)->n_wanted[1] += n_bytes;
}

static void *take_memory(void *arg)
{
    struct shared_memory *m = arg;
    event_wait(&m->asked, 0, 100, 0);
    mem_set_thread_reclaim(note_thread, m);
    m->has_room = mem_make_room(8192);
    event_signal(&m->answered);
    return NULL;
}

static void a_thread_may_have_a_reclaim_of_its_own(void **state)
{
    pthread_t thread;
    struct shared_memory m = {.has_room = true};
    assert_true(mem_set_limit(mem_total_bytes(), note_process, &m));
    assert_int_equal(pthread_create(&thread, NULL, take_memory, &m), 0);
    event_signal(&m.asked);
    event_wait(&m.answered, 0, 0, 0);
    assert_false(m.has_room);
    assert_int_equal(m.n_wanted[0], 0);
    assert_int_equal(m.n_wanted[1], 8192);
    assert_false(mem_make_room(4096)); /* of other threads the process's is asked */
    assert_int_equal(m.n_wanted[0], 4096);
    pthread_join(thread, NULL);
    mem_lift_limit();
}

static void experts_leave_scratch_its_room(void **state)
{
    enum { N = 1 << 20 };
    void *p;
    assert_true(mem_set_limit(mem_total_bytes() + 3 * N, NULL, NULL));
    mem_keep_for_scratch(mem_mapped_bytes(MEM_SCRATCH) + 2 * N);
    assert_false(mem_commit(2 * N, MEM_EXPERTS));
    assert_true(mem_commit(N, MEM_EXPERTS));
    assert_false(mem_commit(4096, MEM_EXPERTS));
    assert_non_null(p = mem_map(2 * N, MEM_SCRATCH)); /* what was kept is there */
    mem_uncommit(N, MEM_EXPERTS);
    assert_true(mem_commit(N, MEM_EXPERTS)); /* scratch has all of its room */
    mem_unmap(p, 2 * N, MEM_SCRATCH);
    assert_false(mem_commit(4096, MEM_EXPERTS));
    mem_lift_limit();
    assert_true(mem_commit(4096, MEM_EXPERTS));
    mem_uncommit(N + 4096, MEM_EXPERTS);
}

static void a_wait_ends_when_its_time_is_over(void **state)
{
    enum { MS = 1000 * 1000 };
    struct event ev = {0};
    int64_t begin_ns = clock_ns(), slept_ns = event_wait(&ev, 0, 10, 3 * MS);
    assert_true(slept_ns >= 3 * MS && clock_ns() - begin_ns >= slept_ns);
    event_signal(&ev);
    assert_int_equal(event_wait(&ev, 0, 10, 0), 0); /* it has changed */
}

static void parts_of_split_sets_are_known_by_their_names(void **state)
{
    static const char path[] = "a/m-00002-of-00012.gguf?x", *const others[] = {"m-00000-of-00003.gguf",
                                                                               "m-00004-of-00003.gguf",
                                                                               "m-0001-of-00003.gguf",
                                                                               "m--0001-of-00003.gguf",
                                                                               "m-+0001-of-00003.gguf",
                                                                               "m- 0001-of-00003.gguf",
                                                                               "m-00001-of-00003.ggufx",
                                                                               "m-00001_of-00003.gguf",
                                                                               "00001-of-00003.gguf",
                                                                               "m-00001-of-0000x.gguf",
                                                                               "",
                                                                               "m.gguf"};
    char suffix[SPLIT_SET_SUFFIX_BYTES + 1];
    struct split_set s = {0};
    assert_true(split_set_parse(&s, path, strlen(path) - 2));
    assert_int_equal(s.n_name, 3);
    assert_int_equal(s.part, 2);
    assert_int_equal(s.n_part, 12);
    split_set_suffix(suffix, 2, 12);
    assert_memory_equal(suffix, path + 3, SPLIT_SET_SUFFIX_BYTES);
    assert_true(split_set_parse(&s, suffix, strlen(suffix)));
    assert_int_equal(s.n_name, 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(split_set_parse(&s, others[i], strlen(others[i])));
}

/* JSON has no bound on integers: those beyond 64 bits are read as other readers read them, and all else as before. */
static void wide_integers_are_read(void **state)
{
    static const char text[] = "{\"a\": [400000000000000000000, -9223372036854775809, 9223372036854775807, 7], \"b "
                               "400000000000000000000\\\"\": \"18446744073709551616\"}";
    json_error_t error;
    json_t *j = json_read(text, sizeof text - 1, 0, &error), *a = json_object_get(j, "a");
    assert_non_null(j);
    assert_true(json_real_value(json_array_get(a, 0)) == 4e20);
    assert_true(json_real_value(json_array_get(a, 1)) == -9223372036854775808.0);
    assert_true(json_integer_value(json_array_get(a, 2)) == INT64_MAX);
    assert_true(json_integer_value(json_array_get(a, 3)) == 7);
    assert_string_equal(json_string_value(json_object_get(j, "b 400000000000000000000\"")), "18446744073709551616");
    json_decref(j);
    assert_null(json_read("[1e999]", 7, 0, &error));
    assert_non_null(strstr(error.text, "real number overflow"));
    assert_null(json_read("[400000000000000000000", 22, 0, &error));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_carries_code_and_sentence),
        cmocka_unit_test(text_is_printed_into_memory_of_its_own),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(arrays_grow_to_twice_their_size_or_stay_as_they_are),
        cmocka_unit_test(mapped_memory_is_zero_aligned_and_counted),
        cmocka_unit_test(memory_comes_from_pages_set_aside_as_far_as_they_go),
        cmocka_unit_test(small_pieces_share_pages_and_nothing_else),
        cmocka_unit_test(small_pieces_fill_the_holes_of_others),
        cmocka_unit_test(arena_memory_is_zero_and_aligned),
        cmocka_unit_test(pool_runs_each_task_once),
        cmocka_unit_test(pool_asks_now_and_then_whether_to_stop),
        cmocka_unit_test(pool_gives_slow_cores_less_work),
        cmocka_unit_test(pool_calls_between_tasks_on_the_thread_that_runs_the_loop),
        cmocka_unit_test(pool_rests_only_where_that_is_asked_for),
        cmocka_unit_test(pool_works_in_bursts_beside_others),
        cmocka_unit_test(levels_that_the_processor_has_can_be_asked_for),
        cmocka_unit_test(random_is_reproducible_and_spread),
        cmocka_unit_test(crc32c_is_castagnolis),
        cmocka_unit_test(crc32c_goes_on_where_it_stopped),
        cmocka_unit_test(crc32c_of_long_runs_is_the_same),
        cmocka_unit_test(siphash_is_that_of_the_paper),
        cmocka_unit_test(no_two_keys_of_a_hash_are_alike),
        cmocka_unit_test(a_thread_may_have_a_reclaim_of_its_own),
        cmocka_unit_test(experts_leave_scratch_its_room),
        cmocka_unit_test(a_wait_ends_when_its_time_is_over),
        cmocka_unit_test(parts_of_split_sets_are_known_by_their_names),
        cmocka_unit_test(wide_integers_are_read),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
