/* Boolean formulas over variables that become known while a text is read; they say which schemas a value satisfies.
 * A formula is represented by a number, equal formulas by the same number. Constants are simplified away. */
#ifndef GRAMMAR_FORMULA_H
#define GRAMMAR_FORMULA_H

#include "grammar/list.h"

enum { FORMULA_FALSE = 0, FORMULA_TRUE = 1 };
enum formula_op { FORMULA_VAR = 2, FORMULA_NOT, FORMULA_AND, FORMULA_OR, FORMULA_ONE /* exactly one of them */ };

struct formulas {
    struct intern terms; /* [op, operands...] */
    LIST(uint32_t) stack;
    bool failed; /* memory ran out: formulas returned since then are meaningless */
};

bool formulas_open(struct formulas *f);
void formulas_close(struct formulas *f);

uint32_t formula_var(struct formulas *f, uint32_t var);
uint32_t formula_not(struct formulas *f, uint32_t x);
/* AND, OR or ONE of n formulas. Overwrites xs. */
uint32_t formula_list(struct formulas *f, enum formula_op op, uint32_t *xs, uint32_t n);

/* The formula with each variable replaced by the formula that `map` returns. `hope`: an upper bound of that instead,
 * which is monotone in the variables: anything under NOT is taken as true, ONE as OR. */
typedef uint32_t formula_map_fn(void *user, uint32_t var);
uint32_t formula_map(struct formulas *f, uint32_t x, bool hope, formula_map_fn *map, void *user);

/* Calls see(user, var, negated) for each occurrence of a variable. negated: it is beneath a NOT or ONE. */
typedef void formula_see_fn(void *user, uint32_t var, bool negated);
void formula_each_var(const struct formulas *f, uint32_t x, bool negated, formula_see_fn *see, void *user);

#endif
