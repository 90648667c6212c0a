#include "sample/sample.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "sample/candidates.h"
#include "sample/dry.h"
#include "sample/history.h"

struct moebius_sampler {
    moebius_sampler_options options; /* without dry_breakers: `dry` has what they mean */
    int32_t n_vocab;
    struct random random;
    double max_surprise;          /* Mirostat's mu, bits */
    struct candidate *candidates; /* [n_candidate]; NULL where the likeliest token is always taken */
    int32_t n_candidate;
    float *adjusted;              /* [n_vocab], logits with biases and penalties; NULL without these */
    moebius_logit_bias *biases;   /* [options.n_logit_biases]; NULL: none */
    struct history history;       /* empty where no step asks for it */
    struct token_counts counts;   /* empty without a penalty that asks for it */
    struct dry dry;               /* empty without DRY */
    struct sampler_filter filter; /* allows is NULL: there is none */
    float *allowed;               /* [n_vocab], logits of what the filter allows; NULL without a filter */
    uint64_t *mask;               /* [n_vocab] bits; the same */
};

/* ---- opening ------------------------------------------------------------------------------------------------- */

static int window_of(int last_n)
{
    return last_n < 0 ? SAMPLER_MAX_LAST_N : last_n;
}

static bool counts_tokens(const moebius_sampler_options *o)
{
    return o->repeat_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0;
}

static bool open_candidates(moebius_sampler *s)
{
    const moebius_sampler_options *o = &s->options;
    if (o->temperature == 0)
        return true;
    bool all = o->mirostat != 0 || o->top_k == 0 || o->top_k > s->n_vocab;
    s->n_candidate = all ? s->n_vocab : o->top_k;
    s->candidates = mem_calloc((size_t)s->n_candidate, sizeof *s->candidates);
    return s->candidates != NULL;
}

static bool open_biases(moebius_sampler *s)
{
    size_t n = (size_t)s->options.n_logit_biases;
    if (n == 0)
        return true;
    s->biases = mem_calloc(n, sizeof *s->biases);
    if (s->biases)
        memcpy(s->biases, s->options.logit_biases, n * sizeof *s->biases);
    s->options.logit_biases = s->biases;
    return s->biases != NULL;
}

static bool open_penalties(moebius_sampler *s, const bool *breaks)
{
    const moebius_sampler_options *o = &s->options;
    int n_counted = counts_tokens(o) ? window_of(o->repeat_last_n) : 0,
        n_dry = o->dry_multiplier > 0 ? window_of(o->dry_last_n) : 0;
    int n_history = n_counted > n_dry ? n_counted : n_dry;
    bool ok = true;
    if (n_history || o->n_logit_biases)
        ok &= (s->adjusted = mem_calloc((size_t)s->n_vocab, sizeof *s->adjusted)) != NULL;
    if (n_history)
        ok &= history_open(&s->history, n_history);
    if (n_counted)
        ok &= token_counts_open(&s->counts, n_counted, s->n_vocab);
    if (n_dry) {
        s->dry = (struct dry){o->dry_multiplier, o->dry_base, o->dry_allowed_length, .window = n_dry};
        ok &= dry_open(&s->dry, breaks, s->n_vocab);
    }
    return ok;
}

err_code sampler_create(moebius_sampler **out, const moebius_sampler_options *options, const bool *breaks,
                        int32_t n_vocab, struct err *e)
{
    *out = NULL;
    TRY(sampler_check_options(options, n_vocab, e));
    moebius_sampler *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s, "a sampler");
    s->options = *options;
    s->options.dry_breakers = NULL;
    s->options.n_dry_breakers = 0;
    s->n_vocab = n_vocab;
    sampler_reseed(s, options->seed);
    if (!open_candidates(s) || !open_biases(s) || !open_penalties(s, breaks)) {
        sampler_close(&s);
        return err_nomem(e, (size_t)n_vocab * (sizeof *s->candidates + sizeof *s->adjusted), "a sampler");
    }
    sampler_forget(s);
    *out = s;
    return ERR_OK;
}

void sampler_close(moebius_sampler **s)
{
    if (!s || !*s)
        return;
    mem_free((*s)->candidates);
    mem_free((*s)->adjusted);
    mem_free((*s)->biases);
    mem_free((*s)->allowed);
    mem_free((*s)->mask);
    history_close(&(*s)->history);
    token_counts_close(&(*s)->counts);
    dry_close(&(*s)->dry);
    mem_free(*s);
    *s = NULL;
}

err_code sampler_clone(moebius_sampler **out, const moebius_sampler *s, struct err *e)
{
    TRY(sampler_create(out, &s->options, s->dry.breaks, s->n_vocab, e));
    (*out)->random = s->random;
    (*out)->max_surprise = s->max_surprise;
    for (int age = s->history.n; age-- > 0;)
        sampler_accept(*out, history_at(&s->history, age));
    return ERR_OK;
}

/* ---- the text ------------------------------------------------------------------------------------------------ */

err_code sampler_set_filter(moebius_sampler *s, const struct sampler_filter *filter, struct err *e)
{
    size_t n = (size_t)s->n_vocab;
    if (filter && !s->allowed)
        s->allowed = mem_calloc(n, sizeof *s->allowed);
    if (filter && !s->mask)
        s->mask = mem_calloc(n / 64 + 1, sizeof *s->mask);
    if (filter && (!s->allowed || !s->mask))
        return err_nomem(e, n * sizeof *s->allowed, "a sampler");
    s->filter = filter ? *filter : (struct sampler_filter){0};
    return ERR_OK;
}

void sampler_accept(moebius_sampler *s, int32_t id)
{
    if (s->filter.accept)
        s->filter.accept(s->filter.user, id);
    if (!s->history.ids || id < 0 || id >= s->n_vocab)
        return;
    if (s->counts.place)
        token_counts_push(&s->counts, &s->history, id);
    history_push(&s->history, id);
}

int32_t sampler_n_vocab(const moebius_sampler *s)
{
    return s->n_vocab;
}

void sampler_forget(moebius_sampler *s)
{
    token_counts_forget(&s->counts);
    history_forget(&s->history);
    s->max_surprise = 2.0 * (double)s->options.mirostat_tau;
}

void sampler_reseed(moebius_sampler *s, uint64_t seed)
{
    s->options.seed = seed;
    s->random = random_seed(seed);
}

/* ---- picking ------------------------------------------------------------------------------------------------- */

/* The logits with biases and penalties on them. */
static const float *adjust(moebius_sampler *s, const float *logits)
{
    const moebius_sampler_options *o = &s->options;
    if (!s->adjusted)
        return logits;
    memcpy(s->adjusted, logits, (size_t)s->n_vocab * sizeof *logits);
    for (int i = 0; i < o->n_logit_biases; i++)
        s->adjusted[s->biases[i].id] += s->biases[i].bias;
    token_counts_penalise(&s->counts, o->repeat_penalty, o->presence_penalty, o->frequency_penalty, s->adjusted);
    if (s->dry.recent)
        dry_penalise(&s->dry, &s->history, s->adjusted);
    return s->adjusted;
}

static int32_t pick_greedy(const float *logits, int32_t n, int32_t none)
{
    int32_t best = none;
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) /* NaN is never greater */
        if (logits[i] > max) {
            max = logits[i];
            best = i;
        }
    return best;
}

/* The steps that drop candidates; returns how many of n are left. */
static int32_t filter(moebius_sampler *s, int32_t n)
{
    const moebius_sampler_options *o = &s->options;
    struct candidate *c = s->candidates;
    if (o->typical_p < 1)
        n = candidates_keep_typical(c, n, o->typical_p);
    if (o->top_p < 1)
        n = candidates_keep_top_p(c, n, o->top_p);
    if (o->min_p > 0)
        n = candidates_keep_min_p(c, n, o->min_p);
    if (o->xtc_probability > 0 && random_unit(&s->random) < (double)o->xtc_probability)
        n = candidates_exclude_top(c, n, o->xtc_threshold);
    return n;
}

/* Mirostat keeps what is not too surprising, draws, and moves its bound so that the surprise, in bits among those kept,
 * comes to tau in the mean. */
static int32_t draw_mirostat(moebius_sampler *s, int32_t n)
{
    struct candidate *c = s->candidates;
    double sum = candidates_weigh(c, n, s->options.temperature);
    n = candidates_keep_unsurprising(c, n, s->max_surprise, &sum);
    int32_t at = candidates_draw(c, n, sum, &s->random);
    double surprise = log2(sum / (double)c[at].weight);
    s->max_surprise -= (double)s->options.mirostat_eta * (surprise - (double)s->options.mirostat_tau);
    return at;
}

/* From adjusted logits; none: what to return where no token is possible. */
static int32_t pick(moebius_sampler *s, const float *logits, int32_t none)
{
    struct candidate *c = s->candidates;
    if (s->options.temperature == 0)
        return pick_greedy(logits, s->n_vocab, none);
    int32_t n = candidates_collect(c, s->n_candidate, logits, s->n_vocab);
    if (n == 0)
        return none;
    if (s->options.mirostat)
        return c[draw_mirostat(s, n)].id;
    n = filter(s, n);
    double sum = candidates_weigh(c, n, s->options.temperature);
    return c[candidates_draw(c, n, sum, &s->random)].id;
}

/* Among what the filter allows. */
static int32_t pick_allowed(moebius_sampler *s, const float *logits)
{
    s->filter.mask(s->filter.user, s->mask);
    for (int32_t i = 0; i < s->n_vocab; i++)
        s->allowed[i] = s->mask[i / 64] >> i % 64 & 1 ? logits[i] : -INFINITY;
    return pick(s, s->allowed, -1);
}

int32_t sampler_pick(moebius_sampler *s, const float *logits)
{
    double max_surprise = s->max_surprise;
    logits = adjust(s, logits);
    int32_t id = pick(s, logits, 0);
    if (!s->filter.allows || s->filter.allows(s->filter.user, id))
        return id;
    s->max_surprise = max_surprise; /* the draw that was refused taught Mirostat nothing */
    return pick_allowed(s, logits);
}
