/* Limits how many answers each key may have at once, so that one client can't fill the queue for all. Thread-safe. */
#ifndef SERVER_QUOTA_H
#define SERVER_QUOTA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* What one request takes of its key's quota. */
struct quota_share {
    struct quota_share *next, *before;
    uint64_t group; /* the key's number, from 1 on */
    int64_t n;      /* answers; 0: the request does not count */
};

struct quota {
    pthread_mutex_t lock;
    struct quota_share *shares;
    int64_t max; /* answers that a group may have at once; 0: any number */
};

void quota_open(struct quota *q, int64_t max);
void quota_close(struct quota *q);

/* Takes n answers of the group's quota. False: that would be too many. *share belongs to the caller, and must not move
 * before quota_leave. Requests without a key (group 0) do not count. */
bool quota_enter(struct quota *q, struct quota_share *share, uint64_t group, int64_t n);
void quota_leave(struct quota *q, struct quota_share *share); /* accepts one that does not count */

#endif
