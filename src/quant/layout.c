#include "quant/layout.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

/* R16 stores, for each group of 16 rows, the dwords of the rows' blocks transposed (one 64-byte vector holds
 * one dword of each row, row i in lane i), and what isn't a whole dword (the scale of blocks whose size is not
 * a multiple of four) in a tail behind them:
 *
 *   group: [the rows' heads, one vector,] for each block { n_vec vectors, 16 tails of tail_bytes }
 *
 * Tails lie behind each block and not behind the group, although half of the vectors then cross cache lines: a second
 * stream of reads halves the speed of the first on some processors (docs/experiments.md).
 * A type's entry lists which dword of the block, by its byte offset, each vector holds. */
enum { MAX_VEC = 4 * LAYOUT_MAX_QUAD, MAX_BLOCK = 4 * MAX_VEC + 2, PREFETCH_BYTES = 2048 };

struct r16 {
    int n_vec;                /* vectors of a block; 0: the type has no R16 */
    int tail_off, tail_bytes; /* where a block has its tail, and the tail's size */
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

/* All others are in the order of their bytes, as quant/blocks.h has them. What a kernel needs first comes first,
 * because processors prefetch memory that is read from front to back. */
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

typedef uint32_t u32x4 __attribute__((vector_size(16)));
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (u32x4){i, j, k, l})
#endif

/* Divides a block into quads (four dwords in a row), which together have all dwords. A dword that is in no quad yet
 * begins one, or comes as early in it as possible. */
static struct layout_quads r16_quads(const struct r16 *r)
{
    struct layout_quads p = {0};
    int vec[MAX_BLOCK + 16]; /* where the dword at this byte of a block goes, or -1 */
    bool done[MAX_VEC] = {false};
    memset(vec, -1, sizeof vec);
    for (int i = 0; i < r->n_vec; i++)
        vec[r->off[i]] = i;
    for (int i = 0; i < r->n_vec; i++)
        for (int off = r->off[i]; !done[i]; off -= 4) {
            assert(off > r->off[i] - 16 && off >= 0 && p.n < LAYOUT_MAX_QUAD);
            if (vec[off] < 0 || vec[off + 4] < 0 || vec[off + 8] < 0 || vec[off + 12] < 0)
                continue;
            p.quad[p.n].off = (uint16_t)off;
            for (int j = 0; j < 4; j++) {
                done[vec[off + 4 * j]] = true;
                p.quad[p.n].at[j] = (uint16_t)(vec[off + 4 * j] * 64);
            }
            p.n++;
        }
    return p;
}

/* Transposes four dwords of each of four rows into four vectors. */
static inline void put_quad(uint8_t *dst, const uint16_t at[4], const uint8_t *r0, const uint8_t *r1, const uint8_t *r2,
                            const uint8_t *r3)
{
    u32x4 a, b, c, d;
    memcpy(&a, r0, 16);
    memcpy(&b, r1, 16);
    memcpy(&c, r2, 16);
    memcpy(&d, r3, 16);
    u32x4 ab_low = SHUFFLE(a, b, 0, 4, 1, 5), ab_high = SHUFFLE(a, b, 2, 6, 3, 7);
    u32x4 cd_low = SHUFFLE(c, d, 0, 4, 1, 5), cd_high = SHUFFLE(c, d, 2, 6, 3, 7);
    a = SHUFFLE(ab_low, cd_low, 0, 1, 4, 5);
    b = SHUFFLE(ab_low, cd_low, 2, 3, 6, 7);
    c = SHUFFLE(ab_high, cd_high, 0, 1, 4, 5);
    d = SHUFFLE(ab_high, cd_high, 2, 3, 6, 7);
    memcpy(dst + at[0], &a, 16);
    memcpy(dst + at[1], &b, 16);
    memcpy(dst + at[2], &c, 16);
    memcpy(dst + at[3], &d, 16);
}

static void put_quads(const struct layout_quads *p, uint8_t *dst, const uint8_t *src, size_t row, size_t block_bytes,
                      size_t n_block)
{
    for (size_t b = 0; b < n_block; b++, src += block_bytes, dst += LAYOUT_R16_ROWS * block_bytes)
        for (size_t lane = 0; lane < LAYOUT_R16_ROWS; lane += 4)
            for (int i = 0; i < p->n; i++) {
                const uint8_t *r0 = src + p->quad[i].off + lane * row;
                put_quad(dst + 4 * lane, p->quad[i].at, r0, r0 + row, r0 + 2 * row, r0 + 3 * row);
            }
}

/* Packs the tails, n bytes each, of n_block blocks of 16 rows, eight bytes a store. n is a constant where this is
 * inlined, so that copying n bytes isn't a call. */
static inline void put_tails(uint8_t *dst, const uint8_t *src, size_t row, size_t block, size_t n_block, size_t n)
{
    for (size_t b = 0; b < n_block; b++, src += block, dst += LAYOUT_R16_ROWS * block)
        for (size_t lane = 0; lane < LAYOUT_R16_ROWS; lane += 8 / n) {
            uint8_t eight[8];
            for (size_t i = 0; i < 8 / n; i++)
                memcpy(eight + i * n, src + (lane + i) * row, n);
            memcpy(dst + lane * n, eight, 8);
        }
}

/* Packs n_block blocks of 16 rows that are `row` bytes apart. */
static void put_blocks(const struct quant_info *q, const struct layout_quads *p, layout_put_fn *put, uint8_t *dst,
                       const uint8_t *src, size_t row, size_t n_block)
{
    const struct r16 *r = &r16_types[q->type];
    size_t block = (size_t)q->block_bytes;
    put(p, dst, src, row, block, n_block);
    if (r->tail_bytes == 2)
        put_tails(dst + r->n_vec * 64, src + r->tail_off, row, block, n_block, 2);
    else if (r->tail_bytes == 1)
        put_tails(dst + r->n_vec * 64, src + r->tail_off, row, block, n_block, 1);
}

/* The same for rows that are not in the processor's cache yet. Sixteen streams are more than it prefetches by itself,
 * so the bytes behind the 16 rows are prefetched meanwhile, as one stream, a few blocks at a time. */
static void put_blocks_from_memory(const struct quant_info *q, const struct layout_quads *p, layout_put_fn *put,
                                   uint8_t *dst, const uint8_t *src, size_t row, size_t n_block)
{
    size_t block = (size_t)q->block_bytes, step = 1 + PREFETCH_BYTES / (LAYOUT_R16_ROWS * block), n;
    const uint8_t *next = src + LAYOUT_R16_ROWS * row;
    for (size_t b = 0; b < n_block; b += n) {
        n = n_block - b < step ? n_block - b : step;
        for (size_t i = b * LAYOUT_R16_ROWS * block; i < (b + n) * LAYOUT_R16_ROWS * block; i += 64)
            __builtin_prefetch(next + i, 0, 2);
        put_blocks(q, p, put, dst + b * LAYOUT_R16_ROWS * block, src + b * block, row, n);
    }
}

/* How a matrix is packed. */
struct packing {
    const struct quant_info *type;
    struct layout_quads quads;
    layout_put_fn *put;
    size_t row_bytes;
    uint64_t n_block; /* of a row */
    bool from_memory; /* the rows are not in the processor's cache yet */
};

static struct packing packing_of(const struct layout_matrix *m, layout_put_fn *put, bool from_memory)
{
    return (struct packing){.type = m->type,
                            .quads = r16_quads(&r16_types[m->type->type]),
                            .put = put ? put : put_quads,
                            .row_bytes = row_bytes(m->type, m->k),
                            .n_block = m->k / (uint64_t)m->type->block_len,
                            .from_memory = from_memory};
}

/* Packs a group of 16 rows, of which n are there and the others zeros. */
static void r16_put(const struct packing *p, uint8_t *group, const uint8_t *src, uint64_t n)
{
    size_t head = (size_t)p->type->head_bytes, block = (size_t)p->type->block_bytes, row = p->row_bytes;
    uint8_t few[LAYOUT_R16_ROWS * MAX_BLOCK];
    if (n < LAYOUT_R16_ROWS)
        memset(few, 0, sizeof few);
    for (size_t lane = 0; lane < LAYOUT_R16_ROWS && head > 0; lane++)
        memcpy(group + lane * head, lane < n ? src + lane * row : few, head);
    group += head * LAYOUT_R16_ROWS;
    src += head;
    if (n >= LAYOUT_R16_ROWS) {
        (p->from_memory ? put_blocks_from_memory : put_blocks)(p->type, &p->quads, p->put, group, src, row, p->n_block);
        return;
    }
    for (uint64_t b = 0; b < p->n_block; b++, src += block, group += LAYOUT_R16_ROWS * block) {
        for (size_t lane = 0; lane < n; lane++)
            memcpy(few + lane * block, src + lane * row, block);
        put_blocks(p->type, &p->quads, p->put, group, few, block, 1);
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

void layout_pack(const struct layout_matrix *m, void *dst, const void *src, uint64_t row0, uint64_t n,
                 layout_put_fn *put)
{
    size_t row = row_bytes(m->type, m->k);
    assert(layout_supports(m->layout, m->type) && row0 <= m->n_row && n <= m->n_row - row0);
    if (m->layout == LAYOUT_ROWS) {
        memcpy((uint8_t *)dst + row0 * row, src, n * row);
        return;
    }
    assert(row0 % LAYOUT_R16_ROWS == 0 && (n % LAYOUT_R16_ROWS == 0 || row0 + n == m->n_row));
    const struct packing p = packing_of(m, put, false);
    for (uint64_t i = 0; i < n; i += LAYOUT_R16_ROWS)
        r16_put(&p, (uint8_t *)dst + (row0 + i) * row, (const uint8_t *)src + i * row, n - i);
}

void layout_pack_in_place(const struct layout_matrix *m, void *data, uint64_t row0, uint64_t n, layout_put_fn *put,
                          void *tile)
{
    if (m->layout == LAYOUT_ROWS)
        return;
    const struct packing p = packing_of(m, put, true);
    for (uint64_t i = row0; i < row0 + n; i += LAYOUT_R16_ROWS) {
        uint8_t *group = (uint8_t *)data + i * p.row_bytes;
        r16_put(&p, tile, group, m->n_row - i);
        memcpy(group, tile, LAYOUT_R16_ROWS * p.row_bytes);
    }
}

void layout_unpack(const struct layout_matrix *m, void *dst, const void *src, uint64_t row0, uint64_t n)
{
    size_t row = row_bytes(m->type, m->k);
    assert(layout_supports(m->layout, m->type));
    if (m->layout == LAYOUT_ROWS) {
        memcpy(dst, (const uint8_t *)src + row0 * row, n * row);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t lane = (row0 + i) % LAYOUT_R16_ROWS;
        r16_get(m->type, (uint8_t *)dst + i * row, (const uint8_t *)src + (row0 + i - lane) * row, (int)lane, m->k);
    }
}
