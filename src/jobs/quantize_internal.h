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
    double error;      /* sum of (weight - decoded)^2 */
    double size;       /* sum of weight^2 */
    uint64_t n_weight; /* weights */
    uint64_t n_byte;   /* their bytes in the file that is made */
};

/* A tensor that is made, in pieces of whole rows. */
struct tensor_job {
    const struct gguf_tensor *t; /* in the source */
    const struct quant_info *to; /* the type that it gets */
    const struct quant_info
        *wanted;                 /* the type that it should have had, but whose blocks don't divide the rows; or NULL */
    size_t source_row, dst_row;  /* bytes of a row */
    uint64_t n_row, piece_rows;  /* rows of the tensor, and of a piece */
    uint64_t off;                /* where it begins in the file that is made */
    size_t first_piece, n_piece; /* its pieces among all */
    struct quantize_sums sums;
    /* changed under the lock */
    size_t n_left;     /* pieces that are not done */
    bool is_asked;     /* importances were looked up */
    float *importance; /* [n_matrix][ne[0]], owned; NULL: there are none */
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
    struct tensor_job *jobs; /* [n_job], one for each tensor */
    size_t n_job;
    size_t n_piece;     /* pieces of all tensors */
    size_t piece_bytes; /* the most bytes that a piece has, in the source or as it is made */
    uint64_t n_float;   /* the most weights that are encoded at a time */
    char *work;         /* work_bytes for each thread */
    size_t work_bytes;
    struct quantize_part part;

    pthread_mutex_t lock; /* protects what follows */
    bool has_lock, stop;
    uint64_t done, found, total; /* source bytes, as progress gets them */
    size_t n_reported;           /* tensors in the report */
    struct quantize_sums by_use[GGUF_N_USE];
    uint64_t n_poor;    /* matrices whose importances come from few tokens */
    uint64_t n_missing; /* tensors without importances */
    err_code code;
    struct err err; /* the first failure */
};

enum {
    PIECE_WEIGHTS = 1 << 18,  /* weights of a piece, about */
    MAX_ROW_WEIGHTS = 1 << 22 /* a thread has two rows in memory, as floats; real ones stay below 300,000 */
};

/* Makes all pieces that are not there already. Calls `finished` for each tensor when it is done, in the file's order.
 */
MUST_USE err_code pieces_make(struct quantize *z, void (*finished)(struct quantize *z, const struct tensor_job *j),
                              struct err *e);

#endif
