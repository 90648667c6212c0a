/* A client that looks at the experts: a stream of events until it leaves or the server ends. */
#ifndef SERVER_EXPERT_WATCH_H
#define SERVER_EXPERT_WATCH_H

#include "server/models.h"
#include "server/stream.h"

struct expert_watch;

/* *stream: the reader's side, to be left by the caller. */
MUST_USE err_code expert_watch_open(struct expert_watch **out, struct models *models, struct stream **stream,
                                    struct err *e);
/* Tells what is new, or that all is well to a client that has heard nothing for long; in one thread at a time.
 * is_over: these are the last words. */
void expert_watch_tick(struct expert_watch *w, int64_t now_ns, bool is_over);
void expert_watch_close(struct expert_watch **w); /* accepts a pointer to NULL */

#endif
