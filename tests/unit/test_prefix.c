/* Texts that begin alike are found, and no others; against a plain comparison of all with all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/random.h"
#include "texts/prefix.h"

enum { N_TEXT = 600, MAX_IDS = 1000, N_ROUND = 3000 };

struct some_text {
    int32_t ids[MAX_IDS];
    size_t n;
    struct prefix_entry entry;
};

static struct some_text texts[N_TEXT];

static uint32_t below(struct random *r, uint32_t n)
{
    return random_u32(r) % n;
}

/* Tokens that are those of another text up to some place. */
static void make_ids(struct random *r, struct some_text *t)
{
    const struct some_text *other = &texts[below(r, N_TEXT)];
    size_t same = below(r, MAX_IDS);
    t->n = below(r, MAX_IDS);
    same = same < other->n ? same : other->n;
    for (size_t i = same < t->n ? same : t->n; i < t->n; i++)
        t->ids[i] = (int32_t)below(r, 2);
    if (other != t)
        memcpy(t->ids, other->ids, (same < t->n ? same : t->n) * sizeof *t->ids);
}

static size_t n_same(const struct some_text *a, const struct some_text *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->ids[n] == b->ids[n])
        n++;
    return n;
}

struct found {
    const struct some_text *t;
    size_t n[N_TEXT]; /* that it was told of; 0: not */
    size_t last, best;
    bool only_best;
};

static size_t see(void *user, struct prefix_entry *other, size_t n)
{
    struct found *f = user;
    const struct some_text *o = other->owner;
    assert_int_equal(f->n[o - texts], 0);
    assert_true(n >= PREFIX_BLOCK && n / PREFIX_BLOCK <= f->last);
    assert_true(prefix_is_same(&f->t->entry, other, n));
    f->n[o - texts] = n;
    f->last = n / PREFIX_BLOCK;
    f->best = n > f->best ? n : f->best;
    return f->only_best ? f->best : 0;
}

/* What is found of a text is what all others have in common with it. */
static void check_text(const struct prefix_index *x, const struct some_text *t)
{
    struct found all = {.t = t, .last = SIZE_MAX}, best = {.t = t, .last = SIZE_MAX, .only_best = true};
    size_t most = 0;
    prefix_find(x, &t->entry, see, &all);
    prefix_find(x, &t->entry, see, &best);
    for (int i = 0; i < N_TEXT; i++) {
        size_t n = &texts[i] != t && texts[i].entry.is_listed ? n_same(t, &texts[i]) : 0;
        n = n < PREFIX_BLOCK ? 0 : n;
        assert_int_equal(all.n[i], n);
        most = n > most ? n : most;
    }
    assert_int_equal(best.best, most);
}

static void texts_that_begin_alike_are_found(void **state)
{
    struct random r = random_seed(1);
    struct prefix_index x;
    struct err e;
    assert_int_equal(prefix_open(&x, &e), ERR_OK);
    for (int round = 0; round < N_ROUND; round++) {
        struct some_text *t = &texts[below(&r, N_TEXT)];
        t->entry.owner = t;
        switch (below(&r, 4)) {
        case 0: /* other tokens */
            prefix_entry_close(&x, &t->entry);
            make_ids(&r, t);
            prefix_set(&x, &t->entry, t->ids, t->n);
            break;
        case 1: prefix_list(&x, &t->entry); break;
        case 2: prefix_unlist(&x, &t->entry); break;
        case 3: /* more tokens */
            for (uint32_t n = below(&r, 100); n > 0 && t->n < MAX_IDS; n--)
                t->ids[t->n++] = (int32_t)below(&r, 2);
            prefix_set(&x, &t->entry, t->ids, t->n);
        }
        check_text(&x, t);
    }
    assert_true(x.capacity > 1024); /* it grew */
    for (int i = 0; i < N_TEXT; i++)
        prefix_entry_close(&x, &texts[i].entry);
    assert_int_equal(x.n_used, 0);
    prefix_close(&x);
}

static size_t take_first(void *user, struct prefix_entry *other, size_t n)
{
    *(size_t *)user = n;
    return SIZE_MAX;
}

/* Equal hashes of other tokens are candidates; comparing the tokens tells. */
static void tokens_are_compared_not_hashes(void **state)
{
    static int32_t a_ids[2 * PREFIX_BLOCK], b_ids[2 * PREFIX_BLOCK];
    struct prefix_index x;
    struct prefix_entry a = {0}, b = {0};
    struct err e;
    size_t n = 0;
    assert_int_equal(prefix_open(&x, &e), ERR_OK);
    b_ids[3] = 1;
    prefix_set(&x, &a, a_ids, 2 * PREFIX_BLOCK);
    prefix_set(&x, &b, b_ids, 2 * PREFIX_BLOCK);
    memcpy(b.hashes, a.hashes, 2 * sizeof *a.hashes);
    prefix_list(&x, &a);
    prefix_find(&x, &b, take_first, &n);
    assert_int_equal(n, 2 * PREFIX_BLOCK);
    assert_false(prefix_is_same(&a, &b, n));
    assert_true(prefix_is_same(&a, &b, 3));
    assert_false(prefix_is_same(&a, &a, 2 * PREFIX_BLOCK + 1));
    prefix_entry_close(&x, &a);
    prefix_entry_close(&x, &b);
    prefix_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_that_begin_alike_are_found),
        cmocka_unit_test(tokens_are_compared_not_hashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
