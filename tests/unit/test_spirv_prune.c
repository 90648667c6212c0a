/* Modules that are too short to compute anything, but have each kind of branch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "vulkan/spirv_prune.h"

enum opcode {
    DECORATE = 71,
    TYPE_BOOL = 20,
    TYPE_INT = 21,
    CONSTANT = 43,
    SPEC_CONSTANT = 50,
    SPEC_OP = 52,
    FUNCTION = 54,
    FUNCTION_END = 56,
    IADD = 128,
    IEQUAL = 170,
    PHI = 245,
    LOOP_MERGE = 246,
    SELECTION_MERGE = 247,
    LABEL = 248,
    BRANCH = 249,
    BRANCH_IF = 250,
    SWITCH = 251,
    RETURN = 253,
    UNREACHABLE = 255,
};

/* Ids. Those from HEAD on are labels of the function's blocks. */
enum id {
    NONE,
    VOID_FUNCTION,
    BOOL,
    UINT,
    KIND,
    SEVEN,
    IS_SEVEN,
    MAIN,
    LEFT_SUM,
    RIGHT_SUM,
    MERGED,
    HEAD,
    LEFT,
    RIGHT,
    THEN,
    LAST,
    N_ID
};

enum { SPEC_ID = 1, NO_CONTRACTION = 42, MOST_WORDS = 256 };

struct words {
    uint32_t w[MOST_WORDS];
    size_t n;
};

/* Adds an instruction of n words behind the first. */
static void add(struct words *m, enum opcode op, int n, ...)
{
    va_list more;
    va_start(more, n);
    m->w[m->n++] = (uint32_t)(n + 1) << 16 | (uint32_t)op;
    for (int i = 0; i < n; i++)
        m->w[m->n++] = (uint32_t)va_arg(more, int);
    va_end(more);
}

/* What comes before the blocks: KIND is specialization constant 0, which is 7 unless something else is said. */
static void begin(struct words *m)
{
    *m = (struct words){.w = {0x07230203, 0x10500, 0, N_ID, 0}, .n = 5};
    add(m, DECORATE, 3, KIND, SPEC_ID, 0);
    add(m, DECORATE, 2, LEFT_SUM, NO_CONTRACTION);
    add(m, DECORATE, 2, RIGHT_SUM, NO_CONTRACTION);
    add(m, TYPE_BOOL, 1, BOOL);
    add(m, TYPE_INT, 3, UINT, 32, 0);
    add(m, SPEC_CONSTANT, 3, UINT, KIND, 7);
    add(m, CONSTANT, 3, UINT, SEVEN, 7);
    add(m, SPEC_OP, 5, BOOL, IS_SEVEN, IEQUAL, KIND, SEVEN);
    add(m, FUNCTION, 4, UINT, MAIN, 0, VOID_FUNCTION);
}

static void end(struct words *m)
{
    add(m, LABEL, 1, LAST);
    add(m, RETURN, 0);
    add(m, FUNCTION_END, 0);
}

/* Prunes with KIND as said, or with its default, in place. */
static void prune(struct words *m, const uint32_t *kind)
{
    size_t n;
    uint32_t *out = spirv_prune(m->w, m->n, kind, kind ? 1 : 0, &n);
    assert_non_null(out);
    assert_true(n <= m->n);
    memcpy(m->w, out, n * sizeof *out);
    m->n = n;
    mem_free(out);
}

/* Whether the module's instructions, from the first block on, are those of `want`; what is said of ids must be of some
 * that are there. */
static void check_blocks(const struct words *m, const struct words *want)
{
    size_t at = 5;
    while ((m->w[at] & 0xffff) != LABEL)
        at += m->w[at] >> 16;
    assert_int_equal(m->n - at, want->n);
    assert_memory_equal(m->w + at, want->w, want->n * sizeof *want->w);
}

static bool is_decorated(const struct words *m, enum id id)
{
    for (size_t at = 5; at < m->n; at += m->w[at] >> 16)
        if ((m->w[at] & 0xffff) == DECORATE && m->w[at + 1] == id)
            return true;
    return false;
}

/* if (KIND == 7) LEFT_SUM = ...; else RIGHT_SUM = ...; MERGED = one of them. */
static void add_if(struct words *m)
{
    begin(m);
    add(m, LABEL, 1, HEAD);
    add(m, SELECTION_MERGE, 2, THEN, 0);
    add(m, BRANCH_IF, 3, IS_SEVEN, LEFT, RIGHT);
    add(m, LABEL, 1, LEFT);
    add(m, IADD, 4, UINT, LEFT_SUM, KIND, SEVEN);
    add(m, BRANCH, 1, THEN);
    add(m, LABEL, 1, RIGHT);
    add(m, IADD, 4, UINT, RIGHT_SUM, SEVEN, SEVEN);
    add(m, BRANCH, 1, THEN);
    add(m, LABEL, 1, THEN);
    add(m, PHI, 6, UINT, MERGED, LEFT_SUM, LEFT, RIGHT_SUM, RIGHT);
    add(m, BRANCH, 1, LAST);
    end(m);
}

static void if_keeps_the_side_that_is_taken(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {7, 8};
    for (int i = 0; i < 3; i++) { /* the third time by default */
        bool is_left = i != 1;
        enum id side = is_left ? LEFT : RIGHT, sum = is_left ? LEFT_SUM : RIGHT_SUM;
        struct words m, want = {.n = 0};
        add_if(&m);
        prune(&m, i < 2 ? &kinds[i] : NULL);
        add(&want, LABEL, 1, HEAD);
        add(&want, BRANCH, 1, side);
        add(&want, LABEL, 1, side);
        add(&want, IADD, 4, UINT, sum, is_left ? KIND : SEVEN, SEVEN);
        add(&want, BRANCH, 1, THEN);
        add(&want, LABEL, 1, THEN);
        add(&want, PHI, 4, UINT, MERGED, sum, side);
        add(&want, BRANCH, 1, LAST);
        end(&want);
        check_blocks(&m, &want);
        assert_true(is_decorated(&m, KIND));
        assert_int_equal(is_decorated(&m, LEFT_SUM), is_left);
        assert_int_equal(is_decorated(&m, RIGHT_SUM), !is_left);
    }
}

/* switch (KIND) { case 7: LEFT; case 9: RIGHT; default: THEN } */
static void add_switch(struct words *m)
{
    begin(m);
    add(m, LABEL, 1, HEAD);
    add(m, SELECTION_MERGE, 2, LAST, 0);
    add(m, SWITCH, 6, KIND, THEN, 7, LEFT, 9, RIGHT);
    for (enum id label = LEFT; label <= THEN; label++) {
        add(m, LABEL, 1, label);
        add(m, BRANCH, 1, LAST);
    }
    end(m);
}

static void switch_keeps_its_case(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {7, 9, 10};
    static const enum id labels[] = {LEFT, RIGHT, THEN};
    for (int i = 0; i < 3; i++) {
        struct words m, want = {.n = 0};
        add_switch(&m);
        prune(&m, &kinds[i]);
        add(&want, LABEL, 1, HEAD);
        add(&want, SELECTION_MERGE, 2, LAST, 0); /* a case may break from its depths */
        add(&want, SWITCH, 2, KIND, labels[i]);
        add(&want, LABEL, 1, labels[i]);
        add(&want, BRANCH, 1, LAST);
        end(&want);
        check_blocks(&m, &want);
    }
}

/* A loop that ends after one round where KIND is 7: RIGHT, which continues it, is not reached. */
static void loop_keeps_its_form(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {7, 8};
    for (int i = 0; i < 2; i++) {
        struct words m, want = {.n = 0};
        begin(&m);
        add(&m, LABEL, 1, LEFT);
        add(&m, BRANCH, 1, HEAD);
        add(&m, LABEL, 1, HEAD);
        add(&m, PHI, 6, UINT, MERGED, SEVEN, LEFT, RIGHT_SUM, RIGHT);
        add(&m, LOOP_MERGE, 3, LAST, RIGHT, 0);
        add(&m, BRANCH, 1, THEN);
        add(&m, LABEL, 1, THEN);
        add(&m, BRANCH_IF, 3, IS_SEVEN, LAST, RIGHT);
        add(&m, LABEL, 1, RIGHT);
        add(&m, IADD, 4, UINT, RIGHT_SUM, MERGED, SEVEN);
        add(&m, BRANCH, 1, HEAD);
        end(&m);
        prune(&m, &kinds[i]);
        add(&want, LABEL, 1, LEFT);
        add(&want, BRANCH, 1, HEAD);
        add(&want, LABEL, 1, HEAD);
        add(&want, PHI, 6, UINT, MERGED, SEVEN, LEFT, i ? RIGHT_SUM : MERGED, RIGHT);
        add(&want, LOOP_MERGE, 3, LAST, RIGHT, 0);
        add(&want, BRANCH, 1, THEN);
        add(&want, LABEL, 1, THEN);
        add(&want, BRANCH, 1, i ? RIGHT : LAST);
        add(&want, LABEL, 1, RIGHT);
        if (i)
            add(&want, IADD, 4, UINT, RIGHT_SUM, MERGED, SEVEN);
        add(&want, BRANCH, 1, HEAD);
        if (i) {
            add(&want, LABEL, 1, LAST); /* never reached now, but the loop names it */
            add(&want, UNREACHABLE, 0);
            add(&want, FUNCTION_END, 0);
        } else {
            end(&want);
        }
        check_blocks(&m, &want);
    }
}

/* What no constant decides stays as it is. */
static void unknown_branch_stays(void **state)
{
    (void)state;
    struct words m, want = {.n = 0};
    begin(&m);
    size_t first = m.n;
    add(&m, LABEL, 1, HEAD);
    add(&m, IEQUAL, 4, BOOL, MERGED, LEFT_SUM, SEVEN); /* LEFT_SUM stands for anything */
    add(&m, SELECTION_MERGE, 2, LAST, 0);
    add(&m, BRANCH_IF, 3, MERGED, LEFT, LAST);
    add(&m, LABEL, 1, LEFT);
    add(&m, BRANCH, 1, LAST);
    end(&m);
    want.n = m.n - first;
    memcpy(want.w, m.w + first, want.n * sizeof *m.w);
    prune(&m, NULL);
    check_blocks(&m, &want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(if_keeps_the_side_that_is_taken),
        cmocka_unit_test(switch_keeps_its_case),
        cmocka_unit_test(loop_keeps_its_form),
        cmocka_unit_test(unknown_branch_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
