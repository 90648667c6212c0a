/* Memory on a system whose pages have 16 KiB, as on some kernels for Arm: giving back a piece, a slot or a page of a
 * cache leaves its neighbours alone. The two calls that know the size of a page are replaced. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "state_fixture.h"

enum { SYSTEM_PAGE = 16384, MANY = 128 };

long sysconf(int name)
{
    static long (*next)(int name);
    if (name == _SC_PAGESIZE)
        return SYSTEM_PAGE;
    if (!next) {
        void *found = dlsym(RTLD_NEXT, "sysconf");
        memcpy(&next, &found, sizeof next);
    }
    return next(name);
}

int madvise(void *p, size_t n_bytes, int advice)
{
    if ((uintptr_t)p % SYSTEM_PAGE) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_madvise, p, (n_bytes + SYSTEM_PAGE - 1) / SYSTEM_PAGE * SYSTEM_PAGE, advice);
}

static void expect_all(const char *p, size_t n, char value)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(p[i], value);
}

static void small_pieces_have_pages_of_their_own(void **state)
{
    enum { N = 4, N_BYTES = 5000 };
    char *p[N];
    assert_int_equal(mem_length(1), SYSTEM_PAGE);
    for (int i = 0; i < N; i++) {
        p[i] = mem_map(N_BYTES, MEM_SCRATCH);
        assert_non_null(p[i]);
        memset(p[i], i + 1, N_BYTES);
    }
    mem_unmap(p[0], N_BYTES, MEM_SCRATCH);
    mem_unmap(p[2], N_BYTES, MEM_SCRATCH);
    expect_all(p[1], N_BYTES, 2);
    expect_all(p[3], N_BYTES, 4);
    p[0] = mem_map(N_BYTES, MEM_SCRATCH); /* what was given back comes zeroed again */
    expect_all(p[0], N_BYTES, 0);
    mem_unmap(p[0], N_BYTES, MEM_SCRATCH);
    mem_unmap(p[1], N_BYTES, MEM_SCRATCH);
    mem_unmap(p[3], N_BYTES, MEM_SCRATCH);
}

static void a_closed_slot_leaves_the_next_one_alone(void **state)
{
    struct fixture *f = ((struct state_fixture *)*state)->f;
    struct slot_pool *slots;
    struct err e;
    const struct quant_info *q = quant_info(QUANT_F32);
    const struct slot_pool_desc d = {{q, q, q}, 32, 32, MANY};
    const size_t n_bytes = 32 * 32 * sizeof(float);
    assert_int_equal(backend_slot_pool_create(f->device, &d, &slots, &e), ERR_OK);
    char *room[MANY];
    for (int i = 0; i < MANY; i++) {
        assert_true(backend_slot_open(f->device, slots, i));
        room[i] = backend_slot_room(f->device, slots, i, EXPERT_GATE, true);
        memset(room[i], i, n_bytes);
    }
    for (int i = 0; i < MANY; i += 2)
        backend_slot_close(f->device, slots, i);
    for (int i = 1; i < MANY; i += 2)
        expect_all(room[i], n_bytes, (char)i);
    backend_slot_pool_close(f->device, &slots);
}

static void a_page_of_a_cache_that_is_given_back_leaves_the_next_one_alone(void **state)
{
    enum { N_PAGE = 8 };
    struct state_fixture *t = *state;
    int32_t page[N_PAGE];
    t->params.type = ELEM_F16;
    add_attention(t, 0)->attn.head_dim = DIM + 8; /* no multiple of the system's pages */
    open_pool(t);
    const struct paged *k = &t->pool->layers[0].k;
    size_t n_bytes = tensor_bytes(&k->page);
    char *bytes = malloc(n_bytes);
    for (int i = 0; i < N_PAGE; i++) {
        page[i] = state_pool_take(t->pool, 0);
        assert_true(page[i] >= 0);
        struct tensor rows = paged_part(k, page[i], 0);
        memset(bytes, i + 1, n_bytes);
        backend_write(t->m.device, &rows, bytes);
    }
    for (int i = 0; i < N_PAGE; i += 2)
        state_pool_drop(t->pool, 0, page[i]);
    state_pool_trim(t->pool);
    for (int i = 1; i < N_PAGE; i += 2) {
        struct tensor rows = paged_part(k, page[i], 0);
        assert_int_equal(backend_read(t->m.device, &rows, bytes, &t->e), ERR_OK);
        expect_all(bytes, tensor_bytes(&rows), (char)(i + 1));
        state_pool_drop(t->pool, 0, page[i]);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_pieces_have_pages_of_their_own),
        cmocka_unit_test_setup_teardown(a_closed_slot_leaves_the_next_one_alone, open_state, close_state),
        cmocka_unit_test_setup_teardown(a_page_of_a_cache_that_is_given_back_leaves_the_next_one_alone, open_state,
                                        close_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
