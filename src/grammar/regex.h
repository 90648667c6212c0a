/* Regular expressions as JSON Schema has them: those of ECMA-262 with its flag "u", less what looks around (but at the
 * pattern's begin) or back. \d, \w and \s are ECMA's. */
#ifndef GRAMMAR_REGEX_H
#define GRAMMAR_REGEX_H

#include "grammar/nfa.h"

enum { REGEX_MAX_PART = 8, REGEX_MAX_NESTING = 100 };

/* A text matches when it matches all parts that are not negated and none of the others: (?=...) and (?!...) at the
 * begin of a pattern are parts. */
struct regex_parts {
    uint32_t begin[REGEX_MAX_PART]; /* where each begins in the automaton */
    bool negated[REGEX_MAX_PART];
    int n;
};

/* `whole`: the text as a whole must match (there are no parts beside the first then); otherwise some part of it.
 * ERR_FORMAT: not a regular expression. ERR_UNSUPPORTED: one that can't be enforced. */
MUST_USE err_code regex_compile(struct nfa *nfa, const char *text, size_t n, bool whole, struct regex_parts *parts,
                                struct err *e);

#endif
