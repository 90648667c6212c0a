#include "server/quota.h"

void quota_open(struct quota *q, int64_t max)
{
    *q = (struct quota){.max = max};
    pthread_mutex_init(&q->lock, NULL);
}

void quota_close(struct quota *q)
{
    pthread_mutex_destroy(&q->lock);
}

/* The answers that a group has now. The lock is held. The number of connections bounds that of shares. */
static int64_t count(const struct quota *q, uint64_t group)
{
    int64_t n = 0;
    for (const struct quota_share *s = q->shares; s; s = s->next)
        n += s->group == group ? s->n : 0;
    return n;
}

static void add(struct quota *q, struct quota_share *share)
{
    share->next = q->shares;
    if (share->next)
        share->next->before = share;
    q->shares = share;
}

bool quota_enter(struct quota *q, struct quota_share *share, uint64_t group, int64_t n)
{
    *share = (struct quota_share){.group = group};
    if (q->max == 0 || group == 0)
        return true;
    pthread_mutex_lock(&q->lock);
    bool is_room = count(q, group) + n <= q->max;
    if (is_room) {
        share->n = n;
        add(q, share);
    }
    pthread_mutex_unlock(&q->lock);
    return is_room;
}

void quota_leave(struct quota *q, struct quota_share *share)
{
    if (share->n == 0)
        return;
    pthread_mutex_lock(&q->lock);
    *(share->before ? &share->before->next : &q->shares) = share->next;
    if (share->next)
        share->next->before = share->before;
    pthread_mutex_unlock(&q->lock);
    share->n = 0;
}
