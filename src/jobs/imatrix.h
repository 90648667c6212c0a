/* Importance matrices: for each column of a weight matrix, the mean square of the activations that meet it, gathered
 * over a text. The file is llama.cpp's: a GGUF with, for each weight NAME, sums of squares NAME.in_sum2 and numbers of
 * tokens NAME.counts, one matrix each for every routed expert. */
#ifndef JOBS_IMATRIX_H
#define JOBS_IMATRIX_H

#include "base/err.h"
#include "gguf/gguf.h"

struct imatrix;

/* Each expert's mean square is pulled towards the mean of all experts, as if it had seen so many more tokens that were
 * average: an expert that saw few tokens is then close to that mean. */
enum { IMATRIX_PRIOR_TOKENS = 16 };

MUST_USE err_code imatrix_open(struct imatrix **out, const char *path, struct err *e);
void imatrix_close(struct imatrix **m);

/* A hash that tells the file's sums from others (store_fingerprint). */
MUST_USE err_code imatrix_fingerprint(struct imatrix *m, uint64_t *out, struct err *e);

/* The importances of a weight's columns: *out [*n_matrix][ne[0]], owned by the caller (mem_free), with one row or one
 * for each of the weight's ne[2] * ne[3] matrices; NULL when the file has none for it. *n_poor: matrices that saw fewer
 * than IMATRIX_PRIOR_TOKENS. ERR_FORMAT when shapes disagree or a number is negative or not finite. */
MUST_USE err_code imatrix_importance(struct imatrix *m, const struct gguf_tensor *weight, float **out,
                                     uint64_t *n_matrix, uint64_t *n_poor, struct err *e);

#endif
