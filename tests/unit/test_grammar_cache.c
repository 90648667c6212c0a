/* The cache of compiled grammars: what is the same is compiled once, what is used stays, and the rest is bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "server/grammar_cache.h"

static int open_cache(void **state)
{
    struct err e;
    return grammar_cache_open((struct grammar_cache **)state, NULL, &e) == ERR_OK ? 0 : -1;
}

static int close_cache(void **state)
{
    grammar_cache_close((struct grammar_cache **)state);
    return 0;
}

static struct kept_grammar *take(struct grammar_cache *cache, moebius_grammar_kind kind, const char *text)
{
    struct kept_grammar *k;
    moebius_error error;
    assert_int_equal(grammar_cache_take(cache, kind, text, strlen(text), 0, &k, &error), MOEBIUS_OK);
    return k;
}

static void what_is_the_same_is_compiled_once(void **state)
{
    struct grammar_cache *cache = *state;
    struct kept_grammar *a = take(cache, MOEBIUS_GRAMMAR_REGEX, "a+"), *b = take(cache, MOEBIUS_GRAMMAR_REGEX, "b+"),
                        *same = take(cache, MOEBIUS_GRAMMAR_REGEX, "a+"), *lenient;
    moebius_error error;
    assert_ptr_equal(a, same);
    assert_ptr_not_equal(a, b);
    assert_int_equal(
        grammar_cache_take(cache, MOEBIUS_GRAMMAR_REGEX, "a+", 2, MOEBIUS_GRAMMAR_LENIENT, &lenient, &error),
        MOEBIUS_OK);
    assert_ptr_not_equal(a, lenient);
    grammar_cache_give_back(cache, a);
    grammar_cache_give_back(cache, same);
    assert_ptr_equal(take(cache, MOEBIUS_GRAMMAR_REGEX, "a+"), a);
    grammar_cache_give_back(cache, a);
    grammar_cache_give_back(cache, b);
    grammar_cache_give_back(cache, lenient);
}

static void what_is_wrong_is_not_kept(void **state)
{
    struct kept_grammar *k;
    moebius_error error;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(grammar_cache_take(*state, MOEBIUS_GRAMMAR_GBNF, "root ::= (", 10, 0, &k, &error),
                         MOEBIUS_FORMAT);
        assert_null(k);
        assert_non_null(strstr(error.text, "line 1"));
    }
}

/* How many of the grammars x{0,} .. x{N,} are still there, beginning with the last. */
static int count_kept(struct grammar_cache *cache, struct kept_grammar *const *were, int n)
{
    int n_kept = 0;
    for (int i = n; i-- > 0;) {
        char text[32];
        snprintf(text, sizeof text, "x{%d,}", i);
        struct kept_grammar *k = take(cache, MOEBIUS_GRAMMAR_REGEX, text);
        n_kept += k == were[i] && moebius_grammar_bytes(k->grammar) > 0 && !strcmp(were[i]->text, text);
        grammar_cache_give_back(cache, k);
        if (n_kept < n - i) /* from here on others take the place of those that are looked for */
            break;
    }
    return n_kept;
}

static void what_nobody_uses_is_bounded(void **state)
{
    enum { N = 100 };
    struct grammar_cache *cache = *state;
    struct kept_grammar *all[N], *used = take(cache, MOEBIUS_GRAMMAR_REGEX, "used");
    for (int i = 0; i < N; i++) {
        char text[32];
        snprintf(text, sizeof text, "x{%d,}", i);
        all[i] = take(cache, MOEBIUS_GRAMMAR_REGEX, text);
    }
    for (int i = 0; i < N; i++)
        grammar_cache_give_back(cache, all[i]);
    int n_kept = count_kept(cache, all, N);
    assert_in_range(n_kept, 16, 48);
    assert_ptr_equal(take(cache, MOEBIUS_GRAMMAR_REGEX, "used"), used);
    grammar_cache_give_back(cache, used);
    grammar_cache_give_back(cache, used);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_the_same_is_compiled_once, open_cache, close_cache),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_not_kept, open_cache, close_cache),
        cmocka_unit_test_setup_teardown(what_nobody_uses_is_bounded, open_cache, close_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
