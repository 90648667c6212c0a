/* DRY, "don't repeat yourself" (P. E. Weidmann 2024, oobabooga/text-generation-webui pull request 5677): a token that
 * would go on as an earlier part of the text did, after at least allowed_length tokens that are the same there and at
 * the text's end, pays multiplier * base^(number of those tokens - allowed_length). The longest such part counts. Equal
 * tokens are not counted beyond one that breaks sequences, and such a token never pays. */
#ifndef SAMPLE_DRY_H
#define SAMPLE_DRY_H

#include <stdbool.h>
#include <stdint.h>

#include "sample/history.h"

struct dry {
    float multiplier, base;
    int allowed_length;
    int window;      /* how many tokens at the end of the text are looked at */
    bool *breaks;    /* [n_vocab], which tokens break sequences; owned */
    int32_t *recent; /* [window], the text backwards; owned */
    int32_t *same;   /* [window], how many tokens are the same from here and from 0 on, backwards; owned */
    int32_t
        *longest; /* [n_vocab], zeros but within dry_penalise: of a token, the most that is the same before it; owned */
};

/* breaks may be NULL: none does. False: no memory. Close it after a failure, too. */
bool dry_open(struct dry *d, const bool *breaks, int32_t n_vocab);
void dry_close(struct dry *d);

/* Changes the logits of tokens that would repeat a sequence. Takes time in proportion to the window. */
void dry_penalise(struct dry *d, const struct history *h, float *logits);

#endif
