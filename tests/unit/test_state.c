/* What a text leaves behind: which pages it holds of each kind of layer, forks, what going back can do, and states as
 * bytes. */
#include "state_fixture.h"

/* The bytes of n pages of a kind. */
static size_t pages(const struct state_fixture *t, int kind, int64_t n)
{
    return (size_t)n * t->pool->kinds[kind].bytes;
}

static void add_all_kinds(struct state_fixture *t)
{
    add_attention(t, 0);
    add_attention(t, 64);
    add_latent(t);
    add_recurrent(t);
}

/* Feeds tokens up to a position in batches of n. */
static void feed(struct state_fixture *t, struct text *x, int64_t to, int64_t n)
{
    while (x->s->pos < to)
        evaluate(t, x, min_i64(n, to - x->s->pos), 1);
}

/* Goes back, which ends at `expected`, where the text has all that it needs. */
static void go_back(struct state_fixture *t, struct text *x, int64_t pos, int64_t expected)
{
    assert_int_equal(model_state_truncate(x->s, pos), expected);
    assert_int_equal(model_state_pos(x->s), expected);
    expect_text(t, x);
}

/* ---- pages --------------------------------------------------------------------------------------------------- */

static void a_text_takes_a_page_for_each_block_of_its_tokens(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_recurrent(t);
    open_pool(t);
    struct text *x = open_text(t, 1000);
    assert_int_equal(model_state_n_ctx(x->s), 1000);
    assert_int_equal(model_state_pos(x->s), 0);
    assert_int_equal(model_state_bytes(x->s), 0);
    static const int64_t ends[] = {1, 63, 64, 65, 300, 1000};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        evaluate(t, x, ends[i] - x->s->pos, 1);
        expect_text(t, x);
        assert_int_equal(model_state_pos(x->s), ends[i]);
        assert_int_equal(model_state_bytes(x->s), pages(t, 0, (ends[i] + 63) / 64) + pages(t, 1, 1));
        assert_int_equal(state_pool_used_bytes(t->pool), model_state_bytes(x->s));
    }
    close_text(&x);
}

static void a_window_takes_what_is_seen_and_what_going_back_a_little_takes(void **state)
{
    static const int64_t n_batches[] = {1, 64, 100, 512, 1024, 4096};
    struct state_fixture *t = *state;
    add_attention(t, 100);
    open_pool(t);
    for (size_t i = 0; i < sizeof n_batches / sizeof *n_batches; i++) {
        struct text *x = open_text(t, 4096);
        feed(t, x, 4096, n_batches[i]);
        expect_text(t, x);
        assert_int_equal(x->s->kinds[0].first, 54); /* the token at 4096 - 512 sees position 3485 */
        assert_int_equal(model_state_bytes(x->s), pages(t, 0, 10));
        assert_int_equal(state_pool_used_bytes(t->pool), pages(t, 0, 10));
        close_text(&x);
    }
}

/* A window's pages go round in a batch that is longer, but not where later layers see the whole batch. */
static void a_long_batch_takes_no_more_pages_than_its_window_needs(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 100);
    open_pool(t);
    struct text *x = open_text(t, 4096);
    assert_int_equal(state_begin(x->s, 4096, BATCH_KEPT, &t->e), ERR_OK);
    assert_int_equal(state_pool_used_bytes(t->pool), pages(t, 0, (100 + 512) / 64 + 2));
    state_abort(x->s);
    close_text(&x);
    add_sharing(t, 0, 130);
    open_pool(t);
    x = open_text(t, 4096);
    assert_int_equal(state_begin(x->s, 4096, BATCH_KEPT, &t->e), ERR_OK);
    assert_int_equal(state_pool_used_bytes(t->pool), pages(t, 0, 64));
    state_abort(x->s);
    close_text(&x);
}

static void a_text_takes_no_more_than_was_said(void **state)
{
    static const int64_t n_batches[] = {64, 500, 512, 513, 700, 1500, 2048, 2100};
    struct state_fixture *t = *state;
    for (int kind = 0; kind < 4; kind++) {
        t->m.n_layer = 0;
        add_attention(t, (const int64_t[]){0, 64, 700, 200}[kind]);
        if (kind == 3)
            add_sharing(t, 0, 300);
        add_recurrent(t);
        for (size_t i = 0; i < sizeof n_batches / sizeof *n_batches; i++) {
            open_pool(t);
            t->params.max_bytes = state_pool_text_bytes(t->pool, 2100, n_batches[i]);
            open_pool(t);
            struct text *x = open_text(t, 2100);
            for (int again = 0; again < 2; again++) {
                feed(t, x, 2100, n_batches[i]);
                expect_text(t, x);
                model_state_truncate(x->s, 0);
            }
            close_text(&x);
            t->params.max_bytes = 64 << 20;
        }
    }
}

static void a_full_context_ends_at_any_token(void **state)
{
    static const int64_t sizes[] = {1, 63, 64, 65, 127, 128, 1000};
    struct state_fixture *t = *state;
    add_all_kinds(t);
    open_pool(t);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t last = 1; last <= sizes[i] && last <= 64; last += 63) {
            struct text *x = open_text(t, sizes[i]);
            feed(t, x, sizes[i] - last, 100);
            feed(t, x, sizes[i], last);
            expect_text(t, x);
            go_back(t, x, sizes[i], sizes[i]); /* nothing to forget */
            close_text(&x);
        }
}

static void a_full_pool_refuses_a_batch_and_leaves_all_as_it_was(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    open_pool(t);
    t->params.max_bytes = 6 * pages(t, 0, 1) + 6 * pages(t, 1, 1) + 2 * pages(t, 2, 1);
    open_pool(t);
    struct text *x = open_text(t, 1000);
    feed(t, x, 300, 300);
    size_t used = state_pool_used_bytes(t->pool);
    assert_int_equal(try_evaluate(t, x, 500, 1, BATCH_KEPT), ERR_LIMIT);
    assert_non_null(strstr(t->e.text, "no room for more tokens"));
    assert_int_equal(model_state_pos(x->s), 300);
    assert_int_equal(state_pool_used_bytes(t->pool), used);
    expect_text(t, x);
    evaluate(t, x, 60, 2); /* a little fits */
    expect_text(t, x);
    close_text(&x);
}

static void a_limit_on_memory_refuses_a_batch_and_leaves_nothing_behind(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    open_pool(t);
    struct text *x = open_text(t, 4096);
    size_t before = mem_total_bytes();
    assert_true(mem_set_limit(before + 20 * pages(t, 0, 1), NULL, NULL));
    err_code code = state_begin(x->s, 64 * 21, BATCH_KEPT, &t->e);
    state_pool_trim(t->pool);
    size_t after = mem_total_bytes();
    err_code fits = try_evaluate(t, x, 64 * 20, 1, BATCH_KEPT);
    mem_lift_limit();
    assert_int_equal(code, ERR_LIMIT);
    assert_int_equal(after, before);
    assert_int_equal(fits, ERR_OK);
    expect_text(t, x);
    close_text(&x);
}

/* ---- batches that fail --------------------------------------------------------------------------------------- */

static void after_an_abort_a_text_is_what_it_was(void **state)
{
    static const int64_t n_tokens[] = {1, 28, 29, 200, 513, 1700};
    struct state_fixture *t = *state;
    add_all_kinds(t);
    t->params.interval = 64;
    open_pool(t);
    struct text *x = open_text(t, 2000);
    feed(t, x, 300, 50);
    for (size_t i = 0; i < sizeof n_tokens / sizeof *n_tokens; i++)
        for (enum batch_kind kind = BATCH_KEPT; kind <= BATCH_DRAFT; kind++) {
            struct text *y = fork_text(t, x); /* shares the page that the batch begins in */
            size_t used = state_pool_used_bytes(t->pool);
            assert_int_equal(state_begin(y->s, n_tokens[i], kind, &t->e), ERR_OK);
            compute(t, y, n_tokens[i], 7); /* overwrites what it may */
            state_abort(y->s);
            assert_int_equal(model_state_pos(y->s), 300);
            assert_true(state_pool_used_bytes(t->pool) <=
                        used + pages(t, 0, 1) + pages(t, 1, 1)); /* its own last pages */
            expect_text(t, y);
            expect_text(t, x);
            evaluate(t, y, 40, 8);
            expect_text(t, y);
            close_text(&y);
            assert_int_equal(state_pool_used_bytes(t->pool), used);
        }
    close_text(&x);
}

/* Recurrent state that a text holds alone is overwritten where the batch may do so: it stays in its page, and a batch
 * that fails goes back to a checkpoint. One that never began has lost nothing. */
static void in_place_a_failed_batch_goes_back_to_a_checkpoint(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    t->params.interval = 64;
    open_pool(t);
    struct text *x = open_text(t, 500);
    feed(t, x, 100, 100);
    model_state_checkpoint(x->s);
    int32_t shared = x->s->slot;
    assert_int_equal(try_evaluate(t, x, 1, 2, BATCH_IN_PLACE), ERR_OK);
    assert_int_not_equal(x->s->slot, shared); /* the checkpoint holds that one */
    int32_t own = x->s->slot;
    assert_int_equal(try_evaluate(t, x, 1, 3, BATCH_IN_PLACE), ERR_OK);
    assert_int_equal(x->s->slot, own);
    expect_text(t, x);
    assert_int_equal(state_begin(x->s, 1, BATCH_IN_PLACE, &t->e), ERR_OK);
    state_abort(x->s);
    assert_int_equal(x->s->pos, 102);
    expect_text(t, x);
    assert_int_equal(state_begin(x->s, 1, BATCH_IN_PLACE, &t->e), ERR_OK);
    compute(t, x, 1, 4);
    state_fail(x->s);
    assert_int_equal(x->s->pos, 100);
    expect_text(t, x);
    evaluate(t, x, 60, 5);
    expect_text(t, x);
    close_text(&x);
}

/* ---- going back ---------------------------------------------------------------------------------------------- */

static void full_attention_goes_back_anywhere(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_sharing(t, 0, 0);
    t->params.interval = 100;
    open_pool(t);
    struct text *x = open_text(t, 1000);
    feed(t, x, 900, 450);
    go_back(t, x, 900, 900);
    go_back(t, x, 128, 128);
    assert_int_equal(model_state_bytes(x->s), pages(t, 0, 2));
    go_back(t, x, 123, 123);
    assert_int_equal(model_state_bytes(x->s), pages(t, 0, 2));
    evaluate(t, x, 877, 2);
    go_back(t, x, 1, 1);
    go_back(t, x, 0, 0);
    assert_int_equal(state_pool_used_bytes(t->pool), 0);
    close_text(&x);
}

static void windows_go_back_by_a_ubatch_whatever_the_batches(void **state)
{
    static const int64_t n_batches[] = {1, 64, 100, 512, 600, 1024, 3000};
    struct state_fixture *t = *state;
    add_attention(t, 70);
    open_pool(t);
    for (size_t i = 0; i < sizeof n_batches / sizeof *n_batches; i++) {
        struct text *x = open_text(t, 4096);
        feed(t, x, 3000, n_batches[i]);
        for (int64_t back = 1; back <= MODEL_UBATCH; back += 73) {
            struct text *y = fork_text(t, x);
            go_back(t, y, 3000 - back, 3000 - back);
            evaluate(t, y, 100, 2);
            expect_text(t, y);
            close_text(&y);
        }
        close_text(&x);
    }
}

static void a_window_goes_back_as_far_as_it_is_there(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 64);
    open_pool(t);
    struct text *x = open_text(t, 3000);
    feed(t, x, 3000, 1); /* the token at 3000 - 512 sees 2425, in the block that begins with 2368 */
    go_back(t, x, 2431, 2431);
    evaluate(t, x, 10, 2);
    go_back(t, x, 2431, 2431);
    go_back(t, x, 2430, 0);
    evaluate(t, x, 100, 3); /* after a fresh start all is there */
    go_back(t, x, 1, 1);
    close_text(&x);
}

/* The last block of a batch begins where a window that is a token shorter than a block makes its pages go round. */
static void no_window_goes_back_to_pages_that_went_round(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 63);
    open_pool(t);
    struct text *x = open_text(t, 1000);
    evaluate(t, x, 705, 1); /* 12 blocks in 10 pages: the first two are gone */
    go_back(t, x, 190, 190);
    evaluate(t, x, 515, 1);
    go_back(t, x, 705, 705);
    model_state_truncate(x->s, 0);
    evaluate(t, x, 705, 1);
    go_back(t, x, 189, 0); /* which would see position 127 */
    close_text(&x);
}

static void without_checkpoints_recurrent_layers_go_back_to_an_empty_start(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_recurrent(t);
    open_pool(t);
    struct text *x = open_text(t, 100);
    evaluate(t, x, 10, 1);
    model_state_checkpoint(x->s);
    go_back(t, x, 10, 10);
    go_back(t, x, 9, 0);
    assert_int_equal(state_pool_used_bytes(t->pool), 0);
    evaluate(t, x, 10, 2);
    expect_text(t, x);
    close_text(&x);
}

static void recurrent_layers_go_back_to_checkpoints(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_recurrent(t);
    t->params.interval = 100;
    open_pool(t);
    struct text *x = open_text(t, 1000);
    evaluate(t, x, 350, 1); /* inside of which there are some at 100, 200 and 300 */
    go_back(t, x, 299, 200);
    evaluate(t, x, 30, 2);
    model_state_checkpoint(x->s); /* the end of a prompt */
    model_state_checkpoint(x->s); /* is there already */
    assert_int_equal(x->s->n_checkpoint, 3);
    evaluate(t, x, 1, 3);
    go_back(t, x, 230, 230);
    go_back(t, x, 229, 200);
    go_back(t, x, 100, 100);
    go_back(t, x, 99, 0);
    close_text(&x);
}

static void single_tokens_leave_checkpoints_too(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 64);
    add_recurrent(t);
    t->params.interval = 100;
    open_pool(t);
    struct text *x = open_text(t, 1000);
    feed(t, x, 350, 1);
    go_back(t, x, 349, 300);
    feed(t, x, 390, 40);
    go_back(t, x, 299, 200);
    close_text(&x);
}

static void a_windows_checkpoint_reaches_further_than_its_pages(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_attention(t, 64);
    add_attention(t, 200);
    t->params.interval = 500;
    open_pool(t);
    struct text *x = open_text(t, 4096);
    feed(t, x, 4000, 100);
    go_back(t, x, 3490, 3490); /* without one */
    go_back(t, x, 1700, 1500);
    evaluate(t, x, 30, 2);
    go_back(t, x, 1510, 1510); /* what came after the checkpoint is there */
    go_back(t, x, 1499, 1000);
    evaluate(t, x, 800, 3);
    expect_text(t, x);
    go_back(t, x, 1450, 1450);
    close_text(&x);
}

/* Pages of a window go round in a long batch: it leaves no checkpoints, as there is nothing for them to hold. */
static void a_batch_whose_pages_go_round_has_no_checkpoints_inside(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 64);
    add_recurrent(t);
    t->params.interval = 100;
    open_pool(t);
    struct text *x = open_text(t, 4096);
    evaluate(t, x, 704, 1); /* just not: 11 blocks */
    go_back(t, x, 703, 700);
    model_state_truncate(x->s, 0);
    evaluate(t, x, 705, 1);
    go_back(t, x, 705, 705);
    assert_int_equal(x->s->n_checkpoint, 0);
    evaluate(t, x, 1, 1); /* before which there is one at the end of the batch */
    go_back(t, x, 705, 705);
    close_text(&x);
}

static void checkpoints_that_the_pool_took_back_are_skipped(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_recurrent(t);
    t->params.interval = 100;
    open_pool(t);
    t->params.max_checkpoint_bytes = 2 * pages(t, 1, 1);
    open_pool(t);
    struct text *x = open_text(t, 1000), *y = open_text(t, 1000);
    evaluate(t, x, 250, 1);
    for (int i = 0; i < 5; i++) { /* the other text's are younger */
        evaluate(t, y, 10, 2);
        model_state_checkpoint(y->s);
    }
    go_back(t, x, 240, 0);
    go_back(t, y, 49, 40);
    go_back(t, y, 39, 0);
    close_text(&x);
    close_text(&y);
}

/* The window's last page is shared with a checkpoint, and there is no page for a copy. */
static void a_full_pool_gives_a_checkpoint_up_before_it_refuses(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 64);
    t->params.interval = 1000;
    open_pool(t);
    t->params.max_bytes = 2 * pages(t, 0, 1);
    open_pool(t);
    struct text *x = open_text(t, 500);
    evaluate(t, x, 100, 1);
    model_state_checkpoint(x->s);
    evaluate(t, x, 10, 2);
    expect_text(t, x);
    assert_int_equal(t->pool->checkpoint_bytes, 0);
    close_text(&x);
}

static void no_more_checkpoints_are_noted_than_there_is_room_for(void **state)
{
    struct state_fixture *t = *state;
    add_recurrent(t);
    add_attention(t, 0);
    t->params.interval = 1000;
    open_pool(t);
    struct text *x = open_text(t, 500);
    for (int i = 0; i < 100; i++) {
        evaluate(t, x, 3, 1);
        model_state_checkpoint(x->s);
    }
    assert_true(x->s->max_checkpoint < 100);
    assert_int_equal(x->s->n_checkpoint, x->s->max_checkpoint);
    assert_int_equal(t->pool->checkpoint_bytes, pages(t, 1, x->s->max_checkpoint));
    for (int64_t pos = 299; pos > 0; pos = x->s->pos - 1) {
        int64_t at = model_state_truncate(x->s, pos);
        assert_true(at <= pos && at % 3 == 0);
        expect_text(t, x);
        if (at == 0)
            break;
    }
    close_text(&x);
}

/* ---- forks --------------------------------------------------------------------------------------------------- */

static void a_fork_shares_pages_until_one_of_the_two_writes(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    open_pool(t);
    struct text *x = open_text(t, 1000);
    evaluate(t, x, 100, 1);
    struct text *y = fork_text(t, x);
    assert_int_equal(model_state_n_ctx(y->s), 1000);
    assert_int_equal(model_state_pos(y->s), 100);
    assert_int_equal(model_state_bytes(y->s), pages(t, 0, 2));
    assert_int_equal(state_pool_used_bytes(t->pool), pages(t, 0, 2));
    evaluate(t, y, 1, 2);
    assert_int_equal(state_pool_used_bytes(t->pool), pages(t, 0, 3)); /* its own last one */
    evaluate(t, x, 1, 3);
    assert_int_equal(state_pool_used_bytes(t->pool), pages(t, 0, 3)); /* nobody else has the other */
    expect_text(t, x);
    expect_text(t, y);
    evaluate(t, x, 27, 3); /* 128 tokens: the last block is full */
    struct text *z = fork_text(t, x);
    evaluate(t, z, 1, 4);
    assert_int_equal(state_pool_used_bytes(t->pool), pages(t, 0, 4)); /* and nothing was copied */
    expect_text(t, z);
    close_text(&x);
    assert_int_equal(state_pool_used_bytes(t->pool), pages(t, 0, 4)); /* the first block of all, y's last, z's two */
    expect_text(t, y);
    close_text(&y);
    expect_text(t, z);
    close_text(&z);
}

static void forks_of_forks_of_all_kinds_go_their_ways(void **state)
{
    enum { N = 5 };
    struct state_fixture *t = *state;
    struct text *x[N];
    add_all_kinds(t);
    t->params.interval = 64;
    open_pool(t);
    x[0] = open_text(t, 2000);
    feed(t, x[0], 700, 90);
    for (int i = 1; i < N; i++) {
        x[i] = fork_text(t, x[i - 1]);
        expect_text(t, x[i]);
        evaluate(t, x[i], 37 * i, 10 + (uint32_t)i);
    }
    for (int i = 0; i < N; i++)
        evaluate(t, x[i], 100, 20 + (uint32_t)i);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++)
            if (x[j])
                expect_text(t, x[j]);
        close_text(&x[(i * 2 + 1) % N]); /* in any order */
    }
}

static void a_fork_of_an_empty_text_is_one(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    t->params.interval = 10;
    open_pool(t);
    struct text *x = open_text(t, 100), *y = fork_text(t, x);
    assert_int_equal(state_pool_used_bytes(t->pool), 0);
    evaluate(t, y, 20, 1);
    evaluate(t, x, 30, 2);
    expect_text(t, x);
    expect_text(t, y);
    close_text(&x);
    close_text(&y);
}

static void a_fork_goes_back_before_the_place_where_it_began(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    t->params.interval = 100;
    open_pool(t);
    struct text *x = open_text(t, 2000);
    evaluate(t, x, 330, 1);
    struct text *y = fork_text(t, x);
    evaluate(t, y, 50, 2);
    go_back(t, y, 330, 330); /* the fork left a checkpoint */
    evaluate(t, y, 70, 3);
    go_back(t, y, 250, 200);
    evaluate(t, y, 40, 4);
    go_back(t, x, 300, 300);
    evaluate(t, x, 1, 5);
    expect_text(t, y);
    close_text(&x);
    go_back(t, y, 239, 200);
    close_text(&y);
}

static void a_fork_of_a_draft_leaves_it_to_be_taken_back(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    t->params.interval = 1000;
    open_pool(t);
    struct text *x = open_text(t, 500);
    evaluate(t, x, 100, 1);
    assert_int_equal(try_evaluate(t, x, 8, 2, BATCH_DRAFT), ERR_OK);
    struct text *y = fork_text(t, x);
    assert_true(state_take_back(x->s, 100));
    expect_text(t, x);
    evaluate(t, x, 20, 3);
    expect_text(t, y);
    assert_int_equal(model_state_pos(y->s), 108);
    evaluate(t, y, 20, 4);
    expect_text(t, x);
    expect_text(t, y);
    close_text(&x);
    close_text(&y);
}

/* ---- drafts -------------------------------------------------------------------------------------------------- */

static void a_draft_is_taken_back_step_by_step(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    t->params.interval = 4; /* of which a draft takes no notice */
    open_pool(t);
    struct text *x = open_text(t, 500);
    evaluate(t, x, 126, 1);
    assert_int_equal(try_evaluate(t, x, 10, 2, BATCH_DRAFT), ERR_OK);
    assert_int_equal(x->s->n_segment, 0);
    int64_t last = x->s->checkpoints[x->s->n_checkpoint - 1].at->pos;
    assert_true(last <= 126);
    for (int64_t pos = 135; pos > 126; pos -= 3) {
        const struct layer_pages *y = &t->pool->layers[3];
        assert_true(state_take_back(x->s, pos));
        assert_int_equal(model_state_pos(x->s), pos);
        assert_int_equal(model_state_bytes(x->s),
                         pages(t, 0, pos > 128 ? 3 : 2) + pages(t, 1, pos > 128 ? 3 : 2) + pages(t, 2, 1));
        expect_cell(t, &y->rule, x->s->draft.slot, 0, x->id[126]); /* from here the state is computed again */
        put_cell(t, &y->rule, x->s->slot, 0, x->id[pos]);
        put_cell(t, &y->past, x->s->slot, 0, x->id[pos]);
        expect_text(t, x);
    }
    assert_true(state_take_back(x->s, 126));
    assert_false(x->s->draft.is_open);
    expect_text(t, x);
    evaluate(t, x, 10, 3);
    expect_text(t, x);
    close_text(&x);
}

static void a_draft_may_be_the_beginning_of_a_text(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    open_pool(t);
    struct text *x = open_text(t, 500);
    assert_int_equal(try_evaluate(t, x, 10, 2, BATCH_DRAFT), ERR_OK);
    assert_true(state_take_back(x->s, 0));
    assert_int_equal(state_pool_used_bytes(t->pool), 0);
    evaluate(t, x, 10, 3);
    expect_text(t, x);
    close_text(&x);
}

static void a_draft_can_be_taken_back_in_a_full_pool(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_recurrent(t);
    open_pool(t);
    t->params.max_bytes = pages(t, 0, 2) + pages(t, 1, 2);
    open_pool(t);
    struct text *x = open_text(t, 500);
    evaluate(t, x, 100, 1);
    assert_int_equal(try_evaluate(t, x, 8, 2, BATCH_DRAFT), ERR_OK);
    assert_int_equal(state_pool_take(t->pool, 1), -1);
    assert_true(state_take_back(x->s, 105));
    assert_int_equal(model_state_pos(x->s), 105);
    assert_true(state_take_back(x->s, 100));
    expect_text(t, x);
    close_text(&x);
}

/* ---- states as bytes ----------------------------------------------------------------------------------------- */

/* A state's bytes, as many as it says. */
static struct bytes save(struct state_fixture *t, const struct text *x)
{
    size_t n = (size_t)model_state_saved_bytes(x->s, 0, x->s->pos);
    struct bytes b = {malloc(n), 0, n};
    assert_int_equal(model_state_save(x->s, 0, x->s->pos, put_bytes, &b, &t->e), ERR_OK);
    assert_int_equal(b.n, n);
    return b;
}

static err_code load(struct state_fixture *t, struct text *x, int64_t pos, const struct bytes *b, size_t most)
{
    struct bytes from = {b->p, 0, most};
    model_state_truncate(x->s, 0);
    err_code code = model_state_load(x->s, pos, get_bytes, &from, &t->e);
    if (code == ERR_OK) {
        assert_int_equal(from.n, b->n);
        model_state_load_end(x->s, true);
    }
    return code;
}

static void saved_bytes_depend_on_the_text_alone(void **state)
{
    static const int64_t sizes[] = {300, 301, 4096}; /* n_ctx */
    struct state_fixture *t = *state;
    add_all_kinds(t);
    open_pool(t);
    struct text *x = open_text(t, 300), *other = open_text(t, 1000);
    evaluate(t, other, 70, 5); /* pages lie elsewhere */
    feed(t, x, 300, 64);
    struct bytes first = save(t, x);
    /* all of the text, or the 63 positions that the next token sees */
    size_t caches = N_HEAD_KV * (DIM + DIM_V) * (300 + 63) + N_LATENT * 300;
    assert_int_equal(first.n, 4 * (caches + N_MIXED * (N_TAP - 1) + DK * DV * N_HEAD_V));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct text *y = open_text(t, sizes[i]);
        memcpy(y->id, x->id, sizeof y->id);
        if (i == 1)
            feed(t, y, 200, 30); /* another text is there already */
        memcpy(y->id, x->id, sizeof y->id);
        assert_int_equal(model_state_saved_bytes(y->s, 0, 300), first.n);
        assert_int_equal(load(t, y, 300, &first, first.n), ERR_OK);
        assert_int_equal(model_state_pos(y->s), 300);
        expect_text(t, y);
        struct bytes again = save(t, y);
        assert_memory_equal(again.p, first.p, first.n);
        free(again.p);
        close_text(&y);
    }
    free(first.p);
    close_text(&x);
    close_text(&other);
}

static void a_loaded_window_holds_no_more_than_was_saved(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 64);
    open_pool(t);
    struct text *x = open_text(t, 1000);
    feed(t, x, 300, 100);
    struct bytes b = save(t, x);
    assert_int_equal(load(t, x, 300, &b, b.n), ERR_OK);
    evaluate(t, x, 5, 1);
    go_back(t, x, 300, 300);
    go_back(t, x, 299, 0); /* it would see position 236 */
    free(b.p);
    close_text(&x);
}

static void a_loaded_text_can_go_back_to_where_it_was_loaded(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    t->params.interval = 1000;
    open_pool(t);
    struct text *x = open_text(t, 4000);
    feed(t, x, 1300, 100);
    struct bytes b = save(t, x);
    assert_int_equal(load(t, x, 1300, &b, b.n), ERR_OK);
    expect_text(t, x);
    feed(t, x, 2200, 900);
    go_back(t, x, 1400, 1300);
    go_back(t, x, 1299, 0);
    free(b.p);
    close_text(&x);
}

static void an_empty_text_is_saved_too(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    open_pool(t);
    struct text *x = open_text(t, 300);
    struct bytes b = save(t, x);
    assert_int_equal(b.n, 4 * (N_MIXED * (N_TAP - 1) + DK * DV * N_HEAD_V));
    for (size_t i = 0; i < b.n; i++)
        assert_int_equal(b.p[i], 0);
    evaluate(t, x, 20, 1);
    assert_int_equal(load(t, x, 0, &b, b.n), ERR_OK);
    assert_int_equal(model_state_pos(x->s), 0);
    assert_int_equal(state_pool_used_bytes(t->pool), 0);
    free(b.p);
    close_text(&x);
}

static void after_a_failed_load_a_state_is_empty(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    open_pool(t);
    struct text *x = open_text(t, 300);
    feed(t, x, 200, 64);
    struct bytes b = save(t, x);
    for (size_t most = 0; most < b.n; most += 1 + b.n / 13) {
        assert_int_equal(load(t, x, 200, &b, most), ERR_IO);
        assert_non_null(strstr(t->e.text, "no more than"));
        assert_int_equal(model_state_pos(x->s), 0);
        assert_int_equal(state_pool_used_bytes(t->pool), 0);
        evaluate(t, x, 70, 1);
        expect_text(t, x);
    }
    free(b.p);
    close_text(&x);
}

static void a_failed_save_leaves_the_state_alone(void **state)
{
    struct state_fixture *t = *state;
    add_all_kinds(t);
    open_pool(t);
    struct text *x = open_text(t, 300);
    feed(t, x, 200, 64);
    struct bytes b = save(t, x), short_of_room = {malloc(b.n), 0, b.n - 1};
    assert_int_equal(model_state_save(x->s, 0, 200, put_bytes, &short_of_room, &t->e), ERR_IO);
    assert_int_equal(model_state_pos(x->s), 200);
    struct bytes again = save(t, x);
    assert_memory_equal(again.p, b.p, b.n);
    free(again.p);
    free(short_of_room.p);
    free(b.p);
    close_text(&x);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_state, close_state)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_text_takes_a_page_for_each_block_of_its_tokens),
        TEST(a_window_takes_what_is_seen_and_what_going_back_a_little_takes),
        TEST(a_long_batch_takes_no_more_pages_than_its_window_needs),
        TEST(a_text_takes_no_more_than_was_said),
        TEST(a_full_context_ends_at_any_token),
        TEST(a_full_pool_refuses_a_batch_and_leaves_all_as_it_was),
        TEST(a_limit_on_memory_refuses_a_batch_and_leaves_nothing_behind),
        TEST(after_an_abort_a_text_is_what_it_was),
        TEST(in_place_a_failed_batch_goes_back_to_a_checkpoint),
        TEST(full_attention_goes_back_anywhere),
        TEST(windows_go_back_by_a_ubatch_whatever_the_batches),
        TEST(a_window_goes_back_as_far_as_it_is_there),
        TEST(no_window_goes_back_to_pages_that_went_round),
        TEST(without_checkpoints_recurrent_layers_go_back_to_an_empty_start),
        TEST(recurrent_layers_go_back_to_checkpoints),
        TEST(single_tokens_leave_checkpoints_too),
        TEST(a_windows_checkpoint_reaches_further_than_its_pages),
        TEST(a_batch_whose_pages_go_round_has_no_checkpoints_inside),
        TEST(checkpoints_that_the_pool_took_back_are_skipped),
        TEST(a_full_pool_gives_a_checkpoint_up_before_it_refuses),
        TEST(no_more_checkpoints_are_noted_than_there_is_room_for),
        TEST(a_fork_shares_pages_until_one_of_the_two_writes),
        TEST(forks_of_forks_of_all_kinds_go_their_ways),
        TEST(a_fork_of_an_empty_text_is_one),
        TEST(a_fork_goes_back_before_the_place_where_it_began),
        TEST(a_fork_of_a_draft_leaves_it_to_be_taken_back),
        TEST(a_draft_is_taken_back_step_by_step),
        TEST(a_draft_may_be_the_beginning_of_a_text),
        TEST(a_draft_can_be_taken_back_in_a_full_pool),
        TEST(saved_bytes_depend_on_the_text_alone),
        TEST(a_loaded_window_holds_no_more_than_was_saved),
        TEST(a_loaded_text_can_go_back_to_where_it_was_loaded),
        TEST(an_empty_text_is_saved_too),
        TEST(after_a_failed_load_a_state_is_empty),
        TEST(a_failed_save_leaves_the_state_alone),
    };
    return cmocka_run_group_tests_name("state", tests, NULL, NULL);
}
