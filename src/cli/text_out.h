/* Text that a model or a file made, on its way out. On a terminal newlines and tabs are kept, and other control
 * characters and what is not UTF-8 are spelled out (base/printable.h); files and pipes get the bytes as they are, as
 * does a terminal with --raw. Text may come in pieces that cut characters. */
#ifndef CLI_TEXT_OUT_H
#define CLI_TEXT_OUT_H

#include <stdbool.h>
#include <stdio.h>

#include "cli/terminal_text.h"

struct text_out {
    FILE *stream;
    struct terminal_text *terminal; /* borrowed: what breaks lines and styles text in between; NULL: nothing does */
    bool is_raw;
    char part[4]; /* the beginning of a character */
    size_t n_part;
};

void text_out_open(struct text_out *t, FILE *stream, bool raw);
void text_out_write(struct text_out *t, const char *s, size_t n);
/* What was the beginning of a character is none: nothing follows, or something else than text. */
void text_out_end(struct text_out *t);

#define RAW_OPTION(raw)                                                                                                \
    {                                                                                                                  \
        "--raw", OPT_FLAG, &(raw), "", "send control characters in the text to the terminal unchanged", 0, 0, 0,       \
            GROUP_OUTPUT                                                                                               \
    }

#endif
