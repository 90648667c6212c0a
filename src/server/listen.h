/* The socket that takes connections: one that systemd has opened (socket activation, sd_listen_fds(3)), or a new one.
 */
#ifndef SERVER_LISTEN_H
#define SERVER_LISTEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct listener {
    int fd;           /* owned until somebody takes it (-1) */
    bool is_passed;   /* systemd's, which goes on listening without us */
    bool is_loopback; /* only this machine reaches it */
    char url[300];    /* "http://127.0.0.1:8080", for people */
};

/* port 0: any that is free. Where systemd has passed a socket, host and port mean nothing. */
MUST_USE err_code listener_open(struct listener *l, const char *host, int64_t port, struct err *e);
void listener_close(struct listener *l);

#endif
