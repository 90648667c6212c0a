/* What `moebius batch` has to do, and what of it is done: requests come from one file and answers go to another, which
 * says at the start what earlier runs have done. */
#ifndef CLI_BATCH_QUEUE_H
#define CLI_BATCH_QUEUE_H

#include "cli/batch_output.h"
#include "cli/batch_request.h"
#include "cli/line_reader.h"

struct batch_queue {
    struct batch_request defaults; /* what requests don't say; this and the next two are opened by the caller */
    struct line_reader in;         /* owned from then on, as the output */
    struct batch_output out;
    int64_t n_before;   /* requests that earlier runs have done */
    int64_t n_answered; /* by this one */
    int64_t n_failed;   /* that this one could not answer */
    int64_t line;       /* lines read */
    bool is_read;       /* all of them */
    json_t *lines;      /* the line of each key's first request */
    json_t *unknown;    /* names that mean nothing; false: the log has a warning of them */
};

MUST_USE err_code batch_queue_open(struct batch_queue *q, struct err *e);
void batch_queue_close(struct batch_queue *q); /* accepts one that is zero but for what the caller opened */

/* The next request that is not done; what can't be a request is answered with a failure. *is_there: false where there
 * is none, or, without may_wait, not yet. The caller closes the request. */
MUST_USE err_code batch_queue_next(struct batch_queue *q, bool may_wait, struct batch_request *r, bool *is_there,
                                   struct err *e);
/* Writes an answer, and gives it up; NULL: there was no memory for it. */
MUST_USE err_code batch_queue_answer(struct batch_queue *q, json_t *answer, struct err *e);
/* Writes why a request has none. */
MUST_USE err_code batch_queue_fail(struct batch_queue *q, const struct batch_request *r, const struct err *why,
                                   struct err *e);
/* Requests that are done. */
int64_t batch_queue_n_done(const struct batch_queue *q);

#endif
