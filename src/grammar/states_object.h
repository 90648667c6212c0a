/* What states of objects and of their properties' names share. */
#ifndef GRAMMAR_STATES_OBJECT_H
#define GRAMMAR_STATES_OBJECT_H

#include "grammar/states_view.h"

/* view.extra of an object has its shape and a bit for each of the shape's names that was seen. While a value is
 * expected or being read, there follows for each variable the formula of what the value must be, and last the state of
 * the expected value. */
enum object_phase { OBJECT_BEGIN, OBJECT_NAME, OBJECT_COLON, OBJECT_VALUE, OBJECT_NEXT, OBJECT_MORE };

/* The names and patterns that an object's variables refer to. It is computed when the object begins, and stays the same
 * when variables are dropped. */
struct shape {
    uint32_t *vars, n_var; /* terms: PROPS and PRESENT */
    struct string_tree tree;
    uint32_t *names, n_name;       /* numbers of names in the program, in the tree's order */
    uint32_t n_word;               /* words of a set with a bit for each name */
    uint32_t *required;            /* [n_var][n_word] names that each variable requires; of PRESENT its name */
    uint32_t *patterns, n_pattern; /* TERM_REGEX's numbers */
};

/* The names that can still have a value, whether they were seen or not. It is the same for all states that differ only
 * in which names were seen. */
struct names_info {
    uint32_t n_word;
    uint32_t possible[]; /* [n_word] */
};

const struct shape *object_shape(const struct states *s, const struct view *v); /* NULL: it knows no names */
static inline bool bit_at(const uint32_t *bits, uint32_t i)
{
    return bits[i / 32] >> (i % 32) & 1;
}

/* What is known about a property's name when it has ended. */
struct name_verdict {
    uint32_t name;            /* its index in the shape, or UINT32_MAX */
    const uint32_t *roots;    /* verdicts of the object's schemas that look at names, in their order */
    const uint32_t *patterns; /* [n_pattern] whether each matches */
    const struct view
        *at_begin; /* the object when the name began, whose variables the roots belong to; NULL: the same */
};
/* Writes into extra[from...] for each variable what a property of this name must be, and returns the state of its
 * value; 0: no value is possible. */
uint32_t object_value(struct states *s, struct view *v, const struct name_verdict *verdict, uint32_t from);
/* The state of a name that begins in the object `state`, whose view is v. */
uint32_t name_begin(struct states *s, uint32_t state, const struct view *v);
/* Whether any name may come in an object. */
bool name_possible(struct states *s, const struct view *v, uint32_t name_state);

#endif
