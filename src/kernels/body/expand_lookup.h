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

/* n_weight: how many weights an entry stands for, 8 or 4 */
KERNELS_ALWAYS_INLINE void ex_grid_open(struct ex_grid *grid, const uint16_t *entries, int n, const uint8_t levels[16],
                                        int n_weight)
{
    (void)n, (void)levels, (void)n_weight;
    grid->entries = entries;
}

/* Looks up four indices a lane in a grid of n entries. The low eight bits of index i are byte i of `low`; its other
 * bits are those of `high` from bit step * i on. */
KERNELS_ALWAYS_INLINE void ex_lookup(struct ex_entries *out, const struct ex_grid *grid, int n, vi low, vi high,
                                     int step)
{
    vi index[2];
    ex_indices(index, n, low, high, step);
    ex_lookup_words(grid->entries, n, index, out->words);
}

/* Looks up indices that are the low nine bits of each word, in a grid of 512 entries: the words of words[0] take the
 * places of bytes 0 and 2, those of words[1] of bytes 1 and 3. */
KERNELS_ALWAYS_INLINE void ex_lookup9(struct ex_entries *out, const struct ex_grid *grid, const vi words[2])
{
    vi index[2] = {vi_and(words[0], vi_set1(0x1ff01ff)), vi_and(words[1], vi_set1(0x1ff01ff))};
    ex_lookup_words(grid->entries, 512, index, out->words);
}

#endif
