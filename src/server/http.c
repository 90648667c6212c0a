#define _GNU_SOURCE /* POLLRDHUP */
#include "server/http.h"

#include <assert.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/random_id.h"

enum {
    CONNECTION_BYTES = 64 << 10, /* libmicrohttpd's memory for a connection: the header, and a piece of an answer */
    SOCKET_BYTES = 256 << 10,    /* the system's send buffer, which would grow to megabytes otherwise */
    STREAM_BLOCK_BYTES = 16 << 10,
    WATCH_NS = 100 * 1000 * 1000,
    FLUSH_NS = 1000 * 1000 * 1000, /* for the last bytes of answers when the server closes */
    DRAIN_FACTOR = 8               /* of a body that is refused, so many times its bound is read and dropped */
};

enum stage {
    READING, /* the request is arriving */
    WAITING, /* for the reply; the connection is suspended */
    REPLYING /* the reply is being sent */
};

/* A connection, as the watching thread sees it. */
struct peer {
    struct peer *next, *before;
    int fd;
    int64_t since_ns;          /* since when it has been reading a request, or idle */
    struct exchange *exchange; /* the request in progress; NULL: none */
};

struct exchange {
    struct http_exchange x; /* comes first */
    struct http *http;
    struct MHD_Connection *connection;
    struct peer *peer;
    _Atomic int stage;
    uint64_t n_body;       /* bytes of the body so far, including those that were dropped */
    size_t n_counted;      /* bytes of it in http->n_bodies_bytes */
    bool is_wanted;        /* `begin` wants the body, and `handle` to be called */
    bool is_busy;          /* counted in http->n_busy */
    bool left;             /* `left` was called; only the watching thread uses it */
    struct http_task task; /* that calls `handle` */
};

struct http {
    struct http_options options;
    struct http_app app;
    struct MHD_Daemon *daemon;
    int stopped_fd; /* the listening socket after http_stop_accepting; -1: before */
    _Atomic size_t n_bodies_bytes, n_sleeping, n_busy;
    _Atomic bool stops;

    pthread_mutex_t peers_lock; /* protects peers, n_peers and their fields; taken before the application's locks */
    struct peer *peers;
    size_t n_peers;
    struct pollfd *polls; /* [n_polls]; only the watching thread uses it */
    size_t n_polls;
    pthread_t watcher;
    bool has_watcher, watcher_stops;

    pthread_mutex_t queue_lock;
    pthread_cond_t queue_filled;
    struct http_task *first, **last;
    bool workers_stop;
    pthread_t workers[64];
    int n_workers;
};

err_code http_check(struct err *e)
{
    return ERR_OK;
}

const char *http_header(const struct http_exchange *x, const char *name)
{
    const struct exchange *own = (const struct exchange *)x;
    return MHD_lookup_connection_value(own->connection, MHD_HEADER_KIND, name);
}

/* ---- workers ------------------------------------------------------------------------------------------------- */

void http_do(struct http *h, struct http_task *task)
{
    pthread_mutex_lock(&h->queue_lock);
    task->next = NULL;
    *h->last = task;
    h->last = &task->next;
    pthread_cond_signal(&h->queue_filled);
    pthread_mutex_unlock(&h->queue_lock);
}

/* NULL: the queue is empty and there will be no more. */
static struct http_task *queue_pop(struct http *h)
{
    pthread_mutex_lock(&h->queue_lock);
    while (!h->first && !h->workers_stop)
        pthread_cond_wait(&h->queue_filled, &h->queue_lock);
    struct http_task *task = h->first;
    if (task) {
        h->first = task->next;
        if (!h->first)
            h->last = &h->first;
    }
    pthread_mutex_unlock(&h->queue_lock);
    return task;
}

static void *work(void *user)
{
    for (struct http_task *task; (task = queue_pop(user));)
        task->run(task->user); /* which may free the task */
    return NULL;
}

static void handle(void *user)
{
    struct exchange *own = user;
    own->http->app.handle(own->http->app.user, &own->x);
}

/* Resumes a connection. Its exchange may be gone when this returns. The count goes down last because stop_daemon waits
 * for it: libmicrohttpd must not be stopped while a connection is suspended. */
static void wake(struct http *h, struct MHD_Connection *connection)
{
    MHD_resume_connection(connection);
    atomic_fetch_sub(&h->n_sleeping, 1);
}

void http_reply(struct http_exchange *x)
{
    struct exchange *own = (struct exchange *)x;
    struct http *h = own->http;
    assert(x->reply.status);
    atomic_store(&own->stage, REPLYING);
    wake(h, own->connection);
}

/* ---- bodies -------------------------------------------------------------------------------------------------- */

void http_drop_body(struct http_exchange *x)
{
    struct exchange *own = (struct exchange *)x;
    atomic_fetch_sub(&own->http->n_bodies_bytes, own->n_counted);
    own->n_counted = 0;
    bytes_close(&x->body);
}

static void refuse(struct exchange *own, int status, err_code code, const char *text, uint64_t n)
{
    struct err why = {0};
    err_set(&why, code, text, (unsigned long long)n);
    http_drop_body(&own->x);
    own->http->app.refuse(own->http->app.user, &own->x, status, &why);
}

static void refuse_length(struct exchange *own)
{
    refuse(own, MHD_HTTP_CONTENT_TOO_LARGE, ERR_LIMIT, "the body is too long: expected at most %llu bytes",
           own->http->options.max_body_bytes);
}

/* Takes a piece of a body. False: the connection must be closed. */
static bool take_body(struct exchange *own, const char *bytes, size_t n)
{
    struct http *h = own->http;
    size_t max = h->options.max_body_bytes;
    own->n_body += n;
    if (own->x.reply.status)
        return own->n_body / DRAIN_FACTOR <= max;
    if (own->n_body > max) {
        refuse_length(own);
        return true;
    }
    own->n_counted += n;
    if (atomic_fetch_add(&h->n_bodies_bytes, n) + n > h->options.max_bodies_bytes) {
        refuse(own, MHD_HTTP_SERVICE_UNAVAILABLE, ERR_LIMIT,
               "the bodies of all requests together have more than %llu bytes: try again later",
               h->options.max_bodies_bytes);
        own->x.reply.retry_after_s = 1;
    } else if (bytes_add(&own->x.body, bytes, n, NULL) != ERR_OK) {
        refuse(own, MHD_HTTP_SERVICE_UNAVAILABLE, ERR_NOMEM, "there is no memory for a body of %llu bytes",
               own->n_body);
    }
    return true;
}

/* Marks that the whole request has arrived, and a reply is due. */
static void become_busy(struct exchange *own, enum stage stage)
{
    atomic_store(&own->stage, stage);
    if (!own->is_busy)
        atomic_fetch_add(&own->http->n_busy, 1);
    own->is_busy = true;
}

/* ---- replies ------------------------------------------------------------------------------------------------- */

static void fall_asleep(void *user)
{
    struct exchange *own = user;
    atomic_fetch_add(&own->http->n_sleeping, 1);
    MHD_suspend_connection(own->connection);
}

static void wake_up(void *user)
{
    const struct exchange *own = user;
    wake(own->http, own->connection);
}

static ssize_t read_stream(void *user, uint64_t pos, char *out, size_t max)
{
    struct exchange *own = user;
    const struct stream_reader reader = {fall_asleep, wake_up, own};
    size_t n;
    switch (stream_take(own->x.reply.stream, out, max, &reader, &n)) {
    case STREAM_BYTES: return (ssize_t)n;
    case STREAM_SLEEPS: return 0;
    case STREAM_ENDED: return MHD_CONTENT_READER_END_OF_STREAM;
    default: return MHD_CONTENT_READER_END_WITH_ERROR;
    }
}

static struct MHD_Response *make_response(struct exchange *own)
{
    struct http_reply *r = &own->x.reply;
    static char empty[1];
    if (r->stream)
        return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, own, NULL);
    return MHD_create_response_from_buffer(r->body.n, r->body.n ? r->body.s : empty, MHD_RESPMEM_PERSISTENT);
}

/* Adds the reply's headers. Without memory some are left out. */
static void add_headers(struct MHD_Response *response, const struct http_exchange *x)
{
    const struct http_reply *r = &x->reply;
    char number[16];
    snprintf(number, sizeof number, "%d", r->retry_after_s);
    const struct {
        bool is_there;
        const char *name, *value;
    } headers[] = {
        {r->type != NULL, "Content-Type", r->type},
        {true, "X-Request-Id", x->id},
        {true, "Request-Id", x->id}, /* Anthropic's */
        {r->stream != NULL, "Cache-Control", "no-cache"},
        {r->stream != NULL, "X-Accel-Buffering", "no"}, /* tells nginx not to buffer the stream */
        {r->retry_after_s > 0, "Retry-After", number},
        {r->allow != NULL, "Allow", r->allow},
        {r->asks_for_key, "WWW-Authenticate", "Bearer"},
        {r->origin != NULL, "Access-Control-Allow-Origin", r->origin},
        {r->origin && strcmp(r->origin, "*") != 0, "Vary", "Origin"},
        {r->origin && r->allow, "Access-Control-Allow-Methods", r->allow},
        {r->origin && r->allow, "Access-Control-Allow-Headers", "*, Authorization"},
        {r->origin && r->allow, "Access-Control-Max-Age", "600"},
        {r->closes, "Connection", "close"},
        {r->etag != NULL, "ETag", r->etag},
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        if (headers[i].is_there)
            (void)MHD_add_response_header(response, headers[i].name, headers[i].value);
    for (size_t i = 0; i < r->n_headers; i++)
        (void)MHD_add_response_header(response, r->headers[i].name, r->headers[i].value);
}

static enum MHD_Result send_reply(struct exchange *own)
{
    struct MHD_Response *response = make_response(own);
    if (!response)
        return MHD_NO;
    become_busy(own, REPLYING);
    add_headers(response, &own->x);
    enum MHD_Result result = MHD_queue_response(own->connection, (unsigned)own->x.reply.status, response);
    MHD_destroy_response(response);
    return result;
}

/* ---- requests ------------------------------------------------------------------------------------------------ */

static void exchange_free(struct exchange *own)
{
    http_drop_body(&own->x);
    bytes_close(&own->x.reply.body);
    stream_leave(&own->x.reply.stream);
    mem_free(own->x.path);
    mem_free(own);
}

/* Shows an exchange to the watching thread, or with NULL hides the one that is about to be freed. */
static void show_exchange(struct http *h, struct peer *peer, struct exchange *own)
{
    pthread_mutex_lock(&h->peers_lock);
    peer->exchange = own;
    peer->since_ns = clock_ns();
    pthread_mutex_unlock(&h->peers_lock);
}

static struct peer *peer_of(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* Makes the exchange of a request whose header has arrived. NULL: no memory. */
static struct exchange *open_exchange(struct http *h, struct MHD_Connection *connection, const char *method,
                                      const char *path)
{
    struct exchange *own = mem_calloc(1, sizeof *own);
    struct peer *peer = peer_of(connection);
    if (!own || !peer || random_id(own->x.id, NULL) != ERR_OK || !(own->x.path = mem_strdup(path))) {
        mem_free(own);
        return NULL;
    }
    own->http = h;
    own->connection = connection;
    own->peer = peer;
    own->x.start_ns = clock_ns();
    snprintf(own->x.method, sizeof own->x.method, "%s", method);
    atomic_init(&own->stage, READING);
    show_exchange(h, peer, own);
    return own;
}

/* The Content-Length of a request; 0: it has none, or the body comes in chunks. */
static unsigned long long announced_length(const struct exchange *own)
{
    unsigned long long n;
    const char *text = http_header(&own->x, "Content-Length");
    return text && sscanf(text, "%llu", &n) == 1 ? n : 0;
}

static enum MHD_Result count_length(void *user, enum MHD_ValueKind kind, const char *name, const char *value)
{
    int *n = user;
    *n += !strcasecmp(name, "Content-Length") || !strcasecmp(name, "Transfer-Encoding");
    return MHD_YES;
}

/* Whether a header says more than once how long the body is. A proxy may believe another of these than libmicrohttpd
 * does, and what is body to one of them would be a request to the other. */
static bool is_ambiguous(const struct exchange *own)
{
    int n = 0;
    MHD_get_connection_values(own->connection, MHD_HEADER_KIND, count_length, &n);
    return n > 1;
}

static enum MHD_Result begin(struct exchange *own)
{
    struct http *h = own->http;
    const char *expect = http_header(&own->x, "Expect");
    if (atomic_load(&h->stops)) {
        refuse(own, MHD_HTTP_SERVICE_UNAVAILABLE, ERR_CANCELLED, "the server is ending", 0);
        own->x.reply.closes = true;
    } else if (is_ambiguous(own)) {
        refuse(own, MHD_HTTP_BAD_REQUEST, ERR_USAGE, "the header has more than one length of the body", 0);
        own->x.reply.closes = true;
    } else {
        own->is_wanted = h->app.begin(h->app.user, &own->x);
        if (own->is_wanted && announced_length(own) > h->options.max_body_bytes)
            refuse_length(own);
    }
    /* A client that waits for "100 Continue" gets a refusal before it sends the body. Others may send their body first,
     * because many clients do not see a reply that comes before that. */
    if (own->x.reply.status && expect && !strcasecmp(expect, "100-continue"))
        return send_reply(own);
    return MHD_YES;
}

/* Decodes a path in place. One with a zero byte stays as it came, as its text would end there. */
static size_t decode(void *user, struct MHD_Connection *connection, char *text)
{
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *upload, size_t *n_upload, void **context)
{
    struct http *h = user;
    struct exchange *own = *context;
    if (!own) {
        own = *context = open_exchange(h, connection, method, path);
        return own ? begin(own) : MHD_NO;
    }
    if (*n_upload) {
        bool good = take_body(own, upload, *n_upload);
        *n_upload = 0;
        return good ? MHD_YES : MHD_NO;
    }
    if (own->x.reply.status)
        return send_reply(own);
    assert(own->is_wanted);
    become_busy(own, WAITING);
    fall_asleep(own);
    own->task = (struct http_task){.run = handle, .user = own};
    http_do(h, &own->task);
    return MHD_YES;
}

static void on_completed(void *user, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode how)
{
    struct http *h = user;
    struct exchange *own = *context;
    if (!own)
        return;
    *context = NULL;
    show_exchange(h, own->peer, NULL);
    h->app.end(h->app.user, &own->x, how == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (own->is_busy)
        atomic_fetch_sub(&h->n_busy, 1);
    exchange_free(own);
}

/* ---- connections --------------------------------------------------------------------------------------------- */

static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    static const int send_bytes = SOCKET_BYTES;
    struct http *h = user;
    struct peer *peer = *context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        peer = *context = mem_calloc(1, sizeof *peer); /* without it requests are refused */
        if (!peer)
            return;
        peer->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        (void)setsockopt(peer->fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
        peer->since_ns = clock_ns();
        pthread_mutex_lock(&h->peers_lock);
        peer->next = h->peers;
        if (peer->next)
            peer->next->before = peer;
        h->peers = peer;
        h->n_peers++;
        pthread_mutex_unlock(&h->peers_lock);
    } else if (peer) {
        pthread_mutex_lock(&h->peers_lock);
        *(peer->before ? &peer->before->next : &h->peers) = peer->next;
        if (peer->next)
            peer->next->before = peer->before;
        h->n_peers--;
        pthread_mutex_unlock(&h->peers_lock);
        mem_free(peer);
    }
}

/* Makes room in h->polls for all peers. False: no memory. */
static bool reserve_polls(struct http *h)
{
    if (h->n_polls >= h->n_peers)
        return true;
    struct pollfd *more = mem_resize(h->polls, 2 * h->n_peers, sizeof *more);
    if (!more)
        return false;
    h->polls = more;
    h->n_polls = 2 * h->n_peers;
    return true;
}

static void watch_peer(struct http *h, struct peer *peer, bool is_gone, int64_t now)
{
    struct exchange *own = peer->exchange;
    if (!own || atomic_load(&own->stage) == READING) {
        /* libmicrohttpd misses some disconnects, and its idle time-out never ends a request that arrives byte by byte;
         * but it does notice a socket that was shut down */
        if (is_gone || now - peer->since_ns > (int64_t)h->options.timeout_s * 1000000000)
            shutdown(peer->fd, SHUT_RDWR);
    } else if (is_gone && !own->left) {
        own->left = true;
        h->app.left(h->app.user, &own->x);
    } else {
        h->app.tick(h->app.user, &own->x, now);
    }
}

/* Polls all connections. Sockets stay open as long as their peers are in the list. */
static void watch_peers(struct http *h)
{
    size_t n = 0;
    int64_t now = clock_ns();
    pthread_mutex_lock(&h->peers_lock);
    if (reserve_polls(h)) {
        for (struct peer *peer = h->peers; peer; peer = peer->next)
            h->polls[n++] = (struct pollfd){.fd = peer->fd, .events = POLLRDHUP};
        (void)poll(h->polls, n, 0);
        n = 0;
        for (struct peer *peer = h->peers; peer; peer = peer->next)
            watch_peer(h, peer, h->polls[n++].revents & (POLLRDHUP | POLLHUP | POLLERR), now);
    }
    pthread_mutex_unlock(&h->peers_lock);
}

static void *watch(void *user)
{
    struct http *h = user;
    for (bool stops = false; !stops;) {
        clock_sleep_ns(WATCH_NS);
        watch_peers(h);
        pthread_mutex_lock(&h->queue_lock);
        stops = h->watcher_stops;
        pthread_mutex_unlock(&h->queue_lock);
    }
    return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------------------------- */

static err_code start_threads(struct http *h, struct err *e)
{
    int n = h->options.n_workers, max = (int)(sizeof h->workers / sizeof *h->workers);
    while (h->n_workers < n && h->n_workers < max && pthread_create(&h->workers[h->n_workers], NULL, work, h) == 0)
        h->n_workers++;
    h->has_watcher = pthread_create(&h->watcher, NULL, watch, h) == 0;
    return h->n_workers && h->has_watcher ? ERR_OK : err_set(e, ERR_FAIL, "the server's threads can't be started");
}

static err_code start_daemon(struct http *h, struct err *e)
{
    const struct http_options *o = &h->options;
    h->daemon =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, h,
                         MHD_OPTION_LISTEN_SOCKET, o->listen_fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
                         MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)o->max_connections, MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)o->max_per_address,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)o->timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)CONNECTION_BYTES, MHD_OPTION_UNESCAPE_CALLBACK, decode, NULL,
                         MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
    if (!h->daemon)
        return err_set(e, ERR_FAIL, "libmicrohttpd can't start");
    h->options.listen_fd = -1; /* the daemon's */
    return ERR_OK;
}

err_code http_open(struct http **out, const struct http_options *options, const struct http_app *app, struct err *e)
{
    struct http *h = *out = mem_calloc(1, sizeof *h);
    if (!h) {
        close(options->listen_fd);
        return err_nomem(e, sizeof *h, "the server");
    }
    h->options = *options;
    h->app = *app;
    h->stopped_fd = -1;
    h->last = &h->first;
    pthread_mutex_init(&h->peers_lock, NULL);
    pthread_mutex_init(&h->queue_lock, NULL);
    pthread_cond_init(&h->queue_filled, NULL);
    signal(SIGPIPE, SIG_IGN);
    err_code code = start_threads(h, e);
    if (code == ERR_OK)
        code = start_daemon(h, e);
    if (code != ERR_OK)
        http_close(out);
    return code;
}

void http_stop_accepting(struct http *h)
{
    if (atomic_exchange(&h->stops, true))
        return;
    h->stopped_fd = MHD_quiesce_daemon(h->daemon); /* not closed yet: the daemon's thread may be using it */
    if (h->stopped_fd >= 0 && !h->options.is_shared)
        shutdown(h->stopped_fd, SHUT_RDWR);
}

size_t http_n_busy(struct http *h)
{
    return atomic_load(&h->n_busy);
}

static void stop_workers(struct http *h)
{
    pthread_mutex_lock(&h->queue_lock);
    h->workers_stop = true;
    pthread_cond_broadcast(&h->queue_filled);
    pthread_mutex_unlock(&h->queue_lock);
    for (int i = 0; i < h->n_workers; i++)
        pthread_join(h->workers[i], NULL);
}

static void stop_watcher(struct http *h)
{
    pthread_mutex_lock(&h->queue_lock);
    h->watcher_stops = true;
    pthread_mutex_unlock(&h->queue_lock);
    if (h->has_watcher)
        pthread_join(h->watcher, NULL);
}

/* libmicrohttpd must not be stopped while connections are suspended. */
static void stop_daemon(struct http *h)
{
    const int64_t until = clock_ns() + FLUSH_NS;
    while (atomic_load(&h->n_sleeping) || (atomic_load(&h->n_busy) && clock_ns() < until))
        clock_sleep_ns(1000 * 1000);
    MHD_stop_daemon(h->daemon);
    if (h->stopped_fd >= 0)
        close(h->stopped_fd);
}

void http_close(struct http **http)
{
    struct http *h = *http;
    if (!h)
        return;
    *http = NULL;
    if (h->daemon)
        http_stop_accepting(h);
    else
        close(h->options.listen_fd);
    stop_workers(h);
    if (h->daemon)
        stop_daemon(h);
    stop_watcher(h);
    pthread_cond_destroy(&h->queue_filled);
    pthread_mutex_destroy(&h->queue_lock);
    pthread_mutex_destroy(&h->peers_lock);
    mem_free(h->polls);
    mem_free(h);
}
