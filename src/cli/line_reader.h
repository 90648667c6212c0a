/* Reads the lines of a file, pipe or terminal, one at a time and as soon as they arrive. */
#ifndef CLI_LINE_READER_H
#define CLI_LINE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct line_reader {
    const char *name; /* of the input, for messages; borrowed */
    size_t max_bytes; /* of a line; of longer lines the text is dropped */
    int fd;
    bool owns_fd;
    char *buf; /* [capacity], owned; bytes [at, end) have not been returned yet */
    size_t at, end, capacity;
    bool is_over; /* the input has ended */
    bool is_long; /* the current line is too long, and bytes of it were dropped */
};

struct line {
    const char *text; /* [n] and a NUL, without the newline; borrowed until the next call. NULL: the line is too long */
    size_t n;
    bool is_whole; /* it ended with a newline */
};

enum line_status { LINE_READ, LINE_NOT_YET, LINE_NO_MORE };

/* Opens a file, or standard input for "-". */
MUST_USE err_code line_reader_open(struct line_reader *r, const char *path, size_t max_bytes, struct err *e);
/* The same for a file descriptor, which the caller owns. */
void line_reader_from(struct line_reader *r, int fd, const char *name, size_t max_bytes);
/* Reads the next line. Without may_wait the status is LINE_NOT_YET if no whole line has arrived. An interrupt ends the
 * wait with ERR_CANCELLED. */
MUST_USE err_code line_reader_next(struct line_reader *r, bool may_wait, struct line *line, enum line_status *status,
                                   struct err *e);
/* Whether a line has only white space. */
bool line_is_blank(const struct line *line);
void line_reader_close(struct line_reader *r); /* accepts one that is zero */

#endif
