/* Where routed experts are: the slots that a device has for them, and what fills and empties these slots.
 *
 * Layers whose experts have the same shape share a group of slots. With a slot for every expert all are read at the
 * start and nothing moves again. With fewer, a layer's experts are fetched: experts_fetch_begin says which were chosen,
 * holds those that are in slots, and requests the others, which evict the coldest (policy.h); experts_fetch_next gives
 * those that are ready, first the ones that were there, so that they compute while the others are being read. A slot is
 * named only once its bytes have arrived and have been checked where there is a checksum; it is not evicted while held.
 *
 * A fetch can make do with a single slot, as each set of experts is released when the next one is asked for; and there
 * is only one fetch at a time, so that fetches can't wait for each other.
 *
 * A device may have only a part of the experts (expert_layer.is_here). "All experts" then means those that it has, and
 * the lists of ids that it gets have -1 in the place of the others.
 *
 * The slots may also be a cache (experts_params.is_cache): other devices have all experts, too, and compute what is not
 * in these slots, so that no call ever waits. Nothing is fetched then; experts move into slots between calls.
 *
 * A slot takes memory once it is opened, if the device has room (backend_room_bytes): experts_open opens as many as
 * possible, and later ones are opened when they are needed. experts_reclaim closes slots, between the device's
 * operations.
 *
 * Refused: budgets too small for one layer's top-k experts.
 *
 * Thread-safety: one thread, the one that drives the device. The pool's threads check and pack what arrives. */
#ifndef EXPERTS_EXPERTS_H
#define EXPERTS_EXPERTS_H

#include "backend/backend.h"
#include "experts/policy.h"
#include "experts/usage.h"

struct store;
struct pool;
struct experts;

struct expert_layer {
    int index; /* of the layer in the model: the store's number for it */
    int64_t n_expert, n_used;
    struct slot_pool_desc shape; /* experts_create chooses n_slot */
    const bool *is_here;         /* [n_expert] which experts this device has; borrowed until experts_create returns;
                                    NULL: all */
};

struct experts_params {
    struct backend *device; /* these three are borrowed until experts_close */
    struct store *store;    /* NULL: a description, of which experts_load reads nothing */
    struct pool *pool;
    enum policy_kind policy;
    size_t budget_bytes; /* of slots; 0: no bound but the room on the device */
    double budget_share; /* the budget as a share of what all experts need; 0: as above */
    bool deterministic;  /* experts_look answers from a logical cache (substitutes.h) */
    bool is_cache;       /* the slots are a cache; all layers then have is_here */
};

/* Reads nothing yet. ERR_LIMIT when the budget or the room on the device is less than the minimum, with the
 * number. */
MUST_USE err_code experts_create(struct experts **out, const struct experts_params *p,
                                 const struct expert_layer *layers, int n_layer, struct err *e);
void experts_close(struct experts **x);

/* Reads, in parallel, all experts of groups that have a slot for each of theirs; for a cache it reads nothing. progress
 * (may be NULL) is called with the bytes read so far, from any thread. */
MUST_USE err_code experts_load(struct experts *x, void (*progress)(void *user, uint64_t n_bytes), void *user,
                               struct err *e);

/* Prepares the other groups: opens the queue that they are read through, and slots until only spare_bytes of the
 * device's room are left. */
MUST_USE err_code experts_open(struct experts *x, size_t spare_bytes, struct err *e);

/* Fills these groups' slots with the experts that earlier runs used most. A cache only tells its policy which these
 * are; nothing is read or moved yet. */
MUST_USE err_code experts_warm(struct experts *x, const struct usage *past, struct err *e);

/* Whether every expert has a slot for good, in all layers; never those of a cache. */
bool experts_all_resident(const struct experts *x);

/* Whether every expert of the layer has a slot for good. */
bool experts_is_resident(const struct experts *x, int layer);

/* Whether the thread that drives the device is waiting for a drive or giving it requests. May be called by any thread.
 */
bool experts_is_at_drive(const struct experts *x);

/* Whether the layer's experts are fetched, so that predicting them is of use. */
bool experts_is_fetching(const struct experts *x, int layer);

/* If the layer is resident: its slot table, I32 [n_expert] in device memory, which stays valid until experts_unpin, as
 * memory that is reclaimed meanwhile comes from other layers. Otherwise NULL, and nothing is pinned. One layer can be
 * pinned at a time; unpin it when the operations that use the table have been enqueued. */
const struct tensor *experts_pin(struct experts *x, int layer);
void experts_unpin(struct experts *x, int layer);

/* NULL when no expert of this layer's group is here. */
struct slot_pool *experts_slot_pool(const struct experts *x, int layer);

/* ---- fetching the experts of a layer that is not resident ----------------------------------------------------- */

/* Begins a fetch for n_tok tokens that chose ids[t * n_used + rank] (-1: an expert of another device; all may be -1),
 * and ends the one before. is_decode: the tokens were sampled; they are counted apart. */
void experts_fetch_begin(struct experts *x, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used,
                         bool is_decode);

/* Gives some of the chosen experts that are in their slots by now, each once in a fetch: table [n_expert] gets their
 * slots, and -1 for all others; *n is how many there are, 0 if all have been given. Waits for reads only when no expert
 * is ready. What the call before gave is released, so the caller's work on it must be done. An error ends the fetch. */
MUST_USE err_code experts_fetch_next(struct experts *x, int32_t *table, int64_t *n, struct err *e);

/* Ends the fetch, if there is one: nothing is held after it. */
void experts_fetch_end(struct experts *x);

/* Predicts what the next fetch will ask for: n experts of a layer, the most probable first; those of other devices may
 * be among them. Replaces an earlier prediction. Predicted experts without a slot are read after all that this fetch
 * needs, until the next one begins: if is_likely, as many as there is room for, else one at a time and only while
 * nothing else is being read or waits to be. */
void experts_prefetch(struct experts *x, int layer, const int32_t *ids, int64_t n, bool is_likely);

/* Whether a better prediction would still be of use: some experts of this fetch are being read, and none of those
 * predicted so far is. */
bool experts_may_predict(const struct experts *x);

/* ---- slots as a cache -------------------------------------------------------------------------------------------- */

/* To be called when the layer runs: tells the policy what was chosen, and holds those of the chosen experts that are in
 * slots until the next call; by then the device must have passed the operations that use them. table [n_expert] gets
 * their slots, and -1 for all others; returns how many there are. is_used false: nothing is to be computed here, so the
 * table is all -1. */
int64_t experts_cache_begin(struct experts *x, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used,
                            bool is_used, int32_t *table);

/* Which expert should get a slot now: one for a free slot, or one that is clearly hotter than the expert that would
 * lose its slot. False: none should. */
bool experts_cache_wants(struct experts *x, int *layer, int32_t *expert);

/* Where an expert lies in host memory, for another device. */
struct expert_bytes {
    const void *matrix[EXPERT_N_MATRIX]; /* as backend_slot_bytes says */
    bool is_packed[EXPERT_N_MATRIX];
};
/* Finds an expert's bytes. False: it is in no slot, or the host can't read it there. Any thread may call this while the
 * device's own thread is idle; the answer is valid until that thread works again. */
bool experts_lend(struct experts *x, int layer, int32_t expert, struct expert_bytes *out);

/* Starts to move an expert that has no slot into one: by copying `from` or, if that is NULL, by reading. Calls use it
 * once it is on the device. Not to be called while the layer runs. False: it can't be started now, as no slot is free
 * or too many moves are under way. */
bool experts_cache_move(struct experts *x, int layer, int32_t expert, const struct expert_bytes *from);
/* Finishes moves whose bytes have arrived (wait: all moves). Returns how many are still under way. An expert that could
 * not be read gets no slot; the failure is not reported. */
int experts_cache_settle(struct experts *x, bool wait);

/* ---- substitutes ---------------------------------------------------------------------------------------------- */

/* Which experts of a layer are at hand: at_hand [n_expert]. Usually those whose bytes are in a slot. In deterministic
 * mode those that a cache of the same size would hold if reads took no time, which follows from the choices alone. */
void experts_look(struct experts *x, int layer, bool *at_hand);

/* The tokens' choice, with some experts replaced by substitutes (moe/car.h); borrowed during the call. */
struct experts_choice {
    int64_t n_tok, n_used;
    const int32_t *wanted; /* [n_tok][n_used] the router's choice, which the policy and the usage counts learn */
    const int32_t *ids;    /* [n_tok][n_used] the same with the substitutes, which are computed */
    bool is_decode;        /* as in experts_fetch_begin */
    int64_t n_car;         /* only the first n_car tokens may have substitutes */
    const float *ratio;    /* [n_car][n_used] a substitute's score over the score of the expert that it replaces */
    const float *scores;   /* [n_car][n_expert] the router's scores */
    int64_t n_backfill;    /* how many of the replaced experts may be read in idle time until the next token */
};
enum { EXPERTS_MAX_BACKFILL = 64 };

/* experts_fetch_begin for such a choice. */
void experts_fetch_begin_instead(struct experts *x, int layer, const struct experts_choice *c);

/* If nothing is being read or waits to be, requests one of the replaced experts: the one with the best score lately,
 * and only if the policy prefers it to what it would evict. */
void experts_backfill(struct experts *x);

/* Empties the slots and forgets what was chosen, as if the experts had just been opened. Resident groups stay. */
void experts_forget(struct experts *x);

/* ---- memory and figures --------------------------------------------------------------------------------------- */

/* Closes slots until n_bytes fit in the device's room or no slot can be spared. */
void experts_reclaim(struct experts *x, size_t n_bytes);

/* Bytes of slots: the least that works, what all experts need, what is open now. */
size_t experts_min_bytes(const struct experts *x);
size_t experts_max_bytes(const struct experts *x);
size_t experts_open_bytes(const struct experts *x);
/* Bytes of MEM_SCRATCH that reads are staged in on their way into slots; 0: none yet. */
size_t experts_staging_bytes(const struct experts *x);

/* How many slots are open now. */
int64_t experts_n_slot(const struct experts *x);

/* The size of a layer's slots, and which group of them it shares. */
size_t experts_slot_bytes(const struct experts *x, int layer);
int experts_group(const struct experts *x, int layer);

/* Whether an expert has a slot, into which it may still be being read. */
bool experts_has_slot(const struct experts *x, int layer, int32_t expert);

/* How often routers chose each expert so far; borrowed. Who counts depends on the layer: fetches do for a layer without
 * is_here. Callers do, with experts_count_choice, for a layer with is_here, as fetches see only a part of its choice;
 * and for resident layers, which are not fetched, while experts_counts_all. */
const struct usage *experts_usage(const struct experts *x);

/* Whether the caller is to count resident layers, too: not at first. */
void experts_count_all(struct experts *x, bool on);
bool experts_counts_all(const struct experts *x);

/* Counts a router's choice of n experts in a layer that is resident or has is_here, whichever device has them. */
void experts_count_choice(struct experts *x, int layer, const int32_t *ids, int64_t n);

/* Adds the different experts among n ids (as in experts_fetch_begin) to n_found of a resident layer, for which no fetch
 * does. */
void experts_count_resident(struct experts *x, int layer, const int32_t *ids, int64_t n);

struct experts_layer_counters {
    uint64_t n_found;       /* experts that were in slots when a fetch asked for them; each counts once per fetch */
    uint64_t n_read;        /* experts that a fetch had to wait for, counted in the same way */
    uint64_t n_substituted; /* choices that a substitute took the place of */
    int64_t wait_ns;        /* time spent waiting for reads with nothing to compute */
    uint64_t n_missed;      /* of a cache: chosen experts that were not in slots; each counts once per call */
    uint64_t n_moved;       /* of a cache: experts that moved into slots */
};
struct experts_layer_counters experts_layer_counters(const struct experts *x, int layer);

struct experts_counters {
    uint64_t n_hit, n_miss;               /* experts that fetches found in slots, and that they had to wait for */
    uint64_t n_decode_hit, n_decode_miss; /* of these, by fetches for sampled tokens (is_decode) */
    uint64_t n_evicted;                   /* experts that lost their slot to another one */
    uint64_t n_read, n_read_bytes;        /* experts that were read, and their bytes */
    uint64_t n_prefetched;                /* experts that were read because of a prediction */
    uint64_t n_prefetch_used;             /* of these, that the next fetch of their layer asked for */
    uint64_t n_substituted;               /* choices that a substitute took the place of */
    uint64_t n_backfilled;                /* replaced experts that were read in idle time */
    double ratio_sum;                     /* sum of the substitutes' ratios (struct experts_choice) */
    int64_t n_spared;                     /* of n_decode_hit: would have been misses without substitutes */
    int64_t stall_ns;                     /* time spent waiting for reads with nothing to compute */
    int64_t arrival_ns;                   /* time spent checking and packing what was read */
    uint64_t n_many_bytes;                /* bytes read for several tokens at once */
    int64_t many_ns;                      /* time in which such reads were in flight */
};
struct experts_counters experts_counters(const struct experts *x);

/* How experts are read: the store's words, or "" when no group streams. Borrowed. */
const char *experts_engine(const struct experts *x);

#endif
