/* Converts between text and JSON (jansson), with limits and without jansson's silent omissions where memory is
 * short. */
#ifndef BASE_JSON_TEXT_H
#define BASE_JSON_TEXT_H

#include <jansson.h>

/* A JSON string of n bytes of text. Each byte that belongs to no character, as where a reply was cut off in the middle
 * of one, becomes U+FFFD. NULL: out of memory. */
json_t *json_text(const char *text, size_t n);

/* A float as people write it: 0.8, not 0.800000012. NULL: out of memory. */
json_t *json_float(float x);

/* The text of a JSON value as json_dumps writes it with these flags, NUL-terminated; its length goes to *n unless n is
 * NULL. Owned by the caller (mem_free). NULL: out of memory (json_dumps itself may leave something out instead). */
char *json_write(const json_t *j, size_t flags, size_t *n);

/* Parses n bytes with these flags of json_loadb. Integers that don't fit into 64 bits become real numbers. More than
 * JSON_MAX_VALUES values are an error, as a value may take 44 times the memory of its text. NULL without a text in
 * *error: out of memory. */
enum { JSON_MAX_VALUES = 1000000 };
json_t *json_read(const char *text, size_t n, size_t flags, json_error_t *error);

#endif
