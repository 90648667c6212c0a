/* Golden models: tiny random models of each family with logits, hidden states, router choices and greedy ids from
 * independent engines (the JSON files say which). usage: test_golden DIRECTORY [--short | --devices LIST | --stages
 * LIST] [NAME...]
 * MOEBIUS_GOLDEN=all runs settings, too, that are near others.
 *
 * For each model of a known family (with --short reference, fast and check-ops alone):
 *   reference  logits within 2e-5 (relative L2), residual stream of each layer, router choices, 16 greedy ids
 *   fast       within 1.5 times the distance that the independent engine's own fast kernels show
 *   pieces     reference: the logits of a text of many windows within 1e-5, however it is fed
 *   equal      bit-identical logits over threads, dispatch cut-offs, chunk sizes, shares of experts in memory, policies
 *   kv         the same for the other types of KV cache, over chunk sizes
 *   levels     the same over the levels of vector support that this machine has
 *   check-ops  every operation agrees with the reference device's
 * With --devices LIST, of which the first is no CPU device, several with half of the experts in a cache; or with
 * --stages LIST, which divides the layers, with the bits of the first device alone:
 *   devices    logits within 2e-3 of the exact ones (where MOEBIUS_VULKAN_PRODUCTS is not float, twice the CPU device's
 *              own distance), nearly all greedy ids; bit-identical logits in pieces, by either dispatch, and with half
 * of the experts in memory
 */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <stdarg.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "moebius/moebius.h"

static int n_passed, n_failed;

static void check(bool ok, const char *model, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void check(bool ok, const char *model, const char *fmt, ...)
{
    va_list args;
    ok ? n_passed++ : n_failed++;
    if (ok && !getenv("VERBOSE"))
        return;
    printf("%s %-14s ", ok ? "ok  " : "FAIL", model);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
}

struct golden {
    const char *dir;
    const char *name;
    json_t *json;
    char path[1024];
    int32_t *tokens;
    size_t n_tokens, n_vocab, n_layer, n_embd;
    double least_share;
    bool has_stages; /* several devices divide the layers, not the experts */
};

static void die(const char *what, const char *name)
{
    fprintf(stderr, "test_golden: %s: %s\n", name, what);
    exit(1);
}

static float *read_floats(const struct golden *g, const char *file, size_t n)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", g->dir, file);
    FILE *f = fopen(path, "rb");
    float *x = malloc(n * sizeof *x);
    if (!f || !x || fread(x, sizeof *x, n, f) != n)
        die("short or missing", path);
    fclose(f);
    return x;
}

static size_t number(const struct golden *g, const char *key)
{
    return (size_t)json_integer_value(json_object_get(g->json, key));
}

static int32_t *int_list(const json_t *list, size_t *n)
{
    *n = json_array_size(list);
    int32_t *x = malloc((*n + 1) * sizeof *x);
    for (size_t i = 0; i < *n; i++)
        x[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return x;
}

static double relative_l2(const float *a, const float *b, size_t n)
{
    double diff = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(diff / size);
}

/* ---- running a model ----------------------------------------------------------------------------------------- */

enum { MOST_USED = 64 };

struct seen {
    float *logits; /* [n][n_vocab] */
    size_t n_vocab;
    float *hidden; /* [n_layer][n_embd], of the last token */
    int32_t *topk; /* [moe layer][n_tokens][MOST_USED] */
    size_t n_embd, n_tokens;
};

static bool keep_logits(void *user, size_t i, const float *logits)
{
    struct seen *s = user;
    memcpy(s->logits + i * s->n_vocab, logits, s->n_vocab * sizeof *logits);
    return true;
}

static void keep_hidden(void *user, int64_t layer, const float *x)
{
    struct seen *s = user;
    memcpy(s->hidden + (size_t)layer * s->n_embd, x, s->n_embd * sizeof *x);
}

static void keep_routed(void *user, int moe_layer, int64_t n_tok, int64_t n_used, const int32_t *ids)
{
    struct seen *s = user;
    int32_t *to = s->topk + (size_t)moe_layer * s->n_tokens * MOST_USED;
    for (int64_t t = 0; t < n_tok; t++)
        memcpy(to + t * MOST_USED, ids + t * n_used, (size_t)n_used * sizeof *ids);
}

static int32_t argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

static moebius_engine *open_engine(const struct golden *g, moebius_engine_options o)
{
    moebius_engine *e;
    moebius_error error;
    if (moebius_engine_open(&e, g->path, &o, &error) == MOEBIUS_UNSUPPORTED)
        return NULL;
    if (!e)
        die(error.text, g->name);
    return e;
}

enum { N_LONG = 288, N_MOST = 640 }; /* tokens: more than four times any model's window; than a part of a batch */

static moebius_session *open_session(moebius_engine *e, moebius_kv_type kv, int64_t n_batch)
{
    moebius_session *s;
    moebius_error error;
    moebius_session_options o = {.n_ctx = N_MOST, .n_batch = n_batch, .kv = kv};
    if (moebius_session_open(&s, e, &o, &error))
        die(error.text, "session");
    return s;
}

static void eval_each(moebius_session *s, const int32_t *ids, size_t n, struct seen *seen)
{
    moebius_error error;
    if (moebius_session_eval_each(s, ids, n, 0, keep_logits, seen, &error))
        die(error.text, "eval");
}

/* ---- against independent engines ----------------------------------------------------------------------------- */

/* The logits at the stored positions against `want`. */
static double distance(const struct golden *g, const struct seen *s, const float *want)
{
    size_t n;
    int32_t *positions = int_list(json_object_get(g->json, "positions"), &n);
    float *got = malloc(n * g->n_vocab * sizeof *got);
    for (size_t i = 0; i < n; i++)
        memcpy(got + i * g->n_vocab, s->logits + (size_t)positions[i] * g->n_vocab, g->n_vocab * sizeof *got);
    double d = relative_l2(got, want, n * g->n_vocab);
    free(got);
    free(positions);
    return d;
}

static int count_equal_ids(const struct golden *g, moebius_session *s, const float *logits, size_t *n)
{
    int equal = 0;
    moebius_error error;
    int32_t *ids = int_list(json_object_get(g->json, "ids"), n);
    for (size_t i = 0; i < *n; i++) {
        int32_t id = argmax(logits, g->n_vocab);
        equal += id == ids[i];
        if (moebius_session_eval(s, &ids[i], 1, &error))
            die(error.text, g->name);
        logits = moebius_session_logits(s);
    }
    free(ids);
    return equal;
}

static bool is_gelu(const struct golden *g)
{
    const char *arch = json_string_value(json_object_get(g->json, "arch"));
    return !strcmp(arch, "gemma4") || !strcmp(arch, "grok");
}

static void check_routing(const struct golden *g, const struct seen *s)
{
    const json_t *all = json_object_get(g->json, "topk"), *layer;
    const char *key;
    size_t moe_layer = 0, n_differ = 0, n = 0;
    json_object_foreach((json_t *)all, key, layer)
    {
        for (size_t t = 0; t < json_array_size(layer); t++) {
            const json_t *want = json_array_get(layer, t);
            for (size_t r = 0; r < json_array_size(want); r++, n++)
                n_differ += s->topk[(moe_layer * s->n_tokens + t) * MOST_USED + r] !=
                            json_integer_value(json_array_get(want, r));
        }
        moe_layer++;
    }
    /* the engine that made these goldens takes GELU from a half-precision table: near ties may fall otherwise */
    if (n)
        check(n_differ * 200 <= (is_gelu(g) ? n : 0), g->name, "router: %zu of %zu choices differ", n_differ, n);
}

static void check_reference(const struct golden *g, const float *exact, struct seen *s)
{
    moebius_engine *e = open_engine(g, (moebius_engine_options){.n_threads = 2, .reference = true});
    moebius_session *session = open_session(e, MOEBIUS_KV_F32, 0);
    const moebius_trace trace = {.hidden = keep_hidden, .routed = keep_routed, .user = s};
    moebius_session_trace(session, &trace);
    eval_each(session, g->tokens, g->n_tokens, s);
    moebius_session_trace(session, NULL);
    double bound = is_gelu(g) ? 2e-3 : 2e-5, d = distance(g, s, exact);
    check(d <= bound, g->name, "reference: relative L2 %.3g (at most %.3g)", d, bound);
    float *hidden = read_floats(g, json_string_value(json_object_get(g->json, "hidden")), g->n_layer * g->n_embd);
    for (size_t i = 0; i < g->n_layer; i++) {
        d = relative_l2(s->hidden + i * g->n_embd, hidden + i * g->n_embd, g->n_embd);
        check(d <= (is_gelu(g) ? 5e-3 : bound), g->name, "reference: layer %zu, relative L2 %.3g", i, d);
    }
    free(hidden);
    check_routing(g, s);
    size_t n;
    int equal = count_equal_ids(g, session, s->logits + (g->n_tokens - 1) * g->n_vocab, &n);
    check(equal == (int)n, g->name, "reference: %d of %zu greedy ids", equal, n);
    moebius_session_close(&session);
    moebius_engine_close(&e);
}

/* How far the CPU device may be from the exact logits: half again as far as another engine whose products round alike.
 */
static double fast_bound(const struct golden *g)
{
    const json_t *direct = json_object_get(g->json, "direct");
    double theirs = json_number_value(json_object_get(json_object_get(direct, "vs_exact"), "rel_l2"));
    return theirs > 0 ? 1.5 * theirs : is_gelu(g) ? 2e-3 : 2e-5;
}

static void check_fast(const struct golden *g, const float *exact, struct seen *s)
{
    moebius_engine *e = open_engine(g, (moebius_engine_options){.n_threads = 2});
    moebius_session *session = open_session(e, MOEBIUS_KV_F32, 0);
    eval_each(session, g->tokens, g->n_tokens, s);
    double bound = fast_bound(g), d = distance(g, s, exact);
    check(d <= bound, g->name, "fast: relative L2 %.3g (at most %.3g)", d, bound);
    moebius_session_close(&session);
    moebius_engine_close(&e);
}

/* ---- multi-token prediction ---------------------------------------------------------------------------------- */

enum { MOST_GUESSES = 8 };

/* Guesses after the first n tokens and the next one, against those of the independent engine: *far gets how much their
 * probabilities differ at most. Returns how many tokens are wrong. */
static int compare_guesses(const struct golden *g, moebius_engine *e, moebius_session *session, size_t n,
                           const json_t *ids, const json_t *p, float *likely, double *far)
{
    moebius_error error;
    int32_t got[MOST_GUESSES];
    size_t n_got = 0, n_want = json_array_size(ids);
    int n_wrong = 0;
    double all = 1;
    const moebius_guess_item item = {
        .session = session, .id = g->tokens[n], .most = n_want, .ids = got, .likely = likely, .n = &n_got};
    if (moebius_guess_batch(e, &item, 1, &error))
        die(error.text, g->name);
    for (size_t i = 0; i < n_want; i++) {
        all *= json_real_value(json_array_get(p, i));
        n_wrong += i >= n_got || got[i] != json_integer_value(json_array_get(ids, i));
        *far = fmax(*far, i < n_got ? fabs(likely[i] - all) : 1);
    }
    return n_wrong;
}

/* All of the model's guesses, its text fed in pieces between them. The logits of the text are those without MTP. */
static void run_guesses(const struct golden *g, moebius_engine_options o, size_t piece, double bound, const char *what,
                        const struct seen *want, float *likely)
{
    const json_t *mtp = json_object_get(g->json, "mtp");
    size_t n, pos = 0, n_wrong = 0;
    int32_t *positions = int_list(json_object_get(mtp, "positions"), &n);
    double far = 0;
    o.mtp = true;
    moebius_engine *e = open_engine(g, o);
    moebius_session *session = open_session(e, MOEBIUS_KV_F32, 0);
    struct seen s = {.logits = malloc(g->n_tokens * g->n_vocab * sizeof(float)), .n_vocab = g->n_vocab};
    check(moebius_has_mtp(e) && (size_t)moebius_n_layer(e) == g->n_layer, g->name, "guesses, %s: MTP is there", what);
    for (size_t i = 0; i <= n; i++) {
        size_t end = i < n ? (size_t)positions[i] : g->n_tokens, step = piece ? piece : end;
        for (; pos < end; pos += end - pos < step ? end - pos : step) {
            struct seen part = s;
            part.logits = s.logits + pos * g->n_vocab;
            eval_each(session, g->tokens + pos, end - pos < step ? end - pos : step, &part);
        }
        if (i < n)
            n_wrong +=
                (size_t)compare_guesses(g, e, session, pos, json_array_get(json_object_get(mtp, "ids"), i),
                                        json_array_get(json_object_get(mtp, "p"), i), likely + i * MOST_GUESSES, &far);
    }
    check(n_wrong == 0 && far <= bound, g->name, "guesses, %s: %zu wrong, probabilities differ by %.3g (at most %.3g)",
          what, n_wrong, far, bound);
    if (want)
        check(!memcmp(s.logits, want->logits, g->n_tokens * g->n_vocab * sizeof(float)), g->name,
              "guesses, %s: logits are those without", what);
    free(s.logits);
    free(positions);
    moebius_session_close(&session);
    moebius_engine_close(&e);
}

enum { MOST_POSITIONS = 16 };

/* fast: the logits that the processor's device gave. */
static void check_guesses(const struct golden *g, const struct seen *fast)
{
    float whole[MOST_POSITIONS * MOST_GUESSES] = {0}, pieces[MOST_POSITIONS * MOST_GUESSES] = {0};
    const double share = fmax(0.25, g->least_share);
    if (!json_object_get(g->json, "mtp"))
        return;
    run_guesses(g, (moebius_engine_options){.n_threads = 2, .reference = true}, 0, 1e-5, "reference", NULL, whole);
    run_guesses(g, (moebius_engine_options){.n_threads = 2}, 0, 1e-5, "fast", fast, whole);
    run_guesses(g, (moebius_engine_options){.n_threads = 1, .expert_ram_share = share}, 1, 1e-5, "token by token", fast,
                pieces);
    check(!memcmp(whole, pieces, sizeof whole), g->name, "guesses: probabilities are those token by token");
}

/* ---- equalities ---------------------------------------------------------------------------------------------- */

struct variant {
    const char *what;
    int n_threads;
    int64_t sort_cutoff, n_batch;
    int percent;  /* of the experts in memory; 0: all */
    size_t piece; /* tokens fed at a time; 0: all at once */
    moebius_kv_type kv;
    bool reference;
    const char *policy;
    bool is_long;     /* with MOEBIUS_GOLDEN=all alone, as others are near it */
    bool of_families; /* the same for models that differ in their types alone, which play no part in it */
};

/* The share of all experts' memory that the model can't do without: its top-k in each group of layers of one shape. */
static double least_share(const moebius_engine *e)
{
    double least[64] = {0}, all = 0, sum = 0;
    for (int i = 0; i < moebius_n_moe_layer(e); i++) {
        moebius_moe_layer l = moebius_moe_layer_at(e, i);
        least[l.group] = fmax(least[l.group], (double)l.n_used * (double)l.slot_bytes);
        all += (double)l.n_expert * (double)l.slot_bytes;
    }
    for (int i = 0; i < 64; i++)
        sum += least[i];
    return all > 0 ? (sum + 1) / all : 0;
}

/* Logits of all tokens under a variant of everything that must not matter; the counters it left. */
static moebius_counters run_variant(const struct golden *g, const struct variant *v, const int32_t *ids, size_t n,
                                    struct seen *s)
{
    moebius_engine *e = open_engine(
        g, (moebius_engine_options){.n_threads = v->n_threads,
                                    .sort_cutoff = v->sort_cutoff,
                                    .expert_ram_share = v->percent ? fmax(v->percent / 100.0, g->least_share) : 0,
                                    .policy = v->policy,
                                    .reference = v->reference});
    moebius_session *session = open_session(e, v->kv, v->n_batch);
    size_t step = v->piece ? v->piece : n;
    for (size_t i = 0; i < n; i += step) {
        struct seen part = *s;
        part.logits = s->logits + i * g->n_vocab;
        eval_each(session, ids + i, n - i < step ? n - i : step, &part);
    }
    moebius_counters c = moebius_engine_counters(e);
    moebius_session_close(&session);
    moebius_engine_close(&e);
    return c;
}

/* Whether it differs from qwen3moe in its weights' types alone. */
static bool is_of_types(const struct golden *g)
{
    return !strncmp(g->name, "q_", 2);
}

static bool has_long_form(void)
{
    const char *golden = getenv("MOEBIUS_GOLDEN");
    return golden && !strcmp(golden, "all");
}

/* A text of n tokens, some of them again and again. */
static void long_text(const struct golden *g, int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = g->tokens[(i * 7 + i / 48) % g->n_tokens];
}

static void check_reference_pieces(const struct golden *g, struct seen *want, struct seen *got)
{
    enum { N = 260 };
    static const size_t pieces[] = {1, 7, 256, 64};
    const size_t n_piece = has_long_form() ? 4 : 3; /* batches have 64 tokens: the last is near that before it */
    int32_t ids[N];
    struct variant v = {.n_threads = 1, .sort_cutoff = 1, .n_batch = 512, .reference = true};
    long_text(g, ids, N);
    run_variant(g, &v, ids, N, want);
    v.n_batch = 64; /* the smallest ring for the pieces */
    for (size_t i = 0; i < n_piece; i++) {
        v.piece = pieces[i];
        run_variant(g, &v, ids, N, got);
        double d = relative_l2(got->logits, want->logits, N * g->n_vocab);
        check(d <= 1e-5, g->name, "reference, pieces of %zu: relative L2 %.3g (at most 1e-5)", v.piece, d);
    }
}

static size_t count_different(const struct golden *g, const struct seen *a, const struct seen *b, size_t n)
{
    size_t n_differ = 0;
    for (size_t i = 0; i < n * g->n_vocab; i++)
        n_differ += memcmp(&a->logits[i], &b->logits[i], sizeof(float)) != 0;
    return n_differ;
}

/* Pieces and batches for the KV types that check_equalities doesn't run; Q8_0 where the heads allow it. */
static void check_kv_types(const struct golden *g, struct seen *want, struct seen *got)
{
    enum { N = 200 };
    static const moebius_kv_type types[] = {MOEBIUS_KV_F32, MOEBIUS_KV_Q8_0};
    int32_t ids[N];
    long_text(g, ids, N);
    moebius_engine *e = open_engine(g, (moebius_engine_options){.n_threads = 1});
    for (int i = 0; i < 2; i++) {
        moebius_session *session;
        const moebius_session_options options = {.n_ctx = 64, .kv = types[i]};
        moebius_status status = moebius_session_open(&session, e, &options, NULL);
        moebius_session_close(&session);
        check(status == MOEBIUS_OK || (types[i] == MOEBIUS_KV_Q8_0 && status == MOEBIUS_UNSUPPORTED), g->name,
              "kv type %d: status %d", types[i], status);
        if (status != MOEBIUS_OK)
            continue;
        struct variant v = {.n_threads = 1, .sort_cutoff = 1000000, .n_batch = 512, .kv = types[i]};
        run_variant(g, &v, ids, N, want);
        v.n_batch = 64;
        v.piece = 13;
        run_variant(g, &v, ids, N, got);
        size_t n_differ = count_different(g, want, got, N);
        check(n_differ == 0, g->name, "kv type %d, pieces of 13: %zu logits differ", types[i], n_differ);
    }
    moebius_engine_close(&e);
}

static void check_equalities(const struct golden *g, struct seen *want, struct seen *got)
{
    enum { N = N_LONG };
    static const struct variant base = {"base", 1, 1000000, 512, 0, 0};
    static const struct variant variants[] = {
        {"again", 1, 1000000, 512, 0, 0, .is_long = true},
        {"2 threads", 2, 1000000, 512, 0, 0},
        {"3 threads", 3, 1000000, 512, 0, 0},
        {"4 threads", 4, 1000000, 512, 0, 0, .is_long = true},
        {"cutoff 1", 2, 1, 512, 0, 0},
        {"cutoff 4", 2, 4, 512, 0, 0, .of_families = true},
        {"batch 64", 2, 1, 64, 0, 0, .of_families = true},
        {"batch 128", 1, 1, 128, 0, 0, .is_long = true},
        {"pieces of 1", 2, 1, 512, 0, 1},
        {"pieces of 2", 2, 1, 512, 0, 2},
        {"pieces of 7", 1, 1000000, 64, 0, 7},
        {"pieces of 8", 2, 4, 512, 0, 8},
        {"pieces of 31", 2, 1, 512, 0, 31},
        {"pieces of 32", 2, 1000000, 512, 0, 32, .is_long = true},
        {"pieces of 33", 2, 1, 512, 0, 33},
        {"pieces of 64", 2, 1, 64, 0, 64, .is_long = true},
        {"pieces of 256", 2, 1, 512, 0, 256, .of_families = true},
        {"75%", 2, 1, 512, 75, 0, .policy = "lfu", .of_families = true},
        {"50%, pieces of 1", 2, 1, 512, 50, 1, .policy = "lru", .of_families = true},
        {"25%, direct", 1, 1000000, 64, 25, 0},
        {"10%", 2, 1, 512, 10, 0, .of_families = true},
        {"10%, pieces of 8", 1, 4, 512, 10, 8},
    };
    int32_t ids[N];
    long_text(g, ids, N);
    run_variant(g, &base, ids, N, want);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct variant *v = &variants[i];
        if (!has_long_form() && (v->is_long || (v->of_families && is_of_types(g))))
            continue;
        memset(got->logits, 0, N * g->n_vocab * sizeof *got->logits);
        moebius_counters c = run_variant(g, v, ids, N, got);
        size_t n_differ = count_different(g, want, got, N);
        check(n_differ == 0, g->name, "%s: %zu of %zu logits differ", v->what, n_differ, N * g->n_vocab);
        if (c.n_expert_rows == 0)
            continue; /* dense */
        bool sorted = (int64_t)(v->piece ? v->piece : N) > v->sort_cutoff;
        check(sorted ? c.n_sorted > 0 && c.n_direct == 0 : c.n_direct > 0 && c.n_sorted == 0, g->name,
              "%s: ran %llu direct and %llu sorted", v->what, (unsigned long long)c.n_direct,
              (unsigned long long)c.n_sorted);
        if (v->percent) /* what was read and is no longer there was evicted */
            check(c.n_expert_read > 0 && c.n_expert_evicted > 0, g->name, "%s: %llu reads, %llu evictions", v->what,
                  (unsigned long long)c.n_expert_read, (unsigned long long)c.n_expert_evicted);
    }
}

/* The lesser levels of this machine give the bits of the one in use: `want` has the logits of the long text. */
static void check_levels(const struct golden *g, const struct seen *want, struct seen *got)
{
    enum { N = 80 };
    static const struct variant v = {"", 2, 1, 512, 0, 0};
    enum cpu_level used;
    struct err e;
    int32_t ids[N];
    long_text(g, ids, N);
    if (cpu_level_detect(&used, &e) != ERR_OK)
        die(e.text, g->name);
    for (int level = CPU_SCALAR; level < (int)used; level++) {
        if (!cpu_has_level((enum cpu_level)level))
            continue;
        setenv("MOEBIUS_CPU", cpu_level_name((enum cpu_level)level), 1);
        run_variant(g, &v, ids, N, got);
        size_t n_differ = count_different(g, want, got, N);
        check(n_differ == 0, g->name, "%s: %zu logits differ", cpu_level_name((enum cpu_level)level), n_differ);
    }
    setenv("MOEBIUS_CPU", cpu_level_name(used), 1);
}

/* Chunks that take several parts. */
static void check_large_batches(const struct golden *g, struct seen *want, struct seen *got)
{
    enum { N = N_MOST };
    static const struct variant base = {"base", 2, 1, 512, 0, 0};
    static const struct variant variants[] = {{"batch 640", 2, 1, 640, 0, 0}, {"25%, batch 640", 2, 1, 640, 25, 0}};
    int32_t ids[N];
    long_text(g, ids, N);
    run_variant(g, &base, ids, N, want);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        run_variant(g, &variants[i], ids, N, got);
        size_t n_differ = count_different(g, want, got, N);
        check(n_differ == 0, g->name, "%s: %zu of %zu logits differ", variants[i].what, n_differ, N * g->n_vocab);
    }
}

static void check_ops(const struct golden *g, struct seen *s)
{
    moebius_error error;
    moebius_engine *e = open_engine(g, (moebius_engine_options){.n_threads = 2, .check_ops = true, .sort_cutoff = 8});
    moebius_session *session = open_session(e, MOEBIUS_KV_F16, 0);
    moebius_status status = moebius_session_eval_each(session, g->tokens, g->n_tokens, 0, keep_logits, s, &error);
    for (int i = 0; i < 3 && status == MOEBIUS_OK; i++)
        status = moebius_session_eval(session, g->tokens, 1, &error);
    check(status == MOEBIUS_OK, g->name, "check-ops: %s", status ? error.text : "agrees");
    moebius_session_close(&session);
    moebius_engine_close(&e);
}

/* ---- other devices --------------------------------------------------------------------------------------------- */

/* Of several devices the first has half of the experts in a cache, which stays as it is, unless they divide layers. */
static bool has_cache(const struct golden *g, const char *devices)
{
    return strchr(devices, ',') && !g->has_stages;
}

static const char *split_of(const struct golden *g, const char *devices)
{
    return !strchr(devices, ',') ? NULL : g->has_stages ? "stages" : "cache:50%";
}

/* All tokens in one batch, by sorted dispatch, then in pieces of 3, by direct dispatch. */
static void run_on_devices(const struct golden *g, const char *devices, int percent, struct seen *batch,
                           struct seen *pieces)
{
    moebius_engine *e = open_engine(
        g, (moebius_engine_options){.devices = devices,
                                    .split = split_of(g, devices),
                                    .deterministic = has_cache(g, devices),
                                    .sort_cutoff = 4,
                                    .expert_ram_share = percent ? fmax(percent / 100.0, g->least_share) : 0});
    if (!e)
        die("the devices lack something that the model needs", g->name);
    moebius_session *session = open_session(e, MOEBIUS_KV_F32, 0);
    eval_each(session, g->tokens, g->n_tokens, batch);
    if (!percent) {
        size_t n;
        int equal = count_equal_ids(g, session, batch->logits + (g->n_tokens - 1) * g->n_vocab, &n);
        check(equal + 1 >= (int)n, g->name, "%s: %d of %zu greedy ids", devices, equal, n);
    }
    moebius_session_close(&session);
    session = open_session(e, MOEBIUS_KV_F32, 0);
    for (size_t i = 0; i < g->n_tokens; i += 3) {
        struct seen part = *pieces;
        part.logits = pieces->logits + i * g->n_vocab;
        eval_each(session, g->tokens + i, g->n_tokens - i < 3 ? g->n_tokens - i : 3, &part);
    }
    moebius_session_close(&session);
    moebius_engine_close(&e);
}

/* Whether products of the first device may round activations to eight bits. */
static bool may_round(void)
{
    const char *products = getenv("MOEBIUS_VULKAN_PRODUCTS");
    return !products || strcmp(products, "float") != 0;
}

/* How far the CPU device is from the exact logits. */
static double processor_distance(const struct golden *g, const float *exact, struct seen *s)
{
    moebius_engine *e = open_engine(g, (moebius_engine_options){.n_threads = 2});
    moebius_session *session = open_session(e, MOEBIUS_KV_F32, 0);
    eval_each(session, g->tokens, g->n_tokens, s);
    moebius_session_close(&session);
    moebius_engine_close(&e);
    return distance(g, s, exact);
}

static void check_guesses_on(const struct golden *g, const char *devices)
{
    float likely[MOST_POSITIONS * MOST_GUESSES] = {0};
    const moebius_engine_options o = {.devices = devices, .split = split_of(g, devices)};
    if (json_object_get(g->json, "mtp") && !may_round())
        run_guesses(g, o, 3, 1e-3, devices, NULL, likely);
}

static void check_devices(const struct golden *g, const char *devices, const float *exact, struct seen *s,
                          struct seen *t)
{
    run_on_devices(g, devices, 0, s, t);
    check(count_different(g, s, t, g->n_tokens) == 0, g->name, "%s: pieces of 3, direct", devices);
    double d = distance(g, s, exact), bound = 2e-3;
    if (has_cache(g, devices))
        bound = fmax(bound, fast_bound(g));
    if (may_round())
        bound = fmax(bound, 2 * processor_distance(g, exact, t));
    check(d <= bound, g->name, "%s: relative L2 %.3g (at most %.3g)", devices, d, bound);
    if (g->has_stages) {
        char first[32];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(devices, ","), devices);
        run_on_devices(g, first, 0, t, t);
        check(count_different(g, s, t, g->n_tokens) == 0, g->name, "%s: the bits of %s", devices, first);
    }
    check_guesses_on(g, devices);
    if (g->least_share == 0)
        return;
    float *whole = malloc(g->n_tokens * g->n_vocab * sizeof *whole);
    struct seen kept = *s;
    memcpy(whole, s->logits, g->n_tokens * g->n_vocab * sizeof *whole);
    kept.logits = whole;
    run_on_devices(g, devices, 50, s, t);
    check(count_different(g, &kept, s, g->n_tokens) == 0, g->name, "%s: half of the experts", devices);
    check(count_different(g, &kept, t, g->n_tokens) == 0, g->name, "%s: half of them, pieces", devices);
    free(whole);
}

/* ---- one model ----------------------------------------------------------------------------------------------- */

/* devices: NULL: the CPU, with all that is checked on it. */
static void test_model(struct golden *g, bool is_short, const char *devices)
{
    snprintf(g->path, sizeof g->path, "%s/%s", g->dir, json_string_value(json_object_get(g->json, "model")));
    moebius_engine *e = open_engine(g, (moebius_engine_options){.n_threads = 1});
    if (!e) {
        printf("skip %-14s its architecture is not known yet\n", g->name);
        return;
    }
    g->least_share = least_share(e);
    moebius_engine_close(&e);
    g->tokens = int_list(json_object_get(g->json, "tokens"), &g->n_tokens);
    g->n_vocab = number(g, "n_vocab");
    g->n_layer = number(g, "n_layer");
    g->n_embd = number(g, "n_embd");
    if (g->has_stages && g->n_layer < 2) {
        printf("skip %-14s it has one layer\n", g->name);
        free(g->tokens);
        return;
    }
    size_t n_positions = json_array_size(json_object_get(g->json, "positions"));
    float *exact = read_floats(g, json_string_value(json_object_get(g->json, "exact")), n_positions * g->n_vocab);
    struct seen s = {.n_vocab = g->n_vocab, .n_embd = g->n_embd, .n_tokens = g->n_tokens}, t;
    s.logits = malloc(N_MOST * g->n_vocab * sizeof *s.logits);
    s.hidden = malloc(g->n_layer * g->n_embd * sizeof *s.hidden);
    s.topk = malloc(g->n_layer * g->n_tokens * MOST_USED * sizeof *s.topk);
    t = s;
    t.logits = malloc(N_MOST * g->n_vocab * sizeof *t.logits);
    if (devices) {
        check_devices(g, devices, exact, &s, &t);
        goto out;
    }
    check_reference(g, exact, &s);
    check_fast(g, exact, &s);
    check_guesses(g, &s);
    if (!is_of_types(g) && !is_short) {
        check_reference_pieces(g, &s, &t);
        check_kv_types(g, &s, &t);
        check_large_batches(g, &s, &t);
    }
    if (!is_short) {
        check_equalities(g, &s, &t);
        check_levels(g, &s, &t);
    }
    check_ops(g, &s);
out:
    free(t.logits);
    free(s.logits);
    free(s.hidden);
    free(s.topk);
    free(exact);
    free(g->tokens);
}

static int is_json(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 5 && !strcmp(d->d_name + n - 5, ".json");
}

static bool is_among(const char *name, int n, char **names)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

int main(int argc, char **argv)
{
    enum { SKIPPED = 77 };
    struct dirent **files;
    if (argc < 2)
        die("usage: test_golden DIRECTORY [--short | --devices LIST | --stages LIST] [NAME...]", "arguments");
    bool is_short = argc > 2 && !strcmp(argv[2], "--short");
    bool has_stages = argc > 3 && !strcmp(argv[2], "--stages");
    const char *devices = has_stages || (argc > 3 && !strcmp(argv[2], "--devices")) ? argv[3] : NULL;
    int n_option = devices ? 4 : is_short ? 3 : 2;
    moebius_error error;
    moebius_gpu gpu;
    if (devices && moebius_list_gpus(&gpu, 1, &error) == 0) {
        printf("%s\n", error.text);
        return SKIPPED;
    }
    int n = scandir(argv[1], &files, is_json, alphasort);
    for (int i = 0; i < n; i++) {
        char path[1024], name[256];
        snprintf(path, sizeof path, "%s/%s", argv[1], files[i]->d_name);
        snprintf(name, sizeof name, "%.*s", (int)strlen(files[i]->d_name) - 5, files[i]->d_name);
        free(files[i]);
        if (argc > n_option && !is_among(name, argc - n_option, argv + n_option))
            continue;
        json_error_t json_error;
        struct golden g = {
            .dir = argv[1], .name = name, .has_stages = has_stages, .json = json_load_file(path, 0, &json_error)};
        if (!g.json)
            die(json_error.text, path);
        test_model(&g, is_short, devices);
        json_decref(g.json);
    }
    free(files);
    if (n < 1 || n_passed == 0)
        die("no golden model was tested", argv[1]);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed ? 1 : 0;
}
