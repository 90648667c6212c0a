/* HTTP downloads through libcurl, with ranges. Redirects are followed one by one, so that the headers of each answer
 * are seen and the token is sent to its own host only.
 *
 * Answers are not trusted: the caller checks the headers of an answer before any of its body is read. Only http and
 * https are allowed, and a redirect from https to http is refused. A client may be used by one thread at a time. */
#ifndef HUB_HTTP_CLIENT_H
#define HUB_HTTP_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/err.h"

struct http_client;

struct http_client_options {
    const char *token;           /* "": none; borrowed */
    const char *origin;          /* URL to whose scheme, host and port alone the token is sent; borrowed */
    int n_retry;                 /* further tries after one that brought no byte, before giving up */
    bool (*goes_on)(void *user); /* called often; false ends with ERR_CANCELLED */
    void (*say)(void *user, const char *line); /* called before each further try; may be NULL */
    void *user;
};

/* The status and headers of an answer, as far as they matter here. */
struct http_head {
    int status;
    int64_t n_bytes;       /* Content-Length; -1: missing */
    bool has_range;        /* there is a well-formed Content-Range, which the next three fields are from */
    uint64_t first, last;  /* bytes of the whole file, both included */
    int64_t n_whole;       /* bytes of the whole file; -1: unknown ("*") */
    char etag[130];        /* without quotes; "": none, a weak one, or too long */
    char linked_etag[130]; /* X-Linked-Etag of this answer or of a redirect to it: the file's digest */
    char next[1024];       /* Link: <...>; rel="next"; "": none */
};

enum http_failure {
    HTTP_FINAL, /* trying again would not help */
    HTTP_AGAIN, /* trying again may help: a failure of the network or of the server */
};

struct http_get {
    const char *url;
    uint64_t from, n; /* the range to request; n 0: no range */
    /* Checks the headers before the body is read; an error ends the request, and *failure says whether to try again.
     * May be NULL. */
    err_code (*begin)(void *user, const struct http_head *h, enum http_failure *failure, struct err *e);
    /* Gets each piece of the body. False ends the request: with the error set in *e, or without one if it has enough.
     */
    bool (*take)(void *user, const char *bytes, size_t n, struct err *e);
    void *user;
};

MUST_USE err_code http_client_open(struct http_client **out, const struct http_client_options *o, struct err *e);
void http_client_close(struct http_client **c);

/* Makes one request, without further tries. A status other than 200 and 206 is an error whose message says what it may
 * mean. *h is filled in as far as the answer came. */
MUST_USE err_code http_client_get(struct http_client *c, const struct http_get *g, struct http_head *h,
                                  enum http_failure *failure, struct err *e);

/* Waits before another try, longer the more tries have failed in a row (n_failed). ERR_OK: try now. `code`, whose
 * message is in *e already: there were n_retry further tries. ERR_CANCELLED. */
MUST_USE err_code http_client_again(const struct http_client *c, const char *url, int n_failed, err_code code,
                                    struct err *e);

/* ERR_CANCELLED if goes_on says so. For long work between requests. */
MUST_USE err_code http_client_check(const struct http_client *c, struct err *e);

/* Reads the whole of a small answer, with further tries. next: [1024], set to the URL of the next page, "": none; may
 * be NULL. */
MUST_USE err_code http_client_text(struct http_client *c, const char *url, size_t max_bytes, struct bytes *out,
                                   char *next, struct err *e);

#endif
