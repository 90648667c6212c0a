/* Reads in flight: over files with every engine, and over the fake with its faults. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(MOEBIUS_WITH_IO_URING)
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#include <cmocka.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/mem.h"
#include "base/random.h"
#include "gguf/gguf_writer.h"
#include "store/store.h"
#include "store_fake.h"
#include "temp_folder.h"

enum { DIM = 64, N_EXPERT = 24, MATRIX_BYTES = DIM * DIM * 4, N_READ = 40 };

/* A layer of experts whose floats count up through gate, up and down. */
static struct temp_path write_model(const char *name)
{
    static const char *const names[EXPERT_N_MATRIX] = {"blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight",
                                                       "blk.1.ffn_down_exps.weight"};
    static float data[EXPERT_N_MATRIX][N_EXPERT * DIM * DIM];
    struct gguf_writer *w;
    struct err e = {0};
    struct temp_path path = temp_path(&folder, name);
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    for (int p = 0; p < EXPERT_N_MATRIX; p++) {
        for (int i = 0; i < N_EXPERT * DIM * DIM; i++)
            data[p][i] = (float)(p * N_EXPERT * DIM * DIM + i);
        gguf_writer_add_tensor(w, names[p], 3, (const uint64_t[]){DIM, DIM, N_EXPERT}, QUANT_F32, data[p]);
    }
    assert_int_equal(gguf_writer_save(w, path.s, &e), ERR_OK);
    gguf_writer_close(&w);
    return path;
}

struct fixture {
    struct gguf *g;
    struct store *s;
    struct store_queue *q;
    struct store_read reads[N_READ];
    struct err e;
};

static void open_files(struct fixture *f, const char *path, const struct store_queue_params *p)
{
    *f = (struct fixture){0};
    if (gguf_open(&f->g, path, &f->e) != ERR_OK || store_open_gguf(&f->s, f->g, &f->e) != ERR_OK ||
        store_queue_open(&f->q, f->s, p, &f->e) != ERR_OK)
        fail_msg("%s", f->e.text);
}

static void close_all(struct fixture *f)
{
    store_queue_close(&f->q);
    for (int i = 0; i < N_READ; i++)
        mem_free(f->reads[i].buf);
    store_close(&f->s);
    gguf_close(&f->g);
}

static struct store_read *set_read(struct fixture *f, int i, int file, uint64_t offset, size_t n_bytes)
{
    mem_free(f->reads[i].buf);
    f->reads[i] = (struct store_read){.file = file, .offset = offset, .n_bytes = n_bytes, .user = &f->reads[i]};
    f->reads[i].buf = mem_alloc_aligned(STORE_ALIGN, store_read_room(offset, n_bytes));
    assert_non_null(f->reads[i].buf);
    return &f->reads[i];
}

/* Collects n reads, each once, waiting as long as there are any. */
static void collect(struct fixture *f, size_t n)
{
    struct store_read *done[7];
    bool seen[N_READ] = {0};
    while (n > 0) {
        size_t got = store_queue_collect(f->q, done, 7, true);
        assert_true(got >= 1 && got <= n);
        for (size_t i = 0; i < got; i++) {
            ptrdiff_t at = done[i] - f->reads;
            assert_true(at >= 0 && at < N_READ && !seen[at] && done[i]->user == done[i]);
            seen[at] = true;
        }
        n -= got;
    }
    assert_int_equal(store_queue_collect(f->q, done, 7, true), 0); /* nothing left, so no wait either */
}

static const struct store_queue_params engines[] = {
    {.depth = 4, .engine = STORE_ENGINE_PREAD, .direct = STORE_DIRECT_OFF},
    {.depth = 3, .engine = STORE_ENGINE_PREAD, .direct = STORE_DIRECT_AUTO},
    {.depth = 4, .engine = STORE_ENGINE_AUTO, .direct = STORE_DIRECT_OFF}, /* AUTO: io_uring where there is one */
    {.depth = 100, .engine = STORE_ENGINE_AUTO, .direct = STORE_DIRECT_AUTO},
    {.depth = 3, .engine = STORE_ENGINE_AUTO, .direct = STORE_DIRECT_AUTO},
    {0},
};
enum { N_ENGINE = sizeof engines / sizeof *engines };

static void experts_arrive_whole_from_every_engine(void **state)
{
    struct temp_path path = write_model("model.gguf");
    for (int n = 0; n < N_ENGINE; n++) {
        struct fixture f;
        open_files(&f, path.s, &engines[n]);
        assert_int_equal(store_n_layers(f.s), 2);
        assert_int_equal(store_get_layer(f.s, 0)->n_expert, 0);
        assert_int_equal(store_get_layer(f.s, 1)->n_expert, N_EXPERT);
        struct store_read *reads[N_READ];
        for (int i = 0; i < N_READ; i++) {
            struct store_blob b;
            store_expert_blob(f.s, 1, i % N_EXPERT, &b);
            assert_true(!b.packed && !b.has_crc);
            reads[i] = set_read(&f, i, b.part[i % 3].file, b.part[i % 3].offset, b.part[i % 3].n_bytes);
        }
        store_queue_submit(f.q, reads, N_READ);
        collect(&f, N_READ);
        for (int i = 0; i < N_READ; i++) {
            const char *p = f.reads[i].bytes;
            float first, last;
            assert_int_equal(f.reads[i].failure, 0);
            memcpy(&first, p, sizeof first);
            memcpy(&last, p + MATRIX_BYTES - sizeof last, sizeof last);
            float expected = (float)((i % 3 * N_EXPERT + i % N_EXPERT) * DIM * DIM);
            assert_true(first == expected && last == expected + DIM * DIM - 1);
        }
        assert_int_equal(store_get_counters(f.s).n_reads, N_READ);
        assert_int_equal(store_get_counters(f.s).n_bytes, N_READ * MATRIX_BYTES);
        close_all(&f);
    }
}

static void odd_ranges_arrive_as_a_plain_read_has_them(void **state)
{
    struct temp_path path = write_model("odd.gguf");
    struct random random = random_seed(5);
    for (int n = 0; n < N_ENGINE; n++) {
        struct fixture f;
        open_files(&f, path.s, &engines[n]);
        uint64_t size = gguf_file_bytes(f.g, 0);
        struct store_read *reads[N_READ];
        for (int i = 0; i < N_READ; i++) {
            uint64_t offset = random_u32(&random) % size, room = size - offset;
            size_t n_bytes = i == 0 ? 0 : 1 + random_u32(&random) % (i % 2 ? 100 : 100000);
            reads[i] = set_read(&f, i, 0, offset, n_bytes < room ? n_bytes : (size_t)room); /* some end at the end */
        }
        store_queue_submit(f.q, reads, N_READ);
        collect(&f, N_READ);
        for (int i = 0; i < N_READ; i++) {
            static char plain[100000];
            struct store_range r = {0, f.reads[i].offset, f.reads[i].n_bytes, plain};
            assert_int_equal(store_read(f.s, &r, 1, &f.e), ERR_OK);
            assert_int_equal(f.reads[i].failure, 0);
            assert_memory_equal(f.reads[i].bytes, plain, r.n_bytes);
        }
        close_all(&f);
    }
}

static void failures_come_with_the_completion(void **state)
{
    for (int n = 0; n < N_ENGINE; n++) {
        struct fixture f;
        struct temp_path path = write_model("cut.gguf");
        open_files(&f, path.s, &engines[n]);
        uint64_t size = gguf_file_bytes(f.g, 0), cut = size - 10001;
        assert_int_equal(truncate(path.s, (off_t)cut), 0);
        struct store_read *reads[] = {
            set_read(&f, 0, 0, size - 5, 6),       set_read(&f, 1, 1, 0, 1),
            set_read(&f, 2, 0, UINT64_MAX - 2, 9), set_read(&f, 3, 0, cut - 5000, 9000),
            set_read(&f, 4, 0, size - 900, 9),     set_read(&f, 5, 0, cut - 9, 9),
        };
        static const char *const said[] = {
            "goes beyond the file's", "a read from file 1 of a model in 1", "goes beyond the file's",
            "(tensor \"blk.1.ffn_down_exps.weight\"): the file ends", "the file ends there now"};
        store_queue_submit(f.q, reads, 6);
        collect(&f, 6);
        for (int i = 0; i < 5; i++) {
            assert_int_not_equal(f.reads[i].failure, 0);
            assert_int_equal(store_read_error(f.s, &f.reads[i], &f.e), i == 1 ? ERR_USAGE : ERR_IO);
            assert_non_null(strstr(f.e.text, said[i]));
        }
        assert_int_equal(f.reads[5].failure, 0); /* the last bytes that are left */
        close_all(&f);
    }
}

static void a_queue_may_be_closed_with_reads_in_it(void **state)
{
    struct temp_path path = write_model("close.gguf");
    for (int n = 0; n < N_ENGINE; n++) {
        struct fixture f;
        open_files(&f, path.s, &engines[n]);
        struct store_read *reads[N_READ];
        for (int i = 0; i < N_READ; i++)
            reads[i] = set_read(&f, i, 0, (uint64_t)i * 1000, 200000);
        store_queue_submit(f.q, reads, N_READ);
        close_all(&f); /* frees the buffers: nothing may write to them any more */
    }
}

static void impossible_queues_are_refused(void **state)
{
    struct fixture f;
    struct store_queue *q;
    open_files(&f, write_model("refuse.gguf").s, &engines[0]);
    struct store_queue_params p = {.depth = -1};
    assert_int_equal(store_queue_open(&q, f.s, &p, &f.e), ERR_USAGE);
    assert_null(q);
    p.depth = STORE_MAX_DEPTH + 1;
    assert_int_equal(store_queue_open(&q, f.s, &p, &f.e), ERR_USAGE);
    close_all(&f);
}

#if defined(MOEBIUS_WITH_IO_URING) && defined(__x86_64__)
/* What containers do: io_uring_setup is not permitted. */
static bool forbid_io_uring(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog prog = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

/* In a process of its own, because what is forbidden stays so. Exit codes tell what went wrong. */
static int read_without_io_uring(const char *path)
{
    struct gguf *g;
    struct store *s;
    struct store_queue *q;
    struct store_read r = {.offset = 5, .n_bytes = 10000}, *reads[] = {&r}, *done[1];
    struct err e = {0};
    if (!forbid_io_uring() || gguf_open(&g, path, &e) || store_open_gguf(&s, g, &e))
        return 2;
    if (store_queue_open(&q, s, &(struct store_queue_params){.engine = STORE_ENGINE_IO_URING}, &e) == ERR_OK ||
        !strstr(e.text, "io_uring: Operation not permitted"))
        return 3;
    if (store_queue_open(&q, s, NULL, &e))
        return 4;
    if (strncmp(store_queue_engine(q), "pread threads", 13) ||
        !strstr(store_queue_engine(q), "io_uring: Operation not"))
        return 5;
    r.buf = mem_alloc_aligned(STORE_ALIGN, store_read_room(r.offset, r.n_bytes));
    store_queue_submit(q, reads, 1);
    if (store_queue_collect(q, done, 1, true) != 1 || r.failure)
        return 6;
    store_queue_close(&q);
    store_close(&s);
    gguf_close(&g);
    mem_free(r.buf);
    return 0;
}

static void threads_read_where_io_uring_is_forbidden(void **state)
{
    struct temp_path path = write_model("seccomp.gguf");
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        _exit(read_without_io_uring(path.s));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
#endif

static void the_engine_says_how_it_reads(void **state)
{
    struct temp_path path = write_model("engine.gguf");
    struct fixture f;
    open_files(&f, path.s, &engines[0]);
    assert_string_equal(store_queue_engine(f.q), "pread threads, page cache");
    close_all(&f);
    open_files(&f, path.s, NULL);
#if defined(MOEBIUS_WITH_IO_URING)
    assert_true(!strncmp(store_queue_engine(f.q), "io_uring, ", 10) || strstr(store_queue_engine(f.q), "(io_uring: "));
#else
    assert_non_null(strstr(store_queue_engine(f.q), "(io_uring: not in this build"));
#endif
    close_all(&f);
}

/* ---- the fake ------------------------------------------------------------------------------------------------ */

static void open_fake(struct fixture *f)
{
    static uint8_t bytes[10000];
    static const struct store_fake_file files[] = {{"first", bytes, sizeof bytes}, {"second", bytes, sizeof bytes}};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 % 251);
    *f = (struct fixture){0};
    assert_int_equal(store_open_fake(&f->s, files, 2, &f->e), ERR_OK);
    assert_int_equal(store_queue_open(&f->q, f->s, NULL, &f->e), ERR_OK);
}

static void the_fake_takes_its_time(void **state)
{
    struct fixture f;
    struct store_read *done[3];
    open_fake(&f);
    store_fake_set_drive(f.s, (struct store_fake_drive){.latency_ns = 1000000, .bytes_per_s = 2000000});
    store_fake_add_fault(f.s, (struct store_fault){STORE_FAULT_SLOW, 0, 0, .n_times = 1});
    struct store_read *reads[] = {set_read(&f, 0, 0, 0, 4000), set_read(&f, 1, 0, 4000, 4000),
                                  set_read(&f, 2, 1, 0, 2000)};
    int64_t start = clock_ns();
    store_queue_submit(f.q, reads, 3);
    assert_int_equal(store_queue_collect(f.q, done, 3, false), 0);
    assert_int_equal(store_queue_collect(f.q, done, 1, true), 1); /* the first is slow, and the second overtakes it */
    assert_ptr_equal(done[0], reads[1]);
    assert_true(clock_ns() - start >= 5000000);
    assert_int_equal(store_queue_collect(f.q, done, 1, true), 1);
    assert_ptr_equal(done[0], reads[2]);
    assert_true(clock_ns() - start >= 6000000);
    assert_int_equal(store_queue_collect(f.q, done, 1, true), 1);
    assert_true(clock_ns() - start >= 3000000 + STORE_FAKE_SLOW_NS);
    assert_true(((const uint8_t *)reads[1]->bytes)[3999] == 7999 * 7 % 251);
    close_all(&f);
}

static void the_fake_fails_in_every_way(void **state)
{
    struct fixture f;
    open_fake(&f);
    store_fake_add_fault(f.s, (struct store_fault){STORE_FAULT_ERROR, 0, 10, .n_times = 1});
    store_fake_add_fault(f.s, (struct store_fault){STORE_FAULT_SHORT, 0, 1010, .n_times = 1});
    store_fake_add_fault(f.s, (struct store_fault){STORE_FAULT_CORRUPT, 0, 2010, .n_times = 1});
    store_fake_add_fault(f.s, (struct store_fault){STORE_FAULT_GONE, 1, 10, .n_times = 1});
    struct store_read *reads[5];
    for (int i = 0; i < 5; i++)
        reads[i] = set_read(&f, i, i / 3, (uint64_t)(i % 3) * 1000, 100);
    store_queue_submit(f.q, reads, 5);
    collect(&f, 5);
    static const char *const said[] = {"Input/output error", "the file ends there now", NULL, "No such device",
                                       "No such device"};
    for (int i = 0; i < 5; i++) {
        if (!said[i])
            continue;
        assert_int_equal(store_read_error(f.s, reads[i], &f.e), ERR_IO);
        assert_non_null(strstr(f.e.text, said[i]));
    }
    assert_int_equal(reads[2]->failure, 0);
    assert_int_equal(((const uint8_t *)reads[2]->bytes)[10], (2010 * 7 % 251) ^ 0xff);
    store_queue_submit(f.q, reads, 5); /* all were single faults, but for the device that is gone */
    collect(&f, 5);
    assert_true(reads[0]->failure == 0 && reads[1]->failure == 0 && reads[2]->failure == 0);
    assert_int_equal(((const uint8_t *)reads[2]->bytes)[10], 2010 * 7 % 251);
    assert_int_not_equal(reads[4]->failure, 0);
    close_all(&f);
}

static void a_checksum_tells_damage(void **state)
{
    struct fixture f;
    open_fake(&f);
    char bytes[16] = "some bytes here";
    struct store_blob b = {.part = {{.n_bytes = sizeof bytes, .crc = crc32c(0, bytes, sizeof bytes)}}};
    b.has_crc = true;
    assert_int_equal(store_blob_check(f.s, 3, 4, &b, 0, bytes, &f.e), ERR_OK);
    bytes[3] ^= 1;
    assert_int_equal(store_blob_check(f.s, 3, 4, &b, 0, bytes, &f.e), ERR_FORMAT);
    assert_non_null(strstr(f.e.text, "first: layer 3, expert 4: the 16 bytes at byte 0 are damaged"));
    b.has_crc = false;
    assert_int_equal(store_blob_check(f.s, 3, 4, &b, 0, bytes, &f.e), ERR_OK);
    close_all(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_arrive_whole_from_every_engine),
        cmocka_unit_test(odd_ranges_arrive_as_a_plain_read_has_them),
        cmocka_unit_test(failures_come_with_the_completion),
        cmocka_unit_test(a_queue_may_be_closed_with_reads_in_it),
        cmocka_unit_test(impossible_queues_are_refused),
        cmocka_unit_test(the_engine_says_how_it_reads),
#if defined(MOEBIUS_WITH_IO_URING) && defined(__x86_64__)
        cmocka_unit_test(threads_read_where_io_uring_is_forbidden),
#endif
        cmocka_unit_test(the_fake_takes_its_time),
        cmocka_unit_test(the_fake_fails_in_every_way),
        cmocka_unit_test(a_checksum_tells_damage),
    };
    return cmocka_run_group_tests_name("store queues", tests, folder_setup, folder_teardown);
}
