/* What a job is made of, for the files that implement it (job*.c). */
#ifndef SERVER_JOB_INTERNAL_H
#define SERVER_JOB_INTERNAL_H

#include <pthread.h>

#include "server/answer_grammar.h"
#include "server/job.h"
#include "server/whole_text.h"
#include "texts/answer.h"

/* One of the answers to a request. Its address is the sink's `user`. */
struct choice {
    struct job *job;
    int64_t index;
    const struct prompt *prompt; /* one of the job's */
    bool counts_prompt;          /* the first answer to its prompt */
    uint64_t id;                 /* the text's; 0: not known yet */
    bool is_open;                /* a text was submitted and has not ended */
    moebius_reply_part part;     /* of what is held */
    struct whole_text held;      /* the beginning of a character */
    int64_t n_calls;
    bool has_called;  /* a call has ended */
    bool has_enough;  /* something followed the only call that shall be, or it has taken too long */
    bool has_line;    /* it has said the end of a line */
    int64_t first_ns; /* when it said something first; 0: nothing yet */
    struct gathered_choice gathered;
};

struct job {
    pthread_mutex_t lock; /* guards all that follows, except what job_open fills in */
    int n_refs;

    struct server_request request;
    const struct protocol *protocol;
    struct served_model *model;
    const moebius_template_var *vars;
    size_t n_vars;
    const struct log *log;
    uint64_t group;
    void (*done)(void *user, int status, struct bytes *body);
    void *user;
    struct answer_head head;
    struct prompt *prompts; /* [n_prompts], owned */
    size_t n_prompts;
    struct answer_grammar grammar;

    struct choice *choices; /* [request.n_choices] */
    size_t n_open;          /* texts that have not ended */
    bool is_submitted;      /* all texts were submitted; the job does not end before that */
    bool has_begun;
    bool is_cancelled; /* nobody reads the answer any more */
    struct err error;  /* the first error */
    struct answer_usage usage;

    struct stream *stream, *unread; /* the writer's side, and the reader's until it is taken */
    struct answer_writer *writer;
    struct bytes out;
    int64_t start_ns, wrote_ns;
};

/* ---- job_output.c; all with the lock --------------------------------------------------------------------------- */

/* Cancels the text of one choice, or those of all. */
void job_cancel_text(struct choice *c);
void job_cancel_texts(struct job *job);
/* Stops the answer: running texts are cancelled, and nothing more is sent. The first error is kept. */
void job_break_off(struct job *job, const struct err *e);
/* Whether nothing more is sent. */
bool job_is_silent(const struct job *job);
/* Hands what the protocol has written to the stream. */
void job_flush(struct job *job);
/* Has an event go out, if anything does. */
void job_tell(struct job *job, const struct answer_event *event);
/* Tells the beginning of the answer, the first time. */
void job_tell_begin(struct job *job, size_t n_cached);
/* tokens: as in ANSWER_PROMPT; NULL: none. */
void job_tell_prompt(const struct choice *c, const struct answer_logprob *tokens, int n_top);
/* Ends the job when all texts have ended. Unlocks it first, since `done` may close it. */
void job_finish(struct job *job);

/* ---- job_texts.c ----------------------------------------------------------------------------------------------- */

/* The functions that hear what the text of a choice produces. */
struct text_sink job_sink(struct choice *c);

#endif
