/* The tree of texts' parts: held against a list of texts, by random changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "moebius/moebius.h"
#include "texts/part_tree.h"

enum { KEY = 77, MAX_TOKENS = 24, N_STEP = 3000 };

static int64_t below(struct random *r, int64_t n)
{
    return (int64_t)(random_u32(r) % (uint32_t)n);
}

/* A part of tokens ids[from..n_tok). */
static struct part_node *make(uint64_t key, const int32_t *ids, int64_t from, int64_t n_tok)
{
    struct part_node *x = mem_calloc(1, sizeof *x);
    x->from = from;
    x->n_tok = n_tok;
    x->ids = mem_calloc((size_t)(n_tok - from), sizeof *x->ids);
    memcpy(x->ids, ids + from, (size_t)(n_tok - from) * sizeof *ids);
    x->hash_before = moebius_tokens_hash(key, ids, (size_t)from);
    x->hash = moebius_tokens_hash(x->hash_before, ids + from, (size_t)(n_tok - from));
    x->n_bytes = (uint64_t)(n_tok - from) * 10;
    return x;
}

/* All tokens of a part's text. */
static void spell(const struct part_node *x, int32_t *ids)
{
    for (; x; x = x->parent)
        memcpy(ids + x->from, x->ids, (size_t)(x->n_tok - x->from) * sizeof *ids);
}

/* Few different tokens, so that texts begin alike. */
static int64_t random_text(struct random *r, int32_t *ids)
{
    int64_t n = 1 + below(r, MAX_TOKENS);
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)below(r, 2);
    return n;
}

static void list_below(struct part_node *x, struct part_node **all, size_t *n)
{
    for (; x; x = x->next) {
        all[(*n)++] = x;
        list_below(x->child, all, n);
    }
}

/* What part_tree_find should give, by looking at each part. */
static size_t most_same(const struct part_tree *t, uint64_t key, const int32_t *ids, size_t n, bool is_whole)
{
    struct part_node *all[N_STEP];
    size_t n_all = 0, most = 0;
    list_below(t->roots, all, &n_all);
    assert_int_equal(n_all, t->n);
    for (size_t i = 0; i < n_all; i++) {
        int32_t text[MAX_TOKENS];
        size_t same = 0, n_tok = (size_t)all[i]->n_tok;
        const struct part_node *root = all[i];
        spell(all[i], text);
        while (root->parent)
            root = root->parent;
        while (same < n && same < n_tok && ids[same] == text[same])
            same++;
        if (root->hash_before == key && (same == n_tok || (!is_whole && same > (size_t)all[i]->from)) && same > most)
            most = same;
    }
    return most;
}

static void expect_found(const struct part_tree *t, struct random *r)
{
    int32_t ids[MAX_TOKENS], text[MAX_TOKENS];
    size_t n = (size_t)random_text(r, ids), n_same;
    uint64_t key = below(r, 4) ? KEY : KEY + 1;
    bool is_whole = below(r, 2);
    struct part_node *x = part_tree_find(t, key, ids, n, is_whole, &n_same);
    assert_int_equal(n_same, most_same(t, key, ids, n, is_whole));
    assert_int_equal(x != NULL, n_same > 0);
    if (!x)
        return;
    spell(x, text);
    assert_memory_equal(text, ids, n_same * sizeof *ids);
    assert_true(is_whole ? (size_t)x->n_tok == n_same : (size_t)x->from < n_same);
}

/* A text's next part, behind what there is of it. */
static void add_some(struct part_tree *t, struct random *r)
{
    int32_t ids[MAX_TOKENS];
    uint64_t key = below(r, 4) ? KEY : KEY + 1;
    int64_t n = random_text(r, ids);
    size_t n_same;
    struct part_node *parent = part_tree_find(t, key, ids, (size_t)n, true, &n_same);
    if ((size_t)n == n_same)
        return;
    struct part_node *x = make(key, ids, (int64_t)n_same, (int64_t)n_same + 1 + below(r, n - (int64_t)n_same));
    part_tree_add(t, parent, x);
    part_tree_use(x, below(r, 1000));
}

static void a_text_finds_the_part_that_leads_furthest(void **state)
{
    struct random r = random_seed(1);
    struct part_tree t = {0};
    for (int i = 0; i < N_STEP; i++) {
        if (below(&r, 3) || t.n == 0)
            add_some(&t, &r);
        else
            part_tree_remove(&t, part_tree_leaf(t.roots));
        expect_found(&t, &r);
    }
    assert_true(t.n > 10);
    part_tree_close(&t);
    assert_int_equal(t.n, 0);
    assert_int_equal(t.n_bytes, 0);
}

static void parts_find_their_places_again_in_any_order(void **state)
{
    struct random r = random_seed(2);
    for (int round = 0; round < 50; round++) {
        struct part_tree t = {0}, again = {0};
        struct part_node *all[200], *copies[200];
        size_t n = 0, n_copy = 0;
        for (int i = 0; i < 100; i++)
            add_some(&t, &r);
        list_below(t.roots, all, &n);
        const struct part_node *lost = all[below(&r, (int64_t)n)];
        size_t n_orphan = 0;
        for (size_t i = 0; i < n; i++) {
            const struct part_node *x = all[i];
            int32_t ids[MAX_TOKENS];
            if (x == lost)
                continue;
            spell(x, ids);
            const struct part_node *root = x, *up = x;
            while (root->parent)
                root = root->parent;
            while (up && up != lost)
                up = up->parent;
            n_orphan += up != NULL;
            copies[n_copy++] = make(root->hash_before, ids, x->from, x->n_tok);
        }
        for (size_t i = n_copy; i > 1; i--) {
            size_t j = (size_t)below(&r, (int64_t)i);
            struct part_node *x = copies[j];
            copies[j] = copies[i - 1];
            copies[i - 1] = x;
        }
        assert_int_equal(part_tree_link(&again, copies, n_copy), n_orphan);
        assert_int_equal(again.n, n_copy - n_orphan);
        for (size_t i = 0; i < n_orphan; i++)
            part_node_free(copies[i]);
        for (int i = 0; i < 20; i++)
            expect_found(&again, &r);
        part_tree_close(&again);
        part_tree_close(&t);
    }
}

/* Hashes alone would take either part for the parent of both others. */
static void parts_of_one_hash_are_told_apart_by_their_ends(void **state)
{
    const int32_t ids[4] = {1, 2, 3, 4};
    struct part_tree t = {0};
    struct part_node *x[4] = {make(KEY, ids, 0, 2), make(KEY, ids, 0, 3), make(KEY, ids, 2, 4), make(KEY, ids, 3, 4)};
    struct part_node *nodes[4] = {x[0], x[1], x[2], x[3]};
    for (int i = 0; i < 2; i++) {
        x[i]->hash = 5;
        x[2 + i]->hash_before = 5;
    }
    assert_int_equal(part_tree_link(&t, nodes, 4), 0);
    assert_ptr_equal(x[2]->parent, x[0]);
    assert_ptr_equal(x[3]->parent, x[1]);
    part_tree_close(&t);
}

static void the_oldest_leaf_goes_first(void **state)
{
    struct random r = random_seed(3);
    struct part_tree t = {0};
    for (int i = 0; i < 300; i++)
        add_some(&t, &r);
    struct part_node *all[N_STEP], *but = part_tree_leaf(t.roots);
    while (t.n > 1) {
        size_t n = 0;
        list_below(t.roots, all, &n);
        struct part_node *x = part_tree_oldest(&t, but);
        assert_non_null(x);
        assert_null(x->child);
        assert_ptr_not_equal(x, but);
        for (size_t i = 0; i < n; i++)
            assert_true(all[i]->child || all[i] == but || all[i]->used_ns >= x->used_ns);
        part_tree_remove(&t, x);
        if (!part_tree_oldest(&t, but))
            break;
    }
    const struct part_node *x = but;
    for (size_t n = t.n; n > 0; n--, x = x->parent)
        assert_non_null(x); /* what is left is `but` and what it goes on from */
    assert_null(x);
    assert_null(part_tree_oldest(&t, but));
    part_tree_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_finds_the_part_that_leads_furthest),
        cmocka_unit_test(parts_find_their_places_again_in_any_order),
        cmocka_unit_test(parts_of_one_hash_are_told_apart_by_their_ends),
        cmocka_unit_test(the_oldest_leaf_goes_first),
    };
    return cmocka_run_group_tests_name("part_tree", tests, NULL, NULL);
}
