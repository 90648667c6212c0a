#include "jobs/bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"

/* About 0.1 to 0.2 s on most machines, which is short compared with the time for which a shared machine keeps its
 * speed. */
enum { STRETCH_TOK = 16 };

/* A phase and the speeds of its rounds, in arrays of n_round. */
struct phase_run {
    struct bench_phase *phase;
    double *tok_per_s, *roof_tok_per_s, *roof_fraction;
    uint64_t n_experts, n_layers; /* computed in MoE layers, and how many such layers ran */
};

/* A text, and the index of its next token in the ids. */
struct bench_text {
    moebius_session *session;
    size_t next;
    int32_t id;
};

/* A device, and the counters of its operations before and after a stretch. */
struct bench_device {
    bool is_gpu;
    moebius_gpu_roof roof;
    moebius_op_stats before[MOEBIUS_MAX_OP], after[MOEBIUS_MAX_OP];
    double stretch_s; /* GPU: the least time that it can take for the stretch */
};

struct bench_run {
    moebius_engine *engine;
    const struct bench_params *params;
    struct bench_text *texts;  /* [n_texts]; the first one's session is the caller's */
    moebius_batch_item *items; /* [n_texts] */
    int32_t *chunk;
    moebius_roof roof; /* as measured last */
    moebius_roof sum;  /* sum of all measurements */
    int64_t n_roof;    /* number of measurements */
    bool is_streaming;
    struct bench_device *devices;
    int n_device;
    bool has_cpu, has_gpu, has_turns; /* has_turns: several devices have layers, one after the other */
    struct phase_run prefill, decode;
    struct bench_result *out;
};

/* Tokens, the time that they took, and the least time that they could take. */
struct stretch {
    double n_tok, s, roof_s;
};

static double op_roof_seconds(const moebius_roof *roof, const moebius_op_stats *op)
{
    double memory = (double)op->n_bytes / roof->read_bytes_per_s;
    double compute = (double)op->n_int8 / roof->int8_per_s + (double)op->n_float / roof->float_per_s;
    compute += op->n_tile ? (double)op->n_tile / roof->tile_per_s : 0;
    return memory > compute ? memory : compute;
}

static int32_t next_id(const struct bench_run *b, struct bench_text *t)
{
    return b->params->ids[t->next++ % b->params->n_ids];
}

/* Computes n tokens of one text. */
static err_code eval(struct bench_run *b, struct bench_text *t, int64_t n, struct err *e)
{
    moebius_error error;
    for (int64_t i = 0; i < n; i++)
        b->chunk[i] = next_id(b, t);
    if (moebius_session_eval(t->session, b->chunk, (size_t)n, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    return ERR_OK;
}

/* Computes a token of each text. */
static err_code eval_all(struct bench_run *b, struct err *e)
{
    moebius_error error;
    for (int64_t i = 0; i < b->params->n_texts; i++) {
        struct bench_text *t = &b->texts[i];
        t->id = next_id(b, t);
        b->items[i] = (moebius_batch_item){.session = t->session, .ids = &t->id, .n = 1};
    }
    if (moebius_eval_batch(b->engine, b->items, (size_t)b->params->n_texts, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    return ERR_OK;
}

static moebius_roof each(moebius_roof a, moebius_roof b, double (*fn)(double a, double b))
{
    return (moebius_roof){fn(a.read_bytes_per_s, b.read_bytes_per_s), fn(a.int8_per_s, b.int8_per_s),
                          fn(a.float_per_s, b.float_per_s), fn(a.tile_per_s, b.tile_per_s)};
}

static moebius_roof divided(moebius_roof a, double n)
{
    return (moebius_roof){a.read_bytes_per_s / n, a.int8_per_s / n, a.float_per_s / n, a.tile_per_s / n};
}

static double plus(double a, double b)
{
    return a + b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double mean(double a, double b)
{
    return (a + b) / 2;
}

/* Measuring the roof takes memory, which would be taken from slots, and time, in which GPUs lower their clocks. So it
 * is measured only once if experts are read or there are GPUs. */
static err_code measure_roof(struct bench_run *b, struct err *e)
{
    moebius_error error;
    struct bench_result *r = b->out;
    if (!b->has_cpu || ((b->is_streaming || b->has_gpu) && r->best.int8_per_s > 0))
        return ERR_OK;
    if (moebius_engine_measure_roof(b->engine, &b->roof, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    b->sum = each(b->sum, b->roof, plus);
    r->mean = divided(b->sum, (double)++b->n_roof);
    r->best = r->best.int8_per_s > 0 ? each(r->best, b->roof, most) : b->roof;
    r->least = r->least.int8_per_s > 0 ? each(r->least, b->roof, least) : b->roof;
    return ERR_OK;
}

static moebius_op_stats difference(const moebius_op_stats *after, const moebius_op_stats *before)
{
    return (moebius_op_stats){.name = after->name,
                              .n = after->n - before->n,
                              .n_ns = after->n_ns - before->n_ns,
                              .n_bytes = after->n_bytes - before->n_bytes,
                              .n_int8 = after->n_int8 - before->n_int8,
                              .n_float = after->n_float - before->n_float,
                              .n_tile = after->n_tile - before->n_tile};
}

static void add_stats(moebius_op_stats *to, const moebius_op_stats *did)
{
    to->name = did->name;
    to->n += did->n;
    to->n_ns += did->n_ns;
    to->n_bytes += did->n_bytes;
    to->n_int8 += did->n_int8;
    to->n_float += did->n_float;
    to->n_tile += did->n_tile;
}

/* Adds what all devices did with one kind of operation in a stretch, and adds its least time to the stretch's roofs:
 * for the processor by each of the roofs, for GPUs by their own. */
static void add_op(struct bench_run *b, int kind, struct bench_op *to, const moebius_roof roofs[3], double roof_s[3])
{
    moebius_op_stats on_cpu = {0};
    for (int i = 0; i < b->n_device; i++) {
        struct bench_device *d = &b->devices[i];
        const moebius_op_stats did = difference(&d->after[kind], &d->before[kind]);
        add_stats(&to->did, &did);
        if (d->is_gpu) {
            double s = (double)did.n_bytes / d->roof.bytes_per_s;
            d->stretch_s += s;
            to->roof_s += s;
        } else {
            add_stats(&on_cpu, &did);
        }
    }
    for (int i = 0; b->has_cpu && i < 3; i++)
        roof_s[i] += op_roof_seconds(&roofs[i], &on_cpu);
    to->roof_s += b->has_cpu ? op_roof_seconds(&roofs[2], &on_cpu) : 0;
}

/* The least time of GPUs in the stretch. Devices that have layers of their own compute one after the other, all others
 * at the same time. */
static double gpu_seconds(const struct bench_run *b)
{
    double s = 0;
    for (int i = 0; i < b->n_device; i++)
        s = b->has_turns ? s + b->devices[i].stretch_s : most(s, b->devices[i].stretch_s);
    return s;
}

/* Adds a stretch to its phase. roof_s is set to its least times by three roofs. */
static void add_work(struct bench_run *b, struct bench_phase *p, const moebius_roof roofs[3], double roof_s[3])
{
    for (int i = 0; i < b->n_device; i++)
        b->devices[i].stretch_s = 0;
    for (int i = 0; i < b->out->n_op; i++)
        add_op(b, i, &p->ops[i], roofs, roof_s);
    for (int i = 0; i < 3; i++)
        roof_s[i] = most(roof_s[i], gpu_seconds(b));
}

/* The counters of several places so far. */
static err_code read_places(const struct bench_run *b, moebius_place_stats *places, struct err *e)
{
    moebius_error error;
    int n = moebius_n_place(b->engine);
    for (int i = 0; n > 1 && i < n; i++)
        if (moebius_place_did(b->engine, i, -1, &places[i], &error) != MOEBIUS_OK)
            return err_adopt(e, &error);
    return ERR_OK;
}

static void add_place(moebius_place_stats *to, const moebius_place_stats *before, const moebius_place_stats *after)
{
    to->n_call += after->n_call - before->n_call;
    to->n_row += after->n_row - before->n_row;
    to->n_replica_row += after->n_replica_row - before->n_replica_row;
    to->n_found += after->n_found - before->n_found;
    to->n_read += after->n_read - before->n_read;
    to->compute_ns += after->compute_ns - before->compute_ns;
    to->read_wait_ns += after->read_wait_ns - before->read_wait_ns;
    to->finish_wait_ns += after->finish_wait_ns - before->finish_wait_ns;
    to->to_bytes += after->to_bytes - before->to_bytes;
    to->from_bytes += after->from_bytes - before->from_bytes;
}

/* How many experts n_step passes computed: by the counters of devices or, if there are several places, of places. */
static void count_experts(const struct bench_run *b, struct phase_run *p, int64_t n_step, uint64_t n_experts,
                          const moebius_place_stats *before, const moebius_place_stats *after)
{
    for (int i = 0; i < BENCH_MAX_PLACE; i++) /* zeros where there is one place */
        p->n_experts += after[i].n_found + after[i].n_read - before[i].n_found - before[i].n_read;
    p->n_experts += moebius_n_place(b->engine) > 1 ? 0 : n_experts;
    p->n_layers += (uint64_t)(n_step * moebius_n_moe_layer(b->engine));
}

/* Times n tokens, `step` at a time. The roof was measured before; it is measured again after them. */
static err_code run_stretch(struct bench_run *b, struct phase_run *run, int64_t n, int64_t step, struct stretch *out,
                            bool *is_steady, struct err *e)
{
    struct bench_phase *p = run->phase;
    moebius_place_stats places[2][BENCH_MAX_PLACE] = {0};
    moebius_roof roofs[3] = {b->roof};
    double roof_s[3] = {0};
    for (int i = 0; i < b->n_device; i++)
        moebius_device_op_stats(b->engine, i, b->devices[i].before);
    const moebius_counters counters = moebius_engine_counters(b->engine);
    TRY(read_places(b, places[0], e));
    int64_t start = clock_ns();
    for (int64_t i = 0; i < n; i += step)
        TRY(run == &b->decode ? eval_all(b, e) : eval(b, &b->texts[0], step, e));
    out->s = (double)(clock_ns() - start) * 1e-9;
    for (int i = 0; i < b->n_device; i++)
        b->out->n_op = moebius_device_op_stats(b->engine, i, b->devices[i].after);
    TRY(read_places(b, places[1], e));
    const moebius_counters now = moebius_engine_counters(b->engine);
    count_experts(b, run, n / step, now.n_experts - counters.n_experts, places[0], places[1]);
    p->n_dispatch += (double)(now.n_gpu_dispatch - counters.n_gpu_dispatch);
    TRY(measure_roof(b, e));
    roofs[1] = b->roof;
    roofs[2] = each(roofs[0], roofs[1], mean);
    add_work(b, p, roofs, roof_s);
    for (int i = 0; i < BENCH_MAX_PLACE; i++)
        add_place(&p->places[i], &places[0][i], &places[1][i]);
    out->n_tok = (double)n;
    out->roof_s = roof_s[2];
    *is_steady = most(roof_s[0], roof_s[1]) <= 1.1 * least(roof_s[0], roof_s[1]);
    return ERR_OK;
}

static void add_stretch(struct stretch *to, const struct stretch *s)
{
    to->n_tok += s->n_tok;
    to->s += s->s;
    to->roof_s += s->roof_s;
}

/* Runs a round of one phase: n tokens, `step` at a time, in stretches. */
static err_code run_phase(struct bench_run *b, struct phase_run *p, int64_t round, int64_t n, int64_t step,
                          struct err *e)
{
    struct stretch all = {0}, steady = {0}, s;
    int64_t length = step > STRETCH_TOK ? step : STRETCH_TOK / step * step;
    bool is_steady;
    for (int64_t i = 0; i < n; i += length) {
        TRY(run_stretch(b, p, n - i < length ? n - i : length, step, &s, &is_steady, e));
        add_stretch(&all, &s);
        if (is_steady)
            add_stretch(&steady, &s);
    }
    p->phase->n_unsteady += (int64_t)(all.n_tok - steady.n_tok);
    if (steady.n_tok == 0)
        steady = all;
    p->tok_per_s[round] = all.n_tok / all.s;
    p->roof_tok_per_s[round] = steady.roof_s > 0 ? steady.n_tok / steady.roof_s : 0;
    p->roof_fraction[round] = steady.roof_s / steady.s;
    return ERR_OK;
}

static err_code run_round(struct bench_run *b, int64_t round, struct err *e)
{
    const struct bench_params *p = b->params;
    for (int64_t i = 0; i < p->n_texts; i++) {
        moebius_session_truncate(b->texts[i].session, 0);
        if (p->n_depth)
            TRY(eval(b, &b->texts[i], p->n_depth, e));
        if (p->n_prefill && i > 0)
            TRY(eval(b, &b->texts[i], p->n_prefill, e));
    }
    TRY(measure_roof(b, e));
    if (p->n_prefill)
        TRY(run_phase(b, &b->prefill, round, p->n_prefill, p->n_prefill, e));
    return p->n_decode ? run_phase(b, &b->decode, round, p->n_decode * p->n_texts, p->n_texts, e) : ERR_OK;
}

struct bench_spread bench_spread(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return (struct bench_spread){mean(values[(n - 1) / 2], values[n / 2]), values[0], values[n - 1]};
}

static void sum_up(const struct bench_run *b, struct phase_run *r, int64_t n_tok)
{
    struct bench_phase *p = r->phase;
    int64_t n = b->out->n_round;
    if (n_tok == 0)
        return;
    p->n_tok = n_tok;
    p->n_experts = r->n_layers ? (double)r->n_experts / (double)r->n_layers : 0;
    p->tok_per_s = bench_spread(r->tok_per_s, n);
    p->roof_tok_per_s = bench_spread(r->roof_tok_per_s, n);
    p->roof_fraction = bench_spread(r->roof_fraction, n);
    p->n_dispatch /= (double)(n_tok * n);
    for (int i = 0; i < b->out->n_op; i++) {
        p->n_bytes += (double)p->ops[i].did.n_bytes / (double)(n_tok * n);
        p->n_int8 += (double)p->ops[i].did.n_int8 / (double)(n_tok * n);
        p->n_float += (double)p->ops[i].did.n_float / (double)(n_tok * n);
        p->n_tile += (double)p->ops[i].did.n_tile / (double)(n_tok * n);
    }
}

static struct phase_run phase_run(struct bench_phase *p, double *figures, int64_t n_round)
{
    return (struct phase_run){p, figures, figures + n_round, figures + 2 * n_round};
}

/* Finds out which devices compute, and what GPUs can do. */
static err_code look_at_devices(struct bench_run *b, struct err *e)
{
    moebius_error error;
    moebius_device d;
    int n_with_layers = 0;
    while (moebius_engine_device(b->engine, b->n_device, &d))
        b->n_device++;
    b->devices = mem_calloc((size_t)b->n_device, sizeof *b->devices);
    if (!b->devices)
        return err_nomem(e, (size_t)b->n_device * sizeof *b->devices, "a benchmark");
    for (int i = 0; moebius_engine_device(b->engine, i, &d); i++) {
        struct bench_device *to = &b->devices[i];
        to->is_gpu = d.is_gpu;
        n_with_layers += d.n_layer > 0;
        *(d.is_gpu ? &b->has_gpu : &b->has_cpu) = true;
        if (d.is_gpu && moebius_device_measure_roof(b->engine, i, &to->roof, &error) != MOEBIUS_OK)
            return err_adopt(e, &error);
        if (d.is_gpu && b->out->gpu.bytes_per_s <= 0)
            b->out->gpu = to->roof;
    }
    b->has_turns = n_with_layers > 1;
    b->out->is_gpu_alone = b->n_device == 1 && b->has_gpu;
    return ERR_OK;
}

/* Opens the sessions of all texts but the first, which begin at other places of the ids. */
static err_code open_texts(struct bench_run *b, moebius_session *first, struct err *e)
{
    moebius_error error;
    moebius_session_truncate(first, 0);
    b->texts[0].session = first;
    for (int64_t i = 1; i < b->params->n_texts; i++) {
        b->texts[i].next = b->params->n_ids * (size_t)i / (size_t)b->params->n_texts;
        if (moebius_session_fork(&b->texts[i].session, first, &error) != MOEBIUS_OK)
            return err_adopt(e, &error);
    }
    return ERR_OK;
}

err_code bench_run(moebius_engine *engine, moebius_session *session, const struct bench_params *params,
                   bool (*progress)(void *user, int64_t n_round), void *user, struct bench_result *out, struct err *e)
{
    err_code code = ERR_OK;
    const moebius_counters c = moebius_engine_counters(engine);
    struct bench_run b = {
        .engine = engine, .params = params, .is_streaming = c.expert_bytes < c.expert_all_bytes, .out = out};
    int64_t longest = params->n_prefill > params->n_depth ? params->n_prefill : params->n_depth;
    size_t n_figure = 6 * (size_t)params->n_round;
    *out = (struct bench_result){0};
    b.chunk = mem_calloc((size_t)longest + 1, sizeof *b.chunk);
    b.texts = mem_calloc((size_t)params->n_texts, sizeof *b.texts);
    b.items = mem_calloc((size_t)params->n_texts, sizeof *b.items);
    double *figures = mem_calloc(n_figure, sizeof *figures);
    if (!b.chunk || !b.texts || !b.items || !figures) {
        code = err_nomem(e, n_figure * sizeof *figures, "a benchmark");
        goto out;
    }
    b.prefill = phase_run(&out->prefill, figures, params->n_round);
    b.decode = phase_run(&out->decode, figures + n_figure / 2, params->n_round);
    TRY_OUT(look_at_devices(&b, e));
    if (b.is_streaming)
        TRY_OUT(measure_roof(&b, e));
    TRY_OUT(open_texts(&b, session, e));
    for (bool more = true; more && out->n_round < params->n_round;) {
        TRY_OUT(run_round(&b, out->n_round, e));
        out->n_round++;
        more = !progress || progress(user, out->n_round);
    }
    sum_up(&b, &b.prefill, params->n_prefill);
    sum_up(&b, &b.decode, params->n_decode * params->n_texts);
out:
    for (int64_t i = 1; b.texts && i < params->n_texts; i++)
        moebius_session_close(&b.texts[i].session);
    mem_free(b.devices);
    mem_free(b.texts);
    mem_free(b.items);
    mem_free(b.chunk);
    mem_free(figures);
    return code;
}
