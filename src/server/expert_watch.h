/* A client of /experts: it gets a stream of events until it disconnects or the server ends. */
#ifndef SERVER_EXPERT_WATCH_H
#define SERVER_EXPERT_WATCH_H

#include "server/models.h"
#include "server/stream.h"

struct expert_watch;

/* *stream: the reader's side, which the caller must leave (stream_leave). */
MUST_USE err_code expert_watch_open(struct expert_watch **out, struct models *models, struct stream **stream,
                                    struct err *e);
/* Sends what is new, or a ping if the client has got nothing for long. One thread at a time may call it. is_over: the
 * stream ends after that. */
void expert_watch_tick(struct expert_watch *w, int64_t now_ns, bool is_over);
void expert_watch_close(struct expert_watch **w); /* accepts a pointer to NULL */

#endif
