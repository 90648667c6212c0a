/* Random schedules of texts in small pools: batches, failures, forks, drafts, going back, in any order. After each step
 * every text has what its next token sees, and the pool's books agree with what texts and checkpoints hold.
 * MOEBIUS_SEED: of the first schedule; MOEBIUS_SCHEDULES: how many for each model (18). */
#include <stdio.h>

#include "state_fixture.h"

enum { MAX_TEXT = 6, N_STEP = 120, N_CTX = 1500, N_SCHEDULE = 18 };

struct schedule {
    struct state_fixture *t;
    struct random random;
    struct text *texts[MAX_TEXT];
    int n_text;
    int n_full, n_fork, n_draft, n_back, n_checkpoint, n_part; /* what came to pass */
};

static int64_t below(struct schedule *s, int64_t n)
{
    return (int64_t)(random_u32(&s->random) % (uint32_t)n);
}

static struct text *any(struct schedule *s)
{
    return s->texts[below(s, s->n_text)];
}

/* ---- the pool's books ---------------------------------------------------------------------------------------- */

/* References to a page of caches that a text has. */
static int text_refs(const struct text *x, int kind, int32_t page)
{
    const struct text_pages *k = &x->s->kinds[kind];
    int n = 0;
    for (int64_t b = k->first; b < k->end; b++)
        n += k->page[b] == page;
    return n;
}

static int checkpoint_refs(const struct state_pool *p, const struct checkpoint *c, int kind, int32_t page)
{
    int n = 0;
    int64_t at = 0;
    for (int i = 0; i < p->n_cache_kind; i++)
        for (int64_t j = 0; p->kinds[i].window && j < p->kinds[i].window / ATTENTION_BLOCK + 2; j++, at++)
            n += i == kind && c->page[at] == page;
    return n;
}

static int expected_refs(const struct schedule *s, int kind, int32_t page)
{
    const struct state_pool *p = s->t->pool;
    bool is_slot = p->kinds[kind].is_recurrent;
    int n = 0;
    for (int i = 0; i < s->n_text; i++) {
        const struct model_state *x = s->texts[i]->s;
        n += is_slot ? (x->slot == page) + (x->draft.slot == page) : text_refs(s->texts[i], kind, page);
    }
    for (int i = 0; i < POOL_MAX_CHECKPOINTS; i++) {
        const struct checkpoint *c = &p->checkpoints[i];
        if (c->n_ref)
            n += is_slot ? c->slot == page : checkpoint_refs(p, c, kind, page);
    }
    return n;
}

static void expect_pages(const struct schedule *s)
{
    const struct state_pool *p = s->t->pool;
    size_t bytes = 0;
    for (int i = 0; i < p->n_kind; i++) {
        const struct page_kind *k = &p->kinds[i];
        int32_t n_held = 0;
        for (int32_t page = 0; page < k->n_begun; page++) {
            int n = expected_refs(s, i, page);
            assert_int_equal(k->n_ref[page], n);
            n_held += n > 0;
        }
        assert_int_equal(n_held + k->n_free + k->n_bare, k->n_begun);
        bytes += (size_t)n_held * k->bytes;
    }
    assert_int_equal(state_pool_used_bytes(p), bytes);
    assert_true(p->used_bytes <= p->max_bytes);
}

static int checkpoint_texts(const struct schedule *s, const struct checkpoint *c)
{
    int n = 0;
    for (int i = 0; i < s->n_text; i++)
        for (int j = 0; j < s->texts[i]->s->n_checkpoint; j++) {
            const struct checkpoint_ref *r = &s->texts[i]->s->checkpoints[j];
            n += r->at == c && checkpoint_is_there(r);
        }
    return n;
}

static void expect_checkpoints(const struct schedule *s)
{
    const struct state_pool *p = s->t->pool;
    size_t bytes = 0;
    for (int i = 0; i < POOL_MAX_CHECKPOINTS; i++) {
        const struct checkpoint *c = &p->checkpoints[i];
        assert_int_equal(c->n_ref, checkpoint_texts(s, c));
        bytes += c->n_ref ? c->bytes : 0;
    }
    assert_int_equal(p->checkpoint_bytes, bytes);
    assert_true(bytes <= p->max_checkpoint_bytes);
}

static void expect_all(const struct schedule *s)
{
    for (int i = 0; i < s->n_text; i++)
        expect_text(s->t, s->texts[i]);
    expect_pages(s);
    expect_checkpoints(s);
}

/* ---- steps --------------------------------------------------------------------------------------------------- */

static void join_text(struct schedule *s)
{
    if (s->n_text < MAX_TEXT)
        s->texts[s->n_text++] = open_text(s->t, 1 + below(s, N_CTX));
}

static void leave(struct schedule *s)
{
    int i = (int)below(s, s->n_text);
    close_text(&s->texts[i]);
    s->texts[i] = s->texts[--s->n_text];
}

static void fork_some(struct schedule *s)
{
    if (s->n_text == MAX_TEXT)
        return;
    s->texts[s->n_text] = fork_text(s->t, any(s));
    s->n_text++;
    s->n_fork++;
}

static void go_back(struct schedule *s)
{
    struct text *x = any(s);
    int64_t pos = x->s->pos, to = below(s, 2) ? below(s, pos + 1) : max_i64(0, pos - below(s, 100));
    int64_t at = model_state_truncate(x->s, to);
    const struct checkpoint *last = x->s->n_checkpoint ? x->s->checkpoints[x->s->n_checkpoint - 1].at : NULL;
    assert_true(at == to || at == (last ? last->pos : 0));
    assert_int_equal(x->s->pos, at);
    s->n_back++;
    s->n_checkpoint += at < to && at > 0;
}

/* Goes back within a draft, and computes the recurrent state there again. */
static void take_back(struct schedule *s, struct text *x)
{
    int64_t first = x->s->draft.pos, to = first + below(s, x->s->pos - first + 1);
    if (!state_take_back(x->s, to))
        return;
    assert_int_equal(x->s->pos, to);
    s->n_draft++;
    for (int64_t i = 0; i < s->t->m.n_layer && to > first; i++) {
        put_cell(s->t, &s->t->pool->layers[i].past, x->s->slot, 0, x->id[to]);
        put_cell(s->t, &s->t->pool->layers[i].rule, x->s->slot, 0, x->id[to]);
    }
}

static void run_batch(struct schedule *s)
{
    struct text *x = any(s);
    int64_t room = x->s->n_ctx - x->s->pos, most = (const int64_t[]){1, 64, 100, N_CTX}[below(s, 4)];
    enum batch_kind kind = below(s, 3) == 0 ? BATCH_DRAFT : BATCH_KEPT;
    bool is_draft = kind == BATCH_DRAFT, fails = below(s, 6) == 0;
    if (room == 0)
        return;
    if (state_begin(x->s, min_i64(room, 1 + below(s, most)), kind, &s->t->e) != ERR_OK) {
        s->n_full++;
        return;
    }
    int64_t n = x->s->segments[x->s->n_segment - 1].end - x->s->pos;
    int32_t before[MOST_TOKENS + 1];
    memcpy(before, x->id, sizeof before);
    compute(s->t, x, n, random_u32(&s->random));
    if (fails) {
        memcpy(x->id, before, sizeof before);
        state_abort(x->s);
        return;
    }
    state_commit(x->s, n, kind);
    while (is_draft && x->s->draft.is_open && s->t->pool->n_kind > s->t->pool->n_cache_kind && below(s, 2))
        take_back(s, x);
}

/* Appends what x has from y's position to `to`; now and then what was loaded is no good. */
static bool append_part(struct schedule *s, const struct text *x, struct text *y, int64_t to)
{
    int64_t from = y->s->pos;
    size_t n = (size_t)model_state_saved_bytes(x->s, from, to);
    struct bytes b = {malloc(n), 0, n};
    assert_int_equal(model_state_save(x->s, from, to, put_bytes, &b, &s->t->e), ERR_OK);
    assert_int_equal(b.n, n);
    b.n = 0;
    b.most = below(s, 10) ? n : n - 1;
    bool ok = model_state_load(y->s, to, get_bytes, &b, &s->t->e) == ERR_OK;
    if (ok) {
        ok = below(s, 10) > 0;
        model_state_load_end(y->s, ok);
    }
    assert_int_equal(y->s->pos, ok ? to : from);
    free(b.p);
    return ok;
}

/* Another text becomes the beginning of one, part by part. */
static void copy_parts(struct schedule *s)
{
    if (s->n_text == MAX_TEXT)
        return;
    const struct text *x = any(s);
    struct text *y = s->texts[s->n_text++] = open_text(s->t, x->s->n_ctx);
    int64_t most = 1 + below(s, 300);
    memcpy(y->id, x->id, sizeof y->id);
    while (y->s->pos < x->s->pos && below(s, 10)) {
        int64_t from = y->s->pos, at_most = from + 1 + below(s, most);
        int64_t to = model_state_save_end(x->s, from, at_most);
        assert_true(to > from && to <= x->s->pos && (to <= at_most || model_state_save_end(x->s, from, to - 1) == to));
        s->n_part += append_part(s, x, y, to);
        expect_text(s->t, y);
    }
}

static void step(struct schedule *s)
{
    int64_t what = below(s, 17);
    if (s->n_text == 0 || what == 0)
        join_text(s);
    else if (what == 1)
        leave(s);
    else if (what == 2)
        fork_some(s);
    else if (what == 3 || what == 4)
        go_back(s);
    else if (what == 5)
        model_state_checkpoint(any(s)->s);
    else if (what == 6)
        state_pool_trim(s->t->pool);
    else if (what == 7)
        copy_parts(s);
    else
        run_batch(s);
}

/* ---- schedules ----------------------------------------------------------------------------------------------- */

static void open_random_pool(struct schedule *s)
{
    struct state_fixture *t = s->t;
    t->params.max_bytes = 64 << 20;
    t->params.interval = (const int64_t[]){0, 50, 64, 333}[below(s, 4)];
    open_pool(t);
    size_t text_bytes = state_pool_text_bytes(t->pool, N_CTX, N_CTX);
    t->params.max_bytes = text_bytes * (size_t)(1 + below(s, 8)) / 2;
    t->params.max_checkpoint_bytes = text_bytes * (size_t)below(s, 5) / 8;
    open_pool(t);
}

static void run_schedule(struct schedule *s, uint64_t seed)
{
    print_message("seed %llu\n", (unsigned long long)seed);
    s->random = random_seed(seed);
    open_random_pool(s);
    for (int i = 0; i < N_STEP; i++) {
        step(s);
        expect_all(s);
    }
    while (s->n_text)
        leave(s);
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : otherwise;
}

/* All of it comes to pass somewhere in the schedules of a model. */
static void run_schedules(struct state_fixture *t, bool is_recurrent, bool has_checkpoints)
{
    uint64_t seed = setting("MOEBIUS_SEED", 1), n = setting("MOEBIUS_SCHEDULES", N_SCHEDULE);
    struct schedule s = {.t = t};
    for (uint64_t i = 0; i < n; i++)
        run_schedule(&s, seed + i);
    if (n < N_SCHEDULE)
        return;
    assert_true(s.n_full > 0 && s.n_fork > 0 && s.n_back > 0 && s.n_part > 0);
    assert_int_equal(s.n_draft > 0, is_recurrent);
    assert_int_equal(s.n_checkpoint > 0, has_checkpoints);
}

static void texts_of_full_attention(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_latent(t);
    run_schedules(t, false, false);
}

static void texts_of_windows(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 64);
    add_attention(t, 0);
    add_attention(t, 30);
    run_schedules(t, false, true);
}

static void texts_of_windows_that_layers_share(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 64);
    add_sharing(t, 0, 100);
    add_attention(t, 1);
    run_schedules(t, false, true);
}

static void texts_of_recurrent_layers(void **state)
{
    struct state_fixture *t = *state;
    add_recurrent(t);
    add_attention(t, 0);
    run_schedules(t, true, true);
}

static void texts_of_recurrent_layers_alone(void **state)
{
    struct state_fixture *t = *state;
    add_recurrent(t);
    run_schedules(t, true, true);
}

static void texts_of_all_kinds(void **state)
{
    struct state_fixture *t = *state;
    add_attention(t, 0);
    add_attention(t, 100);
    add_recurrent(t);
    add_latent(t);
    add_sharing(t, 1, 100);
    add_attention(t, 20);
    run_schedules(t, true, true);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_state, close_state)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(texts_of_full_attention),
        TEST(texts_of_windows),
        TEST(texts_of_windows_that_layers_share),
        TEST(texts_of_recurrent_layers),
        TEST(texts_of_recurrent_layers_alone),
        TEST(texts_of_all_kinds),
    };
    return cmocka_run_group_tests_name("state schedules", tests, NULL, NULL);
}
