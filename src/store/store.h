/* Where weight bytes come from.
 *
 * A store reads byte ranges of a model into memory that the caller owns: a range arrives whole or the read
 * fails with an error that names the file, the bytes and the tensor; nothing is ever computed from bytes that
 * did not arrive. Now: raw GGUF files through pread, and a fake over memory (store_fake.h). A prepared store
 * and io_uring come as further implementations behind the same struct store_ops (store_internal.h);
 * submitting ranges and waiting for them will be calls beside store_read, which stays as the synchronous
 * form.
 *
 * Thread-safe: any number of threads may read from one store. */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "gguf/gguf.h"

struct store;

struct store_range {
    int file;        /* index of the split */
    uint64_t offset; /* from the start of that file, bytes */
    size_t n_bytes;
    void *dst; /* n_bytes, owned by the caller */
};

/* Reads from the files that the view was parsed from; refuses files that have changed in size since. Borrows
 * the view, which must outlive the store. */
MUST_USE err_code store_open_gguf(struct store **out, const struct gguf *g, struct err *e);

void store_close(struct store **s);

/* The ranges, all of them and whole; ranges that are read together should be passed together, so that the
 * disk can work on them at once. After an error the contents of every dst are unspecified. */
MUST_USE err_code store_read(struct store *s, const struct store_range *ranges, size_t n, struct err *e);

/* The whole of a tensor, or bytes [offset, offset + n_bytes) of it. */
struct store_range store_tensor_range(const struct gguf_tensor *t, void *dst);
struct store_range store_tensor_part(const struct gguf_tensor *t, uint64_t offset, size_t n_bytes, void *dst);

/* What was read so far: ranges that arrived, their bytes, and time spent in store_read, over all threads. */
struct store_counters {
    uint64_t n_reads, n_bytes, n_ns;
};
struct store_counters store_get_counters(const struct store *s);

#endif
