#include "cli/sampling_options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

struct sampling_options cli_default_sampling(void)
{
    return (struct sampling_options){.sampler = moebius_default_sampler_options(), .seed = -1};
}

/* Parses "ID+X" or "ID-X" up to a comma or the end, and advances past it. False: the text is something else. */
static bool parse_bias(const char **text, moebius_logit_bias *out)
{
    char *end;
    errno = 0;
    long long id = strtoll(*text, &end, 10);
    if (end == *text || errno || id < 0 || id > INT32_MAX || !strchr("+-", *end) || !*end)
        return false;
    const char *sign = end;
    *out = (moebius_logit_bias){.id = (int32_t)id, .bias = strtof(sign, &end)};
    bool is_bias = end > sign && (*end == ',' || !*end) && (isfinite(out->bias) || out->bias == -INFINITY);
    *text = *end == ',' ? end + 1 : end;
    return is_bias && (!*end || **text);
}

static err_code parse_biases(struct sampling_options *o, const char *text, struct err *e)
{
    for (const char *p = text; *p || p == text;) {
        moebius_logit_bias bias;
        if (!parse_bias(&p, &bias))
            return err_set(e, ERR_USAGE,
                           "--logit-bias %s: expected a token's id and a number, such as 15043+1, 15043-100 "
                           "or 15043-inf, or several with commas between",
                           text);
        if (o->sampler.n_logit_biases == SAMPLING_MAX_BIAS)
            return err_set(e, ERR_USAGE, "--logit-bias: at most %d of them", SAMPLING_MAX_BIAS);
        o->biases[o->sampler.n_logit_biases++] = bias;
    }
    return ERR_OK;
}

err_code cli_check_sampling(struct sampling_options *o, struct err *e)
{
    for (int i = 0; i < o->bias_texts.n; i++)
        TRY(parse_biases(o, o->bias_texts.items[i], e));
    if (o->sampler.mirostat == 1)
        return err_set(e, ERR_USAGE, "--mirostat 1: expected 0 or 2");
    return ERR_OK;
}

/* Replaces the default sequence breakers by those of --dry-sequence-breaker. */
static void set_breakers(const struct option_list *given, moebius_sampler_options *o)
{
    if (given->n == 0)
        return;
    o->dry_breakers = given->items;
    o->n_dry_breakers = given->n == 1 && !strcmp(given->items[0], "none") ? 0 : given->n;
}

err_code cli_sampler_options(struct sampling_options *o, moebius_sampler_options *out, struct err *e)
{
    uint32_t seed; /* short enough to be typed again */
    if (o->seed < 0) {
        TRY(random_from_system(&seed, sizeof seed, e));
        o->seed = seed;
    }
    *out = o->sampler;
    out->seed = (uint64_t)o->seed;
    out->logit_biases = o->biases;
    set_breakers(&o->breakers, out);
    return ERR_OK;
}

err_code cli_open_sampler(struct sampling_options *o, const moebius_engine *engine, moebius_sampler **out,
                          struct err *e)
{
    moebius_error error;
    moebius_sampler_options options;
    TRY(cli_sampler_options(o, &options, e));
    return moebius_sampler_open(out, engine, &options, &error) == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}
