/* Lookups of expand_blocks.h, for instruction sets that look entries of a grid up word by word. Include after
 * expand_words.h and ex_lookup_words. */
#ifndef KERNELS_BODY_EXPAND_LOOKUP_H
#define KERNELS_BODY_EXPAND_LOOKUP_H

#include "kernels/kernels_internal.h"
#include "kernels/body/expand_entries.h"

/* A grid, as it is read. */
struct ex_grid {
    const uint16_t *entries;
};

/* n_weight: what an entry stands for, 8 or 4 weights */
KERNELS_ALWAYS_INLINE void ex_grid_open(struct ex_grid *grid, const uint16_t *entries, int n, const uint8_t levels[16],
                                        int n_weight)
{
    (void)n, (void)levels, (void)n_weight;
    grid->entries = entries;
}

/* Entries of a grid of n for four indices a lane: their low eight bits are the bytes of `low`, the others bits step * i
 * on of `high`. */
KERNELS_ALWAYS_INLINE void ex_lookup(struct ex_entries *out, const struct ex_grid *grid, int n, vi low, vi high,
                                     int step)
{
    vi index[2];
    ex_indices(index, n, low, high, step);
    ex_lookup_words(grid->entries, n, index, out->words);
}

/* Entries of a grid of 512 for indices in the low nine bits of each word, as if they were those of bytes 0, 2, 1, 3. */
KERNELS_ALWAYS_INLINE void ex_lookup9(struct ex_entries *out, const struct ex_grid *grid, const vi words[2])
{
    vi index[2] = {vi_and(words[0], vi_set1(0x1ff01ff)), vi_and(words[1], vi_set1(0x1ff01ff))};
    ex_lookup_words(grid->entries, 512, index, out->words);
}

#endif
