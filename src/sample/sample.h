/* Samplers: choose the next token from the logits of a model.
 *
 * The steps are, in this order: repetition penalty, top-k, top-p, min-p, temperature, one draw. Top-p and
 * min-p look at the probabilities at temperature 1, so the temperature never changes who may be drawn. This
 * room knows nothing of models and texts: it sees an array of floats and the ids that it is told were
 * appended.
 *
 * Bad logits are no error: NaN and minus infinity mean "never", and when nothing else is left the pick is
 * token 0. */
#ifndef SAMPLE_SAMPLE_H
#define SAMPLE_SAMPLE_H

#include <stdint.h>

#include "base/err.h"

enum { SAMPLER_MAX_LAST_N = 1 << 20 };

struct sampler_params {
    float temperature;    /* >= 0, logits are divided by it; 0: always the likeliest token, ties to the lowest id */
    int top_k;            /* >= 0, the k likeliest are kept, ties to the lowest ids; 0: all */
    float top_p;          /* 0..1, the fewest likeliest that together have this probability are kept, at least one */
    float min_p;          /* 0..1, tokens less likely than this share of the likeliest are dropped */
    float repeat_penalty; /* > 0, makes recent tokens less likely; 1: no penalty */
    int repeat_last_n;    /* 0..SAMPLER_MAX_LAST_N, how many tokens count as recent */
    uint64_t seed;
};

struct sampler_params sampler_default_params(void);

/* One text's sampler: its random stream and its recent tokens. Not thread-safe; any number may exist. */
struct sampler;

/* Copies *params. ERR_USAGE names the value that is out of its range. On failure *out is NULL. */
MUST_USE err_code sampler_create(struct sampler **out, const struct sampler_params *params, int32_t n_vocab,
                                 struct err *e);
void sampler_close(struct sampler **s); /* accepts NULL and half-open samplers */

/* Chooses the next token from logits [n_vocab], which are only read. Allocates nothing. The same seed, logits
 * and history give the same tokens. */
int32_t sampler_pick(struct sampler *s, const float *logits);

/* Appends a token, picked or given, to the history. Ids outside the vocabulary are ignored. */
void sampler_accept(struct sampler *s, int32_t id);

/* Back to the state after sampler_create: no history, the random stream at its start. */
void sampler_reset(struct sampler *s);

#endif
