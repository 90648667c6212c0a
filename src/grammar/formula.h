/* Boolean formulas over variables that become known while a text is read: which of a value's schemas hold. A formula is
 * a number, the same for the same formula, and is simplified as far as constants go. */
#ifndef GRAMMAR_FORMULA_H
#define GRAMMAR_FORMULA_H

#include "grammar/list.h"

enum { FORMULA_FALSE = 0, FORMULA_TRUE = 1 };
enum formula_op { FORMULA_VAR = 2, FORMULA_NOT, FORMULA_AND, FORMULA_OR, FORMULA_ONE /* exactly one of them */ };

struct formulas {
    struct intern terms; /* [op, operands...] */
    LIST(uint32_t) stack;
    bool failed; /* there was no memory: what came back since means nothing */
};

bool formulas_open(struct formulas *f);
void formulas_close(struct formulas *f);

uint32_t formula_var(struct formulas *f, uint32_t var);
uint32_t formula_not(struct formulas *f, uint32_t x);
/* AND, OR or ONE of n formulas, which are changed. */
uint32_t formula_list(struct formulas *f, enum formula_op op, uint32_t *xs, uint32_t n);

/* The formula with each variable replaced by what `map` says. `hope`: an upper bound of it that only grows with the
 * variables: what is under NOT may be as it likes, ONE is OR. */
typedef uint32_t formula_map_fn(void *user, uint32_t var);
uint32_t formula_map(struct formulas *f, uint32_t x, bool hope, formula_map_fn *map, void *user);

/* Calls see(user, var, negated) for each variable in it; one may come several times. negated: beneath a NOT or ONE. */
typedef void formula_see_fn(void *user, uint32_t var, bool negated);
void formula_each_var(const struct formulas *f, uint32_t x, bool negated, formula_see_fn *see, void *user);

#endif
