/* The public face of sample/, and what DRY's sequence breakers mean in a vocabulary. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "engine/sized.h"
#include "sample/sample.h"

/* ---- sequence breakers --------------------------------------------------------------------------------------- */

/* Control tokens, which have no text of their own, frame messages: what repeats them repeats the form of a chat. */
static void mark_control_tokens(const struct tokenizer *t, bool *breaks)
{
    for (int32_t id = 0; id < tokenizer_n_vocab(t); id++) {
        size_t n;
        tokenizer_piece(t, id, false, &n);
        breaks[id] |= n == 0;
    }
}

/* Returns whether any token contains the text. */
static bool mark_tokens_with(const struct tokenizer *t, const char *text, bool *breaks)
{
    bool found = false;
    for (int32_t id = 0; id < tokenizer_n_vocab(t); id++) {
        size_t n;
        const char *piece = tokenizer_piece(t, id, false, &n);
        if (memmem(piece, n, text, strlen(text)))
            found = breaks[id] = true;
    }
    return found;
}

static err_code mark_last_token(const struct tokenizer *t, const char *text, bool *breaks, struct err *e)
{
    struct token_list list = {0};
    err_code code = tokenizer_encode(t, text, strlen(text), 0, &list, e);
    if (code == ERR_OK && list.n > 0)
        breaks[list.ids[list.n - 1]] = true;
    token_list_close(&list);
    return code;
}

/* breaks [n_vocab], of zeros. */
static err_code mark_breakers(const struct tokenizer *t, const moebius_sampler_options *o, bool *breaks, struct err *e)
{
    mark_control_tokens(t, breaks);
    for (int i = 0; i < o->n_dry_breakers; i++) {
        const char *text = o->dry_breakers[i];
        if (!*text)
            return err_set(e, ERR_USAGE, "a sequence breaker of DRY is empty; it must be a text");
        if (!mark_tokens_with(t, text, breaks))
            TRY(mark_last_token(t, text, breaks, e));
    }
    return ERR_OK;
}

/* ---- samplers ------------------------------------------------------------------------------------------------ */

void moebius_default_sampler_options_sized(moebius_sampler_options *options, size_t options_bytes)
{
    const moebius_sampler_options o = sampler_default_options();
    sized_give(options, options_bytes, &o, sizeof o);
}

/* Puts the tokens that the model's file forbids beside the options' biases, in a list that is the caller's. */
static err_code forbid_tokens(const moebius_engine *engine, moebius_sampler_options *o, moebius_logit_bias **list,
                              struct err *e)
{
    const struct tokenizer *t = engine->vocab.tokenizer;
    size_t n = (size_t)(o->n_logit_biases > 0 ? o->n_logit_biases : 0), n_own = n;
    int32_t n_vocab = moebius_n_vocab(engine);
    *list = NULL;
    for (int32_t id = 0; id < n_vocab; id++)
        n += tokenizer_is_suppressed(t, id);
    if (n == n_own)
        return ERR_OK;
    *list = mem_calloc(n, sizeof **list);
    if (!*list)
        return err_nomem(e, n * sizeof **list, "a sampler");
    if (n_own)
        memcpy(*list, o->logit_biases, n_own * sizeof **list);
    for (int32_t id = 0; id < n_vocab; id++)
        if (tokenizer_is_suppressed(t, id))
            (*list)[n_own++] = (moebius_logit_bias){id, -INFINITY};
    o->logit_biases = *list;
    o->n_logit_biases = (int)n;
    return ERR_OK;
}

static err_code open_sampler(moebius_sampler **out, const moebius_engine *engine, const moebius_sampler_options *o,
                             struct err *e)
{
    if (o->dry_multiplier == 0)
        return sampler_create(out, o, NULL, moebius_n_vocab(engine), e);
    size_t n_vocab = (size_t)moebius_n_vocab(engine);
    bool *breaks = mem_calloc(n_vocab, sizeof *breaks);
    err_code code = breaks ? mark_breakers(engine->vocab.tokenizer, o, breaks, e) : err_nomem(e, n_vocab, "a sampler");
    if (code == ERR_OK)
        code = sampler_create(out, o, breaks, (int32_t)n_vocab, e);
    mem_free(breaks);
    return code;
}

moebius_status moebius_sampler_open_sized(moebius_sampler **out, const moebius_engine *engine,
                                          const moebius_sampler_options *options, size_t options_bytes,
                                          moebius_error *error)
{
    struct err e = {0};
    moebius_sampler_options known = sampler_default_options();
    *out = NULL;
    err_code code = sized_take(&known, sizeof known, options, options_bytes, "sampler options", &e);
    moebius_logit_bias *list = NULL;
    if (code == ERR_OK)
        code = forbid_tokens(engine, &known, &list, &e);
    if (code == ERR_OK)
        code = open_sampler(out, engine, &known, &e);
    mem_free(list);
    return engine_status(code, &e, error);
}

moebius_status moebius_sampler_clone(moebius_sampler **out, const moebius_sampler *sampler, moebius_error *error)
{
    struct err e = {0};
    return engine_status(sampler_clone(out, sampler, &e), &e, error);
}

void moebius_sampler_close(moebius_sampler **sampler)
{
    sampler_close(sampler);
}

int32_t moebius_sampler_pick(moebius_sampler *sampler, const float *logits)
{
    return sampler_pick(sampler, logits);
}

void moebius_sampler_accept(moebius_sampler *sampler, int32_t id)
{
    sampler_accept(sampler, id);
}

void moebius_sampler_forget(moebius_sampler *sampler)
{
    sampler_forget(sampler);
}

void moebius_sampler_reseed(moebius_sampler *sampler, uint64_t seed)
{
    sampler_reseed(sampler, seed);
}

double moebius_logprobs(const float *logits, int32_t n_vocab, int32_t id, moebius_logprob *top, int n_top)
{
    return sampler_logprobs(logits, n_vocab, id, top, n_top);
}

/* ---- matchers ------------------------------------------------------------------------------------------------ */

static bool matcher_allows(void *user, int32_t id)
{
    return moebius_matcher_allows(user, id);
}

static void matcher_mask(void *user, uint64_t *bits)
{
    moebius_matcher_mask(user, bits);
}

static void matcher_accept(void *user, int32_t id)
{
    moebius_matcher_accept(user, id);
}

moebius_status moebius_sampler_set_matcher(moebius_sampler *sampler, moebius_matcher *matcher, moebius_error *error)
{
    struct err e = {0};
    const struct sampler_filter filter = {matcher_allows, matcher_mask, matcher_accept, matcher};
    int32_t n = sampler_n_vocab(sampler);
    if (matcher && matcher_n_vocab(matcher) != n)
        return engine_status(err_set(&e, ERR_USAGE,
                                     "a matcher over a vocabulary of %d tokens: expected the engine's, of %d",
                                     (int)matcher_n_vocab(matcher), (int)n),
                             &e, error);
    return engine_status(sampler_set_filter(sampler, matcher ? &filter : NULL, &e), &e, error);
}
