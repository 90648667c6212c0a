/* What states of objects and of their properties' names share. */
#ifndef GRAMMAR_STATES_OBJECT_H
#define GRAMMAR_STATES_OBJECT_H

#include "grammar/states_view.h"

/* An object's `extra`: its shape, a bit for each name of the shape that was seen; and while a value is awaited or read,
 * for each variable the formula of what the value must be, and at the end the state of the value that is awaited. */
enum object_phase { OBJECT_BEGIN, OBJECT_NAME, OBJECT_COLON, OBJECT_VALUE, OBJECT_NEXT, OBJECT_MORE };

/* The names and patterns that the variables of an object know: found when it begins, and kept as variables go. */
struct shape {
    uint32_t *vars, n_var; /* terms: PROPS and PRESENT */
    struct string_tree tree;
    uint32_t *names, n_name;       /* in the tree's order: numbers in the program */
    uint32_t n_word;               /* of a bit for each name */
    uint32_t *required;            /* [n_var][n_word]; of PRESENT the name itself */
    uint32_t *patterns, n_pattern; /* TERM_REGEX's numbers */
};

/* The names that lead to a value that can be, whether they were seen or not: the same for all states that differ in
 * nothing but what was seen. */
struct names_info {
    uint32_t n_word;
    uint32_t possible[]; /* [n_word] */
};

const struct shape *object_shape(const struct states *s, const struct view *v); /* NULL: it knows no names */
static inline bool bit_at(const uint32_t *bits, uint32_t i)
{
    return bits[i / 32] >> (i % 32) & 1;
}

/* What is known when a name has ended. */
struct name_verdict {
    uint32_t name;            /* its place in the shape, or UINT32_MAX */
    const uint32_t *roots;    /* [how many of the object's schemas look at names] verdicts, in their order */
    const uint32_t *patterns; /* [n_pattern] whether each matches */
    const struct view
        *at_begin; /* the object when the name began, whose variables the roots belong to; NULL: the same */
};
/* Puts into extra[from...] what a property of this name must be for each variable, and returns the state of its value;
 * 0: there is none. */
uint32_t object_value(struct states *s, struct view *v, const struct name_verdict *verdict, uint32_t from);
/* The state of a name that begins in the object `state`, whose view is v. */
uint32_t name_begin(struct states *s, uint32_t state, const struct view *v);
/* Whether any name may come in an object. */
bool name_possible(struct states *s, const struct view *v, uint32_t name_state);

#endif
