/* Text that is named as a file or piped. */
#ifndef CLI_INPUT_TEXT_H
#define CLI_INPUT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Whether standard input is a file, a pipe or a socket: something that ends, and that somebody has put there. */
bool cli_is_piped(void);
/* `file`, or "-" where none was named and something is piped; NULL: neither. */
const char *cli_file_or_piped(const char *file);

/* Reads all of a file, or of standard input for "-". *text is NUL-terminated and owned by the caller (mem_free). */
MUST_USE err_code cli_read_file(const char *path, char **text, size_t *n, struct err *e);
/* The same; ERR_LIMIT if the file has more than max_bytes. */
MUST_USE err_code cli_read_file_within(const char *path, size_t max_bytes, char **text, size_t *n, struct err *e);

#endif
