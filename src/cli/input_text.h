/* Reads text from a file or from standard input. */
#ifndef CLI_INPUT_TEXT_H
#define CLI_INPUT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Whether standard input is a file, a pipe or a socket, that is, input that somebody has provided and that ends. */
bool cli_is_piped(void);
/* Returns `file`; if that is NULL, "-" when something is piped, and else NULL. */
const char *cli_file_or_piped(const char *file);

/* Reads all of a file, or of standard input for "-". *text is NUL-terminated and owned by the caller (mem_free).
 * ERR_LIMIT if it would take more than half of the memory that is free, as an input that never ends does. */
MUST_USE err_code cli_read_file(const char *path, char **text, size_t *n, struct err *e);
/* The same; ERR_LIMIT if the file has more than max_bytes. */
MUST_USE err_code cli_read_file_within(const char *path, size_t max_bytes, char **text, size_t *n, struct err *e);

#endif
