/* Routes of the web page: its files, and the events about experts. Each function answers at once. */
#include <string.h>

#include "server/call.h"
#include "server/page.h"
#include "server/routes.h"

/* The page shows answers of models, which are not trusted. So it may load and run only what this server sends, and no
 * other page may frame it. */
static const struct http_header page_headers[] = {
    {"Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                                "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-cache"}, /* browsers ask each time whether the ETag is still the same */
};

/* Whether the client has this version of a file: If-None-Match lists ETags. */
static bool is_known(const struct call *c, const struct page_file *f)
{
    const char *known = http_header(c->x, "If-None-Match");
    return known && (!strcmp(known, "*") || strstr(known, f->etag));
}

static void send_file(struct call *c, const char *name)
{
    const struct page_file *f = NULL;
    for (size_t i = 0; i < page_n_files; i++)
        if (!strcmp(page_files[i].name, name))
            f = &page_files[i];
    if (!f) {
        call_refuse(c, 404, "%s: the page has no such file", c->x->path);
        return;
    }
    call_text(c, is_known(c, f) ? 304 : 200, f->type, is_known(c, f) ? "" : f->text);
    c->x->reply.etag = f->etag;
    c->x->reply.headers = page_headers;
    c->x->reply.n_headers = sizeof page_headers / sizeof *page_headers;
}

static const char bare_text[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>moebius</title><h1>moebius</h1>\n"
    "<p>A server of language models. Clients of OpenAI's interface ask <code>/v1</code>, clients of Anthropic's and\n"
    "Ollama's the address alone. <a href=\"/v1/models\">models</a>, <a href=\"/health\">health</a>,\n"
    "<a href=\"/metrics\">metrics</a></p></html>\n";

void route_front(struct call *c)
{
    if (c->server->options->has_page)
        send_file(c, "index.html");
    else
        call_text(c, 200, "text/html; charset=utf-8", bare_text);
}

void route_page(struct call *c)
{
    if (c->server->options->has_page)
        send_file(c, c->x->path + strlen(c->route->path));
    else
        call_refuse(c, 404, "%s: this server was started with --no-page", c->x->path);
}

void route_experts(struct call *c)
{
    static const char type[] = "text/event-stream";
    struct http_reply *r = &c->x->reply;
    struct err e = {0};
    if (!strcmp(c->x->method, "HEAD")) {
        call_text(c, 200, type, "");
    } else if (expert_watch_open(&c->watch, c->server->models, &r->stream, &e) != ERR_OK) {
        call_error(c, &e);
    } else {
        r->status = 200;
        r->type = type;
    }
}
