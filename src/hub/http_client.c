#include "hub/http_client.h"

#include <assert.h>
#include <ctype.h>
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"

enum {
    MOST_REDIRECTS = 8,
    MOST_IGNORED_BYTES = 1 << 20, /* most bytes of a redirect's or error's body that are read */
    CONNECT_S = 30,
    SILENCE_S = 60, /* a connection without a byte for so long is given up */
};

struct http_client {
    struct http_client_options o;
    CURL *curl;
};

/* One answer that is being received. */
struct transfer {
    struct http_client *client;
    const struct http_get *get;
    struct http_head *head;
    enum http_failure *failure;
    struct err *e;
    err_code code; /* the error with which a callback ended the transfer */
    bool is_enough, is_begun;
    size_t n_ignored;
};

static bool goes_on(const struct http_client *c)
{
    return !c->o.goes_on || c->o.goes_on(c->o.user);
}

/* ---- heads ----------------------------------------------------------------------------------------------------- */

/* The value of a header line, if it has this name: from *value to *end, without white space around it. */
static bool is_header(const char *line, size_t n, const char *name, const char **value, size_t *n_value)
{
    size_t n_name = strlen(name);
    if (n <= n_name || strncasecmp(line, name, n_name) != 0 || line[n_name] != ':')
        return false;
    const char *p = line + n_name + 1, *end = line + n;
    while (p < end && isspace((unsigned char)*p))
        p++;
    while (end > p && isspace((unsigned char)end[-1]))
        end--;
    *value = p;
    *n_value = (size_t)(end - p);
    return true;
}

/* Parses "TEXT" with its quotes. W/"TEXT" is a weak tag, with which the bytes may differ, and counts as none. */
static void read_etag(char out[130], const char *value, size_t n)
{
    out[0] = '\0';
    if (n >= 2 && value[0] == '"' && value[n - 1] == '"' && n - 2 < 130)
        snprintf(out, 130, "%.*s", (int)(n - 2), value + 1);
}

/* Parses a number of digits only, below 2^62. */
static bool read_number(const char **p, const char *end, uint64_t *out)
{
    const char *begin = *p;
    *out = 0;
    for (; *p < end && isdigit((unsigned char)**p); ++*p) {
        *out = *out * 10 + (uint64_t)(**p - '0');
        if (*out >> 62)
            return false;
    }
    return *p > begin;
}

/* "bytes 0-99/500", "bytes 0-99/" followed by a star. */
static void read_range(struct http_head *h, const char *value, size_t n)
{
    const char *p = value + 6, *end = value + n;
    uint64_t whole = 0;
    h->has_range = false;
    h->n_whole = -1;
    if (n < 6 || strncasecmp(value, "bytes ", 6) != 0 || !read_number(&p, end, &h->first) || p == end || *p++ != '-' ||
        !read_number(&p, end, &h->last) || p == end || *p++ != '/' || h->last < h->first)
        return;
    bool is_open = end - p == 1 && *p == '*';
    if (!is_open && (!read_number(&p, end, &whole) || p != end || h->last >= whole))
        return;
    h->n_whole = is_open ? -1 : (int64_t)whole;
    h->has_range = true;
}

/* <URL>; rel="next" */
static void read_link(struct http_head *h, const char *value, size_t n)
{
    char text[1200];
    const char *end;
    snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : 0), value);
    if (text[0] == '<' && (end = strchr(text, '>')) != NULL && strstr(end, "rel=\"next\"") &&
        (size_t)(end - text) < sizeof h->next)
        snprintf(h->next, sizeof h->next, "%.*s", (int)(end - text - 1), text + 1);
}

static void read_header(struct http_head *h, const char *line, size_t n)
{
    const char *value, *p;
    size_t k;
    uint64_t length;
    if (is_header(line, n, "content-length", &value, &k)) {
        p = value;
        h->n_bytes = read_number(&p, value + k, &length) && p == value + k ? (int64_t)length : -1;
    } else if (is_header(line, n, "content-range", &value, &k)) {
        read_range(h, value, k);
    } else if (is_header(line, n, "etag", &value, &k)) {
        read_etag(h->etag, value, k);
    } else if (is_header(line, n, "x-linked-etag", &value, &k)) {
        read_etag(h->linked_etag, value, k);
    } else if (is_header(line, n, "link", &value, &k)) {
        read_link(h, value, k);
    }
}

/* Called when the headers are complete: has the caller check them, unless they are those of a redirect or an error. */
static bool begin(struct transfer *t)
{
    long status = 0;
    curl_easy_getinfo(t->client->curl, CURLINFO_RESPONSE_CODE, &status);
    t->head->status = (int)status;
    if ((status != 200 && status != 206) || t->is_begun)
        return true;
    t->is_begun = true;
    if (t->get->begin)
        t->code = t->get->begin(t->get->user, t->head, t->failure, t->e);
    return t->code == ERR_OK;
}

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    struct transfer *t = user;
    if (n >= 5 && strncmp(line, "HTTP/", 5) == 0) { /* the headers of an answer begin, maybe after those of a proxy */
        char linked_etag[sizeof t->head->linked_etag];
        memcpy(linked_etag, t->head->linked_etag, sizeof linked_etag);
        *t->head = (struct http_head){.n_bytes = -1};
        memcpy(t->head->linked_etag, linked_etag, sizeof linked_etag);
    } else if (n == 2 && line[0] == '\r') {
        return begin(t) ? n : 0;
    } else {
        read_header(t->head, line, n);
    }
    return n;
}

static size_t on_data(char *bytes, size_t size, size_t n, void *user)
{
    struct transfer *t = user;
    if (!t->is_begun) {
        t->n_ignored += n;
        return t->n_ignored <= MOST_IGNORED_BYTES ? n : 0;
    }
    t->e->code = ERR_OK;
    if (t->get->take(t->get->user, bytes, n, t->e))
        return n;
    t->code = t->e->code;
    t->is_enough = t->code == ERR_OK;
    *t->failure = HTTP_FINAL; /* the failure is not the server's */
    return 0;
}

static int on_progress(void *user, curl_off_t down_all, curl_off_t down, curl_off_t up_all, curl_off_t up)
{
    const struct transfer *t = user;
    return !goes_on(t->client);
}

/* ---- the client ------------------------------------------------------------------------------------------------ */

err_code http_client_open(struct http_client **out, const struct http_client_options *o, struct err *e)
{
    *out = mem_calloc(1, sizeof **out);
    if (!*out)
        return err_nomem(e, sizeof **out, "a client of HTTP");
    (*out)->o = *o;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || !((*out)->curl = curl_easy_init())) {
        http_client_close(out);
        return err_set(e, ERR_FAIL, "libcurl could not be started");
    }
    return ERR_OK;
}

void http_client_close(struct http_client **c)
{
    if (!*c)
        return;
    if ((*c)->curl)
        curl_easy_cleanup((*c)->curl);
    curl_global_cleanup();
    mem_free(*c);
    *c = NULL;
}

/* One part of a URL, to be freed with curl_free; NULL: there is none. */
static char *url_part(const char *url, CURLUPart part)
{
    char *text = NULL;
    CURLU *u = curl_url();
    if (u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK)
        (void)curl_url_get(u, part, &text, CURLU_DEFAULT_PORT);
    curl_url_cleanup(u);
    return text;
}

static bool is_same_part(const char *a, const char *b, CURLUPart part)
{
    char *of_a = url_part(a, part), *of_b = url_part(b, part);
    bool is_same = of_a && of_b && strcasecmp(of_a, of_b) == 0;
    curl_free(of_a);
    curl_free(of_b);
    return is_same;
}

static bool is_same_origin(const char *a, const char *b)
{
    return is_same_part(a, b, CURLUPART_SCHEME) && is_same_part(a, b, CURLUPART_HOST) &&
           is_same_part(a, b, CURLUPART_PORT);
}

static bool is_https(const char *url)
{
    return strncasecmp(url, "https://", 8) == 0;
}

static void set_up(struct http_client *c, struct transfer *t, const char *url, char *error)
{
    curl_easy_reset(c->curl); /* keeps connections */
    curl_easy_setopt(c->curl, CURLOPT_URL, url);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(c->curl, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(c->curl, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    if (getenv("SSL_CERT_FILE")) /* libcurl does not read this variable itself */
        curl_easy_setopt(c->curl, CURLOPT_CAINFO, getenv("SSL_CERT_FILE"));
    if (getenv("SSL_CERT_DIR"))
        curl_easy_setopt(c->curl, CURLOPT_CAPATH, getenv("SSL_CERT_DIR"));
    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->curl, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(c->curl, CURLOPT_USERAGENT, "moebius/" MOEBIUS_VERSION);
    curl_easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_TIME, (long)SILENCE_S);
    curl_easy_setopt(c->curl, CURLOPT_BUFFERSIZE, 512L * 1024);
    curl_easy_setopt(c->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c->curl, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c->curl, CURLOPT_XFERINFODATA, t);
}

/* The headers of the request, to be freed by the caller. NULL: none are needed, or there is no memory. */
static struct curl_slist *make_headers(const struct http_client *c, const struct http_get *g, const char *url)
{
    char line[600];
    struct curl_slist *list = NULL;
    if (*c->o.token && is_same_origin(url, c->o.origin)) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", c->o.token);
        list = curl_slist_append(list, line);
    }
    if (g->n) {
        snprintf(line, sizeof line, "Range: bytes=%llu-%llu", (unsigned long long)g->from,
                 (unsigned long long)(g->from + g->n - 1));
        list = curl_slist_append(list, line);
    }
    return list;
}

/* A failure of the network, which may end, is reported with another code than a failure to read a file. */
static err_code failure_code(enum http_failure failure)
{
    return failure == HTTP_AGAIN ? ERR_FAIL : ERR_IO;
}

/* The error for an answer with a status other than 200 and 206. */
static err_code refuse_status(const struct http_client *c, const char *url, int status, enum http_failure *failure,
                              struct err *e)
{
    *failure = status == 408 || status == 429 || status >= 500 ? HTTP_AGAIN : HTTP_FINAL;
    err_code code = failure_code(*failure);
    bool is_hub = is_same_origin(url, c->o.origin);
    switch (status) {
    case 401:
    case 403:
        if (!is_hub)
            return err_set(e, ERR_IO, "%.300s: the server answers %d: access denied", url, status);
        return err_set(e, ERR_IO, "%.300s: the server answers %d: %s", url, status,
                       *c->o.token ? "the token (HF_TOKEN) gives no access; is there a licence to accept first?"
                                   : "it does not exist, or requires a token: set HF_TOKEN");
    case 404: return err_set(e, ERR_IO, "%.300s: the server answers 404: not found", url);
    case 416: return err_set(e, ERR_IO, "%.300s: the server answers 416: it has no such range of bytes", url);
    case 429: return err_set(e, code, "%.300s: the server answers 429: too many requests", url);
    default: return err_set(e, code, "%.300s: the server answers %d", url, status);
    }
}

static err_code transport_failed(CURLcode result, const struct transfer *t, const char *url, const char *error)
{
    if (t->is_enough)
        return ERR_OK;
    if (t->code != ERR_OK)
        return t->code;
    if (result == CURLE_ABORTED_BY_CALLBACK || !goes_on(t->client))
        return err_set(t->e, ERR_CANCELLED, "interrupted");
    *t->failure = result == CURLE_UNSUPPORTED_PROTOCOL || result == CURLE_URL_MALFORMAT ||
                          result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE
                      ? HTTP_FINAL
                      : HTTP_AGAIN;
    return err_set(t->e, failure_code(*t->failure), "%.300s: %s", url, *error ? error : curl_easy_strerror(result));
}

/* Makes one request. *next: the URL that the answer redirects to, owned by the caller (mem_free), or NULL. */
static err_code get_once(struct http_client *c, struct transfer *t, const char *url, char **next)
{
    char error[CURL_ERROR_SIZE] = "", *redirect = NULL;
    *next = NULL;
    t->is_begun = false;
    t->head->status = 0;
    set_up(c, t, url, error);
    struct curl_slist *headers = make_headers(c, t->get, url);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, headers);
    CURLcode result = curl_easy_perform(c->curl);
    curl_slist_free_all(headers);
    int status = t->head->status;
    bool is_redirect = status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
    curl_easy_getinfo(c->curl, CURLINFO_REDIRECT_URL, &redirect);
    if (is_redirect && redirect) { /* it does not matter how its body ended */
        *next = mem_strdup(redirect);
        return *next ? ERR_OK : err_nomem(t->e, strlen(redirect), "an address");
    }
    if (result != CURLE_OK)
        return transport_failed(result, t, url, error);
    return status == 200 || status == 206 ? ERR_OK : refuse_status(c, url, status, t->failure, t->e);
}

err_code http_client_get(struct http_client *c, const struct http_get *g, struct http_head *h,
                         enum http_failure *failure, struct err *e)
{
    struct transfer t = {.client = c, .get = g, .head = h, .failure = failure, .e = e};
    char *url = mem_strdup(g->url), *next = NULL;
    err_code code = url ? ERR_OK : err_nomem(e, strlen(g->url), "an address");
    *h = (struct http_head){.n_bytes = -1};
    *failure = HTTP_FINAL;
    for (int i = 0; code == ERR_OK; i++) {
        code = get_once(c, &t, url, &next);
        if (code != ERR_OK || !next)
            break;
        if (i == MOST_REDIRECTS)
            code = err_set(e, ERR_IO, "%.300s: more than %d redirects", g->url, MOST_REDIRECTS);
        else if (is_https(url) && !is_https(next))
            code = err_set(e, ERR_IO, "%.200s: sends us to %.200s, which is not https", url, next);
        mem_free(url);
        url = next;
    }
    mem_free(url);
    return code;
}

err_code http_client_check(const struct http_client *c, struct err *e)
{
    return goes_on(c) ? ERR_OK : err_set(e, ERR_CANCELLED, "interrupted");
}

static void say_again(const struct http_client *c, const char *url, int n_failed)
{
    char line[320], *host = url_part(url, CURLUPART_HOST);
    snprintf(line, sizeof line, "no whole answer from %.255s; trying again (%d of %d)", host ? host : "the server",
             n_failed, c->o.n_retry);
    curl_free(host);
    if (c->o.say)
        c->o.say(c->o.user, line);
}

err_code http_client_again(const struct http_client *c, const char *url, int n_failed, err_code code, struct err *e)
{
    enum { FIRST_MS = 100, LAST_MS = 10000, STEP_MS = 50 };
    TRY(http_client_check(c, e));
    if (n_failed > c->o.n_retry)
        return code;
    if (n_failed > 0)
        say_again(c, url, n_failed);
    int64_t left_ms = min_i64((int64_t)FIRST_MS << (n_failed < 10 ? n_failed : 10), LAST_MS);
    for (; left_ms > 0 && goes_on(c); left_ms -= STEP_MS)
        clock_sleep_ns(STEP_MS * 1000 * 1000);
    return http_client_check(c, e);
}

/* ---- small answers --------------------------------------------------------------------------------------------- */

struct text {
    struct bytes *out;
    size_t max_bytes;
    const char *url;
};

static bool take_text(void *user, const char *bytes, size_t n, struct err *e)
{
    const struct text *t = user;
    if (n > t->max_bytes - t->out->n) {
        err_set(e, ERR_LIMIT, "%.300s: the answer is longer than %zu bytes", t->url, t->max_bytes);
        return false;
    }
    return bytes_add(t->out, bytes, n, e) == ERR_OK;
}

err_code http_client_text(struct http_client *c, const char *url, size_t max_bytes, struct bytes *out, char *next,
                          struct err *e)
{
    struct text text = {out, max_bytes, url};
    struct http_head head;
    enum http_failure failure;
    const struct http_get get = {.url = url, .take = take_text, .user = &text};
    for (int n_failed = 0;;) {
        bytes_clear(out);
        err_code code = http_client_get(c, &get, &head, &failure, e);
        if (code == ERR_OK && next)
            memcpy(next, head.next, sizeof head.next);
        if (code == ERR_OK || code == ERR_CANCELLED || failure == HTTP_FINAL)
            return code;
        TRY(http_client_again(c, url, ++n_failed, code, e));
    }
}
