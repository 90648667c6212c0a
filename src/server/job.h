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
    struct model *model; /* held by the caller until job_submit has returned */
    const struct protocol *protocol;
    struct server_request *request;   /* taken over, and left empty, also after a failure */
    const moebius_template_var *vars; /* [n_vars], the template's unless the request says otherwise; borrowed */
    size_t n_vars;
    const struct log *log;
    uint64_t group;          /* texts_submit's */
    size_t max_stream_bytes; /* that may wait for the client */
    /* What is not streamed is whole, or has failed: its body is taken over. Once, in any thread, unless job_submit
     * fails. */
    void (*done)(void *user, int status, struct bytes *body);
    void *user;
};

/* How an answer went, for the log. */
struct job_report {
    struct answer_usage usage; /* of all choices together */
    bool failed;
    bool cancelled; /* before its texts' end */
};

/* Makes the prompt. The caller has a reference to the job. */
MUST_USE err_code job_open(struct job **out, const struct job_setup *setup, struct err *e);
/* The request's notes, with those about what can't be enforced; borrowed. */
const json_t *job_notes(const struct job *job);
/* Begins the answers. After a failure `done` is not called, and nothing is streamed. */
MUST_USE err_code job_submit(struct job *job, struct err *e);
/* The reader's side of the stream, once; NULL: the answer comes whole. */
struct stream *job_take_stream(struct job *job);
/* The client has left: the texts end soon, and what they said goes nowhere. */
void job_cancel(struct job *job);
/* Says that all is well to a client that has heard nothing for long. */
void job_tick(struct job *job, int64_t now_ns);
struct job_report job_report(struct job *job);
void job_close(struct job **job); /* gives up a reference; accepts a pointer to NULL */

#endif
