#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/printable.h"
#include "base/units_text.h"
#include "jobs/inspect_internal.h"

enum {
    STRING_SHOWN_CHARS = 72,
    ARRAY_SHOWN = 6,
    ARRAY_SHOWN_CHARS = 20,
    NAME_SHOWN_CHARS = 255,
    LABEL_WIDTH = 22,
    LAYER_RANGES_SHOWN = 6
};

/* 1234567 as "1,234,567". */
struct count_text {
    char s[32];
};

static struct count_text show_count(uint64_t n)
{
    char digits[24];
    struct count_text out;
    int length = snprintf(digits, sizeof digits, "%" PRIu64, n), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out.s[at++] = ',';
        out.s[at++] = digits[i];
    }
    out.s[at] = 0;
    return out;
}

/* A string in quotes, at most max_chars of it. */
static void print_string(FILE *out, struct gguf_string s, int max_chars)
{
    size_t i = 0;
    fputc('"', out);
    for (int n = 0; i < s.n && n < max_chars; n++) {
        struct printable p = printable_next(s.s + i, s.n - i);
        fputs(p.shown, out);
        i += p.n_bytes;
    }
    fputc('"', out);
    if (i < s.n)
        fprintf(out, "... (%s bytes)", show_count(s.n).s);
}

static void print_path(FILE *out, const char *path)
{
    for (size_t n = strlen(path); n;) {
        struct printable p = printable_next(path, n);
        fputs(p.shown, out);
        path += p.n_bytes;
        n -= p.n_bytes;
    }
}

static void print_value(FILE *out, const struct gguf_value *v, int max_chars)
{
    switch (v->type) {
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64: fprintf(out, "%" PRId64, v->i); break;
    case GGUF_F32: fprintf(out, "%.7g", v->f); break;
    case GGUF_F64: fprintf(out, "%.15g", v->f); break;
    case GGUF_BOOL: fputs(v->u ? "true" : "false", out); break;
    case GGUF_STRING: print_string(out, v->str, max_chars); break;
    case GGUF_ARRAY:
        fputc('[', out);
        for (uint64_t i = 0; i < v->arr.n && i < ARRAY_SHOWN; i++) {
            const struct gguf_value x = gguf_array_at(v, i);
            fputs(i ? ", " : "", out);
            print_value(out, &x, ARRAY_SHOWN_CHARS);
        }
        fputs(v->arr.n > ARRAY_SHOWN ? ", ...]" : "]", out);
        break;
    default: fprintf(out, "%" PRIu64, v->u); break;
    }
}

static void print_metadata(FILE *out, const struct gguf *g)
{
    size_t width = 0;
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        size_t n = gguf_kv_at(g, i)->key.n;
        width = n > width && n <= 56 ? n : width;
    }
    fprintf(out, "\nMetadata\n");
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        char type[48];
        if (kv->value.type == GGUF_ARRAY)
            snprintf(type, sizeof type, "%s[%" PRIu64 "]", gguf_value_type_name(kv->value.arr.type), kv->value.arr.n);
        else
            snprintf(type, sizeof type, "%s", gguf_value_type_name(kv->value.type));
        fputs("  ", out);
        for (size_t k = 0; k < kv->key.n; k++) /* keys are ASCII by the specification */
            fputc(kv->key.s[k] >= 0x20 && kv->key.s[k] < 0x7f ? kv->key.s[k] : '?', out);
        fprintf(out, "%*s  %-14s  ", kv->key.n < width ? (int)(width - kv->key.n) : 0, "", type);
        print_value(out, &kv->value, STRING_SHOWN_CHARS);
        fputc('\n', out);
    }
}

static void print_types(FILE *out, const struct gguf *g, const struct model_facts *f)
{
    fprintf(out, "\nTensors by type\n  %-20s %8s %20s %20s %12s\n", "type", "tensors", "weights", "bytes",
            "bits/weight");
    for (size_t i = 0; i < f->n_types; i++) {
        const struct model_type_facts *t = &f->types[i];
        fprintf(out, "  %-20s %8" PRIu64 " %20s ", inspect_type_name(t->type_id, t->info).s, t->n_tensors,
                show_count(t->n_weights).s);
        if (t->info)
            fprintf(out, "%20s %12.4f\n", show_count(t->n_bytes).s, 8.0 * (double)t->n_bytes / (double)t->n_weights);
        else
            fprintf(out, "%20s %12s\n", "?", "?");
    }
    fprintf(out, "  %-20s %8" PRIu64 " %20s %20s", "all", gguf_n_tensors(g), show_count(f->n_weights).s,
            show_count(f->n_bytes).s);
    if (f->n_weights && f->n_unknown == 0)
        fprintf(out, " %12.4f", 8.0 * (double)f->n_bytes / (double)f->n_weights);
    fputc('\n', out);
    if (f->n_unknown)
        fprintf(out, "  %" PRIu64 " tensor%s of unknown types: their bytes are missing from every sum below.\n",
                f->n_unknown, f->n_unknown == 1 ? " is" : "s are");
}

static void print_label(FILE *out, const char *label)
{
    fprintf(out, "  %-*s ", LABEL_WIDTH, label);
}

static void print_range(FILE *out, const char *label, uint32_t min, uint32_t max)
{
    if (max == 0)
        return;
    print_label(out, label);
    if (min == max)
        fprintf(out, "%" PRIu32 "\n", max);
    else
        fprintf(out, "%" PRIu32 " to %" PRIu32 ", by layer\n", min, max);
}

static void print_bytes(FILE *out, const char *label, uint64_t n)
{
    print_label(out, label);
    fprintf(out, "%12s  %20s bytes\n", units_size(n).s, show_count(n).s);
}

static void print_shape(FILE *out, const struct model_facts *f)
{
    fprintf(out, "\nModel\n");
    print_label(out, "architecture");
    print_string(out, f->architecture, STRING_SHOWN_CHARS);
    fputc('\n', out);
    print_label(out, "layers");
    fprintf(out, "%" PRIu32 " (%" PRIu32 " dense, %" PRIu32 " MoE", f->n_layer, f->n_layer_dense, f->n_layer_moe);
    if (f->n_layer_mixing)
        fprintf(out, ", %" PRIu32 " without a feed-forward part", f->n_layer_mixing);
    if (f->n_layer_nextn)
        fprintf(out, ", %" PRIu32 " nextn: for multi-token prediction", f->n_layer_nextn);
    fputs(")\n", out);
    print_range(out, "embedding width", f->n_embd, f->n_embd);
    print_range(out, "vocabulary", f->n_vocab, f->n_vocab);
    print_range(out, "trained context", f->n_ctx_train, f->n_ctx_train);
    if (f->n_layer_moe == 0) {
        print_label(out, "experts");
        fputs("none: not a Mixture-of-Experts model\n", out);
        return;
    }
    print_label(out, "experts");
    fprintf(out, "%" PRIu32 " a layer, %" PRIu32 " used for each token\n", f->n_expert, f->n_expert_used);
    print_range(out, "expert width", f->n_ff_exp_min, f->n_ff_exp_max);
    print_range(out, "shared expert width", f->n_ff_shexp_min, f->n_ff_shexp_max);
    if (f->n_ff_shexp_max == 0) {
        print_label(out, "shared expert");
        fputs("none\n", out);
    }
    print_label(out, "output matrix");
    fputs(f->is_tied ? "tied: the embedding is read as one\n" : "its own\n", out);
}

static void print_sizes(FILE *out, const struct model_facts *f)
{
    fprintf(out, "\nBytes\n");
    if (f->n_layer_moe && f->expert_bytes_min == f->expert_bytes_max) {
        print_bytes(out, "one expert", f->expert_bytes_max);
    } else if (f->n_layer_moe) {
        print_bytes(out, "one expert, smallest", f->expert_bytes_min);
        print_bytes(out, "one expert, largest", f->expert_bytes_max);
    }
    for (int u = 0; u < GGUF_N_USE; u++)
        if (f->use_bytes[u])
            print_bytes(out, gguf_use_name((enum gguf_use)u), f->use_bytes[u]);
    if (f->ngram_bytes)
        print_bytes(out, "n-grams, stay in file", f->ngram_bytes);
    print_bytes(out, "all", f->n_bytes);
    print_bytes(out, "always in use", f->resident_bytes);
}

/* Which layers, as ranges; of many ranges only the first. */
static void print_layers(FILE *out, const struct inspect_layout *l, const struct inspect_groups *g, int group)
{
    int64_t n_layer = l->model->n_layer, n = 0, n_range = 0, first = inspect_group_next(l, g, group, 0);
    for (int64_t i = 0; i < n_layer; i++)
        n += g->of_layer[i] == group;
    if (n == n_layer)
        fprintf(out, "all %" PRId64 " layers", n);
    else if (n == 1)
        fprintf(out, "layer %" PRId64, first);
    else
        fprintf(out, "%" PRId64 " layers (", n);
    if (n == n_layer || n == 1)
        return;
    for (int64_t i = first, end; i < n_layer && n_range <= LAYER_RANGES_SHOWN;
         i = inspect_group_next(l, g, group, end)) {
        for (end = i + 1; end < n_layer && g->of_layer[end] == group;)
            end++;
        fputs(n_range ? ", " : "", out);
        if (n_range++ == LAYER_RANGES_SHOWN)
            fputs("...", out);
        else if (end == i + 1)
            fprintf(out, "%" PRId64, i);
        else
            fprintf(out, "%" PRId64 "-%" PRId64, i, end - 1);
    }
    fputc(')', out);
}

static void print_words(FILE *out, const struct inspect_words *w)
{
    fputs("\n    ", out);
    for (const char *c = w->s; *c; c++) {
        fputc(*c, out);
        if (*c == '\n')
            fputs("    ", out);
    }
    fputc('\n', out);
}

static void print_groups(FILE *out, const char *what, const struct inspect_layout *l, const struct inspect_groups *g)
{
    for (int k = 0; k < g->n; k++) {
        fprintf(out, "  %s, ", what);
        print_layers(out, l, g, k);
        print_words(out, g->words[k]);
    }
}

static void print_layout(FILE *out, const struct gguf *g, const struct inspect_layout *l)
{
    fprintf(out, "\nLayout\n");
    if (!l->model) {
        fprintf(out, "  This version can't run it: %s\n", l->error.text);
        return;
    }
    print_groups(out, "mixing", l, &l->mixing);
    print_groups(out, "feed-forward", l, &l->feed_forward);
    if (l->around.n) {
        fputs("  around the layers", out);
        print_words(out, &l->around);
    }
    if (l->warning[0])
        fprintf(out, "  %s\n", l->warning);
}

/* "0-3, 7" of a place in a layer. */
static void print_part(FILE *out, const struct inspect_layout *l, int place, int layer)
{
    const char *before = "";
    int64_t n = l->model->expert_layers[layer].n_expert;
    for (int64_t i = 0, end; i < n; i = end + 1) {
        end = i;
        while (end < n && inspect_division_has(&l->division, place, layer, end))
            end++;
        if (end == i)
            continue;
        fprintf(out, end == i + 1 ? "%s%" PRId64 : "%s%" PRId64 "-%" PRId64, before, i, end - 1);
        before = ", ";
    }
    if (!*before)
        fputs("none", out);
}

static void print_division(FILE *out, const struct inspect_layout *l)
{
    const struct inspect_division *d = &l->division;
    int n = d->division.n_place;
    if (n == 0)
        return;
    fprintf(out, "\nExperts on %d devices\n", n);
    for (int i = 0; i < n; i++) {
        uint64_t n_expert, n_bytes;
        char kind[DEVICE_NAME_BYTES];
        inspect_division_sum(d, l->model, i, &n_expert, &n_bytes);
        device_options_name(&d->asked.devices[i], kind);
        if (i == 0 && d->division.has_cache)
            fprintf(out, "  place %d (%s): a cache of the others' experts", i, kind);
        else
            fprintf(out, "  place %d (%s): %s experts, %s", i, kind, show_count(n_expert).s, units_size(n_bytes).s);
        if (inspect_division_n_replica(d, i))
            fprintf(out, ", %s of them replicas", show_count(inspect_division_n_replica(d, i)).s);
        fputc('\n', out);
    }
    for (int k = 0; k < l->model->n_moe_layer; k++) {
        fprintf(out, "  layer %d:", l->model->expert_layers[k].index);
        for (int i = d->division.has_cache; i < n; i++) {
            fprintf(out, "%s place %d: ", i > d->division.has_cache ? " |" : "", i);
            print_part(out, l, i, k);
        }
        fputc('\n', out);
    }
}

/* The weights that a token is multiplied with, and what it reads of the tokens before it. */
static void print_token(FILE *out, const struct model_facts *f, const struct inspect_layout *l)
{
    fprintf(out, "\nRead for each token (KV in F16)\n");
    for (int u = 0; u < GGUF_N_USE; u++) {
        char label[40];
        snprintf(label, sizeof label, "routed, %" PRIu32 " of %" PRIu32, f->n_expert_used, f->n_expert);
        if (f->token_use_bytes[u])
            print_bytes(out, u == GGUF_USE_ROUTED_EXPERT ? label : gguf_use_name((enum gguf_use)u),
                        f->token_use_bytes[u]);
    }
    print_bytes(out, "all weights", f->token_bytes);
    if (l->kv_bytes)
        print_bytes(out, "KV of each position", l->kv_bytes);
    if (l->window_kv_bytes)
        print_bytes(out, "KV of each in a window", l->window_kv_bytes);
    if (l->recurrent_bytes)
        print_bytes(out, "recurrent state", l->recurrent_bytes);
}

void inspect_text_model(FILE *out, const struct gguf *g, const struct model_facts *f, const struct inspect_layout *l)
{
    for (int i = 0; i < gguf_n_files(g); i++) {
        print_path(out, gguf_file_path(g, i));
        fprintf(out, "  %s (%s bytes)\n", units_size(gguf_file_bytes(g, i)).s, show_count(gguf_file_bytes(g, i)).s);
    }
    fprintf(out, "GGUF version %d, alignment %" PRIu64 ", %" PRIu64 " metadata entries, %" PRIu64 " tensors\n",
            gguf_version(g), gguf_alignment(g), gguf_n_kv(g), gguf_n_tensors(g));
    print_metadata(out, g);
    if (gguf_n_tensors(g) == 0)
        return;
    print_types(out, g, f);
    print_shape(out, f);
    print_layout(out, g, l);
    print_sizes(out, f);
    if (f->n_layer)
        print_token(out, f, l);
    print_division(out, l);
}

void inspect_text_tensor(FILE *out, const struct gguf *g, const struct gguf_tensor *t,
                         const struct inspect_stats *stats)
{
    print_string(out, (struct gguf_string){t->name, strlen(t->name)}, NAME_SHOWN_CHARS);
    fputc('\n', out);
    print_label(out, "shape");
    for (int d = 0; d < t->n_dims; d++)
        fprintf(out, "%s%" PRIu64, d ? " x " : "", t->ne[d]);
    fputs(t->n_dims > 1 ? "  (row length first)\n" : "\n", out);
    print_label(out, "type");
    fprintf(out, "%s\n", inspect_type_name(t->type_id, t->info).s);
    print_label(out, "file");
    print_path(out, gguf_file_path(g, t->file));
    fprintf(out, ", at byte %" PRIu64 "\n", t->offset);
    if (!t->info)
        return;
    print_bytes(out, "size", t->n_bytes);
    print_label(out, "first values");
    for (int i = 0; i < stats->n_first; i++)
        fprintf(out, "%s%.7g", i ? "  " : "", (double)stats->first[i]);
    fputc('\n', out);
    if (stats->n_values > stats->n_nan + stats->n_inf) {
        print_label(out, "min, max");
        fprintf(out, "%.7g, %.7g\n", stats->min, stats->max);
        print_label(out, "mean, std deviation");
        fprintf(out, "%.7g, %.7g\n", stats->mean, stats->std);
    }
    print_label(out, "NaN, infinite");
    fprintf(out, "%" PRIu64 ", %" PRIu64 " of %s values\n", stats->n_nan, stats->n_inf, show_count(stats->n_values).s);
}
