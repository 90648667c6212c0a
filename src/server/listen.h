/* The listening socket: a new one, or one that systemd has opened (socket activation, sd_listen_fds(3)). */
#ifndef SERVER_LISTEN_H
#define SERVER_LISTEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct listener {
    int fd;           /* owned; -1: none, or somebody has taken it over */
    bool is_passed;   /* systemd opened it, and keeps it open when we end */
    bool is_loopback; /* only processes on this machine can reach it */
    char url[300];    /* "http://127.0.0.1:8080", for messages */
};

/* port 0: any free port. If systemd has passed a socket, host and port are ignored. */
MUST_USE err_code listener_open(struct listener *l, const char *host, int64_t port, struct err *e);
void listener_close(struct listener *l);

#endif
