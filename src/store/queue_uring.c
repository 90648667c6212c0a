#define _GNU_SOURCE
/* A queue over io_uring: a system call starts a read or collects many, and no threads. Buffers are not registered with
 * the ring: in huge pages, where experts' slots are, that saved 2 to 5 ms of processor time a gigabyte and no time at
 * all (docs/benchmarks.md), and it would pin every slot. */
#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/store_internal.h"

struct uring_queue {
    struct store_queue base;
    struct io_uring ring;
    bool is_open;
    unsigned depth, n_flying; /* n_flying: handed to the ring, and no completion seen */
    struct read_list waiting, done;
};

/* There is room for it in the ring: no more than `depth` reads are ever handed over. */
static void hand_over(struct uring_queue *q, struct store_read *r)
{
    struct read_piece p = read_rest(&q->base, r);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);
    io_uring_prep_read(sqe, p.fd, p.dst, (unsigned)p.n_bytes, p.offset);
    io_uring_sqe_set_data(sqe, r);
    q->n_flying++;
}

/* Tells the kernel what was handed over and, with `wait`, waits for a completion. It may be short of memory or asked to
 * come again: then the reads stay in the ring until the next call. */
static void enter(struct uring_queue *q, bool wait)
{
    int result = wait ? io_uring_submit_and_wait(&q->ring, 1) : io_uring_submit(&q->ring);
    if (wait && (result == -EAGAIN || result == -EBUSY))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* One call for each read: the kernel hands what comes in one call to the drive as one batch, and on a virtual drive
 * that made experts arrive later (docs/experiments.md). */
static void start_waiting(struct uring_queue *q)
{
    while (q->n_flying < q->depth && q->waiting.head) {
        struct store_read *r = read_list_pop(&q->waiting);
        if (read_begin(&q->base, r)) {
            hand_over(q, r);
            enter(q, false);
        } else {
            read_list_push(&q->done, r);
        }
    }
}

/* The kernel gives up what the page cache does not have when the thread that handed it over ends: evaluations may come
 * from a thread each. */
static ssize_t read_here(const struct uring_queue *q, const struct store_read *r)
{
    struct read_piece p = read_rest(&q->base, r);
    ssize_t n = pread(p.fd, p.dst, p.n_bytes, (off_t)p.offset);
    return n < 0 ? -errno : n;
}

static void reap(struct uring_queue *q)
{
    struct io_uring_cqe *cqe;
    while (q->n_flying > 0 && io_uring_peek_cqe(&q->ring, &cqe) == 0) {
        struct store_read *r = io_uring_cqe_get_data(cqe);
        ssize_t result = cqe->res;
        io_uring_cqe_seen(&q->ring, cqe);
        q->n_flying--;
        if (result == -EFAULT || result == -ECANCELED)
            result = read_here(q, r);
        if (read_advance(&q->base, r, result))
            read_list_push(&q->done, r);
        else
            hand_over(q, r);
    }
}

static void uring_submit(struct store_queue *base, struct store_read *const *reads, size_t n)
{
    struct uring_queue *q = (struct uring_queue *)base;
    for (size_t i = 0; i < n; i++)
        read_list_push(&q->waiting, reads[i]);
    reap(q); /* what has ended makes room */
    start_waiting(q);
    if (io_uring_sq_ready(&q->ring) > 0) /* the rest of a short one */
        enter(q, false);
}

static size_t uring_collect(struct store_queue *base, struct store_read **done, size_t max, bool wait)
{
    struct uring_queue *q = (struct uring_queue *)base;
    size_t n = 0;
    reap(q);
    start_waiting(q);
    if (io_uring_sq_ready(&q->ring) > 0)
        enter(q, false);
    while (wait && !q->done.head && q->n_flying > 0) {
        enter(q, true);
        reap(q);
        start_waiting(q);
    }
    while (n < max && q->done.head)
        done[n++] = read_list_pop(&q->done);
    return n;
}

static void uring_close(struct store_queue *base)
{
    struct uring_queue *q = (struct uring_queue *)base;
    q->waiting = (struct read_list){0};
    while (q->is_open && q->n_flying > 0) {
        enter(q, true);
        reap(q);
    }
    if (q->is_open)
        io_uring_queue_exit(&q->ring);
    mem_free(q);
}

/* Completions are picked up when we come by, not by interrupting what computes; kernels before 5.19 know no such wish.
 */
static int open_ring(struct io_uring *ring, unsigned depth)
{
    int result = io_uring_queue_init(depth, ring, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (result == -EINVAL)
        result = io_uring_queue_init(depth, ring, 0);
    if (result < 0)
        return result;
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring); /* 5.4 and 5.5 have rings that can't just read */
    bool can_read = probe && io_uring_opcode_supported(probe, IORING_OP_READ);
    io_uring_free_probe(probe);
    if (!can_read)
        io_uring_queue_exit(ring);
    return can_read ? 0 : -ENOSYS;
}

err_code queue_uring_open(struct store_queue **out, int depth, struct err *e)
{
    static const struct queue_ops ops = {
        .name = "io_uring", .submit = uring_submit, .collect = uring_collect, .close = uring_close};
    struct uring_queue *q = mem_calloc(1, sizeof *q);
    if (!q)
        return err_nomem(e, sizeof *q, "a queue of reads");
    q->base.ops = &ops;
    q->depth = (unsigned)depth;
    int result = open_ring(&q->ring, q->depth);
    if (result < 0) {
        uring_close(&q->base);
        return err_set(e, ERR_UNSUPPORTED, "io_uring: %s", strerror(-result));
    }
    q->is_open = true;
    *out = &q->base;
    return ERR_OK;
}
