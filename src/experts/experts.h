/* Where routed experts are: the slots that a device has for them, and what fills and empties these slots.
 *
 * Layers whose experts have the same shape share a group of slots. With a slot for every expert all are read at the
 * start and nothing moves again. With fewer, a layer's experts are fetched: experts_fetch_begin says which were chosen,
 * holds those that are in slots, and requests the others, which evict the coldest (policy.h); experts_fetch_next gives
 * those that are ready, first the ones that were there, so that they compute while the others are being read. A slot is
 * named only once its bytes have arrived and have been checked where there is a checksum; it is not evicted while held.
 *
 * A fetch needs no more than one slot, as each set of experts is released when the next is asked for, and there is one
 * fetch at a time, so users can't wait for each other.
 *
 * A device may have a part of the experts alone (expert_layer.is_here). What is said here of all experts then means
 * those that it has; the others are not among the ids that it gets, which have -1 in their place.
 *
 * Slots may be a cache instead (experts_params.is_cache): other devices have all experts, too, and compute what is not
 * in these slots, so that no call ever waits. Nothing is fetched then; experts move into slots between calls.
 *
 * Slots take memory once they are opened, as the room on the device (backend_room_bytes) permits: all together by
 * experts_open, one by one when needed. experts_reclaim gives them back, between operations of the device.
 *
 * Refused: budgets too small for one layer's top-k experts.
 *
 * Thread-safety: one thread, the one that drives the device. What arrives is worked up on the pool. */
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
    struct slot_pool_desc shape; /* n_slot is experts_create's to choose */
    const bool *is_here;         /* [n_expert] which experts this device has; borrowed until experts_create returns;
                                    NULL: all */
};

struct experts_params {
    struct backend *device; /* these three are borrowed until experts_close */
    struct store *store;    /* NULL: a description, of which experts_load reads nothing */
    struct pool *pool;
    enum policy_kind policy;
    size_t budget_bytes; /* of slots; 0: no bound but the room on the device */
    double budget_share; /* of the slots that all experts need; 0: the same */
    bool deterministic;  /* experts_look answers from a logical cache */
    bool is_cache;       /* all layers are given with is_here */
};

/* Reads nothing yet. ERR_LIMIT when the budget or the room on the device is less than the minimum, with the
 * number. */
MUST_USE err_code experts_create(struct experts **out, const struct experts_params *p,
                                 const struct expert_layer *layers, int n_layer, struct err *e);
void experts_close(struct experts **x);

/* Reads every expert of groups that have a slot for each, in parallel; of a cache none. progress (may be NULL) is
 * called with the bytes read so far from any thread. */
MUST_USE err_code experts_load(struct experts *x, void (*progress)(void *user, uint64_t n_bytes), void *user,
                               struct err *e);

/* Readies the other groups: opens what they are read with, and slots until no more than spare_bytes are left of the
 * room on the device. */
MUST_USE err_code experts_open(struct experts *x, size_t spare_bytes, struct err *e);

/* Fills them with what earlier runs used most. A cache's policy learns what that was, and nothing moves yet. */
MUST_USE err_code experts_warm(struct experts *x, const struct usage *past, struct err *e);

/* Whether every expert has a slot for good, in all layers; never those of a cache. */
bool experts_all_resident(const struct experts *x);

/* Whether every expert of the layer has a slot for good. */
bool experts_is_resident(const struct experts *x, int layer);

/* Whether the thread that drives the device waits for a drive, or asks one for something. By any thread. */
bool experts_is_at_drive(const struct experts *x);

/* Whether experts of the layer are fetched, and a prediction would be of use. */
bool experts_is_fetching(const struct experts *x, int layer);

/* Of such a layer the slot table, I32 [n_expert] in device memory, which stays true until experts_unpin: memory that is
 * reclaimed meanwhile comes from other layers. Of another layer NULL, and nothing is pinned. One layer at a time;
 * unpin it when the operations that use the table have been enqueued. */
const struct tensor *experts_pin(struct experts *x, int layer);
void experts_unpin(struct experts *x, int layer);

/* NULL when no expert of this layer's group is here. */
struct slot_pool *experts_slot_pool(const struct experts *x, int layer);

/* ---- fetching the experts of a layer that is not resident ----------------------------------------------------- */

/* Begins a fetch for n_tok tokens that chose ids[t * n_used + rank] (-1: an expert of another device), and ends the one
 * before. All may be -1. is_decode: it counts as one for tokens that were sampled. */
void experts_fetch_begin(struct experts *x, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used,
                         bool is_decode);

/* Some of the chosen experts that are in their slots, each once in a fetch: table [n_expert] gets their slots, and -1
 * for all others; *n says how many, 0 that there are no more. Waits for reads only when nothing else is ready. What was
 * given before is released: the caller's work on it must be done. After an error the fetch is over. */
MUST_USE err_code experts_fetch_next(struct experts *x, int32_t *table, int64_t *n, struct err *e);

/* Ends the fetch, if there is one: nothing is held after it. */
void experts_fetch_end(struct experts *x);

/* Prefetches a prediction of what the next fetch will ask for, in place of an earlier one: n experts of a layer, the
 * most probable first; those of other devices may be among them. Those that have no slot are read behind all that this
 * fetch lacks, until the next begins: as many as there is room for if the prediction is_likely, else one at a time and
 * only while nothing else is being read or waits. */
void experts_prefetch(struct experts *x, int layer, const int32_t *ids, int64_t n, bool is_likely);

/* Whether a better prediction would be of use: some experts of this fetch are still being read, and none of the
 * prediction in hand is. */
bool experts_may_predict(const struct experts *x);

/* ---- slots as a cache -------------------------------------------------------------------------------------------- */

/* A call of a layer: the policy learns the choice, as by experts_fetch_begin, and those of the chosen experts that are
 * in slots are held until the next call begins. By then the device must have passed the operations that use them.
 * table [n_expert]: their slots, -1 for all others; returns how many they are. is_used: false for a call that nothing
 * is to be computed of here: the table is all -1. */
int64_t experts_cache_begin(struct experts *x, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used,
                            bool is_used, int32_t *table);

/* The expert that a slot should go to now: one for a free slot, or one that is clearly hotter than what would lose its
 * slot. False: all is well. */
bool experts_cache_wants(struct experts *x, int *layer, int32_t *expert);

/* Where an expert lies in host memory, for another device. */
struct expert_bytes {
    const void *matrix[EXPERT_N_MATRIX]; /* as backend_slot_bytes says */
    bool is_packed[EXPERT_N_MATRIX];
};
/* False: it is in no slot, or not where the host could read it. For any thread while the device's own does nothing;
 * true until that does something. */
bool experts_lend(struct experts *x, int layer, int32_t expert, struct expert_bytes *out);

/* Moves an expert, which has no slot, into one: copies it, or where `from` is NULL begins to read it. Calls find it
 * once it is on the device. Not within a call. False: it can't be begun now, as no slot can be had or too much is under
 * way. */
bool experts_cache_move(struct experts *x, int layer, int32_t expert, const struct expert_bytes *from);
/* Takes in moves that have ended; wait: until all have. Returns how many are under way. What could not be read is not
 * in a slot, and nobody is told. */
int experts_cache_settle(struct experts *x, bool wait);

/* ---- substitutes ---------------------------------------------------------------------------------------------- */

/* Which experts of a layer are at hand: at_hand [n_expert]. Those whose bytes are in a slot; in the deterministic mode
 * those that a cache of the same size would hold by the choices alone, whenever reads end. */
void experts_look(struct experts *x, int layer, bool *at_hand);

/* Tokens' choice in which some experts stand in for others (moe/car.h); borrowed during the call. */
struct experts_choice {
    int64_t n_tok, n_used;
    const int32_t *wanted; /* [n_tok][n_used] the router's: what the policy and the counts of usage learn */
    const int32_t *ids;    /* what is to be computed: the same but for the substitutes */
    bool is_decode;        /* as in experts_fetch_begin */
    int64_t n_car;         /* tokens that may have substitutes, the first ones */
    const float *ratio;    /* [n_car][n_used] of a substitute's score to the other's */
    const float *scores;   /* [n_car][n_expert] the router's */
    int64_t n_backfill;    /* how many of those stood in for may be read in idle time until the next token */
};
enum { EXPERTS_MAX_BACKFILL = 64 };

/* experts_fetch_begin for such a choice. */
void experts_fetch_begin_instead(struct experts *x, int layer, const struct experts_choice *c);

/* Requests one of the experts that were stood in for, if nothing is being read or waits: the one with the best score
 * lately, and only if the policy prefers it to what it would evict. */
void experts_backfill(struct experts *x);

/* Empties the slots and forgets what was chosen, so that what follows finds what it would find after a cold start. */
void experts_forget(struct experts *x);

/* ---- memory and figures --------------------------------------------------------------------------------------- */

/* Closes slots until n_bytes more fit in the room on the device or none can be spared. */
void experts_reclaim(struct experts *x, size_t n_bytes);

/* Bytes of slots: the least that works, what all experts need, what is open now. */
size_t experts_min_bytes(const struct experts *x);
size_t experts_max_bytes(const struct experts *x);
size_t experts_open_bytes(const struct experts *x);
size_t experts_staging_bytes(const struct experts *x); /* MEM_SCRATCH that reads into slots go through; 0: none yet */

/* How many slots are open now. */
int64_t experts_n_slot(const struct experts *x);

/* The size of a layer's slots, and which group of them it shares. */
size_t experts_slot_bytes(const struct experts *x, int layer);
int experts_group(const struct experts *x, int layer);

/* Whether an expert has a slot, in which it may still be on its way. */
bool experts_has_slot(const struct experts *x, int layer, int32_t expert);

/* What routers chose so far; borrowed. Of layers that were given without is_here fetches count, and of resident ones,
 * which nobody fetches, experts_count_choice while experts_count_all says so; of layers with is_here
 * experts_count_choice alone, as fetches see a part of the choice. */
const struct usage *experts_usage(const struct experts *x);

/* Whether resident layers are to be counted, too: not at first. */
void experts_count_all(struct experts *x, bool on);
bool experts_counts_all(const struct experts *x);

/* Counts what a router chose in a layer that is resident or was given with is_here: n experts, wherever they are. */
void experts_count_choice(struct experts *x, int layer, const int32_t *ids, int64_t n);

/* Counts what a call uses of a resident layer, which nobody fetches: n ids as in experts_fetch_begin. */
void experts_count_resident(struct experts *x, int layer, const int32_t *ids, int64_t n);

struct experts_layer_counters {
    uint64_t n_found, n_read; /* experts that were in slots when a fetch asked for them, and that it waited for; each
                                 once a fetch */
    uint64_t n_substituted;   /* choices that another expert stood in for */
    int64_t wait_ns;          /* spent waiting for reads with nothing to compute */
    uint64_t n_missed; /* of a cache: experts that calls asked for and that were not in slots, each once a call */
    uint64_t n_moved;  /* of a cache: experts that moved into slots */
};
struct experts_layer_counters experts_layer_counters(const struct experts *x, int layer);

struct experts_counters {
    /* experts that fetches asked for; decode: fetches that were said to be such */
    uint64_t n_hit, n_miss, n_decode_hit, n_decode_miss;
    uint64_t n_evicted;
    uint64_t n_read_bytes, n_read; /* of expert bytes that arrived, and how many experts */
    uint64_t n_prefetched, n_prefetch_used;
    uint64_t n_substituted, n_backfilled;
    double ratio_sum;   /* of the substitutes */
    int64_t n_spared;   /* of n_decode_hit: what would have been misses without substitutes */
    int64_t stall_ns;   /* waiting for reads with nothing to compute */
    int64_t arrival_ns; /* checking what arrived, and packing what was not read into its slot */
    /* bytes that drives gave for several tokens at once, and the time in which such reads were in flight */
    uint64_t n_many_bytes;
    int64_t many_ns;
};
struct experts_counters experts_counters(const struct experts *x);

/* How experts are read: the store's words, or "" when no group streams. Borrowed. */
const char *experts_engine(const struct experts *x);

#endif
