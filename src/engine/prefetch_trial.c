#include "engine/prefetch_trial.h"

/* A trial alternates short blocks, so that both ways see the same text; it is repeated because text and cache change.
 * As prefetching mostly pays, it is on until the first trial, which comes late enough to spare short runs. */
enum { BLOCK_TOK = 8, N_BLOCK = 8, TRIAL_TOK = BLOCK_TOK * N_BLOCK, FIRST_TOK = 192, PERIOD_TOK = 1024 };

/* The next token's place in a trial; less than 0: there is no trial now. */
static int64_t trial_at(const struct prefetch_trial *p)
{
    int64_t at = p->n_tok % PERIOD_TOK - FIRST_TOK;
    return at < TRIAL_TOK ? at : -1;
}

bool prefetch_trial_begin(struct prefetch_trial *p, bool is_single_token)
{
    int64_t at = trial_at(p);
    p->is_single = is_single_token;
    p->is_on = p->mode == MOEBIUS_PREFETCH_ON ||
               (p->mode == MOEBIUS_PREFETCH_AUTO && (at < 0 ? !p->loses : at / BLOCK_TOK % 2 == 1));
    /* a prompt needs most experts of a layer, so that predictions are hardly ever wrong */
    return is_single_token ? p->is_on : p->mode != MOEBIUS_PREFETCH_OFF;
}

void prefetch_trial_end(struct prefetch_trial *p, int64_t n_ns)
{
    if (!p->is_single)
        return;
    int64_t at = trial_at(p);
    if (at == 0)
        p->tried_ns[0] = p->tried_ns[1] = 0;
    if (at >= 0)
        p->tried_ns[p->is_on] += n_ns;
    if (at == TRIAL_TOK - 1)
        p->loses = p->tried_ns[1] > p->tried_ns[0];
    p->n_tok++;
}
