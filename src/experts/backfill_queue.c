#include "experts/backfill_queue.h"

#include <string.h>

static const float A_TOKEN = 0.957603281f; /* 2^(-1/16) */

/* The place of an expert, of the lowest score if it has none and the list is full, else the one behind the last. */
static int find_place(const struct backfill_queue *q, int layer, int32_t expert)
{
    int lowest = 0;
    for (int i = 0; i < q->n; i++) {
        if (q->list[i].layer == layer && q->list[i].expert == expert)
            return i;
        if (q->list[i].score < q->list[lowest].score)
            lowest = i;
    }
    return q->n < BACKFILL_QUEUE_MAX ? q->n : lowest;
}

void backfill_queue_add(struct backfill_queue *q, int layer, int32_t expert, float score)
{
    int i = find_place(q, layer, expert);
    struct backfill_entry *p = &q->list[i];
    if (i < q->n && p->layer == layer && p->expert == expert) {
        p->score += score;
    } else if (i == q->n || p->score < score) {
        *p = (struct backfill_entry){layer, expert, score};
        q->n += i == q->n;
    }
}

void backfill_queue_age(struct backfill_queue *q)
{
    for (int i = 0; i < q->n; i++)
        q->list[i].score *= A_TOKEN;
}

bool backfill_queue_pop(struct backfill_queue *q, struct backfill_entry *out)
{
    int best = 0;
    if (q->n == 0)
        return false;
    for (int i = 1; i < q->n; i++)
        if (q->list[i].score > q->list[best].score)
            best = i;
    *out = q->list[best];
    q->n--;
    memmove(&q->list[best], &q->list[best + 1], (size_t)(q->n - best) * sizeof *q->list);
    return true;
}
