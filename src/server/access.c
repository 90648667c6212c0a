#include "server/access.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "server/call.h"
#include "server/routes.h"

/* The name in "NAME:PORT" or "[NAME]:PORT". */
static size_t name_length(const char *host)
{
    const char *end = *host == '[' ? strchr(host, ']') : strchr(host, ':');
    return end ? (size_t)(end - host) + (*host == '[') : strlen(host);
}

static bool is_loopback_name(const char *host)
{
    static const char suffix[] = ".localhost";
    size_t n = name_length(host), n_suffix = sizeof suffix - 1;
    if ((n == 9 && !strncasecmp(host, "localhost", n)) || (n == 5 && !strncmp(host, "[::1]", n)))
        return true;
    if (n > n_suffix && !strncasecmp(host + n - n_suffix, suffix, n_suffix))
        return true;
    return !strncmp(host, "127.", 4) && strspn(host, "0123456789.") >= n;
}

static bool check_host(struct call *c)
{
    const struct server *s = c->server;
    const char *host = http_header(c->x, "Host");
    if (!s->options->listener->is_loopback || keys_are_wanted(s->keys) || !host || is_loopback_name(host))
        return true;
    call_refuse(c, 403,
                "this server answers on the loopback alone, not as %.100s: ask it as localhost, or start it with keys",
                host);
    return false;
}

/* "http://localhost:8080" for a request to localhost:8080: the server's own page. */
static bool is_own_origin(const char *origin, const char *host)
{
    const char *name = strstr(origin, "://");
    return host && name && !strcasecmp(name + 3, host);
}

static bool check_origin(struct call *c)
{
    const struct server_options *o = c->server->options;
    const char *origin = http_header(c->x, "Origin");
    if (!origin)
        return true;
    for (size_t i = 0; i < o->n_origins; i++)
        if (!strcmp(o->origins[i], "*") || !strcasecmp(o->origins[i], origin)) {
            c->x->reply.origin = o->origins[i];
            return true;
        }
    if (is_own_origin(origin, http_header(c->x, "Host")))
        return true;
    call_refuse(c, 403, "pages of %.200s may not use this server: start it with --cors %.200s to allow it", origin,
                origin);
    return false;
}

/* Answers the preflight request that browsers send before a script's own request. */
static bool check_options(struct call *c)
{
    const char *allow;
    if (strcmp(c->x->method, "OPTIONS") != 0)
        return true;
    (void)routes_find("OPTIONS", c->x->path, &allow);
    if (!allow)
        return true;
    c->x->reply.allow = allow;
    call_text(c, 204, NULL, "");
    return false;
}

static bool check_key(struct call *c)
{
    static const char scheme[] = "Bearer ";
    const char *key = http_header(c->x, "Authorization");
    if (!keys_are_wanted(c->server->keys) || (c->route && c->route->needs_no_key))
        return true;
    key =
        key && !strncasecmp(key, scheme, sizeof scheme - 1) ? key + sizeof scheme - 1 : http_header(c->x, "x-api-key");
    if (key && keys_have(c->server->keys, key, &c->group))
        return true;
    c->x->reply.asks_for_key = true;
    call_refuse(c, 401, "%s",
                key ? "the key is not one of this server's"
                    : "a key is wanted: send \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"");
    return false;
}

bool access_check(struct call *c)
{
    return check_host(c) && check_origin(c) && check_options(c) && check_key(c);
}
