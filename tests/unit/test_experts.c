/* Expert slots over a fake store: what is read, evicted, held, in which order it becomes ready, and what happens when a
 * read fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "backend/vtable.h"
#include "base/pool.h"
#include "experts/experts.h"
#include "kernels/kernels.h"
#include "store_fake.h"

enum { DIM = 16, LARGE_DIM = 752, N_EXPERT = 6, N_LAYER = 2, N_SLOT = 3, FIRST_LAYER = 4 };

struct fixture {
    int64_t dim; /* of square matrices of floats */
    char *bytes; /* [layer][gate, up, down][expert], nowhere the same */
    struct store_fake_file file;
    struct store_layer layers[FIRST_LAYER + N_LAYER];
    struct expert_layer expert_layers[N_LAYER];
    struct pool *pool;
    struct backend *device;
    struct store *store;
    struct experts *experts;
    struct err e;
};

static size_t matrix_bytes(const struct fixture *f)
{
    return (size_t)(f->dim * f->dim) * 4;
}

static size_t matrix_off(const struct fixture *f, int layer, int part, int32_t expert)
{
    return (size_t)((layer * 3 + part) * N_EXPERT + expert) * matrix_bytes(f);
}

static int create(struct fixture *f, int64_t n_slot, bool deterministic)
{
    size_t slot_bytes = backend_slot_pool_slot_bytes(f->device, &f->expert_layers[0].shape);
    const struct experts_params p = {f->device, f->store,     f->pool, POLICY_LRU, (size_t)n_slot * slot_bytes,
                                     0,         deterministic};
    return experts_create(&f->experts, &p, f->expert_layers, N_LAYER, &f->e);
}

static int open_with(void **state, int64_t dim, int64_t n_slot, bool deterministic)
{
    struct fixture *f = calloc(1, sizeof *f);
    *state = f;
    f->dim = dim;
    size_t n_bytes = matrix_off(f, N_LAYER, 0, 0);
    f->bytes = calloc(1, n_bytes);
    for (size_t i = 0; i < n_bytes; i++)
        f->bytes[i] = (char)(i * 2654435761u >> 16);
    f->file = (struct store_fake_file){"fake.gguf", f->bytes, n_bytes};
    const struct quant_info *q = quant_info(QUANT_F32);
    for (int l = 0; l < N_LAYER; l++) {
        struct store_layer *s = &f->layers[FIRST_LAYER + l];
        f->expert_layers[l] = (struct expert_layer){FIRST_LAYER + l, N_EXPERT, 2, {{q, q, q}, dim, dim, 0}};
        s->n_expert = N_EXPERT;
        for (int i = 0; i < 3; i++)
            s->part[i] = (struct store_matrix){.type = q,
                                               .n_row = (uint64_t)dim,
                                               .k = (uint64_t)dim,
                                               .offset = matrix_off(f, l, i, 0),
                                               .stride_bytes = matrix_bytes(f),
                                               .n_bytes = matrix_bytes(f)};
    }
    if (pool_create(&f->pool, 2, &f->e) || backend_cpu_open(&f->device, f->pool, kernels_for(CPU_SCALAR), &f->e) ||
        store_open_fake(&f->store, &f->file, 1, &f->e))
        return -1;
    store_fake_set_layers(f->store, f->layers, FIRST_LAYER + N_LAYER);
    return create(f, n_slot, deterministic);
}

static int open_three(void **state)
{
    return open_with(state, DIM, N_SLOT, false);
}

static int open_deterministic(void **state)
{
    return open_with(state, DIM, N_SLOT, true);
}

static int open_eight(void **state)
{
    if (open_with(state, DIM, 8, false))
        return -1;
    struct fixture *f = *state;
    return experts_open(f->experts, 0, &f->e);
}

static int open_shallow(void **state)
{
    if (open_with(state, DIM, 8, false))
        return -1;
    struct fixture *f = *state;
    store_set_queue_params(f->store, &(struct store_queue_params){.depth = 1});
    return experts_open(f->experts, 0, &f->e);
}

static int open_all(void **state)
{
    return open_with(state, DIM, 0, false);
}

/* Matrices that are read and packed in pieces, of 368 and 384 rows. */
static int open_large(void **state)
{
    return open_with(state, LARGE_DIM, 0, false);
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    experts_close(&f->experts);
    store_close(&f->store);
    backend_close(&f->device);
    pool_close(&f->pool);
    free(f->bytes);
    free(f);
    return 0;
}

static int32_t only(const int32_t *table)
{
    int32_t found = -1;
    for (int32_t i = 0; i < N_EXPERT; i++)
        if (table[i] >= 0) {
            assert_int_equal(found, -1);
            found = i;
        }
    return found;
}

/* A device whose uploads end when they are waited for or the test says so. */
enum { LATE_SLOTS = N_LAYER * N_EXPERT };
static struct {
    struct backend_vtable vtable;     /* the device's own but for what follows */
    const struct backend_vtable *own; /* NULL: uploads take no time */
    atomic_ullong n_filled;           /* uploads that were begun; fence i: the first i of them */
    atomic_ullong filled[LATE_SLOTS]; /* the last one of each slot */
    uint64_t n_passed, n_waited;      /* uploads that have ended; times that somebody waited */
    atomic_int n_touched;             /* slots whose memory was touched */
    bool fails;
} late;

static void late_adopt(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                       const void *bytes, bool is_packed)
{
    late.own->slot_adopt(b, slot_pool, slot, matrix, bytes, is_packed);
    late.filled[slot] = ++late.n_filled;
}

static err_code late_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot, const struct slot_rows *rows,
                          struct err *e)
{
    TRY(late.own->slot_fill(b, slot_pool, slot, rows, e));
    late.filled[slot] = ++late.n_filled;
    return ERR_OK;
}

static uint64_t late_fence(struct backend *b)
{
    return late.n_filled;
}

static err_code late_poll(struct backend *b, uint64_t fence, bool wait, bool *is_passed, struct err *e)
{
    assert_true(fence <= late.n_filled);
    if (late.fails && fence > late.n_passed)
        return err_set(e, ERR_FAIL, "the device is lost");
    if (wait && fence > late.n_passed) {
        late.n_passed = fence;
        late.n_waited++;
    }
    *is_passed = fence <= late.n_passed;
    return ERR_OK;
}

static void late_touch(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    late.n_touched++;
}

static void make_late(struct fixture *f)
{
    late.own = f->device->v;
    late.vtable = *late.own;
    late.vtable.slot_adopt = late_adopt;
    late.vtable.slot_fill = late_fill;
    late.vtable.slot_touch = late_touch;
    late.vtable.upload_fence = late_fence;
    late.vtable.upload_poll = late_poll;
    late.n_filled = late.n_passed = late.n_waited = 0;
    late.n_touched = 0;
    memset(late.filled, 0, sizeof late.filled);
    late.fails = false;
    f->device->v = &late.vtable;
}

static int open_late(void **state)
{
    if (open_with(state, DIM, N_SLOT, false))
        return -1;
    make_late(*state);
    return 0;
}

static int open_all_late(void **state)
{
    if (open_with(state, DIM, 0, false))
        return -1;
    make_late(*state);
    return 0;
}

static int close_late(void **state)
{
    int failure = close_fixture(state);
    memset(&late, 0, sizeof late);
    return failure;
}

/* The slot holds what lies in the store for this expert. */
static void check_slot(struct fixture *f, int layer, int32_t expert, int32_t slot)
{
    assert_true(late.filled[slot] <= late.n_passed);
    struct slot_pool *slot_pool = experts_slot_pool(f->experts, layer);
    for (int i = 0; i < 3; i++) { /* packed at the start, or in the room where in a block it begins in the store */
        size_t off = matrix_off(f, layer, i, expert);
        const char *packed = backend_slot_room(f->device, slot_pool, slot, i, true);
        const char *raw = (const char *)backend_slot_room(f->device, slot_pool, slot, i, false) + off % STORE_ALIGN;
        bool is_packed = memcmp(packed, f->bytes + off, matrix_bytes(f)) == 0;
        assert_memory_equal(is_packed ? packed : raw, f->bytes + off, matrix_bytes(f));
    }
}

/* A whole fetch for one token; the number of misses it took. Every expert is given once, with its own bytes. */
static uint64_t use(struct fixture *f, int layer, int32_t a, int32_t b)
{
    int32_t ids[2] = {a, b}, table[N_EXPERT];
    int64_t n_used = b < 0 ? 1 : 2, n, n_given = 0;
    uint64_t before = experts_counters(f->experts).n_miss;
    experts_fetch_begin(f->experts, layer, ids, 1, n_used, true);
    for (;;) {
        assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
        if (n == 0)
            break;
        for (int32_t i = 0; i < N_EXPERT; i++)
            if (table[i] >= 0) {
                assert_true(i == a || i == b);
                check_slot(f, layer, i, table[i]);
                n_given++;
            }
    }
    experts_fetch_end(f->experts);
    assert_int_equal(n_given, n_used);
    return experts_counters(f->experts).n_miss - before;
}

static void least_recently_used_goes_first(void **state)
{
    struct fixture *f = *state;
    assert_false(experts_is_resident(f->experts, 0));
    assert_int_equal(use(f, 0, 0, 1), 2);
    assert_int_equal(use(f, 0, 2, -1), 1);
    assert_int_equal(use(f, 0, 0, -1), 0);
    assert_int_equal(use(f, 0, 3, -1), 1); /* in place of 1 */
    assert_int_equal(use(f, 0, 0, 2), 0);
    assert_int_equal(use(f, 0, 1, -1), 1); /* in place of 3 */
    assert_int_equal(use(f, 0, 0, 2), 0);
    struct experts_counters c = experts_counters(f->experts);
    assert_int_equal(c.n_evicted, 2);
    assert_int_equal(c.n_read, 5);
    assert_int_equal(c.n_read_bytes, 5 * 3 * matrix_bytes(f));
    assert_int_equal(c.n_decode_miss, 5);
    assert_int_equal(c.n_many_bytes, 0); /* no fetch was for several tokens */
    assert_int_equal(c.many_ns, 0);
}

static void layers_of_one_shape_share_the_slots(void **state)
{
    struct fixture *f = *state;
    assert_ptr_equal(experts_slot_pool(f->experts, 0), experts_slot_pool(f->experts, 1));
    assert_int_equal(use(f, 0, 0, 1), 2);
    assert_int_equal(use(f, 1, 0, -1), 1);
    assert_int_equal(use(f, 0, 0, 1), 0); /* layer 1's expert 0 is another one and took no slot of theirs */
    assert_int_equal(use(f, 1, 0, -1), 0);
}

static void a_fetch_needs_no_more_than_one_slot(void **state)
{
    struct fixture *f = *state;
    int32_t ids[N_EXPERT] = {5, 0, 3, 1, 4, 2}, table[N_EXPERT];
    int64_t n, n_given = 0;
    use(f, 0, 0, 1);
    experts_fetch_begin(f->experts, 0, ids, 3, 2, false); /* six experts through three slots */
    do {
        assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
        for (int32_t i = 0; i < N_EXPERT; i++)
            if (table[i] >= 0)
                check_slot(f, 0, i, table[i]);
        n_given += n;
    } while (n > 0);
    assert_int_equal(n_given, N_EXPERT);
    const struct experts_counters c = experts_counters(f->experts);
    assert_int_equal(c.n_hit, 2);
    assert_int_equal(c.n_many_bytes, 4 * 3 * matrix_bytes(f));
    assert_true(c.many_ns > 0);
}

static void what_is_there_comes_before_what_is_read(void **state)
{
    struct fixture *f = *state;
    int32_t ids[2] = {4, 1}, table[N_EXPERT];
    int64_t n;
    use(f, 0, 1, -1);
    store_fake_set_drive(f->store, (struct store_fake_drive){.latency_ns = 20 * 1000 * 1000});
    experts_fetch_begin(f->experts, 0, ids, 1, 2, true);
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(only(table), 1);
    assert_true(experts_counters(f->experts).stall_ns < 20 * 1000 * 1000); /* it did not wait for the other */
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(only(table), 4);
    assert_true(experts_counters(f->experts).stall_ns > 0);
    check_slot(f, 0, 4, table[4]);
}

static void held_experts_keep_their_slots(void **state)
{
    struct fixture *f = *state;
    int32_t ids[2] = {0, 1}, table[N_EXPERT], again[N_EXPERT];
    int64_t n;
    use(f, 0, 0, 1);
    experts_fetch_begin(f->experts, 0, ids, 1, 2, true);
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(n, 2);
    const int32_t others[3] = {2, 3, 4};
    experts_prefetch(f->experts, 0, others, 3, false); /* all through the one slot that is not held */
    memcpy(again, table, sizeof again);
    check_slot(f, 0, 0, again[0]);
    check_slot(f, 0, 1, again[1]);
    experts_fetch_end(f->experts);
    assert_int_equal(use(f, 0, 0, 1), 0);
}

static void a_good_guess_saves_the_read(void **state)
{
    struct fixture *f = *state;
    const int32_t guess[2] = {2, 5};
    use(f, 0, 0, -1);
    experts_prefetch(f->experts, 1, guess, 2, false);
    use(f, 1, 2, -1);
    struct experts_counters c = experts_counters(f->experts);
    assert_int_equal(c.n_prefetched, 1); /* a quarter of the slots may wait for a guess */
    assert_int_equal(c.n_prefetch_used, 1);
    assert_int_equal(c.n_read, 2);
}

/* Lets the device work until so many experts have arrived. */
static void work_until(struct fixture *f, uint64_t n_read)
{
    struct tensor t;
    assert_int_equal(backend_tensor_create(f->device, ELEM_F32, DIM, 1, 1, MEM_SCRATCH, &t, &f->e), ERR_OK);
    while (experts_counters(f->experts).n_read < n_read)
        backend_enqueue(f->device, &(struct op){.kind = OP_ADD, .in = {t, t}, .out = {t}});
    backend_buffer_close(f->device, &t.buffer);
}

static void a_guess_before_any_fetch_is_for_one_token(void **state)
{
    struct fixture *f = *state;
    const int32_t guess[2] = {2, 5};
    experts_prefetch(f->experts, 0, guess, 2, false);
    work_until(f, 1);
    use(f, 0, 2, -1);
    assert_int_equal(experts_counters(f->experts).n_prefetch_used, 1);
    assert_int_equal(experts_counters(f->experts).n_many_bytes, 0);
}

static void guesses_are_read_one_by_one_and_kept(void **state)
{
    struct fixture *f = *state;
    const int32_t guess[3] = {2, 5, 1};
    use(f, 0, 0, -1);
    experts_prefetch(f->experts, 1, guess, 3, false);
    assert_int_equal(experts_counters(f->experts).n_prefetched, 1);
    work_until(f, 3);
    assert_int_equal(experts_counters(f->experts).n_prefetched, 2); /* a quarter of eight slots */
    assert_int_equal(use(f, 1, 5, 2), 0);
    assert_int_equal(experts_counters(f->experts).n_prefetch_used, 2);
    for (int32_t i = 0; i < N_EXPERT; i++) /* nothing is held any more */
        use(f, 0, i, -1);
    use(f, 1, 0, 1);
    assert_int_equal(use(f, 0, 5, 4), 0);
}

static void a_guess_names_no_expert_that_is_there_and_none_twice(void **state)
{
    struct fixture *f = *state;
    const int32_t guess[5] = {0, 2, 2, 0, 5};
    use(f, 1, 0, -1);
    experts_prefetch(f->experts, 1, guess, 5, true);
    work_until(f, 3);
    assert_int_equal(experts_counters(f->experts).n_prefetched, 2);
    assert_int_equal(use(f, 1, 2, 5), 0);
    assert_int_equal(experts_counters(f->experts).n_prefetch_used, 2);
}

static void nap(void *arg, size_t task, int thread)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void what_arrives_within_a_loop_is_taken_in(void **state)
{
    struct fixture *f = *state;
    const int32_t guess[2] = {2, 5};
    use(f, 0, 0, -1);
    store_fake_set_drive(f->store, (struct store_fake_drive){.latency_ns = 2 * 1000 * 1000});
    experts_prefetch(f->experts, 1, guess, 2, true);
    assert_int_equal(experts_counters(f->experts).n_read, 1);
    pool_run(f->pool, 200, nap, NULL);
    assert_int_equal(experts_counters(f->experts).n_read, 3);
    assert_int_equal(use(f, 1, 2, 5), 0);
}

static void a_likely_guess_is_read_at_once(void **state)
{
    struct fixture *f = *state;
    const int32_t guess[6] = {2, 5, 2, 1, 5, 0};
    use(f, 0, 0, -1);
    experts_prefetch(f->experts, 1, guess, 6, true);
    assert_int_equal(experts_counters(f->experts).n_prefetched, 2);
    assert_int_equal(use(f, 0, 1, -1), 1); /* another fetch than it was made for */
    use(f, 1, 2, 5);
}

static void a_wrong_guess_is_not_read_to_the_end(void **state)
{
    struct fixture *f = *state;
    const int32_t guess[2] = {2, 5}, better[1] = {4};
    use(f, 0, 0, -1);
    store_fake_set_drive(f->store, (struct store_fake_drive){.latency_ns = 5 * 1000 * 1000});
    experts_prefetch(f->experts, 1, guess, 2, false);
    use(f, 0, 1, -1); /* after the one part of the guess that was on its way, nothing but this */
    assert_int_equal(store_get_counters(f->store).n_reads, 3 + 1 + 3);
    experts_prefetch(f->experts, 1, guess, 2, false);
    experts_prefetch(f->experts, 0, better, 1, false);
    assert_int_equal(use(f, 1, 2, -1), 1); /* given up, and then it was right */
    assert_int_equal(store_get_counters(f->store).n_reads, 3 + 1 + 3 + 3);
}

static void a_guess_gets_better_until_all_that_is_needed_is_there(void **state)
{
    struct fixture *f = *state;
    const int32_t ids[2] = {0, 1}, guess[1] = {2}, better[1] = {5};
    int32_t table[N_EXPERT];
    int64_t n;
    use(f, 0, 3, -1);
    assert_false(experts_may_predict(f->experts));
    store_fake_set_drive(f->store, (struct store_fake_drive){.latency_ns = 5 * 1000 * 1000});
    experts_fetch_begin(f->experts, 0, ids, 1, 2, true);
    experts_prefetch(f->experts, 1, guess, 1, false);
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(n, 1);
    assert_int_equal(experts_counters(f->experts).n_prefetched, 0); /* parts of the other one still wait */
    assert_true(experts_may_predict(f->experts));
    experts_prefetch(f->experts, 1, better, 1, false);
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(n, 1);
    assert_int_equal(experts_counters(f->experts).n_prefetched, 1);
    assert_false(experts_may_predict(f->experts));
    experts_fetch_end(f->experts);
    use(f, 1, 5, -1);
    assert_int_equal(experts_counters(f->experts).n_prefetch_used, 1);
}

/* Its reads arrive as guesses, which are held: in all slots while what the next fetch lacks has none. */
static void a_fetch_that_ended_early_leaves_slots_to_the_next(void **state)
{
    struct fixture *f = *state;
    int32_t cancelled[3] = {3, 4, 5}, ids[3] = {0, 1, 2}, table[N_EXPERT];
    int64_t n, n_given = 0;
    use(f, 0, 0, -1);
    store_fake_set_drive(f->store, (struct store_fake_drive){.latency_ns = 5 * 1000 * 1000});
    experts_fetch_begin(f->experts, 1, cancelled, 3, 1, false); /* three slots */
    experts_fetch_begin(f->experts, 0, ids, 3, 1, false);
    experts_prefetch(f->experts, 1, cancelled, 3, false);
    do {
        assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
        n_given += n;
    } while (n > 0);
    experts_fetch_end(f->experts);
    assert_int_equal(n_given, 3);
    use(f, 1, 3, -1);
    assert_int_equal(use(f, 0, 1, 2), 0);
}

static void failed_read_names_layer_and_expert_and_holds_nothing(void **state)
{
    struct fixture *f = *state;
    int32_t ids[3] = {0, 5, 1}, table[N_EXPERT];
    int64_t n;
    err_code code;
    use(f, 0, 1, -1);
    store_fake_add_fault(f->store, (struct store_fault){STORE_FAULT_ERROR, 0, matrix_off(f, 0, 1, 5) + 7, 0, 1});
    experts_fetch_begin(f->experts, 0, ids, 1, 3, true);
    while ((code = experts_fetch_next(f->experts, table, &n, &f->e)) == ERR_OK)
        assert_true(n > 0 && table[5] < 0);
    assert_int_equal(code, ERR_IO);
    assert_non_null(strstr(f->e.text, "layer 4, expert 5"));
    assert_non_null(strstr(f->e.text, "fake.gguf"));
    assert_int_equal(use(f, 0, 5, -1), 1); /* it was once only, and 5 was not taken for read */
    const int32_t others[3] = {2, 3, 4};   /* needs every slot: nothing may still be held */
    experts_fetch_begin(f->experts, 0, others, 1, 3, true);
    for (int64_t n_given = 0; n_given < 3; n_given += n) {
        assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
        assert_true(n > 0);
    }
}

static void a_wrong_guess_may_fail_in_silence(void **state)
{
    struct fixture *f = *state;
    const int32_t guess[1] = {3};
    store_fake_add_fault(f->store, (struct store_fault){STORE_FAULT_SHORT, 0, matrix_off(f, 1, 0, 3), 0, 1});
    use(f, 0, 0, -1);
    experts_prefetch(f->experts, 1, guess, 1, false);
    assert_int_equal(use(f, 0, 0, 1), 1);
    assert_int_equal(use(f, 1, 3, -1), 1); /* and is read when it is needed after all */
}

/* Lets the device work for a moment. */
static void work(struct fixture *f)
{
    struct tensor t;
    assert_int_equal(backend_tensor_create(f->device, ELEM_F32, DIM, 1, 1, MEM_SCRATCH, &t, &f->e), ERR_OK);
    for (int i = 0; i < 10; i++)
        backend_enqueue(f->device, &(struct op){.kind = OP_ADD, .in = {t, t}, .out = {t}});
    backend_buffer_close(f->device, &t.buffer);
}

/* Whether just these experts of a layer are at hand; -1 stands for none. */
static void assert_at_hand(struct fixture *f, int layer, int32_t a, int32_t b, int32_t c)
{
    bool at_hand[N_EXPERT];
    experts_look(f->experts, layer, at_hand);
    for (int32_t i = 0; i < N_EXPERT; i++)
        assert_int_equal(at_hand[i], i == a || i == b || i == c);
}

/* ---- uploads -------------------------------------------------------------------------------------------------- */

static void opening_touches_the_memory_of_open_slots(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(experts_open(f->experts, 0, &f->e), ERR_OK);
    assert_int_equal(late.n_touched, N_SLOT);
}

static void an_expert_is_given_once_it_is_on_the_device(void **state)
{
    struct fixture *f = *state;
    for (int32_t i = 0; i < N_EXPERT; i++)
        use(f, i % 2, i, (i + 1) % N_EXPERT); /* which looks at each slot */
    assert_true(late.n_waited > 0);
    assert_int_equal(late.n_passed, late.n_filled);
    assert_true(experts_counters(f->experts).stall_ns > 0);
}

static void what_is_there_comes_before_what_is_uploaded(void **state)
{
    struct fixture *f = *state;
    int32_t ids[2] = {4, 1}, table[N_EXPERT];
    int64_t n;
    use(f, 0, 1, -1);
    uint64_t n_waited = late.n_waited;
    experts_fetch_begin(f->experts, 0, ids, 1, 2, true);
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(only(table), 1);
    assert_int_equal(late.n_filled, 2 * EXPERT_N_MATRIX); /* the other has been read */
    assert_int_equal(late.n_waited, n_waited);
    assert_at_hand(f, 0, 1, -1, -1);
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(only(table), 4);
    check_slot(f, 0, 4, table[4]);
    assert_int_equal(late.n_waited, n_waited + 1);
}

static void a_guess_is_at_hand_once_it_is_on_the_device(void **state)
{
    struct fixture *f = *state;
    const int32_t guess[1] = {2};
    use(f, 0, 0, -1);
    uint64_t n_waited = late.n_waited;
    experts_prefetch(f->experts, 1, guess, 1, false);
    work(f);
    assert_int_equal(late.n_filled, 2 * EXPERT_N_MATRIX);
    assert_at_hand(f, 1, -1, -1, -1);
    late.n_passed = late.n_filled;
    work(f);
    assert_at_hand(f, 1, 2, -1, -1);
    assert_int_equal(use(f, 1, 2, -1), 0);
    assert_int_equal(late.n_waited, n_waited);
    experts_prefetch(f->experts, 0, &(int32_t){5}, 1, false);
    work(f);
    assert_int_equal(use(f, 1, 2, -1), 0); /* another guess is given up while it is uploaded */
    assert_int_equal(use(f, 0, 5, 4), 2);
    experts_forget(f->experts);
    assert_int_equal(use(f, 1, 2, 3), 2);
}

static void failed_upload_names_layer_and_expert_and_holds_nothing(void **state)
{
    struct fixture *f = *state;
    const int32_t ids[2] = {5, 1}, others[3] = {2, 3, 4};
    int32_t table[N_EXPERT];
    int64_t n;
    err_code code;
    use(f, 0, 1, -1);
    late.fails = true;
    experts_fetch_begin(f->experts, 0, ids, 1, 2, true);
    while ((code = experts_fetch_next(f->experts, table, &n, &f->e)) == ERR_OK)
        assert_int_equal(only(table), 1);
    assert_int_equal(code, ERR_FAIL);
    assert_non_null(strstr(f->e.text, "layer 4, expert 5: the device is lost"));
    late.fails = false;
    assert_int_equal(use(f, 0, 5, -1), 1);
    experts_fetch_begin(f->experts, 0, others, 1, 3, true); /* needs every slot */
    for (int64_t n_given = 0; n_given < 3; n_given += n) {
        assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
        assert_true(n > 0);
    }
}

static void loading_fails_when_an_upload_fails(void **state)
{
    struct fixture *f = *state;
    late.fails = true;
    assert_int_equal(experts_load(f->experts, NULL, NULL, &f->e), ERR_FAIL);
    assert_non_null(strstr(f->e.text, "the device is lost"));
    assert_false(experts_all_resident(f->experts));
}

static void loading_waits_for_uploads(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(experts_load(f->experts, NULL, NULL, &f->e), ERR_OK);
    assert_true(late.n_filled > 0);
    assert_int_equal(late.n_passed, late.n_filled);
    for (int layer = 0; layer < N_LAYER; layer++)
        assert_true(experts_is_resident(f->experts, layer));
}

/* ---- substitutes ---------------------------------------------------------------------------------------------- */

/* A fetch for one token that wanted an expert and gets another, which is there. */
static void use_instead(struct fixture *f, int layer, int32_t wanted, int32_t id, float score, int n_backfill)
{
    float scores[N_EXPERT] = {0}, ratio = 0.5f;
    int32_t table[N_EXPERT];
    int64_t n;
    scores[wanted] = score;
    const struct experts_choice c = {.n_tok = 1,
                                     .n_used = 1,
                                     .wanted = &wanted,
                                     .ids = &id,
                                     .is_decode = true,
                                     .n_car = 1,
                                     .ratio = &ratio,
                                     .scores = scores,
                                     .n_backfill = n_backfill};
    experts_fetch_begin_instead(f->experts, layer, &c);
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(only(table), id);
    check_slot(f, layer, id, table[id]);
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(n, 0);
}

static void an_expert_on_its_way_is_not_at_hand(void **state)
{
    struct fixture *f = *state;
    const int32_t guess = 4;
    use(f, 0, 1, -1);
    assert_at_hand(f, 0, 1, -1, -1);
    store_fake_set_drive(f->store, (struct store_fake_drive){.latency_ns = 10 * 1000 * 1000});
    experts_prefetch(f->experts, 0, &guess, 1, false);
    assert_at_hand(f, 0, 1, -1, -1);
    assert_int_equal(use(f, 0, 4, -1), 1);
    assert_at_hand(f, 0, 1, 4, -1);
}

static void what_was_wanted_counts_and_not_what_stood_in(void **state)
{
    struct fixture *f = *state;
    use(f, 0, 0, 1);
    use(f, 0, 1, -1);
    uint64_t n_read = experts_counters(f->experts).n_read;
    use_instead(f, 0, 5, 0, 0.4f, 0);
    use_instead(f, 0, 5, 0, 0.4f, 0);
    struct experts_counters c = experts_counters(f->experts);
    assert_int_equal(c.n_read, n_read);
    assert_int_equal(c.n_substituted, 2);
    assert_int_equal(c.n_spared, 2);
    assert_true(c.ratio_sum == 1);
    const struct usage *u = experts_usage(f->experts);
    assert_int_equal(u->count[5], 2);
    assert_int_equal(u->count[0], 1);
    use(f, 0, 2, 3); /* 0 goes, though it was used last: nobody has wanted it for longest */
    assert_at_hand(f, 0, 1, 2, 3);
}

static void idle_time_brings_what_was_stood_in_for(void **state)
{
    struct fixture *f = *state;
    use(f, 0, 0, 1);
    use_instead(f, 0, 4, 0, 0.2f, 1);
    use_instead(f, 0, 5, 0, 0.3f, 1); /* a new token: only now may 4 be read, and 5 has the higher score */
    experts_fetch_end(f->experts);
    experts_backfill(f->experts);
    experts_backfill(f->experts); /* one a token */
    assert_int_equal(experts_counters(f->experts).n_backfilled, 1);
    use(f, 0, 0, -1); /* the next token lets the next one in */
    assert_at_hand(f, 0, 0, 1, 4);
    experts_backfill(f->experts);
    assert_int_equal(experts_counters(f->experts).n_backfilled, 2);
    assert_int_equal(use(f, 0, 5, -1), 1); /* on its way */
    assert_at_hand(f, 0, 0, 4, 5);
    use(f, 0, 0, -1);
    experts_backfill(f->experts); /* nobody asked for more */
    assert_int_equal(experts_counters(f->experts).n_backfilled, 2);
}

/* Each token's score decides about what stood in for its own expert. */
static void tokens_of_one_fetch_have_scores_of_their_own(void **state)
{
    struct fixture *f = *state;
    const float ratio[2] = {0.5f, 0.25f}, scores[2 * N_EXPERT] = {[4] = 0.2f, [N_EXPERT + 5] = 0.4f};
    const int32_t wanted[3] = {4, 5, 1}, ids[3] = {0, 1, 1};
    int32_t table[N_EXPERT];
    int64_t n;
    use(f, 0, 0, 1);
    const struct experts_choice c = {.n_tok = 3,
                                     .n_used = 1,
                                     .wanted = wanted,
                                     .ids = ids,
                                     .n_car = 2,
                                     .ratio = ratio,
                                     .scores = scores,
                                     .n_backfill = 1};
    experts_fetch_begin_instead(f->experts, 0, &c);
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(experts_counters(f->experts).n_substituted, 2);
    assert_true(experts_counters(f->experts).ratio_sum == 0.75);
    assert_int_equal(experts_usage(f->experts)->count[5], 1);
    use(f, 0, 0, 1); /* the next token */
    experts_backfill(f->experts);
    assert_int_equal(experts_counters(f->experts).n_backfilled, 1);
    use(f, 0, 0, 1); /* it arrives */
    assert_at_hand(f, 0, 0, 1, 5);
}

static void fetches_for_sampled_tokens_are_counted_apart(void **state)
{
    struct fixture *f = *state;
    const int32_t ids[4] = {0, 1, 0, 2};
    for (int is_decode = 0; is_decode < 2; is_decode++)
        for (int i = 0; i < 2; i++) {
            int32_t table[N_EXPERT];
            int64_t n;
            experts_fetch_begin(f->experts, 0, ids, 2, 2, is_decode);
            do {
                assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
            } while (n > 0);
        }
    struct experts_counters c = experts_counters(f->experts);
    assert_int_equal(c.n_miss, 3);
    assert_int_equal(c.n_hit, 9);
    assert_int_equal(c.n_decode_miss, 0);
    assert_int_equal(c.n_decode_hit, 6);
}

static void demanded_reads_go_first(void **state)
{
    struct fixture *f = *state;
    int32_t ids[2] = {0, 3}, table[N_EXPERT];
    int64_t n;
    use(f, 0, 0, 1);
    use_instead(f, 0, 4, 0, 0.2f, 2);
    store_fake_set_drive(f->store, (struct store_fake_drive){.latency_ns = 10 * 1000 * 1000});
    experts_fetch_begin(f->experts, 0, ids, 1, 2, true); /* 3 is to be read */
    experts_backfill(f->experts);
    assert_int_equal(experts_counters(f->experts).n_backfilled, 0);
    do {
        assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    } while (n > 0);
    experts_backfill(f->experts);
    assert_int_equal(experts_counters(f->experts).n_backfilled, 1);
}

static void a_deterministic_look_does_not_depend_on_the_drive(void **state)
{
    struct fixture *f = *state;
    const int32_t first[2] = {0, 1}, second = 2, third = 3;
    store_fake_set_drive(f->store, (struct store_fake_drive){.latency_ns = 20 * 1000 * 1000});
    assert_at_hand(f, 0, -1, -1, -1);
    experts_fetch_begin(f->experts, 0, first, 1, 2, true);
    assert_at_hand(f, 0, 0, 1, -1); /* nothing has arrived */
    experts_fetch_begin(f->experts, 0, &second, 1, 1, true);
    experts_fetch_begin(f->experts, 0, &third, 1, 1, true);
    assert_at_hand(f, 0, 1, 2, 3);
    use_instead(f, 0, 5, 3, 0.3f, 1);
    assert_at_hand(f, 0, 1, 2, 3);
    experts_fetch_begin(f->experts, 0, &third, 1, 1, true); /* a token later 5 counts as there, read or not */
    assert_at_hand(f, 0, 2, 3, 5);
    assert_int_equal(use(f, 0, 5, -1), 1);
}

static void after_forgetting_nothing_is_there_and_nothing_known(void **state)
{
    struct fixture *f = *state;
    const int32_t guess = 4;
    use(f, 0, 0, 1);
    use_instead(f, 0, 5, 0, 0.4f, 1);
    experts_prefetch(f->experts, 0, &guess, 1, false);
    experts_forget(f->experts);
    assert_at_hand(f, 0, -1, -1, -1);
    assert_int_equal(use(f, 0, 0, 1), 2);
    experts_backfill(f->experts);
    assert_int_equal(experts_counters(f->experts).n_backfilled, 0);
    use(f, 0, 2, -1);
    use(f, 0, 4, -1); /* the one used longest ago goes, as ever */
    assert_at_hand(f, 0, 1, 2, 4);
}

static void all_experts_are_resident_after_loading(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(experts_load(f->experts, NULL, NULL, &f->e), ERR_OK);
    assert_true(experts_all_resident(f->experts));
    for (int l = 0; l < N_LAYER; l++) {
        int32_t slots[N_EXPERT];
        assert_int_equal(backend_read(f->device, experts_pin(f->experts, l), slots, &f->e), ERR_OK);
        experts_unpin(f->experts, l);
        for (int32_t i = 0; i < N_EXPERT; i++)
            check_slot(f, l, i, slots[i]);
    }
    assert_int_equal(experts_counters(f->experts).n_read_bytes, f->file.n_bytes);
}

static void failed_load_is_reported(void **state)
{
    struct fixture *f = *state;
    store_fake_add_fault(f->store, (struct store_fault){STORE_FAULT_SHORT, 0, matrix_off(f, 0, 0, 3) + 1, 0, 1});
    assert_int_equal(experts_load(f->experts, NULL, NULL, &f->e), ERR_IO);
    assert_non_null(strstr(f->e.text, "layer 4, expert 3"));
    assert_false(experts_is_resident(f->experts, 0));
}

static void a_warm_start_finds_what_was_used_most(void **state)
{
    struct fixture *f = *state;
    struct usage past;
    const int32_t seen[] = {3, 3, 3, 1, 1, 0}, other[] = {2, 2, 2, 2, 0, 1};
    assert_int_equal(usage_create(&past, N_LAYER, N_EXPERT, &f->e), ERR_OK);
    usage_add(&past, 0, seen, 6);
    usage_add(&past, 1, other, 6);
    assert_int_equal(experts_warm(f->experts, &past, &f->e), ERR_OK);
    usage_close(&past);
    assert_int_equal(use(f, 1, 2, -1), 0);
    assert_int_equal(use(f, 0, 3, 1), 0);
    assert_int_equal(experts_counters(f->experts).n_evicted, 0);
}

static void a_guess_that_was_forgotten_saved_no_read(void **state)
{
    struct fixture *f = *state;
    struct usage past;
    const int32_t guess = 4;
    experts_prefetch(f->experts, 0, &guess, 1, false);
    work_until(f, 1);
    experts_forget(f->experts);
    assert_int_equal(usage_create(&past, N_LAYER, N_EXPERT, &f->e), ERR_OK);
    usage_add(&past, 0, &guess, 1);
    assert_int_equal(experts_warm(f->experts, &past, &f->e), ERR_OK);
    usage_close(&past);
    assert_int_equal(use(f, 0, 4, -1), 0);
    assert_int_equal(experts_counters(f->experts).n_prefetch_used, 0);
}

static void memory_that_is_asked_back_is_given(void **state)
{
    struct fixture *f = *state;
    size_t slot_bytes = backend_slot_pool_slot_bytes(f->device, &f->expert_layers[0].shape);
    assert_int_equal(experts_load(f->experts, NULL, NULL, &f->e), ERR_OK);
    size_t all = experts_open_bytes(f->experts);
    assert_int_equal(all, N_LAYER * N_EXPERT * slot_bytes);
    assert_true(mem_set_limit(mem_total_bytes(), NULL, NULL));
    experts_reclaim(f->experts, 4 * slot_bytes);
    assert_int_equal(experts_open_bytes(f->experts), all - 4 * slot_bytes);
    assert_int_equal(mem_room_bytes(), 4 * slot_bytes);
    assert_false(experts_is_resident(f->experts, 0));
    mem_lift_limit();
    for (int32_t i = 0; i < N_EXPERT; i++)
        use(f, 1, i, -1); /* right all the same */
    assert_true(mem_set_limit(mem_total_bytes(), NULL, NULL));
    experts_reclaim(f->experts, 2 * all); /* more than can be spared */
    assert_int_equal(experts_open_bytes(f->experts), experts_min_bytes(f->experts));
    mem_lift_limit();
    assert_int_equal(use(f, 0, 3, 4), 2);
}

static void reclaim(void *experts, size_t n_bytes)
{
    experts_reclaim(experts, n_bytes);
}

/* EXPERTS of layer 0 for m tokens by sorted dispatch: y [m * 2 * DIM]. With a limit on memory no byte is free when the
 * operation begins. */
static err_code run_experts(struct fixture *f, int64_t m, bool with_limit, float *y)
{
    struct tensor x, ids, out;
    float values[DIM];
    int32_t chosen[2];
    assert_int_equal(backend_tensor_create(f->device, ELEM_F32, DIM, m, 1, MEM_SCRATCH, &x, &f->e), ERR_OK);
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, 2, m, 1, MEM_SCRATCH, &ids, &f->e), ERR_OK);
    assert_int_equal(backend_tensor_create(f->device, ELEM_F32, DIM, 2, m, MEM_SCRATCH, &out, &f->e), ERR_OK);
    for (int64_t t = 0; t < m; t++) {
        struct tensor x_row = tensor_rows(x, t, 1), ids_row = tensor_rows(ids, t, 1);
        for (int64_t i = 0; i < DIM; i++)
            values[i] = (float)((t + i) % 17) / 16;
        chosen[0] = (int32_t)(t % N_EXPERT);
        chosen[1] = (int32_t)((t + 1 + t / N_EXPERT % 5) % N_EXPERT);
        backend_write(f->device, &x_row, values);
        backend_write(f->device, &ids_row, chosen);
    }
    if (with_limit)
        assert_true(mem_set_limit(mem_total_bytes(), reclaim, f->experts));
    backend_enqueue(
        f->device,
        &(struct op){.kind = OP_EXPERTS,
                     .in = {[EXPERTS_X] = x, [EXPERTS_IDS] = ids, [EXPERTS_SLOTS] = *experts_pin(f->experts, 0)},
                     .out = {out},
                     .slot_pool = experts_slot_pool(f->experts, 0),
                     .experts = {ACT_SILU, 1, NULL}});
    err_code code = backend_read(f->device, &out, y, &f->e);
    experts_unpin(f->experts, 0);
    mem_lift_limit();
    backend_buffer_close(f->device, &x.buffer);
    backend_buffer_close(f->device, &ids.buffer);
    backend_buffer_close(f->device, &out.buffer);
    backend_trim(f->device);
    return code;
}

static void load_small_numbers(struct fixture *f)
{
    for (size_t i = 0; i < matrix_off(f, N_LAYER, 0, 0) / sizeof(float); i++)
        ((float *)(void *)f->bytes)[i] = (float)(i * 2654435761u >> 8 & 255) / 256 - 0.5f;
    assert_int_equal(experts_load(f->experts, NULL, NULL, &f->e), ERR_OK);
}

static void work_space_takes_no_slot_that_the_operation_uses(void **state)
{
    enum { M = 64 };
    struct fixture *f = *state;
    float expected[M * 2 * DIM], y[M * 2 * DIM];
    load_small_numbers(f);
    assert_int_equal(run_experts(f, M, false, expected), ERR_OK);
    size_t all = experts_open_bytes(f->experts);
    assert_int_equal(run_experts(f, M, true, y), ERR_OK);
    assert_true(experts_open_bytes(f->experts) < all); /* the other layer's gave way */
    assert_memory_equal(y, expected, sizeof y);
}

static void work_space_that_no_other_layer_can_give_is_refused(void **state)
{
    enum { M = 4096 };
    struct fixture *f = *state;
    float *y = calloc(M * 2 * DIM, sizeof *y);
    size_t slot_bytes = backend_slot_pool_slot_bytes(f->device, &f->expert_layers[0].shape);
    load_small_numbers(f);
    assert_int_equal(run_experts(f, M, true, y), ERR_LIMIT);
    assert_non_null(strstr(f->e.text, "work space"));
    assert_int_equal(experts_open_bytes(f->experts), N_EXPERT * slot_bytes); /* those of the layer are still there */
    free(y);
}

static void budgets_below_one_layers_choice_are_refused(void **state)
{
    struct fixture *f = *state;
    struct experts *x;
    size_t slot_bytes = backend_slot_pool_slot_bytes(f->device, &f->expert_layers[0].shape);
    const struct experts_params p = {f->device, f->store, f->pool, POLICY_LFRU, 2 * slot_bytes - 1, 0};
    char number[32];
    assert_int_equal(experts_create(&x, &p, f->expert_layers, N_LAYER, &f->e), ERR_LIMIT);
    snprintf(number, sizeof number, "need %zu", 2 * slot_bytes);
    assert_non_null(strstr(f->e.text, number));
    assert_null(x);
}

/* ---- a device with a part of the experts ---------------------------------------------------------------------- */

/* Experts 1, 2 and 4 of the first layer are here, of the second expert 0. */
static int open_part_with(void **state, int64_t n_slot)
{
    static const bool here[N_LAYER][N_EXPERT] = {{false, true, true, false, true, false}, {true}};
    if (open_with(state, DIM, n_slot, false))
        return -1;
    struct fixture *f = *state;
    experts_close(&f->experts);
    for (int l = 0; l < N_LAYER; l++)
        f->expert_layers[l].is_here = here[l];
    return create(f, n_slot, false);
}

static int open_part(void **state)
{
    return open_part_with(state, 0);
}

static int open_three_of_part(void **state)
{
    return open_part_with(state, 3);
}

static int open_none(void **state)
{
    static const bool none[N_EXPERT] = {false};
    if (open_with(state, DIM, 0, false))
        return -1;
    struct fixture *f = *state;
    experts_close(&f->experts);
    for (int l = 0; l < N_LAYER; l++)
        f->expert_layers[l].is_here = none;
    return create(f, 0, false);
}

static void a_part_takes_the_slots_of_a_part(void **state)
{
    struct fixture *f = *state;
    size_t slot_bytes = backend_slot_pool_slot_bytes(f->device, &f->expert_layers[0].shape);
    int32_t slots[N_EXPERT];
    assert_int_equal(experts_max_bytes(f->experts), 4 * slot_bytes);
    assert_int_equal(experts_min_bytes(f->experts), 2 * slot_bytes);
    assert_int_equal(experts_load(f->experts, NULL, NULL, &f->e), ERR_OK);
    assert_true(experts_all_resident(f->experts));
    assert_int_equal(experts_open_bytes(f->experts), 4 * slot_bytes);
    for (int l = 0; l < N_LAYER; l++) {
        assert_int_equal(backend_read(f->device, experts_pin(f->experts, l), slots, &f->e), ERR_OK);
        experts_unpin(f->experts, l);
        for (int32_t i = 0; i < N_EXPERT; i++) {
            assert_int_equal(slots[i] >= 0, f->expert_layers[l].is_here[i]);
            if (slots[i] >= 0)
                check_slot(f, l, i, slots[i]);
        }
    }
    struct experts_counters c = experts_counters(f->experts);
    assert_int_equal(c.n_read, 4);
    assert_int_equal(c.n_read_bytes, 4 * 3 * matrix_bytes(f));
}

static void experts_of_other_devices_are_not_fetched(void **state)
{
    struct fixture *f = *state;
    int32_t ids[6] = {-1, 4, 2, -1, -1, -1}, table[N_EXPERT];
    int64_t n, n_given = 0;
    experts_fetch_begin(f->experts, 0, ids, 3, 2, true);
    do {
        assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
        for (int32_t i = 0; i < N_EXPERT; i++)
            if (table[i] >= 0) {
                assert_true(i == 4 || i == 2);
                check_slot(f, 0, i, table[i]);
            }
        n_given += n;
    } while (n > 0);
    experts_fetch_begin(f->experts, 1, ids + 4, 1, 2, true); /* nothing of it is here */
    assert_int_equal(experts_fetch_next(f->experts, table, &n, &f->e), ERR_OK);
    assert_int_equal(n, 0);
    experts_fetch_end(f->experts);
    assert_int_equal(n_given, 2);
    assert_int_equal(experts_counters(f->experts).n_read, 2);
    assert_at_hand(f, 0, 2, 4, -1);
}

static void experts_of_other_devices_are_not_prefetched(void **state)
{
    struct fixture *f = *state;
    const int32_t guess[5] = {3, -1, 0, 2, 5};
    use(f, 1, 0, -1);
    experts_prefetch(f->experts, 0, guess, 5, true);
    use(f, 0, 2, -1);
    struct experts_counters c = experts_counters(f->experts);
    assert_int_equal(c.n_prefetched, 1);
    assert_int_equal(c.n_prefetch_used, 1);
    assert_int_equal(c.n_read, 2);
}

static void a_warm_start_reads_what_is_here(void **state)
{
    struct fixture *f = *state;
    struct usage past;
    const int32_t seen[] = {3, 3, 3, 3, 1, 1, 2}, other[] = {5, 5, 5, 0};
    assert_int_equal(usage_create(&past, N_LAYER, N_EXPERT, &f->e), ERR_OK);
    usage_add(&past, 0, seen, 7);
    usage_add(&past, 1, other, 4);
    assert_int_equal(experts_open(f->experts, 0, &f->e), ERR_OK);
    assert_int_equal(experts_warm(f->experts, &past, &f->e), ERR_OK);
    usage_close(&past);
    assert_int_equal(experts_counters(f->experts).n_read, 3);
    assert_at_hand(f, 0, 1, 2, -1);
    assert_at_hand(f, 1, 0, -1, -1);
}

static void what_is_chosen_elsewhere_counts_as_well(void **state)
{
    struct fixture *f = *state;
    const int32_t chosen[4] = {3, 2, 5, 2};
    experts_count_choice(f->experts, 0, chosen, 4);
    use(f, 0, 2, -1);
    const struct usage *u = experts_usage(f->experts);
    assert_int_equal(u->total[0], 4); /* the fetch adds nothing */
    assert_int_equal(u->count[2], 2);
    assert_int_equal(u->count[3], 1);
    assert_int_equal(u->count[5], 1);
}

static void a_device_without_experts_has_nothing_to_do(void **state)
{
    struct fixture *f = *state;
    int32_t slots[N_EXPERT];
    struct usage past;
    assert_int_equal(experts_max_bytes(f->experts), 0);
    assert_true(experts_all_resident(f->experts));
    assert_null(experts_slot_pool(f->experts, 0));
    for (int i = 0; i < 2; i++) { /* before and after loading */
        assert_int_equal(backend_read(f->device, experts_pin(f->experts, 0), slots, &f->e), ERR_OK);
        experts_unpin(f->experts, 0);
        for (int32_t j = 0; j < N_EXPERT; j++)
            assert_int_equal(slots[j], -1);
        assert_int_equal(experts_load(f->experts, NULL, NULL, &f->e), ERR_OK);
    }
    assert_int_equal(usage_create(&past, N_LAYER, N_EXPERT, &f->e), ERR_OK);
    assert_int_equal(experts_open(f->experts, 0, &f->e), ERR_OK);
    assert_int_equal(experts_warm(f->experts, &past, &f->e), ERR_OK);
    usage_close(&past);
    experts_reclaim(f->experts, SIZE_MAX);
    assert_int_equal(experts_open_bytes(f->experts), 0);
    assert_int_equal(experts_counters(f->experts).n_read, 0);
}

/* ---- slots as a cache ------------------------------------------------------------------------------------------- */

static int open_cache(void **state)
{
    static const bool all[N_EXPERT] = {true, true, true, true, true, true};
    if (open_with(state, DIM, N_SLOT, false))
        return -1;
    struct fixture *f = *state;
    experts_close(&f->experts);
    for (int l = 0; l < N_LAYER; l++)
        f->expert_layers[l].is_here = all;
    size_t slot_bytes = backend_slot_pool_slot_bytes(f->device, &f->expert_layers[0].shape);
    const struct experts_params p = {.device = f->device,
                                     .store = f->store,
                                     .pool = f->pool,
                                     .policy = POLICY_LRU,
                                     .budget_bytes = N_SLOT * slot_bytes,
                                     .is_cache = true};
    if (experts_create(&f->experts, &p, f->expert_layers, N_LAYER, &f->e))
        return -1;
    return experts_open(f->experts, 0, &f->e);
}

static int open_late_cache(void **state)
{
    if (open_cache(state))
        return -1;
    make_late(*state);
    return 0;
}

/* An expert as it lies in the memory of another device. */
static struct expert_bytes lent(const struct fixture *f, int layer, int32_t expert)
{
    struct expert_bytes b;
    for (int i = 0; i < 3; i++) {
        b.matrix[i] = f->bytes + matrix_off(f, layer, i, expert);
        b.is_packed[i] = true;
    }
    return b;
}

static bool copy_in(struct fixture *f, int layer, int32_t expert)
{
    const struct expert_bytes from = lent(f, layer, expert);
    return experts_cache_move(f->experts, layer, expert, &from);
}

/* A token chooses two experts: how many of them are found, with their own bytes. */
static int64_t look_up(struct fixture *f, int layer, int32_t a, int32_t b)
{
    const int32_t ids[2] = {a, b};
    int32_t table[N_EXPERT];
    int64_t n = experts_cache_begin(f->experts, layer, ids, 1, 2, true, table), n_found = 0;
    for (int32_t i = 0; i < N_EXPERT; i++)
        if (table[i] >= 0) {
            assert_true(i == a || i == b);
            check_slot(f, layer, i, table[i]);
            n_found++;
        }
    assert_int_equal(n_found, n);
    return n;
}

static void a_cache_begins_empty_and_wants_to_be_filled(void **state)
{
    struct fixture *f = *state;
    int layer;
    int32_t expert;
    assert_int_equal(experts_load(f->experts, NULL, NULL, &f->e), ERR_OK);
    assert_false(experts_all_resident(f->experts) || experts_is_fetching(f->experts, 0));
    assert_int_equal(look_up(f, 1, 4, 5), 0);
    for (int i = 0; i < N_SLOT; i++) { /* what was chosen before what was not */
        assert_true(experts_cache_wants(f->experts, &layer, &expert));
        assert_int_equal(layer, i < 2 ? 1 : 0);
        assert_int_equal(expert, i < 2 ? 4 + i : 0);
        assert_true(copy_in(f, layer, expert));
        assert_int_equal(experts_cache_settle(f->experts, true), 0);
    }
    assert_false(experts_cache_wants(f->experts, &layer, &expert));
    assert_int_equal(look_up(f, 1, 4, 5), 2);
    assert_int_equal(look_up(f, 0, 0, 3), 1);
    const struct experts_layer_counters first = experts_layer_counters(f->experts, 0),
                                        second = experts_layer_counters(f->experts, 1);
    assert_int_equal(first.n_found, 1);
    assert_int_equal(first.n_missed, 1);
    assert_int_equal(first.n_moved, 1);
    assert_int_equal(second.n_found, 2);
    assert_int_equal(second.n_missed, 2);
    assert_int_equal(second.n_moved, 2);
    assert_int_equal(experts_counters(f->experts).n_read, 0);
}

static void a_cache_gives_up_what_is_colder(void **state)
{
    struct fixture *f = *state;
    int layer;
    int32_t expert;
    for (int32_t i = 0; i < N_SLOT; i++) {
        look_up(f, 0, i, i);
        assert_true(copy_in(f, 0, i));
    }
    look_up(f, 0, 1, 2);
    for (int i = 0; i < 2; i++) {
        look_up(f, 0, 4, 2);
        assert_int_equal(experts_layer_counters(f->experts, 0).n_moved, N_SLOT); /* calls move nothing */
    }
    assert_true(experts_cache_wants(f->experts, &layer, &expert));
    assert_true(layer == 0 && expert == 4);
    assert_true(copy_in(f, 0, 4));
    assert_int_equal(look_up(f, 0, 4, 2), 2);
    assert_int_equal(look_up(f, 0, 0, 1), 1); /* 0 was used last long before 1 */
    assert_int_equal(experts_counters(f->experts).n_evicted, 1);
}

static void a_cache_that_is_not_used_goes_on_learning(void **state)
{
    struct fixture *f = *state;
    const int32_t ids[2] = {3, 3};
    int32_t table[N_EXPERT], expert;
    int layer;
    assert_true(copy_in(f, 0, 3));
    assert_int_equal(experts_cache_begin(f->experts, 0, ids, 2, 1, false, table), 0);
    assert_int_equal(only(table), -1);
    assert_int_equal(experts_layer_counters(f->experts, 0).n_missed, 1);
    experts_forget(f->experts);
    assert_int_equal(look_up(f, 0, 3, 3), 0);
    assert_true(experts_cache_wants(f->experts, &layer, &expert));
    assert_true(layer == 0 && expert == 3);
}

static void what_a_call_has_found_keeps_its_slot(void **state)
{
    struct fixture *f = *state;
    for (int32_t i = 0; i < N_SLOT; i++)
        assert_true(copy_in(f, 0, i));
    look_up(f, 0, 1, 2); /* 0 was never chosen */
    assert_int_equal(look_up(f, 0, 0, 0), 1);
    experts_reclaim(f->experts, SIZE_MAX);
    assert_int_equal(experts_n_slot(f->experts), 2);
    assert_int_equal(look_up(f, 0, 0, 0), 1);
}

static void what_nobody_lends_is_read(void **state)
{
    struct fixture *f = *state;
    store_fake_set_drive(f->store, (struct store_fake_drive){.latency_ns = 200 * 1000 * 1000});
    assert_true(experts_cache_move(f->experts, 0, 5, NULL));
    assert_int_equal(look_up(f, 0, 5, 5), 0); /* nobody waits for it */
    assert_int_equal(experts_cache_settle(f->experts, true), 0);
    assert_int_equal(look_up(f, 0, 5, 5), 1);
    assert_int_equal(experts_counters(f->experts).n_read, 1);
    assert_int_equal(experts_counters(f->experts).stall_ns > 0, 1);
}

static void what_can_not_be_read_is_not_there(void **state)
{
    struct fixture *f = *state;
    store_fake_add_fault(
        f->store,
        (struct store_fault){.kind = STORE_FAULT_ERROR, .offset = matrix_off(f, 0, 2, 5), .n_times = UINT64_MAX});
    assert_true(experts_cache_move(f->experts, 0, 5, NULL));
    experts_cache_settle(f->experts, true);
    assert_int_equal(look_up(f, 0, 5, 5), 0);
    assert_true(copy_in(f, 0, 5));
    assert_int_equal(look_up(f, 0, 5, 5), 1);
}

static void a_copy_is_found_once_it_is_on_the_device(void **state)
{
    struct fixture *f = *state;
    assert_true(copy_in(f, 0, 2));
    assert_int_equal(experts_cache_settle(f->experts, false), 1);
    assert_int_equal(look_up(f, 0, 2, 2), 0);
    late.n_passed = late.n_filled;
    assert_int_equal(experts_cache_settle(f->experts, false), 0);
    assert_int_equal(look_up(f, 0, 2, 2), 1);
    assert_true(copy_in(f, 0, 3));
    assert_int_equal(experts_cache_settle(f->experts, true), 0);
    assert_int_equal(look_up(f, 0, 2, 3), 2);
    assert_int_equal(late.n_waited, 1);
}

static void experts_that_are_there_are_lent(void **state)
{
    struct fixture *f = *state;
    struct expert_bytes b;
    assert_false(experts_lend(f->experts, 0, 1, &b));
    use(f, 0, 1, 2);
    assert_false(experts_lend(f->experts, 1, 1, &b));
    assert_true(experts_lend(f->experts, 0, 1, &b));
    for (int i = 0; i < 3; i++)
        assert_memory_equal(b.matrix[i], f->bytes + matrix_off(f, 0, i, 1), matrix_bytes(f));
}

static void each_layer_counts_for_itself(void **state)
{
    struct fixture *f = *state;
    store_fake_set_drive(f->store, (struct store_fake_drive){.latency_ns = 20 * 1000 * 1000});
    use(f, 0, 1, 2);
    use(f, 0, 2, -1);
    use(f, 1, 0, -1);
    use(f, 1, 0, -1);
    struct experts_layer_counters first = experts_layer_counters(f->experts, 0);
    struct experts_layer_counters second = experts_layer_counters(f->experts, 1);
    assert_int_equal(first.n_found, 1);
    assert_int_equal(first.n_read, 2);
    assert_int_equal(second.n_found, 1);
    assert_int_equal(second.n_read, 1);
    assert_true(first.wait_ns > 0 && second.wait_ns > 0);
    assert_int_equal(first.wait_ns + second.wait_ns, experts_counters(f->experts).stall_ns);
}

static void what_a_call_uses_of_a_resident_layer_is_found(void **state)
{
    struct fixture *f = *state;
    const int32_t ids[6] = {1, -1, 4, 1, -1, -1};
    assert_int_equal(experts_load(f->experts, NULL, NULL, &f->e), ERR_OK);
    experts_count_resident(f->experts, 0, ids, 6);
    experts_count_resident(f->experts, 0, ids, 1);
    assert_int_equal(experts_layer_counters(f->experts, 0).n_found, 3);
    assert_int_equal(experts_layer_counters(f->experts, 1).n_found, 0);
    assert_int_equal(experts_layer_counters(f->experts, 0).n_read, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(least_recently_used_goes_first, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(layers_of_one_shape_share_the_slots, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(a_fetch_needs_no_more_than_one_slot, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(what_is_there_comes_before_what_is_read, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(held_experts_keep_their_slots, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(a_good_guess_saves_the_read, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(a_guess_before_any_fetch_is_for_one_token, open_eight, close_fixture),
        cmocka_unit_test_setup_teardown(guesses_are_read_one_by_one_and_kept, open_eight, close_fixture),
        cmocka_unit_test_setup_teardown(a_guess_names_no_expert_that_is_there_and_none_twice, open_eight,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(what_arrives_within_a_loop_is_taken_in, open_eight, close_fixture),
        cmocka_unit_test_setup_teardown(a_likely_guess_is_read_at_once, open_eight, close_fixture),
        cmocka_unit_test_setup_teardown(a_wrong_guess_is_not_read_to_the_end, open_shallow, close_fixture),
        cmocka_unit_test_setup_teardown(a_guess_gets_better_until_all_that_is_needed_is_there, open_shallow,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(a_fetch_that_ended_early_leaves_slots_to_the_next, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(failed_read_names_layer_and_expert_and_holds_nothing, open_three,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(a_wrong_guess_may_fail_in_silence, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(opening_touches_the_memory_of_open_slots, open_late, close_late),
        cmocka_unit_test_setup_teardown(an_expert_is_given_once_it_is_on_the_device, open_late, close_late),
        cmocka_unit_test_setup_teardown(what_is_there_comes_before_what_is_uploaded, open_late, close_late),
        cmocka_unit_test_setup_teardown(a_guess_is_at_hand_once_it_is_on_the_device, open_late, close_late),
        cmocka_unit_test_setup_teardown(failed_upload_names_layer_and_expert_and_holds_nothing, open_late, close_late),
        cmocka_unit_test_setup_teardown(loading_waits_for_uploads, open_all_late, close_late),
        cmocka_unit_test_setup_teardown(loading_fails_when_an_upload_fails, open_all_late, close_late),
        cmocka_unit_test_setup_teardown(an_expert_on_its_way_is_not_at_hand, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(what_was_wanted_counts_and_not_what_stood_in, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(idle_time_brings_what_was_stood_in_for, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(tokens_of_one_fetch_have_scores_of_their_own, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(fetches_for_sampled_tokens_are_counted_apart, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(demanded_reads_go_first, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(a_deterministic_look_does_not_depend_on_the_drive, open_deterministic,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(after_forgetting_nothing_is_there_and_nothing_known, open_deterministic,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(all_experts_are_resident_after_loading, open_all, close_fixture),
        cmocka_unit_test_setup_teardown(all_experts_are_resident_after_loading, open_large, close_fixture),
        cmocka_unit_test_setup_teardown(failed_load_is_reported, open_all, close_fixture),
        cmocka_unit_test_setup_teardown(a_warm_start_finds_what_was_used_most, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(a_guess_that_was_forgotten_saved_no_read, open_eight, close_fixture),
        cmocka_unit_test_setup_teardown(memory_that_is_asked_back_is_given, open_all, close_fixture),
        cmocka_unit_test_setup_teardown(work_space_takes_no_slot_that_the_operation_uses, open_all, close_fixture),
        cmocka_unit_test_setup_teardown(work_space_that_no_other_layer_can_give_is_refused, open_all, close_fixture),
        cmocka_unit_test_setup_teardown(budgets_below_one_layers_choice_are_refused, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(a_part_takes_the_slots_of_a_part, open_part, close_fixture),
        cmocka_unit_test_setup_teardown(experts_of_other_devices_are_not_fetched, open_three_of_part, close_fixture),
        cmocka_unit_test_setup_teardown(experts_of_other_devices_are_not_prefetched, open_three_of_part, close_fixture),
        cmocka_unit_test_setup_teardown(a_warm_start_reads_what_is_here, open_three_of_part, close_fixture),
        cmocka_unit_test_setup_teardown(what_is_chosen_elsewhere_counts_as_well, open_three_of_part, close_fixture),
        cmocka_unit_test_setup_teardown(a_device_without_experts_has_nothing_to_do, open_none, close_fixture),
        cmocka_unit_test_setup_teardown(a_cache_begins_empty_and_wants_to_be_filled, open_cache, close_fixture),
        cmocka_unit_test_setup_teardown(a_cache_gives_up_what_is_colder, open_cache, close_fixture),
        cmocka_unit_test_setup_teardown(a_cache_that_is_not_used_goes_on_learning, open_cache, close_fixture),
        cmocka_unit_test_setup_teardown(what_a_call_has_found_keeps_its_slot, open_cache, close_fixture),
        cmocka_unit_test_setup_teardown(what_nobody_lends_is_read, open_cache, close_fixture),
        cmocka_unit_test_setup_teardown(what_can_not_be_read_is_not_there, open_cache, close_fixture),
        cmocka_unit_test_setup_teardown(a_copy_is_found_once_it_is_on_the_device, open_late_cache, close_late),
        cmocka_unit_test_setup_teardown(experts_that_are_there_are_lent, open_three, close_fixture),
        cmocka_unit_test_setup_teardown(each_layer_counts_for_itself, open_three_of_part, close_fixture),
        cmocka_unit_test_setup_teardown(what_a_call_uses_of_a_resident_layer_is_found, open_part, close_fixture),
    };
    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
