#include "experts/budget.h"

#include <assert.h>

int budget_add_layer(struct budget_group *g, int64_t n_expert, int64_t n_used)
{
    g->n_expert += n_expert;
    g->n_used = n_used > g->n_used ? n_used : g->n_used;
    g->n_expert_most = n_expert > g->n_expert_most ? n_expert : g->n_expert_most;
    return g->n_layer++;
}

size_t budget_min_bytes(const struct budget_group *groups, int n_group)
{
    size_t n = 0;
    for (int i = 0; i < n_group; i++)
        n += (size_t)groups[i].n_used * groups[i].slot_bytes;
    return n;
}

size_t budget_max_bytes(const struct budget_group *groups, int n_group)
{
    size_t n = 0;
    for (int i = 0; i < n_group; i++)
        n += (size_t)groups[i].n_expert * groups[i].slot_bytes;
    return n;
}

void budget_divide(const struct budget_group *groups, int n_group, size_t n_bytes, int64_t *n_slot)
{
    size_t least = budget_min_bytes(groups, n_group), most = budget_max_bytes(groups, n_group);
    assert(n_bytes >= least);
    /* above the minimum, each group gets the same share of what it lacks */
    double share = n_bytes < most ? (double)(n_bytes - least) / (double)(most - least) : 1;
    size_t left = n_bytes - least;
    for (int i = 0; i < n_group; i++) {
        const struct budget_group *g = &groups[i];
        int64_t more = (int64_t)(share * (double)(g->n_expert - g->n_used));
        n_slot[i] = g->n_used + more;
        while ((size_t)more * g->slot_bytes > left) /* what the division rounded up */
            n_slot[i]--, more--;
        left -= (size_t)more * g->slot_bytes;
    }
    for (int i = 0; i < n_group; i++) /* what rounding left over */
        while (n_slot[i] < groups[i].n_expert && left >= groups[i].slot_bytes) {
            n_slot[i]++;
            left -= groups[i].slot_bytes;
        }
}
