/* Runs `moebius batch`: whenever a text ends, another request is read, so that a certain number of texts is always
 * being computed (texts/texts.h). Answers are written in the order in which they end. */
#ifndef CLI_BATCH_RUN_H
#define CLI_BATCH_RUN_H

#include "cli/batch_queue.h"
#include "cli/batch_text.h"

struct batch {
    struct batch_setup setup;     /* the caller sets this and the next four fields */
    struct batch_queue queue;     /* the caller opens its defaults, in and out */
    size_t n_texts;               /* the most texts at once */
    void (*progress)(void *user); /* called after each pass */
    void *user;

    struct texts *texts;     /* owned */
    struct batch_text *open; /* texts that have not ended, owned */
    size_t n_open;
    struct err error; /* why an answer could not be written */
};

/* Answers all requests. ERR_CANCELLED: the user interrupted it. The output has all answers so far even after a failure.
 */
MUST_USE err_code batch_run(struct batch *b, struct err *e);
/* Statistics of the run. */
struct texts_stats batch_stats(const struct batch *b);
/* Closes what batch_run has opened, and the queue. */
void batch_close(struct batch *b);

#endif
