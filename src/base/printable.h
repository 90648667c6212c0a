/* Makes text that somebody else wrote (a file, a model, a template) safe to show to a person.
 *
 * Whatever would control a terminal or reorder a line, and whatever is not UTF-8, is escaped: control characters, DEL
 * and bytes that belong to no character as \n, \t or \x1b, C1 controls and directional overrides as \u0085 or \u202e.
 * Printable text stays as it is, and so does text that has been escaped already. */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* One character of a text, or a byte that belongs to none. */
struct printable {
    char shown[8];  /* NUL-terminated */
    size_t n_bytes; /* of the text, at least 1 */
};

/* The first of n > 0 bytes of text. */
struct printable printable_next(const char *s, size_t n);

/* Writes the text as one line, NUL-terminated, with as many whole characters as fit into n_out > 0 bytes. False: not
 * all of them fit. */
bool printable_line(const char *s, size_t n, char *out, size_t n_out);

/* The same for the text that printf would print. n_out is at most PRINTABLE_FORMAT_BYTES. */
enum { PRINTABLE_FORMAT_BYTES = 1024 };
bool printable_format(char *out, size_t n_out, const char *fmt, va_list args) PRINTF_LIKE(3, 0);

#endif
