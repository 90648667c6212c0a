#include "jobs/bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

struct bench {
    moebius_engine *engine;
    moebius_session *session;
    const struct bench_params *params;
    size_t next; /* of the ids */
    int32_t *chunk;
    double *seconds[2]; /* of each round: prefill, decode */
    struct bench_result *out;
};

double bench_op_roof_seconds(const moebius_roof *roof, const moebius_op_stats *op)
{
    double memory = (double)op->n_bytes / roof->read_bytes_per_s;
    double compute = (double)op->n_int8 / roof->int8_per_s + (double)op->n_float / roof->float_per_s;
    return memory > compute ? memory : compute;
}

static err_code eval(struct bench *b, int64_t n, struct err *e)
{
    moebius_error error;
    for (int64_t i = 0; i < n; i++)
        b->chunk[i] = b->params->ids[b->next++ % b->params->n_ids];
    if (moebius_session_eval(b->session, b->chunk, (size_t)n, &error) != MOEBIUS_OK)
        return err_set(e, (err_code)error.status, "%s", error.text);
    return ERR_OK;
}

/* n tokens, `step` at a time, timed, and their operations added to the phase. */
static err_code run_phase(struct bench *b, struct bench_phase *p, int64_t n, int64_t step, double *seconds,
                          struct err *e)
{
    moebius_op_stats before[MOEBIUS_MAX_OP], after[MOEBIUS_MAX_OP];
    moebius_engine_op_stats(b->engine, before);
    int64_t start = clock_ns();
    for (int64_t i = 0; i < n; i += step)
        TRY(eval(b, step, e));
    *seconds = (double)(clock_ns() - start) * 1e-9;
    b->out->n_op = moebius_engine_op_stats(b->engine, after);
    for (int i = 0; i < b->out->n_op; i++) {
        p->ops[i].name = after[i].name;
        p->ops[i].n += after[i].n - before[i].n;
        p->ops[i].n_ns += after[i].n_ns - before[i].n_ns;
        p->ops[i].n_bytes += after[i].n_bytes - before[i].n_bytes;
        p->ops[i].n_int8 += after[i].n_int8 - before[i].n_int8;
        p->ops[i].n_float += after[i].n_float - before[i].n_float;
    }
    return ERR_OK;
}

static double max_f64(double a, double b)
{
    return a > b ? a : b;
}

/* Machines that are shared have better and worse moments: the roof is the best of all. */
static err_code measure_roof(struct bench *b, struct err *e)
{
    moebius_error error;
    moebius_roof roof;
    if (moebius_engine_measure_roof(b->engine, &roof, &error) != MOEBIUS_OK)
        return err_set(e, (err_code)error.status, "%s", error.text);
    b->out->roof.read_bytes_per_s = max_f64(b->out->roof.read_bytes_per_s, roof.read_bytes_per_s);
    b->out->roof.int8_per_s = max_f64(b->out->roof.int8_per_s, roof.int8_per_s);
    b->out->roof.float_per_s = max_f64(b->out->roof.float_per_s, roof.float_per_s);
    return ERR_OK;
}

static err_code run_round(struct bench *b, int64_t round, struct err *e)
{
    const struct bench_params *p = b->params;
    moebius_session_truncate(b->session, 0);
    if (p->n_depth)
        TRY(eval(b, p->n_depth, e));
    if (p->n_prefill)
        TRY(run_phase(b, &b->out->prefill, p->n_prefill, p->n_prefill, &b->seconds[0][round], e));
    if (p->n_decode)
        TRY(run_phase(b, &b->out->decode, p->n_decode, 1, &b->seconds[1][round], e));
    return measure_roof(b, e);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void sum_up(const struct bench *b, struct bench_phase *p, int64_t n_tok, double *seconds)
{
    int64_t n = b->params->n_round;
    double roof_seconds = 0, n_all = (double)(n_tok * n);
    if (n_tok == 0)
        return;
    p->n_tok = n_tok;
    p->tok_per_s = (double)n_tok / bench_median(seconds, n);
    p->min = (double)n_tok / seconds[n - 1];
    p->max = (double)n_tok / seconds[0];
    for (int i = 0; i < b->out->n_op; i++) {
        p->n_bytes += (double)p->ops[i].n_bytes / n_all;
        p->n_int8 += (double)p->ops[i].n_int8 / n_all;
        p->n_float += (double)p->ops[i].n_float / n_all;
        roof_seconds += bench_op_roof_seconds(&b->out->roof, &p->ops[i]);
    }
    p->roof_tok_per_s = n_all / roof_seconds;
}

err_code bench_run(moebius_engine *engine, moebius_session *session, const struct bench_params *params,
                   bool (*progress)(void *user, int64_t n_round), void *user, struct bench_result *out, struct err *e)
{
    err_code code = ERR_OK;
    struct bench b = {.engine = engine, .session = session, .params = params, .out = out};
    int64_t longest = params->n_prefill > params->n_depth ? params->n_prefill : params->n_depth;
    size_t n_round = (size_t)params->n_round;
    *out = (struct bench_result){.n_round = params->n_round};
    b.chunk = mem_calloc((size_t)longest + 1, sizeof *b.chunk);
    b.seconds[0] = mem_calloc(2 * n_round, sizeof *b.seconds[0]);
    if (!b.chunk || !b.seconds[0]) {
        code = err_nomem(e, 2 * n_round * sizeof *b.seconds[0], "a benchmark");
        goto out;
    }
    b.seconds[1] = b.seconds[0] + n_round;
    TRY_OUT(measure_roof(&b, e));
    for (int64_t i = 0; i < params->n_round; i++) {
        TRY_OUT(run_round(&b, i, e));
        if (progress && !progress(user, i + 1)) {
            code = err_set(e, ERR_CANCELLED, "interrupted after %lld rounds", (long long)i + 1);
            goto out;
        }
    }
    sum_up(&b, &out->prefill, params->n_prefill, b.seconds[0]);
    sum_up(&b, &out->decode, params->n_decode, b.seconds[1]);
out:
    mem_free(b.chunk);
    mem_free(b.seconds[0]);
    return code;
}
