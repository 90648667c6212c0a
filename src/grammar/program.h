/* What a grammar compiles to: automata, and for JSON values schemas, which refer to each other by number. Immutable
 * once it is made.
 *
 * A schema says for each kind of value what must hold: `terms`, conditions that the reading of a value decides (a
 * pattern, a bound, what its properties must be), and `groups` of other schemas that apply to the same value (allOf,
 * anyOf, ...). */
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

/* Conditions: the variables of formulas. A condition is its kind in the upper bits and a number of that kind. */
enum term_kind {
    TERM_ROOT,     /* what a schema of the value before said, by its index */
    TERM_REGEX,    /* where its automaton begins */
    TERM_SET,      /* one of a set of strings */
    TERM_COUNT,    /* of characters, items or properties */
    TERM_BOUND,    /* a bound of numbers */
    TERM_MULTIPLE, /* a number is a multiple */
    TERM_INTEGER,
    TERM_ITEMS,    /* what a schema says about the items of an array */
    TERM_CONTAINS, /* the same about how many items are like another schema */
    TERM_PROPS,    /* the same about the properties of an object */
    TERM_PRESENT,  /* a name is there */
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
    bool is_real;     /* the schema writes it with a point or an exponent */
};

/* A number times 10^n_frac must be an integer multiple of `of`. */
struct multiple {
    uint32_t of, n_frac;
};

/* A tree over the bytes of strings: children of a node are neighbours, by byte; node 0 is the root. */
struct tree_node {
    uint32_t first, n; /* its children */
    uint32_t lo, hi;   /* the strings below it, by their order */
    int32_t string;    /* the one that ends here, or -1 */
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
/* strings: sorted by their bytes, each once. False: no memory. */
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
    uint32_t additional, names;              /* schemas: of other properties, of all names */
    uint32_t required, n_required;           /* names, into `ids` */
    bool has_items, has_contains, has_props; /* whether these say anything */
};

/* What a schema asks for and nobody enforces. */
struct unenforced {
    const char *keyword, *pointer; /* owned by the program's arena */
};

struct program {
    struct nfa nfa;
    uint32_t start; /* of `nfa` */
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

MUST_USE err_code program_open(struct program *p, struct err *e); /* with the first two schemas */
void program_close(struct program *p);

#endif
