#include "jobs/ppl.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

struct sums {
    const int32_t *window;
    int64_t n_vocab, n_ctx, n;
    double nll, nll_squared;
};

/* -log softmax(logits)[target] */
static double negative_log_likelihood(const float *logits, int64_t n_vocab, int32_t target)
{
    float max = logits[0];
    for (int64_t i = 1; i < n_vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (int64_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum) - logits[target];
}

static bool score(void *user, size_t i, const float *logits)
{
    struct sums *s = user;
    if ((int64_t)i + 1 < s->n_ctx) {
        double v = negative_log_likelihood(logits, s->n_vocab, s->window[i + 1]);
        s->nll += v;
        s->nll_squared += v * v;
        s->n++;
    }
    return true;
}

static struct ppl_result result(const struct sums *s, int64_t n_window)
{
    double n = (double)s->n, mean = s->nll / n, variance = s->nll_squared / n - mean * mean;
    struct ppl_result r = {.n_window = n_window, .n_scored = s->n, .nll = mean, .ppl = exp(mean)};
    r.nll_error = s->n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0;
    r.ppl_error = r.ppl * r.nll_error;
    return r;
}

err_code ppl_run(moebius_session *session, const moebius_engine *engine, const int32_t *ids, size_t n, int64_t n_ctx,
                 int64_t n_window, bool (*progress)(void *user, const struct ppl_result *so_far, int64_t n_window),
                 void *user, struct ppl_result *out, struct err *e)
{
    const moebius_vocab *vocab = moebius_engine_vocab(engine);
    int64_t n_all = (int64_t)n / n_ctx;
    if (n_all == 0)
        return err_set(e, ERR_USAGE, "the text has %zu tokens: expected at least a window of %lld", n,
                       (long long)n_ctx);
    n_window = n_window && n_window < n_all ? n_window : n_all;
    size_t n_bytes = (size_t)n_ctx * sizeof(int32_t);
    int32_t *window = mem_alloc(n_bytes);
    if (!window)
        return err_nomem(e, n_bytes, "a window");
    struct sums s = {.window = window, .n_vocab = moebius_n_vocab(engine), .n_ctx = n_ctx};
    moebius_error error = {0};
    for (int64_t i = 0; i < n_window && error.status == MOEBIUS_OK; i++) {
        memcpy(window, ids + i * n_ctx, n_bytes);
        if (moebius_vocab_adds_bos(vocab))
            window[0] = moebius_token_bos(vocab);
        moebius_session_truncate(session, 0);
        moebius_session_eval_each(session, window, (size_t)n_ctx, (size_t)n_ctx / 2, score, &s, &error);
        *out = result(&s, i + 1);
        if (error.status == MOEBIUS_OK && progress && !progress(user, out, n_window))
            break;
    }
    mem_free(window);
    return error.status == MOEBIUS_OK ? ERR_OK : err_set(e, (err_code)error.status, "%s", error.text);
}
