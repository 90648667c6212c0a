/* One request on its way through the server, and what all handlers use. */
#ifndef SERVER_CALL_H
#define SERVER_CALL_H

#include <jansson.h>
#include <stdatomic.h>

#include "server/expert_watch.h"
#include "server/http.h"
#include "server/job.h"
#include "server/keys.h"
#include "server/metrics.h"
#include "server/quota.h"
#include "server/server.h"

enum { CALL_RETRY_S = 2 }; /* after which those may come again who found no room */

/* What all requests share. */
struct server {
    const struct server_options *options;
    struct keys *keys;
    struct quota quota;
    struct kept_items kept;
    struct models *models;
    struct http *http;
    struct metrics metrics;
    struct log log; /* lines that are no requests */
    pthread_mutex_t notes_lock;
    json_t *notes;                /* sentences that the log has had, as names */
    pthread_mutex_t reports_lock; /* around the options' reports */
    int64_t start_ns;
    _Atomic bool ends;      /* streams that have no end of their own are to end */
    _Atomic bool has_freed; /* a request has ended that needed memory, since it was given back */
};

struct call;

/* What is done with a model, in a worker; leads to a reply, or fails. */
typedef err_code call_work_fn(struct call *c, struct served_model *m, struct err *e);

struct call {
    struct server *server;
    struct http_exchange *x;
    const struct route *route;       /* NULL: the path leads nowhere */
    const struct protocol *protocol; /* in whose form errors are told */
    uint64_t group;                  /* of the key, for fairness */
    struct quota_share share;        /* of the key's answers */
    int error_status;                /* of an error whose code doesn't tell it; 0: its code does */
    struct server_request request;   /* of those that ask a model; owned */
    struct job *_Atomic job;         /* owned; NULL: the answer comes from no model, or not yet */
    _Atomic bool left;               /* the client has */
    struct expert_watch *watch;      /* owned; NULL: the client doesn't look at experts */

    struct model_wait wait; /* for the model */
    call_work_fn *work;     /* to be done with it */
    struct http_task task;
    /* A stream may begin before its model is there, and end at any time from then on: x is gone when only those are
     * left who wait or work. */
    _Atomic bool has_replied; /* only who sets it may reply to a call that has a job */
    _Atomic int n_refs;       /* the exchange's, and of those who wait or work */
};

/* The reply: a JSON value, which is taken over (NULL: there was no memory), a text, or an error in the form of the
 * call's protocol. */
void call_json(struct call *c, int status, json_t *value);
void call_text(struct call *c, int status, const char *type, const char *text);
void call_error(struct call *c, const struct err *e);
void call_error_as(struct call *c, int status, const struct err *e); /* with this status */
void call_refuse(struct call *c, int status, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* The body as a JSON object; owned by the caller. */
MUST_USE err_code call_body(struct call *c, json_t **out, struct err *e);

/* The body as a request in the call's protocol. */
MUST_USE err_code call_read_request(struct call *c, struct err *e);

/* The model that a request names; with only one any name means that. NULL: what is loaded, or the first. */
MUST_USE err_code call_find_model(struct call *c, const char *name, struct served_model **m, struct err *e);
/* Has the work done once the model is there, maybe later, and in this worker or another one: nothing else may touch the
 * call from here on. A failure goes to call_fail. */
void call_with_model(struct call *c, struct served_model *m, call_work_fn *work);
/* Tells the error in the stream if that has begun, else as the reply. */
void call_fail(struct call *c, const struct err *e);
/* Replies with the job's stream, unless there is a reply. */
void call_begin_stream(struct call *c);

/* A call of an exchange, with one reference. NULL: there is no memory. */
struct call *call_open(struct server *s, struct http_exchange *x);
void call_hold(struct call *c);
void call_release(struct call *c);

/* A line of the log that is no request. */
void server_log(struct server *s, enum log_level level, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Sentences about what was ignored, each once while the server runs. */
void server_log_notes(struct server *s, const json_t *notes);
/* The line of a request that is over. */
void server_log_call(struct call *c, bool whole);

#endif
