/* The sampling options of commands that generate text. */
#ifndef CLI_SAMPLING_OPTIONS_H
#define CLI_SAMPLING_OPTIONS_H

#include "cli/options.h"
#include "moebius/moebius.h"

enum { SAMPLING_MAX_BIAS = 256 };

struct sampling_options {
    moebius_sampler_options sampler;              /* the defaults, and what options set directly */
    int64_t seed;                                 /* -1 until one is given or chosen */
    struct option_list bias_texts;                /* "ID+X,ID-X" */
    struct option_list breakers;                  /* empty: the defaults; "none": none */
    moebius_logit_bias biases[SAMPLING_MAX_BIAS]; /* [sampler.n_logit_biases] */
};

struct sampling_options cli_default_sampling(void);

/* Parses the options that were given as text. Called once, before the model is opened. */
MUST_USE err_code cli_check_sampling(struct sampling_options *o, struct err *e);

/* Makes the library's options, which borrow from *o. Chooses o->seed if none was given. */
MUST_USE err_code cli_sampler_options(struct sampling_options *o, moebius_sampler_options *out, struct err *e);
/* Opens a sampler with these options. */
MUST_USE err_code cli_open_sampler(struct sampling_options *o, const moebius_engine *engine, moebius_sampler **out,
                                   struct err *e);

/* clang-format off */
/* Rows for a command's option table. */
#define SAMPLER_FLOAT(s, field, name, help, min, max) {name, OPT_FLOAT, &(s).sampler.field, "X", help, min, max, 0, GROUP_SAMPLING}
#define SAMPLER_INT(s, field, name, help, min, max)   {name, OPT_INT32, &(s).sampler.field, "N", help, min, max, 0, GROUP_SAMPLING}
#define SAMPLING_OPTIONS(s)                                                                                            \
    {"--temp", OPT_FLOAT, &(s).sampler.temperature, "X", "temperature (0.8); 0: always the likeliest token", 0, 100,   \
     0, GROUP_COMMON},                                                                                                 \
    SAMPLER_INT(s, top_k, "--top-k", "keep the N likeliest tokens (40); 0: all", 0, 1e9),                              \
    SAMPLER_FLOAT(s, typical_p, "--typical-p,--typical", "keep the most typical tokens up to probability X (1: all)",  \
                0, 1),                                                                                                 \
    SAMPLER_FLOAT(s, top_p, "--top-p", "keep the likeliest tokens up to probability X (0.95); 1: all", 0, 1),          \
    SAMPLER_FLOAT(s, min_p, "--min-p", "drop tokens below X times the likeliest (0.05)", 0, 1),                        \
    SAMPLER_FLOAT(s, xtc_probability, "--xtc-probability", "probability that XTC drops top tokens (0: never)", 0, 1),  \
    SAMPLER_FLOAT(s, xtc_threshold, "--xtc-threshold", "XTC drops all tokens from X up but the least likely (0.1)",    \
                0, 1),                                                                                                 \
    SAMPLER_INT(s, mirostat, "--mirostat", "2: Mirostat 2 instead of the filters above (0: off)", 0, 2),               \
    SAMPLER_FLOAT(s, mirostat_tau, "--mirostat-ent", "Mirostat's target surprise, bits per token (5)", 0, 100),        \
    SAMPLER_FLOAT(s, mirostat_eta, "--mirostat-lr", "Mirostat's learning rate (0.1)", 0, 1),                           \
    {"--logit-bias", OPT_LIST, &(s).bias_texts, "ID+X|ID-X", "add to a token's logit; ID-inf: never choose it", 0, 0,  \
     0, GROUP_SAMPLING},                                                                                               \
    SAMPLER_FLOAT(s, repeat_penalty, "--repeat-penalty", "divide logits of recent tokens by X (1: off)", 0.01, 100),   \
    SAMPLER_FLOAT(s, presence_penalty, "--presence-penalty", "subtract X from logits of recent tokens (0)", -100,      \
                100),                                                                                                  \
    SAMPLER_FLOAT(s, frequency_penalty, "--frequency-penalty", "subtract X for each recent occurrence (0)", -100,      \
                100),                                                                                                  \
    SAMPLER_INT(s, repeat_last_n, "--repeat-last-n", "how many tokens are recent (64); -1: all", -1, 1e6),             \
    SAMPLER_FLOAT(s, dry_multiplier, "--dry-multiplier", "DRY: penalty on repeating sequences (0: off)", 0, 100),      \
    SAMPLER_FLOAT(s, dry_base, "--dry-base", "DRY: factor for each further repeated token (1.75)", 1, 100),            \
    SAMPLER_INT(s, dry_allowed_length, "--dry-allowed-length", "DRY: penalise from N matching tokens on (2)", 1,       \
                1e6),                                                                                                  \
    SAMPLER_INT(s, dry_last_n, "--dry-penalty-last-n", "DRY: tokens to look back; -1: all (-1)", -1, 1e6),             \
    {"--dry-sequence-breaker", OPT_LIST, &(s).breakers, "TEXT",                                                        \
     "DRY: text that ends sequences (newline : \" *); none: no text", 0, 0, 0,                                         \
     GROUP_SAMPLING},                                                                                                  \
    {"--seed,-s", OPT_INT, &(s).seed, "N", "random seed (default: a new one each time)", 0, 9e15, 0,                   \
     GROUP_COMMON}
/* clang-format on */

#endif
