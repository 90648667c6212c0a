/* A call: one HTTP request on its way through the server. Also what all route handlers share. */
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

enum { CALL_RETRY_S = 2 }; /* the Retry-After of a reply that says that the server is full */

/* The running server, which all calls share. */
struct server {
    const struct server_options *options;
    struct keys *keys;
    struct quota quota;
    struct kept_items kept;
    struct models *models;
    struct http *http;
    struct metrics metrics;
    struct log log;               /* for lines that belong to no request */
    pthread_mutex_t notes_lock;   /* protects `notes` */
    json_t *notes;                /* notes that were logged, as keys, so that each is logged once; owned */
    pthread_mutex_t reports_lock; /* held while one of the options' reports runs */
    int64_t start_ns;
    _Atomic bool ends;      /* the server is shutting down: streams without an end of their own must end */
    _Atomic bool has_freed; /* a request has ended since free memory was last returned to the system */
};

struct call;

/* The part of a handler that needs a loaded model. Runs in a worker thread, and either replies or fails. */
typedef err_code call_work_fn(struct call *c, struct served_model *m, struct err *e);

struct call {
    struct server *server;
    struct http_exchange *x;
    const struct route *route;       /* NULL: no route matches the path */
    const struct protocol *protocol; /* that formats errors */
    uint64_t group;                  /* the number of the client's key, for fairness; 0: no key */
    struct quota_share share;        /* the answers that this call takes of its key's quota */
    int error_status;                /* the HTTP status of an error; 0: it follows from the error's code */
    struct server_request request;   /* the parsed body of a request for an answer; owned */
    struct job *_Atomic job;         /* that makes the answer; owned. NULL: no model answers, or not yet */
    _Atomic bool left;               /* the client has disconnected */
    struct expert_watch *watch;      /* of a client of /experts; owned. NULL: none */

    struct model_wait wait; /* the call's place among those that wait for a model */
    call_work_fn *work;     /* what to do once the model is loaded */
    struct http_task task;  /* that runs it */
    /* A stream may begin before its model is loaded, and its exchange may end at any time after that. So `x` is valid
     * only as long as no reply was sent, or in the exchange's own callbacks. */
    _Atomic bool has_replied; /* of a call with a job: only the thread that sets it may reply */
    _Atomic int n_refs;       /* one for the exchange, one for whoever waits for the model or works with it */
};

/* These fill the reply; http_reply sends it. call_json takes ownership of `value`; NULL means that there was no memory
 * for it. Errors have the form of the call's protocol. */
void call_json(struct call *c, int status, json_t *value);
void call_text(struct call *c, int status, const char *type, const char *text);
void call_error(struct call *c, const struct err *e);
void call_error_as(struct call *c, int status, const struct err *e);
void call_refuse(struct call *c, int status, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Reads the body, which must be a JSON object. *out is owned by the caller. */
MUST_USE err_code call_body(struct call *c, json_t **out, struct err *e);

/* Reads the body as a request in the call's protocol, into c->request. */
MUST_USE err_code call_read_request(struct call *c, struct err *e);

/* Finds the model that a request names. With a single model any name means that one. name NULL: the model that is
 * loaded, or else the first. */
MUST_USE err_code call_find_model(struct call *c, const char *name, struct served_model **m, struct err *e);
/* Runs `work` once the model is loaded: at once in this thread, or later in another worker. The caller may not touch
 * the call afterwards. A failure is reported through call_fail. */
void call_with_model(struct call *c, struct served_model *m, call_work_fn *work);
/* Reports an error: in the stream if that has begun, otherwise as the reply. */
void call_fail(struct call *c, const struct err *e);
/* Replies with the job's stream, unless a reply was sent. */
void call_begin_stream(struct call *c);

/* Makes the call of an exchange, with one reference. NULL: no memory. */
struct call *call_open(struct server *s, struct http_exchange *x);
void call_hold(struct call *c);    /* takes a reference */
void call_release(struct call *c); /* gives one up; the last one frees the call */

/* Logs a line that belongs to no request. */
void server_log(struct server *s, enum log_level level, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Logs what was ignored of a request; each sentence once while the server runs. */
void server_log_notes(struct server *s, const json_t *notes);
/* Logs a request that is over. whole: the whole reply was sent. */
void server_log_call(struct call *c, bool whole);

#endif
