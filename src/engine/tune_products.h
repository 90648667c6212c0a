/* How products prefetch their weights, chosen by timing them on the model's own weights, as they lie in memory. */
#ifndef ENGINE_TUNE_PRODUCTS_H
#define ENGINE_TUNE_PRODUCTS_H

#include "backend/cpu_tuning.h"
#include "engine/race.h"
#include "moebius/moebius.h"

/* A type of weights in memory. Of its matrices those are measured whose rows of k weights have most bytes. */
struct tune_type {
    const struct quant_info *type;
    int64_t k;
    size_t n_bytes; /* of these matrices */
};
enum { TUNE_MAX_TYPE = 16, TUNE_MIN_BYTES = 256 << 20 }; /* fewer bytes may be in a cache, and say nothing of memory */

/* Finds the types that have min_bytes or more, the one with most bytes first, and returns how many there are. */
int tune_types(const moebius_engine *g, size_t min_bytes, struct tune_type types[TUNE_MAX_TYPE]);

/* What was measured of a type. */
struct tune_product {
    const struct quant_info *type;
    int64_t n_tok;                                 /* tokens that its weights met */
    struct kernel_prefetch before, chosen;         /* what was in force, and the fastest */
    double gain;                                   /* time before over time now; 1 where nothing changed */
    double bytes_per_s;                            /* of weights, now */
    int32_t several_from, tiles_from, panels_from; /* with one token: as in struct cpu_tuning */
};

/* The choices: a dozen for a measurement of some milliseconds, or all that `moebius tune` tries. */
enum tune_effort { TUNE_QUICK, TUNE_THOROUGH };

/* Times a type's products with n_tok tokens for budget_ns. False when memory is short: there is no measurement. */
bool tune_product(moebius_engine *g, const struct tune_type *t, int64_t n_tok, enum tune_effort effort,
                  int64_t budget_ns, struct tune_product *out);

/* From how many tokens on, 2 to 5, `one` is no longer a faster prefetch of a type's weights than that for several,
 * timed for budget_ns. False when memory is short: *from is left alone. */
bool tune_several(moebius_engine *g, const struct tune_type *t, struct kernel_prefetch one, int64_t budget_ns,
                  int32_t *from);

/* From how many tokens on the matrix unit is faster with a type's weights, timed for budget_ns; 0: never, or there is
 * none. False when memory is short. */
bool tune_tiles(moebius_engine *g, const struct tune_type *t, int64_t budget_ns, int32_t *from);

/* From how many tokens on a type's weights are better unpacked once for all of them, timed for budget_ns; 0: never.
 * False when memory is short. */
bool tune_panels(moebius_engine *g, const struct tune_type *t, int64_t budget_ns, int32_t *from);

#endif
