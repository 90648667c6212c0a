#include "engine/gpu_speed.h"

#include "base/clock.h"

enum { N_BEST = 3, FEW_COPIES = 1, MANY_COPIES = 5, FEW_DISPATCHES = 100, MANY_DISPATCHES = 1100 };

typedef void enqueue_fn(struct backend *b, const struct tensor t[2]);

static void copy(struct backend *b, const struct tensor t[2])
{
    backend_copy(b, &t[0], &t[1]);
}

static void add(struct backend *b, const struct tensor t[2])
{
    backend_enqueue(b, &(struct op){.kind = OP_ADD, .in = {t[0], t[1]}, .out = {t[0]}});
}

/* Seconds until n of something have run, the best of some times. */
static err_code time_some(struct backend *b, const struct tensor t[2], enqueue_fn *fn, int n, double *s, struct err *e)
{
    *s = 0;
    for (int round = 0; round < N_BEST; round++) {
        int64_t begin = clock_ns();
        for (int i = 0; i < n; i++)
            fn(b, t);
        TRY(backend_wait(b, backend_fence(b), e));
        double took = (double)(clock_ns() - begin) * 1e-9;
        *s = *s > 0 && *s < took ? *s : took;
    }
    return ERR_OK;
}

/* What one takes among many: submitting and waiting take as long for few. */
static err_code time_one(struct backend *b, const struct tensor t[2], enqueue_fn *fn, int few, int many, double *s,
                         struct err *e)
{
    double less, more;
    TRY(time_some(b, t, fn, few, &less, e));
    TRY(time_some(b, t, fn, many, &more, e));
    *s = more > less ? (more - less) / (many - few) : more / many;
    return ERR_OK;
}

err_code gpu_time_copies(struct backend *b, const struct tensor t[2], double *bytes_per_s, struct err *e)
{
    double s;
    TRY(time_one(b, t, copy, FEW_COPIES, MANY_COPIES, &s, e));
    *bytes_per_s = 2 * (double)tensor_bytes(&t[0]) / s;
    return ERR_OK;
}

err_code gpu_time_dispatches(struct backend *b, double *s, struct err *e)
{
    struct tensor t[2] = {0};
    err_code code = ERR_OK;
    for (int i = 0; code == ERR_OK && i < 2; i++)
        code = backend_tensor_create(b, ELEM_F32, 64, 1, 1, MEM_SCRATCH, &t[i], e);
    if (code == ERR_OK)
        code = time_one(b, t, add, FEW_DISPATCHES, MANY_DISPATCHES, s, e);
    backend_buffer_close(b, &t[0].buffer);
    backend_buffer_close(b, &t[1].buffer);
    return code;
}
