/* Text that somebody else wrote - a file, a model, a template - as a person may see it.
 *
 * What steers a terminal, what reorders a line, and what is not UTF-8 is spelled out: control characters, DEL and bytes
 * that belong to no character as \n, \t or \x1b, C1 controls and directional overrides as \u0085 or \u202e. Printable
 * text stays as it is, so that what was made printable once is not changed again. */
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

/* The text as one line, NUL-terminated: as many whole characters as n_out > 0 bytes have room for. False: not all. */
bool printable_line(const char *s, size_t n, char *out, size_t n_out);

/* The same of what printf would print; n_out: at most PRINTABLE_FORMAT_BYTES. */
enum { PRINTABLE_FORMAT_BYTES = 1024 };
bool printable_format(char *out, size_t n_out, const char *fmt, va_list args) PRINTF_LIKE(3, 0);

#endif
