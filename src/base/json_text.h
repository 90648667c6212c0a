/* Text as JSON, JSON as text, and no surprises from jansson where memory is short. */
#ifndef BASE_JSON_TEXT_H
#define BASE_JSON_TEXT_H

#include <jansson.h>

/* A string of n bytes of text. Each byte that belongs to no character, as where an answer was cut within one, becomes
 * U+FFFD. NULL: there is no memory. */
json_t *json_text(const char *text, size_t n);

/* The text of a JSON value, as json_dumps gives it with these flags, NUL-terminated, of *n bytes (may be NULL); owned
 * by the caller (mem_free). NULL: there is no memory, where json_dumps may leave something out instead. */
char *json_write(const json_t *j, size_t flags, size_t *n);

/* Parses n bytes with these flags of json_loadb. Integers that 64 bits don't hold become real numbers. More than
 * JSON_MAX_VALUES values are an error, as a value may take 44 times the memory of its text. NULL without a text in
 * *error: there is no memory. */
enum { JSON_MAX_VALUES = 1000000 };
json_t *json_read(const char *text, size_t n, size_t flags, json_error_t *error);

#endif
