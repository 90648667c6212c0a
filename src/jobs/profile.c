#include "jobs/profile.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/model_limits.h"

/* ---- recording ------------------------------------------------------------------------------------------------- */

struct record {
    struct profile *out;
    struct err *e;
    err_code code;
    int32_t *predicted; /* the choice of predicted_layer, [n_tok * n_used] */
    int64_t n_predicted, capacity;
    int predicted_layer; /* -1: none */
    bool *marks;         /* [LIMIT_EXPERTS] work space */
};

/* How many of one token's choices are among the predicted ones. marks [n_expert]: false before and after. */
static uint64_t count_right(const int32_t *ids, const int32_t *predicted, int64_t n_used, bool *marks)
{
    uint64_t n = 0;
    for (int64_t i = 0; i < n_used; i++)
        marks[predicted[i]] = true;
    for (int64_t i = 0; i < n_used; i++)
        n += marks[ids[i]];
    for (int64_t i = 0; i < n_used; i++)
        marks[predicted[i]] = false;
    return n;
}

static void routed(void *user, int layer, int64_t n_tok, int64_t n_used, const int32_t *ids)
{
    struct record *r = user;
    if (r->code == ERR_OK)
        r->code = trace_add(&r->out->trace, layer, ids, n_tok, r->e);
    if (layer != r->predicted_layer || r->n_predicted != n_tok * n_used)
        return;
    for (int64_t t = 0; t < n_tok; t++)
        r->out->n_right += count_right(ids + t * n_used, r->predicted + t * n_used, n_used, r->marks);
    r->out->n_predicted += (uint64_t)r->n_predicted;
}

static void predicted(void *user, int layer, int64_t n_tok, int64_t n_used, const int32_t *ids)
{
    struct record *r = user;
    int64_t n = n_tok * n_used;
    r->predicted_layer = -1;
    if (n > r->capacity) {
        int32_t *p = mem_resize(r->predicted, (size_t)n, sizeof *p);
        if (!p) {
            r->code = err_nomem(r->e, (size_t)n * sizeof *p, "predictions");
            return;
        }
        r->predicted = p;
        r->capacity = n;
    }
    memcpy(r->predicted, ids, (size_t)n * sizeof *ids);
    r->predicted_layer = layer;
    r->n_predicted = n;
}

static bool keep_on(void *user, size_t i, const float *logits)
{
    return true;
}

static err_code create_trace(const moebius_engine *engine, struct trace *t, struct err *e)
{
    int n = moebius_n_moe_layer(engine);
    if (n == 0)
        return err_set(e, ERR_USAGE, "this model has no experts");
    struct trace_layer *layers = mem_calloc((size_t)n, sizeof *layers);
    if (!layers)
        return err_nomem(e, (size_t)n * sizeof *layers, "a trace");
    for (int i = 0; i < n; i++) {
        moebius_moe_layer l = moebius_moe_layer_at(engine, i);
        layers[i] = (struct trace_layer){l.n_expert, l.n_used, l.slot_bytes, l.group, 0, 0};
    }
    err_code code = trace_create(t, layers, n, e);
    mem_free(layers);
    return code;
}

err_code profile_record(moebius_engine *engine, moebius_session *session, const int32_t *ids, size_t n,
                        const struct profile_params *p, struct profile *out, struct err *e)
{
    struct record r = {.out = out, .e = e, .predicted_layer = -1};
    const moebius_trace trace = {.routed = routed, .predicted = predicted, .user = &r};
    moebius_error error = {0};
    *out = (struct profile){0};
    if (n == 0)
        return err_set(e, ERR_USAGE, "the text is empty");
    r.marks = mem_calloc(LIMIT_EXPERTS, sizeof *r.marks);
    if (!r.marks)
        return err_nomem(e, LIMIT_EXPERTS * sizeof *r.marks, "a profile");
    r.code = create_trace(engine, &out->trace, e);
    moebius_session_trace(session, &trace);
    for (size_t i = 0; i < n && r.code == ERR_OK && error.status == MOEBIUS_OK; i += p->n_ctx) {
        size_t window = n - i < p->n_ctx ? n - i : p->n_ctx;
        moebius_session_truncate(session, 0);
        /* the logits of all tokens, as the last layer does not route tokens that nobody asks about */
        moebius_session_eval_each(session, ids + i, window, 0, keep_on, NULL, &error);
        if (p->progress && error.status == MOEBIUS_OK && !p->progress(p->user, i + window))
            break;
    }
    moebius_session_trace(session, NULL);
    mem_free(r.predicted);
    mem_free(r.marks);
    if (r.code == ERR_OK && error.status != MOEBIUS_OK)
        r.code = err_adopt(e, &error);
    if (r.code != ERR_OK)
        trace_close(&out->trace);
    return r.code;
}

/* ---- what a trace tells ---------------------------------------------------------------------------------------- */

err_code profile_usage(const struct trace *t, struct usage *out, struct err *e)
{
    int64_t most = 1;
    for (int i = 0; i < t->n_layer; i++)
        most = t->layers[i].n_expert > most ? t->layers[i].n_expert : most;
    TRY(usage_create(out, t->n_layer, most, e));
    for (int64_t i = 0; i < t->n_tok; i++)
        for (int l = 0; l < t->n_layer; l++)
            usage_add(out, l, t->ids + i * t->n_choice + t->layers[l].first, (size_t)t->layers[l].n_used);
    return ERR_OK;
}

/* Of one layer; last [n_expert]: work space. */
static uint64_t count_reused(const struct trace *t, const struct trace_layer *l, int64_t within, int64_t *last)
{
    uint64_t n = 0;
    for (int64_t i = 0; i < l->n_expert; i++)
        last[i] = -within - 1; /* too long ago for the first token */
    for (int64_t i = 0; i < t->n_tok; i++)
        for (int64_t r = 0; r < l->n_used; r++) {
            int32_t expert = t->ids[i * t->n_choice + l->first + r];
            n += i - last[expert] <= within;
            last[expert] = i;
        }
    return n;
}

err_code profile_reuse(const struct trace *t, int64_t within, double *out, struct err *e)
{
    int64_t *last = mem_calloc(LIMIT_EXPERTS, sizeof *last);
    uint64_t n = 0;
    if (!last)
        return err_nomem(e, LIMIT_EXPERTS * sizeof *last, "reuse of experts");
    for (int l = 0; l < t->n_layer; l++)
        n += count_reused(t, &t->layers[l], within, last);
    *out = t->n_tok > 1 ? (double)n / (double)((t->n_tok - 1) * t->n_choice) : 0;
    mem_free(last);
    return ERR_OK;
}

static int larger_first(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

err_code profile_skew(const struct usage *u, int layer, int64_t n_expert, struct profile_skew *out, struct err *e)
{
    uint64_t *count = u->count + layer * u->n_expert, total = 0, sum = 0;
    uint64_t *sorted = mem_calloc((size_t)n_expert, sizeof *sorted);
    struct profile_skew s = {0};
    if (!sorted)
        return err_nomem(e, (size_t)n_expert * sizeof *sorted, "a layer's counts");
    memcpy(sorted, count, (size_t)n_expert * sizeof *sorted);
    qsort(sorted, (size_t)n_expert, sizeof *sorted, larger_first);
    for (int64_t i = 0; i < n_expert; i++)
        total += sorted[i];
    int64_t n = 0;
    for (; n < n_expert && 10 * sum < 9 * total; n++)
        sum += sorted[n];
    s.share_of_90 = (double)n / (double)n_expert;
    for (int64_t i = 0; i < n_expert && sorted[i]; i++) {
        double p = (double)sorted[i] / (double)total;
        s.entropy -= p * log(p);
    }
    s.entropy = n_expert > 1 ? s.entropy / log((double)n_expert) : 1;
    mem_free(sorted);
    *out = s;
    return ERR_OK;
}

/* ---- files ----------------------------------------------------------------------------------------------------- */

/* The numbers of the places in a set, as 0+1. */
static void print_places(uint64_t places, const char *before, FILE *f)
{
    for (int i = 0; places >> i; i++)
        if (places >> i & 1) {
            fprintf(f, "%s%d", before, i);
            before = "+";
        }
}

void profile_csv(const struct trace *t, const struct usage *u, const moebius_engine *engine, FILE *f)
{
    bool has_places = moebius_n_place(engine) > 1;
    fprintf(f, "layer,expert,count,rate%s\n", has_places ? ",places" : "");
    for (int l = 0; l < t->n_layer; l++)
        for (int32_t i = 0; i < t->layers[l].n_expert; i++) {
            fprintf(f, "%d,%d,%" PRIu64 ",%.6f", l, (int)i, u->count[l * u->n_expert + i],
                    usage_rate(u, l, i, t->layers[l].n_used));
            if (has_places)
                print_places(moebius_expert_places(engine, l, i), ",", f);
            fputc('\n', f);
        }
}

void profile_print_places(const struct trace *t, const struct usage *u, const moebius_engine *engine, FILE *f)
{
    int n_place = moebius_n_place(engine);
    for (int p = 0; n_place > 1 && p < n_place; p++) {
        uint64_t n = 0, all = 0;
        for (int l = 0; l < t->n_layer; l++)
            for (int64_t i = 0; i < t->layers[l].n_expert; i++) {
                uint64_t count = u->count[l * u->n_expert + i];
                all += count;
                n += moebius_expert_places(engine, l, i) >> p & 1 ? count : 0;
            }
        fprintf(f, "%s place %d %.1f%%", p ? "," : "choices by place:", p, all ? 100 * (double)n / (double)all : 0);
    }
    if (n_place > 1)
        fputc('\n', f);
}

void profile_svg(const struct trace *t, const struct usage *u, const moebius_engine *engine, FILE *f)
{
    enum { CELL = 10, LEFT = 60, TOP = 40, BOTTOM = 30, RIGHT = 20, TITLE = 480 };
    const int cells = CELL * (int)u->n_expert + RIGHT;
    int width = LEFT + (cells > TITLE ? cells : TITLE), height = TOP + CELL * t->n_layer + BOTTOM;
    double most = 0;
    for (int l = 0; l < t->n_layer; l++)
        for (int32_t i = 0; i < t->layers[l].n_expert; i++)
            most = fmax(most, usage_rate(u, l, i, t->layers[l].n_used));
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"%d\" y=\"20\">experts chosen by %" PRId64
            " tokens: white never, darkest by %.1f%% of them</text>\n",
            width, height, LEFT, t->n_tok, 100 * most);
    for (int l = 0; l < t->n_layer; l++) {
        if (l % 4 == 0)
            fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">layer %d</text>\n", LEFT - 6,
                    TOP + CELL * l + CELL - 1, l);
        for (int32_t i = 0; i < t->layers[l].n_expert; i++) {
            double rate = usage_rate(u, l, i, t->layers[l].n_used);
            int shade = most > 0 ? (int)(255 - 235 * sqrt(rate / most)) : 255;
            fprintf(
                f,
                "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"rgb(%d,%d,255)\"><title>layer %d, expert "
                "%d: %.2f%%",
                LEFT + CELL * (int)i, TOP + CELL * l, CELL - 1, CELL - 1, shade, shade, l, (int)i, 100 * rate);
            if (moebius_n_place(engine) > 1)
                print_places(moebius_expert_places(engine, l, i), ", place ", f);
            fprintf(f, "</title></rect>\n");
        }
    }
    fprintf(f, "<text x=\"%d\" y=\"%d\">expert 0 to %d</text>\n</svg>\n", LEFT, height - 10, (int)u->n_expert - 1);
}
