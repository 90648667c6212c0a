/* The forward pass over tiny models of each kind of layer, on one device and on two that share the layers: how tokens
 * are cut into batches and ubatches, several texts in a batch, which rows of logits are asked for, drafts, batches that
 * fail, and its work space. */
#include <glob.h>
#include <stdio.h>

#include "device_fixture.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "store_fake.h"

enum { N_MOST = 1100, N_CTX = 1152 /* more than two ubatches */, N_IDS = N_MOST + 400 };

struct forward_fixture {
    struct fixture *f;
    struct backend *second; /* computes the layers from `cut` on; NULL: there is one device */
    int64_t cut;            /* 0: a place that suits the model */
    struct gguf *g;
    char path[512];
    struct store *directory; /* says where the experts lie */
    struct store_fake_file file;
    struct store *store; /* the same bytes in memory */
    struct model *m;
    struct state_pool *pool;
    int64_t interval; /* of checkpoints */
    struct model_state *s;
    struct model_work *w;
    int32_t ids[N_IDS];
    struct err e;
};

static int open_forward(void **state)
{
    struct forward_fixture *t = calloc(1, sizeof *t);
    *state = t;
    return open_cpu((void **)&t->f);
}

static int open_divided(void **state)
{
    if (open_forward(state) != 0)
        return -1;
    struct forward_fixture *t = *state;
    return backend_cpu_open(&t->second, t->f->pool, best_kernels(), &t->e) == ERR_OK ? 0 : -1;
}

static void close_model(struct forward_fixture *t)
{
    model_work_close(&t->w);
    model_state_close(&t->s);
    if (t->pool)
        assert_int_equal(state_pool_used_bytes(t->pool), 0);
    state_pool_close(&t->pool);
    model_close(&t->m);
    store_close(&t->store);
    store_close(&t->directory);
    gguf_close(&t->g);
    free((void *)(uintptr_t)t->file.bytes);
    t->file.bytes = NULL;
}

static int close_forward(void **state)
{
    struct forward_fixture *t = *state;
    void *f = t->f;
    close_model(t);
    backend_close(&t->second);
    free(t);
    return close_cpu(&f);
}

/* In gemma4_shared the second layer lends its cache to later ones. */
static int64_t cut_of(const struct forward_fixture *t, const char *name)
{
    return t->cut ? t->cut : !strcmp(name, "gemma4_shared") ? 1 : 2;
}

static err_code load_model(struct forward_fixture *t, const char *name, double share)
{
    const struct model_stage stages[] = {{.device = t->f->device, .end = cut_of(t, name)}, {.device = t->second}};
    const struct model_device devices[] = {{.device = t->f->device, .pool = t->f->pool},
                                           {.device = t->second, .pool = t->f->pool}};
    struct model_load_params p = {
        .device = t->f->device, .pool = t->f->pool, .store = t->store, .expert_budget_share = share};
    if (t->second) {
        p.stages = stages;
        p.devices = devices;
        p.n_stage = p.n_device = 2;
    }
    return model_load(&t->m, t->g, &p, &t->e);
}

/* The files of a golden model. */
static void open_files(struct forward_fixture *t, const char *name)
{
    close_model(t);
    snprintf(t->path, sizeof t->path, "%s/%s.gguf", GOLDEN, name);
    assert_int_equal(gguf_open(&t->g, t->path, &t->e), ERR_OK);
    assert_int_equal(store_open_gguf(&t->directory, t->g, &t->e), ERR_OK);
    size_t n = (size_t)gguf_file_bytes(t->g, 0);
    void *bytes = malloc(n);
    const struct store_range all = {.n_bytes = n, .dst = bytes};
    assert_int_equal(store_read(t->directory, &all, 1, &t->e), ERR_OK);
    t->file = (struct store_fake_file){t->path, bytes, n};
    assert_int_equal(store_open_fake(&t->store, &t->file, 1, &t->e), ERR_OK);
    store_fake_set_layers(t->store, store_get_layer(t->directory, 0), store_n_layers(t->directory));
}

/* A golden model with slots for `share` of its experts (0: all). */
static void open_model(struct forward_fixture *t, const char *name, double share)
{
    open_files(t, name);
    if (load_model(t, name, share) != ERR_OK)
        fail_msg("%s: %s", name, t->e.text);
    for (int i = 0; i < t->m->n_device; i++)
        assert_int_equal(experts_open(t->m->devices[i].experts, 0, &t->e), ERR_OK);
    for (int i = 0; i < N_IDS; i++)
        t->ids[i] = (int32_t)((i * 37 + i * i) % t->m->n_vocab);
}

/* An empty pool, of bytes for so much state. */
static void open_pool(struct forward_fixture *t, size_t max_bytes)
{
    const struct state_pool_params p = {
        .type = ELEM_F16, .max_bytes = max_bytes, .interval = t->interval, .max_checkpoint_bytes = max_bytes / 4};
    model_state_close(&t->s);
    state_pool_close(&t->pool);
    assert_int_equal(state_pool_create(&t->pool, t->m, &p, &t->e), ERR_OK);
}

/* An empty text, to be fed in batches of up to n_batch tokens. */
static void start(struct forward_fixture *t, int64_t n_batch)
{
    model_work_close(&t->w);
    open_pool(t, 64 << 20);
    assert_int_equal(model_state_create(&t->s, t->pool, N_CTX, &t->e), ERR_OK);
    assert_int_equal(model_work_create(&t->w, t->m, n_batch, 4, &t->e), ERR_OK);
}

static err_code feed_with(struct forward_fixture *t, const struct model_forward_params *p, int64_t n, int64_t n_out)
{
    const struct model_rows row = {.state = t->s, .ids = t->ids + model_state_pos(t->s), .n = n, .n_out = n_out};
    return model_forward(t->m, t->w, p, &row, 1, &t->e);
}

static err_code feed(struct forward_fixture *t, int64_t n, int64_t n_out)
{
    static const struct model_forward_params p = {.sort_cutoff = 8};
    return feed_with(t, &p, n, n_out);
}

/* The logits of n of the rows that the last batch kept. Owned by the caller (free). */
static float *rows(struct forward_fixture *t, int64_t first, int64_t n)
{
    float *x = malloc((size_t)(n * t->m->n_vocab) * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        model_logits(t->m, t->w, first + i, 1);
        assert_int_equal(model_logits_row(t->w, 0, x + i * t->m->n_vocab, &t->e), ERR_OK);
    }
    return x;
}

static void expect_rows(struct forward_fixture *t, const float *got, const float *want, int64_t n)
{
    assert_memory_equal(got, want, (size_t)(n * t->m->n_vocab) * sizeof *got);
}

static void forget_experts(struct forward_fixture *t)
{
    for (int i = 0; i < t->m->n_device; i++)
        experts_forget(t->m->devices[i].experts);
}

/* ---- batches ------------------------------------------------------------------------------------------------- */

/* The logits of the last of n tokens, fed in batches of n_batch. */
static float *logits_of(struct forward_fixture *t, int64_t n, int64_t n_batch)
{
    start(t, n_batch);
    for (int64_t rest; (rest = n - model_state_pos(t->s)) > 0;)
        assert_int_equal(feed(t, rest < n_batch ? rest : n_batch, 1), ERR_OK);
    return rows(t, 0, 1);
}

static float *last_logits(struct forward_fixture *t, int64_t n_batch)
{
    return logits_of(t, N_MOST, n_batch);
}

static const char *const models[] = {
    "llama",            /* dense */
    "gpt_oss",          /* windows, sinks, biases */
    "llama4",           /* attention in chunks, experts whose inputs are weighed */
    "arctic",           /* a dense branch beside experts that see the layer's input */
    "grovemoe",         /* small experts beside the routed ones */
    "gemma4",           /* windows, a dense branch beside the experts */
    "gemma4_shared",    /* windowed caches that layers share, token embeddings */
    "deepseek2_latent", /* latent attention */
    "qwen35moe",        /* recurrent layers */
    "jamba",            /* recurrent layers whose inputs come of what is convolved */
    "minimax_01",       /* recurrent layers without a convolution, parts that are added to what they see */
    "kimi_linear",      /* both, with more decays */
    "kimi_k3",          /* the same with banked residuals */
    "glm5next",         /* both, mixed streams, an index of runs */
    "qwen4exp",         /* recurrent layers, gated streams, an index of runs, n-grams */
};
enum { N_MODEL = sizeof models / sizeof *models };

static void batches_and_ubatches_change_no_bit(void **state)
{
    static const int64_t n_batches[] = {1, 64, MODEL_UBATCH - 1, MODEL_UBATCH + 1, N_MOST};
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        float *want = last_logits(t, MODEL_UBATCH);
        for (size_t j = 0; j < sizeof n_batches / sizeof *n_batches; j++) {
            float *got = last_logits(t, n_batches[j]);
            expect_rows(t, got, want, 1);
            free(got);
        }
        free(want);
    }
}

static void streamed_experts_change_no_bit(void **state)
{
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        if (!t->m->experts)
            continue;
        float *want = last_logits(t, MODEL_UBATCH);
        open_model(t, models[i], 0.5);
        assert_false(experts_all_resident(t->m->experts));
        for (int64_t n_batch = 100; n_batch <= N_MOST; n_batch += N_MOST - 100) {
            float *got = last_logits(t, n_batch);
            expect_rows(t, got, want, 1);
            free(got);
        }
        free(want);
    }
}

static void only_the_rows_that_are_asked_for_are_kept(void **state)
{
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        start(t, 600);
        assert_int_equal(feed(t, 600, 600), ERR_OK);
        float *want = rows(t, 594, 6), *four = malloc((size_t)(4 * t->m->n_vocab) * sizeof *four);
        for (int64_t n_out = 1; n_out <= 6; n_out++) {
            start(t, 600);
            assert_int_equal(feed(t, 600, n_out), ERR_OK);
            float *got = rows(t, 0, n_out);
            expect_rows(t, got, want + (6 - n_out) * t->m->n_vocab, n_out);
            free(got);
        }
        model_logits(t->m, t->w, 1, 4); /* several at a time */
        for (int64_t j = 0; j < 4; j++)
            assert_int_equal(model_logits_row(t->w, j, four + j * t->m->n_vocab, &t->e), ERR_OK);
        expect_rows(t, four, want + t->m->n_vocab, 4);
        free(four);
        free(want);
    }
}

static void a_batch_that_nobody_asks_about_is_remembered(void **state)
{
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        start(t, 100);
        assert_int_equal(feed(t, 100, 100), ERR_OK);
        assert_int_equal(feed(t, 1, 1), ERR_OK);
        float *want = rows(t, 0, 1);
        start(t, 100);
        assert_int_equal(feed(t, 100, 0), ERR_OK);
        assert_int_equal(model_state_pos(t->s), 100);
        assert_int_equal(feed(t, 1, 1), ERR_OK);
        float *got = rows(t, 0, 1);
        expect_rows(t, got, want, 1);
        free(got);
        free(want);
    }
}

struct hidden {
    int64_t n_embd, n_layer;
    float x[8][64];
};

static void keep_hidden(void *user, int64_t layer, const float *x)
{
    struct hidden *h = user;
    assert_int_equal(layer, h->n_layer++);
    memcpy(h->x[layer], x, (size_t)h->n_embd * sizeof *x);
}

static void each_layer_reports_the_last_tokens_state(void **state)
{
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        struct hidden batch = {.n_embd = t->m->n_embd}, single = batch;
        struct model_forward_params p = {.sort_cutoff = 8, .hidden = keep_hidden, .hidden_user = &batch};
        start(t, 600);
        assert_int_equal(feed_with(t, &p, 600, 600), ERR_OK);
        assert_int_equal(batch.n_layer, t->m->n_layer);
        start(t, 599);
        assert_int_equal(feed(t, 599, 0), ERR_OK);
        p.hidden_user = &single;
        assert_int_equal(feed_with(t, &p, 1, 1), ERR_OK);
        assert_int_equal(single.n_layer, t->m->n_layer);
        for (int64_t l = 0; l < t->m->n_layer; l++)
            assert_memory_equal(batch.x[l], single.x[l], (size_t)t->m->n_embd * sizeof(float));
    }
}

static void going_back_and_on_gives_the_same_bits(void **state)
{
    struct forward_fixture *t = *state;
    for (int i = 0; i < 2 * N_MODEL; i++) {
        t->interval = i % 2 ? 64 : 0;
        open_model(t, models[i / 2], 0);
        bool is_recurrent = model_is_recurrent(t->m);
        start(t, 64);
        for (int j = 0; j < 6; j++)
            assert_int_equal(feed(t, 64, 1), ERR_OK);
        float *want = rows(t, 0, 1);
        int64_t pos = model_state_truncate(t->s, 384 - 50);
        assert_int_equal(pos, !is_recurrent ? 384 - 50 : t->interval ? 320 : 0);
        while (model_state_pos(t->s) < 384) {
            int64_t rest = 384 - model_state_pos(t->s);
            assert_int_equal(feed(t, rest < 64 ? rest : 64, 1), ERR_OK);
        }
        float *got = rows(t, 0, 1);
        expect_rows(t, got, want, 1);
        free(got);
        free(want);
    }
}

/* ---- several devices ------------------------------------------------------------------------------------------ */

/* Tokens of the text that all families compute: more than an ubatch. */
enum { N_FAMILIES = MODEL_UBATCH + 40 };

/* The logits of one device, and those of two wherever the layers are divided, with all experts and with half of them.
 */
static void divide_everywhere(struct forward_fixture *t, const char *name)
{
    struct backend *second = t->second;
    t->second = NULL;
    open_model(t, name, 0);
    int64_t n_layer = !strcmp(name, "gemma4_shared") ? 2 : t->m->n_layer;
    float *want = logits_of(t, N_FAMILIES, MODEL_UBATCH);
    t->second = second;
    for (t->cut = 1; t->cut < n_layer; t->cut++) {
        bool streams = t->cut % 2;
        open_model(t, name, streams ? 0.5 : 0);
        float *got = logits_of(t, N_FAMILIES, streams ? 300 : N_FAMILIES);
        expect_rows(t, got, want, 1);
        free(got);
    }
    free(want);
}

static void layers_of_all_families_on_two_devices_give_the_bits_of_one(void **state)
{
    struct forward_fixture *t = *state;
    glob_t found;
    assert_int_equal(glob(GOLDEN "/*.gguf", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        char stem[64];
        snprintf(stem, sizeof stem, "%.*s", (int)(strlen(name) - strlen(".gguf")), name);
        if (strncmp(stem, "q_", 2) != 0) /* these differ in types of weights alone */
            divide_everywhere(t, stem);
    }
    globfree(&found);
}

/* A saved state. */
struct saved {
    char *bytes;
    size_t n, at;
};

static err_code put(void *user, void *bytes, size_t n, struct err *e)
{
    struct saved *x = user;
    x->bytes = realloc(x->bytes, x->n + n);
    memcpy(x->bytes + x->n, bytes, n);
    x->n += n;
    return ERR_OK;
}

static err_code get(void *user, void *bytes, size_t n, struct err *e)
{
    struct saved *x = user;
    assert_true(n <= x->n - x->at);
    memcpy(bytes, x->bytes + x->at, n);
    x->at += n;
    return ERR_OK;
}

/* Saves a text of 200 tokens, and returns the logits after another one. Owned by the caller. */
static float *save_and_go_on(struct forward_fixture *t, struct saved *out)
{
    start(t, 200);
    assert_int_equal(feed(t, 200, 0), ERR_OK);
    assert_int_equal(model_state_save(t->s, 0, 200, put, out, &t->e), ERR_OK);
    assert_int_equal(feed(t, 1, 1), ERR_OK);
    return rows(t, 0, 1);
}

static void a_text_saved_on_one_device_goes_on_on_two(void **state)
{
    struct forward_fixture *t = *state;
    struct backend *second = t->second;
    for (int i = 0; i < N_MODEL; i++) {
        struct saved one = {0}, two = {0};
        t->second = NULL;
        open_model(t, models[i], 0);
        free(save_and_go_on(t, &one));
        t->second = second;
        open_model(t, models[i], 0);
        float *want = save_and_go_on(t, &two);
        assert_int_equal(one.n, two.n);
        assert_memory_equal(one.bytes, two.bytes, one.n);
        start(t, 200);
        assert_int_equal(model_state_load(t->s, 200, get, &one, &t->e), ERR_OK);
        model_state_load_end(t->s, true);
        assert_int_equal(feed(t, 1, 1), ERR_OK);
        float *got = rows(t, 0, 1);
        expect_rows(t, got, want, 1);
        free(got);
        free(want);
        free(one.bytes);
        free(two.bytes);
    }
}

static void each_device_has_its_layers_alone(void **state)
{
    struct forward_fixture *t = *state;
    struct backend *const devices[] = {t->f->device, t->second};
    size_t all[2] = {0}, most[2] = {0}, first = 0;
    for (t->cut = 1; t->cut <= 4; t->cut += 3) {
        open_model(t, "qwen35moe", 0);
        start(t, 64);
        assert_int_equal(feed(t, 64, 1), ERR_OK);
        size_t experts[2], state_bytes[2];
        for (int i = 0; i < 2; i++) {
            experts[i] = backend_held_bytes(devices[i], MEM_EXPERTS);
            state_bytes[i] = backend_held_bytes(devices[i], MEM_STATE);
            assert_true(experts[i] > 0 && state_bytes[i] > 0 && backend_held_bytes(devices[i], MEM_WEIGHTS) > 0);
        }
        assert_int_equal(state_pool_stage_bytes(t->pool, 0, N_CTX, 64) + state_pool_stage_bytes(t->pool, 1, N_CTX, 64),
                         state_pool_text_bytes(t->pool, N_CTX, 64));
        bool is_first = t->cut == 1;
        first = is_first ? experts[0] : first;
        most[is_first] = experts[is_first];
        all[is_first] = experts[0] + experts[1];
        assert_true(state_bytes[is_first] > state_bytes[!is_first]);
    }
    assert_int_equal(all[0], all[1]);
    assert_int_equal(most[0], 4 * first); /* of five layers */
    assert_int_equal(most[1], 4 * first);
}

static void layers_that_can_not_be_divided_so_are_refused(void **state)
{
    struct forward_fixture *t = *state;
    open_files(t, "gemma4_shared");
    t->cut = 3;
    assert_int_equal(load_model(t, "gemma4_shared", 0), ERR_USAGE);
    assert_non_null(strstr(t->e.text, "uses the keys and values of layer"));
    t->cut = 100;
    assert_int_equal(load_model(t, "gemma4_shared", 0), ERR_USAGE);
    assert_non_null(strstr(t->e.text, "can't be divided among 2 devices"));
}

/* ---- several texts -------------------------------------------------------------------------------------------- */

enum { MAX_TEXT = 6 };

/* A text's part in a batch: text j's tokens are the fixture's from 61 * j on. */
struct part {
    int64_t begun, n, n_out; /* tokens before, of the batch, and of these with results */
    bool is_draft;
};

static const int32_t *tokens_of(const struct forward_fixture *t, int j, int64_t pos)
{
    return t->ids + 61 * j + pos;
}

static void open_text(struct forward_fixture *t, struct model_state **s)
{
    assert_int_equal(model_state_create(s, t->pool, N_CTX, &t->e), ERR_OK);
}

static struct model_rows rows_of(const struct forward_fixture *t, struct model_state *s, int j, const struct part *p)
{
    return (struct model_rows){
        .state = s, .ids = tokens_of(t, j, model_state_pos(s)), .n = p->n, .n_out = p->n_out, .is_draft = p->is_draft};
}

static err_code forward(struct forward_fixture *t, const struct model_rows *rows, int64_t n)
{
    static const struct model_forward_params p = {.sort_cutoff = 8};
    return model_forward(t->m, t->w, &p, rows, n, &t->e);
}

/* Brings text j to a position, alone. */
static void bring(struct forward_fixture *t, struct model_state *s, int j, int64_t pos)
{
    struct model_rows row = {.state = s, .ids = tokens_of(t, j, 0), .n = pos};
    if (pos)
        assert_int_equal(forward(t, &row, 1), ERR_OK);
}

/* What text j has alone: the logits of its part. Owned by the caller. */
static float *alone(struct forward_fixture *t, int j, const struct part *p)
{
    struct model_state *s;
    open_text(t, &s);
    bring(t, s, j, p->begun);
    const struct model_rows row = rows_of(t, s, j, p);
    assert_int_equal(forward(t, &row, 1), ERR_OK);
    float *x = rows(t, 0, p->n_out);
    model_state_close(&s);
    return x;
}

/* The texts' parts in one batch, and then each alone. */
static void together_and_alone(struct forward_fixture *t, const struct part *parts, int n)
{
    struct model_state *s[MAX_TEXT];
    struct model_rows batch[MAX_TEXT] = {{0}};
    int64_t n_out = 0;
    for (int j = 0; j < n; j++) {
        open_text(t, &s[j]);
        bring(t, s[j], j, parts[j].begun);
        batch[j] = rows_of(t, s[j], j, &parts[j]);
        batch[j].is_decode = parts[j].n == 1 && (j == 0 || batch[j - 1].is_decode);
        n_out += parts[j].n_out;
    }
    assert_int_equal(forward(t, batch, n), ERR_OK);
    float *got = rows(t, 0, n_out), *at = got;
    for (int j = 0; j < n; j++) {
        float *want = alone(t, j, &parts[j]);
        assert_int_equal(model_state_pos(s[j]), parts[j].begun + parts[j].n);
        expect_rows(t, at, want, parts[j].n_out);
        at += parts[j].n_out * t->m->n_vocab;
        free(want);
        model_state_close(&s[j]);
    }
    free(got);
}

static void texts_in_one_batch_have_the_bits_of_each_alone(void **state)
{
    static const struct part singles[] = {{0, 1, 1, 0}, {63, 1, 1, 0}, {64, 1, 1, 0}, {700, 1, 1, 0}, {5, 1, 1, 0}};
    static const struct part mixed[] = {{513, 1, 1, 0}, {40, 1, 1, 0},   {120, 9, 9, 1},
                                        {0, 70, 1, 0},  {64, 128, 3, 0}, {300, 5, 5, 1}};
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        start(t, 800);
        together_and_alone(t, singles, 5);
        together_and_alone(t, singles + 2, 2);
        together_and_alone(t, mixed, 6);
        together_and_alone(t, mixed + 1, 3);
    }
}

/* Ubatches end within texts, and have the end of one and the beginning of another. */
static void texts_meet_in_ubatches_and_part_again(void **state)
{
    static const struct part parts[] = {{10, 500, 2, 0}, {90, 20, 20, 1}, {0, 520, 1, 0}, {70, 600, 4, 0}};
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        t->interval = i % 2 ? 100 : 0; /* with checkpoints inside */
        open_model(t, models[i], 0);
        start(t, 2000);
        together_and_alone(t, parts, 4);
    }
}

static void results_come_in_the_order_of_texts(void **state)
{
    static const struct part parts[] = {{9, 1, 0, 0}, {30, 4, 2, 0}, {2, 3, 0, 0}, {0, 5, 5, 0}};
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        start(t, 64);
        together_and_alone(t, parts, 4);
    }
}

/* ---- drafts -------------------------------------------------------------------------------------------------- */

static uint64_t n_products(const struct forward_fixture *t)
{
    struct backend_counters c = backend_counters(t->f->device);
    return c.op[OP_MATMUL].n + c.op[OP_EXPERTS].n + c.op[OP_ROUTE].n + c.op[OP_ATTENTION].n + c.op[OP_HEADS].n;
}

/* Goes back to `pos` without a product, and gives text j other tokens: the bits are those of a text that never had the
 * draft. */
static void go_back_and_on(struct forward_fixture *t, struct model_state *s, int j, int64_t pos)
{
    enum { OTHER = 7 };
    struct model_state *fresh;
    uint64_t before = n_products(t);
    assert_int_equal(model_go_back(t->m, t->w, s, pos), pos);
    assert_int_equal(model_state_pos(s), pos);
    assert_int_equal(n_products(t), before);
    struct model_rows row = {.state = s, .ids = tokens_of(t, j, pos + OTHER), .n = 3, .n_out = 3};
    assert_int_equal(forward(t, &row, 1), ERR_OK);
    float *got = rows(t, 0, 3);
    open_text(t, &fresh);
    bring(t, fresh, j, pos);
    row.state = fresh;
    assert_int_equal(forward(t, &row, 1), ERR_OK);
    float *want = rows(t, 0, 3);
    expect_rows(t, got, want, 3);
    model_state_close(&fresh);
    free(got);
    free(want);
}

/* Puts texts' parts into one batch; text j then goes back to each of its tokens. */
static void draft_and_go_back(struct forward_fixture *t, const struct part *parts, int n, int j)
{
    for (int64_t pos = parts[j].begun; pos <= parts[j].begun + parts[j].n; pos++) {
        struct model_state *s[MAX_TEXT];
        struct model_rows batch[MAX_TEXT];
        for (int i = 0; i < n; i++) {
            open_text(t, &s[i]);
            bring(t, s[i], i, parts[i].begun);
            batch[i] = rows_of(t, s[i], i, &parts[i]);
        }
        assert_int_equal(forward(t, batch, n), ERR_OK);
        int64_t half = parts[j].begun + parts[j].n / 2;
        if (pos < half && half % 2) /* in two steps */
            assert_int_equal(model_go_back(t->m, t->w, s[j], half), half);
        go_back_and_on(t, s[j], j, pos);
        for (int i = 0; i < n; i++)
            model_state_close(&s[i]);
    }
}

static void drafts_are_taken_back_to_any_token_without_a_product(void **state)
{
    static const struct part parts[] = {{70, 1, 1, 0}, {20, 5, 5, 1}, {123, 9, 9, 1}, {0, 4, 4, 1}, {90, 30, 1, 0}};
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        t->interval = i % 2 ? 10 : 0;
        open_model(t, models[i], 0);
        start(t, 200);
        for (int j = 1; j <= 3; j++)
            draft_and_go_back(t, parts, 5, j);
    }
}

static void a_draft_across_ubatches_is_taken_back_too(void **state)
{
    static const struct part parts[] = {{0, 500, 1, 0}, {30, 4, 4, 1}, {70, 14, 14, 1}, {40, 100, 1, 0}};
    struct forward_fixture *t = *state;
    open_model(t, "qwen35moe", 0);
    start(t, 1000);
    draft_and_go_back(t, parts, 4, 2);
    draft_and_go_back(t, parts, 4, 1);
}

/* A draft of text 0 after 100 tokens, and then a batch with text 1 in it: `other`. */
static struct model_state *draft_before(struct forward_fixture *t, const struct part *other)
{
    static const struct part draft = {100, 8, 8, 1};
    struct model_state *s, *o;
    open_text(t, &s);
    open_text(t, &o);
    bring(t, s, 0, draft.begun);
    bring(t, o, 1, other->begun);
    struct model_rows row = rows_of(t, s, 0, &draft);
    assert_int_equal(forward(t, &row, 1), ERR_OK);
    row = rows_of(t, o, 1, other);
    assert_int_equal(forward(t, &row, 1), ERR_OK);
    model_state_close(&o);
    return s;
}

static void a_draft_outlasts_batches_without_drafts(void **state)
{
    static const struct part other = {0, 64, 1, 0};
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        start(t, 128);
        struct model_state *s = draft_before(t, &other);
        go_back_and_on(t, s, 0, 105);
        model_state_close(&s);
    }
}

static void a_draft_that_another_has_displaced_goes_back_to_a_checkpoint(void **state)
{
    static const struct part other = {0, 5, 5, 1};
    struct forward_fixture *t = *state;
    t->interval = 32;
    open_model(t, "qwen35moe", 0);
    start(t, 128);
    struct model_state *s = draft_before(t, &other);
    assert_int_equal(model_go_back(t->m, t->w, s, 105), 96); /* three intervals */
    go_back_and_on(t, s, 0, 96);
    model_state_close(&s);
}

static void a_longer_draft_than_before_is_kept_as_well(void **state)
{
    struct forward_fixture *t = *state;
    struct model_state *s;
    open_model(t, "qwen35moe", 0);
    start(t, 128);
    open_text(t, &s);
    bring(t, s, 0, 10);
    for (int64_t n = 1; n <= 64; n *= 2) {
        int64_t pos = model_state_pos(s);
        const struct part p = {pos, n, n, 1};
        const struct model_rows row = rows_of(t, s, 0, &p);
        assert_int_equal(forward(t, &row, 1), ERR_OK);
        assert_int_equal(model_go_back(t->m, t->w, s, pos + n / 2), pos + n / 2);
    }
    float *want = alone(t, 0, &(const struct part){10, 64, 1, 0}); /* 10 + 0 + 1 + 2 + 4 + ... + 32 are 73: the 74th */
    const struct model_rows row = rows_of(t, s, 0, &(const struct part){73, 1, 1, 0});
    assert_int_equal(forward(t, &row, 1), ERR_OK);
    float *got = rows(t, 0, 1);
    expect_rows(t, got, want, 1);
    free(got);
    free(want);
    model_state_close(&s);
}

/* ---- failures ------------------------------------------------------------------------------------------------ */

/* Fails one read of each expert of a layer's down matrices. */
static void fail_layer(struct forward_fixture *t, int layer)
{
    const struct store_layer *l = store_get_layer(t->store, layer);
    const struct store_matrix *down = &l->part[EXPERT_DOWN];
    for (int i = 0; i < l->n_expert; i++)
        store_fake_add_fault(t->store, (struct store_fault){.kind = STORE_FAULT_ERROR,
                                                            .offset = down->offset + (uint64_t)i * down->stride_bytes,
                                                            .n_times = 1});
}

/* Feeds 100 tokens, fails with the next 20 in the last layer, and goes on from where it was. */
static void fail_and_go_on(struct forward_fixture *t, const char *name)
{
    open_model(t, name, 0.4);
    start(t, 100);
    assert_int_equal(feed(t, 100, 0), ERR_OK);
    assert_int_equal(feed(t, 20, 1), ERR_OK);
    float *want = rows(t, 0, 1);
    assert_int_equal(model_state_truncate(t->s, 0), 0);
    assert_int_equal(feed(t, 100, 0), ERR_OK);
    forget_experts(t);
    fail_layer(t, (int)t->m->n_layer - 1);
    assert_int_equal(feed(t, 20, 1), ERR_IO);
    assert_non_null(strstr(t->e.text, "expert"));
    store_fake_clear_faults(t->store);
    assert_int_equal(model_state_pos(t->s), 100);
    assert_int_equal(feed(t, 20, 1), ERR_OK);
    float *got = rows(t, 0, 1);
    expect_rows(t, got, want, 1);
    free(got);
    free(want);
}

static void after_a_failure_a_text_is_as_before(void **state)
{
    fail_and_go_on(*state, "llama_moe");
    fail_and_go_on(*state, "gpt_oss");
    fail_and_go_on(*state, "deepseek2_latent");
    fail_and_go_on(*state, "qwen35moe");
}

/* Three texts of all sorts of batches, and what they have after a batch that fails and one that does not. */
struct three {
    struct model_state *s[3];
    struct model_rows batch[3];
    float *want[3];
};

static const struct part three_parts[] = {{100, 1, 1, 0}, {40, 20, 20, 1}, {70, 60, 1, 0}};

static struct three open_three(struct forward_fixture *t)
{
    struct three x;
    for (int j = 0; j < 3; j++) {
        x.want[j] = alone(t, j, &three_parts[j]);
        open_text(t, &x.s[j]);
        bring(t, x.s[j], j, three_parts[j].begun);
        x.batch[j] = rows_of(t, x.s[j], j, &three_parts[j]);
    }
    return x;
}

/* All are where they were, and what comes next has the bits of texts to which nothing has happened. */
static void go_on_and_close(struct forward_fixture *t, struct three *x)
{
    int64_t first = 0;
    for (int j = 0; j < 3; j++)
        assert_int_equal(model_state_pos(x->s[j]), three_parts[j].begun);
    assert_int_equal(forward(t, x->batch, 3), ERR_OK);
    for (int j = 0; j < 3; j++) {
        float *got = rows(t, first, three_parts[j].n_out);
        expect_rows(t, got, x->want[j], three_parts[j].n_out);
        first += three_parts[j].n_out;
        free(got);
        free(x->want[j]);
        model_state_close(&x->s[j]);
    }
}

static void after_a_failure_all_texts_are_as_before(void **state)
{
    static const char *const with_experts[] = {"llama_moe", "gpt_oss", "gemma4_shared", "deepseek2_latent",
                                               "qwen35moe"};
    struct forward_fixture *t = *state;
    for (int i = 0; i < 5; i++) {
        t->interval = i % 2 ? 16 : 0;
        open_model(t, with_experts[i], 0.6);
        if (!t->m->experts)
            continue;
        start(t, 128);
        struct three x = open_three(t);
        forget_experts(t);
        fail_layer(t, store_n_layers(t->directory) - 1);
        assert_int_equal(forward(t, x.batch, 3), ERR_IO);
        assert_non_null(strstr(t->e.text, "expert"));
        store_fake_clear_faults(t->store);
        go_on_and_close(t, &x);
    }
}

/* Rows of the table that the batch needs, one after the other. */
static void a_table_of_ngrams_that_cannot_be_read_loses_no_text(void **state)
{
    enum { ROWS = 97 };
    struct forward_fixture *t = *state;
    int n_failed = 0;
    open_model(t, "qwen4exp", 0);
    start(t, 128);
    const struct ngram_table *g = &t->m->ngram;
    for (uint64_t row = 0; row < ROWS; row += 7) {
        struct three x = open_three(t);
        store_fake_add_fault(t->store, (struct store_fault){.kind = row % 2 ? STORE_FAULT_ERROR : STORE_FAULT_SHORT,
                                                            .file = g->file,
                                                            .offset = g->offset + row * g->row_bytes,
                                                            .n_times = 1});
        err_code code = forward(t, x.batch, 3);
        store_fake_clear_faults(t->store);
        if (code != ERR_OK) {
            n_failed++;
            assert_int_equal(code, ERR_IO);
            assert_non_null(strstr(t->e.text, "tensor per_layer_token_embd.weight"));
        } else {
            for (int j = 0; j < 3; j++)
                assert_int_equal(model_state_truncate(x.s[j], 0), 0);
            for (int j = 0; j < 3; j++)
                bring(t, x.s[j], j, three_parts[j].begun);
        }
        go_on_and_close(t, &x);
    }
    assert_true(n_failed >= 5);
}

static bool count_down(void *user)
{
    return --*(int *)user < 0;
}

static void wherever_it_is_cancelled_all_texts_are_as_before(void **state)
{
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        t->interval = i % 2 ? 16 : 0;
        open_model(t, models[i], 0);
        start(t, 128);
        struct three x = open_three(t);
        for (int n = 0; n < t->m->n_layer; n++) { /* asked in each layer */
            int left = n;
            const struct model_forward_params p = {.sort_cutoff = 8, .cancel = {count_down, &left}};
            assert_int_equal(model_forward(t->m, t->w, &p, x.batch, 3, &t->e), ERR_CANCELLED);
        }
        go_on_and_close(t, &x);
    }
}

static void a_pool_without_room_for_one_text_begins_none(void **state)
{
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        struct model_state *s[2];
        if (!strncmp(models[i], "kimi_", 5)) /* whose recurrent state takes more than a cache of 640 tokens */
            continue;
        open_model(t, models[i], 0);
        start(t, 1024);
        open_pool(t, state_pool_text_bytes(t->pool, 640, 640));
        for (int j = 0; j < 2; j++) {
            open_text(t, &s[j]);
            bring(t, s[j], j, 60);
        }
        size_t used = state_pool_used_bytes(t->pool);
        const struct model_rows batch[] = {{.state = s[0], .ids = tokens_of(t, 0, 60), .n = 100, .n_out = 1},
                                           {.state = s[1], .ids = tokens_of(t, 1, 60), .n = 900, .n_out = 1}};
        assert_int_equal(forward(t, batch, 2), ERR_LIMIT);
        assert_int_equal(state_pool_used_bytes(t->pool), used);
        assert_int_equal(forward(t, batch, 1), ERR_OK);
        float *got = rows(t, 0, 1), *want;
        model_state_close(&s[0]);
        model_state_close(&s[1]);
        want = alone(t, 0, &(const struct part){60, 100, 1, 0});
        expect_rows(t, got, want, 1);
        free(got);
        free(want);
    }
}

/* ---- work space ---------------------------------------------------------------------------------------------- */

static void work_space_is_resized_without_a_change_of_bits(void **state)
{
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        start(t, 600); /* the states of some models are for batches of this */
        assert_int_equal(feed(t, 600, 1), ERR_OK);
        float *want = rows(t, 0, 1);
        start(t, 600);
        assert_int_equal(model_work_resize(t->w, t->m, 64, &t->e), ERR_OK);
        assert_int_equal(feed(t, 64, 0), ERR_OK);
        assert_int_equal(model_work_resize(t->w, t->m, 536, &t->e), ERR_OK);
        assert_int_equal(feed(t, 536, 1), ERR_OK);
        float *got = rows(t, 0, 1);
        expect_rows(t, got, want, 1);
        free(got);
        free(want);
    }
}

static void a_token_more_takes_what_it_is_said_to_take(void **state)
{
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        start(t, 1024);
        size_t token_bytes = model_work_token_bytes(t->w), before = mem_mapped_bytes(MEM_SCRATCH);
        assert_int_equal(model_work_resize(t->w, t->m, 65536, &t->e), ERR_OK);
        double grown = (double)(mem_mapped_bytes(MEM_SCRATCH) - before), said = 64512.0 * (double)token_bytes;
        assert_true(grown > 0.99 * said && grown < 1.2 * said); /* large tensors are whole huge pages */
    }
}

static void work_space_that_does_not_fit_can_be_made_smaller(void **state)
{
    struct forward_fixture *t = *state;
    open_model(t, "llama_moe", 0);
    start(t, 64);
    assert_int_equal(feed(t, 64, 1), ERR_OK);
    float *want = rows(t, 0, 1);
    assert_true(mem_set_limit(mem_total_bytes() + 100000, NULL, NULL));
    err_code large = model_work_resize(t->w, t->m, 100000, &t->e);
    err_code small = model_work_resize(t->w, t->m, 64, &t->e);
    mem_lift_limit();
    assert_int_equal(large, ERR_NOMEM);
    assert_int_equal(small, ERR_OK);
    assert_int_equal(model_state_truncate(t->s, 0), 0);
    assert_int_equal(feed(t, 64, 1), ERR_OK);
    float *got = rows(t, 0, 1);
    expect_rows(t, got, want, 1);
    free(got);
    free(want);
}

#define ONE(name)  cmocka_unit_test_setup_teardown(name, open_forward, close_forward)
#define TWO(name)  cmocka_unit_test_setup_teardown(name, open_divided, close_forward)
#define TEST(name) ONE(name), TWO(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(batches_and_ubatches_change_no_bit),
        TEST(streamed_experts_change_no_bit),
        TEST(only_the_rows_that_are_asked_for_are_kept),
        TEST(a_batch_that_nobody_asks_about_is_remembered),
        TEST(each_layer_reports_the_last_tokens_state),
        TEST(going_back_and_on_gives_the_same_bits),
        TEST(texts_in_one_batch_have_the_bits_of_each_alone),
        TEST(texts_meet_in_ubatches_and_part_again),
        TEST(results_come_in_the_order_of_texts),
        TEST(drafts_are_taken_back_to_any_token_without_a_product),
        TEST(a_draft_across_ubatches_is_taken_back_too),
        TEST(a_draft_outlasts_batches_without_drafts),
        TEST(a_draft_that_another_has_displaced_goes_back_to_a_checkpoint),
        TEST(a_longer_draft_than_before_is_kept_as_well),
        TEST(after_a_failure_a_text_is_as_before),
        TEST(after_a_failure_all_texts_are_as_before),
        TEST(a_table_of_ngrams_that_cannot_be_read_loses_no_text),
        TEST(wherever_it_is_cancelled_all_texts_are_as_before),
        TEST(a_pool_without_room_for_one_text_begins_none),
        TEST(work_space_is_resized_without_a_change_of_bits),
        TEST(a_token_more_takes_what_it_is_said_to_take),
        TEST(work_space_that_does_not_fit_can_be_made_smaller),
        TWO(layers_of_all_families_on_two_devices_give_the_bits_of_one),
        TWO(a_text_saved_on_one_device_goes_on_on_two),
        TWO(each_device_has_its_layers_alone),
        TWO(layers_that_can_not_be_divided_so_are_refused),
    };
    return cmocka_run_group_tests_name("forward", tests, NULL, NULL);
}
