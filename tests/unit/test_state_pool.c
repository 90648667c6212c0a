/* The pool of pages: how layers lie in them, who holds them, the memory they take, and checkpoints within their budget.
 */
#include "state_fixture.h"

static int32_t take(struct state_fixture *t, int kind)
{
    int32_t page = state_pool_take(t->pool, kind);
    assert_true(page >= 0);
    return page;
}

static size_t page_bytes(const struct state_fixture *t, int kind)
{
    return t->pool->kinds[kind].bytes;
}

/* A pool of as many bytes as pages of the kinds take: n[kind]. */
static void open_pool_of(struct state_fixture *t, const int *n)
{
    size_t bytes = 0;
    t->params.max_bytes = 64 << 20;
    open_pool(t);
    for (int i = 0; i < t->pool->n_kind; i++)
        bytes += (size_t)n[i] * page_bytes(t, i);
    t->params.max_bytes = bytes;
    open_pool(t);
}

/* ---- how layers lie in pages --------------------------------------------------------------------------------- */

static void expect_shape(const struct paged *x, int64_t ne0, int64_t ne1, int64_t ne2)
{
    assert_non_null(x->page.buffer);
    assert_int_equal(x->page.ne[0], ne0);
    assert_int_equal(x->page.ne[1], ne1);
    assert_int_equal(x->page.ne[2], ne2);
}

static void each_layer_has_what_its_kind_needs(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_sharing(t, 0, 0);
    add_latent(t)->attn.index = (struct position_index){.n_chosen = 4, .n_head = 2, .dim = DIM};
    add_recurrent(t);
    open_pool(t);
    const struct layer_pages *y = t->pool->layers;
    expect_shape(&y[0].k, DIM, ATTENTION_BLOCK, N_HEAD_KV);
    expect_shape(&y[0].v, DIM_V, ATTENTION_BLOCK, N_HEAD_KV);
    assert_null(y[0].past.page.buffer);
    assert_int_equal(y[1].kind, -1);
    assert_null(y[1].k.page.buffer);
    expect_shape(&y[2].k, N_LATENT, ATTENTION_BLOCK, 1);
    assert_memory_equal(&y[2].k, &y[2].v, sizeof y[2].k); /* keys are values */
    expect_shape(&y[2].index, DIM, ATTENTION_BLOCK, 1);
    expect_shape(&y[3].past, N_MIXED, N_TAP - 1, 1);
    expect_shape(&y[3].rule, DK, DV, N_HEAD_V);
    assert_null(y[3].k.page.buffer);
    assert_int_equal(t->pool->n_kind, 2);
    assert_int_equal(t->pool->n_cache_kind, 1);
    /* 15 times 4096 bytes; and whole ones for the heads' states, which lie apart on several memory nodes, and for the
     * inputs */
    assert_int_equal(page_bytes(t, 0), ATTENTION_BLOCK * 4 * (N_HEAD_KV * (DIM + DIM_V) + N_LATENT + DIM));
    int64_t n_part = backend_n_node(t->f->device) > 1 ? N_HEAD_V : 1;
    assert_int_equal(page_bytes(t, 1), (n_part + 1) * BUFFER_ALIGN);
}

static void a_convolution_alone_has_its_last_inputs(void **state)
{
    struct state_fixture *t = *state;
    add_recurrent(t)->recurrent = (struct recurrent){.kind = RECURRENCE_CONV, .n_mixed = N_MIXED, .n_tap = N_TAP};
    open_pool(t);
    const struct layer_pages *y = t->pool->layers;
    expect_shape(&y[0].past, N_MIXED, N_TAP - 1, 1);
    assert_null(y[0].rule.page.buffer);
    assert_int_equal(page_bytes(t, 0), BUFFER_ALIGN);
}

static void layers_with_one_window_share_pages(void **state)
{
    static const int64_t windows[] = {100, 0, 100, 200};
    static const int kinds[] = {0, 1, 0, 2};
    struct state_fixture *t = *state;
    for (int i = 0; i < 4; i++)
        add_attention(t, windows[i]);
    add_recurrent(t);
    add_recurrent(t);
    open_pool(t);
    assert_int_equal(t->pool->n_cache_kind, 3);
    assert_int_equal(t->pool->n_kind, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(t->pool->layers[i].kind, kinds[i]);
    assert_int_equal(t->pool->layers[4].kind, 3);
    assert_int_equal(t->pool->layers[5].kind, 3);
    assert_int_equal(page_bytes(t, 0), 2 * page_bytes(t, 1));
}

static void a_shared_cache_is_for_its_widest_window(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 100);
    open_pool(t);
    assert_false(t->pool->kinds[0].is_shared);
    add_sharing(t, 0, 130);
    open_pool(t);
    assert_true(t->pool->kinds[0].is_shared);
    assert_int_equal(t->pool->kinds[0].window, 130);
    add_sharing(t, 0, 0); /* who sees everything */
    open_pool(t);
    assert_int_equal(t->pool->kinds[0].window, 0);
}

/* Bytes that belong to one part of one page of a layer. */
struct range {
    const struct buffer *buffer;
    size_t first, end;
};

static void add_ranges(const struct paged *x, struct range *r, int *n)
{
    for (int page = 0; x->page.buffer && page < 3; page++)
        for (int64_t part = 0; part < x->page.ne[2]; part++) {
            const struct tensor p = paged_part(x, page, part);
            r[(*n)++] = (struct range){p.buffer, p.off_bytes, p.off_bytes + tensor_bytes(&p)};
        }
}

static void expect_disjoint(const struct range *r, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            assert_true(r[i].buffer != r[j].buffer || r[i].end <= r[j].first || r[j].end <= r[i].first);
}

static void no_two_parts_of_pages_overlap(void **state)
{
    static const enum elem_type types[] = {ELEM_F32, ELEM_F16, ELEM_Q8_0};
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_attention(t, 0);
    add_recurrent(t);
    add_attention(t, 64)->attn.n_head_kv = 5;
    add_attention(t, 64)->attn.head_dim = 96; /* heads that differ, so that they lie within a page */
    add_recurrent(t);
    for (int i = 0; i < 3; i++) {
        struct range r[200];
        int n = 0;
        t->params.type = types[i];
        open_pool(t);
        for (int64_t l = 0; l < t->m.n_layer; l++) {
            const struct layer_pages *y = &t->pool->layers[l];
            add_ranges(&y->k, r, &n);
            add_ranges(&y->v, r, &n);
            add_ranges(&y->past, r, &n);
            add_ranges(&y->rule, r, &n);
        }
        assert_int_equal(n, 3 * (2 * (2 + 2 + 5 + 2) + 2 * (1 + N_HEAD_V)));
        expect_disjoint(r, n);
    }
}

static void q8_0_takes_heads_of_whole_blocks(void **state)
{
    struct state_fixture *t = *state;
    struct layer *y = add_attention(t, 0);
    t->params.type = ELEM_Q8_0;
    open_pool(t);
    assert_int_equal(t->pool->layers[0].k.page_bytes % BUFFER_ALIGN, 0);
    assert_int_equal(elem_row_bytes(ELEM_Q8_0, DIM) * ATTENTION_BLOCK, 64 * 34);
    close_pool(t);
    y->attn.head_dim = 40;
    assert_int_equal(state_pool_create(&t->pool, &t->m, &t->params, &t->e), ERR_UNSUPPORTED);
    assert_null(t->pool);
    assert_non_null(strstr(t->e.text, "layer 0 has rows of 40 and 64"));
    assert_non_null(strstr(t->e.text, "multiples of 32"));
}

/* ---- who holds pages ----------------------------------------------------------------------------------------- */

static void a_page_is_free_when_nobody_holds_it(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    open_pool(t);
    int32_t a = take(t, 0), b = take(t, 0);
    assert_int_not_equal(a, b);
    assert_false(state_pool_is_shared(t->pool, 0, a));
    state_pool_keep(t->pool, 0, a);
    assert_true(state_pool_is_shared(t->pool, 0, a));
    assert_int_equal(state_pool_used_bytes(t->pool), 2 * page_bytes(t, 0));
    state_pool_drop(t->pool, 0, a);
    assert_false(state_pool_is_shared(t->pool, 0, a));
    assert_int_equal(state_pool_used_bytes(t->pool), 2 * page_bytes(t, 0));
    state_pool_drop(t->pool, 0, a);
    assert_int_equal(state_pool_used_bytes(t->pool), page_bytes(t, 0));
    assert_int_equal(take(t, 0), a); /* and keeps its memory until then */
    state_pool_drop(t->pool, 0, a);
    state_pool_drop(t->pool, 0, b);
}

static void fill_page(struct state_fixture *t, int64_t layer, int32_t page, int32_t id)
{
    const struct layer_pages *y = &t->pool->layers[layer];
    for (int64_t row = 0; y->k.page.buffer && row < ATTENTION_BLOCK; row++) {
        put_cell(t, &y->k, page, row, id);
        put_cell(t, &y->v, page, row, id + 1);
    }
    if (y->rule.page.buffer) {
        put_cell(t, &y->rule, page, DV - 1, id + 2);
        put_cell(t, &y->past, page, N_TAP - 2, id + 3);
    }
}

static void expect_page(struct state_fixture *t, int64_t layer, int32_t page, int32_t id)
{
    const struct layer_pages *y = &t->pool->layers[layer];
    for (int64_t row = 0; y->k.page.buffer && row < ATTENTION_BLOCK; row++) {
        expect_cell(t, &y->k, page, row, id);
        expect_cell(t, &y->v, page, row, id + 1);
    }
    if (y->rule.page.buffer) {
        expect_cell(t, &y->rule, page, DV - 1, id + 2);
        expect_cell(t, &y->past, page, N_TAP - 2, id + 3);
    }
}

static void a_copy_has_all_layers_and_parts_and_leaves_the_others_alone(void **state)
{
    struct state_fixture *t = *state;
    int32_t page[2][3];
    add_attention(t, 0);
    add_attention(t, 0);
    add_recurrent(t);
    add_recurrent(t);
    open_pool(t);
    for (int i = 0; i < 6; i++)
        page[i / 3][i % 3] = take(t, i / 3);
    for (int64_t l = 0; l < 4; l++)
        for (int i = 0; i < 3; i++)
            fill_page(t, l, page[l / 2][i], (int32_t)(1000 * l + 100 * i));
    for (int kind = 0; kind < 2; kind++)
        state_pool_copy(t->pool, kind, page[kind][0], page[kind][2]);
    for (int64_t l = 0; l < 4; l++)
        for (int i = 0; i < 3; i++)
            expect_page(t, l, page[l / 2][i], (int32_t)(1000 * l + (i == 2 ? 0 : 100 * i)));
    for (int i = 0; i < 6; i++)
        state_pool_drop(t->pool, i / 3, page[i / 3][i % 3]);
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static void pages_take_memory_when_they_are_taken_and_give_it_back_when_trimmed(void **state)
{
    struct state_fixture *t = *state;
    int32_t page[5];
    add_attention(t, 0);
    size_t before = mem_mapped_bytes(MEM_STATE);
    open_pool(t);
    assert_int_equal(mem_mapped_bytes(MEM_STATE), before);
    for (int i = 0; i < 5; i++)
        page[i] = take(t, 0);
    assert_int_equal(mem_mapped_bytes(MEM_STATE), before + 5 * page_bytes(t, 0));
    for (int i = 0; i < 5; i += 2)
        state_pool_drop(t->pool, 0, page[i]);
    assert_int_equal(mem_mapped_bytes(MEM_STATE), before + 5 * page_bytes(t, 0));
    state_pool_trim(t->pool);
    assert_int_equal(mem_mapped_bytes(MEM_STATE), before + 2 * page_bytes(t, 0));
    state_pool_trim(t->pool);
    for (int i = 0; i < 5; i += 2)
        page[i] = take(t, 0); /* some without memory, and one that was never taken */
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(page[i], page[j]);
    assert_int_equal(mem_mapped_bytes(MEM_STATE), before + 5 * page_bytes(t, 0));
    for (int i = 0; i < 5; i++)
        state_pool_drop(t->pool, 0, page[i]);
    close_pool(t);
    assert_int_equal(mem_mapped_bytes(MEM_STATE), before);
}

static void a_full_pool_has_no_page(void **state)
{
    struct state_fixture *t = *state;
    int32_t page[4];
    add_attention(t, 0);
    open_pool_of(t, (const int[]){4});
    assert_int_equal(state_pool_max_bytes(t->pool), 4 * page_bytes(t, 0));
    for (int i = 0; i < 4; i++)
        page[i] = take(t, 0);
    assert_int_equal(state_pool_take(t->pool, 0), -1);
    assert_int_equal(state_pool_used_bytes(t->pool), 4 * page_bytes(t, 0));
    state_pool_drop(t->pool, 0, page[2]);
    assert_int_equal(take(t, 0), page[2]);
    for (int i = 0; i < 4; i++)
        state_pool_drop(t->pool, 0, page[i]);
}

static void free_pages_of_one_kind_make_room_for_another(void **state)
{
    struct state_fixture *t = *state;
    int32_t caches[4], slot[40];
    add_attention(t, 0);
    add_recurrent(t);
    open_pool_of(t, (const int[]){4, 1});
    for (int i = 0; i < 4; i++)
        caches[i] = take(t, 0);
    slot[0] = take(t, 1);
    assert_int_equal(state_pool_take(t->pool, 1), -1);
    for (int i = 0; i < 4; i++)
        state_pool_drop(t->pool, 0, caches[i]);
    int n_more = (int)(4 * page_bytes(t, 0) / page_bytes(t, 1));
    assert_in_range(n_more, 1, 39);
    for (int i = 1; i <= n_more; i++)
        slot[i] = take(t, 1);
    assert_int_equal(state_pool_take(t->pool, 1), -1);
    for (int i = 0; i <= n_more; i++)
        state_pool_drop(t->pool, 1, slot[i]);
}

struct reclaimed {
    int n_asked;
    bool helps;
};

static void reclaim(void *user, size_t n_bytes)
{
    struct reclaimed *r = user;
    r->n_asked++;
    if (r->helps)
        mem_decommit(NULL, 0, MEM_EXPERTS);
}

static void a_limit_on_memory_is_a_full_pool(void **state)
{
    struct state_fixture *t = *state;
    struct reclaimed r = {0};
    add_attention(t, 0);
    open_pool(t);
    size_t before = mem_total_bytes();
    assert_true(mem_set_limit(before + 2 * page_bytes(t, 0) + 1, reclaim, &r));
    int32_t a = state_pool_take(t->pool, 0), b = state_pool_take(t->pool, 0), none = state_pool_take(t->pool, 0);
    size_t used = state_pool_used_bytes(t->pool), total = mem_total_bytes();
    mem_lift_limit();
    assert_true(a >= 0 && b >= 0);
    assert_int_equal(none, -1);
    assert_int_equal(r.n_asked, 1);
    assert_int_equal(used, 2 * page_bytes(t, 0));
    assert_int_equal(total, before + used);
    assert_int_equal(take(t, 0), 2); /* the page that there was no memory for */
    for (int32_t i = 0; i < 3; i++)
        state_pool_drop(t->pool, 0, i);
}

/* A page's memory comes part by part: of heads that lie apart. */
static void half_a_page_is_none(void **state)
{
    struct state_fixture *t = *state;
    add_recurrent(t);
    open_pool(t);
    for (size_t n = 0; n < page_bytes(t, 0); n += BUFFER_ALIGN) {
        size_t before = mem_total_bytes();
        assert_true(mem_set_limit(before + n, NULL, NULL));
        int32_t page = state_pool_take(t->pool, 0);
        size_t after = mem_total_bytes();
        mem_lift_limit();
        assert_int_equal(page, -1);
        assert_int_equal(after, before);
    }
}

/* ---- checkpoints --------------------------------------------------------------------------------------------- */

/* A checkpoint that holds one page of the first kind, and what it would save. */
static struct checkpoint_ref take_checkpoint(struct state_fixture *t, int64_t saved)
{
    const struct checkpoint_ref r = checkpoint_take(t->pool, page_bytes(t, 0));
    assert_true(checkpoint_is_there(&r));
    r.at->slot = take(t, 0);
    r.at->saved = saved;
    return r;
}

static void open_recurrent_pool(struct state_fixture *t, int n_page, int n_checkpoint)
{
    add_recurrent(t);
    t->params.interval = 100;
    open_pool(t);
    t->params.max_checkpoint_bytes = (size_t)n_checkpoint * page_bytes(t, 0);
    open_pool_of(t, &n_page);
}

static void a_checkpoint_holds_what_its_text_needs_to_go_back_there(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_attention(t, 100);
    add_recurrent(t);
    open_pool(t);
    size_t window = (size_t)window_pages(&t->pool->kinds[1]) * page_bytes(t, 1);
    assert_true(window > 0);
    assert_int_equal(state_pool_checkpoint_bytes(t->pool), window + page_bytes(t, 2)); /* none of the whole cache */
}

static void a_checkpoint_goes_with_the_last_text_that_knows_it(void **state)
{
    struct state_fixture *t = *state;
    open_recurrent_pool(t, 10, 10);
    const struct checkpoint_ref r = take_checkpoint(t, 1);
    checkpoint_keep(&r); /* a fork */
    checkpoint_drop(t->pool, &r);
    assert_true(checkpoint_is_there(&r));
    assert_int_equal(t->pool->checkpoint_bytes, page_bytes(t, 0));
    checkpoint_drop(t->pool, &r);
    assert_false(checkpoint_is_there(&r));
    assert_int_equal(t->pool->checkpoint_bytes, 0);
    assert_int_equal(state_pool_used_bytes(t->pool), 0);
    checkpoint_drop(t->pool, &r); /* who forgets it later does no harm */
    assert_int_equal(t->pool->checkpoint_bytes, 0);
}

static void a_full_budget_costs_the_least_useful(void **state)
{
    static const int64_t saved[] = {10, 5, 20, 7};
    static const int order[] = {1, 3, 0, 2};
    struct state_fixture *t = *state;
    struct checkpoint_ref c[4], more[4];
    open_recurrent_pool(t, 20, 4);
    assert_null(checkpoint_take(t->pool, 4 * page_bytes(t, 0) + 1).at);
    for (int i = 0; i < 4; i++)
        c[i] = take_checkpoint(t, saved[i]);
    for (int i = 0; i < 4; i++) {
        more[i] = take_checkpoint(t, 1000);
        for (int j = 0; j < 4; j++)
            assert_int_equal(checkpoint_is_there(&c[order[j]]), j > i);
        assert_int_equal(t->pool->checkpoint_bytes, 4 * page_bytes(t, 0));
        assert_int_equal(state_pool_used_bytes(t->pool), 4 * page_bytes(t, 0));
    }
    for (int i = 0; i < 4; i++) {
        checkpoint_drop(t->pool, &c[i]);
        checkpoint_drop(t->pool, &more[i]);
    }
}

static void old_and_large_checkpoints_are_worth_less(void **state)
{
    struct state_fixture *t = *state;
    open_recurrent_pool(t, 20, 10);
    t->pool->tick = 10;
    struct checkpoint a = {.saved = 100, .bytes = 1000, .tick = 10}, b = a;
    assert_true(checkpoint_worth(t->pool, &a) == checkpoint_worth(t->pool, &b));
    b.tick = 9;
    assert_true(checkpoint_worth(t->pool, &a) > checkpoint_worth(t->pool, &b));
    b = a;
    b.bytes = 1001;
    assert_true(checkpoint_worth(t->pool, &a) > checkpoint_worth(t->pool, &b));
    b = a;
    b.saved = 101;
    assert_true(checkpoint_worth(t->pool, &a) < checkpoint_worth(t->pool, &b));
}

static void pages_for_texts_cost_checkpoints_one_by_one(void **state)
{
    struct state_fixture *t = *state;
    struct checkpoint_ref c[3];
    open_recurrent_pool(t, 4, 3);
    for (int i = 0; i < 3; i++)
        c[i] = take_checkpoint(t, 10 - i);
    int32_t page[4] = {take(t, 0)};
    for (int i = 1; i < 4; i++) {
        assert_true(checkpoint_is_there(&c[3 - i]));
        page[i] = take(t, 0);
        assert_false(checkpoint_is_there(&c[3 - i]));
        assert_true(i == 3 || checkpoint_is_there(&c[2 - i]));
    }
    assert_int_equal(state_pool_take(t->pool, 0), -1);
    for (int i = 0; i < 3; i++)
        checkpoint_drop(t->pool, &c[i]);
    for (int i = 0; i < 4; i++)
        state_pool_drop(t->pool, 0, page[i]);
}

/* There are so many at most. Then the least useful goes, whose text finds out even though another is in its place. */
static void one_more_checkpoint_than_there_may_be_costs_the_least_useful(void **state)
{
    enum { N = POOL_MAX_CHECKPOINTS };
    struct state_fixture *t = *state;
    struct checkpoint_ref *c = calloc(N + 1, sizeof *c);
    open_recurrent_pool(t, 2 * N, 2 * N);
    for (int i = 0; i < N; i++)
        c[i] = take_checkpoint(t, i == 77 ? 1 : 2);
    c[N] = take_checkpoint(t, 3);
    assert_int_equal(t->pool->checkpoint_bytes, N * page_bytes(t, 0));
    for (int i = 0; i <= N; i++)
        assert_int_equal(checkpoint_is_there(&c[i]), i != 77);
    for (int i = 0; i <= N; i++)
        checkpoint_drop(t->pool, &c[i]);
    free(c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_state, close_state)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_layer_has_what_its_kind_needs),
        TEST(a_convolution_alone_has_its_last_inputs),
        TEST(layers_with_one_window_share_pages),
        TEST(a_shared_cache_is_for_its_widest_window),
        TEST(no_two_parts_of_pages_overlap),
        TEST(q8_0_takes_heads_of_whole_blocks),
        TEST(a_page_is_free_when_nobody_holds_it),
        TEST(a_copy_has_all_layers_and_parts_and_leaves_the_others_alone),
        TEST(pages_take_memory_when_they_are_taken_and_give_it_back_when_trimmed),
        TEST(a_full_pool_has_no_page),
        TEST(free_pages_of_one_kind_make_room_for_another),
        TEST(a_limit_on_memory_is_a_full_pool),
        TEST(half_a_page_is_none),
        TEST(a_checkpoint_holds_what_its_text_needs_to_go_back_there),
        TEST(a_checkpoint_goes_with_the_last_text_that_knows_it),
        TEST(a_full_budget_costs_the_least_useful),
        TEST(old_and_large_checkpoints_are_worth_less),
        TEST(pages_for_texts_cost_checkpoints_one_by_one),
        TEST(one_more_checkpoint_than_there_may_be_costs_the_least_useful),
    };
    return cmocka_run_group_tests_name("state pool", tests, NULL, NULL);
}
