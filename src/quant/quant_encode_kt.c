/* Encoders of IQ2_KT, IQ3_KT and IQ4_KT. A seed's weights look like random numbers, so a group of weights is encoded by
 * looking for the nearest of what all seeds give (quant_nearest.h). A sub-block's scale and sign, and in IQ4_KT which
 * half of the seeds it uses, each give other points to choose from: of several choices, all nearly as good before
 * anything is searched, the best is taken. */
#include "quant/quant_encode_kt.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "quant/blocks.h"
#include "quant/quant_fit.h"
#include "quant/quant_nearest.h"

enum { SUB = 32, MAX_GROUP = 8, N_SUB = QUANT_SUPER / SUB, MAX_CODE = 128 };

/* A sub-block as it is stored. */
struct choice {
    int code, half;   /* code of its scale; which half of the seeds it uses */
    uint16_t seed[8]; /* of each group of weights */
};

struct format {
    int n_dim, n_seed, n_half; /* weights of a seed; seeds in a half; halves that sub-blocks choose from */
    bool magnitudes;           /* seeds give magnitudes; signs are stored apart */
    int n_code, n_try;         /* codes of scales, and how many of them are tried */
    int (*scale)(int code);    /* the scale of a code, in units of the row's */
    float typical;             /* with the best scale, weights have about this root mean square */
    float stretch;             /* for nearest_find */
    void (*store)(void *block, int sub, const struct choice *c, const float *x); /* x: gives signs stored apart */
};

/* What a format's encoder looks up. */
struct book {
    const struct format *format;
    struct nearest points[2];  /* the weights of all seeds, in each half */
    uint8_t by_size[MAX_CODE]; /* codes of scales in the order of their magnitude */
};

struct kt_tables {
    struct book iq2, iq3, iq4;
};

/* ---- the formats --------------------------------------------------------------------------------------------- */

static int scale_iq2(int code)
{
    return quant_iq4_values[code];
}
static int scale_iq3(int code)
{
    return code;
}
static int scale_iq4(int code)
{
    return code - 64;
}

static void store_seed16(uint8_t *qs, int sub, const struct choice *c)
{
    for (int i = 0; i < 4; i++) {
        qs[8 * sub + 2 * i] = (uint8_t)c->seed[i];
        qs[8 * sub + 2 * i + 1] = (uint8_t)(c->seed[i] >> 8);
    }
}

static void store_iq2(void *block, int sub, const struct choice *c, const float *x)
{
    struct block_iq2_kt *b = block;
    b->scales[sub % 4] |= (uint8_t)(c->code << sub / 4 * 4);
    store_seed16(b->qs, sub, c);
}

static void store_iq3(void *block, int sub, const struct choice *c, const float *x)
{
    struct block_iq3_kt *b = block;
    b->scales[sub % 4] |= (uint8_t)(c->code << sub / 4 * 4);
    store_seed16(b->qs, sub, c);
    for (int i = 0; i < SUB; i++)
        b->qh[i] |= (uint8_t)((x[i] < 0) << sub);
}

static void store_iq4(void *block, int sub, const struct choice *c, const float *x)
{
    struct block_iq4_kt *b = block;
    uint32_t head = (uint32_t)(c->half | c->code << 1);
    for (int i = 0; i < 8; i++) {
        int at = 8 * sub + i;
        b->qs[at] = (uint8_t)c->seed[i];
        b->qh[at % 32] |= (uint8_t)((c->seed[i] >> 8 & 15) << at / 32 * 4);
        head |= (uint32_t)(c->seed[i] >> 12) << (8 + 3 * i);
    }
    for (int i = 0; i < 4; i++)
        b->head[4 * sub + i] = (uint8_t)(head >> 8 * i);
}

static const struct format format_iq2 = {.n_dim = 8,
                                         .n_seed = 65536,
                                         .n_half = 1,
                                         .n_code = 16,
                                         .n_try = 4,
                                         .scale = scale_iq2,
                                         .typical = 35,
                                         .stretch = 4,
                                         .store = store_iq2};
static const struct format format_iq3 = {.n_dim = 8,
                                         .n_seed = 65536,
                                         .n_half = 1,
                                         .magnitudes = true,
                                         .n_code = 16,
                                         .n_try = 7,
                                         .scale = scale_iq3,
                                         .typical = 35,
                                         .stretch = 3,
                                         .store = store_iq3};
static const struct format format_iq4 = {.n_dim = 4,
                                         .n_seed = 32768,
                                         .n_half = 2,
                                         .n_code = 128,
                                         .n_try = 12,
                                         .scale = scale_iq4,
                                         .typical = 33,
                                         .stretch = 2.5f,
                                         .store = store_iq4};

/* ---- tables -------------------------------------------------------------------------------------------------- */

/* The weights of a seed in units of the scale, IQ3_KT's without their signs. */
static void seed_values(const struct format *f, int half, int seed, int8_t *value)
{
    uint32_t state = (uint32_t)(seed + half * 32768 + QUANT_TRELLIS_START);
    for (int k = 0; k < f->n_dim; k++) {
        int v = quant_trellis(&state);
        value[k] = (int8_t)(f->magnitudes && v < 0 ? -v : v);
    }
}

static int magnitude(const struct format *f, int code)
{
    int s = f->scale(code);
    return s < 0 ? -s : s;
}

/* values: room for those of all seeds */
static bool open_book(struct book *b, const struct format *f, int8_t *values)
{
    b->format = f;
    for (int i = 0; i < f->n_code; i++) {
        int at = i;
        for (; at > 0 && magnitude(f, b->by_size[at - 1]) > magnitude(f, i); at--)
            b->by_size[at] = b->by_size[at - 1];
        b->by_size[at] = (uint8_t)i;
    }
    for (int half = 0; half < f->n_half; half++) {
        for (int seed = 0; seed < f->n_seed; seed++)
            seed_values(f, half, seed, values + seed * f->n_dim);
        if (!nearest_open(&b->points[half], values, f->n_seed, f->n_dim))
            return false;
    }
    return true;
}

struct kt_tables *kt_tables_create(void)
{
    struct kt_tables *t = mem_calloc(1, sizeof *t);
    int8_t *values = mem_alloc(65536 * MAX_GROUP);
    if (!t || !values || !open_book(&t->iq2, &format_iq2, values) || !open_book(&t->iq3, &format_iq3, values) ||
        !open_book(&t->iq4, &format_iq4, values))
        kt_tables_close(&t);
    mem_free(values);
    return t;
}

void kt_tables_close(struct kt_tables **t)
{
    if (!*t)
        return;
    struct book *books[] = {&(*t)->iq2, &(*t)->iq3, &(*t)->iq4};
    for (int i = 0; i < 3; i++)
        for (int half = 0; half < 2; half++)
            nearest_close(&books[i]->points[half]);
    mem_free(*t);
    *t = NULL;
}

/* ---- a sub-block --------------------------------------------------------------------------------------------- */

/* A sub-block's ideal scale, any number. */
static float ideal_scale(const struct format *f, const float *x, const float *w)
{
    float squares = 0, sum = 0, largest = 0;
    for (int i = 0; i < SUB; i++) {
        squares += w[i] * x[i] * x[i];
        sum += w[i];
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    }
    if (!(squares > 0))
        return 0;
    return fmaxf(sqrtf(squares / sum) / f->typical, largest / 100); /* the largest value is 126 */
}

/* The seeds for a scale; the sum of w (x - decoded)^2, or INFINITY where that would not be less than `least`. */
static float find_seeds(const struct book *b, const float *x, const float *w, float least, struct choice *c)
{
    const struct format *f = b->format;
    float scale = (float)f->scale(c->code), unit = scale * scale, error = 0, at[MAX_GROUP];
    for (int i = 0; i < SUB; i += f->n_dim) {
        int seed = 0;
        if (unit > 0) {
            float left = (least - error) / unit;
            for (int k = 0; k < f->n_dim; k++)
                at[k] = x[i + k] / scale;
            seed = nearest_find(&b->points[c->half], at, w + i, f->stretch, &left);
            error += left * unit;
        } else {
            for (int k = i; k < i + f->n_dim; k++)
                error += w[k] * x[k] * x[k];
        }
        if (seed < 0)
            return INFINITY;
        c->seed[i / f->n_dim] = (uint16_t)seed;
    }
    return error < least ? error : INFINITY;
}

/* The best of the scales next to `ideal`, both signs where there are two. All in units of the row's scale. */
static struct choice choose(const struct book *b, const float *x, const float *w, float ideal)
{
    const struct format *f = b->format;
    struct choice best = {.code = b->by_size[0]}, c = best;
    float least = INFINITY;
    int above = 0;
    while (above < f->n_code && (float)magnitude(f, b->by_size[above]) < ideal)
        above++;
    for (int i = 0, below = above - 1; i < f->n_try && (below >= 0 || above < f->n_code); i++) {
        bool down = above == f->n_code || (below >= 0 && ideal - (float)magnitude(f, b->by_size[below]) <
                                                             (float)magnitude(f, b->by_size[above]) - ideal);
        c.code = b->by_size[down ? below-- : above++];
        for (c.half = 0; c.half < f->n_half; c.half++) {
            float error = find_seeds(b, x, w, least, &c);
            if (error < least) {
                least = error;
                best = c;
            }
        }
    }
    return best;
}

/* ---- a row --------------------------------------------------------------------------------------------------- */

struct sums {
    double xx, qq; /* sums of w * weight^2 of the weights, and as they are decoded */
};

static void encode_block(const struct book *b, const float *x, const float *w, float d, uint8_t *block,
                         struct sums *sums)
{
    const struct format *f = b->format;
    float unit_x[SUB];
    int8_t value[MAX_GROUP];
    for (int sub = 0; sub < N_SUB; sub++) {
        const float *xs = x + sub * SUB, *ws = w + sub * SUB;
        for (int i = 0; i < SUB; i++)
            unit_x[i] = (f->magnitudes ? fabsf(xs[i]) : xs[i]) / d;
        struct choice c = choose(b, unit_x, ws, ideal_scale(f, unit_x, ws));
        f->store(block, sub, &c, xs);
        for (int g = 0; g < SUB; g += f->n_dim) {
            seed_values(f, c.half, c.seed[g / f->n_dim], value);
            for (int i = g; i < g + f->n_dim; i++) {
                double q = f->scale(c.code) * value[i - g];
                sums->xx += (double)ws[i] * (double)unit_x[i] * (double)unit_x[i];
                sums->qq += (double)ws[i] * q * q;
            }
        }
    }
}

static void block_weights(const float *importance, int64_t at, float w[QUANT_SUPER])
{
    for (int i = 0; !importance && i < QUANT_SUPER; i++)
        w[i] = 1;
    if (importance)
        fit_importances(w, importance + at, QUANT_SUPER, QUANT_SUPER);
}

static const struct book *book_of(const struct kt_tables *t, enum quant_type type)
{
    return type == QUANT_IQ2_KT ? &t->iq2 : type == QUANT_IQ3_KT ? &t->iq3 : &t->iq4;
}

void kt_encode_row(const struct kt_tables *t, const struct quant_info *q, const float *x, const float *importance,
                   void *row, int64_t n)
{
    const struct book *b = book_of(t, q->type);
    const struct format *f = b->format;
    uint8_t *blocks = (uint8_t *)row + q->head_bytes;
    float w[QUANT_SUPER], largest = 0;
    assert(n % QUANT_SUPER == 0);
    for (int64_t at = 0; at < n; at += QUANT_SUPER) {
        block_weights(importance, at, w);
        for (int i = 0; i < QUANT_SUPER; i += SUB)
            largest = fmaxf(largest, ideal_scale(f, x + at + i, w + i));
    }
    /* The largest scale fits into the codes with room for some that are larger. */
    float d = 1.2f * largest / (float)magnitude(f, b->by_size[f->n_code - 1]);
    struct sums sums = {0, 0};
    memset(row, 0, (size_t)q->head_bytes + (size_t)(n / QUANT_SUPER) * (size_t)q->block_bytes);
    if (d < 1e-30f)
        return;
    for (int64_t at = 0; at < n; at += QUANT_SUPER, blocks += q->block_bytes) {
        block_weights(importance, at, w);
        encode_block(b, x + at, w, d, blocks, &sums);
    }
    /* Decoded weights are made as large as the weights (quant/encode_super.h: match_sizes). */
    if (sums.qq > 0)
        d *= (float)sqrt(sums.xx / sums.qq);
    memcpy(row, &d, sizeof d);
}
