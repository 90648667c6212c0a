/* What the parts of quantize share: the plan, and how its pieces are made. */
#ifndef JOBS_QUANTIZE_INTERNAL_H
#define JOBS_QUANTIZE_INTERNAL_H

#include <pthread.h>

#include "base/pool.h"
#include "gguf/gguf_facts.h"
#include "jobs/imatrix.h"
#include "jobs/quantize.h"
#include "jobs/quantize_part.h"
#include "quant/quant_encode.h"
#include "store/store.h"

struct quantize_sums {
    double error, size; /* of (weight - decoded)^2 and weight^2 */
    uint64_t n_weight, n_byte;
};

/* A tensor. It is made in pieces of whole rows. */
struct tensor_job {
    const struct gguf_tensor *t;
    const struct quant_info *to, *wanted; /* wanted: NULL, or what does not divide the rows */
    size_t source_row, dst_row;           /* bytes */
    uint64_t n_row, piece_rows, off;      /* off: in the file that is made */
    size_t first_piece, n_piece;
    struct quantize_sums sums;
    /* changed under the lock */
    size_t n_left; /* pieces */
    bool is_asked; /* for importances */
    float *importance;
    uint64_t n_matrix;
};

struct quantize {
    const struct quantize_params *params;
    FILE *report;
    struct gguf *g;
    struct store *store;
    struct imatrix *imatrix;
    struct mix *mix;
    struct gguf_writer *writer;
    struct quant_tables *tables;
    struct pool *pool;
    struct tensor_job *jobs; /* one a tensor */
    size_t n_job, n_piece;   /* n_piece: of all */
    size_t piece_bytes;      /* the most that a piece has, in the source or as it is made */
    uint64_t n_float;        /* the most that are encoded at a time */
    char *work;              /* of the threads: work_bytes each */
    size_t work_bytes;
    struct quantize_part part;

    pthread_mutex_t lock; /* of what follows */
    bool has_lock, stop;
    uint64_t done, found, total; /* source bytes */
    size_t n_reported;           /* tensors */
    struct quantize_sums by_use[GGUF_N_USE];
    uint64_t n_poor, n_missing;
    err_code code;
    struct err err; /* the first failure */
};

enum {
    PIECE_WEIGHTS = 1 << 18,  /* about as many make a piece */
    MAX_ROW_WEIGHTS = 1 << 22 /* a thread has two rows in memory, as floats; real ones stay below 300,000 */
};

/* Makes all pieces, those that are there already excepted, and calls `finished` for each tensor in the file's order,
 * when it is done. */
MUST_USE err_code pieces_make(struct quantize *z, void (*finished)(struct quantize *z, const struct tensor_job *j),
                              struct err *e);

#endif
