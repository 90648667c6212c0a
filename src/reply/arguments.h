/* The arguments of a call, which models write in several notations, read byte by byte and written as JSON.
 *
 * What is written is JSON of UTF-8 text that any parser takes, though the models' may be a little less: control
 * characters within strings, escapes that JSON has not, lone surrogates, bytes that belong to no character (U+FFFD), a
 * comma behind the last item, and Python's True, False and None are put right. White space between the parts is left
 * out. What JSON can't end with is written late: keys with their colon, commas with what follows, numbers when they
 * have ended. So whatever has been written can be closed. */
#ifndef REPLY_ARGUMENTS_H
#define REPLY_ARGUMENTS_H

#include <stdint.h>

#include "base/bytes.h"

enum args_notation {
    ARGS_JSON,   /* a JSON value */
    ARGS_PYTHON, /* a Python literal */
    ARGS_CALL,   /* what stands behind the ( of a Python call with keyword arguments, its ) included */
    ARGS_GEMMA,  /* Gemma's, behind its {: keys without quotes, strings between <|"|> and without escapes */
};

enum { ARGS_MAX_DEPTH = 128 };

struct args_reader {
    enum args_notation notation;
    uint8_t state;                     /* enum state in arguments.c */
    char quote;                        /* how the string that is being read ends: " or ', or < for <|"|> */
    bool is_key;                       /* it is a key */
    bool has_comma;                    /* one was read and not written yet */
    int depth;                         /* objects and arrays that are open */
    uint8_t is_object[ARGS_MAX_DEPTH]; /* what they are, the innermost last */
    struct bytes token; /* bytes read that nothing written speaks for: of an escape, a character, a quote, a number */
    struct bytes key;   /* as JSON, until its colon comes */
};

enum args_result {
    ARGS_MORE,   /* the byte was taken, and more are needed */
    ARGS_WHOLE,  /* it was the last one */
    ARGS_BEFORE, /* the value, a number or a word that is not within anything, had ended: the byte was not taken */
    ARGS_WRONG,  /* it can't follow, and was not taken */
};

/* Begins a value; what is written of it is added to `out`, here and below. The reader is zero at first. */
void args_begin(struct args_reader *a, enum args_notation notation, struct bytes *out);
enum args_result args_take(struct args_reader *a, char c, struct bytes *out);
/* Whether what has been written speaks for all that was read. */
bool args_is_settled(const struct args_reader *a);
/* No more comes: writes what is missing so that the JSON is whole. A number that may have an end is taken as it is, and
 * what lacks a value gets null. */
void args_end(struct args_reader *a, struct bytes *out);
void args_close(struct args_reader *a);

/* Whether the text is one value, in JSON or Python, with white space around it; if so it is written. */
bool args_convert(const char *text, size_t n, enum args_notation notation, struct bytes *out);

/* Whether the text is elements, one after the other, with white space between them: `open`, a name and >, what is in
 * it, `close`, the name and > once more, as in XML. If so they are written: an array where the names are "item", else
 * an object. What is in an element is elements again, or JSON, or else a string. */
bool args_convert_nested(const char *text, size_t n, const char *open, const char *close, struct bytes *out);

/* A JSON string of text that comes in bytes. */
void args_string_begin(struct args_reader *a, struct bytes *out);
void args_string_add(struct args_reader *a, char c, struct bytes *out);
void args_string_end(struct args_reader *a, struct bytes *out);
/* One whose text is all there. */
void args_string(const char *s, size_t n, struct bytes *out);

#endif
