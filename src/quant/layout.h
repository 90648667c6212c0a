/* Layouts: the orders in which the bytes of a weight matrix may lie in memory.
 *
 * ROWS is GGUF's own order: row after row of blocks. R16 interleaves groups of 16 rows, so that a 512-bit vector holds
 * the same four bytes of 16 rows and each of its lanes accumulates a row; matrices are padded with rows of zeros to a
 * whole number of groups. The order inside a group depends on the type only (layout.c documents it) and is the same on
 * every machine, so that a prepared store is portable. Unpacking gives the very bytes that were packed. */
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

/* Computes the bytes of n_row rows of k weights in a layout (R16: of n_row rounded up to 16); false on overflow, and
 * when k is not a multiple of the block length. */
bool layout_bytes(enum quant_layout layout, const struct quant_info *q, uint64_t n_row, uint64_t k, size_t *out);

/* How R16 moves the dwords of blocks, four at a time: a quad is four neighbouring dwords, `off` bytes into each row's
 * block, which go to the vectors that begin at bytes at[0] to at[3] of the packed block of 16 rows. A dword may be in
 * two quads, as the number of dwords need not be a multiple of four. */
struct layout_quads {
    int n;
    struct {
        uint16_t off, at[4];
    } quad[LAYOUT_MAX_QUAD];
};

/* Moves the quads of n_block blocks of 16 rows that are `row` bytes apart. Instruction sets may have fast functions for
 * it (kernels/kernels.h). */
typedef void layout_put_fn(const struct layout_quads *p, uint8_t *dst, const uint8_t *src, size_t row,
                           size_t block_bytes, size_t n_block);

/* A matrix in a layout: n_row rows of k weights. */
struct layout_matrix {
    enum quant_layout layout;
    const struct quant_info *type;
    uint64_t n_row, k;
};

/* Packs rows [row0, row0 + n) of a matrix. `dst` is the start of the packed matrix, while `src` holds only those n rows
 * in GGUF's order. row0 is a multiple of 16; n is, too, or it ends at the last row, behind which padding is then
 * written. Disjoint ranges of rows may be packed in parallel. put: NULL for plain C; the result is the same. */
void layout_pack(const struct layout_matrix *m, void *dst, const void *src, uint64_t row0, uint64_t n,
                 layout_put_fn *put);

/* The same in place: the rows lie in GGUF's order in the matrix at `data`, which has room for whole groups. `tile` is a
 * work space for LAYOUT_R16_ROWS rows. */
void layout_pack_in_place(const struct layout_matrix *m, void *data, uint64_t row0, uint64_t n, layout_put_fn *put,
                          void *tile);

/* The inverse: puts rows [row0, row0 + n) of the packed matrix at `src` into GGUF's order at `dst`, for any row0 and n
 * within n_row. */
void layout_unpack(const struct layout_matrix *m, void *dst, const void *src, uint64_t row0, uint64_t n);

/* The matrices of a routed expert, in the order in which they lie in a slot and in files: never renumber. */
enum expert_matrix { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_N_MATRIX };

/* How the matrices of a routed expert lie together in one block of memory. */
struct layout_image {
    enum quant_layout layout[EXPERT_N_MATRIX];
    size_t off[EXPERT_N_MATRIX]; /* where each begins, in bytes from the start of the memory */
    size_t n_bytes;              /* bytes of all together */
};

#endif
