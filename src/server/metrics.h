/* Counters of requests, and the text of /metrics for Prometheus. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

struct server;

enum { METRICS_N_STATUS = 600 };

/* Counted since the start, by any thread. */
struct metrics {
    _Atomic uint64_t n_requests[METRICS_N_STATUS]; /* by status */
    _Atomic uint64_t n_left;                       /* clients that disconnected before the end of their answer */
};

void metrics_note(struct metrics *m, int status, bool left);
/* Appends all metrics in Prometheus' text format. */
MUST_USE err_code metrics_write(struct server *s, struct bytes *out, struct err *e);

#endif
