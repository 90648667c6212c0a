/* Distances between names, beside a plain table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/near.h"
#include "base/random.h"

static void mistypes_are_counted(void **state)
{
    static const struct {
        const char *a, *b;
        int distance;
    } cases[] = {
        {"", "", 0},
        {"generate", "generate", 0},
        {"genrate", "generate", 1},                        /* dropped */
        {"tokenise", "tokenize", 1},                       /* replaced */
        {"quantise ", "quantize", 2},                      /* and inserted */
        {"blk.0.attn_q.wieght", "blk.0.attn_q.weight", 1}, /* swapped */
        {"", "abc", 3},
        {"abc", "", 3},
        {"", "abcd", NEAR_MAX + 1},
        {"chat", "tune", NEAR_MAX + 1},
        {"ca", "abc", 3}, /* what was swapped is not edited again: 2 otherwise */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(near_distance(cases[i].a, cases[i].b), cases[i].distance);
        assert_int_equal(near_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
}

static void a_name_is_near_within_a_third_of_its_length(void **state)
{
    static const int limits[] = {0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3};
    for (size_t n = 0; n < sizeof limits / sizeof *limits; n++) {
        assert_int_equal(near_limit(n), limits[n]);
        for (int d = 0; d < NEAR_MAX; d++)
            assert_int_equal(d < near_limit(n), 3 * d < (int)n);
    }
    assert_int_equal(near_limit(1000), NEAR_MAX);
}

enum { LONGEST = 9 };

static int min(int a, int b)
{
    return a < b ? a : b;
}

static int table_distance(const char *a, const char *b)
{
    int d[LONGEST + 1][LONGEST + 1], n = (int)strlen(a), m = (int)strlen(b);
    for (int i = 0; i <= n; i++)
        for (int j = 0; j <= m; j++) {
            d[i][j] = i + j;
            if (i > 0 && j > 0)
                d[i][j] = min(min(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = min(d[i][j], d[i - 2][j - 2] + 1);
        }
    return min(d[n][m], NEAR_MAX + 1);
}

static void make_name(struct random *r, char name[LONGEST + 1])
{
    uint32_t n = random_u32(r) % (LONGEST + 1);
    for (uint32_t i = 0; i < n; i++)
        name[i] = (char)('a' + random_u32(r) % 3);
    name[n] = '\0';
}

static void distances_are_those_of_the_whole_table(void **state)
{
    struct random r = random_seed(1);
    for (int i = 0; i < 200000; i++) {
        char a[LONGEST + 1], b[LONGEST + 1];
        make_name(&r, a);
        make_name(&r, b);
        assert_int_equal(near_distance(a, b), table_distance(a, b));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistypes_are_counted),
        cmocka_unit_test(a_name_is_near_within_a_third_of_its_length),
        cmocka_unit_test(distances_are_those_of_the_whole_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
