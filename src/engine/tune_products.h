/* Chooses how products prefetch and unpack their weights, by timing them on the model's own weights in memory. */
#ifndef ENGINE_TUNE_PRODUCTS_H
#define ENGINE_TUNE_PRODUCTS_H

#include "backend/cpu_tuning.h"
#include "engine/race.h"
#include "moebius/moebius.h"

/* A type of weights that the model has in memory. Of its matrices those with rows of k weights are measured: the row
 * length that has most bytes. */
struct tune_type {
    const struct quant_info *type;
    int64_t k;
    size_t n_bytes; /* of these matrices */
};
/* With fewer bytes than TUNE_MIN_BYTES the weights may be in a cache, so that timing them says nothing of memory. */
enum { TUNE_MAX_TYPE = 16, TUNE_MIN_BYTES = 256 << 20 };

/* Finds the types that have min_bytes or more, sorted by falling bytes; returns how many there are. */
int tune_types(const moebius_engine *g, size_t min_bytes, struct tune_type types[TUNE_MAX_TYPE]);

/* What was measured of a type. */
struct tune_product {
    const struct quant_info *type;
    int64_t n_tok;                                 /* the products' number of tokens */
    struct kernel_prefetch before, chosen;         /* what was in force, and the fastest */
    double gain;                                   /* time before over time now; 1: nothing changed */
    double bytes_per_s;                            /* weights a second, with what was chosen */
    int32_t several_from, tiles_from, panels_from; /* if n_tok is 1: as in struct cpu_tuning */
};

/* How many choices are tried: a dozen, for a measurement of some milliseconds, or all that `moebius tune` tries. */
enum tune_effort { TUNE_QUICK, TUNE_THOROUGH };

/* Times a type's products with n_tok tokens for budget_ns. False when memory is short: there is no measurement. */
bool tune_product(moebius_engine *g, const struct tune_type *t, int64_t n_tok, enum tune_effort effort,
                  int64_t budget_ns, struct tune_product *out);

/* Times, for budget_ns, from how many tokens on the prefetch for several tokens is at least as fast as `one`: *from is
 * 2 to 5. False when memory is short; *from is left alone. */
bool tune_several(moebius_engine *g, const struct tune_type *t, struct kernel_prefetch one, int64_t budget_ns,
                  int32_t *from);

/* Times, for budget_ns, from how many tokens on the matrix unit is faster with a type's weights: *from, 0 if it never
 * is or there is none. False when memory is short. */
bool tune_tiles(moebius_engine *g, const struct tune_type *t, int64_t budget_ns, int32_t *from);

/* Times, for budget_ns, from how many tokens on it is faster to unpack a type's weights once for all tokens: *from, 0
 * if it never is. False when memory is short. */
bool tune_panels(moebius_engine *g, const struct tune_type *t, int64_t budget_ns, int32_t *from);

#endif
