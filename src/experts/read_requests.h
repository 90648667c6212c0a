/* Requests to read experts into their slots. A request takes a slot and holds it, waits for room in the store's queue,
 * and ends when its three parts (gate, up, down) have arrived, have been checked, have been packed if they were not
 * read straight into the slot, and are on the device. This file does not know who asked for an expert, and why. */
#ifndef EXPERTS_READ_REQUESTS_H
#define EXPERTS_READ_REQUESTS_H

#include <stdatomic.h>

#include "base/pool.h"
#include "experts/slots.h"
#include "store/store.h"

enum { READ_REQUESTS_MAX = 16, READ_PARTS_MAX = READ_REQUESTS_MAX * EXPERT_N_MATRIX };

struct read_request {
    bool is_busy;
    bool is_wanted;    /* a fetch waits for the expert */
    bool is_abandoned; /* nobody wants the expert any more */
    bool in_slot;      /* the parts are read straight into the slot */
    bool is_copy;      /* nothing is read: it was copied into the slot */
    int layer;
    int32_t expert;
    int64_t slot;  /* held while the request is busy */
    char *staging; /* room for the parts, borrowed from the requests; NULL: every slot can be read into */
    struct store_blob blob;
    struct store_read read[EXPERT_N_MATRIX];
    bool left_out[EXPERT_N_MATRIX]; /* the part was not given to the queue, as the request was abandoned */
    bool part_ok[EXPERT_N_MATRIX];  /* the part has arrived, has the right checksum, and lies in the slot */
    int n_left;                     /* parts whose reads have not ended */
    bool is_uploading;              /* the host has done its part; the device may still be copying */
    uint64_t upload;                /* while is_uploading: the fence of the copy */
};

struct read_requests {
    struct expert_slots *slots; /* these three are borrowed */
    struct store *store;
    struct pool *pool;
    struct store_queue *queue; /* NULL until the first open */
    struct read_request requests[READ_REQUESTS_MAX];
    int n_request, n_busy;                      /* how many requests there are, and how many of them are busy */
    struct store_read *waiting[READ_PARTS_MAX]; /* [n_waiting] parts that the queue has not got yet, in order */
    int n_waiting;
    int n_reading;                              /* parts that the queue has */
    int depth;                                  /* parts that it may have while a single token waits */
    bool is_single_token;                       /* the experts that are wanted now are for one token */
    struct store_read *arrived[READ_PARTS_MAX]; /* [n_arrived] parts whose reads have ended, to be checked and packed */
    int n_arrived;
    char *staging;        /* [n_request] blocks of request_bytes; NULL: every slot can be read into */
    size_t request_bytes; /* room for the parts of one request */
    uint64_t n_evicted;   /* experts that lost their slot to a request */
    uint64_t n_read, n_read_bytes;
    atomic_bool is_at_queue; /* the thread is in a call of the queue, in which it may wait for a drive */
    int64_t stall_ns;        /* time spent waiting for reads */
    int64_t arrival_ns;      /* time spent checking and packing */
    int64_t looked_ns;       /* clock_ns when finished reads were last collected */
    uint64_t n_many_bytes;   /* bytes that arrived for several tokens, for which the queue has its full depth */
    int64_t many_ns;         /* time in which such reads were in flight */
};

/* Opens the queue and the staging; does nothing when that has been done. */
MUST_USE err_code requests_open(struct read_requests *r, struct err *e);
void requests_close(struct read_requests *r);

/* Requests an expert that has no slot. NULL: no request or slot is free. grow_only: it may only have a free slot, not
 * another expert's. */
struct read_request *requests_start(struct read_requests *r, int layer, int32_t expert, bool grow_only);
/* The same for an expert that is copied from host memory; the request ends when it is on the device. */
struct read_request *requests_copy(struct read_requests *r, int layer, int32_t expert, const struct expert_bytes *from);
/* The request that an expert is being read by, or NULL. */
struct read_request *requests_find(struct read_requests *r, int layer, int32_t expert);

/* Abandons a request: parts that the queue has not got yet are not read. request_want undoes that. */
void request_abandon(struct read_requests *r, struct read_request *q);
void request_want(struct read_requests *r, struct read_request *q);

/* Gives the queue as many of the waiting parts as it has room for. */
void requests_submit(struct read_requests *r);

/* Collects parts whose reads have ended from the queue; wait: waits until there is at least one. Returns whether there
 * were any. */
bool requests_collect(struct read_requests *r, bool wait);

/* Checks and packs the first n parts that have arrived, on the pool, or on this thread alone if it is NULL. ended
 * [READ_REQUESTS_MAX] gets the requests all of whose parts have ended; returns how many. */
int requests_process(struct read_requests *r, int n, struct pool *pool, struct read_request **ended);

/* Fills ended [READ_REQUESTS_MAX] with the requests whose uploads have ended or failed; wait: waits until there is one,
 * if any upload is under way. Returns how many there are. */
int requests_uploaded(struct read_requests *r, bool wait, struct read_request **ended);

enum read_result {
    READ_DONE,      /* the expert is in its slot, which is still held */
    READ_UPLOADING, /* it will be in its slot once the device says so: requests_uploaded */
    READ_ABANDONED, /* the slot is free again */
    READ_FAILED,    /* the slot is free again, and the error says why */
    READ_AGAIN      /* the expert is being read from another copy */
};

/* Finishes a request whose reads have all ended, or whose upload has. */
enum read_result request_finish(struct read_requests *r, struct read_request *q, struct err *e);

/* Room to read a matrix of an expert into, wherever it may lie: in a prepared store rows are filled up to 16. */
static inline size_t read_matrix_room(const struct store_matrix *m)
{
    return store_read_room(STORE_ALIGN - 1, m->n_bytes + m->n_bytes / m->n_row * LAYOUT_R16_ROWS);
}

/* A matrix is packed in n pieces: the first row of piece `piece`, a multiple of LAYOUT_R16_ROWS; of piece n: the number
 * of rows. */
static inline int64_t read_piece_row(const struct store_matrix *m, size_t piece, size_t n)
{
    uint64_t row = (m->n_row + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS * piece / n * LAYOUT_R16_ROWS;
    return (int64_t)(row < m->n_row ? row : m->n_row);
}

#endif
