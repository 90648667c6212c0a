#include "engine/prefetch.h"

/* A trial alternates short blocks, so that both ways see the same text; it is repeated because text and cache change.
 */
enum { BLOCK_TOK = 8, N_BLOCK = 8, TRIAL_TOK = BLOCK_TOK * N_BLOCK, PERIOD_TOK = 1024 };

bool prefetch_begin(struct prefetch *p, bool is_single_token)
{
    int64_t at = p->n_tok % PERIOD_TOK;
    p->is_single = is_single_token;
    p->is_on = p->mode == MOEBIUS_PREFETCH_ON ||
               (p->mode == MOEBIUS_PREFETCH_AUTO && (at < TRIAL_TOK ? at / BLOCK_TOK % 2 == 1 : p->pays));
    /* a prompt needs most experts of a layer, so that guesses are hardly ever wrong */
    return is_single_token ? p->is_on : p->mode != MOEBIUS_PREFETCH_OFF;
}

void prefetch_end(struct prefetch *p, int64_t n_ns)
{
    if (!p->is_single)
        return;
    int64_t at = p->n_tok++ % PERIOD_TOK;
    if (at == 0)
        p->tried_ns[0] = p->tried_ns[1] = 0;
    if (at < TRIAL_TOK)
        p->tried_ns[p->is_on] += n_ns;
    if (at == TRIAL_TOK - 1) /* only for a gain that is no accident */
        p->pays = p->tried_ns[1] < p->tried_ns[0] - p->tried_ns[0] / 32;
}
