/* HTTP by libmicrohttpd: connections, bodies, time-outs and streams. What paths and bodies mean is up to the
 * application (struct http_app).
 *
 * One thread, "HTTP's thread", serves all sockets. It calls `begin` when a request's header has arrived. When the body
 * has, too, a worker thread calls `handle`, while the connection is suspended until http_reply. libmicrohttpd does not
 * look at suspended connections, so a watching thread does: it notices clients that have disconnected, and calls `tick`
 * for what must be sent from time to time.
 *
 * Bounds: the connections, of all clients and of one address; the header (by libmicrohttpd's memory for a connection);
 * a body, and all bodies together; the time until a request has arrived, and until a client takes the next bytes of an
 * answer. */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "server/stream.h"

struct http;

struct http_header {
    const char *name, *value;
};

struct http_reply {
    int status;            /* 0: not filled yet */
    const char *type;      /* Content-Type; static */
    struct bytes body;     /* owned */
    struct stream *stream; /* the reader's side of a stream that replaces the body; owned. NULL: none */
    int retry_after_s;     /* Retry-After; 0: none */
    const char *allow;     /* Allow, with 405 and OPTIONS; static */
    bool asks_for_key;     /* adds WWW-Authenticate, with 401 */
    const char *origin;    /* whose scripts may read the answer (CORS); NULL: none. Borrowed until the end */
    bool closes;           /* the connection takes no more requests */
    const char *etag;      /* of the body, with its quotes; NULL: none. Static */
    const struct http_header *headers; /* [n_headers] further ones; static */
    size_t n_headers;
};

/* A request and its answer. */
struct http_exchange {
    char id[33]; /* random, hexadecimal */
    char method[16];
    char *path;              /* decoded, without the query; owned */
    struct bytes body;       /* owned; see http_drop_body */
    struct http_reply reply; /* filled by the application */
    int64_t start_ns;        /* when the header had arrived */
    void *app;               /* for the application */
};

/* The value of a request header; NULL: the request has none. May be called only during `begin`. */
const char *http_header(const struct http_exchange *x, const char *name);

/* What the server calls. */
struct http_app {
    /* A request's header has arrived. True: reads the body, then calls `handle`. False: the reply is filled. In HTTP's
     * thread: must not wait. */
    bool (*begin)(void *user, struct http_exchange *x);
    /* Answers a request. Somebody must call http_reply later, in any thread. In a worker: should not wait for long. */
    void (*handle)(void *user, struct http_exchange *x);
    /* Fills the reply with an error. In HTTP's thread. */
    void (*refuse)(void *user, struct http_exchange *x, int status, const struct err *why);
    /* Called several times a second while the client waits for bytes. In the watching thread. */
    void (*tick)(void *user, struct http_exchange *x, int64_t now_ns);
    /* The client has disconnected; called once. In the watching thread. */
    void (*left)(void *user, struct http_exchange *x);
    /* The exchange is over. whole: the whole reply was sent. In HTTP's thread. */
    void (*end)(void *user, struct http_exchange *x, bool whole);
    void *user;
};

struct http_options {
    int listen_fd;  /* http_open takes ownership of it, even if it fails */
    bool is_shared; /* other processes have the socket, too: connections that we don't accept stay in its queue */
    int n_workers;
    int max_connections, max_per_address;    /* max_per_address 0: max_connections */
    size_t max_body_bytes, max_bodies_bytes; /* of one request, and of all requests in progress together */
    int timeout_s;                           /* for a request to arrive, and for a client to take bytes */
};

/* ERR_UNSUPPORTED if this build has no HTTP server. */
MUST_USE err_code http_check(struct err *e);
MUST_USE err_code http_open(struct http **out, const struct http_options *options, const struct http_app *app,
                            struct err *e);
/* Takes no new connections, and refuses further requests on old ones. */
void http_stop_accepting(struct http *h);
size_t http_n_busy(struct http *h); /* exchanges that wait for a reply or are sending one */
/* Waits until all replies are sent. So every exchange must have its reply, or get it from a thread that is no worker,
 * and all streams must have ended. */
void http_close(struct http **h);

/* Work for a worker thread. */
struct http_task {
    void (*run)(void *user);
    void *user;
    struct http_task *next; /* the queue's */
};
/* Has a worker run the task. The task must stay valid until it runs. Any thread may call this. */
void http_do(struct http *h, struct http_task *task);

/* Sends the reply, which must be filled. Called once for each exchange that `handle` got. The exchange may be gone when
 * this returns. */
void http_reply(struct http_exchange *x);
/* Frees the body early, so that its bytes no longer count against max_bodies_bytes. */
void http_drop_body(struct http_exchange *x);

#endif
