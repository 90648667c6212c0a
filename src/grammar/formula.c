#include "grammar/formula.h"

#include <stdlib.h>
#include <string.h>

bool formulas_open(struct formulas *f)
{
    uint32_t constant[2] = {0, 1};
    return intern_add(&f->terms, &constant[0], 1) == FORMULA_FALSE &&
           intern_add(&f->terms, &constant[1], 1) == FORMULA_TRUE;
}

void formulas_close(struct formulas *f)
{
    intern_close(&f->terms);
    LIST_CLOSE(&f->stack);
}

static uint32_t add(struct formulas *f, const uint32_t *words, uint32_t n)
{
    uint32_t x = intern_add(&f->terms, words, n);
    if (x != INTERN_NONE)
        return x;
    f->failed = true;
    return FORMULA_FALSE;
}

uint32_t formula_var(struct formulas *f, uint32_t var)
{
    uint32_t words[2] = {FORMULA_VAR, var};
    return add(f, words, 2);
}

uint32_t formula_not(struct formulas *f, uint32_t x)
{
    uint32_t n, words[2] = {FORMULA_NOT, x};
    if (x <= FORMULA_TRUE)
        return !x;
    const uint32_t *w = intern_words(&f->terms, x, &n);
    return w[0] == FORMULA_NOT ? w[1] : add(f, words, 2);
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void sort(uint32_t *xs, uint32_t n)
{
    enum { FEW = 32 }; /* insertion is faster up to about so many */
    if (n > FEW) {
        qsort(xs, n, sizeof *xs, compare);
        return;
    }
    for (uint32_t i = 1; i < n; i++) {
        uint32_t x = xs[i], j = i;
        for (; j > 0 && xs[j - 1] > x; j--)
            xs[j] = xs[j - 1];
        xs[j] = x;
    }
}

static uint32_t add_list(struct formulas *f, enum formula_op op, const uint32_t *xs, uint32_t n)
{
    if (!LIST_ROOM(&f->stack, n + 1)) {
        f->failed = true;
        return FORMULA_FALSE;
    }
    uint32_t *words = f->stack.at + f->stack.n;
    memmove(words + 1, xs, n * sizeof *xs); /* xs may be what lies there */
    words[0] = op;
    return add(f, words, n + 1);
}

/* AND and OR: one constant decides, the other is left out, and so are repetitions. */
static uint32_t and_or(struct formulas *f, enum formula_op op, uint32_t *xs, uint32_t n)
{
    uint32_t decides = op == FORMULA_AND ? FORMULA_FALSE : FORMULA_TRUE, kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (xs[i] == decides)
            return decides;
        if (xs[i] > FORMULA_TRUE)
            xs[kept++] = xs[i];
    }
    sort(xs, kept);
    n = 0;
    for (uint32_t i = 0; i < kept; i++)
        if (n == 0 || xs[n - 1] != xs[i])
            xs[n++] = xs[i];
    return n == 0 ? !decides : n == 1 ? xs[0] : add_list(f, op, xs, n);
}

uint32_t formula_list(struct formulas *f, enum formula_op op, uint32_t *xs, uint32_t n)
{
    if (op != FORMULA_ONE)
        return and_or(f, op, xs, n);
    uint32_t n_true = 0, kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_true += xs[i] == FORMULA_TRUE;
        if (xs[i] > FORMULA_TRUE)
            xs[kept++] = xs[i];
    }
    if (n_true > 1 || kept + n_true == 0)
        return FORMULA_FALSE;
    if (n_true == 1)
        return formula_not(f, and_or(f, FORMULA_OR, xs, kept));
    sort(xs, kept);
    return kept == 1 ? xs[0] : add_list(f, op, xs, kept);
}

static uint32_t map_list(struct formulas *f, uint32_t x, bool hope, formula_map_fn *map, void *user)
{
    uint32_t n, from = f->stack.n;
    enum formula_op op = (enum formula_op)intern_words(&f->terms, x, &n)[0];
    for (uint32_t i = 1; i < n; i++) {
        uint32_t unused, y = formula_map(f, intern_words(&f->terms, x, &unused)[i], hope, map, user);
        if (!LIST_PUSH(&f->stack, y)) {
            f->failed = true;
            return FORMULA_FALSE;
        }
    }
    uint32_t n_list = f->stack.n - from;
    if (!LIST_ROOM(&f->stack, n_list + 1)) {
        f->failed = true;
        return FORMULA_FALSE;
    }
    uint32_t y = formula_list(f, hope && op == FORMULA_ONE ? FORMULA_OR : op, f->stack.at + from, n_list);
    f->stack.n = from;
    return y;
}

uint32_t formula_map(struct formulas *f, uint32_t x, bool hope, formula_map_fn *map, void *user)
{
    uint32_t n;
    if (x <= FORMULA_TRUE)
        return x;
    const uint32_t *w = intern_words(&f->terms, x, &n);
    if (w[0] == FORMULA_VAR)
        return map(user, w[1]);
    if (w[0] != FORMULA_NOT)
        return map_list(f, x, hope, map, user);
    if (hope)
        return FORMULA_TRUE;
    return formula_not(f, formula_map(f, w[1], false, map, user));
}

void formula_each_var(const struct formulas *f, uint32_t x, bool negated, formula_see_fn *see, void *user)
{
    uint32_t n;
    if (x <= FORMULA_TRUE)
        return;
    const uint32_t *w = intern_words(&f->terms, x, &n);
    if (w[0] == FORMULA_VAR) {
        see(user, w[1], negated);
        return;
    }
    for (uint32_t i = 1; i < n; i++)
        formula_each_var(f, w[i], negated || w[0] == FORMULA_NOT || w[0] == FORMULA_ONE, see, user);
}
