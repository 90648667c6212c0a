#include "experts/trace.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/model_limits.h"
#include "base/text_scanner.h"

err_code trace_create(struct trace *t, const struct trace_layer *layers, int n_layer, struct err *e)
{
    *t = (struct trace){.n_layer = n_layer};
    t->layers = mem_calloc((size_t)n_layer, sizeof *t->layers);
    if (!t->layers)
        return err_nomem(e, (size_t)n_layer * sizeof *t->layers, "a trace");
    for (int i = 0; i < n_layer; i++) {
        t->layers[i] = layers[i];
        t->layers[i].first = t->n_choice;
        t->layers[i].n_added = 0;
        t->n_choice += layers[i].n_used;
    }
    return ERR_OK;
}

void trace_close(struct trace *t)
{
    mem_free(t->layers);
    mem_free(t->ids);
    *t = (struct trace){0};
}

static err_code resize(struct trace *t, int64_t capacity, struct err *e)
{
    int32_t *ids = mem_resize(t->ids, (size_t)capacity, (size_t)t->n_choice * sizeof *ids);
    if (!ids)
        return err_nomem(e, (size_t)(capacity * t->n_choice) * sizeof *ids, "a trace");
    t->ids = ids;
    t->capacity = capacity;
    return ERR_OK;
}

err_code trace_add(struct trace *t, int layer, const int32_t *ids, int64_t n_tok, struct err *e)
{
    struct trace_layer *l = &t->layers[layer];
    if (l->n_added + n_tok > t->capacity)
        TRY(resize(t, l->n_added + n_tok + t->capacity / 2 + 64, e));
    for (int64_t i = 0; i < n_tok; i++)
        memcpy(t->ids + (l->n_added + i) * t->n_choice + l->first, ids + i * l->n_used,
               (size_t)l->n_used * sizeof *ids);
    l->n_added += n_tok;
    t->n_tok = t->layers[t->n_layer - 1].n_added;
    return ERR_OK;
}

/* ---- files ----------------------------------------------------------------------------------------------------- */

void trace_print(const struct trace *t, uint64_t fingerprint, FILE *f)
{
    fprintf(f, "moebius trace 1\nmodel %016" PRIx64 "\nlayers %d tokens %" PRId64 "\n", fingerprint, t->n_layer,
            t->n_tok);
    for (int i = 0; i < t->n_layer; i++)
        fprintf(f, "%" PRId64 " %" PRId64 " %" PRIu64 " %d\n", t->layers[i].n_expert, t->layers[i].n_used,
                t->layers[i].slot_bytes, t->layers[i].group);
    for (int64_t i = 0; i < t->n_tok * t->n_choice; i++)
        fprintf(f, "%d%c", (int)t->ids[i], (i + 1) % t->n_choice ? ' ' : '\n');
}

/* n_group: of the layers before. */
static err_code parse_layer(struct text_scanner *w, uint64_t n_group, struct trace_layer *l, struct err *e)
{
    uint64_t group, n_expert, n_used;
    TRY(text_scanner_number(w, "experts", 1, LIMIT_EXPERTS, &n_expert, e));
    TRY(text_scanner_number(w, "chosen experts", 1, n_expert, &n_used, e));
    TRY(text_scanner_number(w, "bytes of a slot", 1, UINT64_C(1) << 40, &l->slot_bytes, e));
    TRY(text_scanner_number(w, "a group of slots", 0, n_group, &group, e));
    l->n_expert = (int64_t)n_expert;
    l->n_used = (int64_t)n_used;
    l->group = (int)group;
    return ERR_OK;
}

static err_code parse_layers(struct text_scanner *w, uint64_t n_layer, struct trace *t, struct err *e)
{
    struct trace_layer *layers = mem_calloc((size_t)n_layer, sizeof *layers);
    uint64_t n_group = 0, n_most = 1;
    err_code code = layers ? ERR_OK : err_nomem(e, (size_t)n_layer * sizeof *layers, "a trace");
    for (uint64_t i = 0; i < n_layer && code == ERR_OK; i++) {
        struct trace_layer *l = &layers[i];
        TRY_OUT(parse_layer(w, n_group, l, e));
        n_group += (uint64_t)l->group == n_group;
        n_most = (uint64_t)l->n_expert > n_most ? (uint64_t)l->n_expert : n_most;
        for (uint64_t j = 0; j < i && code == ERR_OK; j++)
            if (layers[j].group == l->group && layers[j].slot_bytes != l->slot_bytes)
                code = err_set(e, ERR_FORMAT, "%s, line %d: slots of a group differ in size", w->name, w->line + 1);
    }
    if (code == ERR_OK && n_layer * n_most > LIMIT_ALL_EXPERTS)
        code = err_set(e, ERR_LIMIT, "%s: %" PRIu64 " layers of up to %" PRIu64 " experts: expected %d in all at most",
                       w->name, n_layer, n_most, LIMIT_ALL_EXPERTS);
    if (code == ERR_OK)
        code = trace_create(t, layers, (int)n_layer, e);
out:
    mem_free(layers);
    return code;
}

/* One token's choices in one layer. seen [n_expert]: marks of those before, all other than `mark`. */
static err_code parse_choice(struct text_scanner *w, const struct trace_layer *l, int64_t *seen, int64_t mark,
                             int32_t *ids, struct err *e)
{
    for (int64_t r = 0; r < l->n_used; r++) {
        uint64_t id;
        TRY(text_scanner_number(w, "an expert", 0, (uint64_t)l->n_expert - 1, &id, e));
        if (seen[id] == mark)
            return err_set(e, ERR_FORMAT, "%s, line %d: expert %d is chosen twice", w->name, w->line + 1, (int)id);
        seen[id] = mark;
        ids[r] = (int32_t)id;
    }
    return ERR_OK;
}

static err_code parse_choices(struct text_scanner *w, uint64_t n_tok, struct trace *t, struct err *e)
{
    int64_t *seen = mem_calloc(LIMIT_EXPERTS, sizeof *seen), mark = 0;
    err_code code = seen ? resize(t, (int64_t)n_tok, e) : err_nomem(e, LIMIT_EXPERTS * sizeof *seen, "a trace");
    for (int64_t i = 0; i < (int64_t)n_tok && code == ERR_OK; i++)
        for (int l = 0; l < t->n_layer && code == ERR_OK; l++)
            code = parse_choice(w, &t->layers[l], seen, ++mark, t->ids + i * t->n_choice + t->layers[l].first, e);
    mem_free(seen);
    TRY(code);
    t->n_tok = (int64_t)n_tok;
    for (int l = 0; l < t->n_layer; l++)
        t->layers[l].n_added = t->n_tok;
    return text_scanner_end(w, e);
}

err_code trace_parse(struct trace *t, const char *text, size_t n, const char *name, uint64_t *fingerprint,
                     struct err *e)
{
    struct text_scanner w = {.p = text, .end = text + n, .name = name};
    uint64_t n_layer, n_tok;
    *t = (struct trace){0};
    TRY(text_scanner_literal(&w, "moebius trace 1", e));
    TRY(text_scanner_literal(&w, "model", e));
    TRY(text_scanner_hex(&w, "the model's fingerprint", fingerprint, e));
    TRY(text_scanner_literal(&w, "layers", e));
    TRY(text_scanner_number(&w, "layers", 1, LIMIT_LAYERS, &n_layer, e));
    TRY(text_scanner_literal(&w, "tokens", e));
    TRY(text_scanner_number(&w, "tokens", 1, INT32_MAX, &n_tok, e));
    err_code code = parse_layers(&w, n_layer, t, e);
    /* a digit and a space each, so that no small file asks for much memory */
    if (code == ERR_OK && n_tok > n / 2 / (uint64_t)t->n_choice)
        code =
            err_set(e, ERR_FORMAT, "%s: too short for %" PRIu64 " tokens in %" PRIu64 " layers", name, n_tok, n_layer);
    if (code == ERR_OK)
        code = parse_choices(&w, n_tok, t, e);
    if (code != ERR_OK)
        trace_close(t);
    return code;
}

/* ---- counting -------------------------------------------------------------------------------------------------- */

enum { MOST_PLACES = 64 };

/* Experts of one layer that the tokens from `at` choose. seen [n_expert]: marks of those before, all other than `mark`.
 */
static int64_t count_distinct(const struct trace *t, const struct trace_layer *l, int64_t at, int64_t n, int64_t step,
                              int64_t *seen, int64_t mark)
{
    int64_t n_distinct = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t *ids = t->ids + (at + i * step) * t->n_choice + l->first;
        for (int64_t r = 0; r < l->n_used; r++) {
            n_distinct += seen[ids[r]] != mark;
            seen[ids[r]] = mark;
        }
    }
    return n_distinct;
}

err_code trace_distinct(const struct trace *t, int64_t n, int64_t step, double *share, struct err *e)
{
    int64_t n_start = t->n_tok - (n - 1) * step, n_place = n_start < MOST_PLACES ? n_start : MOST_PLACES, mark = 0;
    int64_t *seen = mem_calloc(LIMIT_EXPERTS, sizeof *seen);
    assert(n >= 1 && step >= 1 && n_start >= 1);
    if (!seen)
        return err_nomem(e, LIMIT_EXPERTS * sizeof *seen, "counts of a trace");
    *share = 0;
    for (int64_t i = 0; i < n_place; i++)
        for (int l = 0; l < t->n_layer; l++)
            *share += (double)count_distinct(t, &t->layers[l], i * n_start / n_place, n, step, seen, ++mark) /
                      (double)t->layers[l].n_expert;
    *share /= (double)n_place * t->n_layer;
    mem_free(seen);
    return ERR_OK;
}
