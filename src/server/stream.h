/* A pipe of bytes from the thread that makes an answer to the connection that sends it. The reader sleeps while there
 * are no bytes. The writer never waits: bytes that the reader does not take are buffered up to a bound, and beyond that
 * the stream breaks.
 *
 * Thread-safety: there is one writer and one reader, in any threads. Each has a reference. */
#ifndef SERVER_STREAM_H
#define SERVER_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct stream;

/* How the reader is put to sleep and woken. Both are called with the stream locked, so that no wake-up is lost. */
struct stream_reader {
    void (*sleep)(void *user);
    void (*wake)(void *user);
    void *user;
};

/* max_bytes: how many may wait for the reader. */
MUST_USE err_code stream_open(struct stream **out, size_t max_bytes, struct err *e);

/* The writer's side. False: the bytes were dropped, because the reader has left or the stream is broken. */
bool stream_put(struct stream *s, const void *bytes, size_t n);
/* Ends the stream, and gives up the writer's reference. broken: it ends in the middle, and the client should notice. */
void stream_end(struct stream **s, bool broken);

/* The reader's side. */
enum stream_state { STREAM_BYTES, STREAM_SLEEPS, STREAM_ENDED, STREAM_BROKEN };
/* Takes up to `max` bytes. STREAM_BYTES: there were *n > 0. STREAM_SLEEPS: there were none, and `reader` was put to
 * sleep.
 */
enum stream_state stream_take(struct stream *s, void *bytes, size_t max, const struct stream_reader *reader, size_t *n);
/* Gives up the reader's reference. The reader is never woken after that. Accepts a pointer to NULL. */
void stream_leave(struct stream **s);

#endif
