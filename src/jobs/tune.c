#include "jobs/tune.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

/* How long each choice is timed: those about products, and those about whole tokens. */
static const int64_t product_ns = 1000 * 1000 * 1000, number_ns = 3000 * (int64_t)(1000 * 1000);

/* A row is measured repeatedly, at least twice, until it has taken so long. */
enum { ROW_NS = 400 * 1000 * 1000, MIN_ROUND = 2, MAX_ROUND = 20 };

static err_code next_step(const struct tune_params *p, const char *what, struct err *e)
{
    if (p->progress && !p->progress(p->user, what))
        return err_set(e, ERR_CANCELLED, "interrupted: nothing is kept");
    return ERR_OK;
}

/* ---- products --------------------------------------------------------------------------------------------------- */

/* The number of tokens that stands for "several". */
enum { SEVERAL = 8 };

static err_code tune_type(moebius_engine *g, const struct tune_params *p, const struct tune_type *type, int64_t n_tok,
                          struct tune_result *out, struct err *e)
{
    char what[64];
    struct tuning t = *engine_tuning(g);
    struct tune_product *to = &out->products[out->n_product];
    snprintf(what, sizeof what, "%s with %lld tokens", type->type->name, (long long)n_tok);
    TRY(next_step(p, what, e));
    if (!tune_product(g, type, n_tok, TUNE_THOROUGH, product_ns, to))
        return err_set(e, ERR_NOMEM, "no memory to measure products with");
    out->n_product++;
    t.is_measured[type->type->type] = true;
    *(n_tok == 1 ? &t.cpu.one[type->type->type] : &t.cpu.several) = to->chosen;
    if (n_tok == 1) {
        if (!tune_several(g, type, to->chosen, product_ns, &to->several_from) ||
            !tune_panels(g, type, product_ns, &to->panels_from) || !tune_tiles(g, type, product_ns, &to->tiles_from))
            return err_set(e, ERR_NOMEM, "no memory to measure products with");
        t.cpu.several_from[type->type->type] = to->several_from;
        t.cpu.panels_from[type->type->type] = to->panels_from;
        t.cpu.tiles_from[type->type->type] = to->tiles_from;
    }
    engine_use_tuning(g, &t);
    return ERR_OK;
}

static err_code tune_products(moebius_engine *g, const struct tune_params *p, struct tune_result *out, struct err *e)
{
    struct tune_type types[TUNE_MAX_TYPE];
    int n = tune_types(g, TUNE_MIN_BYTES, types);
    for (int i = 0; i < n; i++)
        TRY(tune_type(g, p, &types[i], 1, out, e));
    return n ? tune_type(g, p, types, SEVERAL, out, e) : ERR_OK;
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

/* A comparison of values for a setting, by the time of a token. */
struct number_race {
    moebius_engine *g;
    const struct tune_params *p;
    void (*set)(struct cpu_tuning *c, int64_t value);
    int64_t values[8];
    int n_done;
    moebius_error error;
};

static void set_task(struct cpu_tuning *c, int64_t value)
{
    c->task_weights = value;
}

static void set_spin(struct cpu_tuning *c, int64_t value)
{
    c->n_spin = (int32_t)value;
}

static void use_value(const struct number_race *r, int64_t value)
{
    struct tuning t = *engine_tuning(r->g);
    r->set(&t.cpu, value);
    engine_use_tuning(r->g, &t);
}

static int64_t time_value(void *user, int choice)
{
    struct number_race *r = user;
    use_value(r, r->values[choice]);
    moebius_session_truncate(r->p->direct, 0);
    int64_t start_ns = clock_ns();
    if (moebius_session_eval(r->p->direct, r->p->ids + r->n_done++ % TUNE_MAX_TOK, 1, &r->error) != MOEBIUS_OK)
        return 0;
    return clock_ns() - start_ns;
}

/* Chooses among n values, the first of which is the current one. */
static err_code tune_number(struct number_race *r, const char *name, int n, struct tune_number *out, struct err *e)
{
    struct race race = {.n_choice = n, .budget_ns = number_ns, .time_ns = time_value, .user = r};
    TRY(next_step(r->p, name, e));
    int best = race_run(&race);
    if (best < 0)
        return err_adopt(e, &r->error);
    *out = (struct tune_number){name, r->values[0], r->values[best], race.score[0] / race.score[best]};
    use_value(r, out->chosen);
    return ERR_OK;
}

static err_code tune_numbers(moebius_engine *g, const struct tune_params *p, struct tune_result *out, struct err *e)
{
    const struct cpu_tuning now = engine_tuning(g)->cpu;
    struct number_race task = {.g = g, .p = p, .set = set_task, .values = {now.task_weights}};
    struct number_race spin = {.g = g, .p = p, .set = set_spin, .values = {now.n_spin, 0}};
    int n_task = 1, n_spin = 2;
    for (int64_t v = 1 << 16; v <= 1 << 21; v *= 2)
        task.values[n_task++] = v;
    for (int64_t v = 500; v <= 32000; v *= 4)
        spin.values[n_spin++] = v;
    TRY(tune_number(&task, "task_weights", n_task, &out->numbers[0], e));
    return tune_number(&spin, "spins", n_spin, &out->numbers[1], e);
}

/* ---- dispatch of experts ---------------------------------------------------------------------------------------- */

/* The time of the experts' operations so far. */
static double experts_ns(const moebius_engine *engine)
{
    moebius_op_stats ops[MOEBIUS_MAX_OP];
    int n = moebius_engine_op_stats(engine, ops);
    for (int i = 0; i < n; i++)
        if (!strcmp(ops[i].name, "EXPERTS"))
            return (double)ops[i].n_ns;
    return 0;
}

/* Lowers *best to the experts' time for n tokens at once, if that is less. Logits of all tokens are requested, because
 * the last layer would compute only one token otherwise. */
static err_code measure(const moebius_engine *engine, moebius_session *session, const int32_t *ids, int64_t n,
                        double *best, struct err *e)
{
    moebius_error error;
    moebius_session_truncate(session, 0);
    double before = experts_ns(engine);
    if (moebius_session_eval_each(session, ids, (size_t)n, 0, NULL, NULL, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    double ns = experts_ns(engine) - before;
    if (*best == 0 || ns < *best)
        *best = ns;
    return ERR_OK;
}

/* The logarithm of what direct dispatch gains in a row. */
static double direct_gain(const struct tune_row *r)
{
    return log(r->sorted_ns / r->direct_ns);
}

/* The best cutoff for the mean of all rows. */
static int64_t best_cutoff(const struct tune_row *rows, int n)
{
    double gain = 0, best = 0;
    int64_t cutoff = 1;
    for (int i = 0; i < n; i++) {
        gain += direct_gain(&rows[i]);
        if (gain > best) {
            best = gain;
            cutoff = rows[i].n_tok;
        }
    }
    return cutoff;
}

int64_t tune_choose(const struct tune_row *rows, int n, int64_t now)
{
    int64_t best = best_cutoff(rows, n);
    double gain = 0;
    int n_changed = 0;
    for (int i = 0; i < n; i++) {
        bool is_direct = rows[i].n_tok <= best, was_direct = rows[i].n_tok <= now;
        n_changed += is_direct != was_direct;
        gain += is_direct == was_direct ? 0 : is_direct ? direct_gain(&rows[i]) : -direct_gain(&rows[i]);
    }
    return n_changed && gain >= n_changed * log(RACE_MARGIN) ? best : now;
}

static err_code tune_row(const moebius_engine *g, const struct tune_params *p, struct tune_row *r, struct err *e)
{
    int64_t end_ns = clock_ns() + ROW_NS;
    for (int round = 0; round < MIN_ROUND || (round < MAX_ROUND && clock_ns() < end_ns); round++) {
        TRY(measure(g, p->direct, p->ids, r->n_tok, &r->direct_ns, e));
        TRY(measure(g, p->sorted, p->ids, r->n_tok, &r->sorted_ns, e));
    }
    return ERR_OK;
}

static err_code tune_cutoff(moebius_engine *g, const struct tune_params *p, struct tune_result *out, struct err *e)
{
    static const int sizes[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, TUNE_MAX_TOK};
    struct tuning t = *engine_tuning(g);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char what[64];
        struct tune_row *r = &out->rows[out->n_row++];
        r->n_tok = sizes[i];
        snprintf(what, sizeof what, "%d tokens at once", sizes[i]);
        TRY(next_step(p, what, e));
        TRY(tune_row(g, p, r, e));
        if (r->direct_ns > 2 * r->sorted_ns)
            break; /* later values won't become better again */
    }
    out->sort_cutoff = tune_choose(out->rows, out->n_row, tuning_cutoff(&t, moebius_fingerprint(g)));
    tuning_set_cutoff(&t, moebius_fingerprint(g), out->sort_cutoff);
    engine_use_tuning(g, &t);
    return ERR_OK;
}

static err_code tune_all(moebius_engine *g, const struct tune_params *p, struct tune_result *out, struct err *e)
{
    double warm = 0;
    TRY(measure(g, p->direct, p->ids, TUNE_MAX_TOK, &warm, e)); /* to warm up: work space grows the first time */
    TRY(measure(g, p->sorted, p->ids, TUNE_MAX_TOK, &warm, e));
    TRY(tune_products(g, p, out, e));
    TRY(tune_numbers(g, p, out, e));
    return warm > 0 ? tune_cutoff(g, p, out, e) : ERR_OK;
}

err_code tune_run(moebius_engine *engine, const struct tune_params *p, struct tune_result *out, struct err *e)
{
    const struct tuning before = *engine_tuning(engine);
    *out = (struct tune_result){0};
    err_code code = tune_all(engine, p, out, e);
    if (code != ERR_OK)
        engine_use_tuning(engine, &before);
    return code;
}
