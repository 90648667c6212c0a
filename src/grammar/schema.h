/* Compiles JSON schemas (drafts 4 to 2020-12) to the schemas of a program.
 *
 * A keyword that can't be enforced is an error that names it and its place. If `lenient`, it is left out and listed in
 * the program instead; all other keywords are still enforced. */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include "grammar/program.h"

enum {
    SCHEMA_MAX_SCHEMAS = 200000,
    SCHEMA_MAX_DEPTH = 400, /* of nested schemas for the same value, and of constants */
};

/* Adds the schema in n bytes of JSON to a program; *schema: its number. ERR_FORMAT with the JSON pointer of what is no
 * schema, ERR_UNSUPPORTED for what can't be enforced, ERR_LIMIT. */
MUST_USE err_code schema_compile(struct program *p, const char *text, size_t n, bool lenient, uint32_t *schema,
                                 struct err *e);

#endif
