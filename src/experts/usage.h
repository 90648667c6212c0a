/* How often each expert was chosen; one run leaves it for the next, which fills its slots by it.
 *
 * A text file, which says which model it is about:
 *
 *   moebius usage 1
 *   model 0123456789abcdef        fingerprint of the GGUF
 *   layers 12 experts 128         MoE layers, experts of the layer with most
 *   17 0 3 ...                    a line for each layer, a count for each expert
 *
 * Refused with a sentence: other formats and versions, another model, missing, surplus or impossible numbers, more than
 * model_limits.h allows. */
#ifndef EXPERTS_USAGE_H
#define EXPERTS_USAGE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

struct usage {
    int n_layer;
    int64_t n_expert;
    uint64_t *count; /* [n_layer][n_expert], owned */
    uint64_t *total; /* [n_layer] sums of the counts, owned */
};

MUST_USE err_code usage_create(struct usage *u, int n_layer, int64_t n_expert, struct err *e);
void usage_close(struct usage *u);

/* Counts n choices of a layer's experts. */
void usage_add(struct usage *u, int layer, const int32_t *ids, size_t n);

/* u += other, of the same shape. A layer's counts are halved first if they have grown large, so that the past fades. */
void usage_merge(struct usage *u, const struct usage *other);

/* The share of a layer's tokens, n_used choices each, that chose an expert; 0 when nothing is known. */
double usage_rate(const struct usage *u, int layer, int32_t expert, int64_t n_used);

/* Parses n bytes of text; `name` is for messages. n_layer and n_expert: what is expected; 0: any. The file may have up
 * to LIMIT_MTP layers more or less, as a model's layers for multi-token prediction are loaded in some runs only:
 * surplus counts are dropped, and missing ones are 0. The caller closes *u. */
MUST_USE err_code usage_parse(struct usage *u, const char *text, size_t n, const char *name, uint64_t fingerprint,
                              int n_layer, int64_t n_expert, struct err *e);

/* Writes what usage_parse reads. */
void usage_print(const struct usage *u, uint64_t fingerprint, FILE *f);
/* The same to a file, which appears only when it is complete. */
MUST_USE err_code usage_save(const struct usage *u, const char *path, uint64_t fingerprint, struct err *e);

#endif
