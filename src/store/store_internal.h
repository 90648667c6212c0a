/* What store implementations and queues are made of. Only this room includes it. */
#ifndef STORE_INTERNAL_H
#define STORE_INTERNAL_H

#include <stdatomic.h>
#include <sys/types.h>

#include "store/store.h"

struct store_ops {
    /* Reads all of a range that lies within its file. Returns 0, or a failure as in struct store_read. May be called by
     * any thread. */
    int (*read)(struct store *s, const struct store_range *r);
    /* Advice that these ranges are read next; may be NULL. */
    void (*prefetch)(struct store *s, const struct store_range *ranges, size_t n);
    /* Puts into `out` what lies at a byte, such as " (tensor "NAME")", or leaves it alone. May be NULL. */
    void (*name)(const struct store *s, int file, uint64_t at, char *out, size_t n);
    /* Opens a queue of the store's own kind. NULL: queues read `files` with io_uring or with threads. */
    err_code (*queue_open)(struct store_queue **out, struct store *s, struct err *e);
    /* Releases everything, the struct included; accepts half-open stores. */
    void (*close)(struct store *s);
};

struct store_file {
    const char *path; /* for messages, too; borrowed */
    uint64_t n_bytes;
    int fd;
    int direct_fd;      /* the same file past the page cache; -1: the system refused */
    int direct_refusal; /* the errno of that refusal */
};

/* The first member of every implementation's struct. */
struct store {
    const struct store_ops *ops;
    const struct gguf *gguf; /* what the store was opened from; borrowed, may be NULL */
    int n_files;
    struct store_file *files;
    int n_layers;
    const struct store_layer *layers;
    struct store_queue_params queue_params;
    struct checksums *checksums; /* of the GGUF; NULL: there are none */
    struct store_copies *copies; /* the directories of a prepared store; NULL: none is attached */
    atomic_uint_fast64_t n_reads, n_bytes, n_ns;
};

/* Counts reads that arrived. */
void store_count(struct store *s, uint64_t n_reads, uint64_t n_bytes);

/* store_read.failure besides errno values */
enum {
    READ_ENDED = -1, /* the file ended within the range: it has become shorter */
    READ_BEYOND = -2 /* the range reaches beyond the file, or there is no such file */
};

/* 0 or READ_BEYOND. */
int store_check_range(const struct store *s, int file, uint64_t offset, size_t n_bytes);

/* ---- store_files.c ------------------------------------------------------------------------------------------- */

/* Close the file after a failure, too. */
MUST_USE err_code store_file_open(struct store_file *f, const char *path, struct err *e);
void store_file_close(struct store_file *f);

/* ---- store_copies.c: the directories of a prepared store ------------------------------------------------------ */

/* The best copy of an expert; false: none has it. */
bool copies_pick(struct store_copies *c, int layer, int expert, struct store_blob *out);
/* Notes that a copy of an expert failed: it is not picked again, nor is its directory when that fails too often. */
void copies_fail(struct store_copies *c, int layer, int expert, int copy, const struct err *why);
/* A read from a file begins; it ends. Files that belong to no directory are ignored. */
void copies_begin(struct store_copies *c, int file, size_t n_bytes);
void copies_end(struct store_copies *c, int file, size_t n_bytes, bool arrived);
/* Puts "layer 3, expert 5" into `out` for a byte of a directory's data; leaves it alone for other files. */
void copies_name(const struct store_copies *c, int file, uint64_t at, char *out, size_t n);
/* Counts bytes of a file that arrived other than through a queue. */
void copies_count(struct store_copies *c, int file, size_t n_bytes);
bool copies_place(struct store_copies *c, int copy, struct store_place *out);
void copies_close(struct store_copies *c);

/* ---- store_layers.c ------------------------------------------------------------------------------------------ */

/* The layers that a GGUF directory describes, *n of them, owned by the caller (mem_free). A layer whose tensors don't
 * fit each other counts as one without experts: the model's loader says what is wrong with it. */
MUST_USE err_code store_layers_find(const struct gguf *g, struct store_layer **out, int *n, struct err *e);

/* ---- queues: queue.c, queue_reads.c, and an engine each in queue_pool.c and queue_uring.c ---------------------- */

struct queue_ops {
    const char *name;
    void (*submit)(struct store_queue *q, struct store_read *const *reads, size_t n);
    size_t (*collect)(struct store_queue *q, struct store_read **done, size_t max, bool wait);
    void (*close)(struct store_queue *q); /* frees the struct, too */
};

/* The first member of every engine's struct. */
struct store_queue {
    const struct queue_ops *ops;
    struct store *store;
    bool direct;
    char engine[1024];
};

struct read_list {
    struct store_read *head, *tail;
};

void read_list_push(struct read_list *l, struct store_read *r);
struct store_read *read_list_pop(struct read_list *l); /* NULL: empty */

/* The rest of a read, to hand to pread or its like. */
struct read_piece {
    int fd;
    uint64_t offset;
    void *dst;
    size_t n_bytes;
};

/* Prepares a read that was submitted; false: it has ended already, because it is empty or can't be done. */
bool read_begin(const struct store_queue *q, struct store_read *r);
struct read_piece read_rest(const struct store_queue *q, const struct store_read *r);
/* Takes in the system's answer: bytes, 0 at the file's end, or a negative errno. True when the read has ended. */
bool read_advance(const struct store_queue *q, struct store_read *r, ssize_t result);

MUST_USE err_code queue_pool_open(struct store_queue **out, int depth, struct err *e);
MUST_USE err_code queue_uring_open(struct store_queue **out, int depth, struct err *e);

#endif
