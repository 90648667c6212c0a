/* Layouts: the orders in which a weight matrix's bytes may lie in memory.
 *
 * ROWS is GGUF's own order: row after row of blocks. R16 interleaves groups of 16 rows so that one 512-bit
 * vector holds the same four bytes of 16 rows and each lane accumulates its own row; matrices are padded with
 * zero rows to a whole number of groups. The order inside a group is fixed by the type and documented in
 * layout.c, is the same on every machine (so a prepared store is portable), and unpacks to the very bytes it
 * was packed from. */
#ifndef QUANT_LAYOUT_H
#define QUANT_LAYOUT_H

#include "quant/quant.h"

enum quant_layout {
    LAYOUT_ROWS, /* ids are stored in files: append, never renumber */
    LAYOUT_R16,
    LAYOUT_N
};

enum { LAYOUT_R16_ROWS = 16, LAYOUT_MAX_QUAD = 13 };

const char *layout_name(enum quant_layout layout);

/* Whether the layout is defined for the type. ROWS always is. */
bool layout_supports(enum quant_layout layout, const struct quant_info *q);

/* Bytes of n_row rows of k weights in a layout (R16: the rows rounded up to 16); false on overflow or bad k.
 */
bool layout_bytes(enum quant_layout layout, const struct quant_info *q, uint64_t n_row, uint64_t k, size_t *out);

/* What R16 is made of: four dwords that stand together in the rows' blocks, `off` bytes into them, go to vectors `at`
 * these bytes of the block of 16 rows. A dword may be in two quads, where their number is no multiple of four. */
struct layout_quads {
    int n;
    struct {
        uint16_t off, at[4];
    } quad[LAYOUT_MAX_QUAD];
};

/* Moves the quads of n_block blocks of 16 rows that are `row` bytes apart. An instruction set may have a fast one
 * (kernels/kernels.h). */
typedef void layout_put_fn(const struct layout_quads *p, uint8_t *dst, const uint8_t *src, size_t row,
                           size_t block_bytes, size_t n_block);

/* A matrix in a layout: n_row rows of k weights. */
struct layout_matrix {
    enum quant_layout layout;
    const struct quant_info *type;
    uint64_t n_row, k;
};

/* Packs rows [row0, row0 + n) into `dst`, the start of the packed matrix. `src` holds just those n rows in GGUF's
 * order. row0: a multiple of 16; n: a multiple of 16 or up to the last row (padding is then written). Safe on disjoint
 * row ranges in parallel. put: NULL for plain C; it never changes what is written. */
void layout_pack(const struct layout_matrix *m, void *dst, const void *src, uint64_t row0, uint64_t n,
                 layout_put_fn *put);

/* The same for rows that lie in GGUF's order where they are to lie packed, in the matrix at `data`, which has room for
 * whole groups. tile: bytes of LAYOUT_R16_ROWS rows, to work in. */
void layout_pack_in_place(const struct layout_matrix *m, void *data, uint64_t row0, uint64_t n, layout_put_fn *put,
                          void *tile);

/* The inverse: rows [row0, row0 + n) back into GGUF's order at `dst`; any row0 and n within n_row. */
void layout_unpack(const struct layout_matrix *m, void *dst, const void *src, uint64_t row0, uint64_t n);

/* The matrices of a routed expert, in the order in which they lie in a slot and in files: never renumber. */
enum expert_matrix { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_N_MATRIX };

/* How the matrices of a routed expert lie together in one block of memory. */
struct layout_image {
    enum quant_layout layout[EXPERT_N_MATRIX];
    size_t off[EXPERT_N_MATRIX]; /* where each begins, in bytes from the block's start */
    size_t n_bytes;              /* of the block */
};

#endif
