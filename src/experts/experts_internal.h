/* What the experts are made of. */
#ifndef EXPERTS_EXPERTS_INTERNAL_H
#define EXPERTS_EXPERTS_INTERNAL_H

#include "base/pool.h"
#include "experts/budget.h"
#include "experts/experts.h"
#include "experts/backfill_queue.h"
#include "store/store.h"

/* Layers whose experts have the same shape, and their slots. */
struct group {
    struct slot_pool_desc shape;
    struct budget_group size;
    int n_layer;
    int64_t n_expert; /* of the layer with most */
    int64_t n_slot;   /* at most */
    struct slot_pool *slot_pool;
    struct policy *policy;
    struct policy *logical; /* of the deterministic mode, else NULL: substitutes.c */
    bool resident;
};

struct layer_experts {
    struct expert_layer d;
    int group, index; /* of the group, and in it */
    struct tensor table;
};

enum { MAX_REQUEST = 16, MAX_WAITING = MAX_REQUEST * STORE_N_PART };

/* An expert on its way from the store into a slot, which is held meanwhile. */
struct read_request {
    bool busy, wanted; /* wanted: by the turn */
    bool given_up;     /* not read to the end: */
    bool in_slot;      /* read straight into it */
    bool left_out[STORE_N_PART];
    int layer;
    int32_t expert;
    int64_t slot;
    char *staging;
    struct store_blob blob;
    struct store_read read[STORE_N_PART];
    int n_left;
    bool part_ok[STORE_N_PART]; /* arrived, checked; packed, unless it is in the slot */
};

/* A guess at the next turn: read behind what this turn needs. What has arrived stays held until that turn begins. */
struct prefetch {
    int layer; /* -1: none */
    bool is_likely;
    int32_t *ids, *held; /* [most experts of a layer]: without a slot when it was made; that have arrived */
    int64_t n, next, n_held, n_most;
};

struct fetch {
    bool open;
    int layer;
    int64_t n_tok;
    int64_t n_left;                /* experts not given yet */
    int32_t *todo, *ready, *given; /* [most experts of a layer] */
    int64_t n_todo, next, n_ready, n_given;
    err_code code; /* of the first read that failed, */
    struct err err;
};

struct experts {
    struct experts_params p;
    struct arena arena;
    struct layer_experts *layers;
    int n_layer;
    struct group *groups;
    int n_group;
    struct store_queue *queue; /* NULL until something streams */
    struct read_request requests[MAX_REQUEST];
    int n_request, n_busy;                   /* that there are, that are in the air */
    struct store_read *waiting[MAX_WAITING]; /* parts that the queue has not got yet, in order */
    int n_waiting;
    int n_reading, depth;                    /* parts that it has, and may have for one token */
    struct store_read *arrived[MAX_WAITING]; /* parts that are still to be worked up */
    int n_arrived;
    bool is_completing; /* so that nothing is done between the tasks of that */
    char *staging;
    size_t request_bytes; /* room for what one flight reads */
    struct fetch fetch;
    struct prefetch prefetch;
    bool *seen;    /* [most experts of a layer] */
    bool *guessed; /* [n_layer][most experts of a layer]: read on a guess and not asked for yet */
    struct usage usage;
    struct experts_counters counters;
    struct backfill_queue backfill_queue;                /* what was stood in for */
    struct backfill_entry pending[EXPERTS_MAX_BACKFILL]; /* of these, what the token may read, the best first */
    int n_pending;
    int64_t n_backfill; /* of the token at hand */
};

static inline struct group *group_of(struct experts *x, int layer)
{
    return &x->groups[x->layers[layer].group];
}

/* Opens one more slot: false when all are or memory forbids it. */
bool group_open_slot(struct experts *x, struct group *g);

/* Room to read a matrix of an expert into, from wherever it may lie: in a prepared store rows are filled up to 16. */
static inline size_t matrix_room(const struct store_matrix *m)
{
    return store_read_room(STORE_ALIGN - 1, m->n_bytes + m->n_bytes / m->n_row * LAYOUT_R16_ROWS);
}

/* The first row of a matrix's piece of n, at the beginning of a group of rows that lie side by side when packed. */
static inline int64_t piece_row(const struct store_matrix *m, size_t piece, size_t n)
{
    uint64_t row = (m->n_row + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS * piece / n * LAYOUT_R16_ROWS;
    return (int64_t)(row < m->n_row ? row : m->n_row);
}

/* The bytes of an expert in the store. */
size_t blob_bytes(const struct store_blob *b);

/* ---- fetch.c --------------------------------------------------------------------------------------------------- */

/* The two halves of experts_fetch_begin: what the router chose is learnt; what is to be computed is held or read. */
void fetch_observe(struct experts *x, int layer, const int32_t *wanted, int64_t n_tok, int64_t n_used);
void fetch_begin(struct experts *x, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used);

/* ---- substitutes.c -------------------------------------------------------------------------------------------- */

/* The turn that was just begun, for the logical cache, if there is one. */
void logical_fetch(struct experts *x, int layer, const int32_t *wanted, int64_t n_tok, int64_t n_used);

/* A new token: chooses what may be read in idle time until the next one. */
void backfill_choose(struct experts *x);

/* ---- read_requests.c
 * ------------------------------------------------------------------------------------------------- */

/* Opens the queue and what reads land in, unless that has been done. */
MUST_USE err_code requests_open(struct experts *x, struct err *e);
void requests_close(struct experts *x);

/* Starts to read an expert that has no slot and is not on its way. False when no flight or slot is free; `grow_only`:
 * no expert loses its slot for it. */
bool request_start(struct experts *x, int layer, int32_t expert, bool grow_only, struct read_request **out);
struct read_request *request_find(struct experts *x, int layer, int32_t expert);

/* Gives the queue what it has room for of what waits. */
void requests_feed(struct experts *x);

/* A guess that was wrong: what of it the queue has not got is not read; and one that turns out to be wanted. */
void request_give_up(struct experts *x, struct read_request *f);
void request_want(struct experts *x, struct read_request *f);

/* Takes in reads that have ended; wait: until some expert is whole, unless none is on its way. Experts that the turn
 * wants join its ready ones, still held; a failure of one is the turn's. */
void requests_complete(struct experts *x, bool wait);

/* ---- fetch.c, prefetch.c ------------------------------------------------------------------------------------------
 */

/* Gives the drive what it has room for: what the turn lacks, then what a guess at the next one lacks. */
void fetch_feed(struct experts *x);
void prefetch_feed(struct experts *x);

/* An expert of a layer that nobody waits for has arrived, held. */
void prefetch_take(struct experts *x, int layer, int32_t expert);
/* The guess is over: what it holds is let go. */
void prefetch_end(struct experts *x);

#endif
