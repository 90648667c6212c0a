#define _GNU_SOURCE /* a queue of threads that call pread: works everywhere */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/store_internal.h"

enum { MAX_THREADS = 64, STACK_BYTES = 256 << 10 };

struct pool_queue {
    struct store_queue base;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t work, ended;
    struct read_list waiting, done;
    size_t n_open; /* submitted and not collected */
    bool stop;
    int n_threads;
    pthread_t threads[];
};

static void read_whole(struct store_queue *q, struct store_read *r)
{
    if (!read_begin(q, r))
        return;
    ssize_t n;
    do {
        struct read_piece p = read_rest(q, r);
        n = pread(p.fd, p.dst, p.n_bytes, (off_t)p.offset);
    } while (!read_advance(q, r, n < 0 ? -errno : n));
}

static void *work(void *arg)
{
    struct pool_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        struct store_read *r = read_list_pop(&q->waiting);
        if (r) {
            pthread_mutex_unlock(&q->lock);
            read_whole(&q->base, r);
            pthread_mutex_lock(&q->lock);
            read_list_push(&q->done, r);
            pthread_cond_signal(&q->ended);
        } else if (q->stop) {
            break;
        } else {
            pthread_cond_wait(&q->work, &q->lock);
        }
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void pool_submit(struct store_queue *base, struct store_read *const *reads, size_t n)
{
    struct pool_queue *q = (struct pool_queue *)base;
    pthread_mutex_lock(&q->lock);
    for (size_t i = 0; i < n; i++) {
        read_list_push(&q->waiting, reads[i]);
        pthread_cond_signal(&q->work);
    }
    q->n_open += n;
    pthread_mutex_unlock(&q->lock);
}

static size_t pool_collect(struct store_queue *base, struct store_read **done, size_t max, bool wait)
{
    struct pool_queue *q = (struct pool_queue *)base;
    size_t n = 0;
    pthread_mutex_lock(&q->lock);
    while (wait && q->n_open > 0 && !q->done.head)
        pthread_cond_wait(&q->ended, &q->lock);
    while (n < max && q->done.head)
        done[n++] = read_list_pop(&q->done);
    q->n_open -= n;
    pthread_mutex_unlock(&q->lock);
    return n;
}

/* What waits is dropped; what is being read ends first. */
static void pool_close(struct store_queue *base)
{
    struct pool_queue *q = (struct pool_queue *)base;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    q->waiting = (struct read_list){0};
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
    for (int i = 0; i < q->n_threads; i++)
        pthread_join(q->threads[i], NULL);
    pthread_cond_destroy(&q->ended);
    pthread_cond_destroy(&q->work);
    pthread_mutex_destroy(&q->lock);
    mem_free(q);
}

err_code queue_pool_open(struct store_queue **out, int depth, struct err *e)
{
    static const struct queue_ops ops = {
        .name = "pread threads", .submit = pool_submit, .collect = pool_collect, .close = pool_close};
    int n_threads = depth < MAX_THREADS ? depth : MAX_THREADS;
    struct pool_queue *q = mem_calloc(1, sizeof *q + (size_t)n_threads * sizeof *q->threads);
    if (!q)
        return err_nomem(e, sizeof *q, "a queue of reads");
    q->base.ops = &ops;
    pthread_mutex_init(&q->lock, NULL); /* these can't fail on Linux */
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->ended, NULL);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    while (q->n_threads < n_threads && pthread_create(&q->threads[q->n_threads], &attr, work, q) == 0)
        q->n_threads++;
    pthread_attr_destroy(&attr);
    if (q->n_threads == 0) {
        pool_close(&q->base);
        return err_set(e, ERR_FAIL, "no thread could be started to read with");
    }
    *out = &q->base;
    return ERR_OK;
}
