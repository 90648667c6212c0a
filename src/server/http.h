/* HTTP by libmicrohttpd: connections, bodies, time-outs and streams, but no path and no meaning.
 *
 * One thread serves all sockets. A request whose header is there goes to `begin` in that thread; with its body it goes
 * to `handle` in one of the workers, while the connection sleeps until http_reply. As libmicrohttpd looks at no
 * connection that sleeps, a watching thread does: it finds clients that have left, and ticks for what is to be said now
 * and then.
 *
 * Bounds: connections, all and of one address; the header (in libmicrohttpd's memory of a connection); a body, and all
 * bodies together; the time until a request is there, and until a client has taken the next bytes of an answer. */
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
    int status;            /* 0: none yet */
    const char *type;      /* the content's; static */
    struct bytes body;     /* owned */
    struct stream *stream; /* in place of a body, the reader's side; owned */
    int retry_after_s;     /* 0: not said */
    const char *allow;     /* methods, with 405 and OPTIONS; static */
    bool asks_for_key;     /* with 401 */
    const char *origin;    /* the one that a browser's scripts may have; NULL: none. Borrowed until the end */
    bool closes;           /* the connection takes no more requests */
    const char *etag;      /* of the body, with its quotes; NULL: none. Static */
    const struct http_header *headers; /* [n_headers] more of them; static */
    size_t n_headers;
};

/* A request and its answer. */
struct http_exchange {
    char id[33]; /* random, hexadecimal */
    char method[16];
    char *path;              /* decoded, without the query; owned */
    struct bytes body;       /* owned; see http_drop_body */
    struct http_reply reply; /* filled by the application */
    int64_t start_ns;        /* when its header was there */
    void *app;               /* the application's */
};

/* The value of a header, NULL where there is none. During `begin` alone. */
const char *http_header(const struct http_exchange *x, const char *name);

struct http_app {
    /* In HTTP's thread: must not wait. True: the body is wanted, and `handle`; false: the reply is there. */
    bool (*begin)(void *user, struct http_exchange *x);
    /* In a worker: should not wait for long. Leads to http_reply, which any thread may call at any time. */
    void (*handle)(void *user, struct http_exchange *x);
    /* Fills the reply with an error; in HTTP's thread. */
    void (*refuse)(void *user, struct http_exchange *x, int status, const struct err *why);
    /* Several times a second while the client waits for bytes, and once when it has left; in the watching thread. */
    void (*tick)(void *user, struct http_exchange *x, int64_t now_ns);
    void (*left)(void *user, struct http_exchange *x);
    /* The exchange is over; whole: all was sent. In HTTP's thread. */
    void (*end)(void *user, struct http_exchange *x, bool whole);
    void *user;
};

struct http_options {
    int listen_fd;  /* owned from now on, also after a failure */
    bool is_shared; /* others have the socket, too: what we don't take waits for them */
    int n_workers;
    int max_connections, max_per_address;    /* 0 of an address: as many as of all */
    size_t max_body_bytes, max_bodies_bytes; /* of one request, and of all that are there */
    int timeout_s;                           /* until a request is there, and for a client that takes no bytes */
};

/* Whether this build has HTTP at all; ERR_UNSUPPORTED if not. */
MUST_USE err_code http_check(struct err *e);
MUST_USE err_code http_open(struct http **out, const struct http_options *options, const struct http_app *app,
                            struct err *e);
/* No new connections, and requests of old ones are refused. */
void http_stop_accepting(struct http *h);
size_t http_n_busy(struct http *h); /* exchanges that wait for an answer or get one */
/* Every exchange must have its reply, or get it without the workers, and streams must have ended. */
void http_close(struct http **h);

/* Something that a worker is to do. */
struct http_task {
    void (*run)(void *user);
    void *user;
    struct http_task *next; /* the queue's */
};
/* Has a worker run the task, which stays where it is until then; for any thread. */
void http_do(struct http *h, struct http_task *task);

/* The reply is filled: it is sent. Once for each exchange that `handle` got, which may be over when this returns. */
void http_reply(struct http_exchange *x);
/* Frees the body early; its bytes count no more. */
void http_drop_body(struct http_exchange *x);

#endif
