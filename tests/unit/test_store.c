#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <cmocka.h>

#include "base/mem.h"
#include "gguf/gguf_writer.h"
#include "store/store.h"
#include "store_fake.h"
#include "temp_folder.h"

enum { ROW = 256, ROWS = 3000, N_VALUES = ROW * ROWS };

/* A model of two tensors, "a" of N_VALUES floats 0, 1, 2, ... and "b" of four. */
static struct temp_path write_model(const char *name)
{
    struct gguf_writer *w;
    struct err e = {0};
    static float a[N_VALUES];
    static const float b[4] = {-1, -2, -3, -4};
    for (int i = 0; i < N_VALUES; i++)
        a[i] = (float)i;
    struct temp_path path = temp_path(&folder, name);
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_tensor(w, "a", 2, (const uint64_t[]){ROW, ROWS}, QUANT_F32, a);
    gguf_writer_add_tensor(w, "b", 1, (const uint64_t[]){4}, QUANT_F32, b);
    assert_int_equal(gguf_writer_save(w, path.s, &e), ERR_OK);
    gguf_writer_close(&w);
    return path;
}

static void open_model(const char *path, struct gguf **g, struct store **s)
{
    struct err e = {0};
    if (gguf_open(g, path, &e) != ERR_OK || store_open_gguf(s, *g, &e) != ERR_OK)
        fail_msg("%s", e.text);
}

static void ranges_arrive_whole_and_are_counted(void **state)
{
    struct gguf *g;
    struct store *s;
    struct err e = {0};
    open_model(write_model("model.gguf").s, &g, &s);
    const struct gguf_tensor *a = gguf_tensor_find(g, "a"), *b = gguf_tensor_find(g, "b");
    float *all = mem_calloc(N_VALUES, sizeof *all), part[3] = {0}, four[4] = {0};
    const struct store_range ranges[] = {
        store_tensor_range(a, all),
        store_tensor_part(a, 1000 * sizeof(float), sizeof part, part),
        store_tensor_range(b, four),
    };
    assert_int_equal(store_read(s, ranges, 3, &e), ERR_OK);
    for (int i = 0; i < N_VALUES; i++)
        assert_true(all[i] == (float)i);
    assert_true(part[0] == 1000 && part[2] == 1002);
    assert_true(four[0] == -1 && four[3] == -4);
    struct store_counters c = store_get_counters(s);
    assert_int_equal(c.n_reads, 3);
    assert_int_equal(c.n_bytes, N_VALUES * sizeof(float) + sizeof part + sizeof four);
    assert_true(c.n_ns > 0);
    assert_int_equal(store_read(s, NULL, 0, &e), ERR_OK);
    mem_free(all);
    store_close(&s);
    assert_null(s);
    store_close(&s);
    gguf_close(&g);
}

static void a_read_beyond_the_file_is_an_error(void **state)
{
    struct gguf *g;
    struct store *s;
    struct err e = {0};
    uint8_t dst[64];
    struct temp_path path = write_model("beyond.gguf");
    open_model(path.s, &g, &s);
    struct store_range r = {.file = 0, .offset = gguf_file_bytes(g, 0) - 8, .n_bytes = 9, .dst = dst};
    assert_int_equal(store_read(s, &r, 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, path.s));
    assert_non_null(strstr(e.text, "9 bytes at byte"));
    r = (struct store_range){.file = 0, .offset = UINT64_MAX - 3, .n_bytes = 8, .dst = dst};
    assert_int_equal(store_read(s, (struct store_range[]){r, r}, 2, &e), ERR_IO);
    assert_non_null(strstr(e.text, "goes beyond the file"));
    r = (struct store_range){.file = 1, .n_bytes = 1, .dst = dst};
    assert_int_equal(store_read(s, &r, 1, &e), ERR_USAGE);
    assert_int_equal(store_get_counters(s).n_reads, 0);
    store_close(&s);
    gguf_close(&g);
}

static void a_file_truncated_since_opening_is_an_error(void **state)
{
    struct gguf *g;
    struct store *s;
    struct err e = {0};
    struct temp_path path = write_model("cut.gguf");
    open_model(path.s, &g, &s);
    const struct gguf_tensor *a = gguf_tensor_find(g, "a");
    assert_int_equal(truncate(path.s, (off_t)(a->offset + 5000)), 0);
    uint8_t *dst = mem_alloc((size_t)a->n_bytes);
    struct store_range r = store_tensor_range(a, dst);
    assert_int_equal(store_read(s, &r, 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, path.s));
    assert_non_null(strstr(e.text, "tensor \"a\""));
    assert_non_null(strstr(e.text, "the file ends there now"));
    struct store *again;
    assert_int_equal(store_open_gguf(&again, g, &e), ERR_IO);
    assert_null(again);
    assert_non_null(strstr(e.text, "it changed in between"));
    assert_int_equal(unlink(path.s), 0);
    assert_int_equal(store_open_gguf(&again, g, &e), ERR_IO);
    assert_non_null(strstr(e.text, "No such file"));
    mem_free(dst);
    store_close(&s);
    gguf_close(&g);
}

static void a_view_of_memory_cannot_be_read(void **state)
{
    struct gguf_writer *w;
    struct gguf *g;
    struct store *s;
    struct err e = {0};
    void *p;
    size_t n;
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    assert_int_equal(gguf_writer_to_memory(w, &p, &n, &e), ERR_OK);
    gguf_writer_close(&w);
    assert_int_equal(gguf_open_memory(&g, p, n, temp_path(&folder, "nowhere").s, &e), ERR_OK);
    mem_free(p);
    assert_int_equal(store_open_gguf(&s, g, &e), ERR_IO);
    assert_null(s);
    gguf_close(&g);
}

struct reader {
    struct store *s;
    const struct gguf_tensor *t;
    int seed;
    atomic_int *n_bad;
};

static void *read_rows(void *arg)
{
    struct reader *r = arg;
    float row[ROW];
    struct err e = {0};
    for (int i = 0; i < 500; i++) {
        uint64_t k = (uint64_t)(i * 7919 + r->seed * 131) % ROWS;
        struct store_range range = store_tensor_part(r->t, k * sizeof row, sizeof row, row);
        if (store_read(r->s, &range, 1, &e) != ERR_OK)
            atomic_fetch_add(r->n_bad, 1);
        for (int c = 0; c < ROW; c++)
            if (row[c] != (float)(k * ROW + (uint64_t)c))
                atomic_fetch_add(r->n_bad, 1);
    }
    return NULL;
}

static void nothing(int signal_number)
{
}

/* Four threads read while a timer interrupts their system calls. */
static void threads_may_read_at_once_and_be_interrupted(void **state)
{
    struct gguf *g;
    struct store *s;
    pthread_t threads[4];
    struct reader readers[4];
    atomic_int n_bad = 0;
    open_model(write_model("threads.gguf").s, &g, &s);
    struct sigaction act = {.sa_handler = nothing}, old; /* no SA_RESTART */
    struct itimerval tick = {{0, 500}, {0, 500}}, off = {0};
    assert_int_equal(sigaction(SIGALRM, &act, &old), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &tick, NULL), 0);
    for (int i = 0; i < 4; i++) {
        readers[i] = (struct reader){s, gguf_tensor_find(g, "a"), i, &n_bad};
        assert_int_equal(pthread_create(&threads[i], NULL, read_rows, &readers[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(setitimer(ITIMER_REAL, &off, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
    assert_int_equal(n_bad, 0);
    assert_int_equal(store_get_counters(s).n_reads, 4 * 500);
    assert_int_equal(store_get_counters(s).n_bytes, 4 * 500 * ROW * sizeof(float));
    store_close(&s);
    gguf_close(&g);
}

static void open_fake(struct store **s)
{
    static uint8_t bytes[100];
    static const struct store_fake_file files[] = {{"first", bytes, sizeof bytes}, {"second", "hello", 5}};
    struct err e = {0};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)i;
    assert_int_equal(store_open_fake(s, files, 2, &e), ERR_OK);
}

static void the_fake_reads_memory(void **state)
{
    struct store *s;
    struct err e = {0};
    uint8_t x[10], y[5];
    open_fake(&s);
    const struct store_range r[] = {{.file = 0, .offset = 90, .n_bytes = 10, .dst = x},
                                    {.file = 1, .offset = 0, .n_bytes = 5, .dst = y}};
    assert_int_equal(store_read(s, r, 2, &e), ERR_OK);
    assert_true(x[0] == 90 && x[9] == 99);
    assert_memory_equal(y, "hello", 5);
    assert_int_equal(store_get_counters(s).n_bytes, 15);
    struct store_range bad = {.file = 0, .offset = 95, .n_bytes = 6, .dst = x};
    assert_int_equal(store_read(s, &bad, 1, &e), ERR_IO);
    bad = (struct store_range){.file = 2, .n_bytes = 1, .dst = x};
    assert_int_equal(store_read(s, &bad, 1, &e), ERR_USAGE);
    store_close(&s);
}

static void the_fake_fails_when_told(void **state)
{
    struct store *s;
    struct err e = {0};
    uint8_t x[10];
    open_fake(&s);
    struct store_range r = {.file = 0, .offset = 20, .n_bytes = 10, .dst = x};
    store_fake_add_fault(s, (struct store_fault){STORE_FAULT_ERROR, 0, 25, .n_skip = 1, .n_times = 1});
    assert_int_equal(store_read(s, &r, 1, &e), ERR_OK);
    assert_int_equal(store_read(s, &r, 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, "first: reading 10 bytes at byte 20: Input/output error"));
    assert_int_equal(store_read(s, &r, 1, &e), ERR_OK);
    assert_int_equal(store_get_counters(s).n_reads, 2);

    store_fake_clear_faults(s);
    store_fake_add_fault(s, (struct store_fault){STORE_FAULT_SHORT, 0, 25, .n_times = UINT64_MAX});
    memset(x, 0xaa, sizeof x);
    assert_int_equal(store_read(s, &r, 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, "the file ends there now"));
    assert_true(x[4] == 24 && x[5] == 0xaa);
    assert_int_equal(store_read(s, &r, 1, &e), ERR_IO);
    struct store_range before = {.file = 0, .offset = 15, .n_bytes = 10, .dst = x};
    assert_int_equal(store_read(s, &before, 1, &e), ERR_OK);

    store_fake_clear_faults(s);
    store_fake_add_fault(s, (struct store_fault){STORE_FAULT_CORRUPT, 0, 29, .n_times = 1});
    assert_int_equal(store_read(s, &r, 1, &e), ERR_OK);
    assert_true(x[9] == (29 ^ 0xff) && x[8] == 28);
    assert_int_equal(store_read(s, &r, 1, &e), ERR_OK);
    assert_int_equal(x[9], 29);
    store_close(&s);
}

static void what_is_no_regular_file_is_refused(void **state)
{
    struct store *s;
    struct err e = {0};
    struct temp_path pipe = temp_path(&folder, "pipe"); /* without anybody at the other end */
    assert_int_equal(mkfifo(pipe.s, 0600), 0);
    assert_int_equal(store_open_file(&s, pipe.s, &e), ERR_IO);
    assert_non_null(strstr(e.text, "pipe: expected a regular file"));
    assert_null(s);
}

/* n_layer layers of n_expert experts, each of three matrices of a weight. */
static void write_experts(const char *path, int n_layer, uint64_t n_expert)
{
    static const char *const parts[] = {"gate", "up", "down"};
    static const float zeros[1 << 17];
    const uint64_t ne[] = {1, 1, n_expert};
    struct gguf_writer *w;
    struct err e;
    assert_in_range(n_expert, 1, sizeof zeros / sizeof *zeros);
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    for (int l = 0; l < n_layer; l++)
        for (int p = 0; p < EXPERT_N_MATRIX; p++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", l, parts[p]);
            gguf_writer_add_tensor(w, name, 3, ne, QUANT_F32, zeros);
        }
    assert_int_equal(gguf_writer_save(w, path, &e), ERR_OK);
    gguf_writer_close(&w);
}

static void more_experts_than_a_model_may_have_are_refused(void **state)
{
    static const struct {
        int n_layer;
        uint64_t n_expert;
        err_code code;
    } cases[] = {{1, 65536, ERR_OK}, {1, 65537, ERR_LIMIT}, {16, 65536, ERR_OK}, {17, 65536, ERR_LIMIT}};
    struct temp_path path = temp_path(&folder, "experts.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf *g;
        struct store *s;
        struct err e = {0};
        write_experts(path.s, cases[i].n_layer, cases[i].n_expert);
        assert_int_equal(gguf_open(&g, path.s, &e), ERR_OK);
        assert_int_equal(store_open_gguf(&s, g, &e), cases[i].code);
        if (cases[i].code != ERR_OK)
            assert_non_null(strstr(e.text, "expected at most 65536 in a layer and 1048576 in all"));
        store_close(&s);
        gguf_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_arrive_whole_and_are_counted),
        cmocka_unit_test(a_read_beyond_the_file_is_an_error),
        cmocka_unit_test(a_file_truncated_since_opening_is_an_error),
        cmocka_unit_test(a_view_of_memory_cannot_be_read),
        cmocka_unit_test(threads_may_read_at_once_and_be_interrupted),
        cmocka_unit_test(the_fake_reads_memory),
        cmocka_unit_test(the_fake_fails_when_told),
        cmocka_unit_test(what_is_no_regular_file_is_refused),
        cmocka_unit_test(more_experts_than_a_model_may_have_are_refused),
    };
    return cmocka_run_group_tests_name("store", tests, folder_setup, folder_teardown);
}
