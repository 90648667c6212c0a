/* Importance matrices: for each column of a weight matrix, the mean square of the activations that meet it, gathered
 * over a text. The file is llama.cpp's: a GGUF with, for each weight NAME, sums of squares NAME.in_sum2 and numbers of
 * tokens NAME.counts, one matrix each for every routed expert. */
#ifndef JOBS_IMATRIX_H
#define JOBS_IMATRIX_H

#include "base/err.h"
#include "gguf/gguf.h"

struct imatrix;

/* Tokens whose worth of the experts' common mean every matrix is credited with, so that those which saw few are near
 * it. */
enum { IMATRIX_PRIOR_TOKENS = 16 };

MUST_USE err_code imatrix_open(struct imatrix **out, const char *path, struct err *e);
void imatrix_close(struct imatrix **m);

/* Which sums the file holds (store_fingerprint). */
MUST_USE err_code imatrix_fingerprint(struct imatrix *m, uint64_t *out, struct err *e);

/* Importances of a weight's columns: *out has *n_matrix rows (1, or one for each of its ne[2] * ne[3] matrices) of
 * ne[0] numbers, owned by the caller (mem_free); NULL when the file has none for it. *n_poor: matrices that saw fewer
 * tokens than the prior. Fails when shapes disagree or a number is negative or not finite. */
MUST_USE err_code imatrix_importance(struct imatrix *m, const struct gguf_tensor *weight, float **out,
                                     uint64_t *n_matrix, uint64_t *n_poor, struct err *e);

#endif
