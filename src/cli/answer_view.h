/* Shows an answer while it is generated. Reasoning is dimmed, or stands between marks if the output has no style. On an
 * output that wraps lines, markdown can be shown as style. */
#ifndef CLI_ANSWER_VIEW_H
#define CLI_ANSWER_VIEW_H

#include <stdbool.h>

#include "cli/text_out.h"
#include "moebius/moebius.h"

struct answer_view {
    struct text_out *out; /* borrowed */
    bool styled;          /* the output may have escape sequences */
    bool has_markdown;    /* shows the content's markdown as style, on an output that wraps lines */
    bool in_reasoning;    /* the last text on the screen was reasoning */
};

/* Shows a piece of the answer. It is a moebius_reply_fn, with the view as `user`. n 0 only switches to the part. */
void answer_view_write(void *user, moebius_reply_part part, const char *text, size_t n);
/* Ends an answer with a newline, and resets the style. */
void answer_view_end(struct answer_view *v);

#endif
