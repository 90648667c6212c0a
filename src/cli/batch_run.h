/* The work of `moebius batch`: requests are read as texts end, so that a number of them is always computed at once
 * (texts/texts.h), and answers are written as they come. */
#ifndef CLI_BATCH_RUN_H
#define CLI_BATCH_RUN_H

#include "cli/batch_queue.h"
#include "cli/batch_text.h"

struct batch {
    struct batch_setup setup;     /* this and the next four are set by the caller */
    struct batch_queue queue;     /* defaults, in and out of it */
    size_t n_texts;               /* at once at most */
    void (*progress)(void *user); /* is called after each pass */
    void *user;

    struct texts *texts;     /* owned */
    struct batch_text *open; /* texts that have not ended, owned */
    size_t n_open;
    struct err error; /* an answer could not be written */
};

/* Answers all requests; ERR_CANCELLED after an interrupt. What was done is in the output in any case. */
MUST_USE err_code batch_run(struct batch *b, struct err *e);
/* Figures of what was done. */
struct texts_stats batch_stats(const struct batch *b);
/* Closes what batch_run has opened, and the queue. */
void batch_close(struct batch *b);

#endif
