#include "sample/history.h"

#include "base/mem.h"

bool history_open(struct history *h, int capacity)
{
    *h = (struct history){.capacity = capacity, .ids = mem_calloc((size_t)capacity, sizeof *h->ids)};
    return h->ids != NULL;
}

void history_close(struct history *h)
{
    mem_free(h->ids);
    *h = (struct history){0};
}

void history_push(struct history *h, int32_t id)
{
    h->ids[h->next] = id;
    h->next = (h->next + 1) % h->capacity;
    h->n += h->n < h->capacity;
}

void history_forget(struct history *h)
{
    h->n = h->next = 0;
}

int32_t history_at(const struct history *h, int age)
{
    int at = h->next - 1 - age;
    return h->ids[at < 0 ? at + h->capacity : at];
}

bool token_counts_open(struct token_counts *t, int window, int32_t n_vocab)
{
    *t = (struct token_counts){.window = window};
    t->seen = mem_calloc((size_t)(window < n_vocab ? window : n_vocab), sizeof *t->seen);
    t->place = mem_calloc((size_t)n_vocab, sizeof *t->place);
    return t->seen && t->place;
}

void token_counts_close(struct token_counts *t)
{
    mem_free(t->seen);
    mem_free(t->place);
    *t = (struct token_counts){0};
}

static void count(struct token_counts *t, int32_t id)
{
    if (t->place[id] == 0) {
        t->seen[t->n_seen] = (struct token_count){.id = id};
        t->place[id] = ++t->n_seen;
    }
    t->seen[t->place[id] - 1].n++;
}

/* The last of `seen` takes the place of a token that is gone. */
static void discount(struct token_counts *t, int32_t id)
{
    int32_t at = t->place[id] - 1;
    if (--t->seen[at].n > 0)
        return;
    t->seen[at] = t->seen[--t->n_seen];
    t->place[t->seen[at].id] = at + 1;
    t->place[id] = 0;
}

void token_counts_push(struct token_counts *t, const struct history *h, int32_t id)
{
    if (h->n >= t->window)
        discount(t, history_at(h, t->window - 1));
    count(t, id);
}

void token_counts_forget(struct token_counts *t)
{
    for (int32_t i = 0; i < t->n_seen; i++)
        t->place[t->seen[i].id] = 0;
    t->n_seen = 0;
}

void token_counts_penalise(const struct token_counts *t, float repeat, float presence, float frequency, float *logits)
{
    for (int32_t i = 0; i < t->n_seen; i++) {
        float *x = &logits[t->seen[i].id];
        *x = *x > 0 ? *x / repeat : *x * repeat;
        *x -= presence + frequency * (float)t->seen[i].n;
    }
}
