/* A store over memory whose reads fail when told to, for tests of what comes after a failed read. */
#ifndef STORE_STORE_FAKE_H
#define STORE_STORE_FAKE_H

#include <stdbool.h>

#include "store/store.h"

struct store_fake_file {
    const char *name; /* for messages */
    const void *bytes;
    size_t n_bytes;
};

enum store_fault_kind {
    STORE_FAULT_SHORT,  /* the read ends before the byte: an error, and the bytes before it have arrived */
    STORE_FAULT_ERROR,  /* the device reports an error: nothing arrives */
    STORE_FAULT_CORRUPT /* the byte arrives with all its bits flipped, and no error: the medium lied */
};

/* Fires on reads that cover a byte. */
struct store_fault {
    enum store_fault_kind kind;
    int file;
    uint64_t offset;
    uint64_t n_skip;  /* such reads that succeed first */
    uint64_t n_times; /* and then so many fail; UINT64_MAX: all */
};

enum { STORE_FAKE_MAX_FAULTS = 16 };

/* Files and their bytes are borrowed and must outlive the store. */
MUST_USE err_code store_open_fake(struct store **out, const struct store_fake_file *files, int n_files, struct err *e);

/* Adds a fault, at most STORE_FAKE_MAX_FAULTS. `s` is a fake store. Thread-safe. */
void store_fake_add_fault(struct store *s, struct store_fault fault);
void store_fake_clear_faults(struct store *s);

#endif
