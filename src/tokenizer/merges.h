/* The merges of a vocabulary: which two symbols join, how early, and into what. */
#ifndef TOKENIZER_MERGES_H
#define TOKENIZER_MERGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/siphash.h"
#include "tokenizer/vocab.h"

struct merge_rule {
    uint32_t left, right; /* symbols; left SYMBOL_NONE: an empty slot */
    uint32_t rank;        /* position in the file: lower joins first */
    uint32_t merged;
};

struct merges {
    struct merge_rule *slots; /* open addressing, at most half full */
    size_t n_slots;           /* a power of two, or 0 */
    struct siphash_key key;
};

/* Reads tokenizer.ggml.merges, "LEFT RIGHT" each, adding symbols to the vocabulary for strings that are no
 * tokens. Entries without a space join nothing and are skipped; of equal entries the first counts. */
MUST_USE err_code merges_open(struct merges *m, struct vocab *v, const struct gguf *g, bool need, struct err *e);
void merges_close(struct merges *m);

const struct merge_rule *merges_find(const struct merges *m, uint32_t left, uint32_t right); /* or NULL */

#endif
