/* The queue of `moebius batch`: reads requests from one file and writes answers to another. The second file also tells,
 * at the start, which requests earlier runs have answered. */
#ifndef CLI_BATCH_QUEUE_H
#define CLI_BATCH_QUEUE_H

#include "cli/batch_output.h"
#include "cli/batch_request.h"
#include "cli/line_reader.h"

struct batch_queue {
    struct batch_request defaults; /* for what requests leave out; the caller opens this and the next two fields */
    struct line_reader in;         /* owned by the queue after that, as is the output */
    struct batch_output out;
    int64_t n_before;   /* requests that earlier runs have done */
    int64_t n_answered; /* requests that this run has answered */
    int64_t n_failed;   /* requests that this run could not answer */
    int64_t line;       /* lines read so far */
    bool is_read;       /* all lines were read */
    json_t *lines;      /* the line of the first request with each key */
    json_t *unknown;    /* names of unknown fields; false: a warning about the field was logged */
};

MUST_USE err_code batch_queue_open(struct batch_queue *q, struct err *e);
void batch_queue_close(struct batch_queue *q); /* accepts one in which only the caller's fields were opened */

/* Reads the next request that is not done. Lines that are no request are answered with a failure. *is_there false:
 * there are no more requests or, without may_wait, none at the moment. The caller closes the request. */
MUST_USE err_code batch_queue_next(struct batch_queue *q, bool may_wait, struct batch_request *r, bool *is_there,
                                   struct err *e);
/* Writes an answer, which is taken over. NULL means that there was no memory for it. */
MUST_USE err_code batch_queue_answer(struct batch_queue *q, json_t *answer, struct err *e);
/* Writes why a request has no answer. */
MUST_USE err_code batch_queue_fail(struct batch_queue *q, const struct batch_request *r, const struct err *why,
                                   struct err *e);
/* How many requests are done, by this run and earlier ones. */
int64_t batch_queue_n_done(const struct batch_queue *q);

#endif
