#include "engine/thread_tuner.h"

/* Tokens are compared in blocks: a block with another number of threads with those before and after it, so that a
 * moment's disturbance doesn't decide. A gain of less than a thirtieth is noise. Threads that lose their cores are
 * throttled within the first block, of tokens of 10 ms and more, so that the first trial waits for the second. */
enum { BLOCK_TOK = 8, SETTLED = 1, LEAST_PATIENCE = 2, MOST_PATIENCE = 128, IDLE_PERCENT = 25, GAIN_SHARE = 30 };

void thread_tuner_init(struct thread_tuner *c, int n_threads, int n_cpu)
{
    int n_least = n_threads > n_cpu ? n_threads - n_cpu : 0;
    *c = (struct thread_tuner){.n_less = n_least, .n_least = n_least};
}

static void end_trial(struct thread_tuner *c)
{
    int64_t other_ns = c->before_ns < c->n_ns ? c->before_ns : c->n_ns;
    if (c->trial_ns < other_ns - other_ns / GAIN_SHARE) {
        c->n_less += c->trial;
        c->patience = LEAST_PATIENCE;
    } else {
        c->patience = 2 * c->patience < MOST_PATIENCE ? 2 * c->patience : MOST_PATIENCE;
    }
    c->trial = 0;
    c->trial_ns = 0;
    c->n_quiet = 0;
}

static void begin_trial(struct thread_tuner *c, int n_threads, struct pool_times now)
{
    int64_t thread_ns = now.thread_ns - c->begin.thread_ns, busy_ns = now.busy_ns - c->begin.busy_ns;
    bool is_idle = (thread_ns - busy_ns) * 100 > thread_ns * IDLE_PERCENT;
    if (c->patience == 0)
        c->patience = LEAST_PATIENCE;
    int n_wait = c->patience == LEAST_PATIENCE ? SETTLED : c->patience;
    if (is_idle && c->n_less < n_threads - 1 && c->n_quiet >= n_wait)
        c->trial = 1;
    else if (c->n_less > c->n_least && c->n_quiet >= c->patience)
        c->trial = -1;
    c->n_less += c->trial;
    c->n_quiet++;
    c->before_ns = c->n_ns;
}

int thread_tuner_n_threads(const struct thread_tuner *c, int n_threads, bool is_single_token)
{
    return is_single_token ? n_threads - c->n_less : n_threads;
}

void thread_tuner_after_token(struct thread_tuner *c, int n_threads, int64_t n_ns, struct pool_times now)
{
    c->n_ns += n_ns;
    if (++c->n_tok < BLOCK_TOK)
        return;
    if (c->trial_ns) {
        end_trial(c);
    } else if (c->trial) {
        c->trial_ns = c->n_ns;
        c->n_less -= c->trial;
    } else {
        begin_trial(c, n_threads, now);
    }
    c->n_tok = 0;
    c->n_ns = 0;
    c->begin = now;
}
