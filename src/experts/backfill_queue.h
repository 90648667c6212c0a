/* Experts that were wanted and stood in for: which of them to read when the drive has nothing better to do. Those with
 * the highest scores first, and the past fades: a score halves every 16 tokens. A list of a fixed length; what is
 * wished for least falls out. */
#ifndef EXPERTS_BACKFILL_QUEUE_H
#define EXPERTS_BACKFILL_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

enum { BACKFILL_QUEUE_MAX = 64 };

struct backfill_entry {
    int layer;
    int32_t expert;
    float score; /* of all times that it was wished for, aged */
};

struct backfill_queue {
    struct backfill_entry list[BACKFILL_QUEUE_MAX];
    int n;
};

void backfill_queue_add(struct backfill_queue *w, int layer, int32_t expert, float score);

/* A token has passed. */
void backfill_queue_age(struct backfill_queue *w);

/* Takes the one with the highest score out, among equals the oldest; false: there is none. */
bool backfill_queue_pop(struct backfill_queue *w, struct backfill_entry *out);

#endif
