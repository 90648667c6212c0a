/* What the files of the schema compiler share. */
#ifndef GRAMMAR_SCHEMA_COMPILER_H
#define GRAMMAR_SCHEMA_COMPILER_H

#include <jansson.h>

#include "grammar/schema.h"

/* A schema of the document that has a number and is still to be compiled. */
struct schema_work {
    const json_t *json;
    const char *pointer; /* owned by the compiler's arena */
    uint32_t schema;
};

struct schema_compiler {
    struct program *p;
    json_t *root;
    bool lenient;
    int draft;                     /* 4, 6, 7, 2019, 2020; 0: the schema doesn't say */
    uint32_t first;                /* the number of its first schema in the program */
    LIST(struct schema_work) work; /* [number of schemas from `first` on] */
    struct intern places;          /* JSON values that are schemas, by their addresses */
    LIST(uint32_t) place_schemas;  /* the schema of each place */
    struct intern anchors;         /* anchors and identifiers in the document, once a $ref has asked for one */
    LIST(const json_t *) anchored; /* the first schema with each of them */
    LIST(bool) weak;               /* schemas of which something is not enforced, from `first` on */
    size_t n_pattern_code;         /* instructions that patterns were compiled to, also where they were too many */
    struct arena arena;
    struct err *e;
};

/* The schema that is being compiled. Its terms and groups are moved to the program's tables when it is complete. */
struct schema_draft {
    struct schema_compiler *c;
    struct schema s;
    const json_t *json;
    const char *pointer;
    LIST(struct schema_term) terms;
    LIST(struct schema_group) groups;
};

/* The pointer of part `key` of what `pointer` points to, cut where it is long; NULL: no memory. */
const char *pointer_to(struct schema_compiler *c, const char *pointer, const char *key);

MUST_USE err_code schema_name(struct schema_compiler *c, const char *s, size_t n, uint32_t *name);
MUST_USE err_code schema_add_term(struct schema_draft *d, uint32_t types, uint32_t term, bool negated);
/* A group of schemas whose numbers are ids[0..n). */
MUST_USE err_code schema_add_group(struct schema_draft *d, enum group_kind kind, uint32_t types, const uint32_t *ids,
                                   uint32_t n, uint32_t name);
/* Adds a schema with the fields of *s and these terms; *schema is set to its number. */
MUST_USE err_code schema_add(struct schema_compiler *c, const struct schema *s, const struct schema_term *terms,
                             uint32_t n_term, uint32_t *schema);

/* The value of a keyword; NULL: it is missing, or null, which some clients send for missing keywords. Only the value of
 * `const` may be null. */
const json_t *schema_keyword(const struct schema_draft *d, const char *keyword);
/* ERR_FORMAT: the value of a keyword is not what it must be. */
err_code schema_bad(const struct schema_draft *d, const char *keyword, const char *expected);
/* Lists the keyword as not enforced, or makes it an error. */
MUST_USE err_code schema_unenforced(struct schema_draft *d, const char *keyword, const char *why);
err_code schema_no_memory(const struct schema_compiler *c);

/* ---- schema_values.c: enum, const and numbers ------------------------------------------------------------------ */

MUST_USE err_code schema_compile_enum(struct schema_draft *d);
MUST_USE err_code schema_compile_numbers(struct schema_draft *d);

/* ---- schema_refs.c --------------------------------------------------------------------------------------------- */

/* Finds the schema of a $ref. *json NULL: it is in another document or, in a lenient grammar, does not exist. */
MUST_USE err_code schema_resolve(struct schema_draft *d, const char *ref, const json_t **json, const char **pointer);

/* ---- schema_formats.c ------------------------------------------------------------------------------------------ */

/* The regular expression of a format; NULL: the format is only an annotation; "": it is known, but can't be enforced.
 */
const char *schema_format(const char *name);

#endif
