#include <float.h>
#include <math.h>
#include <stddef.h>

#include "sample/sample.h"

moebius_sampler_options sampler_default_options(void)
{
    static const char *const breakers[] = {"\n", ":", "\"", "*"};
    return (moebius_sampler_options){.temperature = 0.8f,
                                     .top_k = 40,
                                     .typical_p = 1,
                                     .top_p = 0.95f,
                                     .min_p = 0.05f,
                                     .xtc_threshold = 0.1f,
                                     .mirostat_tau = 5,
                                     .mirostat_eta = 0.1f,
                                     .repeat_penalty = 1,
                                     .repeat_last_n = 64,
                                     .dry_base = 1.75f,
                                     .dry_allowed_length = 2,
                                     .dry_last_n = -1,
                                     .dry_breakers = breakers,
                                     .n_dry_breakers = sizeof breakers / sizeof *breakers};
}

/* What a number in the options may be. */
struct range {
    const char *name;
    size_t offset; /* in moebius_sampler_options */
    double min, max;
    const char *expected; /* the same in words */
};

#define AT(field) offsetof(moebius_sampler_options, field)

static const struct range floats[] = {
    {"the temperature", AT(temperature), 0, FLT_MAX, "a number from 0 up"},
    {"typical-p", AT(typical_p), 0, 1, "from 0 to 1 (all tokens)"},
    {"top-p", AT(top_p), 0, 1, "from 0 to 1 (all tokens)"},
    {"min-p", AT(min_p), 0, 1, "from 0 (all tokens) to 1"},
    {"the probability of XTC", AT(xtc_probability), 0, 1, "from 0 (off) to 1"},
    {"the threshold of XTC", AT(xtc_threshold), 0, 1, "from 0 to 1"},
    {"Mirostat's tau", AT(mirostat_tau), 0, FLT_MAX, "a number from 0 up"},
    {"Mirostat's eta", AT(mirostat_eta), 0, FLT_MAX, "a number from 0 up"},
    {"the repetition penalty", AT(repeat_penalty), FLT_TRUE_MIN, FLT_MAX, "more than 0 (1 is none)"},
    {"the presence penalty", AT(presence_penalty), -FLT_MAX, FLT_MAX, "a number (0 is none)"},
    {"the frequency penalty", AT(frequency_penalty), -FLT_MAX, FLT_MAX, "a number (0 is none)"},
    {"DRY's multiplier", AT(dry_multiplier), 0, FLT_MAX, "a number from 0 (off) up"},
    {"DRY's base", AT(dry_base), 1, FLT_MAX, "a number from 1 up"},
};

static const struct range ints[] = {
    {"top-k", AT(top_k), 0, INT32_MAX, "0 (all tokens) or more"},
    {"the number of tokens that penalties look back", AT(repeat_last_n), -1, SAMPLER_MAX_LAST_N,
     "from -1 (all) to 1048576"},
    {"the number of tokens that DRY looks back", AT(dry_last_n), -1, SAMPLER_MAX_LAST_N, "from -1 (all) to 1048576"},
    {"DRY's allowed length", AT(dry_allowed_length), 1, INT32_MAX, "1 or more"},
    {"the number of DRY's sequence breakers", AT(n_dry_breakers), 0, INT32_MAX, "0 or more"},
    {"the number of logit biases", AT(n_logit_biases), 0, INT32_MAX, "0 or more"},
};

/* NaN is in no range. */
static bool is_within(const struct range *r, double value)
{
    return value >= r->min && value <= r->max;
}

static err_code check_floats(const moebius_sampler_options *o, struct err *e)
{
    for (const struct range *r = floats; r < floats + sizeof floats / sizeof *floats; r++) {
        double value = *(const float *)((const char *)o + r->offset);
        if (!is_within(r, value))
            return err_set(e, ERR_USAGE, "%s is %g; it must be %s", r->name, value, r->expected);
    }
    return ERR_OK;
}

static err_code check_ints(const moebius_sampler_options *o, struct err *e)
{
    for (const struct range *r = ints; r < ints + sizeof ints / sizeof *ints; r++) {
        int value = *(const int *)((const char *)o + r->offset);
        if (!is_within(r, value))
            return err_set(e, ERR_USAGE, "%s is %d; it must be %s", r->name, value, r->expected);
    }
    return ERR_OK;
}

static err_code check_bias(const moebius_logit_bias *b, int32_t n_vocab, struct err *e)
{
    if (b->id < 0 || b->id >= n_vocab)
        return err_set(e, ERR_USAGE, "a logit bias is for token %d; the vocabulary has tokens 0 to %d", (int)b->id,
                       (int)n_vocab - 1);
    if (!(b->bias <= FLT_MAX))
        return err_set(e, ERR_USAGE, "the logit bias of token %d is %g; it must be a number, or minus infinity",
                       (int)b->id, b->bias);
    return ERR_OK;
}

err_code sampler_check_options(const moebius_sampler_options *o, int32_t n_vocab, struct err *e)
{
    TRY(check_floats(o, e));
    TRY(check_ints(o, e));
    for (int i = 0; i < o->n_logit_biases; i++)
        TRY(check_bias(&o->logit_biases[i], n_vocab, e));
    if (o->mirostat != 0 && o->mirostat != 2)
        return err_set(e, ERR_USAGE, "Mirostat is %d; it must be 0 (off) or 2 (its second version)", o->mirostat);
    if (n_vocab < 1)
        return err_set(e, ERR_USAGE, "a sampler needs a vocabulary of at least one token, not %d", n_vocab);
    return ERR_OK;
}
