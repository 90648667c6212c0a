#include "texts/text_stream.h"

#include <string.h>

#include "base/mem.h"

err_code text_stream_open(struct text_stream *s, text_stream_fn *fn, void *user, const char *const *stops,
                          size_t n_stops, size_t max_piece, struct err *e)
{
    size_t longest = 0;
    for (size_t i = 0; i < n_stops; i++)
        longest = strlen(stops[i]) > longest ? strlen(stops[i]) : longest;
    *s = (struct text_stream){
        .fn = fn, .user = user, .stops = stops, .n_stops = n_stops, .capacity = longest + max_piece};
    s->held = mem_alloc(s->capacity);
    return s->held ? ERR_OK : err_nomem(e, s->capacity, "stop strings");
}

void text_stream_close(struct text_stream *s)
{
    mem_free(s->held);
    *s = (struct text_stream){0};
}

static void hand_on(struct text_stream *s, size_t n)
{
    if (s->fn && n)
        s->fn(s->user, s->held, n);
    s->n_held -= n;
    memmove(s->held, s->held + n, s->n_held);
}

/* Where the stop string begins that ends first in the held text (s->stop), else the first place from which that could
 * become one; n_held when none. */
static size_t stop_at(struct text_stream *s)
{
    size_t at = s->n_held, end = SIZE_MAX;
    for (size_t from = 0; from < s->n_held; from++)
        for (size_t i = 0; i < s->n_stops; i++) {
            size_t n = strlen(s->stops[i]), left = s->n_held - from;
            if (!n || memcmp(s->held + from, s->stops[i], n < left ? n : left) != 0)
                continue;
            if (n <= left && from + n < end) {
                s->stop = s->stops[i];
                end = from + n;
                at = from;
            } else if (!s->stop && from < at) {
                at = from;
            }
        }
    return at;
}

bool text_stream_feed(struct text_stream *s, const char *piece, size_t n)
{
    while (n && !s->stop) {
        size_t room = s->capacity - s->n_held, part = n < room ? n : room;
        memcpy(s->held + s->n_held, piece, part);
        s->n_held += part;
        piece += part;
        n -= part;
        hand_on(s, stop_at(s));
    }
    if (s->stop)
        s->n_held = 0;
    return s->stop != NULL;
}

void text_stream_flush(struct text_stream *s)
{
    hand_on(s, s->n_held);
}
