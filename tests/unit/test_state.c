/* What a text leaves behind: the caches of each kind of layer, what going back can do, and states as bytes. */
#include "device_fixture.h"
#include "model/state.h"

enum { N_HEAD_KV = 2, DIM = 32, DIM_V = 64, N_LATENT = 16, N_MIXED = 20, N_TAP = 4, DK = 6, DV = 5, N_HEAD_V = 3 };
enum { MAX_LAYER = 4 };

/* A model of which only what states look at is there. */
struct state_fixture {
    struct fixture *f;
    struct model m;
    struct layer layers[MAX_LAYER];
    struct model_state *s;
    struct err e;
};

static struct weight *some_weight(void)
{
    static char place;
    return (struct weight *)(void *)&place; /* nobody looks into it */
}

static struct layer *add_layer(struct state_fixture *t)
{
    struct layer *y = &t->layers[t->m.n_layer];
    *y = (struct layer){.attn = {.kv_layer = t->m.n_layer++}};
    return y;
}

/* window 0: all */
static struct layer *add_attention(struct state_fixture *t, int64_t window)
{
    struct layer *y = add_layer(t);
    y->attn.n_head_kv = N_HEAD_KV;
    y->attn.head_dim = DIM;
    y->attn.head_dim_v = DIM_V;
    y->attn.window = window;
    y->attn.k = some_weight();
    return y;
}

static struct layer *add_latent(struct state_fixture *t)
{
    struct layer *y = add_attention(t, 0);
    y->attn.n_head_kv = 1;
    y->attn.head_dim = y->attn.head_dim_v = N_LATENT;
    y->attn.is_latent = true;
    return y;
}

static struct layer *add_recurrent(struct state_fixture *t)
{
    struct layer *y = add_layer(t);
    y->is_recurrent = true;
    y->delta = (struct delta_net){.dk = DK, .dv = DV, .n_head_v = N_HEAD_V, .n_mixed = N_MIXED, .n_tap = N_TAP};
    return y;
}

/* A layer that uses the cache of layer `of`. */
static void add_sharing(struct state_fixture *t, int64_t of, int64_t window)
{
    struct layer *y = add_attention(t, window);
    y->attn.k = NULL;
    y->attn.kv_layer = of;
}

static int open_state(void **state)
{
    struct state_fixture *t = calloc(1, sizeof *t);
    if (open_cpu((void **)&t->f))
        return -1;
    t->m.device = t->f->device;
    t->m.layers = t->layers;
    *state = t;
    return 0;
}

static int close_state(void **state)
{
    struct state_fixture *t = *state;
    void *f = t->f;
    model_state_close(&t->s);
    free(t);
    return close_cpu(&f);
}

static void create(struct state_fixture *t, int64_t n_ctx, int64_t n_batch)
{
    model_state_close(&t->s);
    assert_int_equal(model_state_create(&t->s, &t->m, n_ctx, n_batch, ELEM_F32, &t->e), ERR_OK);
}

/* What a forward pass over n more tokens does to a state, but for the numbers. */
static void append(struct state_fixture *t, int64_t n)
{
    model_state_make_room(t->s, n);
    t->s->pos += n;
}

static void expect_shape(const struct tensor *t, int64_t ne0, int64_t ne1, int64_t ne2)
{
    assert_non_null(t->buffer);
    assert_int_equal(t->ne[0], ne0);
    assert_int_equal(t->ne[1], ne1);
    assert_int_equal(t->ne[2], ne2);
}

/* ---- shapes -------------------------------------------------------------------------------------------------- */

static void each_layer_has_what_its_kind_needs(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_sharing(t, 0, 0);
    add_latent(t);
    add_recurrent(t);
    create(t, 100, 64);
    const struct layer_state *y = t->s->layers;
    expect_shape(&y[0].k, DIM, 100, N_HEAD_KV);
    expect_shape(&y[0].v, DIM_V, 100, N_HEAD_KV);
    assert_null(y[0].past.buffer);
    assert_null(y[1].k.buffer);
    assert_null(y[1].v.buffer);
    expect_shape(&y[2].k, N_LATENT, 100, 1);
    assert_null(y[2].v.buffer); /* keys are values */
    expect_shape(&y[3].past, N_MIXED, N_TAP - 1, 1);
    expect_shape(&y[3].delta, DK, DV, N_HEAD_V);
    assert_null(y[3].k.buffer);
    assert_int_equal(model_state_bytes(t->s), 4 * (100 * N_HEAD_KV * (DIM + DIM_V) + 100 * N_LATENT +
                                                   N_MIXED * (N_TAP - 1) + DK * DV * N_HEAD_V));
    assert_int_equal(model_state_n_ctx(t->s), 100);
    assert_int_equal(model_state_pos(t->s), 0);
}

static void a_ring_has_the_window_before_each_token_of_a_ubatch(void **state)
{
    static const struct {
        int64_t window, n_ctx, n_batch, n_row;
    } cases[] = {
        {100, 4096, 1, 128},    /* in whole blocks of 64 */
        {100, 4096, 64, 192},   /* 100 + 64 - 1 */
        {128, 4096, 65, 192},   /* exactly three blocks */
        {128, 4096, 66, 256},   /* one position more */
        {100, 4096, 512, 640},  /* 611 */
        {100, 4096, 2048, 640}, /* ubatches are no longer than 512 */
        {100, 150, 64, 150},    /* no more than the context */
        {0, 4096, 64, 4096},    /* no window */
    };
    struct state_fixture *t = *state;
    struct layer *y = add_attention(t, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        y->attn.window = cases[i].window;
        create(t, cases[i].n_ctx, cases[i].n_batch);
        expect_shape(&t->s->layers[0].k, DIM, cases[i].n_row, N_HEAD_KV);
        expect_shape(&t->s->layers[0].v, DIM_V, cases[i].n_row, N_HEAD_KV);
    }
}

static void a_shared_ring_holds_a_whole_batch_for_the_widest_window(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 100);
    assert_true(model_takes_any_batch(&t->m));
    add_sharing(t, 0, 130);
    assert_false(model_takes_any_batch(&t->m));
    create(t, 4096, 1024);
    assert_int_equal(t->s->layers[0].k.ne[1], 1216); /* 130 + 1024 - 1 in blocks of 64 */
    assert_int_equal(layer_state_first(&t->s->layers[0], 1000), 871);
    add_sharing(t, 0, 0); /* who sees everything */
    assert_true(model_takes_any_batch(&t->m));
    create(t, 4096, 1024);
    assert_int_equal(t->s->layers[0].k.ne[1], 4096);
    assert_int_equal(layer_state_first(&t->s->layers[0], 1000), 0);
}

static void q8_0_takes_heads_of_whole_blocks(void **state)
{
    struct state_fixture *t = *state;
    struct layer *y = add_attention(t, 0);
    assert_int_equal(model_state_create(&t->s, &t->m, 64, 64, ELEM_Q8_0, &t->e), ERR_OK);
    assert_int_equal(model_state_bytes(t->s), 64 * N_HEAD_KV * (DIM + DIM_V) / 32 * 34);
    model_state_close(&t->s);
    y->attn.head_dim = 40;
    assert_int_equal(model_state_create(&t->s, &t->m, 64, 64, ELEM_Q8_0, &t->e), ERR_UNSUPPORTED);
    assert_null(t->s);
    assert_non_null(strstr(t->e.text, "context of 64 tokens"));
    assert_non_null(strstr(t->e.text, "layer 0 has rows of 40 and 64"));
    assert_non_null(strstr(t->e.text, "multiples of 32"));
}

static void a_state_that_does_not_fit_leaves_nothing_behind(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_attention(t, 0);
    size_t before = mem_total_bytes();
    assert_true(mem_set_limit(before + 1000000, NULL, NULL)); /* one layer's keys and values are 786432 */
    err_code code = model_state_create(&t->s, &t->m, 1024, 64, ELEM_F32, &t->e);
    mem_lift_limit();
    assert_int_equal(code, ERR_NOMEM);
    assert_null(t->s);
    assert_int_equal(mem_total_bytes(), before);
}

/* ---- going back ---------------------------------------------------------------------------------------------- */

static void full_attention_goes_back_anywhere(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_sharing(t, 0, 0);
    create(t, 1000, 64);
    append(t, 900);
    assert_int_equal(model_state_truncate(t->s, 900), 900);
    assert_int_equal(model_state_truncate(t->s, 123), 123);
    assert_int_equal(model_state_pos(t->s), 123);
    append(t, 877);
    assert_int_equal(model_state_truncate(t->s, 1), 1);
    assert_int_equal(model_state_truncate(t->s, 0), 0);
}

static void a_ring_goes_back_as_far_as_it_holds_the_window(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_attention(t, 64);
    create(t, 1000, 64); /* a ring of 128 */
    for (int i = 0; i < 300; i++)
        append(t, 1);                                       /* 172 is the oldest position there */
    assert_int_equal(model_state_truncate(t->s, 235), 235); /* which sees 172 to 235 */
    append(t, 10);
    assert_int_equal(model_state_truncate(t->s, 236), 236);
    assert_int_equal(model_state_truncate(t->s, 234), 0);
    append(t, 100); /* after a fresh start, nothing has been overwritten */
    assert_int_equal(model_state_truncate(t->s, 1), 1);
}

static void rings_go_back_by_a_batch_at_least(void **state)
{
    static const int64_t n_batches[] = {1, 64, 100, 512, 600, 1024};
    struct state_fixture *t = *state;
    add_attention(t, 70);
    for (size_t i = 0; i < sizeof n_batches / sizeof *n_batches; i++)
        for (int64_t n_last = 1; n_last <= n_batches[i] && n_last <= MODEL_UBATCH; n_last += 37) {
            create(t, 4096, n_batches[i]);
            for (int64_t n = n_batches[i]; t->s->pos < 2048;)
                append(t, n);
            int64_t pos = t->s->pos;
            append(t, n_last);
            assert_int_equal(model_state_truncate(t->s, pos), pos);
        }
}

static void recurrent_layers_go_back_to_an_empty_start(void **state)
{
    struct state_fixture *t = *state;
    float delta[DK * DV * N_HEAD_V], past[N_MIXED * (N_TAP - 1)];
    add_attention(t, 0);
    add_recurrent(t);
    create(t, 100, 64);
    fill(t->f, delta, DK * DV * N_HEAD_V);
    fill(t->f, past, N_MIXED * (N_TAP - 1));
    backend_write(t->f->device, &t->s->layers[1].delta, delta);
    backend_write(t->f->device, &t->s->layers[1].past, past);
    append(t, 10);
    assert_int_equal(model_state_truncate(t->s, 10), 10); /* nothing to forget */
    read_back(t->f, &t->s->layers[1].delta, delta);
    assert_true(delta[0] != 0);
    assert_int_equal(model_state_truncate(t->s, 9), 0);
    read_back(t->f, &t->s->layers[1].delta, delta);
    read_back(t->f, &t->s->layers[1].past, past);
    for (int i = 0; i < DK * DV * N_HEAD_V; i++)
        assert_true(delta[i] == 0);
    for (int i = 0; i < N_MIXED * (N_TAP - 1); i++)
        assert_true(past[i] == 0);
}

static void a_failed_batch_costs_the_text_only_where_it_was_overwritten(void **state)
{
    struct state_fixture *t = *state;
    struct layer *y = add_attention(t, 64);
    create(t, 2000, 64);
    append(t, 300);
    model_state_make_room(t->s, 64); /* a batch that fails: the window before position 300 is still there */
    model_state_spoil(t->s);
    assert_int_equal(model_state_pos(t->s), 300);
    model_state_make_room(t->s, 66); /* of a ring of 128, 62 positions are left */
    model_state_spoil(t->s);
    assert_int_equal(model_state_pos(t->s), 0);
    y->attn.window = 0;
    create(t, 2000, 64);
    append(t, 300);
    model_state_make_room(t->s, 1700);
    model_state_spoil(t->s);
    assert_int_equal(model_state_pos(t->s), 300);
    add_recurrent(t);
    create(t, 2000, 64);
    append(t, 300);
    model_state_make_room(t->s, 1);
    model_state_spoil(t->s);
    assert_int_equal(model_state_pos(t->s), 0);
}

/* ---- states as bytes ----------------------------------------------------------------------------------------- */

/* A row of a cache for each position, told by position and head. */
static void fill_cache(struct state_fixture *t, const struct tensor *cache, int64_t first, int64_t end)
{
    float row[DIM_V];
    struct tensor all = *cache;
    all.ne[1] *= all.ne[2];
    all.ne[2] = 1;
    for (int64_t head = 0; cache->buffer && head < cache->ne[2]; head++)
        for (int64_t p = first; p < end; p++) {
            struct tensor at = tensor_rows(all, head * cache->ne[1] + p % cache->ne[1], 1);
            for (int64_t i = 0; i < cache->ne[0]; i++)
                row[i] = (float)(p * 1000 + head * 100 + i);
            backend_write(t->f->device, &at, row);
        }
}

static void fill_state(struct state_fixture *t, int64_t pos)
{
    float delta[DK * DV * N_HEAD_V], past[N_MIXED * (N_TAP - 1)];
    while (t->s->pos < pos)
        append(t, 1);
    for (int64_t i = 0; i < t->m.n_layer; i++) {
        struct layer_state *y = &t->s->layers[i];
        fill_cache(t, &y->k, y->oldest, pos);
        fill_cache(t, &y->v, y->oldest, pos);
        if (!y->delta.buffer)
            continue;
        fill(t->f, delta, DK * DV * N_HEAD_V);
        fill(t->f, past, N_MIXED * (N_TAP - 1));
        backend_write(t->f->device, &y->delta, delta);
        backend_write(t->f->device, &y->past, past);
    }
}

struct bytes {
    char *p;
    size_t n, most; /* `most`: further ones are refused */
};

static err_code put(void *user, void *bytes, size_t n, struct err *e)
{
    struct bytes *b = user;
    if (b->n + n > b->most)
        return err_set(e, ERR_IO, "no more than %zu bytes", b->most);
    memcpy(b->p + b->n, bytes, n);
    b->n += n;
    return ERR_OK;
}

static err_code get(void *user, void *bytes, size_t n, struct err *e)
{
    struct bytes *b = user;
    if (b->n + n > b->most)
        return err_set(e, ERR_IO, "no more than %zu bytes", b->most);
    memcpy(bytes, b->p + b->n, n);
    b->n += n;
    return ERR_OK;
}

/* A state's bytes, as many as it says. */
static struct bytes save(struct state_fixture *t)
{
    size_t n = (size_t)model_state_saved_bytes(t->s, t->s->pos);
    struct bytes b = {malloc(n), 0, n};
    assert_int_equal(model_state_save(t->s, put, &b, &t->e), ERR_OK);
    assert_int_equal(b.n, n);
    return b;
}

static void add_all_kinds(struct state_fixture *t)
{
    add_attention(t, 0);
    add_attention(t, 64);
    add_latent(t);
    add_recurrent(t);
}

static void saved_bytes_depend_on_the_text_alone(void **state)
{
    static const int64_t sizes[][2] = {{300, 64}, {4096, 64}, {300, 1}, {1000, 1024}}; /* n_ctx, n_batch */
    struct state_fixture *t = *state;
    add_all_kinds(t);
    create(t, 300, 64);
    fill_state(t, 300);
    struct bytes first = save(t);
    /* all of the text, or the 63 positions that the next token sees */
    size_t caches = N_HEAD_KV * (DIM + DIM_V) * (300 + 63) + N_LATENT * 300;
    assert_int_equal(first.n, 4 * (caches + N_MIXED * (N_TAP - 1) + DK * DV * N_HEAD_V));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        create(t, sizes[i][0], sizes[i][1]);
        struct bytes from = {first.p, 0, first.n};
        assert_int_equal(model_state_saved_bytes(t->s, 300), first.n);
        assert_int_equal(model_state_load(t->s, 300, get, &from, &t->e), ERR_OK);
        assert_int_equal(model_state_pos(t->s), 300);
        assert_int_equal(from.n, first.n);
        struct bytes again = save(t);
        assert_memory_equal(again.p, first.p, first.n);
        free(again.p);
    }
    free(first.p);
}

static void a_loaded_ring_holds_no_more_than_was_saved(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 64);
    create(t, 1000, 512);
    fill_state(t, 300);
    struct bytes b = save(t), from = {b.p, 0, b.n};
    assert_int_equal(model_state_load(t->s, 300, get, &from, &t->e), ERR_OK);
    append(t, 5);
    assert_int_equal(model_state_truncate(t->s, 300), 300);
    assert_int_equal(model_state_truncate(t->s, 299), 0); /* it would see position 236 */
    free(b.p);
}

static void an_empty_text_is_saved_too(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    create(t, 300, 64);
    struct bytes b = save(t), from = {b.p, 0, b.n};
    assert_int_equal(b.n, 4 * (N_MIXED * (N_TAP - 1) + DK * DV * N_HEAD_V));
    append(t, 20);
    assert_int_equal(model_state_load(t->s, 0, get, &from, &t->e), ERR_OK);
    assert_int_equal(model_state_pos(t->s), 0);
    free(b.p);
}

static void after_a_failed_load_a_state_is_empty(void **state)
{
    struct state_fixture *t = *state;
    float delta[DK * DV * N_HEAD_V];
    add_all_kinds(t);
    create(t, 300, 64);
    fill_state(t, 200);
    struct bytes b = save(t);
    for (size_t most = 0; most < b.n; most += 1 + b.n / 13) {
        struct bytes from = {b.p, 0, most};
        assert_int_equal(model_state_load(t->s, 200, get, &from, &t->e), ERR_IO);
        assert_non_null(strstr(t->e.text, "no more than"));
        assert_int_equal(model_state_pos(t->s), 0);
        read_back(t->f, &t->s->layers[3].delta, delta);
        for (int i = 0; i < DK * DV * N_HEAD_V; i++)
            assert_true(delta[i] == 0);
    }
    free(b.p);
}

static void a_failed_save_leaves_the_state_alone(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    create(t, 300, 64);
    fill_state(t, 200);
    struct bytes b = save(t), short_of_room = {malloc(b.n), 0, b.n - 1};
    assert_int_equal(model_state_save(t->s, put, &short_of_room, &t->e), ERR_IO);
    assert_int_equal(model_state_pos(t->s), 200);
    struct bytes again = save(t);
    assert_memory_equal(again.p, b.p, b.n);
    free(again.p);
    free(short_of_room.p);
    free(b.p);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_state, close_state)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_layer_has_what_its_kind_needs),
        TEST(a_ring_has_the_window_before_each_token_of_a_ubatch),
        TEST(a_shared_ring_holds_a_whole_batch_for_the_widest_window),
        TEST(q8_0_takes_heads_of_whole_blocks),
        TEST(a_state_that_does_not_fit_leaves_nothing_behind),
        TEST(full_attention_goes_back_anywhere),
        TEST(a_ring_goes_back_as_far_as_it_holds_the_window),
        TEST(rings_go_back_by_a_batch_at_least),
        TEST(recurrent_layers_go_back_to_an_empty_start),
        TEST(a_failed_batch_costs_the_text_only_where_it_was_overwritten),
        TEST(saved_bytes_depend_on_the_text_alone),
        TEST(a_loaded_ring_holds_no_more_than_was_saved),
        TEST(an_empty_text_is_saved_too),
        TEST(after_a_failed_load_a_state_is_empty),
        TEST(a_failed_save_leaves_the_state_alone),
    };
    return cmocka_run_group_tests_name("state", tests, NULL, NULL);
}
