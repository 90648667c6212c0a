/* A job answers one request: it makes the prompt, submits texts (texts/texts.h), and turns what they produce into what
 * the client gets, as a stream or as a whole.
 *
 * Thread-safety: all functions may be called by any thread; the texts' sinks run in the thread that drives them. */
#ifndef SERVER_JOB_H
#define SERVER_JOB_H

#include "server/models.h"
#include "server/prompt.h"
#include "server/protocol.h"
#include "server/stream.h"

struct job;

enum { STATUS_CLIENT_LEFT = 499 }; /* for the log, as nginx has it; never sent */

struct job_setup {
    struct served_model *model; /* need not be loaded before job_submit */
    const struct protocol *protocol;
    struct server_request *request;   /* its contents are taken over, and it is left empty, even after a failure */
    const moebius_template_var *vars; /* [n_vars] variables of the template that a request may override; borrowed */
    size_t n_vars;
    const struct log *log;
    uint64_t group;          /* of the texts, for fairness (struct text_request) */
    size_t max_stream_bytes; /* of the stream that may wait for the client */
    /* Called once, in any thread, when an answer that is not streamed is complete or has failed; it may take the body
     * over. Not called if job_submit fails, or after job_fail. */
    void (*done)(void *user, int status, struct bytes *body);
    void *user;
};

/* How an answer went, for the log. */
struct job_report {
    struct answer_usage usage; /* of all choices together */
    bool failed;
    bool cancelled; /* before its texts had ended */
};

/* The caller gets a reference to the job, which job_close gives up. */
MUST_USE err_code job_open(struct job **out, const struct job_setup *setup, struct err *e);
/* The request's notes, and those about parts of its schema that are not enforced; borrowed. */
const json_t *job_notes(const struct job *job);
/* Makes the prompt and submits the texts. The caller must hold the model (models_take). A failure is reported in the
 * stream, if there is one, but not to `done`. */
MUST_USE err_code job_submit(struct job *job, struct err *e);
/* Ends a job that was not submitted, as if job_submit had failed. Does nothing after job_submit. */
void job_fail(struct job *job, const struct err *e);
bool job_is_streamed(const struct job *job);
/* Returns the reader's side of the stream, the first time. NULL: the answer is not streamed. */
struct stream *job_take_stream(struct job *job);
/* The client has disconnected: ends the texts soon, and drops what they still produce. */
void job_cancel(struct job *job);
/* Sends a ping in the stream if the client has got nothing for long. Returns whether it did. */
bool job_tick(struct job *job, int64_t now_ns);
struct job_report job_report(struct job *job);
void job_close(struct job **job); /* gives up a reference; accepts a pointer to NULL */

#endif
