#include "planner/ceiling.h"

#include <math.h>
#include <string.h>

static const char *const names[REGIME_N] = {"ram", "stream", "vram", "offload", "tiered", "ranks"};

const char *const ceiling_part_names[PART_N] = {"products", "state", "beside", "reads"};

const char *regime_name(enum regime r)
{
    return names[r];
}

int regime_find(const char *name)
{
    for (int i = 0; i < REGIME_N; i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

double ceiling_distinct(int64_t n_expert, int64_t n_used, double n)
{
    if (n <= 1 || n_used >= n_expert)
        return (double)n_used;
    return (double)n_expert * (1 - pow(1 - (double)n_used / (double)n_expert, n));
}

static double part_of(int64_t n, int64_t n_all)
{
    return n < 1 ? 0 : n >= n_all ? 1 : (double)n / (double)n_all;
}

double ceiling_prompt_miss(int64_t n_slot, int64_t n_expert)
{
    return 1 - part_of(n_slot, n_expert);
}

/* The hit rate without a curve: slots hold the experts chosen most in earlier runs, or any if there are no counts. */
static double hit_by_counts(const struct plan_facts *f, int64_t n_slot, int64_t n_expert)
{
    if (f->mass && n_slot >= 1 && n_slot <= f->n_mass)
        return f->mass[n_slot - 1];
    return part_of(n_slot, n_expert);
}

double ceiling_decode_miss(const struct plan_facts *f, int64_t n_slot, int64_t n_expert)
{
    double share = part_of(n_slot, n_expert);
    if (share >= 1 || share <= 0)
        return 1 - share;
    return 1 - (f->curve ? gate_slots_hit(f->curve, share) : hit_by_counts(f, n_slot, n_expert));
}

double ceiling_copies_hit(const struct plan_facts *f, int64_t n_copy, int64_t n_expert)
{
    double share = part_of(n_copy, n_expert), hit, moved;
    if (share >= 1 || share <= 0)
        return share;
    if (!f->curve)
        return hit_by_counts(f, n_copy, n_expert);
    gate_read_off(f->curve, share, &hit, &moved);
    return hit;
}

/* What cache-aware routing replaced with slots for a quarter and for half of the experts: means of the two texts of
 * docs/car.md. */
static const struct {
    double threshold, quarter, half;
} measured_car[] = {{0.35, 0.68, 0.87}, {0.5, 0.53, 0.77}, {0.7, 0.33, 0.55}, {0.9, 0.10, 0.22}, {1, 0, 0}};

static double between(double x, double x0, double x1, double y0, double y1)
{
    double part = x1 > x0 ? (x - x0) / (x1 - x0) : 0;
    return y0 + least(most(part, 0), 1) * (y1 - y0);
}

double ceiling_gives_way(double threshold, double slot_share)
{
    enum { N = sizeof measured_car / sizeof *measured_car };
    int i = 0;
    if (!(threshold > 0))
        return 0;
    while (i + 2 < N && measured_car[i + 1].threshold < threshold)
        i++;
    double x0 = measured_car[i].threshold, x1 = measured_car[i + 1].threshold;
    double quarter = between(threshold, x0, x1, measured_car[i].quarter, measured_car[i + 1].quarter);
    double half = between(threshold, x0, x1, measured_car[i].half, measured_car[i + 1].half);
    return between(slot_share, 0.25, 0.5, quarter, half);
}

/* ---- parts of a pass --------------------------------------------------------------------------------------------- */

/* An unknown rate counts as infinite, so that it bounds nothing. */
static double or_infinite(double rate)
{
    return rate > 0 ? rate : INFINITY;
}

/* The time of products with weights of one type that are read n_read times and multiplied with n tokens in all. A
 * weight takes some time for each read and some for each token; both are such that 1 and MACHINE_MANY tokens take the
 * measured time. */
static double products_s(const struct ceiling_params *p, const struct plan_product *x, double n_read, double n)
{
    const struct quant_info *q = quant_info((uint32_t)x->type);
    double peak = q && q->act == QUANT_ACT_FLOAT ? p->float_per_s : p->int8_per_s;
    const struct ceiling_rate *r = &p->product[x->type];
    double many_s = 1 / or_infinite(r->many_per_s > 0 ? r->many_per_s : peak);
    if (!(r->one_per_s > 0))
        return x->n * n * many_s;
    double token_s = most(0, (MACHINE_MANY * many_s - 1 / r->one_per_s) / (MACHINE_MANY - 1));
    return x->n * (n_read * most(0, 1 / r->one_per_s - token_s) + n * token_s);
}

/* The time to read c's bytes n_read times or to do its multiply-adds n times, whichever is longer. */
static double part_s(const struct ceiling_params *p, const struct plan_cost *c, double n_read, double n,
                     double read_per_s)
{
    double compute = n * c->n_float / or_infinite(p->float_per_s);
    for (int i = 0; i < c->n_product; i++)
        compute += products_s(p, &c->products[i], n_read, n);
    return most(n_read * c->n_bytes / read_per_s, compute);
}

/* The tokens of a pass: those of a prompt, or one of each text. */
struct tokens {
    double n;      /* tokens in all */
    double n_last; /* tokens that the last layer computes after its attention */
    bool in_row;   /* they follow each other in one text */
};

/* How many tokens of a pass a layer's experts compute. */
static double n_meeting(const struct ceiling_params *p, int layer, const struct tokens *tokens)
{
    return layer == p->facts->n_moe - 1 ? tokens->n_last : tokens->n;
}

/* How many different experts of a layer n tokens choose: by the curve of a sample text, or as if all were equally
 * likely. */
static double n_distinct(const struct ceiling_params *p, const struct plan_layer *y, double n, bool in_row)
{
    double even = ceiling_distinct(y->n_expert, y->n_used, n);
    double shown = p->facts->curve ? even * gate_distinct(p->facts->curve, n, in_row) : even;
    return least(most(shown, (double)y->n_used), (double)y->n_expert);
}

/* Adds a layer that GPU and processor compute at the same time: it takes as long as the slower of them. */
static void add_divided(const struct ceiling_params *p, const struct plan_layer *y, double n, bool in_row,
                        struct ceiling_time *t)
{
    double distinct = n_distinct(p, y, n, in_row), n_choice = n * (double)y->n_used;
    double hit = p->gpu_hit, miss = 1 - p->gpu_hit;
    double here = part_s(p, &y->expert, distinct * hit, n_choice * hit, p->read_per_s);
    double beside = part_s(p, &y->expert, distinct * miss, n_choice * miss, p->cpu_read_per_s);
    t->part_s[here >= beside ? PART_PRODUCTS : PART_BESIDE] += most(here, beside);
}

/* Adds the time of a layer's experts for all tokens of a pass. With several ranks it is that of the slowest rank, and
 * of a message there and back. */
static void add_layer(const struct ceiling_params *p, int layer, const struct tokens *tokens, struct ceiling_time *t)
{
    const struct plan_layer *y = &p->facts->layers[layer];
    double n = n_meeting(p, layer, tokens);
    if (!(n > 0))
        return;
    bool is_beside = layer >= p->facts->n_moe - p->n_cpu_moe;
    if (p->is_divided) {
        add_divided(p, y, n, tokens->in_row, t);
        return;
    }
    double s = part_s(p, &y->expert, n_distinct(p, y, n, tokens->in_row), n * (double)y->n_used,
                      is_beside ? p->cpu_read_per_s : p->read_per_s);
    t->part_s[is_beside ? PART_BESIDE : PART_PRODUCTS] +=
        p->rank_most > 0 ? s * p->rank_most + p->rank_round_trip_s : s;
}

/* The sum of the positions that tokens [from, to) of a text see: each sees itself and those before it in the window. */
static double n_seen(int64_t window, double from, double to)
{
    double w = (double)window, ramp_end = window ? least(to, w) : to;
    double ramp = ramp_end > from ? (ramp_end * (ramp_end + 1) - from * (from + 1)) / 2 : 0;
    return ramp + (window && to > w ? (to - most(from, w)) * w : 0);
}

static double attention_rate(const struct ceiling_params *p, int64_t n_tok)
{
    const struct ceiling_rate *r = &p->attention;
    double many = r->many_per_s > 0 ? r->many_per_s : p->float_per_s;
    return or_infinite(n_tok == 1 && r->one_per_s > 0 ? r->one_per_s : many);
}

/* The time of attention and recurrent state of n_texts texts, each of which computes tokens [from, to) in one pass. */
static double state_s(const struct ceiling_params *p, double n_texts, int64_t from, int64_t to)
{
    double s = part_s(p, &p->facts->recurrent, n_texts, n_texts * (double)(to - from), p->read_per_s);
    double rate = attention_rate(p, to - from);
    for (int i = 0; i < p->kv->n_cache; i++) {
        const struct plan_cache *c = &p->kv->caches[i];
        double n_read = c->window ? least((double)to, (double)(c->window + to - from)) : (double)to;
        double n_float = n_seen(c->window, (double)from, (double)to) * c->n_float;
        s += n_texts * most(n_read * c->n_bytes / p->read_per_s, n_float / rate);
    }
    return s;
}

/* Bytes of missed experts that drives must read during a pass. */
static double drives_bytes(const struct ceiling_params *p, const struct tokens *tokens)
{
    double n_bytes = 0;
    if (!(p->miss > 0))
        return 0;
    for (int i = 0; i < p->facts->n_moe; i++) {
        const struct plan_layer *y = &p->facts->layers[i];
        double n = n_meeting(p, i, tokens);
        if (n > 0)
            n_bytes += p->miss * n_distinct(p, y, n, tokens->in_row) * y->expert.n_bytes;
    }
    return least(n_bytes, p->missing_bytes);
}

/* The speed of the machine's memory, through which experts from drives pass. */
static double memory_per_s(const struct ceiling_params *p)
{
    return p->cpu_read_per_s > 0 ? p->cpu_read_per_s : p->read_per_s;
}

static bool is_known(const struct ceiling_params *p)
{
    return p->read_per_s > 0 && ((p->n_cpu_moe == 0 && !p->is_divided) || p->cpu_read_per_s > 0) &&
           (!(p->miss > 0) || p->drive_per_s > 0) && (!(p->rank_most > 0) || p->rank_round_trip_s > 0);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* The time of a pass, without state and logits. least_s is that of the drives only, whose reads may overlap with all
 * else. */
static struct ceiling_time begin_pass(const struct ceiling_params *p, struct tokens tokens)
{
    struct ceiling_time t = {0};
    t.part_s[PART_PRODUCTS] = part_s(p, &p->facts->token, 1, tokens.n, p->read_per_s);
    for (int i = 0; i < p->facts->n_moe; i++)
        add_layer(p, i, &tokens, &t);
    double n_bytes = drives_bytes(p, &tokens);
    if (n_bytes > 0) {
        t.least_s = n_bytes / p->drive_per_s;
        t.part_s[PART_READS] = t.least_s + p->n_pass * n_bytes / memory_per_s(p);
    }
    return t;
}

static double others_s(const struct ceiling_time *pass)
{
    double s = 0;
    for (int i = 0; i < PART_N; i++)
        s += i == PART_READS ? 0 : pass->part_s[i];
    return s;
}

/* While a layer of a prompt is computed, the next one is read, so that the shorter of both times is hidden. As
 * measured, the part of two layers is not: the first layer's reads, and computing that waits for a layer's last reads.
 */
static void hide_reads(const struct ceiling_params *p, struct ceiling_time *pass)
{
    double *reads = &pass->part_s[PART_READS];
    *reads -= least(*reads, others_s(pass)) * most(0, 1 - 2.0 / p->facts->n_moe);
}

static void add_pass(struct ceiling_time *t, const struct ceiling_time *pass)
{
    for (int i = 0; i < PART_N; i++)
        t->part_s[i] += pass->part_s[i];
    t->least_s += most(others_s(pass), pass->least_s);
}

static struct ceiling_time step(const struct ceiling_params *p, int64_t n_texts, int64_t n_depth)
{
    double n = (double)n_texts;
    struct ceiling_time t = {0}, pass = begin_pass(p, (struct tokens){n, n, false});
    pass.part_s[PART_PRODUCTS] += part_s(p, &p->facts->output, 1, n, p->read_per_s);
    pass.part_s[PART_STATE] = state_s(p, n, n_depth, n_depth + 1);
    add_pass(&t, &pass);
    return t;
}

static struct ceiling_time prompt(const struct ceiling_params *p, int64_t from, int64_t to, int64_t n_batch)
{
    struct ceiling_time t = {0}, pass;
    for (int64_t at = from, n; at < to; at += n) {
        n = to - at < n_batch ? to - at : n_batch;
        pass = begin_pass(p, (struct tokens){(double)n, at + n < to ? 0 : 1, true});
        pass.part_s[PART_STATE] = state_s(p, 1, at, at + n);
        hide_reads(p, &pass);
        add_pass(&t, &pass);
    }
    pass = (struct ceiling_time){.part_s[PART_PRODUCTS] = part_s(p, &p->facts->output, 1, 1, p->read_per_s)};
    add_pass(&t, &pass);
    return t;
}

/* The parameters with the peak rate for all products and for attention. */
static struct ceiling_params at_peaks(const struct ceiling_params *p)
{
    struct ceiling_params peaks = *p;
    memset(peaks.product, 0, sizeof peaks.product);
    peaks.attention = (struct ceiling_rate){0};
    return peaks;
}

struct ceiling_time ceiling_step(const struct ceiling_params *p, int64_t n_texts, int64_t n_depth)
{
    if (!is_known(p))
        return (struct ceiling_time){0};
    const struct ceiling_params peaks = at_peaks(p);
    struct ceiling_time t = step(p, n_texts, n_depth);
    t.least_s = step(&peaks, n_texts, n_depth).least_s;
    return t;
}

struct ceiling_time ceiling_prompt(const struct ceiling_params *p, int64_t from, int64_t to, int64_t n_batch)
{
    if (!is_known(p) || !(p->int8_per_s > 0) || !(p->float_per_s > 0))
        return (struct ceiling_time){0};
    const struct ceiling_params peaks = at_peaks(p);
    struct ceiling_time t = prompt(p, from, to, n_batch);
    t.least_s = prompt(&peaks, from, to, n_batch).least_s;
    return t;
}
