/* Regular expressions as in JSON Schema: those of ECMA-262 with its flag "u", without back references, and with
 * lookahead at the beginning of a pattern only. \d, \w and \s are those of ECMA-262. */
#ifndef GRAMMAR_REGEX_H
#define GRAMMAR_REGEX_H

#include "grammar/nfa.h"

enum { REGEX_MAX_PART = 8, REGEX_MAX_NESTING = 100 };

/* The parts of a pattern: each (?=...) and (?!...) at its beginning, and the rest. A text matches the pattern if it
 * matches all parts that are not negated and none of those that are. */
struct regex_parts {
    uint32_t begin[REGEX_MAX_PART]; /* [n] the first instruction of each part */
    bool negated[REGEX_MAX_PART];
    int n;
};

/* `whole`: the whole text must match, and lookahead is not supported; false: some substring must. ERR_FORMAT: the text
 * is no regular expression. ERR_UNSUPPORTED: it can't be enforced. */
MUST_USE err_code regex_compile(struct nfa *nfa, const char *text, size_t n, bool whole, struct regex_parts *parts,
                                struct err *e);

#endif
