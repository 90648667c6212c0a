/* Candidates: the tokens that may still be drawn, and the steps that drop some of them.
 *
 * A step takes c[0..n), n >= 1, moves those that stay to the front, and returns how many they are, at least 1.
 * Probabilities are those among c[0..n), at temperature 1. Ties go to the lowest id. Nothing allocates memory. */
#ifndef SAMPLE_CANDIDATES_H
#define SAMPLE_CANDIDATES_H

#include <stdint.h>

#include "base/random.h"

struct candidate {
    float logit;  /* finite */
    float key;    /* what candidates are ranked by, the largest first: the logit, but within typical-p */
    float weight; /* exp((logit - the largest logit) / temperature): 1 for the likeliest */
    int32_t id;
};

/* Top-k sampling (Fan et al. 2018, arXiv 1805.04833). Fills c with the k best tokens of logits [n_vocab] that may be
 * drawn, in no useful order; returns how many. */
int32_t candidates_collect(struct candidate *c, int32_t k, const float *logits, int32_t n_vocab);

/* Fills the weights at a temperature; returns their sum. */
double candidates_weigh(struct candidate *c, int32_t n, float temperature);

/* The place of one of c[0..n) in proportion to its weight; `sum` is that of all. */
int32_t candidates_draw(const struct candidate *c, int32_t n, double sum, struct random *random);

/* The fewest, best by key, whose weights are `target` or more in sum. */
int32_t candidates_keep_weight(struct candidate *c, int32_t n, double target);

/* Locally typical sampling (Meister et al. 2022, arXiv 2202.00666): the fewest tokens with probability `share` whose
 * information, -log p, is nearest to its mean over all, the entropy. Of equally near ones the lowest id comes first. */
int32_t candidates_keep_typical(struct candidate *c, int32_t n, float share);

/* Nucleus sampling (Holtzman et al. 2019, arXiv 1904.09751): the fewest likeliest tokens with probability `share`. */
int32_t candidates_keep_top_p(struct candidate *c, int32_t n, float share);

/* Min-p (Nguyen et al. 2024, arXiv 2407.01082): tokens at least `share` times as likely as the likeliest. */
int32_t candidates_keep_min_p(struct candidate *c, int32_t n, float share);

/* XTC, "exclude top choices" (P. E. Weidmann 2024, oobabooga/text-generation-webui pull request 6335): of the tokens
 * with a probability of `threshold` or more only the least likely stays, of equal ones that with the highest id. */
int32_t candidates_exclude_top(struct candidate *c, int32_t n, float threshold);

/* Mirostat 2 (Basu et al. 2020, arXiv 2007.14966, as in its authors' simpler second version): tokens whose surprise,
 * -log2 of the probability by the weights, is at most `max_surprise`; the likeliest in any case. *sum: the sum of the
 * weights, before and after. */
int32_t candidates_keep_unsurprising(struct candidate *c, int32_t n, double max_surprise, double *sum);

#endif
