/* Generated text on its way out: text that may be the beginning of a stop string is held back, the rest is handed on.
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
    const char *const *stops; /* [n_stops], borrowed; empty strings are ignored */
    size_t n_stops;
    char *held; /* [n_held], text that is held back; owned */
    size_t n_held, capacity;
    const char *stop; /* which is complete; NULL: none */
};

/* max_piece: 1 or more, the longest piece that will usually be fed; longer ones are taken in parts. */
MUST_USE err_code text_stream_open(struct text_stream *s, text_stream_fn *fn, void *user, const char *const *stops,
                                   size_t n_stops, size_t max_piece, struct err *e);
/* True when a stop string is complete: the text before it has been handed on, and the rest is dropped, now and from
 * then on. Allocates nothing. */
bool text_stream_feed(struct text_stream *s, const char *piece, size_t n);
/* Hands on what is still held back. */
void text_stream_flush(struct text_stream *s);
void text_stream_close(struct text_stream *s);

#endif
