/* The backfill queue: experts that routers chose and substitutes replaced, to be read when the drive is idle. The one
 * with the highest score comes first; scores halve every 16 tokens. The queue has a fixed length: when it is full, the
 * expert with the lowest score is dropped. */
#ifndef EXPERTS_BACKFILL_QUEUE_H
#define EXPERTS_BACKFILL_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

enum { BACKFILL_QUEUE_MAX = 64 };

struct backfill_entry {
    int layer;
    int32_t expert;
    float score; /* the sum of its router scores when it was replaced, aged */
};

struct backfill_queue {
    struct backfill_entry list[BACKFILL_QUEUE_MAX];
    int n;
};

void backfill_queue_add(struct backfill_queue *q, int layer, int32_t expert, float score);

/* A token has passed. */
void backfill_queue_age(struct backfill_queue *q);

/* Takes the one with the highest score out, among equals the oldest; false: there is none. */
bool backfill_queue_pop(struct backfill_queue *q, struct backfill_entry *out);

#endif
