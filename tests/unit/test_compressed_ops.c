/* Operations on compressed caches, of several texts at once: against what they are by definition, in double. */
#include <math.h>

#include "device_fixture.h"
#include "quant/quant.h"

enum { HEAD = 6, DK = 32, N_PAGE = 40, N_TEXT = 4 };

/* Tokens of each text: fewer than an entry, whole blocks, more entries than a span. */
static const int64_t lengths[N_TEXT] = {1300, 2, 128, 301};

static void close_tensors(struct fixture *f, struct tensor **all, int n)
{
    for (int i = 0; i < n; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
}

/* ---- caches -------------------------------------------------------------------------------------------------- */

/* A cache full of numbers, and where its texts' pages are listed. */
struct cache {
    struct paged s;
    int64_t n;   /* of a row */
    float *rows; /* [n][ATTENTION_BLOCK][N_PAGE], as the cache has them */
    int32_t pages[N_PAGE];
    struct tensor tpages;
};

/* What a device holds of floats in a type, and these as it has them. */
static void *encode(enum elem_type type, float *x, int64_t n)
{
    const struct kernels *kernels = best_kernels();
    void *bytes = malloc((size_t)n * sizeof *x);
    if (type == ELEM_F32) {
        memcpy(bytes, x, (size_t)n * sizeof *x);
    } else if (type == ELEM_F16) {
        kernels->f32_to_f16(bytes, x, n);
        kernels->f16_to_f32(x, bytes, n);
    } else {
        kernels->f32_to_q8_0(bytes, x, n);
        kernels->q8_0_to_f32(x, bytes, n);
    }
    return bytes;
}

/* step: has no factor in common with N_PAGE. */
static struct cache open_cache(struct fixture *f, enum elem_type type, int64_t n, int step)
{
    int64_t n_all = n * ATTENTION_BLOCK * N_PAGE;
    struct cache c = {.n = n, .rows = malloc((size_t)n_all * sizeof(float))};
    fill(f, c.rows, (size_t)n_all);
    void *bytes = encode(type, c.rows, n_all);
    c.s = paged_zeros(f, type, n, ATTENTION_BLOCK, 1, N_PAGE, false);
    struct tensor all = c.s.page;
    all.ne[2] = N_PAGE;
    backend_write(f->device, &all, bytes);
    free(bytes);
    for (int i = 0; i < N_PAGE; i++)
        c.pages[i] = (i * step + 5) % N_PAGE;
    c.tpages = tensor_i32(f, N_PAGE, 1, c.pages);
    return c;
}

static void close_cache(struct fixture *f, struct cache *c)
{
    backend_buffer_close(f->device, &c->s.page.buffer);
    backend_buffer_close(f->device, &c->tpages.buffer);
    free(c->rows);
}

/* Where a text's pages begin in each list. */
static int32_t table_of(int text)
{
    int64_t n = 0;
    for (int j = 0; j < text; j++)
        n += (lengths[j] + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
    return (int32_t)n;
}

/* What a text has at a position, or its entry of that number. */
static const float *cache_row(const struct cache *c, int text, int64_t pos)
{
    int32_t page = c->pages[table_of(text) + pos / ATTENTION_BLOCK];
    return c->rows + (page * ATTENTION_BLOCK + pos % ATTENTION_BLOCK) * c->n;
}

/* ---- batches --------------------------------------------------------------------------------------------------- */

/* The last n_row[i] tokens of each text[i]. */
struct batch {
    int n;
    int text[N_TEXT];
    int64_t n_row[N_TEXT];
};

static const struct batch batches[] = {
    {1, {0}, {1}},
    {4, {3, 1, 0, 2}, {1, 1, 1, 1}},
    {4, {1, 2, 0, 3}, {2, 128, 1, 70}}, /* all of two texts, many tokens */
};

static int64_t n_rows(const struct batch *b)
{
    int64_t n = 0;
    for (int i = 0; i < b->n; i++)
        n += b->n_row[i];
    return n;
}

/* A row of a batch, and its numbers: the same in each batch. */
struct row {
    int text;
    int64_t pos;
};

static struct row row_at(const struct batch *b, int64_t t)
{
    int i = 0;
    for (; t >= b->n_row[i]; i++)
        t -= b->n_row[i];
    return (struct row){b->text[i], lengths[b->text[i]] - b->n_row[i] + t};
}

static void row_numbers(struct row row, int salt, float *x, int64_t n)
{
    struct random r = random_seed((uint64_t)(row.text * 100003 + row.pos * 7 + salt));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(random_unit(&r) * 2 - 1);
}

static struct tensor batch_rows(struct fixture *f, const struct batch *b, int salt, int64_t n)
{
    int64_t m = n_rows(b);
    float *x = calloc((size_t)(m * n), sizeof *x);
    for (int64_t t = 0; t < m; t++)
        row_numbers(row_at(b, t), salt, x + t * n, n);
    struct tensor y = tensor_f32(f, n, m, 1, x);
    free(x);
    return y;
}

static void make_lists(struct fixture *f, const struct batch *b, struct tensor *pos, struct tensor *table)
{
    int64_t m = n_rows(b);
    int32_t *p = calloc((size_t)m, sizeof *p), *at = calloc((size_t)m, sizeof *at);
    for (int64_t t = 0; t < m; t++) {
        p[t] = (int32_t)row_at(b, t).pos;
        at[t] = table_of(row_at(b, t).text);
    }
    *pos = tensor_i32(f, m, 1, p);
    *table = tensor_i32(f, m, 1, at);
    free(p);
    free(at);
}

/* ---- ATTENTION ------------------------------------------------------------------------------------------------- */

struct how {
    int64_t window, ratio;
    int64_t n_chosen; /* entries that a token sees at most; 0: all */
    bool has_sinks;
};

static const float sinks[HEAD] = {0.5f, 2, -1, 0, 1, 3};

/* Entries that a token sees, ascending, then -1: all or any. */
static void choose(struct row row, const struct how *how, int32_t *chosen)
{
    struct random r = random_seed((uint64_t)(row.text * 7919 + row.pos));
    int64_t n = 0, n_entry = (row.pos + 1) / how->ratio;
    for (int64_t i = 0; i < n_entry; i++) {
        int64_t left = how->n_chosen - n, of = n_entry - i;
        if (of <= left || random_unit(&r) * (double)of < (double)left)
            chosen[n++] = (int32_t)i;
    }
    while (n < how->n_chosen)
        chosen[n++] = -1;
}

static struct tensor batch_chosen(struct fixture *f, const struct batch *b, const struct how *how)
{
    int64_t m = n_rows(b);
    int32_t *x = calloc((size_t)(m * how->n_chosen), sizeof *x);
    for (int64_t t = 0; t < m; t++)
        choose(row_at(b, t), how, x + t * how->n_chosen);
    struct tensor y = tensor_i32(f, how->n_chosen, m, x);
    free(x);
    return y;
}

struct caches {
    struct cache k, entries;
};

/* A batch's results. Owned by the caller (free). */
static float *attend(struct fixture *f, const struct caches *c, const struct batch *b, const struct how *how)
{
    int64_t m = n_rows(b);
    struct tensor pos, table, q = batch_rows(f, b, 3, HEAD * DK), out = tensor_f32(f, HEAD * DK, m, 1, NULL);
    struct tensor tsinks = tensor_f32(f, HEAD, 1, 1, sinks), chosen = {0};
    float *y = malloc(tensor_bytes(&out));
    make_lists(f, b, &pos, &table);
    struct op op = {.kind = OP_ATTENTION,
                    .in = {[ATTENTION_Q] = q,
                           [ATTENTION_POS] = pos,
                           [ATTENTION_TABLE] = table,
                           [ATTENTION_PAGES] = c->k.tpages,
                           [ATTENTION_ENTRY_PAGES] = c->entries.tpages},
                    .out = {out},
                    .state = {[ATTENTION_K] = c->k.s, [ATTENTION_V] = c->k.s, [ATTENTION_ENTRIES] = c->entries.s},
                    .attention = {.n_head = HEAD, .scale = 1, .window = how->window, .ratio = how->ratio}};
    if (how->has_sinks)
        op.vec[0] = tsinks;
    if (how->n_chosen)
        op.in[ATTENTION_CHOSEN] = chosen = batch_chosen(f, b, how);
    backend_enqueue(f->device, &op);
    read_back(f, &out, y);
    close_tensors(f, (struct tensor *[]){&pos, &table, &q, &out, &tsinks, &chosen}, 6);
    return y;
}

/* One softmax and what it weighs. */
struct sum {
    double all, values[DK];
};

static void add_key(struct sum *s, const float *q, const float *k)
{
    double score = 0;
    for (int d = 0; d < DK; d++)
        score += (double)q[d] * (double)k[d];
    s->all += exp(score);
    for (int d = 0; d < DK; d++)
        s->values[d] += exp(score) * (double)k[d];
}

static void expect_row(const struct caches *c, const struct how *how, struct row row, const float *got)
{
    float q[HEAD * DK];
    int64_t n_entry = (row.pos + 1) / how->ratio, first = how->window ? row.pos + 1 - how->window : 0;
    int32_t *chosen = calloc((size_t)(how->n_chosen + 1), sizeof *chosen);
    row_numbers(row, 3, q, HEAD * DK);
    if (how->n_chosen)
        choose(row, how, chosen);
    for (int head = 0; head < HEAD; head++) {
        struct sum s = {how->has_sinks ? exp((double)sinks[head]) : 0, {0}};
        for (int64_t p = first < 0 ? 0 : first; p <= row.pos; p++)
            add_key(&s, q + head * DK, cache_row(&c->k, row.text, p));
        for (int64_t i = 0; i < (how->n_chosen ? how->n_chosen : n_entry); i++)
            if (!how->n_chosen || chosen[i] >= 0)
                add_key(&s, q + head * DK, cache_row(&c->entries, row.text, how->n_chosen ? chosen[i] : i));
        for (int d = 0; d < DK; d++) {
            double want = s.values[d] / s.all, is = (double)got[head * DK + d];
            if (!(fabs(is - want) < 1e-5))
                fail_msg("window %d, ratio %d, %d chosen: text %d at %d, head %d, element %d: %g, expected %g",
                         (int)how->window, (int)how->ratio, (int)how->n_chosen, row.text, (int)row.pos, head, d, is,
                         want);
        }
    }
    free(chosen);
}

/* The last rows have the bits that they have without others. */
static void expect_alone(struct fixture *f, const struct caches *c, const struct batch *b, const struct how *how,
                         const float *got)
{
    const float *at = got;
    for (int i = 0; i < b->n; i++) {
        const struct batch last = {1, {b->text[i]}, {1}};
        float *want = attend(f, c, &last, how);
        at += HEAD * DK * b->n_row[i];
        assert_memory_equal(at - HEAD * DK, want, HEAD * DK * sizeof *want);
        free(want);
    }
}

static void tokens_see_a_window_and_entries(void **state)
{
    static const enum elem_type types[] = {ELEM_F32, ELEM_F16, ELEM_Q8_0};
    static const struct how hows[] = {
        {.window = 20, .ratio = 2, .has_sinks = true},
        {.window = 100, .ratio = 4},
        {.window = 64, .ratio = 2, .n_chosen = 30, .has_sinks = true},
        {.window = 600, .ratio = 3, .n_chosen = 200},
        {.window = 128, .ratio = 128, .has_sinks = true},
        {.window = 0, .ratio = 4, .n_chosen = 1},
    };
    struct fixture *f = *state;
    for (int i = 0; i < 3; i++) {
        struct caches c = {open_cache(f, types[i], DK, 23), open_cache(f, types[i], DK, 7)};
        for (size_t k = 0; k < sizeof hows / sizeof *hows; k++)
            for (size_t j = 0; j < sizeof batches / sizeof *batches; j++) {
                if (!is_tested(i + (int)k, 3))
                    continue;
                float *got = attend(f, &c, &batches[j], &hows[k]);
                for (int64_t t = 0; t < n_rows(&batches[j]); t++)
                    expect_row(&c, &hows[k], row_at(&batches[j], t), got + t * HEAD * DK);
                expect_alone(f, &c, &batches[j], &hows[k], got);
                free(got);
            }
        close_cache(f, &c.k);
        close_cache(f, &c.entries);
    }
}

/* ---- INDEX ----------------------------------------------------------------------------------------------------- */

static double index_score(const struct cache *c, struct row row, int64_t entry, bool has_weights)
{
    float q[HEAD * DK], weights[HEAD];
    double sum = 0;
    row_numbers(row, 3, q, HEAD * DK);
    row_numbers(row, 4, weights, HEAD);
    for (int head = 0; !has_weights && head < HEAD; head++)
        weights[head] = 1;
    for (int head = 0; head < HEAD; head++) {
        double score = 0;
        for (int d = 0; d < DK; d++)
            score += (double)q[head * DK + d] * (double)cache_row(c, row.text, entry)[d];
        sum += (double)weights[head] * (score < 0 ? 0 : score);
    }
    return sum;
}

/* A list ascends and has the best of n entries. */
static void expect_best(const struct cache *c, struct row row, int64_t n, bool has_weights, const int32_t *chosen,
                        int64_t k)
{
    int64_t n_chosen = n < k ? n : k, at = 0;
    double worst = INFINITY, best_left = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double score = index_score(c, row, i, has_weights);
        bool is_chosen = at < n_chosen && chosen[at] == i;
        worst = is_chosen ? fmin(worst, score) : worst;
        best_left = is_chosen ? best_left : fmax(best_left, score);
        at += is_chosen;
    }
    assert_int_equal(at, n_chosen);
    for (int64_t i = n_chosen; i < k; i++)
        assert_int_equal(chosen[i], -1);
    assert_true(best_left <= worst + 1e-5);
}

static void an_index_chooses_entries(void **state)
{
    static const int64_t ratios[] = {2, 3, 4}, chosen[] = {1, 30, 400};
    static const struct batch b = {4, {3, 1, 0, 2}, {40, 2, 3, 128}};
    struct fixture *f = *state;
    struct cache c = open_cache(f, ELEM_F32, DK, 7);
    for (int i = 0; i < 9; i++) {
        int64_t ratio = ratios[i / 3], k = chosen[i % 3], m = n_rows(&b);
        struct tensor pos, table, q = batch_rows(f, &b, 3, HEAD * DK), weights = batch_rows(f, &b, 4, HEAD);
        struct tensor out = tensor_i32(f, k, m, NULL);
        int32_t *got = malloc(tensor_bytes(&out));
        make_lists(f, &b, &pos, &table);
        backend_enqueue(f->device, &(struct op){.kind = OP_INDEX,
                                                .in = {[INDEX_Q] = q,
                                                       [INDEX_POS] = pos,
                                                       [INDEX_TABLE] = table,
                                                       [INDEX_PAGES] = c.tpages,
                                                       [INDEX_WEIGHTS] = weights},
                                                .out = {out},
                                                .state = {c.s},
                                                .index = {.ratio = ratio}});
        read_back(f, &out, got);
        for (int64_t t = 0; t < m; t++)
            expect_best(&c, row_at(&b, t), (row_at(&b, t).pos + 1) / ratio, true, got + t * k, k);
        free(got);
        close_tensors(f, (struct tensor *[]){&pos, &table, &q, &weights, &out}, 5);
    }
    close_cache(f, &c);
}

/* Whole runs, those positions behind the last run that the token sees, and nothing else. */
static void expect_runs(const struct cache *c, struct row row, int64_t ratio, const int32_t *chosen, int64_t k)
{
    int32_t entries[400];
    int64_t n = (row.pos + 1) / ratio, n_entry = n < k ? n : k, at = n_entry * ratio;
    for (int64_t i = 0; i < k; i++)
        entries[i] = i < n_entry ? chosen[i * ratio] / (int32_t)ratio : -1;
    for (int64_t i = 0; i < at; i++)
        assert_int_equal(chosen[i], entries[i / ratio] * ratio + i % ratio);
    expect_best(c, row, n, false, entries, k);
    for (int64_t pos = n * ratio; pos <= row.pos; pos++)
        assert_int_equal(chosen[at++], pos);
    while (at < (k + 1) * ratio - 1)
        assert_int_equal(chosen[at++], INT32_MAX);
}

static void an_index_chooses_runs(void **state)
{
    static const int64_t ratios[] = {2, 3, 4}, chosen[] = {1, 30, 400};
    static const struct batch b = {4, {3, 1, 0, 2}, {40, 2, 3, 128}};
    struct fixture *f = *state;
    struct cache c = open_cache(f, ELEM_F32, DK, 7);
    for (int i = 0; i < 9; i++) {
        int64_t ratio = ratios[i / 3], k = chosen[i % 3], m = n_rows(&b), n = (k + 1) * ratio - 1;
        struct tensor pos, table, q = batch_rows(f, &b, 3, HEAD * DK), out = tensor_i32(f, n, m, NULL);
        int32_t *got = malloc(tensor_bytes(&out));
        make_lists(f, &b, &pos, &table);
        backend_enqueue(
            f->device,
            &(struct op){.kind = OP_INDEX,
                         .in = {[INDEX_Q] = q, [INDEX_POS] = pos, [INDEX_TABLE] = table, [INDEX_PAGES] = c.tpages},
                         .out = {out},
                         .state = {c.s},
                         .index = {.ratio = ratio, .spreads = true}});
        read_back(f, &out, got);
        for (int64_t t = 0; t < m; t++)
            expect_runs(&c, row_at(&b, t), ratio, got + t * n, k);
        free(got);
        close_tensors(f, (struct tensor *[]){&pos, &table, &q, &out}, 4);
    }
    close_cache(f, &c);
}

/* ---- counters -------------------------------------------------------------------------------------------------- */

/* What tokens see is counted: positions of the window, and entries. A text's cache is read once. */
static void what_tokens_see_is_counted(void **state)
{
    enum { RATIO = 2, WINDOW = 20, N_CHOSEN = 30, TEXT = 3, N_ROW = 4 }; /* positions 297 to 300 */
    static const struct batch b = {1, {TEXT}, {N_ROW}};
    struct fixture *f = *state;
    struct caches c = {open_cache(f, ELEM_F32, DK, 23), open_cache(f, ELEM_F32, DK, 7)};
    for (int kind = 0; kind < 2; kind++) {
        const struct how how = {.window = WINDOW, .ratio = RATIO, .n_chosen = kind ? N_CHOSEN : 0};
        uint64_t n_seen = 0, n_read = kind ? WINDOW + N_CHOSEN : WINDOW + 149;
        const struct op_counters before = backend_counters(f->device).op[OP_ATTENTION];
        free(attend(f, &c, &b, &how));
        const struct op_counters after = backend_counters(f->device).op[OP_ATTENTION];
        for (int64_t pos = lengths[TEXT] - N_ROW; pos < lengths[TEXT]; pos++)
            n_seen += (uint64_t)(WINDOW + (kind ? N_CHOSEN : (pos + 1) / RATIO));
        n_read += N_ROW - 1 + 1; /* positions behind the first one, and an entry that one of them completes */
        assert_int_equal(after.n_float - before.n_float, n_seen * HEAD * 2 * DK);
        assert_int_equal(after.n_bytes - before.n_bytes, n_read * DK * sizeof(float));
    }
    close_cache(f, &c.k);
    close_cache(f, &c.entries);
}

/* ---- COMPRESS -------------------------------------------------------------------------------------------------- */

enum { CHANNELS = 70, MOST_RATIO = 100 };

struct compression {
    struct cache x, gate;
    int64_t width, ratio;
    bool has_gate;
    float bias[2 * CHANNELS * MOST_RATIO];
};

/* Channel i of the entry that ends at position `at` of a text. */
static double compressed(const struct compression *c, int text, int64_t at, int64_t i)
{
    int64_t begin = at + 1 - c->ratio, own = c->width - CHANNELS;
    double sum = 0, y = 0;
    for (int64_t pos = own && begin > 0 ? begin - c->ratio : begin; pos <= at; pos++) {
        int64_t channel = pos < begin ? i : own + i;
        double score = (c->has_gate ? (double)cache_row(&c->gate, text, pos)[channel] : 0) +
                       (double)c->bias[pos % c->ratio * c->width + channel];
        sum += exp(score);
        y += exp(score) * (double)cache_row(&c->x, text, pos)[channel];
    }
    return y / sum;
}

/* Entries of two texts, one with none before it. Runs of six and a hundred lie across pages. */
static void entries_are_made_of_their_positions(void **state)
{
    enum { E = 5 };
    static const int64_t ratios[] = {4, 6, MOST_RATIO};
    static const struct row entries[E] = {{3, 0}, {3, 1}, {3, 2}, {0, 10}, {0, 11}};
    static const struct paged no_cache;
    struct fixture *f = *state;
    for (int kind = 0; kind < 8; kind++) {
        int32_t at[E], table[E];
        float got[E * CHANNELS];
        struct compression c = {
            .width = kind % 2 ? 2 * CHANNELS : CHANNELS, .ratio = ratios[kind / 2 % 3], .has_gate = kind < 6};
        c.x = open_cache(f, ELEM_F32, c.width, 23);
        c.gate = open_cache(f, ELEM_F32, c.width, 23);
        fill(f, c.bias, (size_t)(c.width * c.ratio));
        for (int e = 0; e < E; e++) {
            at[e] = (int32_t)((entries[e].pos + 1) * c.ratio - 1);
            table[e] = table_of(entries[e].text);
        }
        struct tensor tat = tensor_i32(f, E, 1, at), ttable = tensor_i32(f, E, 1, table);
        struct tensor bias = tensor_f32(f, c.width, c.ratio, 1, c.bias), out = tensor_f32(f, CHANNELS, E, 1, NULL);
        backend_enqueue(
            f->device,
            &(struct op){.kind = OP_COMPRESS,
                         .in = {[COMPRESS_AT] = tat, [COMPRESS_TABLE] = ttable, [COMPRESS_PAGES] = c.x.tpages},
                         .out = {out},
                         .vec = {bias},
                         .state = {c.x.s, c.has_gate ? c.gate.s : no_cache}});
        read_back(f, &out, got);
        for (int i = 0; i < E * CHANNELS; i++) {
            int e = i / CHANNELS;
            double want = compressed(&c, entries[e].text, at[e], i % CHANNELS);
            if (!(fabs((double)got[i] - want) < 1e-5))
                fail_msg("width %d, ratio %d, entry %d, channel %d: %g, expected %g", (int)c.width, (int)c.ratio, e,
                         i % CHANNELS, (double)got[i], want);
        }
        close_tensors(f, (struct tensor *[]){&tat, &ttable, &bias, &out}, 4);
        close_cache(f, &c.x);
        close_cache(f, &c.gate);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_cpu, close_cpu)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tokens_see_a_window_and_entries),
        TEST(an_index_chooses_entries),
        TEST(an_index_chooses_runs),
        TEST(what_tokens_see_is_counted),
        TEST(entries_are_made_of_their_positions),
    };
    return cmocka_run_group_tests_name("compressed ops", tests, NULL, NULL);
}
