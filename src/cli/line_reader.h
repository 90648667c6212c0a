/* The lines of a file, pipe or terminal, one at a time and as soon as they are there. */
#ifndef CLI_LINE_READER_H
#define CLI_LINE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct line_reader {
    const char *name; /* of the input, for messages; borrowed */
    size_t max_bytes; /* of a line; longer ones are given without their text */
    int fd;
    bool owns_fd;
    char *buf; /* [capacity], owned: bytes [at, end) are not given out yet */
    size_t at, end, capacity;
    bool is_over; /* the input has ended */
    bool is_long; /* bytes of the line at hand were thrown away */
};

struct line {
    const char *text; /* [n], without its newline, NUL-terminated; borrowed until the next one; NULL: it is too long */
    size_t n;
    bool is_whole; /* it ended with a newline */
};

enum line_status { LINE_READ, LINE_NOT_YET, LINE_NO_MORE };

/* Opens a file, or standard input for "-". */
MUST_USE err_code line_reader_open(struct line_reader *r, const char *path, size_t max_bytes, struct err *e);
/* The same for a descriptor, which the caller keeps. */
void line_reader_from(struct line_reader *r, int fd, const char *name, size_t max_bytes);
/* The next line; without may_wait LINE_NOT_YET where it would have to be waited for. An interrupt ends the waiting with
 * ERR_CANCELLED. */
MUST_USE err_code line_reader_next(struct line_reader *r, bool may_wait, struct line *line, enum line_status *status,
                                   struct err *e);
/* Whether there is nothing but white space in it. */
bool line_is_blank(const struct line *line);
void line_reader_close(struct line_reader *r); /* accepts one that is zero */

#endif
