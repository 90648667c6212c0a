/* The forward pass over tiny models of each kind of layer: how tokens are cut into batches and ubatches, which rows of
 * logits are asked for, reads that fail, and its work space. */
#include <stdio.h>

#include "device_fixture.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "store/store_fake.h"

enum { N_MOST = 1100, N_CTX = 1152 }; /* more than two ubatches */

struct forward_fixture {
    struct fixture *f;
    struct gguf *g;
    char path[512];
    struct store *directory; /* says where the experts lie */
    struct store_fake_file file;
    struct store *store; /* the same bytes in memory */
    struct model *m;
    struct model_state *s;
    struct model_work *w;
    int32_t ids[N_MOST];
    struct err e;
};

static int open_forward(void **state)
{
    struct forward_fixture *t = calloc(1, sizeof *t);
    *state = t;
    return open_cpu((void **)&t->f);
}

static void close_model(struct forward_fixture *t)
{
    model_work_close(&t->w);
    model_state_close(&t->s);
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
    free(t);
    return close_cpu(&f);
}

/* A golden model with slots for `share` of its experts (0: all). */
static void open_model(struct forward_fixture *t, const char *name, double share)
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
    const struct model_load_params p = {
        .device = t->f->device, .pool = t->f->pool, .store = t->store, .expert_budget_share = share};
    assert_int_equal(model_load(&t->m, t->g, &p, &t->e), ERR_OK);
    if (t->m->experts)
        assert_int_equal(experts_open(t->m->experts, 0, &t->e), ERR_OK);
    for (int i = 0; i < N_MOST; i++)
        t->ids[i] = (int32_t)((i * 37 + i * i) % t->m->n_vocab);
}

/* An empty text, to be fed in batches of up to n_batch tokens. */
static void start(struct forward_fixture *t, int64_t n_batch)
{
    model_work_close(&t->w);
    model_state_close(&t->s);
    assert_int_equal(model_state_create(&t->s, t->m, N_CTX, n_batch, ELEM_F16, &t->e), ERR_OK);
    assert_int_equal(model_work_create(&t->w, t->m, n_batch, 4, &t->e), ERR_OK);
}

static err_code feed(struct forward_fixture *t, int64_t n, int64_t n_out)
{
    static const struct model_forward_params p = {.sort_cutoff = 8};
    return model_forward(t->m, t->s, t->w, &p, t->ids + model_state_pos(t->s), n, n_out, &t->e);
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

/* ---- batches ------------------------------------------------------------------------------------------------- */

/* The logits of the last token of the text, fed in batches of n. */
static float *last_logits(struct forward_fixture *t, int64_t n_batch)
{
    start(t, n_batch);
    for (int64_t n; model_state_pos(t->s) < N_MOST;) {
        n = N_MOST - model_state_pos(t->s) < n_batch ? N_MOST - model_state_pos(t->s) : n_batch;
        assert_int_equal(feed(t, n, 1), ERR_OK);
    }
    return rows(t, 0, 1);
}

static const char *const models[] = {
    "llama",            /* dense */
    "gpt_oss",          /* windows, sinks, biases */
    "llama4",           /* attention in chunks, experts whose inputs are weighed */
    "gemma4",           /* windows, a dense branch beside the experts */
    "gemma4_shared",    /* windowed caches that layers share, token embeddings */
    "deepseek2_latent", /* latent attention */
    "qwen35moe",        /* recurrent layers */
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
        assert_int_equal(model_forward(t->m, t->s, t->w, &p, t->ids, 600, 600, &t->e), ERR_OK);
        assert_int_equal(batch.n_layer, t->m->n_layer);
        start(t, 599);
        assert_int_equal(feed(t, 599, 0), ERR_OK);
        p.hidden_user = &single;
        assert_int_equal(model_forward(t->m, t->s, t->w, &p, t->ids + 599, 1, 1, &t->e), ERR_OK);
        assert_int_equal(single.n_layer, t->m->n_layer);
        for (int64_t l = 0; l < t->m->n_layer; l++)
            assert_memory_equal(batch.x[l], single.x[l], (size_t)t->m->n_embd * sizeof(float));
    }
}

static void going_back_and_on_gives_the_same_bits(void **state)
{
    struct forward_fixture *t = *state;
    for (int i = 0; i < N_MODEL; i++) {
        open_model(t, models[i], 0);
        start(t, 64);
        for (int j = 0; j < 6; j++)
            assert_int_equal(feed(t, 64, 1), ERR_OK);
        float *want = rows(t, 0, 1);
        int64_t pos = model_state_truncate(t->s, 384 - 50); /* 0 where a layer knows no way back */
        assert_true(pos == 384 - 50 || (pos == 0 && !strcmp(models[i], "qwen35moe")));
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

/* Feeds 100 tokens, fails with the next 20 in the last layer, and goes on from where it is then: `pos`. */
static void fail_and_go_on(struct forward_fixture *t, const char *name, int64_t pos)
{
    open_model(t, name, 0.4);
    start(t, 100);
    assert_int_equal(feed(t, 100, 0), ERR_OK);
    assert_int_equal(feed(t, 20, 1), ERR_OK);
    float *want = rows(t, 0, 1);
    assert_int_equal(model_state_truncate(t->s, 0), 0);
    assert_int_equal(feed(t, 100, 0), ERR_OK);
    experts_forget(t->m->experts);
    fail_layer(t, (int)t->m->n_layer - 1);
    assert_int_equal(feed(t, 20, 1), ERR_IO);
    assert_non_null(strstr(t->e.text, "expert"));
    store_fake_clear_faults(t->store);
    assert_int_equal(model_state_pos(t->s), pos);
    if (pos == 0)
        assert_int_equal(feed(t, 100, 0), ERR_OK);
    assert_int_equal(feed(t, 20, 1), ERR_OK);
    float *got = rows(t, 0, 1);
    expect_rows(t, got, want, 1);
    free(got);
    free(want);
}

static void after_a_failure_a_text_is_as_before(void **state)
{
    fail_and_go_on(*state, "llama_moe", 100);
    fail_and_go_on(*state, "gpt_oss", 100);
    fail_and_go_on(*state, "deepseek2_latent", 100);
}

static void after_a_failure_recurrent_layers_start_afresh(void **state)
{
    fail_and_go_on(*state, "qwen35moe", 0);
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_forward, close_forward)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(batches_and_ubatches_change_no_bit),
        TEST(streamed_experts_change_no_bit),
        TEST(only_the_rows_that_are_asked_for_are_kept),
        TEST(a_batch_that_nobody_asks_about_is_remembered),
        TEST(each_layer_reports_the_last_tokens_state),
        TEST(going_back_and_on_gives_the_same_bits),
        TEST(after_a_failure_a_text_is_as_before),
        TEST(after_a_failure_recurrent_layers_start_afresh),
        TEST(work_space_is_resized_without_a_change_of_bits),
        TEST(a_token_more_takes_what_it_is_said_to_take),
        TEST(work_space_that_does_not_fit_can_be_made_smaller),
    };
    return cmocka_run_group_tests_name("forward", tests, NULL, NULL);
}
