#include "planner/gate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"

/* ---- costs ------------------------------------------------------------------------------------------------------- */

/* In a layer that two devices compute, the choice is read back and a result is waited for: two waits for a dispatch. */
enum { N_WAIT = 2 };

static double over(double n_bytes, double bytes_per_s)
{
    return bytes_per_s > 0 ? n_bytes / bytes_per_s : 0;
}

struct gate_costs gate_costs(const struct machine *m, double expert_bytes, int n_first_thread, int n_other_thread)
{
    const struct machine_gpu *g = &m->gpus[0];
    double other = machine_memory_speed(m, n_other_thread);
    if (n_first_thread > 0) {
        double first = machine_memory_speed(m, n_first_thread);
        return (struct gate_costs){over(expert_bytes, first), over(expert_bytes, other), 0, over(expert_bytes, other)};
    }
    double to = g->to_pageable_per_s > 0 ? g->to_pageable_per_s : g->to_bytes_per_s; /* slots are filled by copies */
    return (struct gate_costs){over(expert_bytes, g->bytes_per_s), over(expert_bytes, other), N_WAIT * g->dispatch_s,
                               over(expert_bytes, to)};
}

/* ---- the curve --------------------------------------------------------------------------------------------------- */

/* Finds the points on both sides of a share; returns how far the share is from the first to the second, 0 to 1. */
static double bracket(const struct gate_curve *c, double share, struct gate_point *a, struct gate_point *b)
{
    *a = (struct gate_point){0};
    *b = (struct gate_point){.share = 1, .hit = 1, .slots_hit = 1};
    for (int i = 0; i < c->n_point && c->points[i].share <= share; i++)
        *a = c->points[i];
    for (int i = c->n_point; i-- > 0 && c->points[i].share > share;)
        *b = c->points[i];
    double part = b->share > a->share ? (share - a->share) / (b->share - a->share) : 0;
    return fmin(fmax(part, 0), 1);
}

void gate_read_off(const struct gate_curve *c, double share, double *hit, double *moved)
{
    struct gate_point a, b;
    double part = bracket(c, share, &a, &b);
    *hit = a.hit + part * (b.hit - a.hit);
    *moved = a.moved + part * (b.moved - a.moved);
}

double gate_slots_hit(const struct gate_curve *c, double share)
{
    struct gate_point a, b;
    double part = bracket(c, share, &a, &b);
    return a.slots_hit + part * (b.slots_hit - a.slots_hit);
}

double gate_distinct(const struct gate_curve *c, double n, bool in_row)
{
    double n_before = 1, before = 1; /* the experts of a single token are always distinct */
    for (int i = 0; i < c->n_count; i++) {
        double n_here = (double)c->counts[i].n, here = in_row ? c->counts[i].in_row : c->counts[i].apart;
        if (n < n_here)
            return before + fmax(n - n_before, 0) / (n_here - n_before) * (here - before);
        n_before = n_here;
        before = here;
    }
    return before;
}

/* ---- deciding ---------------------------------------------------------------------------------------------------- */

/* The expected time of a layer whose n choices hit slots with probability `hit` each. Both devices compute at the same
 * time, and the slower one counts. */
static double layer_s(int64_t n, double hit, const struct gate_costs *c)
{
    double s = 0, p = pow(1 - hit, (double)n); /* probability that i choices hit */
    if (hit >= 1)
        return (double)n * c->first_s;
    for (int64_t i = 0; i <= n; i++) {
        s += p * fmax((double)i * c->first_s, (double)(n - i) * c->other_s);
        p *= (double)(n - i) / (double)(i + 1) * (hit / (1 - hit));
    }
    return s;
}

/* Smaller differences than these are taken for noise. */
static const double gain_share = 0.03, least_lead = 0.05;

static void decide_by_time(struct gate *g, const struct gate_curve *c, const struct gate_costs *costs)
{
    double n_layer = (double)c->n_layer, n_whole = g->layer_share * n_layer, n = (double)c->n_used;
    g->layers_s = n_whole * n * costs->first_s + (n_layer - n_whole) * (n * costs->other_s + costs->wait_s);
    g->slots_s = n_layer * (layer_s(c->n_used, g->hit, costs) + costs->wait_s) + g->moved * costs->move_s;
    g->passes = g->slots_s < g->layers_s * (1 - gain_share);
    snprintf(
        g->reason, sizeof g->reason,
        "a token's experts take %.3f ms with slots, which find %.1f%% of the choices, and %.3f ms with %.0f of %" PRId64
        " layers whole%s",
        1e3 * g->slots_s, 100 * g->hit, 1e3 * g->layers_s, n_whole, c->n_layer,
        g->passes || g->slots_s >= g->layers_s ? "" : ": less than 3% is noise");
}

static void decide_by_hits(struct gate *g, const struct gate_curve *c)
{
    g->passes = g->hit > g->layer_share + least_lead;
    snprintf(g->reason, sizeof g->reason,
             "slots find %.1f%% of the choices, %.0f of %" PRId64
             " whole layers have %.1f%%; what devices and links cost "
             "is not known (moebius probe)",
             100 * g->hit, g->layer_share * (double)c->n_layer, c->n_layer, 100 * g->layer_share);
}

void gate_decide(struct gate *out, const struct gate_curve *c, double share, const struct gate_costs *costs)
{
    *out = (struct gate){.share = share};
    gate_read_off(c, share, &out->hit, &out->moved);
    out->layer_share = c->n_layer ? floor(share * (double)c->n_layer + 1e-9) / (double)c->n_layer : 0;
    if (costs->first_s > 0 && costs->other_s > 0)
        decide_by_time(out, c, costs);
    else
        decide_by_hits(out, c);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

enum { VERSION = 3 };

static json_t *curve_object(const struct gate_curve *c)
{
    char model[20];
    json_t *points = json_array();
    for (int i = 0; points && i < c->n_point; i++)
        json_array_append_new(points,
                              json_pack("{s:f, s:f, s:f, s:f}", "share", c->points[i].share, "hit", c->points[i].hit,
                                        "moved", c->points[i].moved, "slots_hit", c->points[i].slots_hit));
    json_t *counts = json_array();
    for (int i = 0; counts && i < c->n_count; i++)
        json_array_append_new(counts, json_pack("{s:I, s:f, s:f}", "tokens", (json_int_t)c->counts[i].n, "apart",
                                                c->counts[i].apart, "in_row", c->counts[i].in_row));
    snprintf(model, sizeof model, "%016" PRIx64, c->fingerprint);
    return json_pack("{s:i, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o}", "gate", VERSION, "model", model,
                     "policy", c->policy, "tokens", (json_int_t)c->n_tok, "layers", (json_int_t)c->n_layer, "used",
                     (json_int_t)c->n_used, "expert_bytes", c->expert_bytes, "share_of_90", c->share_of_90, "entropy",
                     c->entropy, "curve", points, "distinct", counts);
}

/* Takes over the reference to j. */
static err_code write_object(json_t *j, char **text, struct err *e)
{
    *text = j ? json_write(j, JSON_INDENT(1) | JSON_REAL_PRECISION(8), NULL) : NULL;
    json_decref(j);
    return *text ? ERR_OK : err_nomem(e, sizeof(struct gate_curve), "a gate");
}

err_code gate_write(const struct gate_curve *c, char **text, struct err *e)
{
    return write_object(curve_object(c), text, e);
}

err_code gate_json(const struct gate *g, const struct gate_curve *c, char **text, struct err *e)
{
    json_t *curve = curve_object(c);
    return write_object(curve ? json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:o, s:o, s:o}", "decision",
                                          g->passes ? "pass" : "hold", "reason", g->reason, "share", g->share, "hit",
                                          g->hit, "moved", g->moved, "layer_share", g->layer_share, "slots_s",
                                          g->slots_s > 0 ? json_real(g->slots_s) : json_null(), "layers_s",
                                          g->layers_s > 0 ? json_real(g->layers_s) : json_null(), "measured", curve)
                              : NULL,
                        text, e);
}

/* Reads a number of an object and checks its bounds. */
static err_code get(const json_t *j, const char *key, double least, double most, double *out, const char *name,
                    struct err *e)
{
    const json_t *x = json_object_get(j, key);
    *out = json_number_value(x);
    if (!json_is_number(x) || !(*out >= least && *out <= most))
        return err_set(e, ERR_FORMAT, "%s: \"%s\": expected a number from %g to %g", name, key, least, most);
    return ERR_OK;
}

static err_code get_words(struct gate_curve *c, const json_t *j, const char *name, struct err *e)
{
    const char *policy = json_string_value(json_object_get(j, "policy")),
               *model = json_string_value(json_object_get(j, "model"));
    int n = 0;
    if (!policy || !*policy || strlen(policy) >= sizeof c->policy)
        return err_set(e, ERR_FORMAT, "%s: \"policy\": expected a word of at most %d letters", name,
                       GATE_POLICY_BYTES - 1);
    snprintf(c->policy, sizeof c->policy, "%s", policy);
    if (!model || strlen(model) != 16 || sscanf(model, "%16" SCNx64 "%n", &c->fingerprint, &n) != 1 || n != 16)
        return err_set(e, ERR_FORMAT, "%s: \"model\": expected 16 hexadecimal digits", name);
    return ERR_OK;
}

static err_code get_numbers(struct gate_curve *c, const json_t *j, const char *name, struct err *e)
{
    double version, n_tok, n_layer, n_used;
    TRY(get(j, "gate", 1, VERSION, &version, name, e));
    if (version != VERSION)
        return err_set(e, ERR_FORMAT, "%s: \"gate\": expected version %d; moebius profile --gate writes it anew", name,
                       VERSION);
    TRY(get(j, "tokens", 1, 1e15, &n_tok, name, e));
    TRY(get(j, "layers", 1, 65536, &n_layer, name, e));
    TRY(get(j, "used", 1, 1024, &n_used, name, e));
    TRY(get(j, "expert_bytes", 1, 1e15, &c->expert_bytes, name, e));
    TRY(get(j, "share_of_90", 0, 1, &c->share_of_90, name, e));
    TRY(get(j, "entropy", 0, 1.001, &c->entropy, name, e));
    c->n_tok = (int64_t)n_tok;
    c->n_layer = (int64_t)n_layer;
    c->n_used = (int64_t)n_used;
    return ERR_OK;
}

static err_code get_points(struct gate_curve *c, const json_t *j, const char *name, struct err *e)
{
    const json_t *list = json_object_get(j, "curve");
    size_t n = json_array_size(list);
    if (n < 1 || n > GATE_MAX_POINT)
        return err_set(e, ERR_FORMAT, "%s: \"curve\": expected a list of 1 to %d points", name, GATE_MAX_POINT);
    for (size_t i = 0; i < n; i++) {
        struct gate_point *p = &c->points[i];
        const json_t *x = json_array_get(list, i);
        TRY(get(x, "share", 0, 1, &p->share, name, e));
        TRY(get(x, "hit", 0, 1, &p->hit, name, e));
        TRY(get(x, "moved", 0, 1e9, &p->moved, name, e));
        TRY(get(x, "slots_hit", 0, 1, &p->slots_hit, name, e));
        if (i > 0 && p->share <= p[-1].share)
            return err_set(e, ERR_FORMAT, "%s: \"curve\": expected shares that ascend", name);
    }
    c->n_point = (int)n;
    return ERR_OK;
}

static err_code get_counts(struct gate_curve *c, const json_t *j, const char *name, struct err *e)
{
    const json_t *list = json_object_get(j, "distinct");
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > GATE_MAX_COUNT)
        return err_set(e, ERR_FORMAT, "%s: \"distinct\": expected a list of at most %d counts", name, GATE_MAX_COUNT);
    for (size_t i = 0; i < n; i++) {
        struct gate_count *x = &c->counts[i];
        double n_tok;
        TRY(get(json_array_get(list, i), "tokens", 2, 1e9, &n_tok, name, e));
        TRY(get(json_array_get(list, i), "apart", 0.001, 1000, &x->apart, name, e));
        TRY(get(json_array_get(list, i), "in_row", 0.001, 1000, &x->in_row, name, e));
        x->n = (int64_t)n_tok;
        if (i > 0 && x->n <= x[-1].n)
            return err_set(e, ERR_FORMAT, "%s: \"distinct\": expected numbers of tokens that ascend", name);
    }
    c->n_count = (int)n;
    return ERR_OK;
}

err_code gate_parse(struct gate_curve *c, const char *text, size_t n, const char *name, struct err *e)
{
    json_error_t error = {0};
    json_t *j = json_read(text, n, JSON_REJECT_DUPLICATES, &error);
    *c = (struct gate_curve){0};
    if (!j && !*error.text)
        return err_nomem(e, n, "a gate");
    if (!json_is_object(j)) {
        err_set(e, ERR_FORMAT, "%s: expected a JSON object: %s", name, error.text);
        json_decref(j);
        return ERR_FORMAT;
    }
    err_code code = get_words(c, j, name, e);
    if (code == ERR_OK)
        code = get_numbers(c, j, name, e);
    if (code == ERR_OK)
        code = get_points(c, j, name, e);
    if (code == ERR_OK)
        code = get_counts(c, j, name, e);
    json_decref(j);
    return code;
}
