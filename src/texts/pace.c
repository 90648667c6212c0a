#include "texts/pace.h"

#include "base/mem.h"
#include "base/minmax.h"

bool pace_open(struct pace *p, size_t n_texts, int64_t most_ns)
{
    *p = (struct pace){.most_ns = most_ns, .n_texts = n_texts, .n_tokens = PACE_FIRST_TOKENS};
    p->bare_ns = mem_calloc(n_texts + 1, sizeof *p->bare_ns);
    return p->bare_ns != NULL;
}

void pace_close(struct pace *p)
{
    mem_free(p->bare_ns);
    *p = (struct pace){0};
}

size_t pace_tokens(const struct pace *p, size_t n_answers, size_t n_batch, bool is_streaming)
{
    if (n_answers == 0 || p->most_ns < 0)
        return n_batch;
    if (is_streaming)
        return p->owed_ns > 0 ? 0 : n_batch;
    if (!p->bare_ns[n_answers] || p->n_mixed >= PACE_BARE_EVERY)
        return 0;
    size_t n = (size_t)p->n_tokens;
    return n < n_batch ? n : n_batch;
}

/* How long a pass with tokens of prompts may take beside n answers. */
static int64_t target_ns(const struct pace *p, size_t n)
{
    return p->most_ns ? p->most_ns : max_i64(PACE_FACTOR * p->bare_ns[n], PACE_LEAST_NS);
}

/* Learns from the time of a pass with n_prompt tokens of prompts. A pass that took too long counts fully at once,
 * others gradually, so that the times of passes vary below the bound and not around it. */
static void correct(struct pace *p, size_t n_answers, size_t n_prompt, int64_t took_ns)
{
    double room = (double)(target_ns(p, n_answers) - p->bare_ns[n_answers]);
    double cost = (double)max_i64(took_ns - p->bare_ns[n_answers], 1);
    double ratio = room / cost;
    ratio = ratio > 2 ? 2 : ratio < 0.5 ? 0.5 : ratio;
    double fits = ratio * (double)n_prompt;
    if (ratio > 1 && fits < p->n_tokens)
        return; /* few tokens say little about many */
    p->n_tokens = ratio < 1 ? fits : p->n_tokens + (fits - p->n_tokens) / PACE_GROWTH;
    if (p->n_tokens < PACE_LEAST_TOKENS)
        p->n_tokens = PACE_LEAST_TOKENS;
}

void pace_note(struct pace *p, size_t n_answers, size_t n_prompt, int64_t took_ns, bool is_streaming)
{
    int64_t *bare = &p->bare_ns[n_answers];
    if (n_answers == 0) {
        p->owed_ns = 0;
    } else if (n_prompt == 0) {
        *bare = *bare ? (3 * *bare + took_ns) / 4 : took_ns;
        p->n_mixed = 0;
        p->owed_ns = max_i64(p->owed_ns - took_ns, 0);
    } else {
        p->n_mixed++;
        if (is_streaming)
            p->owed_ns += took_ns;
        else if (*bare)
            correct(p, n_answers, n_prompt, took_ns);
    }
}
