#include "engine/product_speed.h"

#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"

/* More than processors' caches hold, as weights are. */
enum { RACE_K = 4096, RACE_ROWS = 16384, RACE_NS = 20 * 1000 * 1000 };

/* Rows whose scales are small and whose numbers are all alike. */
static err_code same_rows(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e)
{
    memset(dst, 1, (size_t)n * *(const size_t *)user);
    return ERR_OK;
}

static err_code multiply(struct backend *b, struct weight *w, const struct tensor *x, const struct tensor *y,
                         struct err *e)
{
    backend_enqueue(b, &(struct op){.kind = OP_MATMUL, .in = {*x}, .out = {*y}, .weight = {w}});
    return backend_wait(b, backend_fence(b), e);
}

/* The first product also compiles and warms up. */
static err_code race(struct backend *b, struct weight *w, size_t n_bytes, const struct tensor *x,
                     const struct tensor *y, double *bytes_per_s, struct err *e)
{
    int64_t n = 0, begin;
    TRY(multiply(b, w, x, y, e));
    begin = clock_ns();
    do {
        TRY(multiply(b, w, x, y, e));
        n++;
    } while (clock_ns() - begin < RACE_NS);
    *bytes_per_s = (double)n_bytes * (double)n * 1e9 / (double)(clock_ns() - begin);
    return ERR_OK;
}

int64_t product_speed_rows(uint64_t room_bytes)
{
    return min_i64(RACE_ROWS, (int64_t)(room_bytes / 4 / (2 * RACE_K)) / 16 * 16);
}

err_code product_speed(struct backend *b, int64_t n_row, double *bytes_per_s, struct err *e)
{
    const struct weight_desc d = {"a matrix to measure", quant_info(QUANT_Q8_0), RACE_K, n_row};
    struct weight *w = NULL;
    struct tensor x = {0}, y = {0};
    size_t row_bytes = 0;
    *bytes_per_s = 0;
    if (n_row == 0)
        return ERR_OK;
    bool ok = quant_row_bytes(d.type, RACE_K, &row_bytes);
    err_code code = ok ? backend_weight_load(b, &d, &(struct weight_source){same_rows, &row_bytes}, &w, e) : ERR_FAIL;
    if (code == ERR_OK)
        code = backend_tensor_create(b, ELEM_F32, RACE_K, 1, 1, MEM_SCRATCH, &x, e);
    if (code == ERR_OK)
        code = backend_tensor_create(b, ELEM_F32, n_row, 1, 1, MEM_SCRATCH, &y, e);
    if (code == ERR_OK)
        code = race(b, w, row_bytes * (size_t)n_row, &x, &y, bytes_per_s, e);
    backend_buffer_close(b, &x.buffer);
    backend_buffer_close(b, &y.buffer);
    backend_weight_close(b, &w);
    return code;
}
