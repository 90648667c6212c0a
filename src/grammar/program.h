/* A compiled grammar: automata, and schemas for JSON values, which refer to each other by number. It does not change
 * once it has been compiled.
 *
 * A schema says what must hold for each kind of value: `terms` are conditions that are decided while a value is read (a
 * pattern, a bound, schemas of properties), and `groups` combine other schemas for the same value (allOf, anyOf, ...).
 */
#ifndef GRAMMAR_PROGRAM_H
#define GRAMMAR_PROGRAM_H

#include "grammar/decimal.h"
#include "grammar/nfa.h"

/* Kinds of JSON values, as bits of `types`. A property's name is a value of kind NAME. */
enum json_kind {
    KIND_NULL,
    KIND_FALSE,
    KIND_TRUE,
    KIND_NUMBER,
    KIND_STRING,
    KIND_ARRAY,
    KIND_OBJECT,
    KIND_NAME,
    N_KIND
};
enum { KINDS_ALL = (1 << N_KIND) - 1, KINDS_STRING = 1 << KIND_STRING | 1 << KIND_NAME };

/* Conditions, which are the variables of formulas. A condition is a word: its kind in the upper bits, and below them a
 * number whose meaning depends on the kind. */
enum term_kind {
    TERM_ROOT,     /* the verdict of a schema on the value before, by its index */
    TERM_REGEX,    /* the string matches the automaton that begins at this instruction */
    TERM_SET,      /* the string is in this one of program.sets */
    TERM_COUNT,    /* the number of characters, items or properties is in this one of program.counts */
    TERM_BOUND,    /* the number is within this one of program.bounds */
    TERM_MULTIPLE, /* the number is a multiple of this one of program.multiples */
    TERM_INTEGER,  /* the number is an integer */
    TERM_ITEMS,    /* the items of the array satisfy what this schema says about items */
    TERM_CONTAINS, /* as many items as this schema asks for satisfy its `contains` */
    TERM_PROPS,    /* the properties of the object satisfy what this schema says about properties */
    TERM_PRESENT,  /* the object has a property of this name */
};
enum { TERM_SHIFT = 26, TERM_NUMBERS = 1 << TERM_SHIFT };
static inline uint32_t term(enum term_kind kind, uint32_t number)
{
    return (uint32_t)kind << TERM_SHIFT | number;
}
static inline enum term_kind term_kind(uint32_t t)
{
    return (enum term_kind)(t >> TERM_SHIFT);
}
static inline uint32_t term_number(uint32_t t)
{
    return t & (TERM_NUMBERS - 1);
}

enum { COUNT_MANY = UINT32_MAX };
struct count_range {
    uint32_t min, max; /* max: COUNT_MANY for any */
};

struct bound {
    struct decimal value;
    unsigned allowed; /* DECIMAL_LESS and so on; DECIMAL_EQUAL alone: a constant */
    bool is_real;     /* the schema has it with a point or an exponent */
};

/* A number times 10^n_frac must be an integer multiple of `of`. */
struct multiple {
    uint32_t of, n_frac;
};

/* A tree (trie) over the bytes of strings. The children of a node are consecutive, ordered by byte; node 0 is the root.
 */
struct tree_node {
    uint32_t first, n; /* its children */
    uint32_t lo, hi;   /* the range of the strings below it */
    int32_t string;    /* index of the string that ends here, or -1 */
    uint8_t byte;
};
struct string_tree {
    struct tree_node *nodes; /* owned */
    uint32_t n_node, n_string;
};
enum { TREE_NONE = UINT32_MAX };
uint32_t tree_child(const struct string_tree *t, uint32_t node, uint8_t byte); /* TREE_NONE: there is none */

struct text_ref {
    const char *s;
    uint32_t n;
};
/* strings [n]: sorted by their bytes, without duplicates. False: no memory. */
bool tree_build(struct string_tree *t, const struct text_ref *strings, uint32_t n);
int text_ref_compare(const void *a, const void *b);

enum { SCHEMA_ANY = 0, SCHEMA_NEVER = 1 }; /* the first two schemas of each grammar */
enum group_kind {
    GROUP_ALL,
    GROUP_ANY,
    GROUP_ONE,
    GROUP_NOT,
    GROUP_IF /* if, then, else */,
    GROUP_PRESENT /* if name is there */
};

struct schema_term {
    uint32_t types, term;
    bool negated;
};
struct schema_group {
    enum group_kind kind;
    uint32_t types;
    uint32_t first, n; /* into `ids` */
    uint32_t name;     /* of PRESENT */
};
struct schema_prop {
    uint32_t name, schema;
};
int schema_prop_compare(const void *a, const void *b); /* by name */
struct schema_pattern {
    uint32_t schema, first, n; /* schema_terms, into `terms`: all must hold */
};

struct schema {
    uint32_t types;
    uint32_t terms, n_term;   /* schema_term */
    uint32_t groups, n_group; /* schema_group */
    uint32_t prefix, n_prefix, items;
    uint32_t contains;
    struct count_range n_contains;
    uint32_t props, n_prop; /* schema_prop, by name */
    uint32_t patterns, n_pattern;
    uint32_t additional, names;              /* schemas of properties without one of their own, and of all names */
    uint32_t required, n_required;           /* names, into `ids` */
    bool has_items, has_contains, has_props; /* whether the fields on items, contains and properties matter */
};

/* A keyword of a schema that is not enforced. */
struct unenforced {
    const char *keyword, *pointer; /* owned by the program's arena */
};

struct program {
    struct nfa nfa;
    uint32_t start; /* instruction at which a text begins */
    LIST(struct string_tree) sets;
    LIST(struct count_range) counts;
    LIST(struct bound) bounds;
    LIST(struct multiple) multiples;
    LIST(struct text_ref) names; /* of properties; owned by `arena` */
    struct intern name_numbers;  /* the number of each text in `names` */
    LIST(struct schema) schemas;
    LIST(struct schema_term) terms;
    LIST(struct schema_group) groups;
    LIST(struct schema_prop) props;
    LIST(struct schema_pattern) patterns;
    LIST(uint32_t) ids;
    LIST(struct unenforced) unenforced;
    struct arena arena;
};

/* Opens a program with the schemas SCHEMA_ANY and SCHEMA_NEVER. */
MUST_USE err_code program_open(struct program *p, struct err *e);
void program_close(struct program *p);

#endif
