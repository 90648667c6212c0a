/* Shows an answer as it comes, its reasoning apart: dimmed where that may be, else between marks. Where the output
 * breaks lines, its markdown becomes style where that is wanted. */
#ifndef CLI_ANSWER_VIEW_H
#define CLI_ANSWER_VIEW_H

#include <stdbool.h>

#include "cli/text_out.h"
#include "moebius/moebius.h"

struct answer_view {
    struct text_out *out; /* borrowed */
    bool styled;
    bool has_markdown; /* of content, on an output that breaks lines */
    bool in_reasoning; /* the last text on the screen is reasoning */
};

/* The form of a moebius_reply_fn; `user` is the view. No text (n 0) only changes the part. */
void answer_view_write(void *user, moebius_reply_part part, const char *text, size_t n);
/* Ends an answer with a newline, and puts the style back. */
void answer_view_end(struct answer_view *v);

#endif
