/* Where weight bytes come from.
 *
 * A store reads byte ranges of a model into memory that the caller owns: a range arrives whole or the read
 * fails with an error that names the file and the bytes; nothing is ever computed from bytes that did not
 * arrive. There are three ways in: store_read waits (loading), a store_queue keeps many reads in flight
 * (streaming experts), and store_expert_blob says what to read for a routed expert. The bytes lie in raw GGUF
 * files and, where a prepared store was attached, in its directories; tests have stores in memory
 * (tests/unit/store_fake.h).
 *
 * The room refuses to know what bytes mean: it moves them, tagged with the layouts they are in.
 *
 * Thread-safe: any number of threads may read from one store; each queue belongs to one thread at a time. */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "gguf/gguf.h"
#include "quant/layout.h"

struct store;
struct pool;

/* Reads from the files that the view was parsed from; refuses files that have changed in size since. Borrows
 * the view, which must outlive the store. */
MUST_USE err_code store_open_gguf(struct store **out, const struct gguf *g, struct err *e);

/* Which weights a store that was opened from a GGUF holds: gguf_fingerprint, continued with how each tensor begins and
 * ends, so that a model's fine-tunes differ. */
MUST_USE err_code store_fingerprint(struct store *s, uint64_t *out, struct err *e);

/* Reads from one file of any kind; path is borrowed. */
MUST_USE err_code store_open_file(struct store **out, const char *path, struct err *e);

/* Gives experts that are read from the GGUF the checksums of its sidecar (checksums.h), so that store_blob_check can
 * tell damage; *found: there is one. Of a store that was opened from a GGUF. */
MUST_USE err_code store_use_checksums(struct store *s, bool *found, struct err *e);
/* Reads all tensors but the routed experts', in parallel, and compares them with these checksums. ERR_FORMAT with a
 * sentence that names the file and the tensor. */
MUST_USE err_code store_check_tensors(struct store *s, struct pool *pool, struct err *e);

void store_close(struct store **s); /* its queues must be closed before */

/* ---- reading and waiting ------------------------------------------------------------------------------------- */

struct store_range {
    int file;        /* index of the split */
    uint64_t offset; /* from the start of that file, bytes */
    size_t n_bytes;
    void *dst; /* n_bytes, owned by the caller */
};

/* The ranges, all of them and whole; ranges that are read together should be passed together, so that the
 * disk can work on them at once. After an error the contents of every dst are unspecified. */
MUST_USE err_code store_read(struct store *s, const struct store_range *ranges, size_t n, struct err *e);

/* Has the disk begin to work on ranges that will be read one by one; their dst are not looked at. */
void store_read_ahead(struct store *s, const struct store_range *ranges, size_t n);

/* The whole of a tensor, or bytes [offset, offset + n_bytes) of it. */
struct store_range store_tensor_range(const struct gguf_tensor *t, void *dst);
struct store_range store_tensor_part(const struct gguf_tensor *t, uint64_t offset, size_t n_bytes, void *dst);

/* What was read so far: ranges and reads that arrived, their bytes, and time spent waiting in
 * store_read, over all threads. */
struct store_counters {
    uint64_t n_reads, n_bytes, n_ns;
};
struct store_counters store_get_counters(const struct store *s);

/* The same place by place: 0 is the GGUF, then come the directories of the prepared store. False: there is no such
 * place. */
struct store_place {
    const char *path; /* borrowed */
    uint64_t n_reads, n_bytes;
    double bytes_per_s; /* of a directory, while it had reads in flight; 0: not known */
    bool is_gone;       /* given up */
};
bool store_get_place(const struct store *s, int i, struct store_place *out);

/* ---- reads in flight ----------------------------------------------------------------------------------------- */

enum { STORE_ALIGN = 4096 }; /* of buffers, and of what is asked of a drive */

/* Bytes of buffer that a read needs, whole blocks at both ends of the range included. A range that begins and ends on
 * a multiple of STORE_ALIGN needs no more than itself, and arrives at the buffer's start. */
static inline size_t store_read_room(uint64_t offset, size_t n_bytes)
{
    size_t head = (size_t)(offset % STORE_ALIGN);
    return (head + n_bytes + STORE_ALIGN - 1) / STORE_ALIGN * STORE_ALIGN;
}

/* One read. The caller owns the struct and leaves it and the buffer alone from submit to collect. */
struct store_read {
    int file; /* what to read, as in struct store_range */
    uint64_t offset;
    size_t n_bytes;
    void
        *buf; /* aligned to STORE_ALIGN, store_read_room() long; in huge pages (mem_map) a drive may be twice as fast */
    void *user; /* the caller's */

    const void *bytes; /* out: where in buf the range begins */
    int failure;       /* out: 0 when the range arrived whole, else what store_read_error puts into words */

    size_t n_done; /* the queue's: bytes that arrived so far, counted from the first whole block, */
    int64_t start_ns;
    struct store_read *next;
};

struct store_queue;

enum store_engine { STORE_ENGINE_AUTO, STORE_ENGINE_IO_URING, STORE_ENGINE_PREAD };
enum store_direct { STORE_DIRECT_AUTO, STORE_DIRECT_ON, STORE_DIRECT_OFF };

struct store_queue_params {
    int depth;                /* reads in flight at once; more wait their turn in the queue. 0: STORE_DEPTH */
    enum store_engine engine; /* AUTO: the best that the system permits */
    enum store_direct direct; /* past the page cache; AUTO: where the file system permits */
};

enum { STORE_DEPTH = 32, STORE_MAX_DEPTH = 1024 };

/* Fails when a demanded engine (not AUTO) or DIRECT_ON can't be had. p NULL: as store_set_queue_params said, else all
 * zero. */
MUST_USE err_code store_queue_open(struct store_queue **out, struct store *s, const struct store_queue_params *p,
                                   struct err *e);
void store_set_queue_params(struct store *s, const struct store_queue_params *p);
struct store_queue_params store_get_queue_params(const struct store *s);
/* Waits for what is in flight, and forgets what was not collected. */
void store_queue_close(struct store_queue **q);

/* Never fails and never waits: errors come with the completion. Reads start in the order in which they are given. */
void store_queue_submit(struct store_queue *q, struct store_read *const *reads, size_t n);

/* Up to max reads that ended, in any order; returns how many. wait: until there is at least one, unless nothing is
 * in flight. */
size_t store_queue_collect(struct store_queue *q, struct store_read **done, size_t max, bool wait);

/* How it reads, for statistics: "io_uring, O_DIRECT" or "pread threads, page cache (O_DIRECT: refused by ...)". Owned
 * by the queue. */
const char *store_queue_engine(const struct store_queue *q);

/* The sentence for a read that failed. */
err_code store_read_error(const struct store *s, const struct store_read *r, struct err *e);

/* ---- routed experts ------------------------------------------------------------------------------------------ */

/* One matrix of all experts of a layer in the GGUF files: n_row rows of k weights, expert i at offset + i *
 * stride_bytes. */
struct store_matrix {
    const struct quant_info *type;
    uint64_t tensor; /* its number (gguf_tensor_at) */
    uint64_t n_row, k;
    int file;
    uint64_t offset, stride_bytes;
    size_t n_bytes;
};

struct store_layer {
    int n_expert; /* 0: a layer without routed experts */
    struct store_matrix part[EXPERT_N_MATRIX];
};

/* Layers of the model (blk.N), and what each has; borrowed from the store. */
int store_n_layers(const struct store *s);
const struct store_layer *store_get_layer(const struct store *s, int layer);

/* Adds the directories of a prepared store (manifest.h) to one opened from a GGUF: experts are then read from there,
 * from whichever directory has them and is fastest, and from the GGUF where none has. images: [store_n_layers], how the
 * device wants the experts of each layer. ERR_FORMAT for a store of another model or in other layouts. Before any
 * queue is opened, and once; after a failure the store is fit for closing only. The log (may be NULL; borrowed) is told
 * when a drive fails or slows down. */
enum { STORE_MAX_DIRS = 16 };
MUST_USE err_code store_attach(struct store *s, const char *const *dirs, int n_dirs, const struct layout_image *images,
                               const struct log *log, struct err *e);

/* What to read for one expert. */
struct store_blob {
    struct store_blob_part {
        int file;
        uint64_t offset;
        size_t n_bytes;
        uint32_t crc; /* CRC32C of the part's bytes, when has_crc */
    } part[EXPERT_N_MATRIX];
    bool has_crc;
    bool packed; /* the parts are a slot's image, in the layouts of the device that the store was attached for, and
                    aligned to STORE_ALIGN: they can be read straight into a slot */
    int copy;    /* the directory that it is read from; -1: the GGUF */
};

/* Where an expert's bytes are best read from now: with copies on several drives the answer follows their speeds, so
 * ask again for each read. */
void store_expert_blob(struct store *s, int layer, int expert, struct store_blob *out);

/* Checks one matrix's bytes against its checksum, if there is one. ERR_FORMAT with a sentence that names file, layer
 * and expert. */
MUST_USE err_code store_blob_check(const struct store *s, int layer, int expert, const struct store_blob *b,
                                   enum expert_matrix matrix, const void *bytes, struct err *e);

/* Tells that a blob could not be read or failed its check, and why. True: there is another copy, so ask
 * store_expert_blob again; false: there is none, and the error stands. */
bool store_expert_retry(struct store *s, int layer, int expert, const struct store_blob *b, const struct err *why);

#endif
