/* Operations on the state of several texts at once, in pages here and there: each text gets the bits that it gets
 * alone, with any number of threads. */
#include <math.h>

#include "device_fixture.h"

enum { HEAD = 6, HEAD_KV = 2, DK = 32, DV = 64, N_PAGE = 64 };

/* ---- texts in caches ----------------------------------------------------------------------------------------- */

enum { N_TEXT = 6 };

/* Tokens of each text: a few spans, whole blocks and a token more. */
static const int64_t lengths[N_TEXT] = {1300, 1, 64, 700, 513, 65};

/* What the caches hold, and where texts' pages are listed. */
struct caches {
    enum elem_type type;
    bool is_latent;
    struct paged k, v;
    int32_t pages[N_PAGE]; /* of all texts, one after the other */
    struct tensor tpages;
    int32_t table[N_TEXT]; /* where a text's list begins */
};

static int64_t n_blocks(int64_t n)
{
    return (n + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
}

/* Empty caches. All texts' pages are spread over them, none beside its neighbour. */
static struct caches open_caches(struct fixture *f, enum elem_type type, bool is_latent)
{
    struct caches c = {.type = type, .is_latent = is_latent};
    int n = 0;
    for (int j = 0; j < N_TEXT; j++) {
        c.table[j] = n;
        n += (int)n_blocks(lengths[j]);
    }
    assert_true(n <= N_PAGE);
    for (int i = 0; i < N_PAGE; i++)
        c.pages[i] = (i * 23 + 5) % N_PAGE;
    c.tpages = tensor_i32(f, N_PAGE, 1, c.pages);
    c.k = paged_zeros(f, type, DK, ATTENTION_BLOCK, is_latent ? 1 : HEAD_KV, N_PAGE, true);
    c.v = is_latent ? c.k : paged_zeros(f, type, DV, ATTENTION_BLOCK, HEAD_KV, N_PAGE, false);
    return c;
}

static void close_caches(struct fixture *f, struct caches *c)
{
    backend_buffer_close(f->device, &c->tpages.buffer);
    backend_buffer_close(f->device, &c->k.page.buffer);
    if (!c->is_latent)
        backend_buffer_close(f->device, &c->v.page.buffer);
}

/* The tokens of a batch: rows [first[i], first[i + 1]) are the last ones of text[i]. */
struct batch {
    int n;
    int text[N_TEXT];
    int64_t n_row[N_TEXT];
};

static int64_t n_rows(const struct batch *b)
{
    int64_t n = 0;
    for (int i = 0; i < b->n; i++)
        n += b->n_row[i];
    return n;
}

/* The positions of a batch's rows and where each one's list of pages begins. Owned by the caller. */
static void make_lists(struct fixture *f, const struct caches *c, const struct batch *b, struct tensor *pos,
                       struct tensor *table)
{
    int64_t m = n_rows(b), t = 0;
    int32_t *p = calloc((size_t)m, sizeof *p), *at = calloc((size_t)m, sizeof *at);
    for (int i = 0; i < b->n; i++)
        for (int64_t r = 0; r < b->n_row[i]; r++, t++) {
            p[t] = (int32_t)(lengths[b->text[i]] - b->n_row[i] + r);
            at[t] = c->table[b->text[i]];
        }
    *pos = tensor_i32(f, m, 1, p);
    *table = tensor_i32(f, m, 1, at);
    free(p);
    free(at);
}

static void close_tensors(struct fixture *f, struct tensor **all, int n)
{
    for (int i = 0; i < n; i++)
        backend_buffer_close(f->device, &all[i]->buffer);
}

/* Row t of text j, of n numbers: the same wherever it is needed. */
static void row_numbers(int j, int64_t pos, int salt, float *x, int64_t n)
{
    struct random r = random_seed((uint64_t)(j * 100003 + pos * 7 + salt));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(random_unit(&r) * 2 - 1);
}

/* A tensor of such rows for a batch. */
static struct tensor batch_rows(struct fixture *f, const struct batch *b, int salt, int64_t n)
{
    int64_t m = n_rows(b), t = 0;
    float *x = calloc((size_t)(m * n), sizeof *x);
    for (int i = 0; i < b->n; i++)
        for (int64_t r = 0; r < b->n_row[i]; r++, t++)
            row_numbers(b->text[i], lengths[b->text[i]] - b->n_row[i] + r, salt, x + t * n, n);
    struct tensor y = tensor_f32(f, n, m, 1, x);
    free(x);
    return y;
}

/* ---- KV_STORE ------------------------------------------------------------------------------------------------ */

static void store(struct fixture *f, const struct caches *c, const struct batch *b)
{
    struct err e;
    struct tensor pos, table;
    struct tensor k = batch_rows(f, b, 1, DK * c->k.page.ne[2]), v = batch_rows(f, b, 2, DV * HEAD_KV);
    make_lists(f, c, b, &pos, &table);
    backend_enqueue(
        f->device,
        &(struct op){
            .kind = OP_KV_STORE,
            .in = {[KV_STORE_X] = k, [KV_STORE_POS] = pos, [KV_STORE_TABLE] = table, [KV_STORE_PAGES] = c->tpages},
            .state = {c->k}});
    if (!c->is_latent)
        backend_enqueue(
            f->device,
            &(struct op){
                .kind = OP_KV_STORE,
                .in = {[KV_STORE_X] = v, [KV_STORE_POS] = pos, [KV_STORE_TABLE] = table, [KV_STORE_PAGES] = c->tpages},
                .state = {c->v}});
    assert_int_equal(backend_wait(f->device, backend_fence(f->device), &e), ERR_OK);
    close_tensors(f, (struct tensor *[]){&k, &v, &pos, &table}, 4);
}

static void store_all(struct fixture *f, const struct caches *c)
{
    struct batch all = {N_TEXT, {0}, {0}};
    for (int j = 0; j < N_TEXT; j++) {
        all.text[j] = j;
        all.n_row[j] = lengths[j];
    }
    store(f, c, &all);
}

/* All pages' bytes. Owned by the caller (free). */
static char *cache_bytes(struct fixture *f, const struct paged *x, size_t *n)
{
    struct tensor all = x->page;
    all.ne[2] *= N_PAGE;
    *n = tensor_bytes(&all);
    char *bytes = malloc(*n);
    read_back(f, &all, bytes);
    return bytes;
}

static void expect_same_cache(struct fixture *f, const struct paged *a, const struct paged *b)
{
    size_t n, n_b;
    char *x = cache_bytes(f, a, &n), *y = cache_bytes(f, b, &n_b);
    assert_int_equal(n, n_b);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static void texts_are_stored_together_as_alone(void **state)
{
    static const enum elem_type types[] = {ELEM_F32, ELEM_F16, ELEM_Q8_0};
    struct fixture *f = *state;
    for (int i = 0; i < 3; i++) {
        struct caches together = open_caches(f, types[i], false), alone = open_caches(f, types[i], false);
        store_all(f, &together);
        for (int j = N_TEXT - 1; j >= 0; j--)
            for (int64_t row = 0; row < 2; row++) { /* all tokens, and the last one again, by itself */
                const struct batch one = {1, {j}, {row ? 1 : lengths[j]}};
                store(f, &alone, &one);
            }
        expect_same_cache(f, &together.k, &alone.k);
        expect_same_cache(f, &together.v, &alone.v);
        close_caches(f, &together);
        close_caches(f, &alone);
    }
}

static void a_row_lies_where_its_page_says(void **state)
{
    struct fixture *f = *state;
    struct caches c = open_caches(f, ELEM_F32, false);
    const struct batch b = {2, {3, 5}, {1, 1}}; /* positions 699 and 64 */
    store(f, &c, &b);
    for (int i = 0; i < 2; i++) {
        int j = b.text[i];
        int64_t pos = lengths[j] - 1;
        float want[HEAD_KV * DV], got[DV];
        row_numbers(j, pos, 2, want, HEAD_KV * DV);
        for (int64_t head = 0; head < HEAD_KV; head++) {
            int32_t page = c.pages[c.table[j] + pos / ATTENTION_BLOCK];
            const struct tensor row = tensor_rows(paged_part(&c.v, page, head), pos % ATTENTION_BLOCK, 1);
            read_back(f, &row, got);
            assert_memory_equal(got, want + head * DV, sizeof got);
        }
    }
    close_caches(f, &c);
}

/* ---- ATTENTION ----------------------------------------------------------------------------------------------- */

struct how {
    int64_t window;
    bool chunked, has_sinks;
    int n_thread;
    int64_t n_chosen; /* positions that a token sees at most, or blocks with each KV head; 0: all */
    float softcap;
    int64_t block; /* positions of a block, where blocks are chosen; else 0 */
};

/* What a token of a text sees with a KV head, ascending, then -1: all or any of the positions or blocks up to its own.
 */
static void choose(int j, int64_t pos, int head, const struct how *how, int32_t *chosen)
{
    struct random r = random_seed((uint64_t)(j * 7919 + pos + head * 65537));
    int64_t n = 0, n_all = how->block ? pos / how->block + 1 : pos + 1;
    for (int64_t p = 0; p < n_all; p++) { /* each of the rest is as likely */
        int64_t left = how->n_chosen - n, of = n_all - p;
        if (of <= left || random_unit(&r) * (double)of < (double)left)
            chosen[n++] = (int32_t)p;
    }
    while (n < how->n_chosen)
        chosen[n++] = -1;
}

/* The same for a batch's rows. */
static struct tensor batch_chosen(struct fixture *f, const struct batch *b, const struct how *how)
{
    int64_t m = n_rows(b), t = 0, n_list = how->block ? HEAD_KV : 1, k = how->n_chosen;
    int32_t *x = calloc((size_t)(m * n_list * k), sizeof *x);
    for (int i = 0; i < b->n; i++)
        for (int64_t r = 0; r < b->n_row[i]; r++, t++)
            for (int64_t head = 0; head < n_list; head++)
                choose(b->text[i], lengths[b->text[i]] - b->n_row[i] + r, (int)head, how, x + (t * n_list + head) * k);
    struct tensor y = tensor_i32(f, n_list * k, m, x);
    free(x);
    return y;
}

/* A batch's results. Owned by the caller (free). */
static float *attend(struct fixture *f, const struct caches *c, const struct batch *b, const struct how *how)
{
    static const float sinks[HEAD] = {0.5f, 2, -1, 0, 1, 3};
    int64_t m = n_rows(b), dv = c->is_latent ? DK : DV;
    struct tensor pos, table, q = batch_rows(f, b, 3, HEAD * DK), out = tensor_f32(f, HEAD * dv, m, 1, NULL);
    struct tensor tsinks = tensor_f32(f, HEAD, 1, 1, sinks), chosen = {0};
    float *y = malloc(tensor_bytes(&out));
    make_lists(f, c, b, &pos, &table);
    struct op op = {
        .kind = OP_ATTENTION,
        .in = {[ATTENTION_Q] = q, [ATTENTION_POS] = pos, [ATTENTION_TABLE] = table, [ATTENTION_PAGES] = c->tpages},
        .out = {out},
        .state = {[ATTENTION_K] = c->k, [ATTENTION_V] = c->v},
        .attention = {
            .n_head = HEAD, .scale = 1, .window = how->window, .chunked = how->chunked, .softcap = how->softcap}};
    if (how->has_sinks)
        op.vec[0] = tsinks;
    if (how->n_chosen)
        op.in[ATTENTION_CHOSEN] = chosen = batch_chosen(f, b, how);
    op.attention.chosen_block = how->block;
    pool_use(f->pool, how->n_thread);
    backend_enqueue(f->device, &op);
    read_back(f, &out, y);
    pool_use(f->pool, pool_n_threads(f->pool));
    close_tensors(f, (struct tensor *[]){&pos, &table, &q, &out, &tsinks, &chosen}, 6);
    return y;
}

/* The batch's rows are, to the bit, those of each text's tokens one by one on one thread. */
static void expect_alone(struct fixture *f, const struct caches *c, const struct batch *b, const struct how *how)
{
    size_t n = (size_t)(HEAD * (c->is_latent ? DK : DV));
    struct how one_thread = *how;
    one_thread.n_thread = 1;
    float *got = attend(f, c, b, how), *at = got;
    for (int i = 0; i < b->n; i++) {
        const struct batch alone = {1, {b->text[i]}, {b->n_row[i]}};
        float *want = attend(f, c, &alone, &one_thread);
        assert_memory_equal(at, want, n * (size_t)b->n_row[i] * sizeof *at);
        at += n * (size_t)b->n_row[i];
        free(want);
        const struct batch last = {1, {b->text[i]}, {1}};
        want = attend(f, c, &last, &one_thread);
        assert_memory_equal(at - n, want, n * sizeof *at);
        free(want);
    }
    free(got);
}

static const struct batch batches[] = {
    {1, {0}, {1}},                                 /* spans of one text */
    {3, {3, 0, 1}, {1, 1, 1}},                     /* of several */
    {6, {5, 4, 3, 2, 1, 0}, {1, 1, 1, 1, 1, 1}},   /* as many tasks as threads want */
    {1, {0}, {11}},                                /* some of one text: more spans than it has, where all choose */
    {3, {0, 2, 3}, {30, 64, 1}},                   /* tiles */
    {6, {1, 0, 5, 3, 4, 2}, {1, 1, 1, 5, 40, 64}}, /* both, as texts are mixed */
    {2, {4, 3}, {200, 1}},                         /* a single one at the end */
};

/* number: of what the batches are combined with; one of `step` is tested as is_tested has it. */
static void expect_batches(struct fixture *f, const struct caches *c, const struct how *how, int number, int step)
{
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        if (!is_tested(number + (int)i, step))
            continue;
        struct how each = *how;
        int n_most = tests_device("vulkan") ? 1 : 3; /* a GPU has threads of its own */
        for (each.n_thread = 1; each.n_thread <= n_most; each.n_thread += 2)
            expect_alone(f, c, &batches[i], &each);
    }
}

static void texts_are_attended_together_as_alone(void **state)
{
    static const enum elem_type types[] = {ELEM_F32, ELEM_F16, ELEM_Q8_0};
    static const struct how hows[] = {{.window = 0},
                                      {.window = 100, .has_sinks = true},
                                      {.window = 600, .softcap = 0.5f},
                                      {.window = 128, .chunked = true, .has_sinks = true}};
    struct fixture *f = *state;
    for (int i = 0; i < 3; i++) {
        struct caches c = open_caches(f, types[i], false);
        store_all(f, &c);
        for (size_t k = 0; k < sizeof hows / sizeof *hows; k++)
            if (hows[k].softcap == 0 || is_tested(i, 3)) /* a shader of its own */
                expect_batches(f, &c, &hows[k], i + (int)k, 3);
        close_caches(f, &c);
    }
}

static void latent_caches_are_attended_together_as_alone(void **state)
{
    static const enum elem_type types[] = {ELEM_F16, ELEM_Q8_0};
    struct fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        struct caches c = open_caches(f, types[i], true);
        store_all(f, &c);
        expect_batches(f, &c, &(struct how){0}, i, 2);
        close_caches(f, &c);
    }
}

/* ---- INDEX, and ATTENTION to what it chose ----------------------------------------------------------------------- */

static void chosen_positions_are_attended_together_as_alone(void **state)
{
    static const enum elem_type types[] = {ELEM_F16, ELEM_F32, ELEM_Q8_0};
    static const int64_t chosen[] = {40, 1, 700};
    struct fixture *f = *state;
    int n = tests_device("vulkan") ? 1 : 3; /* drivers that compute on the processor take minutes for all */
    for (int i = 0; i < n; i++)
        for (int is_latent = n == 1; is_latent < 2; is_latent++) {
            struct caches c = open_caches(f, types[i], is_latent);
            store_all(f, &c);
            for (int k = 0; k < n; k++)
                expect_batches(f, &c, &(struct how){.n_chosen = chosen[k]}, 0, 1);
            close_caches(f, &c);
        }
}

/* The last two batches have blocks in three spans, in which some tokens see nothing. */
static void chosen_blocks_are_attended_together_as_alone(void **state)
{
    static const enum elem_type types[] = {ELEM_F16, ELEM_F32, ELEM_Q8_0};
    static const struct how hows[] = {
        {.n_chosen = 3, .block = 64}, {.n_chosen = 1, .block = 128, .has_sinks = true}, {.n_chosen = 2, .block = 192}};
    struct fixture *f = *state;
    for (int i = 0; i < 3; i++) {
        struct caches c = open_caches(f, types[i], false);
        store_all(f, &c);
        for (int k = 0; k < 3; k++)
            if (is_tested(i + k, 3)) /* each has shaders of its own */
                expect_batches(f, &c, &hows[k], 0, 1);
        close_caches(f, &c);
    }
}

/* Where there is room for all, the bits are those of plain attention. */
static void expect_no_choice(struct fixture *f, bool is_latent, const struct how *how)
{
    size_t n = HEAD * (is_latent ? DK : DV);
    struct caches c = open_caches(f, ELEM_F16, is_latent);
    store_all(f, &c);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        if (!is_tested((int)i, 2))
            continue;
        float *x = attend(f, &c, &batches[i], how), *y = attend(f, &c, &batches[i], &(struct how){.n_thread = 3});
        assert_memory_equal(x, y, (size_t)n_rows(&batches[i]) * n * sizeof *x);
        free(x);
        free(y);
    }
    close_caches(f, &c);
}

static void all_positions_chosen_is_no_choice(void **state)
{
    expect_no_choice(*state, true, &(struct how){.n_thread = 3, .n_chosen = 1300});
}

static void all_blocks_chosen_is_no_choice(void **state)
{
    expect_no_choice(*state, false, &(struct how){.n_thread = 3, .n_chosen = 11, .block = 128});
}

/* By the definition, in double: a softmax over what is chosen. */
static void other_positions_do_not_count(void **state)
{
    enum { TEXT = 3, N_ROW = 3, N_CHOSEN = 40 };
    struct fixture *f = *state;
    struct caches c = open_caches(f, ELEM_F32, true);
    const struct batch b = {1, {TEXT}, {N_ROW}};
    store_all(f, &c);
    float *got = attend(f, &c, &b, &(struct how){.n_thread = 1, .n_chosen = N_CHOSEN});
    for (int64_t t = 0; t < N_ROW; t++) {
        int64_t pos = lengths[TEXT] - N_ROW + t;
        float q[HEAD * DK], k[DK];
        int32_t chosen[N_CHOSEN];
        row_numbers(TEXT, pos, 3, q, HEAD * DK);
        choose(TEXT, pos, 0, &(struct how){.n_chosen = N_CHOSEN}, chosen);
        for (int head = 0; head < HEAD; head++) {
            double sum = 0, o[DK] = {0};
            for (int i = 0; i < N_CHOSEN; i++) {
                double score = 0;
                row_numbers(TEXT, chosen[i], 1, k, DK);
                for (int d = 0; d < DK; d++)
                    score += (double)q[head * DK + d] * (double)k[d];
                sum += exp(score);
                for (int d = 0; d < DK; d++)
                    o[d] += exp(score) * (double)k[d];
            }
            for (int d = 0; d < DK; d++)
                assert_true(fabs((double)got[(t * HEAD + head) * DK + d] - o[d] / sum) < 1e-5);
        }
    }
    free(got);
    close_caches(f, &c);
}

/* The same of blocks: each KV head sees its own, up to the token's own position. */
static void other_blocks_do_not_count(void **state)
{
    enum { TEXT = 3, N_ROW = 3 };
    static const struct how how = {.n_thread = 1, .n_chosen = 3, .block = 128};
    struct fixture *f = *state;
    struct caches c = open_caches(f, ELEM_F32, false);
    const struct batch b = {1, {TEXT}, {N_ROW}};
    store_all(f, &c);
    float *got = attend(f, &c, &b, &how);
    for (int64_t i = 0; i < N_ROW * HEAD; i++) {
        int64_t pos = lengths[TEXT] - N_ROW + i / HEAD, head = i % HEAD, head_kv = head / (HEAD / HEAD_KV);
        float q[HEAD * DK], k[HEAD_KV * DK], v[HEAD_KV * DV];
        int32_t chosen[3];
        double sum = 0, o[DV] = {0};
        row_numbers(TEXT, pos, 3, q, HEAD * DK);
        choose(TEXT, pos, (int)head_kv, &how, chosen);
        for (int64_t p = 0; p <= pos; p++) {
            double score = 0;
            if (p / how.block != chosen[0] && p / how.block != chosen[1] && p / how.block != chosen[2])
                continue;
            row_numbers(TEXT, p, 1, k, HEAD_KV * DK);
            row_numbers(TEXT, p, 2, v, HEAD_KV * DV);
            for (int d = 0; d < DK; d++)
                score += (double)q[head * DK + d] * (double)k[head_kv * DK + d];
            sum += exp(score);
            for (int d = 0; d < DV; d++)
                o[d] += exp(score) * (double)v[head_kv * DV + d];
        }
        for (int d = 0; d < DV; d++)
            assert_true(fabs((double)got[i * DV + d] - o[d] / sum) < 1e-5);
    }
    free(got);
    close_caches(f, &c);
}

/* What an index chooses: k positions, or k blocks for each head. */
struct choice {
    int64_t k, block, n_local;
};

static int64_t choice_length(const struct choice *x)
{
    return x->k * (x->block ? HEAD : 1);
}

/* What INDEX chooses for a batch, [choice_length][M]. Owned by the caller (free). */
static int32_t *index_rows(struct fixture *f, const struct caches *c, const struct batch *b, const struct choice *x,
                           int n_thread)
{
    int64_t m = n_rows(b);
    struct tensor pos, table, q = batch_rows(f, b, 3, HEAD * DK), weights = {0};
    struct tensor out = tensor_i32(f, choice_length(x), m, NULL);
    int32_t *y = malloc(tensor_bytes(&out));
    if (!x->block)
        weights = batch_rows(f, b, 4, HEAD);
    make_lists(f, c, b, &pos, &table);
    pool_use(f->pool, n_thread);
    backend_enqueue(f->device, &(struct op){.kind = OP_INDEX,
                                            .in = {[INDEX_Q] = q,
                                                   [INDEX_POS] = pos,
                                                   [INDEX_TABLE] = table,
                                                   [INDEX_PAGES] = c->tpages,
                                                   [INDEX_WEIGHTS] = weights},
                                            .out = {out},
                                            .state = {c->k},
                                            .index = {.block = x->block, .n_local = x->n_local}});
    read_back(f, &out, y);
    pool_use(f->pool, pool_n_threads(f->pool));
    close_tensors(f, (struct tensor *[]){&pos, &table, &q, &weights, &out}, 5);
    return y;
}

static double index_product(int j, int64_t pos, int head, int64_t p)
{
    float q[HEAD * DK], k[DK];
    double score = 0;
    row_numbers(j, pos, 3, q, HEAD * DK);
    row_numbers(j, p, 1, k, DK);
    for (int d = 0; d < DK; d++)
        score += (double)q[head * DK + d] * (double)k[d];
    return score;
}

static double index_score(int j, int64_t pos, int64_t p)
{
    float weights[HEAD];
    double sum = 0;
    row_numbers(j, pos, 4, weights, HEAD);
    for (int head = 0; head < HEAD; head++)
        sum += (double)weights[head] * fmax(index_product(j, pos, head, p), 0);
    return sum;
}

/* A list ascends and has what is best by the definition, in double. */
static void expect_best(int j, int64_t pos, const int32_t *chosen, int64_t k)
{
    int64_t n = pos + 1 < k ? pos + 1 : k;
    double worst = INFINITY, best_left = -INFINITY;
    for (int64_t i = 0, p = 0; p <= pos; p++) {
        double score = index_score(j, pos, p);
        if (i < n && chosen[i] == p) {
            worst = fmin(worst, score);
            i++;
        } else {
            best_left = fmax(best_left, score);
        }
        assert_true(p < pos || i == n);
    }
    for (int64_t i = n; i < k; i++)
        assert_int_equal(chosen[i], -1);
    assert_true(best_left <= worst + 1e-5);
}

static void an_index_chooses_the_best(void **state)
{
    static const int64_t chosen[] = {1, 40, 700};
    const struct batch b = {4, {1, 3, 5, 4}, {1, 2, 65, 3}};
    struct fixture *f = *state;
    struct caches c = open_caches(f, ELEM_F32, true);
    store_all(f, &c);
    for (int i = 0; i < 3; i++) {
        int32_t *got = index_rows(f, &c, &b, &(struct choice){.k = chosen[i]}, 3), *at = got;
        for (int j = 0; j < b.n; j++)
            for (int64_t r = 0; r < b.n_row[j]; r++, at += chosen[i])
                expect_best(b.text[j], lengths[b.text[j]] - b.n_row[j] + r, at, chosen[i]);
        free(got);
    }
    close_caches(f, &c);
}

/* Of a long text, whose pages are three again and again: of equal scores the first positions count. */
static void an_index_chooses_among_thousands(void **state)
{
    enum { TEXT = 3, PERIOD = 3 * ATTENTION_BLOCK, N_LONG = 9000, K = 3000 };
    const struct batch b = {1, {TEXT}, {1}};
    struct fixture *f = *state;
    struct caches c = open_caches(f, ELEM_F32, true);
    int32_t pages[N_LONG / ATTENTION_BLOCK + 1], last = N_LONG - 1, begin = 0, got[K];
    double score[PERIOD];
    store_all(f, &c);
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        pages[i] = c.pages[c.table[TEXT] + (int)i % 3];
    for (int64_t i = 0; i < PERIOD; i++)
        score[i] = index_score(TEXT, lengths[TEXT] - 1, i);
    struct tensor q = batch_rows(f, &b, 3, HEAD * DK), weights = batch_rows(f, &b, 4, HEAD);
    struct tensor pos = tensor_i32(f, 1, 1, &last), table = tensor_i32(f, 1, 1, &begin);
    struct tensor tpages = tensor_i32(f, sizeof pages / sizeof *pages, 1, pages), out = tensor_i32(f, K, 1, NULL);
    backend_enqueue(f->device, &(struct op){.kind = OP_INDEX,
                                            .in = {[INDEX_Q] = q,
                                                   [INDEX_POS] = pos,
                                                   [INDEX_TABLE] = table,
                                                   [INDEX_PAGES] = tpages,
                                                   [INDEX_WEIGHTS] = weights},
                                            .out = {out},
                                            .state = {c.k}});
    read_back(f, &out, got);
    for (int32_t p = 0, n = 0; p < N_LONG; p++) {
        int n_better = 0;
        for (int32_t i = 0; i < PERIOD; i++) {
            int32_t end = score[i] > score[p % PERIOD] ? N_LONG : score[i] == score[p % PERIOD] ? p : 0;
            n_better += end > i ? (end - i - 1) / PERIOD + 1 : 0;
        }
        if (n_better < K)
            assert_int_equal(got[n++], p);
        assert_true(p < N_LONG - 1 || n == K);
    }
    close_tensors(f, (struct tensor *[]){&q, &weights, &pos, &table, &tpages, &out}, 6);
    close_caches(f, &c);
}

/* By the definition, in double: a block is as good as its best position that the token sees, local ones are the best.
 */
static void expect_best_blocks(int j, int64_t pos, int head, const int32_t *chosen, const struct choice *x)
{
    int64_t n_all = pos / x->block + 1, n = n_all < x->k ? n_all : x->k, at = 0;
    double worst = INFINITY, best_left = -INFINITY;
    for (int64_t i = 0; i < n_all; i++) {
        double score = i + x->n_local >= n_all ? INFINITY : -INFINITY;
        for (int64_t p = i * x->block; p <= pos && p < (i + 1) * x->block; p++)
            score = fmax(score, index_product(j, pos, head, p));
        if (at < n && chosen[at] == i) {
            worst = fmin(worst, score);
            at++;
        } else {
            best_left = fmax(best_left, score);
        }
    }
    assert_int_equal(at, n);
    for (int64_t i = n; i < x->k; i++)
        assert_int_equal(chosen[i], -1);
    assert_true(best_left <= worst + 1e-5);
}

static void an_index_chooses_the_best_blocks_for_each_head(void **state)
{
    static const struct choice choices[] = {{3, 64, 1}, {1, 64, 0}, {2, 128, 2}, {4, 192, 1}, {2, 64, 0}};
    const struct batch b = {4, {1, 3, 5, 4}, {1, 2, 65, 3}};
    struct fixture *f = *state;
    struct caches c = open_caches(f, ELEM_F32, true);
    store_all(f, &c);
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const struct choice *x = &choices[i];
        int32_t *got = index_rows(f, &c, &b, x, 3), *at = got;
        for (int j = 0; j < b.n; j++)
            for (int64_t r = 0; r < b.n_row[j]; r++)
                for (int head = 0; head < HEAD; head++, at += x->k)
                    expect_best_blocks(b.text[j], lengths[b.text[j]] - b.n_row[j] + r, head, at, x);
        free(got);
    }
    close_caches(f, &c);
}

static void an_index_chooses_together_as_alone(void **state)
{
    static const struct choice choices[] = {{.k = 50}, {3, 64, 1}, {2, 192, 1}};
    static const enum elem_type types[] = {ELEM_F16, ELEM_F32, ELEM_Q8_0};
    struct fixture *f = *state;
    for (int type = 0; type < (tests_device("vulkan") ? 1 : 3); type++) {
        struct caches c = open_caches(f, types[type], true);
        store_all(f, &c);
        for (size_t i = 0; i < 3 * sizeof batches / sizeof *batches; i++) {
            const struct batch *b = &batches[i / 3];
            const struct choice *x = &choices[i % 3];
            int64_t n = choice_length(x);
            int32_t *got = index_rows(f, &c, b, x, 3), *at = got;
            for (int j = 0; j < b->n; j++) {
                const struct batch alone = {1, {b->text[j]}, {b->n_row[j]}};
                int32_t *want = index_rows(f, &c, &alone, x, 1);
                assert_memory_equal(at, want, (size_t)(n * b->n_row[j]) * sizeof *at);
                at += n * b->n_row[j];
                free(want);
            }
            free(got);
        }
        close_caches(f, &c);
    }
}

/* Of equal scores the first ones; NaN comes last. */
static void an_index_of_equal_scores_takes_the_first(void **state)
{
    enum { TEXT = 5, K = 7, AT = 10 };
    struct fixture *f = *state;
    struct caches c = open_caches(f, ELEM_F32, true);
    const struct batch b = {1, {TEXT}, {1}};
    float row[DK] = {0};
    store_all(f, &c);
    for (int64_t p = 0; p < lengths[TEXT]; p++) { /* no score but two, and those of the first are none */
        row[0] = p < 3 ? NAN : 0;
        if (p == AT || p == AT + 30)
            row_numbers(TEXT, p, 1, row, DK);
        int32_t page = c.pages[c.table[TEXT] + p / ATTENTION_BLOCK];
        const struct tensor t = tensor_rows(paged_part(&c.k, page, 0), p % ATTENTION_BLOCK, 1);
        backend_write(f->device, &t, row);
        memset(row, 0, sizeof row);
    }
    int32_t *got = index_rows(f, &c, &b, &(struct choice){.k = K}, 1);
    int n_best = 0, n_first = 0;
    for (int i = 0; i < K; i++) {
        bool is_special = got[i] == AT || got[i] == AT + 30;
        n_best += is_special;
        assert_true(got[i] >= 3 && (is_special || got[i] == 3 + n_first++));
    }
    assert_int_equal(n_best, (index_score(TEXT, lengths[TEXT] - 1, AT) > 0) +
                                 (index_score(TEXT, lengths[TEXT] - 1, AT + 30) > 0));
    free(got);
    close_caches(f, &c);
}

/* All keys are zeros but the first block's, whose numbers are none: it is the last to be taken. */
static void an_index_of_equal_blocks_takes_the_first(void **state)
{
    enum { TEXT = 3 }; /* eleven blocks */
    static const struct choice choice = {4, 64, 1};
    struct fixture *f = *state;
    struct caches c = open_caches(f, ELEM_F32, true);
    const struct batch b = {1, {TEXT}, {1}};
    for (int64_t p = 0; p < ATTENTION_BLOCK; p++) {
        float row[DK] = {NAN};
        const struct tensor t = tensor_rows(paged_part(&c.k, c.pages[c.table[TEXT]], 0), p, 1);
        backend_write(f->device, &t, row);
    }
    int32_t *got = index_rows(f, &c, &b, &choice, 1);
    for (int i = 0; i < HEAD * 4; i++)
        assert_int_equal(got[i], i % 4 == 3 ? 10 : i % 4 + 1);
    free(got);
    close_caches(f, &c);
}

/* What heads see of chosen blocks is counted: all of them, but of the token's own up to itself. Keys of an index are
 * read once for a text, if it chooses. */
static void what_is_seen_of_blocks_is_counted(void **state)
{
    enum { TEXT = 3, N_ROW = 2, K = 3, BLOCK = 128 }; /* positions 698 and 699, of block 5 */
    const struct how how = {.n_thread = 1, .n_chosen = K, .block = BLOCK};
    const struct batch b = {1, {TEXT}, {N_ROW}};
    struct fixture *f = *state;
    struct caches c = open_caches(f, ELEM_F32, false), keys = open_caches(f, ELEM_F32, true);
    const struct backend_counters before = backend_counters(f->device);
    free(attend(f, &c, &b, &how));
    free(index_rows(f, &keys, &b, &(struct choice){K, BLOCK, 1}, 1));
    free(index_rows(f, &keys, &b, &(struct choice){6, BLOCK, 1}, 1)); /* as many as there are */
    const struct backend_counters after = backend_counters(f->device);
    const struct op_counters *x = &before.op[OP_ATTENTION], *y = &after.op[OP_ATTENTION];
    uint64_t first = (K - 1) * BLOCK + 698 % BLOCK + 1;
    assert_int_equal(y->n_float - x->n_float, (first + first + 1) * HEAD * (DK + DV));
    assert_int_equal(y->n_bytes - x->n_bytes, (first + 1) * HEAD_KV * (DK + DV) * sizeof(float));
    x = &before.op[OP_INDEX];
    y = &after.op[OP_INDEX];
    assert_int_equal(y->n_float - x->n_float, (699 + 700) * HEAD * DK);
    assert_int_equal(y->n_bytes - x->n_bytes, 700 * DK * sizeof(float));
    close_caches(f, &c);
    close_caches(f, &keys);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Where a text lies in the caches, and beside whom, is of no account. */
static void other_pages_give_the_same_bits(void **state)
{
    struct fixture *f = *state;
    const struct how how = {.n_thread = 3};
    struct caches a = open_caches(f, ELEM_F16, false), b = open_caches(f, ELEM_F16, false);
    for (int i = 0; i < N_PAGE; i++)
        b.pages[i] = N_PAGE - 1 - i;
    backend_write(f->device, &b.tpages, b.pages);
    store_all(f, &a);
    store_all(f, &b);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        float *x = attend(f, &a, &batches[i], &how), *y = attend(f, &b, &batches[i], &how);
        assert_memory_equal(x, y, (size_t)(n_rows(&batches[i]) * HEAD * DV) * sizeof *x);
        free(x);
        free(y);
    }
    close_caches(f, &a);
    close_caches(f, &b);
}

/* A window's first pages may be missing in the list, which then begins before itself. */
static void blocks_that_nobody_sees_need_not_be_listed(void **state)
{
    static const struct batch b = {3, {0, 3, 4}, {1, 20, 1}};
    struct fixture *f = *state;
    struct caches c = open_caches(f, ELEM_F16, false), cut = c;
    int n = 0;
    store_all(f, &c);
    for (int i = 0; i < b.n; i++) {
        int j = b.text[i];
        int64_t first = (lengths[j] - b.n_row[i] - 99) / ATTENTION_BLOCK;
        cut.table[j] = n - (int32_t)first;
        for (int64_t k = first; k < n_blocks(lengths[j]); k++)
            cut.pages[n++] = c.pages[c.table[j] + k];
    }
    assert_true(cut.table[0] < 0);
    cut.tpages = tensor_i32(f, n, 1, cut.pages);
    for (int n_thread = 1; n_thread <= 3; n_thread += 2) {
        const struct how how = {100, false, false, n_thread};
        float *want = attend(f, &c, &b, &how), *got = attend(f, &cut, &b, &how);
        assert_memory_equal(got, want, (size_t)(n_rows(&b) * HEAD * DV) * sizeof *got);
        free(want);
        free(got);
    }
    store(f, &cut, &b); /* and to store rows again changes nothing */
    float *want = attend(f, &c, &b, &(struct how){.n_thread = 1});
    store_all(f, &c);
    float *got = attend(f, &c, &b, &(struct how){.n_thread = 1});
    assert_memory_equal(got, want, (size_t)(n_rows(&b) * HEAD * DV) * sizeof *got);
    free(want);
    free(got);
    backend_buffer_close(f->device, &cut.tpages.buffer);
    close_caches(f, &c);
}

/* ---- CONV, DELTA and SSM ------------------------------------------------------------------------------------- */

enum { M = 24, N_SLOT = 7, N_CHANNEL = 300, N_PAST = 3, HEAD_K = 2, HEAD_V = 4, STATE_DK = 20, STATE_DV = 37 };
enum { N_MIXED = 2 * HEAD_K * STATE_DK + HEAD_V * STATE_DV };

/* A run of rows, and the pages that it begins with (-1: zeros) and leaves. */
struct run {
    int64_t n;
    int32_t from, to;
};

static const struct run runs[] = {
    {1, -1, 0}, {5, -1, 3}, {4, 3, 5}, /* begins where the one before has ended */
    {1, 6, 6},  {7, 1, 4},  {2, 4, 4}, /* stays in its page, once more */
    {3, 0, 2},  {1, 5, 1},             /* from a page that an early run has left, to one that a run began with */
};
enum { N_RUN = sizeof runs / sizeof *runs };

/* Lists for rows of runs. In a run's later rows `from` says nothing. Owned by the caller. */
static void make_run_lists(struct fixture *f, const struct run *r, int n, struct tensor *from, struct tensor *to)
{
    int32_t a[M], b[M];
    int64_t t = 0;
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < r[i].n; k++, t++) {
            a[t] = k == 0 ? r[i].from : 12345;
            b[t] = r[i].to;
        }
    assert_true(t <= M);
    *from = tensor_i32(f, t, 1, a);
    *to = tensor_i32(f, t, 1, b);
}

/* An operation over all M rows of inputs, its constants and a state of N_SLOT pages with random contents. */
struct recurrent {
    struct op op;
    int n_in; /* inputs, some absent, before from and to */
    float *first;
};

/* n_decay: of a head of DELTA; 0: SSM is selective; below: its decays are fixed. */
static struct recurrent open_recurrent(struct fixture *f, enum op_kind kind, int n_decay)
{
    static float x[M * 1000];
    bool is_conv = kind == OP_CONV;
    struct recurrent r = {.op = {.kind = kind}, .n_in = is_conv ? CONV_FROM : DELTA_FROM};
    fill(f, x, M * 1000);
    if (is_conv) {
        r.op.in[CONV_X] = tensor_f32(f, N_CHANNEL, M, 1, x);
        r.op.out[0] = tensor_f32(f, N_CHANNEL, M, 1, NULL);
        r.op.vec[CONV_TAPS] = tensor_f32(f, N_CHANNEL, N_PAST + 1, 1, x + 5000);
        r.op.state[0] = paged_zeros(f, ELEM_F32, N_CHANNEL, N_PAST, 1, N_SLOT, false);
    } else if (n_decay == 0) {
        float a[STATE_DK * HEAD_V * STATE_DV];
        for (int i = 0; i < STATE_DK * HEAD_V * STATE_DV; i++)
            a[i] = -0.02f * (float)(i % 17 + 1);
        r.op.in[DELTA_QKV] = tensor_f32(f, HEAD_V * STATE_DV, M, 1, x);
        r.op.in[DELTA_ALPHA] = tensor_f32(f, HEAD_V * STATE_DV, M, 1, x + 8000);
        r.op.in[SSM_QK] = tensor_f32(f, 2 * STATE_DK, M, 1, x + 12000);
        r.op.out[0] = tensor_f32(f, HEAD_V * STATE_DV, M, 1, NULL);
        r.op.vec[DELTA_DT] = tensor_f32(f, HEAD_V * STATE_DV, 1, 1, x + 14000);
        r.op.vec[DELTA_A] = tensor_f32(f, STATE_DK, HEAD_V * STATE_DV, 1, a);
        r.op.vec[SSM_SKIP] = tensor_f32(f, HEAD_V * STATE_DV, 1, 1, x + 15000);
        r.op.state[0] = paged_zeros(f, ELEM_F32, STATE_DK, HEAD_V * STATE_DV, 1, N_SLOT, true);
        r.op.delta.n_head_k = 1;
    } else {
        r.op.in[DELTA_QKV] = tensor_f32(f, N_MIXED, M, 1, x);
        if (n_decay > 0) {
            r.op.in[DELTA_ALPHA] = tensor_f32(f, HEAD_V * n_decay, M, 1, x + 8000);
            r.op.vec[DELTA_DT] = tensor_f32(f, HEAD_V * n_decay, 1, 1, x + 11000);
        }
        if (kind == OP_DELTA)
            r.op.in[DELTA_BETA] = tensor_f32(f, HEAD_V, M, 1, x + 10000);
        else
            r.op.vec[SSM_SKIP] = tensor_f32(f, HEAD_V, 1, 1, x + 10000);
        r.op.out[0] = tensor_f32(f, HEAD_V * STATE_DV, M, 1, NULL);
        r.op.vec[DELTA_A] = tensor_f32(f, HEAD_V, 1, 1, (const float[]){-0.1f, -0.2f, -0.05f, -0.3f});
        r.op.state[0] = paged_zeros(f, ELEM_F32, STATE_DK, STATE_DV, HEAD_V, N_SLOT, true);
        r.op.delta.n_head_k = HEAD_K;
        r.op.delta.eps = 1e-6f;
    }
    struct tensor all = r.op.state[0].page;
    all.ne[2] *= N_SLOT;
    r.first = malloc(tensor_bytes(&all));
    fill(f, r.first, (size_t)tensor_n_elem(&all));
    return r;
}

static struct tensor whole_state(const struct recurrent *r)
{
    struct tensor all = r->op.state[0].page;
    all.ne[2] *= N_SLOT;
    return all;
}

static void close_recurrent(struct fixture *f, struct recurrent *r)
{
    for (int i = 0; i < r->n_in; i++)
        backend_buffer_close(f->device, &r->op.in[i].buffer);
    backend_buffer_close(f->device, &r->op.out[0].buffer);
    for (int i = 0; i < OP_MAX_OUT; i++)
        backend_buffer_close(f->device, &r->op.vec[i].buffer);
    backend_buffer_close(f->device, &r->op.state[0].page.buffer);
    free(r->first);
}

/* Rows [t0, ...) of n runs in one operation. */
static void enqueue_runs(struct fixture *f, const struct recurrent *r, int64_t t0, const struct run *list, int n)
{
    struct op op = r->op;
    struct tensor from, to;
    make_run_lists(f, list, n, &from, &to);
    for (int i = 0; i < r->n_in; i++)
        if (op.in[i].buffer)
            op.in[i] = tensor_rows(op.in[i], t0, to.ne[0]);
    op.in[r->n_in] = from;
    op.in[r->n_in + 1] = to;
    op.out[0] = tensor_rows(op.out[0], t0, to.ne[0]);
    backend_enqueue(f->device, &op);
    close_tensors(f, (struct tensor *[]){&from, &to}, 2);
}

static void begin_state(struct fixture *f, const struct recurrent *r)
{
    const struct tensor all = whole_state(r);
    backend_write(f->device, &all, r->first);
    backend_clear(f->device, &r->op.out[0]);
}

/* A row as a run of its own, from where the text is. */
static void enqueue_row(struct fixture *f, const struct recurrent *r, int64_t t, int32_t from, int32_t to)
{
    const struct run one = {1, from, to};
    enqueue_runs(f, r, t, &one, 1);
}

/* The runs row by row, each row an operation. */
static void enqueue_singly(struct fixture *f, const struct recurrent *r)
{
    int64_t t = 0;
    for (int i = 0; i < N_RUN; i++)
        for (int64_t k = 0; k < runs[i].n; k++)
            enqueue_row(f, r, t++, k == 0 ? runs[i].from : runs[i].to, runs[i].to);
}

static const struct {
    enum op_kind kind;
    int n_decay;
} recurrent_kinds[] = {{OP_CONV, 0}, {OP_DELTA, 1}, {OP_DELTA, STATE_DK}, {OP_SSM, 1}, {OP_SSM, 0}, {OP_SSM, -1}};
enum { N_RECURRENT = sizeof recurrent_kinds / sizeof *recurrent_kinds };

static void runs_in_one_operation_give_the_bits_of_each_row_alone(void **state)
{
    struct fixture *f = *state;
    for (int k = 0; k < N_RECURRENT; k++) {
        struct recurrent r = open_recurrent(f, recurrent_kinds[k].kind, recurrent_kinds[k].n_decay);
        const struct tensor all = whole_state(&r);
        size_t n_out = tensor_bytes(&r.op.out[0]), n_state = tensor_bytes(&all);
        char *out[2] = {malloc(n_out), malloc(n_out)}, *after[2] = {malloc(n_state), malloc(n_state)};
        begin_state(f, &r);
        enqueue_singly(f, &r);
        read_back(f, &r.op.out[0], out[0]);
        read_back(f, &all, after[0]);
        for (int n_thread = 1; n_thread <= 3; n_thread += 2) {
            pool_use(f->pool, n_thread);
            begin_state(f, &r);
            enqueue_runs(f, &r, 0, runs, N_RUN);
            read_back(f, &r.op.out[0], out[1]);
            read_back(f, &all, after[1]);
            assert_memory_equal(out[1], out[0], n_out);
            assert_memory_equal(after[1], after[0], n_state); /* pages that no run left are as they were, too */
        }
        for (int i = 0; i < 2; i++) {
            free(out[i]);
            free(after[i]);
        }
        close_recurrent(f, &r);
    }
}

/* From -1 a run has what it has from a page of zeros; and the page that it began with stays what it was. */
static void a_run_begins_with_zeros_or_a_page_that_stays(void **state)
{
    struct fixture *f = *state;
    for (int k = 0; k < N_RECURRENT; k++) {
        struct recurrent r = open_recurrent(f, recurrent_kinds[k].kind, recurrent_kinds[k].n_decay);
        const int64_t n_part = r.op.state[0].page.ne[2];
        size_t n_out = tensor_bytes(&r.op.out[0]);
        char *want = malloc(n_out), *got = malloc(n_out);
        static const struct run zeros = {M, -1, 2}, page = {M, 6, 3};
        begin_state(f, &r);
        enqueue_runs(f, &r, 0, &zeros, 1);
        read_back(f, &r.op.out[0], want);
        for (int64_t part = 0; part < n_part; part++) {
            const struct tensor t = paged_part(&r.op.state[0], 6, part);
            backend_clear(f->device, &t);
        }
        backend_clear(f->device, &r.op.out[0]);
        enqueue_runs(f, &r, 0, &page, 1);
        read_back(f, &r.op.out[0], got);
        assert_memory_equal(got, want, n_out);
        for (int64_t part = 0; part < n_part; part++) {
            const struct tensor t = paged_part(&r.op.state[0], 6, part);
            float x[STATE_DK * HEAD_V * STATE_DV + N_CHANNEL * N_PAST];
            read_back(f, &t, x);
            for (int64_t i = 0; i < tensor_n_elem(&t); i++)
                assert_true(x[i] == 0);
        }
        free(want);
        free(got);
        close_recurrent(f, &r);
    }
}

/* ---- SLICE, copies ------------------------------------------------------------------------------------------- */

static void a_slice_takes_the_rows_that_are_listed(void **state)
{
    enum { N = 9, N_ROW = 3000, STEP = 7, OFF = 2, K = 5 };
    struct fixture *f = *state;
    static float x[N * N_ROW], y[K * N_ROW];
    static int32_t rows[N_ROW];
    fill(f, x, N * N_ROW);
    struct tensor tx = tensor_f32(f, N, N_ROW, 1, x);
    for (int64_t m = 1; m <= N_ROW / STEP; m += N_ROW / STEP - 1) { /* one row, and as many as run in parallel */
        for (int64_t i = 0; i < m; i++)
            rows[i] = (int32_t)(i * STEP + 4);
        struct tensor list = tensor_i32(f, m, 1, rows), ty = tensor_f32(f, K, m, 1, NULL);
        backend_enqueue(f->device, &(struct op){.kind = OP_SLICE, .in = {tx, list}, .out = {ty}, .slice_off = OFF});
        read_back(f, &ty, y);
        for (int64_t i = 0; i < m; i++)
            assert_memory_equal(y + i * K, x + rows[i] * N + OFF, K * sizeof *y);
        close_tensors(f, (struct tensor *[]){&list, &ty}, 2);
    }
    backend_buffer_close(f->device, &tx.buffer);
}

static void a_copy_within_a_buffer_leaves_the_rest_alone(void **state)
{
    enum { N = 100 };
    struct fixture *f = *state;
    float x[4 * N], y[4 * N];
    fill(f, x, 4 * N);
    struct tensor all = tensor_f32(f, N, 4, 1, x);
    const struct tensor from = tensor_rows(all, 3, 1), to = tensor_rows(all, 1, 1);
    backend_copy(f->device, &from, &to);
    read_back(f, &all, y);
    memcpy(x + N, x + 3 * N, N * sizeof *x);
    assert_memory_equal(y, x, sizeof x);
    backend_buffer_close(f->device, &all.buffer);
}

static void pieces_of_a_reserved_buffer_take_memory_one_by_one(void **state)
{
    struct fixture *f = *state;
    struct err e;
    struct buffer *buf;
    size_t before = mem_mapped_bytes(MEM_STATE);
    int32_t x[BUFFER_ALIGN / 4], y[BUFFER_ALIGN / 4];
    assert_int_equal(backend_buffer_reserve(f->device, 100 * BUFFER_ALIGN, BUFFER_ALIGN, 4, MEM_STATE, &buf, &e),
                     ERR_OK);
    assert_int_equal(mem_mapped_bytes(MEM_STATE), before);
    for (size_t i = 7; i < 10; i++) {
        const struct tensor t = {buf, i * BUFFER_ALIGN, ELEM_I32, {BUFFER_ALIGN / 4, 1, 1}};
        assert_true(backend_buffer_commit(f->device, buf, i * BUFFER_ALIGN, BUFFER_ALIGN));
        memset(x, (int)i, sizeof x);
        backend_write(f->device, &t, x);
        read_back(f, &t, y);
        assert_memory_equal(x, y, sizeof x);
    }
    assert_int_equal(mem_mapped_bytes(MEM_STATE), before + 3 * BUFFER_ALIGN);
    backend_buffer_decommit(f->device, buf, 8 * BUFFER_ALIGN, BUFFER_ALIGN);
    assert_int_equal(mem_mapped_bytes(MEM_STATE), before + 2 * BUFFER_ALIGN);
    assert_true(mem_set_limit(mem_total_bytes(), NULL, NULL));
    bool is_committed = backend_buffer_commit(f->device, buf, 0, BUFFER_ALIGN);
    mem_lift_limit();
    assert_false(is_committed);
    backend_buffer_close(f->device, &buf);
    assert_int_equal(mem_mapped_bytes(MEM_STATE), before);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_cpu, close_cpu)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(texts_are_stored_together_as_alone),
        TEST(a_row_lies_where_its_page_says),
        TEST(texts_are_attended_together_as_alone),
        TEST(latent_caches_are_attended_together_as_alone),
        TEST(chosen_positions_are_attended_together_as_alone),
        TEST(all_positions_chosen_is_no_choice),
        TEST(chosen_blocks_are_attended_together_as_alone),
        TEST(all_blocks_chosen_is_no_choice),
        TEST(other_blocks_do_not_count),
        TEST(an_index_chooses_the_best_blocks_for_each_head),
        TEST(an_index_of_equal_blocks_takes_the_first),
        TEST(what_is_seen_of_blocks_is_counted),
        TEST(other_positions_do_not_count),
        TEST(an_index_chooses_the_best),
        TEST(an_index_chooses_among_thousands),
        TEST(an_index_chooses_together_as_alone),
        TEST(an_index_of_equal_scores_takes_the_first),
        TEST(other_pages_give_the_same_bits),
        TEST(blocks_that_nobody_sees_need_not_be_listed),
        TEST(runs_in_one_operation_give_the_bits_of_each_row_alone),
        TEST(a_run_begins_with_zeros_or_a_page_that_stays),
        TEST(a_slice_takes_the_rows_that_are_listed),
        TEST(a_copy_within_a_buffer_leaves_the_rest_alone),
        TEST(pieces_of_a_reserved_buffer_take_memory_one_by_one),
    };
    return cmocka_run_group_tests_name("text ops", tests, NULL, NULL);
}
