/* Bytes on their way from the thread that makes them to a connection that sends them. The reader sleeps while there are
 * none. What it doesn't take in time piles up to a bound, beyond which the stream breaks: nobody waits for a reader.
 *
 * Thread-safety: one writer, one reader, each of which has a reference. */
#ifndef SERVER_STREAM_H
#define SERVER_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct stream;

/* How the reader sleeps and is woken. Both are called while the stream is locked, so that no byte comes between. */
struct stream_reader {
    void (*sleep)(void *user);
    void (*wake)(void *user);
    void *user;
};

/* max_bytes: that may wait for the reader. */
MUST_USE err_code stream_open(struct stream **out, size_t max_bytes, struct err *e);

/* The writer's side. False: the bytes went nowhere, as the reader has left or the stream is broken. */
bool stream_put(struct stream *s, const void *bytes, size_t n);
/* Nothing follows; `broken`: in the middle, and the client should know. Gives up the writer's reference. */
void stream_end(struct stream **s, bool broken);

/* The reader's side. */
enum stream_state { STREAM_BYTES, STREAM_SLEEPS, STREAM_ENDED, STREAM_BROKEN };
/* Takes up to `max` bytes: STREAM_BYTES with *n > 0. STREAM_SLEEPS: there are none, and `reader` was put to sleep. */
enum stream_state stream_take(struct stream *s, void *bytes, size_t max, const struct stream_reader *reader, size_t *n);
/* Gives up the reader's reference; it is not woken any more. Accepts a pointer to NULL. */
void stream_leave(struct stream **s);

#endif
