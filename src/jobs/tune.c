#include "jobs/tune.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"

/* A row is measured again until it has taken so long, at least twice. */
enum { ROW_NS = 400 * 1000 * 1000, MIN_ROUND = 2, MAX_ROUND = 20 };

/* Time in the experts' operations so far. */
static double experts_ns(const moebius_engine *engine)
{
    moebius_op_stats ops[MOEBIUS_MAX_OP];
    int n = moebius_engine_op_stats(engine, ops);
    for (int i = 0; i < n; i++)
        if (!strcmp(ops[i].name, "EXPERTS"))
            return (double)ops[i].n_ns;
    return 0;
}

/* The experts' time for n tokens at once, if it is less than *best. Logits of all of them are asked for, because the
 * last layer would else compute one. */
static err_code measure(const moebius_engine *engine, moebius_session *session, const int32_t *ids, int64_t n,
                        double *best, struct err *e)
{
    moebius_error error;
    moebius_session_truncate(session, 0);
    double before = experts_ns(engine);
    if (moebius_session_eval_each(session, ids, (size_t)n, 0, NULL, NULL, &error) != MOEBIUS_OK)
        return err_set(e, (err_code)error.status, "%s", error.text);
    double ns = experts_ns(engine) - before;
    if (*best == 0 || ns < *best)
        *best = ns;
    return ERR_OK;
}

int64_t tune_choose(const struct tune_row *rows, int n)
{
    double gain = 0, best = 0;
    int64_t cutoff = 1;
    for (int i = 0; i < n; i++) {
        gain += log(rows[i].sorted_ns / rows[i].direct_ns);
        if (gain > best) {
            best = gain;
            cutoff = rows[i].n_tok;
        }
    }
    return cutoff;
}

err_code tune_run(const moebius_engine *engine, moebius_session *direct, moebius_session *sorted, const int32_t *ids,
                  bool (*progress)(void *user, int64_t n_tok), void *user, struct tune_result *out, struct err *e)
{
    static const int sizes[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, TUNE_MAX_TOK};
    double warm = 0;
    *out = (struct tune_result){0};
    TRY(measure(engine, direct, ids, TUNE_MAX_TOK, &warm, e)); /* work space grows the first time */
    TRY(measure(engine, sorted, ids, TUNE_MAX_TOK, &warm, e));
    if (warm == 0)
        return err_set(e, ERR_UNSUPPORTED, "the model has no routed experts: there is nothing to tune");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct tune_row *r = &out->rows[out->n_row++];
        r->n_tok = sizes[i];
        if (progress && !progress(user, r->n_tok))
            return err_set(e, ERR_CANCELLED, "interrupted: nothing is kept");
        int64_t end_ns = clock_ns() + ROW_NS;
        for (int round = 0; round < MIN_ROUND || (round < MAX_ROUND && clock_ns() < end_ns); round++) {
            TRY(measure(engine, direct, ids, r->n_tok, &r->direct_ns, e));
            TRY(measure(engine, sorted, ids, r->n_tok, &r->sorted_ns, e));
        }
        if (r->direct_ns > 2 * r->sorted_ns)
            break; /* that won't turn again */
    }
    out->sort_cutoff = tune_choose(out->rows, out->n_row);
    return ERR_OK;
}
