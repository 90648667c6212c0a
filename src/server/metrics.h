/* Counters of requests, and everything that is counted as Prometheus reads it. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

struct server;

enum { METRICS_N_STATUS = 600 };

/* Since the start; from any thread. */
struct metrics {
    _Atomic uint64_t n_requests[METRICS_N_STATUS]; /* by status */
    _Atomic uint64_t n_left;                       /* clients that left before their answer's end */
};

void metrics_note(struct metrics *m, int status, bool left);
/* Prometheus' text. */
MUST_USE err_code metrics_write(struct server *s, struct bytes *out, struct err *e);

#endif
