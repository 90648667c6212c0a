/* A small vocabulary for the tests of grammars: all bytes, and tokens that cross the bounds of JSON's parts. */
#ifndef TESTS_GRAMMAR_VOCAB_H
#define TESTS_GRAMMAR_VOCAB_H

#include <string.h>

#include "grammar/grammar.h"

static const char *const grammar_texts[] = {
    "{\"",
    "\"}",
    "\":",
    "\": ",
    "\", \"",
    "\",",
    "\"a",
    "a\"",
    "ab\":",
    "abc",
    "true",
    "tru",
    "null",
    "[[",
    "]]",
    "}, {",
    "12",
    "1.5",
    "10000",
    "-",
    "\n  ",
    "  ",
    ",\n",
    "\\u00",
    "\\n",
    "\\\"",
    "e9",
    "\xc3",
    "\xa9",
    "\xc3\xa9",
    "\xe2\x82",
    "\xac\"",
    "}}}",
    "0,",
    ".0",
    "e+",
    "name",
    "\"name",
    "na",
    "me\": \"",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
};
enum {
    GRAMMAR_N_TEXT = sizeof grammar_texts / sizeof *grammar_texts,
    GRAMMAR_CALL = 256 + GRAMMAR_N_TEXT, /* <|call|> */
    GRAMMAR_END,                         /* <|end|>, which ends texts */
    GRAMMAR_N_TOKEN,
};

static inline struct grammar_vocab *grammar_vocab_make(void)
{
    static char bytes[256];
    struct grammar_token tokens[GRAMMAR_N_TOKEN];
    struct grammar_vocab *v;
    struct err e;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (struct grammar_token){&bytes[i], 1, GRAMMAR_TOKEN_TEXT};
    }
    for (int i = 0; i < GRAMMAR_N_TEXT; i++)
        tokens[256 + i] =
            (struct grammar_token){grammar_texts[i], (uint32_t)strlen(grammar_texts[i]), GRAMMAR_TOKEN_TEXT};
    tokens[GRAMMAR_CALL] = (struct grammar_token){"<|call|>", 8, GRAMMAR_TOKEN_SPECIAL};
    tokens[GRAMMAR_END] = (struct grammar_token){"<|end|>", 7, GRAMMAR_TOKEN_END};
    return grammar_vocab_open(&v, tokens, GRAMMAR_N_TOKEN, &e) == ERR_OK ? v : NULL;
}

#endif
