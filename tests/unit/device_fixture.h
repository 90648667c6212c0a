/* A CPU device with three threads and this machine's best kernels, for tests of operations; on several memory nodes if
 * HWLOC_SYNTHETIC invents them. MOEBIUS_TEST_DEVICE chooses another one (open_device); a test on a Vulkan device is
 * skipped where there is none. */
#ifndef TESTS_DEVICE_FIXTURE_H
#define TESTS_DEVICE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "backend/backend.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/random.h"
#include "base/topology.h"
#include "kernels/kernels.h"
#include "vulkan/vulkan.h"

struct fixture {
    struct topology *topology; /* mostly NULL */
    struct pool *pool;
    struct backend *device;
    struct random random;
};

static inline const struct kernels *best_kernels(void)
{
    enum cpu_level level;
    struct err e;
    assert_int_equal(cpu_level_detect(&level, &e), ERR_OK);
    return kernels_for(level);
}

static inline bool tests_device(const char *kind)
{
    const char *wanted = getenv("MOEBIUS_TEST_DEVICE");
    return wanted && !strcmp(wanted, kind);
}

/* Whether the first Vulkan device is a driver that computes on the processor. */
static inline bool vulkan_is_software(void)
{
    struct vulkan_device *list;
    int n;
    struct err e;
    if (vulkan_list(&list, &n, &e) != ERR_OK)
        return false;
    bool is = n > 0 && !strcmp(list[0].kind, "software");
    mem_free(list);
    return is;
}

/* Whether a test tries a combination of settings, whose numbers add up to `sum`. All devices try all of them, except
 * for a software driver, which would take minutes: it tries one in `step`, in which each setting still has its turn,
 * and half of these where it is asked for another width of vectors, with which it is several times slower. */
static inline bool is_tested(int sum, int step)
{
    static int slowness = -1;
    if (slowness < 0)
        slowness = !tests_device("vulkan") || !vulkan_is_software() ? 0 : getenv("LP_NATIVE_VECTOR_WIDTH") ? 2 : 1;
    return slowness == 0 || sum % (slowness * step) == 0;
}

/* Leaves out a test of what the CPU device alone promises. */
static inline void needs_cpu(void)
{
    if (tests_device("vulkan"))
        skip();
}

/* Whether products with quantised weights may round their activations to eight bits. */
static inline bool may_round(void)
{
    const char *products = getenv("MOEBIUS_VULKAN_PRODUCTS");
    return !tests_device("vulkan") || !products || strcmp(products, "float") != 0;
}

static inline err_code open_vulkan(struct backend **out, struct pool *pool, struct err *e)
{
    enum { SKIPPED = 77 };
    err_code code = vulkan_open(out, 0, pool, e);
    if (code != ERR_OK)
        fprintf(stderr, "%s\n", e->text);
    if (code == ERR_UNSUPPORTED)
        exit(SKIPPED);
    return code;
}

/* scalar, reference: with other kernels. check: compared with the reference. vulkan: the first Vulkan device. */
static inline err_code open_device(struct backend **out, struct pool *pool, const char *kind, struct err *e)
{
    struct backend *other;
    if (!strcmp(kind, "scalar"))
        return backend_cpu_open(out, pool, kernels_for(CPU_SCALAR), e);
    if (!strcmp(kind, "reference"))
        return backend_cpu_open(out, pool, kernels_reference(), e);
    if (!strcmp(kind, "vulkan"))
        return open_vulkan(out, pool, e);
    TRY(backend_cpu_open(out, pool, best_kernels(), e));
    if (!strcmp(kind, "check")) {
        TRY(backend_cpu_open(&other, pool, kernels_reference(), e));
        return backend_check_open(out, *out, other, e);
    }
    return *kind ? err_set(e, ERR_USAGE, "MOEBIUS_TEST_DEVICE=%s: no such device", kind) : ERR_OK;
}

static inline int open_cpu(void **state)
{
    struct err e;
    struct fixture *f = calloc(1, sizeof *f);
    f->random = random_seed(1);
    *state = f;
    if (pool_create(&f->pool, 3, &e) != ERR_OK)
        return -1;
    if (getenv("HWLOC_SYNTHETIC"))
        f->topology = topology_open(3, NULL);
    pool_place(f->pool, f->topology);
    const char *kind = getenv("MOEBIUS_TEST_DEVICE");
    return open_device(&f->device, f->pool, kind ? kind : "", &e);
}

static inline int close_cpu(void **state)
{
    struct fixture *f = *state;
    backend_close(&f->device);
    pool_close(&f->pool);
    topology_close(&f->topology);
    free(f);
    return 0;
}

static inline void fill(struct fixture *f, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(random_unit(&f->random) * 2 - 1);
}

static inline struct tensor tensor_f32(struct fixture *f, int64_t ne0, int64_t ne1, int64_t ne2, const float *values)
{
    struct tensor t;
    struct err e;
    assert_int_equal(backend_tensor_create(f->device, ELEM_F32, ne0, ne1, ne2, MEM_SCRATCH, &t, &e), ERR_OK);
    if (values)
        backend_write(f->device, &t, values);
    return t;
}

static inline struct tensor tensor_i32(struct fixture *f, int64_t ne0, int64_t ne1, const int32_t *values)
{
    struct tensor t;
    struct err e;
    assert_int_equal(backend_tensor_create(f->device, ELEM_I32, ne0, ne1, 1, MEM_SCRATCH, &t, &e), ERR_OK);
    if (values)
        backend_write(f->device, &t, values);
    return t;
}

/* Pages of zeros for what a layer keeps of texts, [ne0][ne1][ne2] in each. are_apart: parts lie by part and then by
 * page, else a page's parts lie together. To close: its page.buffer. */
static inline struct paged paged_zeros(struct fixture *f, enum elem_type type, int64_t ne0, int64_t ne1, int64_t ne2,
                                       int64_t n_page, bool are_apart)
{
    struct paged s;
    struct err e;
    assert_int_equal(backend_tensor_create(f->device, type, ne0, ne1, ne2 * n_page, MEM_SCRATCH, &s.page, &e), ERR_OK);
    s.page.ne[2] = ne2;
    s.part_bytes = s.page_bytes = elem_row_bytes(type, ne0) * (size_t)ne1;
    *(are_apart ? &s.part_bytes : &s.page_bytes) *= (size_t)(are_apart ? n_page : ne2);
    return s;
}

static inline void read_back(struct fixture *f, const struct tensor *t, void *x)
{
    struct err e;
    assert_int_equal(backend_read(f->device, t, x, &e), ERR_OK);
}

struct weight_rows {
    const char *bytes;
    size_t row_bytes;
};

/* weight_source.read */
static inline err_code read_weight_rows(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    const struct weight_rows *r = user;
    memcpy(dst, r->bytes + row0 * r->row_bytes, n * r->row_bytes);
    return ERR_OK;
}

/* A weight in any type, from its blocks. */
static inline struct weight *weight_from(struct fixture *f, enum quant_type type, int64_t k, int64_t n_row,
                                         const void *bytes)
{
    struct err e;
    struct weight *w;
    struct weight_rows r = {.bytes = bytes};
    assert_true(quant_row_bytes(quant_info(type), (uint64_t)k, &r.row_bytes));
    const struct weight_desc d = {"test.weight", quant_info(type), k, n_row};
    assert_int_equal(backend_weight_load(f->device, &d, &(struct weight_source){read_weight_rows, &r}, &w, &e), ERR_OK);
    return w;
}

#endif
