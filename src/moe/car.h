/* Cache-aware routing (CAR): an expert that the router chose and that is not in memory may be substituted by one that
 * is. It trades the model's own answer for reads that need not be waited for, so it is off unless asked for.
 *
 * Let s be the router's scores of all experts of a layer on one scale, without the bias that counts for the choice
 * alone: the softmax over all experts, or the sigmoid of each; 0 for experts outside the groups that the router kept.
 * For each chosen expert e that is not at hand, in rank order:
 *
 *     c = the expert with the highest s of those at hand that are neither chosen nor substitutes already
 *         (ties to the lower id; experts with s = 0 never)
 *     r = min(1, s[c] / s[e])
 *     c substitutes e if r >= threshold; else e stays, and is read
 *
 * The weights then come from s alone: s[e] of an expert that stays, s[c] of a substitute (with damping s[c] * r),
 * divided by their sum and scaled as the router does with its own, once (backend/route.h).
 *
 * A token whose experts all stay keeps the router's weights to the bit. Tokens of a prompt have no substitutes: a batch
 * reads each expert once for all of them, so that substitutes would save hardly a read.
 *
 * Nothing here does I/O or keeps state: experts_look says which experts are at hand. */
#ifndef MOE_CAR_H
#define MOE_CAR_H

#include <stdbool.h>
#include <stdint.h>

struct car {
    float threshold;    /* of r; off unless above 0 and below 1 */
    bool damp;          /* a substitute's weight is multiplied by r */
    int64_t n_warmup;   /* the first tokens of a text, when little is in memory, have no substitutes */
    int64_t n_protect;  /* nor have so many of the first and of the last MoE layers */
    int64_t n_backfill; /* how many substituted experts may be read in idle time, a token (experts.h) */
};

bool car_is_on(const struct car *c);

/* Whether a sampled token at a position of its text may have substitutes in a layer (of n_layer MoE layers). */
bool car_applies(const struct car *c, int64_t pos, int layer, int n_layer);

/* Puts substitutes into a token's ids [n_used], best first, and returns how many there are. value [n_used]: what each
 * expert weighs before weights are divided and scaled. ratio [n_used]: r of a substitute, else 1. */
int64_t car_substitute(const struct car *c, const float *scores, const bool *at_hand, int64_t n_expert, int64_t n_used,
                       int32_t *ids, float *value, float *ratio);

#endif
