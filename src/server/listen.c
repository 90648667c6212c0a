#define _GNU_SOURCE /* SOCK_CLOEXEC */
#include "server/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 512, FIRST_PASSED_FD = 3 };

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un local;
    struct sockaddr_storage storage;
};

/* ---- what the socket is ---------------------------------------------------------------------------------------- */

static bool is_loopback(const union address *a)
{
    switch (a->any.sa_family) {
    case AF_INET: return ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
    case AF_INET6: return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
    default: return true; /* a socket in the file system */
    }
}

static void describe(struct listener *l, const union address *a)
{
    char text[INET6_ADDRSTRLEN] = "";
    if (a->any.sa_family == AF_INET && inet_ntop(AF_INET, &a->v4.sin_addr, text, sizeof text))
        snprintf(l->url, sizeof l->url, "http://%s:%d", text, ntohs(a->v4.sin_port));
    else if (a->any.sa_family == AF_INET6 && inet_ntop(AF_INET6, &a->v6.sin6_addr, text, sizeof text))
        snprintf(l->url, sizeof l->url, "http://[%s]:%d", text, ntohs(a->v6.sin6_port));
    else
        snprintf(l->url, sizeof l->url, "unix:%s", a->any.sa_family == AF_UNIX ? a->local.sun_path : "");
}

static err_code look_at(struct listener *l, struct err *e)
{
    union address a = {0};
    socklen_t n = sizeof a;
    if (getsockname(l->fd, &a.any, &n) != 0)
        return err_set(e, ERR_IO, "the server's socket: %s", strerror(errno));
    l->is_loopback = is_loopback(&a);
    describe(l, &a);
    return ERR_OK;
}

/* ---- systemd's ------------------------------------------------------------------------------------------------- */

/* How many sockets systemd has passed to this process. */
static int n_passed(void)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    return pid && n && strtol(pid, NULL, 10) == (long)getpid() ? atoi(n) : 0;
}

static err_code take_passed(struct listener *l, int n, struct err *e)
{
    int is_listening = 0;
    socklen_t size = sizeof is_listening;
    if (n > 1)
        return err_set(e, ERR_USAGE, "systemd passed %d sockets: expected one (one ListenStream= in the socket's unit)",
                       n);
    l->fd = FIRST_PASSED_FD;
    l->is_passed = true;
    if (getsockopt(l->fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) != 0 || !is_listening)
        return err_set(e, ERR_USAGE,
                       "what systemd passed is no socket that listens: expected ListenStream= and Accept=no");
    if (fcntl(l->fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(l->fd, F_SETFL, O_NONBLOCK) != 0)
        return err_set(e, ERR_IO, "the socket that systemd passed: %s", strerror(errno));
    return look_at(l, e);
}

/* ---- a new one ------------------------------------------------------------------------------------------------- */

static bool try_address(struct listener *l, const struct addrinfo *a)
{
    const int on = 1;
    l->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return false;
    (void)setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(l->fd, a->ai_addr, a->ai_addrlen) == 0 && listen(l->fd, BACKLOG) == 0)
        return true;
    int why = errno;
    listener_close(l);
    errno = why;
    return false;
}

static err_code cant_listen(const char *host, int64_t port, int why, struct err *e)
{
    if (why == EADDRINUSE)
        return err_set(e, ERR_IO, "port %lld of %s is in use: end what uses it, or choose another with --port (0: any)",
                       (long long)port, host);
    if (why == EACCES)
        return err_set(e, ERR_IO, "port %lld needs privileges: choose one from 1024 on with --port", (long long)port);
    return err_set(e, ERR_IO, "can't listen at %s, port %lld: %s", host, (long long)port, strerror(why));
}

err_code listener_open(struct listener *l, const char *host, int64_t port, struct err *e)
{
    *l = (struct listener){.fd = -1};
    int n = n_passed();
    if (n > 0)
        return take_passed(l, n, e);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *all = NULL;
    char service[16];
    snprintf(service, sizeof service, "%lld", (long long)port);
    int why = getaddrinfo(host, service, &hints, &all);
    if (why != 0)
        return err_set(e, ERR_USAGE, "--host %s: %s", host, gai_strerror(why));
    bool is_open = false;
    for (const struct addrinfo *a = all; a && !is_open; a = a->ai_next)
        is_open = try_address(l, a);
    why = errno;
    freeaddrinfo(all);
    return is_open ? look_at(l, e) : cant_listen(host, port, why, e);
}

void listener_close(struct listener *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}
