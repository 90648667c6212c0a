#include "experts/backfill_queue.h"

#include <string.h>

static const float A_TOKEN = 0.957603281f; /* 2^(-1/16) */

/* The place of an expert, of the lowest score if it has none and the list is full, else the one behind the last. */
static int find_place(const struct backfill_queue *w, int layer, int32_t expert)
{
    int lowest = 0;
    for (int i = 0; i < w->n; i++) {
        if (w->list[i].layer == layer && w->list[i].expert == expert)
            return i;
        if (w->list[i].score < w->list[lowest].score)
            lowest = i;
    }
    return w->n < BACKFILL_QUEUE_MAX ? w->n : lowest;
}

void backfill_queue_add(struct backfill_queue *w, int layer, int32_t expert, float score)
{
    int i = find_place(w, layer, expert);
    struct backfill_entry *p = &w->list[i];
    if (i < w->n && p->layer == layer && p->expert == expert) {
        p->score += score;
    } else if (i == w->n || p->score < score) {
        *p = (struct backfill_entry){layer, expert, score};
        w->n += i == w->n;
    }
}

void backfill_queue_age(struct backfill_queue *w)
{
    for (int i = 0; i < w->n; i++)
        w->list[i].score *= A_TOKEN;
}

bool backfill_queue_pop(struct backfill_queue *w, struct backfill_entry *out)
{
    int best = 0;
    if (w->n == 0)
        return false;
    for (int i = 1; i < w->n; i++)
        if (w->list[i].score > w->list[best].score)
            best = i;
    *out = w->list[best];
    w->n--;
    memmove(&w->list[best], &w->list[best + 1], (size_t)(w->n - best) * sizeof *w->list);
    return true;
}
