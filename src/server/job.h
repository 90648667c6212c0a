/* An answer: from a client's request to texts, and from what becomes of these to what the client gets, piece by piece
 * or whole.
 *
 * Thread-safety: all functions may be called by any thread; the texts' sinks run in the thread that drives them. */
#ifndef SERVER_JOB_H
#define SERVER_JOB_H

#include "server/models.h"
#include "server/prompt.h"
#include "server/protocol.h"
#include "server/stream.h"

struct job;

enum { STATUS_CLIENT_LEFT = 499 }; /* as in nginx's log; nobody gets it */

struct job_setup {
    struct served_model *model; /* which need not be there before job_submit */
    const struct protocol *protocol;
    struct server_request *request;   /* taken over, and left empty, also after a failure */
    const moebius_template_var *vars; /* [n_vars], the template's unless the request says otherwise; borrowed */
    size_t n_vars;
    const struct log *log;
    uint64_t group;          /* texts_submit's */
    size_t max_stream_bytes; /* that may wait for the client */
    /* What is not streamed is whole, or has failed: its body is taken over. Once, in any thread, unless job_submit
     * fails, or job_fail is called. */
    void (*done)(void *user, int status, struct bytes *body);
    void *user;
};

/* How an answer went, for the log. */
struct job_report {
    struct answer_usage usage; /* of all choices together */
    bool failed;
    bool cancelled; /* before its texts' end */
};

/* The caller has a reference to the job. */
MUST_USE err_code job_open(struct job **out, const struct job_setup *setup, struct err *e);
/* The request's notes, with those about what can't be enforced; borrowed. */
const json_t *job_notes(const struct job *job);
/* Makes the prompt and begins the answers; the model must be held by the caller. A failure is told in the stream, if
 * there is one, and not to `done`. */
MUST_USE err_code job_submit(struct job *job, struct err *e);
/* In place of job_submit, as if that had failed; does nothing after it. */
void job_fail(struct job *job, const struct err *e);
bool job_is_streamed(const struct job *job);
/* The reader's side of the stream, once; NULL: the answer comes whole. */
struct stream *job_take_stream(struct job *job);
/* The client has left: the texts end soon, and what they said goes nowhere. */
void job_cancel(struct job *job);
/* Says in the stream that all is well if the client has heard nothing for long. True: that was said. */
bool job_tick(struct job *job, int64_t now_ns);
struct job_report job_report(struct job *job);
void job_close(struct job **job); /* gives up a reference; accepts a pointer to NULL */

#endif
