/* Samplers: choose the next token from the logits of a model; and log-probabilities.
 *
 * The steps are, in this order: logit biases, repetition penalty with presence and frequency penalties, DRY; top-k,
 * typical-p, top-p, min-p, XTC; temperature, one draw. Those before top-k change logits, those up to XTC drop tokens,
 * by the probabilities at temperature 1 among what is left, so that the temperature never changes who may be drawn.
 * Temperature 0 takes the likeliest token after the penalties, and Mirostat draws in its own way after them. Logit
 * biases are those of OpenAI's API reference; the header of each other step says where it comes from.
 *
 * This room knows nothing of models and texts: it sees an array of floats and the ids that it is told were appended.
 * Options are those of the public header, which says what they mean; their strings are not looked at.
 *
 * Bad logits are no error: NaN and minus infinity mean "never", and when nothing else is left the pick is token 0, or
 * with a filter -1. */
#ifndef SAMPLE_SAMPLE_H
#define SAMPLE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "moebius/moebius.h"

enum { SAMPLER_MAX_LAST_N = 1 << 20 }; /* the most tokens that a penalty looks back */

moebius_sampler_options sampler_default_options(void);
/* ERR_USAGE names the value that is out of its range. */
MUST_USE err_code sampler_check_options(const moebius_sampler_options *o, int32_t n_vocab, struct err *e);

/* A sampler is one text's: its random stream and its tokens. Not thread-safe; any number may exist.
 *
 * Copies what is given. breaks [n_vocab]: which tokens end a sequence for DRY; NULL: none. ERR_USAGE as above,
 * ERR_NOMEM. On failure *out is NULL. */
MUST_USE err_code sampler_create(moebius_sampler **out, const moebius_sampler_options *options, const bool *breaks,
                                 int32_t n_vocab, struct err *e);
/* Another one in the same state, which goes its own way from now on. ERR_NOMEM. */
MUST_USE err_code sampler_clone(moebius_sampler **out, const moebius_sampler *s, struct err *e);
void sampler_close(moebius_sampler **s); /* accepts NULL and half-open samplers */
int32_t sampler_n_vocab(const moebius_sampler *s);

/* Chooses the next token from logits [n_vocab], which are only read. Allocates nothing. The same seed, logits
 * and history give the same tokens. */
int32_t sampler_pick(moebius_sampler *s, const float *logits);

/* Who says which tokens may be picked. */
struct sampler_filter {
    bool (*allows)(void *user, int32_t id);
    void (*mask)(void *user, uint64_t *bits); /* sets the bits of those that may be, and clears the others */
    void (*accept)(void *user, int32_t id);   /* hears of each token that was appended */
    void *user;
};

/* What moebius_sampler_set_matcher promises; filter is copied, NULL: none. ERR_NOMEM, and the one before stays. */
MUST_USE err_code sampler_set_filter(moebius_sampler *s, const struct sampler_filter *filter, struct err *e);

/* Appends a token, picked or given, to the history. Ids outside the vocabulary are ignored. Allocates nothing. */
void sampler_accept(moebius_sampler *s, int32_t id);

void sampler_forget(moebius_sampler *s);                /* the text begins again; the random stream goes on */
void sampler_reseed(moebius_sampler *s, uint64_t seed); /* starts another random stream; the history stays */

/* What moebius_logprobs promises. */
double sampler_logprobs(const float *logits, int32_t n_vocab, int32_t id, moebius_logprob *top, int n_top);

#endif
