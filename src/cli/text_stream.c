#include "cli/text_stream.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

err_code text_stream_open(struct text_stream *s, text_stream_fn *fn, void *user, const struct option_list *stops,
                          size_t max_piece, struct err *e)
{
    size_t longest = 0;
    for (int i = 0; i < stops->n; i++)
        longest = strlen(stops->items[i]) > longest ? strlen(stops->items[i]) : longest;
    *s = (struct text_stream){.fn = fn, .user = user, .stops = stops, .capacity = longest + max_piece};
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

/* The first place from which the held text is a stop string (*complete) or could become one; n_held when none. */
static size_t stop_at(const struct text_stream *s, bool *complete)
{
    for (size_t from = 0; from < s->n_held; from++)
        for (int i = 0; i < s->stops->n; i++) {
            size_t n = strlen(s->stops->items[i]), left = s->n_held - from;
            if (n && !memcmp(s->held + from, s->stops->items[i], n < left ? n : left)) {
                *complete = n <= left;
                return from;
            }
        }
    *complete = false;
    return s->n_held;
}

bool text_stream_feed(struct text_stream *s, const char *piece, size_t n)
{
    assert(s->n_held + n <= s->capacity);
    memcpy(s->held + s->n_held, piece, n);
    s->n_held += n;
    bool complete;
    hand_on(s, stop_at(s, &complete));
    if (complete)
        s->n_held = 0;
    return complete;
}

void text_stream_flush(struct text_stream *s)
{
    hand_on(s, s->n_held);
}
