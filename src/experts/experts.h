/* Where routed experts are: the slots that a device has for each layer, and what fills and empties them.
 *
 * Callers acquire experts and get slots that hold them until they are released; an expert that has no slot is read from
 * the store into one, in place of the least recently used expert that nobody holds. When a layer has a slot for
 * every expert, all are read at the start and nothing moves again. A slot never changes while held, and is only
 * named once its bytes are in. Acquiring more than experts_capacity() at once is a bug of the caller, so two users
 * can't wait for each other.
 *
 * Thread-safety: one thread acquires and releases. */
#ifndef EXPERTS_EXPERTS_H
#define EXPERTS_EXPERTS_H

#include "backend/backend.h"

struct store;
struct pool;
struct experts;

/* One matrix of all experts of a layer in the store: expert i lies at offset + i * stride_bytes. */
struct expert_matrix {
    int file;
    uint64_t offset, stride_bytes;
    size_t n_bytes;
};

struct expert_layer {
    int index; /* of the layer in the model, for messages */
    int64_t n_expert;
    struct bank_desc shape; /* n_slot is experts_create's to choose */
    struct expert_matrix gate, up, down;
};

/* n_slot: slots for each layer, 0 for one an expert. The device, store and layers' contents are borrowed until
 * experts_close. Reads nothing yet. */
MUST_USE err_code experts_create(struct experts **out, struct backend *device, struct store *store,
                                 const struct expert_layer *layers, int n_layer, int64_t n_slot, struct err *e);
void experts_close(struct experts **x);

/* Reads every expert of layers that have room for all, in parallel. progress (may be NULL) is called with the bytes
 * read so far from any thread. */
MUST_USE err_code experts_load(struct experts *x, struct pool *pool, void (*progress)(void *user, uint64_t n_bytes),
                               void *user, struct err *e);

/* The experts that may be held at once in a layer. */
int64_t experts_capacity(const struct experts *x, int layer);

/* A slot table in device memory, I32 [n_expert], when every expert of the layer is in its slot for good; else NULL. */
const struct tensor *experts_resident(const struct experts *x, int layer);

struct bank *experts_bank(const struct experts *x, int layer);

/* Pins n distinct experts and gives their slots. Waits for reads. On failure nothing is held. Before a slot is
 * refilled the caller's enqueued work on it must have been waited for: release only then. */
MUST_USE err_code experts_acquire(struct experts *x, int layer, const int32_t *ids, int64_t n, int32_t *slots,
                                  struct err *e);
void experts_release(struct experts *x, int layer, const int32_t *ids, int64_t n);

struct experts_counters {
    uint64_t n_hit, n_miss, n_evicted, n_read_bytes;
};
struct experts_counters experts_counters(const struct experts *x);

/* Bytes of one expert of a layer in the store, and of all experts of all layers. */
size_t expert_layer_bytes(const struct expert_layer *l);

#endif
