/* In place of http.c in a build without libmicrohttpd. */
#include <unistd.h>

#include "server/http.h"

err_code http_check(struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "this build has no server: it was made without libmicrohttpd");
}

err_code http_open(struct http **out, const struct http_options *options, const struct http_app *app, struct err *e)
{
    *out = NULL;
    close(options->listen_fd);
    return http_check(e);
}

const char *http_header(const struct http_exchange *x, const char *name)
{
    return NULL;
}

void http_stop_accepting(struct http *h)
{
}

size_t http_n_busy(struct http *h)
{
    return 0;
}

void http_close(struct http **h)
{
}

void http_do(struct http *h, struct http_task *task)
{
}

void http_reply(struct http_exchange *x)
{
}

void http_drop_body(struct http_exchange *x)
{
}
