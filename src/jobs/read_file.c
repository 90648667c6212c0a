#include "jobs/read_file.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/pool.h"
#include "gguf/gguf.h"
#include "store/store.h"

enum { PIECE_BYTES = 2 * MEM_HUGE_PAGE }; /* whole pages, so that no two threads ask for the same one */

struct file_reader {
    struct gguf *gguf;
    struct store *store;
    struct pool *pool;
    char *memory;
    atomic_flag failed;
    err_code code;
    struct err err;
};

static size_t n_pieces(const struct file_reader *r, int file)
{
    return (size_t)((gguf_file_bytes(r->gguf, file) + PIECE_BYTES - 1) / PIECE_BYTES);
}

static void read_piece(void *arg, size_t task, int thread)
{
    struct file_reader *r = arg;
    struct err e;
    size_t piece = task;
    int file = 0;
    for (; piece >= n_pieces(r, file); file++)
        piece -= n_pieces(r, file);
    uint64_t offset = (uint64_t)piece * PIECE_BYTES, rest = gguf_file_bytes(r->gguf, file) - offset;
    const struct store_range range = {.file = file,
                                      .offset = offset,
                                      .n_bytes = rest < PIECE_BYTES ? (size_t)rest : PIECE_BYTES,
                                      .dst = r->memory + task * PIECE_BYTES};
    err_code code = store_read(r->store, &range, 1, &e);
    if (code != ERR_OK && !atomic_flag_test_and_set(&r->failed)) {
        r->code = code;
        r->err = e;
    }
}

err_code read_file_time(const char *path, int n_threads, bool hugetlb, double *seconds, uint64_t *n_bytes,
                        struct err *e)
{
    struct file_reader r = {.failed = ATOMIC_FLAG_INIT};
    err_code code;
    size_t n_task = 0;
    *n_bytes = 0;
    TRY_OUT(gguf_open(&r.gguf, path, e));
    TRY_OUT(store_open_gguf(&r.store, r.gguf, e));
    TRY_OUT(pool_create(&r.pool, n_threads ? n_threads : cpu_n_available(), e));
    for (int i = 0; i < gguf_n_files(r.gguf); i++) {
        n_task += n_pieces(&r, i);
        *n_bytes += gguf_file_bytes(r.gguf, i);
    }
    int64_t start_ns = clock_ns();
    if (hugetlb)
        mem_hugetlb_begin();
    r.memory = mem_map(n_task * PIECE_BYTES, MEM_SCRATCH);
    size_t n_elsewhere = hugetlb ? mem_hugetlb_end() : 0;
    if (!r.memory) {
        code = err_nomem(e, n_task * PIECE_BYTES, path);
        goto out;
    }
    if (n_elsewhere) {
        code = err_set(e, ERR_LIMIT,
                       "reading %s: %zu huge pages of 2 MiB are needed, and fewer are set aside "
                       "(vm.nr_hugepages)",
                       path, n_task * PIECE_BYTES / MEM_HUGE_PAGE);
        goto out;
    }
    pool_run(r.pool, n_task, read_piece, &r);
    *seconds = (double)(clock_ns() - start_ns) * 1e-9;
    code = r.code == ERR_OK ? ERR_OK : err_set(e, r.code, "%s", r.err.text);
out:
    mem_unmap(r.memory, n_task * PIECE_BYTES, MEM_SCRATCH);
    pool_close(&r.pool);
    store_close(&r.store);
    gguf_close(&r.gguf);
    return code;
}
