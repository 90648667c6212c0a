/* Generated text on its way out: text that may be the beginning of a stop string is held back, the rest is printed. */
#ifndef CLI_TEXT_STREAM_H
#define CLI_TEXT_STREAM_H

#include "cli/options.h"
#include "cli/text_out.h"

struct text_stream {
    struct text_out *out;            /* borrowed; NULL: nothing is printed */
    const struct option_list *stops; /* borrowed; empty strings are ignored */
    char *held;                      /* [n_held], text that is held back; owned */
    size_t n_held, capacity;
};

/* max_piece: the longest piece that will be fed, so that feeding allocates nothing. */
MUST_USE err_code text_stream_open(struct text_stream *s, struct text_out *out, const struct option_list *stops,
                                   size_t max_piece, struct err *e);
/* True when a stop string is complete: the text before it has been printed, and the rest is dropped. */
bool text_stream_feed(struct text_stream *s, const char *piece, size_t n);
/* Prints what is still held back. */
void text_stream_flush(struct text_stream *s);
void text_stream_close(struct text_stream *s);

#endif
