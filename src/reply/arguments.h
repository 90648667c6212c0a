/* Reads the arguments of a call byte by byte, in one of the notations that models write them in, and writes them as
 * JSON.
 *
 * The output is valid JSON in UTF-8 even where the model's text is not quite: the reader repairs control characters
 * within strings, escapes that JSON does not have, lone surrogates, bytes that belong to no character (they become
 * U+FFFD), a comma after the last item, and Python's True, False and None. It drops white space between the parts. It
 * holds back what JSON can't end with: a key until its colon, a comma until the next item, a number until it has ended.
 * So the output can be closed with brackets at any time. */
#ifndef REPLY_ARGUMENTS_H
#define REPLY_ARGUMENTS_H

#include <stdint.h>

#include "base/bytes.h"

enum args_notation {
    ARGS_JSON,   /* a JSON value */
    ARGS_PYTHON, /* a Python literal */
    ARGS_CALL,   /* the keyword arguments of a Python call: what follows its (, up to and including the ) */
    ARGS_GEMMA,  /* Gemma's object, after its {: keys without quotes, strings between <|"|> and without escapes */
};

enum { ARGS_MAX_DEPTH = 128 };

struct args_reader {
    enum args_notation notation;
    uint8_t state;                     /* enum state in arguments.c */
    char quote;                        /* ends the string that is being read: " or ', or < for <|"|> */
    bool is_key;                       /* that string is a key */
    bool has_comma;                    /* a comma was read and has not been written yet */
    int depth;                         /* number of open objects and arrays */
    uint8_t is_object[ARGS_MAX_DEPTH]; /* [depth] whether each of them is an object, the innermost last */
    struct bytes token; /* bytes read and not written yet: part of an escape, a character, a quote or a number */
    struct bytes key;   /* the key as JSON, until its colon comes */
};

enum args_result {
    ARGS_MORE,   /* the byte was taken, and more are needed */
    ARGS_WHOLE,  /* the byte was taken, and ends the value */
    ARGS_BEFORE, /* the byte was not taken: the value, a number or a word at the top level, had ended before it */
    ARGS_WRONG,  /* the byte was not taken: it can't follow here */
};

/* Begins a value. Here and below, JSON is appended to `out`. A reader starts as zeros. */
void args_begin(struct args_reader *a, enum args_notation notation, struct bytes *out);
enum args_result args_take(struct args_reader *a, char c, struct bytes *out);
/* Whether everything that was read has been written, too. */
bool args_is_settled(const struct args_reader *a);
/* Ends the input early: writes what is missing so that the JSON is whole. A number that could end here is kept as it
 * is, and a key without a value gets null. */
void args_end(struct args_reader *a, struct bytes *out);
void args_close(struct args_reader *a);

/* Converts a text that is one value, in JSON or Python, maybe with white space around it; false: it is not. */
bool args_convert(const char *text, size_t n, enum args_notation notation, struct bytes *out);

/* Converts a text that is a sequence of elements as in XML, maybe with white space between them; false: it is not. An
 * element is `open`, its name, >, its content, `close`, its name again and >. Elements of the name "item" become an
 * array, others an object. The content of an element is elements again, or JSON, or else a string. */
bool args_convert_nested(const char *text, size_t n, const char *open, const char *close, struct bytes *out);

/* Writes a JSON string whose text comes byte by byte. */
void args_string_begin(struct args_reader *a, struct bytes *out);
void args_string_add(struct args_reader *a, char c, struct bytes *out);
void args_string_end(struct args_reader *a, struct bytes *out);
/* Writes a JSON string at once. */
void args_string(const char *s, size_t n, struct bytes *out);

#endif
