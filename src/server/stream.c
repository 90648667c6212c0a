#include "server/stream.h"

#include <pthread.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"

struct stream {
    pthread_mutex_t lock; /* protects all that follows */
    struct bytes bytes;   /* bytes [n_taken..n) wait for the reader */
    size_t n_taken, max_bytes;
    bool ended, broken, left;
    struct stream_reader sleeper; /* wakes the reader; wake is NULL unless it sleeps */
    int n_refs;
};

err_code stream_open(struct stream **out, size_t max_bytes, struct err *e)
{
    struct stream *s = mem_calloc(1, sizeof *s);
    *out = s;
    if (!s)
        return err_nomem(e, sizeof *s, "a stream");
    pthread_mutex_init(&s->lock, NULL);
    s->max_bytes = max_bytes;
    s->n_refs = 2;
    return ERR_OK;
}

/* Unlocks, and frees what nobody refers to. */
static void unlock_and_release(struct stream *s)
{
    bool last = --s->n_refs == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&s->lock);
    bytes_close(&s->bytes);
    mem_free(s);
}

static void wake(struct stream *s)
{
    if (s->sleeper.wake)
        s->sleeper.wake(s->sleeper.user);
    s->sleeper.wake = NULL;
}

bool stream_put(struct stream *s, const void *bytes, size_t n)
{
    pthread_mutex_lock(&s->lock);
    if (n > s->max_bytes - (s->bytes.n - s->n_taken) || bytes_add(&s->bytes, bytes, n, NULL) != ERR_OK)
        s->broken = true;
    bool good = !s->left && !s->broken;
    wake(s);
    pthread_mutex_unlock(&s->lock);
    return good;
}

void stream_end(struct stream **stream, bool broken)
{
    struct stream *s = *stream;
    if (!s)
        return;
    *stream = NULL;
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    s->broken |= broken;
    wake(s);
    unlock_and_release(s);
}

/* Drops bytes that were taken, once there are enough of them to be worth the copy. */
static void compact(struct stream *s)
{
    if (s->n_taken < s->bytes.n / 2 + 1)
        return;
    bytes_drop(&s->bytes, s->n_taken);
    s->n_taken = 0;
}

enum stream_state stream_take(struct stream *s, void *bytes, size_t max, const struct stream_reader *reader, size_t *n)
{
    pthread_mutex_lock(&s->lock);
    size_t there = s->bytes.n - s->n_taken;
    enum stream_state state = s->broken  ? STREAM_BROKEN
                              : there    ? STREAM_BYTES
                              : s->ended ? STREAM_ENDED
                                         : STREAM_SLEEPS;
    *n = state != STREAM_BYTES ? 0 : there < max ? there : max;
    if (state == STREAM_BYTES) {
        memcpy(bytes, s->bytes.s + s->n_taken, *n);
        s->n_taken += *n;
        compact(s);
    } else if (state == STREAM_SLEEPS) {
        s->sleeper = *reader;
        reader->sleep(reader->user);
    }
    pthread_mutex_unlock(&s->lock);
    return state;
}

void stream_leave(struct stream **stream)
{
    struct stream *s = *stream;
    if (!s)
        return;
    *stream = NULL;
    pthread_mutex_lock(&s->lock);
    s->left = true;
    s->sleeper.wake = NULL;
    unlock_and_release(s);
}
