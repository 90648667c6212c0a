#include "jobs/ppl.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

struct run {
    moebius_engine *engine;
    moebius_session *session;
    const struct ppl_params *p;
    int64_t n_vocab, first; /* the first scored token of a window */
    int32_t *window;
    float *other; /* the other session's logits of the scored tokens [n_vocab][n_scored_of_a_window]; NULL: none */
    size_t other_bytes;
    struct ppl_sums sums;
    int64_t n_resumed;
};

static double log_sum_exp(const float *x, int64_t n)
{
    double sum = 0;
    float max = x[0];
    for (int64_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

static int64_t likeliest(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* How far the predictions, whose exponentials add up to exp(log_sum) and which give the target nll, are from the other
 * session's. */
static void compare(struct run *r, const float *logits, double log_sum, double nll, const float *other, int32_t target)
{
    double other_log_sum = log_sum_exp(other, r->n_vocab), divergence = 0;
    for (int64_t i = 0; i < r->n_vocab; i++) {
        double log_p = (double)other[i] - other_log_sum;
        divergence += exp(log_p) * (log_p - ((double)logits[i] - log_sum));
    }
    double difference = nll - (other_log_sum - (double)other[target]);
    r->sums.difference += difference;
    r->sums.difference_squared += difference * difference;
    r->sums.divergence += divergence;
    r->sums.divergence_squared += divergence * divergence;
    r->sums.n_same += likeliest(logits, r->n_vocab) == likeliest(other, r->n_vocab);
}

/* The logits after token i of the window. */
static void score(struct run *r, int64_t i, const float *logits)
{
    int32_t target = r->window[i + 1];
    double log_sum = log_sum_exp(logits, r->n_vocab), nll = log_sum - (double)logits[target];
    r->sums.nll += nll;
    r->sums.nll_squared += nll * nll;
    r->sums.n_scored++;
    if (r->other)
        compare(r, logits, log_sum, nll, r->other + (i - r->first) * r->n_vocab, target);
}

static bool score_each(void *user, size_t i, const float *logits)
{
    struct run *r = user;
    if ((int64_t)i + 1 < r->p->n_ctx)
        score(r, (int64_t)i, logits);
    return true;
}

static bool keep_each(void *user, size_t i, const float *logits)
{
    struct run *r = user;
    if ((int64_t)i + 1 < r->p->n_ctx)
        memcpy(r->other + ((int64_t)i - r->first) * r->n_vocab, logits, (size_t)r->n_vocab * sizeof *logits);
    return true;
}

/* ---- windows --------------------------------------------------------------------------------------------------- */

/* The first half in chunks, the others one by one. */
static moebius_status eval_by_token(struct run *r, moebius_error *error)
{
    moebius_status status = moebius_session_eval(r->session, r->window, (size_t)r->first, error);
    for (int64_t i = r->first; i + 1 < r->p->n_ctx && status == MOEBIUS_OK; i++) {
        status = moebius_session_eval(r->session, r->window + i, 1, error);
        if (status == MOEBIUS_OK)
            score(r, i, moebius_session_logits(r->session));
    }
    return status;
}

static err_code run_window(struct run *r, const int32_t *ids, struct err *e)
{
    const moebius_vocab *vocab = moebius_engine_vocab(r->engine);
    size_t n = (size_t)r->p->n_ctx, first = (size_t)r->first;
    moebius_error error = {0};
    memcpy(r->window, ids, n * sizeof *ids);
    if (moebius_vocab_adds_bos(vocab))
        r->window[0] = moebius_token_bos(vocab);
    if (r->other) {
        moebius_session_truncate(r->p->against, 0);
        moebius_session_eval_each(r->p->against, r->window, n, first, keep_each, r, &error);
    }
    if (r->p->forget)
        moebius_engine_forget_experts(r->engine);
    moebius_session_truncate(r->session, 0);
    if (error.status == MOEBIUS_OK && r->p->by_token)
        eval_by_token(r, &error);
    else if (error.status == MOEBIUS_OK)
        moebius_session_eval_each(r->session, r->window, n, first, score_each, r, &error);
    r->sums.n_window++;
    return error.status == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}

/* The standard error of a mean of n. */
static double error_of(double sum, double sum_of_squares, double n)
{
    double mean = sum / n, variance = sum_of_squares / n - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0;
}

static struct ppl_result result(const struct run *r)
{
    const struct ppl_sums *s = &r->sums;
    double n = (double)s->n_scored, same = (double)s->n_same / n;
    struct ppl_result x = {.n_window = s->n_window,
                           .n_scored = s->n_scored,
                           .n_resumed = r->n_resumed,
                           .nll = s->nll / n,
                           .nll_error = error_of(s->nll, s->nll_squared, n),
                           .ppl = exp(s->nll / n),
                           .other_ppl = exp((s->nll - s->difference) / n),
                           .ratio = exp(s->difference / n),
                           .divergence = s->divergence / n,
                           .divergence_error = error_of(s->divergence, s->divergence_squared, n),
                           .same_top = same,
                           .same_top_error = sqrt(same * (1 - same) / n)};
    x.ppl_error = x.ppl * x.nll_error;
    x.ratio_error = x.ratio * error_of(s->difference, s->difference_squared, n);
    return x;
}

static err_code run_windows(struct run *r, const int32_t *ids, int64_t n_window, struct ppl_result *out, struct err *e)
{
    const struct ppl_params *p = r->p;
    if (p->resume)
        TRY(ppl_resume_load(&p->identity, p->resume, &r->sums, e));
    if (r->sums.n_window > n_window)
        return err_set(e, ERR_USAGE, "%s: has %lld windows, more than the %lld asked for", p->resume,
                       (long long)r->sums.n_window, (long long)n_window);
    r->n_resumed = r->sums.n_window;
    *out = result(r);
    while (r->sums.n_window < n_window) {
        TRY(run_window(r, ids + r->sums.n_window * p->n_ctx, e));
        *out = result(r);
        if (p->resume)
            TRY(ppl_resume_save(&p->identity, p->resume, &r->sums, e));
        if (p->progress && !p->progress(p->user, out, n_window))
            break;
    }
    return ERR_OK;
}

err_code ppl_run(moebius_engine *engine, moebius_session *session, const int32_t *ids, size_t n,
                 const struct ppl_params *p, struct ppl_result *out, struct err *e)
{
    struct run r = {
        .engine = engine, .session = session, .p = p, .n_vocab = moebius_n_vocab(engine), .first = p->n_ctx / 2};
    int64_t n_all = (int64_t)n / p->n_ctx, n_window = p->n_window && p->n_window < n_all ? p->n_window : n_all;
    err_code code;
    if (n_all == 0)
        return err_set(e, ERR_USAGE, "the text has %zu tokens: expected at least a window of %lld", n,
                       (long long)p->n_ctx);
    size_t n_bytes = (size_t)p->n_ctx * sizeof *r.window;
    r.window = mem_alloc(n_bytes);
    if (!r.window)
        return err_nomem(e, n_bytes, "a window");
    if (p->against) {
        r.other_bytes = (size_t)((p->n_ctx - 1 - r.first) * r.n_vocab) * sizeof *r.other;
        r.other = mem_map(r.other_bytes, MEM_SCRATCH);
    }
    code = p->against && !r.other ? err_nomem(e, r.other_bytes, "the logits of a window")
                                  : run_windows(&r, ids, n_window, out, e);
    mem_unmap(r.other, r.other_bytes, MEM_SCRATCH);
    mem_free(r.window);
    return code;
}
