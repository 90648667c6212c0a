/* Getting bytes by HTTP, through libcurl: ranges, and redirects that are followed one by one, so that what each answer
 * says is seen and the token goes to its own host alone.
 *
 * Nothing of an answer is trusted: its head is judged by the caller before a byte of its body is taken. Only http and
 * https are spoken, and a redirect from https to http is refused. One thread at a time. */
#ifndef HUB_HTTP_CLIENT_H
#define HUB_HTTP_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/err.h"

struct http_client;

struct http_client_options {
    const char *token;                         /* "": none. Borrowed, as the next */
    const char *origin;                        /* the address to whose scheme, host and port the token is shown */
    int n_retry;                               /* tries without a byte before giving up, less one */
    bool (*goes_on)(void *user);               /* asked often; false ends with ERR_CANCELLED */
    void (*say)(void *user, const char *line); /* told of each further try. NULL: nobody is */
    void *user;
};

/* The head of an answer, as far as it matters here. */
struct http_head {
    int status;
    int64_t n_bytes;       /* Content-Length; -1: not said */
    bool has_range;        /* Content-Range was said and is well-formed: */
    uint64_t first, last;  /* bytes of the whole, both included */
    int64_t n_whole;       /* -1: not said ("*") */
    char etag[130];        /* without quotes; "": none, or too long. Weak ones are none */
    char linked_etag[130]; /* X-Linked-Etag of this answer or of a redirect to it: the file's digest */
    char next[1024];       /* Link: <...>; rel="next"; "": none */
};

enum http_failure {
    HTTP_FINAL, /* trying again would not help */
    HTTP_AGAIN, /* it may: the network, the server, what lies between them */
};

struct http_get {
    const char *url;
    uint64_t from, n; /* the range that is asked for; n 0: no range */
    /* Judges the head before the body comes; what it refuses is reported with its code, and *failure. NULL: fine. */
    err_code (*begin)(void *user, const struct http_head *h, enum http_failure *failure, struct err *e);
    /* Takes the body; false with ERR_OK in *e: that was enough. */
    bool (*take)(void *user, const char *bytes, size_t n, struct err *e);
    void *user;
};

MUST_USE err_code http_client_open(struct http_client **out, const struct http_client_options *o, struct err *e);
void http_client_close(struct http_client **c);

/* Once, without another try. A status other than 200 and 206 is an error whose sentence says what it may mean. *h is
 * filled in as far as the answer came. */
MUST_USE err_code http_client_get(struct http_client *c, const struct http_get *g, struct http_head *h,
                                  enum http_failure *failure, struct err *e);

/* Waits before another try: longer, the more failed in a row. ERR_OK: now; `code`, with the sentence in *e, where there
 * were enough of them; or ERR_CANCELLED. */
MUST_USE err_code http_client_again(const struct http_client *c, const char *url, int n_failed, err_code code,
                                    struct err *e);

/* ERR_CANCELLED once it is not to go on: for work between requests that takes long. */
MUST_USE err_code http_client_check(const struct http_client *c, struct err *e);
/* The whole of a small answer, with tries. next (may be NULL) [1024]: the page after it, "" for none. */
MUST_USE err_code http_client_text(struct http_client *c, const char *url, size_t max_bytes, struct bytes *out,
                                   char *next, struct err *e);

#endif
