/* Finds stop strings in generated text: text that may be the beginning of one is held back, and the rest is passed on.
 */
#ifndef TEXTS_TEXT_STREAM_H
#define TEXTS_TEXT_STREAM_H

#include <stdbool.h>

#include "base/err.h"

/* Gets the next n > 0 bytes of text. */
typedef void text_stream_fn(void *user, const char *text, size_t n);

struct text_stream {
    text_stream_fn *fn; /* NULL: nobody wants the text */
    void *user;
    const char *const *stops; /* [n_stops] stop strings, borrowed; empty ones are ignored */
    size_t n_stops;
    char *held; /* [n_held] text that is held back; owned */
    size_t n_held, capacity;
    const char *stop; /* the stop string that was found; NULL: none yet */
};

/* max_piece: the usual size of the longest piece, at least 1; longer ones are processed in parts. */
MUST_USE err_code text_stream_open(struct text_stream *s, text_stream_fn *fn, void *user, const char *const *stops,
                                   size_t n_stops, size_t max_piece, struct err *e);
/* Adds text. True: a stop string was found, now or before; the text before it was passed on, and everything after that
 * is dropped. Allocates nothing. */
bool text_stream_feed(struct text_stream *s, const char *piece, size_t n);
/* Passes on what is still held back. */
void text_stream_flush(struct text_stream *s);
void text_stream_close(struct text_stream *s);

#endif
