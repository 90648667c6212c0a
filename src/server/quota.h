/* How many answers each key may have at once, so that one client can't fill the queue for all. Thread-safe. */
#ifndef SERVER_QUOTA_H
#define SERVER_QUOTA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A request that counts. */
struct quota_share {
    struct quota_share *next, *before;
    uint64_t group; /* the key's number, from 1 on */
    int64_t n;      /* answers; 0: it doesn't count */
};

struct quota {
    pthread_mutex_t lock;
    struct quota_share *shares;
    int64_t max; /* answers of a group at once; 0: any number */
};

void quota_open(struct quota *q, int64_t max);
void quota_close(struct quota *q);

/* False: with n more the group would have more than it may. *share is the caller's, and stays where it is until
 * quota_leave. Requests without a key (group 0) don't count. */
bool quota_enter(struct quota *q, struct quota_share *share, uint64_t group, int64_t n);
void quota_leave(struct quota *q, struct quota_share *share); /* accepts one that doesn't count */

#endif
