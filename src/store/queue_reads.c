#define _GNU_SOURCE /* what all queues share: lists of reads, and a read from submit to its end */
#include <assert.h>
#include <errno.h>

#include "base/clock.h"
#include "store/store_internal.h"

enum { PIECE_BYTES = 1 << 30 }; /* of one call: Linux cuts longer ones a little below 2 GiB */

void read_list_push(struct read_list *l, struct store_read *r)
{
    r->next = NULL;
    if (l->tail)
        l->tail->next = r;
    else
        l->head = r;
    l->tail = r;
}

struct store_read *read_list_pop(struct read_list *l)
{
    struct store_read *r = l->head;
    if (r)
        l->head = r->next;
    if (!l->head)
        l->tail = NULL;
    return r;
}

static size_t head_bytes(const struct store_read *r)
{
    return (size_t)(r->offset % STORE_ALIGN);
}

bool read_begin(const struct store_queue *q, struct store_read *r)
{
    assert((uintptr_t)r->buf % STORE_ALIGN == 0);
    r->bytes = (const char *)r->buf + head_bytes(r);
    r->failure = store_check_range(q->store, r->file, r->offset, r->n_bytes);
    r->n_done = 0;
    r->start_ns = clock_ns();
    if (r->failure != 0 || r->n_bytes == 0)
        return false;
    if (q->store->copies)
        copies_begin(q->store->copies, r->file, r->n_bytes);
    return true;
}

/* Whether the rest is read past the page cache: as long as whole blocks have arrived. */
static bool is_direct(const struct store_queue *q, const struct store_read *r)
{
    return q->direct && q->store->files[r->file].direct_fd >= 0 && r->n_done % STORE_ALIGN == 0;
}

struct read_piece read_rest(const struct store_queue *q, const struct store_read *r)
{
    const struct store_file *f = &q->store->files[r->file];
    bool direct = is_direct(q, r);
    size_t end = direct ? store_read_room(r->offset, r->n_bytes) : head_bytes(r) + r->n_bytes;
    size_t rest = end - r->n_done;
    return (struct read_piece){.fd = direct ? f->direct_fd : f->fd,
                               .offset = r->offset - head_bytes(r) + r->n_done,
                               .dst = (char *)r->buf + r->n_done,
                               .n_bytes = rest < PIECE_BYTES ? rest : PIECE_BYTES};
}

bool read_advance(const struct store_queue *q, struct store_read *r, ssize_t result)
{
    if (result == -EINTR || result == -EAGAIN)
        return false;
    if (result <= 0) {
        r->failure = result ? (int)-result : READ_ENDED;
    } else {
        r->n_done += (size_t)result;
        if (r->n_done < head_bytes(r) + r->n_bytes)
            return false;
        store_count(q->store, 1, r->n_bytes);
    }
    if (q->store->copies)
        copies_end(q->store->copies, r->file, r->n_bytes, r->failure == 0);
    return true;
}
