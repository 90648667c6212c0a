/* The public face of sample/. */
#include "sample/sample.h"

#include "engine/engine_internal.h"

struct moebius_sampler {
    struct sampler *sampler;
};

moebius_sampler_options moebius_default_sampler_options(void)
{
    struct sampler_params p = sampler_default_params();
    return (moebius_sampler_options){.temperature = p.temperature,
                                     .top_k = p.top_k,
                                     .top_p = p.top_p,
                                     .min_p = p.min_p,
                                     .repeat_penalty = p.repeat_penalty,
                                     .repeat_last_n = p.repeat_last_n,
                                     .seed = p.seed};
}

moebius_status moebius_sampler_open(moebius_sampler **out, const moebius_engine *engine,
                                    const moebius_sampler_options *options, moebius_error *error)
{
    struct err e = {0};
    moebius_sampler_options o = options ? *options : moebius_default_sampler_options();
    const struct sampler_params p = {.temperature = o.temperature,
                                     .top_k = o.top_k,
                                     .top_p = o.top_p,
                                     .min_p = o.min_p,
                                     .repeat_penalty = o.repeat_penalty,
                                     .repeat_last_n = o.repeat_last_n,
                                     .seed = o.seed};
    *out = NULL;
    moebius_sampler *s = mem_calloc(1, sizeof *s);
    if (!s)
        return engine_status(err_nomem(&e, sizeof *s, "a sampler"), &e, error);
    err_code code = sampler_create(&s->sampler, &p, moebius_n_vocab(engine), &e);
    if (code != ERR_OK)
        moebius_sampler_close(&s);
    *out = s;
    return engine_status(code, &e, error);
}

void moebius_sampler_close(moebius_sampler **sampler)
{
    if (!*sampler)
        return;
    sampler_close(&(*sampler)->sampler);
    mem_free(*sampler);
    *sampler = NULL;
}

int32_t moebius_sampler_pick(moebius_sampler *sampler, const float *logits)
{
    return sampler_pick(sampler->sampler, logits);
}

void moebius_sampler_accept(moebius_sampler *sampler, int32_t id)
{
    sampler_accept(sampler->sampler, id);
}
