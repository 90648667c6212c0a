/* A store over memory whose reads take time and fail when told to, for tests of what comes after them.
 *
 * Its queues run no threads: a read gets its bytes, or its fault, when it is submitted, and ends when the drive below
 * would have it done, so that the order of completions follows from the order of submissions. Any number of queues
 * share the one drive. */
#ifndef STORE_FAKE_H
#define STORE_FAKE_H

#include "store/store.h"

struct store_fake_file {
    const char *name; /* for messages */
    const void *bytes;
    size_t n_bytes;
};

enum store_fault_kind {
    STORE_FAULT_SHORT,   /* the read ends before the byte, as at the end of a file */
    STORE_FAULT_ERROR,   /* the device reports an error: nothing arrives */
    STORE_FAULT_CORRUPT, /* the byte arrives with all its bits flipped, and no error: the medium lied */
    STORE_FAULT_SLOW,    /* a queue's read takes STORE_FAKE_SLOW_NS longer, and others overtake it */
    STORE_FAULT_GONE     /* the device vanishes: this and all later reads from the file fail */
};

enum { STORE_FAKE_SLOW_NS = 20 * 1000 * 1000 };

/* Fires on reads that cover a byte. */
struct store_fault {
    enum store_fault_kind kind;
    int file;
    uint64_t offset;
    uint64_t n_skip;  /* such reads that succeed first */
    uint64_t n_times; /* and then so many fail; UINT64_MAX: all */
};

enum { STORE_FAKE_MAX_FAULTS = 16 };

/* Files, their bytes and layers are borrowed and must outlive the store. */
MUST_USE err_code store_open_fake(struct store **out, const struct store_fake_file *files, int n_files, struct err *e);

/* The layers whose experts store_expert_blob finds; none before. */
void store_fake_set_layers(struct store *s, const struct store_layer *layers, int n);

/* How long a queue's reads take: each arrives latency_ns after the drive has moved its bytes, one read after the
 * other. 0 and 0: no time (the default). */
struct store_fake_drive {
    int64_t latency_ns;
    uint64_t bytes_per_s; /* 0: endless */
};
void store_fake_set_drive(struct store *s, struct store_fake_drive drive);

/* Adds a fault, at most STORE_FAKE_MAX_FAULTS. `s` is a fake store. Thread-safe. */
void store_fake_add_fault(struct store *s, struct store_fault fault);
void store_fake_clear_faults(struct store *s); /* a device that is gone stays gone */

#endif
