/* The work of `moebius batch`: requests are read as texts end, and texts join and leave from one pass over the model to
 * the next. A pass takes one token of each text that is being answered, and beside these prompts' tokens.
 *
 * A text whose prompt begins as another text goes on from a fork of it. When memory for state is full, the text that
 * came last gives its own back and waits until others have ended. */
#ifndef CLI_BATCH_RUN_H
#define CLI_BATCH_RUN_H

#include "cli/batch_queue.h"
#include "cli/batch_text.h"
#include "cli/stats.h"

/* A place for a text. */
struct batch_slot {
    bool is_used;
    uint64_t order; /* the lower, the earlier it came */
    struct batch_text text;
    moebius_session *old; /* of the text that ended here, for the next one that begins so; owned */
};

struct batch {
    struct batch_setup setup;     /* this and the next four are set by the caller */
    struct batch_queue queue;     /* defaults, in and out of it */
    size_t n_slots;               /* texts at once at most */
    void (*progress)(void *user); /* is called after each pass */
    void *user;

    struct run_times times; /* load_ns is the caller's */
    int64_t n_cached;       /* tokens of prompts that other texts had computed */
    int64_t n_most;         /* the most texts at once */
    int64_t n_suspended;    /* how often a text had to wait for memory */

    struct batch_slot *slots;  /* [n_slots] */
    moebius_batch_item *items; /* [n_slots] of a pass */
    uint64_t order;            /* of the next text */
    size_t n_room;             /* texts that there seems to be memory for */
    size_t n_since_full;       /* texts that have ended since there was none */
    bool can_not_go_back;      /* forks don't get to where another text's beginning ends */
};

/* Answers all requests; ERR_CANCELLED after an interrupt. What was done is in the output in any case. */
MUST_USE err_code batch_run(struct batch *b, struct err *e);
/* Closes what batch_run has opened, and the queue. */
void batch_close(struct batch *b);

#endif
