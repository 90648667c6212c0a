/* Entries of grids that expand_blocks.h has looked up, as words of levels. Include after ex_levels2 and ex_levels4. */
#ifndef KERNELS_BODY_EXPAND_ENTRIES_H
#define KERNELS_BODY_EXPAND_ENTRIES_H

#include "kernels/kernels_internal.h"

struct ex_grid;

/* The entries of a lane's four indices: words[0] has those of bytes 0 and 2, words[1] those of bytes 1 and 3. */
struct ex_entries {
    vi words[2];
};

/* Eight weights of the entry of byte i. */
KERNELS_ALWAYS_INLINE void ex_entry8(vi w[2], const struct ex_grid *grid, const struct ex_entries *e, int i,
                                     const uint8_t levels[16])
{
    (void)grid;
    w[0] = ex_levels2(e->words[i % 2], i / 2 * 2, levels);
    w[1] = ex_levels2(e->words[i % 2], i / 2 * 2 + 1, levels);
}

/* Four weights of the entry of byte i. */
KERNELS_ALWAYS_INLINE vi ex_entry4(const struct ex_grid *grid, const struct ex_entries *e, int i,
                                   const uint8_t levels[16])
{
    (void)grid;
    return ex_levels4(e->words[i % 2], i / 2, levels);
}

#endif
