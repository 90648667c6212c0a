#include "sample/dry.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"

bool dry_open(struct dry *d, const bool *breaks, int32_t n_vocab)
{
    d->breaks = mem_calloc((size_t)n_vocab, sizeof *d->breaks);
    d->recent = mem_calloc((size_t)d->window, sizeof *d->recent);
    d->same = mem_calloc((size_t)d->window, sizeof *d->same);
    d->longest = mem_calloc((size_t)n_vocab, sizeof *d->longest);
    if (!d->breaks || !d->recent || !d->same || !d->longest)
        return false;
    if (breaks)
        memcpy(d->breaks, breaks, (size_t)n_vocab * sizeof *breaks);
    return true;
}

void dry_close(struct dry *d)
{
    mem_free(d->breaks);
    mem_free(d->recent);
    mem_free(d->same);
    mem_free(d->longest);
    *d = (struct dry){0};
}

/* Fills same[1..n): how many elements of a[0..limit) are those from a[i] on. Gusfield's Z algorithm, which knows them
 * already within the stretch [begin, end) that was compared last. */
static void match_with_start(const int32_t *a, int32_t n, int32_t limit, int32_t *same)
{
    for (int32_t i = 1, begin = 0, end = 0; i < n; i++) {
        int32_t known = i < end ? (int32_t)min_i64(same[i - begin], end - i) : 0;
        while (known < limit && i + known < n && a[known] == a[i + known])
            known++;
        same[i] = known;
        if (i + known > end) {
            begin = i;
            end = i + known;
        }
    }
}

static float penalty(const struct dry *d, int32_t length)
{
    return (float)fmin(d->multiplier * pow(d->base, length - d->allowed_length), FLT_MAX);
}

/* The text backwards; returns its length, and in *n_unbroken how many of its tokens come before one that breaks. */
static int32_t read_backwards(struct dry *d, const struct history *h, int32_t *n_unbroken)
{
    int32_t n = h->n < d->window ? h->n : d->window;
    *n_unbroken = n;
    for (int32_t i = 0; i < n; i++) {
        d->recent[i] = history_at(h, i);
        if (*n_unbroken == n && d->breaks[d->recent[i]])
            *n_unbroken = i;
    }
    return n;
}

void dry_penalise(struct dry *d, const struct history *h, float *logits)
{
    int32_t n_unbroken, n = read_backwards(d, h, &n_unbroken);
    if (n_unbroken < d->allowed_length)
        return;
    match_with_start(d->recent, n, n_unbroken, d->same);
    for (int32_t i = 1; i < n; i++) {
        int32_t follower = d->recent[i - 1];
        if (d->same[i] > d->longest[follower])
            d->longest[follower] = d->same[i];
    }
    for (int32_t i = 1; i < n; i++) {
        int32_t follower = d->recent[i - 1], length = d->longest[follower];
        d->longest[follower] = 0;
        if (length >= d->allowed_length && !d->breaks[follower])
            logits[follower] -= penalty(d, length);
    }
}
