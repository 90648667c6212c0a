#include "quant/layout.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

/* R16 stores, for each group of 16 rows, the dwords of the rows' blocks transposed (one 64-byte vector holds
 * one dword of each row, row i in lane i), and what is no whole dword (the scale of blocks whose size is not
 * a multiple of four) in a tail behind them:
 *
 *   group: [the rows' heads, one vector,] for each block { n_vec vectors, 16 tails of tail_bytes }
 *
 * Tails behind each block, though they leave half of the vectors across two cache lines, and not behind the group: a
 * second stream of reads halves the speed of the first on some processors (docs/experiments.md).
 * A type's entry lists which dword of the block, by its byte offset, each vector holds. */
enum { MAX_VEC = 52 };

struct r16 {
    int n_vec;                /* vectors a block; 0: the type has no R16 */
    int tail_off, tail_bytes; /* of the tail in the block */
    uint8_t off[MAX_VEC];     /* byte offsets of the dwords in the block */
};

#define RUN4(o)  (o), (o) + 4, (o) + 8, (o) + 12
#define RUN8(o)  RUN4(o), RUN4((o) + 16)
#define RUN16(o) RUN8(o), RUN8((o) + 32)
#define RUN32(o) RUN16(o), RUN16((o) + 64)

/* Q6_K, in the order a kernel uses it: the two dwords of ql that a dword of qh completes, and that one. */
#define Q6_USE(h, i) (h) * 64 + (i)*4, (h)*64 + 32 + (i)*4, 128 + (h)*32 + (i)*4
#define Q6_HALF(h)                                                                                                     \
    Q6_USE(h, 0), Q6_USE(h, 1), Q6_USE(h, 2), Q6_USE(h, 3), Q6_USE(h, 4), Q6_USE(h, 5), Q6_USE(h, 6), Q6_USE(h, 7)

/* Q3_K, the same: a dword of hmask, the one of qs's first half that it completes, and in the end the second half. */
#define Q3_USE(i) (i) * 4, 32 + (i)*4

/* All others in the order of their bytes, as quant/blocks.h has them. What a block's sums need first stands first: an
 * order that is walked from front to back is one that processors see coming. */
static const struct r16 r16_types[QUANT_MAX_ID] = {
    [QUANT_Q4_0] = {4, 0, 2, {RUN4(2)}},
    [QUANT_Q4_1] = {5, 0, 0, {0, RUN4(4)}},
    [QUANT_Q5_0] = {5, 0, 2, {2, RUN4(6)}},
    [QUANT_Q5_1] = {6, 0, 0, {0, 4, RUN4(8)}},
    [QUANT_Q8_0] = {8, 0, 2, {RUN8(2)}},
    [QUANT_IQ4_NL] = {4, 0, 2, {RUN4(2)}},
    [QUANT_MXFP4] = {4, 0, 1, {RUN4(1)}},
    [QUANT_Q2_K] = {21, 0, 0, {RUN16(0), RUN4(64), 80}},
    [QUANT_Q3_K] = {27,
                    108,
                    2,
                    {96, 100, 104, Q3_USE(0), Q3_USE(1), Q3_USE(2), Q3_USE(3), Q3_USE(4), Q3_USE(5), Q3_USE(6),
                     Q3_USE(7), RUN8(64)}},
    [QUANT_Q4_K] = {36, 0, 0, {RUN4(0), RUN32(16)}},
    [QUANT_Q5_K] = {44, 0, 0, {RUN4(0), RUN8(16), RUN32(48)}},
    [QUANT_Q6_K] = {52, 208, 2, {RUN4(192), Q6_HALF(0), Q6_HALF(1)}},
    [QUANT_IQ4_XS] = {34, 0, 0, {0, 4, RUN32(8)}},
    [QUANT_IQ1_S] = {12, 0, 2, {RUN8(2), RUN4(34)}},
    [QUANT_IQ1_M] = {14, 0, 0, {RUN8(0), RUN4(32), 48, 52}},
    [QUANT_IQ2_XXS] = {16, 0, 2, {RUN16(2)}},
    [QUANT_IQ2_XS] = {18, 0, 2, {RUN16(2), 66, 70}},
    [QUANT_IQ2_S] = {20, 0, 2, {RUN16(2), RUN4(66)}},
    [QUANT_IQ3_XXS] = {24, 0, 2, {RUN16(2), RUN8(66)}},
    [QUANT_IQ3_S] = {27, 0, 2, {RUN16(2), 66, 70, RUN8(74), 106}},
    [QUANT_TQ1_0] = {13, 52, 2, {RUN8(0), RUN4(32), 48}},
    [QUANT_TQ2_0] = {16, 64, 2, {RUN16(0)}},
    [QUANT_Q1_0] = {4, 0, 2, {RUN4(2)}},
    [QUANT_Q2_0] = {4, 0, 2, {RUN4(2)}},
    [QUANT_NVFP4] = {9, 0, 0, {0, RUN8(4)}},
    [QUANT_IQ2_KT] = {17, 0, 0, {0, RUN16(4)}},
    [QUANT_IQ3_KT] = {25, 0, 0, {0, RUN16(4), RUN8(68)}},
    [QUANT_IQ4_KT] = {32, 0, 0, {RUN32(0)}},
};

const char *layout_name(enum quant_layout layout)
{
    static const char *const names[LAYOUT_N] = {"rows", "r16"};
    return names[layout];
}

bool layout_supports(enum quant_layout layout, const struct quant_info *q)
{
    return layout == LAYOUT_ROWS || (layout == LAYOUT_R16 && r16_types[q->type].n_vec > 0);
}

bool layout_bytes(enum quant_layout layout, const struct quant_info *q, uint64_t n_row, uint64_t k, size_t *out)
{
    size_t row;
    if (!layout_supports(layout, q) || !quant_row_bytes(q, k, &row))
        return false;
    if (layout == LAYOUT_R16) {
        if (n_row > UINT64_MAX - (LAYOUT_R16_ROWS - 1))
            return false;
        n_row = (n_row + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS * LAYOUT_R16_ROWS;
    }
    return n_row <= SIZE_MAX && mem_mul((size_t)n_row, row, out);
}

static size_t row_bytes(const struct quant_info *q, uint64_t k)
{
    size_t n = 0;
    bool ok = quant_row_bytes(q, k, &n);
    assert(ok);
    (void)ok;
    return n;
}

/* A group of 16 rows, `row` bytes apart, of which n are there and the others zeros. Vector by vector, so that what is
 * written lies in order. */
static void r16_put(const struct quant_info *q, uint8_t *group, const uint8_t *src, size_t row, uint64_t n, uint64_t k)
{
    static const uint8_t zeros[MAX_VEC * 4 + 4]; /* the longest block */
    const struct r16 *r = &r16_types[q->type];
    const uint8_t *block[LAYOUT_R16_ROWS];
    size_t step[LAYOUT_R16_ROWS], head = (size_t)q->head_bytes, tail = (size_t)r->tail_bytes;
    for (uint64_t lane = 0; lane < LAYOUT_R16_ROWS; lane++) {
        bool there = lane < n;
        memcpy(group + lane * head, there ? src + lane * row : zeros, head);
        block[lane] = there ? src + lane * row + head : zeros;
        step[lane] = there ? (size_t)q->block_bytes : 0;
    }
    group += head * LAYOUT_R16_ROWS;
    for (uint64_t b = 0; b < k / (uint64_t)q->block_len; b++) {
        for (int i = 0; i < r->n_vec; i++, group += 64)
            for (int lane = 0; lane < LAYOUT_R16_ROWS; lane++)
                memcpy(group + 4 * lane, block[lane] + r->off[i], 4);
        for (int lane = 0; lane < LAYOUT_R16_ROWS; lane++, group += tail)
            memcpy(group, block[lane] + r->tail_off, tail);
        for (int lane = 0; lane < LAYOUT_R16_ROWS; lane++)
            block[lane] += step[lane];
    }
}

static void r16_get(const struct quant_info *q, uint8_t *dst, const uint8_t *group, int lane, uint64_t k)
{
    const struct r16 *r = &r16_types[q->type];
    size_t head = (size_t)q->head_bytes;
    memcpy(dst, group + (size_t)lane * head, head);
    dst += head;
    group += head * LAYOUT_R16_ROWS;
    for (uint64_t b = 0; b < k / (uint64_t)q->block_len; b++, group += q->block_bytes * LAYOUT_R16_ROWS) {
        for (int i = 0; i < r->n_vec; i++)
            memcpy(dst + r->off[i], group + i * 64 + lane * 4, 4);
        memcpy(dst + r->tail_off, group + r->n_vec * 64 + lane * r->tail_bytes, (size_t)r->tail_bytes);
        dst += q->block_bytes;
    }
}

void layout_pack(enum quant_layout layout, const struct quant_info *q, void *dst, const void *src, uint64_t row0,
                 uint64_t n, uint64_t n_row, uint64_t k)
{
    size_t row = row_bytes(q, k);
    assert(layout_supports(layout, q) && row0 <= n_row && n <= n_row - row0);
    if (layout == LAYOUT_ROWS) {
        memcpy((uint8_t *)dst + row0 * row, src, n * row);
        return;
    }
    assert(row0 % LAYOUT_R16_ROWS == 0 && (n % LAYOUT_R16_ROWS == 0 || row0 + n == n_row));
    for (uint64_t i = 0; i < n; i += LAYOUT_R16_ROWS)
        r16_put(q, (uint8_t *)dst + (row0 + i) * row, (const uint8_t *)src + i * row, row, n - i, k);
}

void layout_unpack(enum quant_layout layout, const struct quant_info *q, void *dst, const void *src, uint64_t row0,
                   uint64_t n, uint64_t k)
{
    size_t row = row_bytes(q, k);
    assert(layout_supports(layout, q));
    if (layout == LAYOUT_ROWS) {
        memcpy(dst, (const uint8_t *)src + row0 * row, n * row);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t lane = (row0 + i) % LAYOUT_R16_ROWS;
        r16_get(q, (uint8_t *)dst + i * row, (const uint8_t *)src + (row0 + i - lane) * row, (int)lane, k);
    }
}
