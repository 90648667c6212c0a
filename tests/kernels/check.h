/* What the parts of the kernel tester share: memory between guards, comparisons, and the score of a group. */
#ifndef TESTS_KERNELS_CHECK_H
#define TESTS_KERNELS_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "kernels/kernels.h"

struct check {
    struct random rng;
    int n_table;
    const struct kernels *tables[CPU_N_LEVEL]; /* the scalar one first */
    long n_pass, n_fail;                       /* of the group */
    long total_fail;
};

void group_begin(struct check *c);
void group_end(struct check *c, const char *name);

/* Counts one result; prints the first few failures of a group. */
bool expect(struct check *c, bool ok, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* n_bytes that end right before a page that may not be touched, after bytes that guard_intact looks at. */
struct guard {
    unsigned char *map, *p;
    size_t map_bytes, n_bytes;
};
struct guard guard_alloc(size_t n_bytes);
bool guard_intact(const struct guard *g);
void guard_free(struct guard *g);

/* Equal to the bit, or both NaN. */
/* The larger one. (gcc 12 for Arm fails with an internal error at loops over fmax.) */
static inline double larger(double a, double b)
{
    return b > a ? b : a;
}

bool same_float(float a, float b);
bool same_floats(const float *a, const float *b, int64_t n);

float random_normal(struct random *r);
/* Normal numbers with zeros, tiny, large and one-signed stretches; `kind` chooses, any number. */
void random_floats(struct random *r, float *x, int64_t n, int kind);

extern const struct kernels tiles_model; /* products of some types, and nothing else */

void check_products(struct check *c);
void check_layouts(struct check *c);
void check_row_kernels(struct check *c);
void check_attention(struct check *c);
void check_recurrent(struct check *c);
void bench_products(struct check *c, const char *filter, bool curve); /* filter: a type's name; NULL: all */

/* n random blocks of a type; kind 0: usual scales and bits, others: extreme ones. */
void random_row(struct random *r, const struct quant_info *q, uint8_t *dst, int64_t n_block, int kind);
/* Byte offset of the block's second half-precision field (its minimum); -1: it has none. */
int block_min_off(const struct quant_info *q);

#endif
