#include "moe/car.h"

bool car_is_on(const struct car *c)
{
    return c->threshold > 0 && c->threshold < 1;
}

bool car_applies(const struct car *c, int64_t pos, int layer, int n_layer)
{
    return car_is_on(c) && pos >= c->n_warmup && layer >= c->n_protect && layer < n_layer - c->n_protect;
}

static bool is_among(const int32_t *ids, int64_t n, int32_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* The best expert at hand that is none of ids, or -1. (Experts that were substituted are not at hand.) */
static int32_t best_at_hand(const float *scores, const bool *at_hand, int64_t n_expert, const int32_t *ids,
                            int64_t n_used)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n_expert; i++)
        if (at_hand[i] && scores[i] > (best < 0 ? 0 : scores[best]) && !is_among(ids, n_used, i))
            best = i;
    return best;
}

int64_t car_substitute(const struct car *c, const float *scores, const bool *at_hand, int64_t n_expert, int64_t n_used,
                       int32_t *ids, float *value, float *ratio)
{
    int64_t n = 0;
    for (int64_t rank = 0; rank < n_used; rank++) {
        float own = scores[ids[rank]], r;
        int32_t best = at_hand[ids[rank]] ? -1 : best_at_hand(scores, at_hand, n_expert, ids, n_used);
        value[rank] = own;
        ratio[rank] = 1;
        if (best < 0)
            continue;
        r = scores[best] / own;
        if (r > 1) /* e was chosen for its bias, in spite of its score */
            r = 1;
        if (!(r >= c->threshold))
            continue;
        ids[rank] = best;
        value[rank] = c->damp ? scores[best] * r : scores[best];
        ratio[rank] = r;
        n++;
    }
    return n;
}
