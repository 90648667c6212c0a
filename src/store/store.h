/* Where weight bytes come from.
 *
 * A store reads byte ranges of a model into memory that the caller owns. A range arrives whole, or the read fails with
 * an error that names the file and the bytes. store_read waits for its ranges (for loading); a store_queue keeps many
 * reads in flight (for streaming experts); store_expert_blob says where a routed expert's bytes are. The bytes lie in
 * GGUF files and, if a prepared store was attached, in its directories; tests have stores in memory
 * (tests/unit/store_fake.h).
 *
 * The room does not know what the bytes mean, only in which layout they are.
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

/* A hash that tells which weights a store that was opened from a GGUF holds: gguf_fingerprint, continued with each
 * tensor's first and last bytes, so that a model's fine-tunes differ. */
MUST_USE err_code store_fingerprint(struct store *s, uint64_t *out, struct err *e);

/* Opens one file of any kind; path is borrowed. */
MUST_USE err_code store_open_file(struct store **out, const char *path, struct err *e);

/* Loads the checksums beside a GGUF (checksums.h), with which store_blob_check can find damage in experts that are read
 * from it; *found: there are some. Only for a store that was opened from a GGUF. */
MUST_USE err_code store_use_checksums(struct store *s, bool *found, struct err *e);
/* Reads all tensors except the routed experts', in parallel, and compares them with these checksums. ERR_FORMAT: one is
 * damaged; the sentence names the file and the tensor. */
MUST_USE err_code store_check_tensors(struct store *s, struct pool *pool, struct err *e);

void store_close(struct store **s); /* its queues must be closed before */

/* ---- reading and waiting ------------------------------------------------------------------------------------- */

struct store_range {
    int file;        /* index of the split */
    uint64_t offset; /* from the start of that file, bytes */
    size_t n_bytes;
    void *dst; /* n_bytes, owned by the caller */
};

/* Reads all ranges. Ranges that are needed together should be passed together, so that the drive can work on them at
 * once. After an error the contents of every dst are undefined. */
MUST_USE err_code store_read(struct store *s, const struct store_range *ranges, size_t n, struct err *e);

/* Advises the system that these ranges will be read soon, so that the drive begins now. Their dst are ignored. */
void store_read_ahead(struct store *s, const struct store_range *ranges, size_t n);

/* The range of a whole tensor, or of its bytes [offset, offset + n_bytes). */
struct store_range store_tensor_range(const struct gguf_tensor *t, void *dst);
struct store_range store_tensor_part(const struct gguf_tensor *t, uint64_t offset, size_t n_bytes, void *dst);

/* Reads so far that succeeded, their bytes, and the time spent in store_read, added up over all threads. */
struct store_counters {
    uint64_t n_reads, n_bytes, n_ns;
};
struct store_counters store_get_counters(const struct store *s);

/* The same for each place that bytes come from: 0 is the GGUF, then come the directories of the prepared store. False:
 * there is no place i. */
struct store_place {
    const char *path; /* borrowed */
    uint64_t n_reads, n_bytes;
    double bytes_per_s; /* a directory's speed while it has reads in flight; 0: not known */
    bool is_gone;       /* the directory has failed too often and is no longer read */
};
bool store_get_place(const struct store *s, int i, struct store_place *out);

/* ---- reads in flight ----------------------------------------------------------------------------------------- */

enum { STORE_ALIGN = 4096 }; /* of buffers, and of what is asked of a drive */

/* The length of the buffer that a read needs: as drives read whole blocks, the blocks at both ends of the range are
 * read whole. A range that begins and ends on a multiple of STORE_ALIGN needs no more than itself, and arrives at the
 * buffer's start. */
static inline size_t store_read_room(uint64_t offset, size_t n_bytes)
{
    size_t head = (size_t)(offset % STORE_ALIGN);
    return (head + n_bytes + STORE_ALIGN - 1) / STORE_ALIGN * STORE_ALIGN;
}

/* One read. The caller owns the struct, and must not touch it or the buffer from submit to collect. */
struct store_read {
    int file; /* what to read, as in struct store_range */
    uint64_t offset;
    size_t n_bytes;
    void *buf; /* aligned to STORE_ALIGN, store_read_room bytes; in huge pages (mem_map) a drive may be twice as fast */
    void *user; /* for the caller */

    const void *bytes; /* out: where in buf the range begins */
    int failure;       /* out: 0 if the range arrived whole, else a code for store_read_error */

    /* for the queue */
    size_t n_done;    /* bytes that arrived so far, counted from the beginning of buf */
    int64_t start_ns; /* when the read began */
    struct store_read *next;
};

struct store_queue;

enum store_engine { STORE_ENGINE_AUTO, STORE_ENGINE_IO_URING, STORE_ENGINE_PREAD };
enum store_direct { STORE_DIRECT_AUTO, STORE_DIRECT_ON, STORE_DIRECT_OFF };

struct store_queue_params {
    int depth;                /* the most reads in flight; others wait in the queue. 0: STORE_DEPTH */
    enum store_engine engine; /* AUTO: io_uring, or else threads with pread */
    enum store_direct direct; /* whether to bypass the page cache; AUTO: if the file system permits it */
};

enum { STORE_DEPTH = 32, STORE_MAX_DEPTH = 1024 };

/* Fails when the engine (unless AUTO) or DIRECT_ON is not available. p NULL: the store's store_set_queue_params, or all
 * zeros without. */
MUST_USE err_code store_queue_open(struct store_queue **out, struct store *s, const struct store_queue_params *p,
                                   struct err *e);
void store_set_queue_params(struct store *s, const struct store_queue_params *p);
struct store_queue_params store_get_queue_params(const struct store *s);
/* Waits for what is in flight, and forgets what was not collected. */
void store_queue_close(struct store_queue **q);

/* Never fails and never waits: errors come with the collected reads. Reads start in the order in which they are given.
 */
void store_queue_submit(struct store_queue *q, struct store_read *const *reads, size_t n);

/* Collects up to max reads that have ended, in any order; returns how many. wait: waits until there is at least one,
 * unless nothing is in flight. */
size_t store_queue_collect(struct store_queue *q, struct store_read **done, size_t max, bool wait);

/* Words for how it reads: "io_uring, O_DIRECT" or "pread threads, page cache (O_DIRECT: refused by ...)". The queue
 * owns them. */
const char *store_queue_engine(const struct store_queue *q);

/* Returns the error of a read that failed, with a sentence. */
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

/* The number of layers of the model (blk.N), and the routed experts of each; borrowed from the store. */
int store_n_layers(const struct store *s);
const struct store_layer *store_get_layer(const struct store *s, int layer);

/* Adds the directories of a prepared store (manifest.h) to a store that was opened from a GGUF. An expert is then read
 * from the fastest of the directories that have it, or from the GGUF if none has. images [store_n_layers]: how the
 * device wants each layer's experts to lie. ERR_FORMAT: the prepared store is of another model, or in other layouts. To
 * be called once, and before any queue is opened; after a failure the store can only be closed. The log (may be NULL;
 * borrowed) is told when a drive fails or slows down. */
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
    bool packed; /* the parts are a slot's image in the device's layouts, aligned to STORE_ALIGN, so that they can be
                    read straight into a slot */
    int copy;    /* the directory that they are in; -1: the GGUF */
};

/* Where an expert's bytes are best read from now. With copies on several drives the answer follows the drives' speeds,
 * so call this again for each read. */
void store_expert_blob(struct store *s, int layer, int expert, struct store_blob *out);

/* Checks one matrix's bytes against its checksum, if it has one. ERR_FORMAT: they are damaged; the sentence names the
 * file, the layer and the expert. */
MUST_USE err_code store_blob_check(const struct store *s, int layer, int expert, const struct store_blob *b,
                                   enum expert_matrix matrix, const void *bytes, struct err *e);

/* To be called when a blob could not be read or failed its check, with the reason. True: there is another copy, so call
 * store_expert_blob again. False: there is none, and the error stands. */
bool store_expert_retry(struct store *s, int layer, int expert, const struct store_blob *b, const struct err *why);

#endif
