/* Encoders of the formats with scales of scales: Q2_K to Q6_K and IQ4_XS. Lanes are sub-blocks (encode_fit.h). */
#ifndef QUANT_ENCODE_SUPER_H
#define QUANT_ENCODE_SUPER_H

#include "quant/encode_blocks.h"

/* The sub-blocks of one block, or of two where one has fewer than there are lanes. */
enum { MAX_UNIT = 16, MAX_GROUP = MAX_UNIT / LANES };
struct supers {
    int n_block, n_sub, n_group, len;
    struct batch groups[MAX_GROUP];
};

/* A number for each sub-block, as lanes or one by one: sub-block j of block k is number k * n_sub + j. */
union units {
    vf v[MAX_GROUP];
    float f[MAX_UNIT];
};

static inline int supers_per_batch(int n_sub)
{
    return n_sub < LANES ? LANES / n_sub : 1;
}

static inline void supers_load(struct supers *s, const float *x, const float *w, int n_block, int n_sub)
{
    int n_unit = n_block * n_sub;
    s->n_block = n_block;
    s->n_sub = n_sub;
    s->n_group = supers_per_batch(n_sub) * n_sub / LANES;
    s->len = QUANT_SUPER / n_sub;
    for (int g = 0; g < s->n_group; g++)
        batch_load(&s->groups[g], x, w, g * LANES, n_unit, s->len);
}

/* Gives each sub-block its block's number. */
static inline void spread(const struct supers *s, const float *of_block, union units *out)
{
    for (int u = 0; u < s->n_group * LANES; u++)
        out->f[u] = of_block[u / s->n_sub < s->n_block ? u / s->n_sub : 0];
}

/* Sums up the sub-blocks of each block. */
static inline void add_up(const struct supers *s, const union units *u, float *of_block)
{
    for (int k = 0; k < s->n_block; k++) {
        of_block[k] = 0;
        for (int j = 0; j < s->n_sub; j++)
            of_block[k] += u->f[k * s->n_sub + j];
    }
}

/* Makes decoded weights as large as the weights, from the sums of w x^2 and of w v^2 over sub-blocks, v the values that
 * are scaled. The nearest decoded weights are smaller, by sqrt(1 - error^2), at two bits some 5 %, and so is what is
 * computed with them. A scale keeps its sign, and stays where the sums don't determine it. */
static inline void match_sizes(const struct supers *s, const union units *xx, const union units *vv, float *of_block)
{
    float sum_xx[MAX_UNIT / 8], sum_vv[MAX_UNIT / 8];
    add_up(s, xx, sum_xx);
    add_up(s, vv, sum_vv);
    for (int k = 0; k < s->n_block; k++)
        if (sum_xx[k] > 0 && sum_vv[k] > 0)
            of_block[k] = copysignf(sqrtf(sum_xx[k] / sum_vv[k]), of_block[k]);
}

/* ---- a scale of integer scales ------------------------------------------------------------------------------- */

/* Weights are d * scale * value, value an integer lo..hi or one of a book's. */
struct super_codec {
    int lo, hi;
    const struct fit_book *book; /* or NULL */
    int scale_lo, scale_hi, n_round;
    bool as_large; /* decoded weights are as large as the weights, instead of nearest to them */
};

struct super {
    int16_t scale[MAX_UNIT];
    uint8_t code[MAX_UNIT * 32]; /* q - lo, or the value's number */
};

static inline vf super_error(const struct super_codec *c, const struct batch *b, int len, vf d)
{
    return c->book ? book_error(c->book, b->x, b->w, len, d) : fit_error(b->x, b->w, len, d, c->lo, c->hi, NULL);
}

/* Chooses the best integer scale next to `scale`. */
static inline vf choose_scale(const struct super_codec *c, const struct batch *b, int len, vf d, vf scale)
{
    vf best = V_ALL(INFINITY), chosen = scale;
    for (int step = -1; step <= 1; step++) {
        vf s = v_max(v_min(scale + (float)step, V_ALL((float)c->scale_hi)), V_ALL((float)c->scale_lo));
        vf error = super_error(c, b, len, d * s);
        vm better = v_less(error, best);
        best = v_choose(better, error, best);
        chosen = v_choose(better, s, chosen);
    }
    return chosen;
}

/* Computes the codes for the scales d. */
static inline void super_codes(const struct super_codec *c, const struct batch *b, int len, vf d, vi *codes)
{
    if (c->book) {
        book_indices(c->book, b->x, len, d, codes);
        return;
    }
    fit_error(b->x, b->w, len, d, c->lo, c->hi, codes);
    for (int i = 0; i < len; i++)
        codes[i] -= c->lo;
}

/* Sets each block's scale to the one that fits its values best, or that makes them as large as the weights, if the
 * values determine one. */
static inline void refit(const struct super_codec *c, const struct supers *s, const union units *d,
                         const union units *scale, bool as_large, float *of_block)
{
    union units xx, xv, vv;
    float sum_xv[MAX_UNIT / 8], sum_vv[MAX_UNIT / 8];
    for (int g = 0; g < s->n_group; g++) {
        const struct batch *b = &s->groups[g];
        vf id = v_inverse(d->v[g] * scale->v[g]);
        xv.v[g] = vv.v[g] = V_ALL(0);
        for (int i = 0; i < s->len; i++) {
            vf y = b->x[i] * id;
            vf v = scale->v[g] * (c->book ? book_value(c->book, y) : v_clamp_round(y, (float)c->lo, (float)c->hi));
            vf wv = v_weigh(b->w, i, v);
            xv.v[g] += wv * b->x[i];
            vv.v[g] += wv * v;
        }
        xx.v[g] = sum_squares(b->x, b->w, s->len);
    }
    if (as_large) {
        match_sizes(s, &xx, &vv, of_block);
        return;
    }
    add_up(s, &xv, sum_xv);
    add_up(s, &vv, sum_vv);
    for (int k = 0; k < s->n_block; k++)
        of_block[k] = sum_vv[k] > 0 ? sum_xv[k] / sum_vv[k] : of_block[k];
}

/* Fits blocks. half: where the first block's d is stored; the next ones' are `stride` bytes on. */
static inline void super_fit(const struct super_codec *c, const struct supers *s, uint8_t *half, size_t stride,
                             struct super *out)
{
    union units ideal = {0}, scale = {0}, d;
    float of_block[MAX_UNIT / 8] = {0}, top = (float)(c->scale_lo < 0 ? c->scale_lo : c->scale_hi);
    for (int g = 0; g < s->n_group; g++) {
        const struct batch *b = &s->groups[g];
        ideal.v[g] = c->book ? fit_iq4(c->book, b->x, b->w, s->len) : fit_scale(b->x, b->w, s->len, c->lo, c->hi, 1);
    }
    for (int k = 0; k < s->n_block; k++) {
        float extreme = 0;
        for (int u = k * s->n_sub; u < (k + 1) * s->n_sub; u++)
            extreme = fabsf(ideal.f[u]) > fabsf(extreme) ? ideal.f[u] : extreme;
        of_block[k] = fit_store_half(half + (size_t)k * stride, extreme / top);
    }
    spread(s, of_block, &d);
    for (int g = 0; g < s->n_group; g++)
        scale.v[g] = v_clamp_round(ideal.v[g] * v_inverse(d.v[g]), (float)c->scale_lo, (float)c->scale_hi);
    for (int round = 0; round < c->n_round; round++) {
        for (int g = 0; g < s->n_group; g++)
            scale.v[g] = choose_scale(c, &s->groups[g], s->len, d.v[g], scale.v[g]);
        refit(c, s, &d, &scale, false, of_block);
        for (int k = 0; k < s->n_block; k++)
            of_block[k] = fit_store_half(half + (size_t)k * stride, of_block[k]);
        spread(s, of_block, &d);
    }
    for (int g = 0; g < s->n_group; g++) {
        vi codes[32];
        super_codes(c, &s->groups[g], s->len, d.v[g] * scale.v[g], codes);
        lanes_bytes(out->code + g * LANES * s->len, s->len, LANES, codes);
    }
    if (c->as_large) {
        refit(c, s, &d, &scale, true, of_block);
        for (int k = 0; k < s->n_block; k++)
            fit_store_half(half + (size_t)k * stride, of_block[k]);
    }
    for (int u = 0; u < s->n_group * LANES; u++)
        out->scale[u] = (int16_t)scale.f[u];
}

static void encode_q3_k(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    static const struct super_codec codec = {
        .lo = -4, .hi = 3, .scale_lo = -32, .scale_hi = 31, .n_round = 2, .as_large = true};
    struct block_q3_k *b = blocks;
    struct supers s;
    struct super fitted;
    for (int at = 0; at < n_block; at++, b++, x += QUANT_SUPER, w += w ? QUANT_SUPER : 0) {
        supers_load(&s, x, w, 1, 16);
        memset(b, 0, sizeof *b);
        super_fit(&codec, &s, b->d, sizeof *b, &fitted);
        for (int j = 0; j < 16; j++) { /* quant/blocks.h: quant_q3k_scale */
            int v = fitted.scale[j] + 32;
            b->scales[j % 8] |= (uint8_t)((v & 15) << j / 8 * 4);
            b->scales[8 + j % 4] |= (uint8_t)(v >> 4 << j / 4 * 2);
        }
        for (int run = 0; run < 8; run++)
            for (int i = 0; i < 32; i++) {
                int q = fitted.code[32 * run + i];
                b->qs[run / 4 * 32 + i] |= (uint8_t)((q & 3) << run % 4 * 2);
                b->hmask[i] |= (uint8_t)(q >> 2 << run);
            }
    }
}

static void encode_q6_k(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    static const struct super_codec codec = {.lo = -32, .hi = 31, .scale_lo = -128, .scale_hi = 127, .n_round = 1};
    struct block_q6_k *b = blocks;
    struct supers s;
    struct super fitted;
    for (int at = 0; at < n_block; at++, b++, x += QUANT_SUPER, w += w ? QUANT_SUPER : 0) {
        supers_load(&s, x, w, 1, 16);
        memset(b, 0, sizeof *b);
        super_fit(&codec, &s, b->d, sizeof *b, &fitted);
        for (int j = 0; j < 16; j++)
            b->scales[j] = (int8_t)fitted.scale[j];
        for (int run = 0; run < 8; run++)
            for (int i = 0; i < 32; i++) {
                int half = run / 4, j = run % 4, q = fitted.code[32 * run + i];
                b->ql[half * 64 + j % 2 * 32 + i] |= (uint8_t)((q & 15) << j / 2 * 4);
                b->qh[half * 32 + i] |= (uint8_t)(q >> 4 << j * 2);
            }
    }
}

static void encode_iq4_xs(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    const struct super_codec codec = {.book = &t->iq4, .scale_lo = -32, .scale_hi = 31, .n_round = 2};
    struct supers s;
    struct super fitted;
    for (int at = 0, most = supers_per_batch(8); at < n_block; at += most) {
        struct block_iq4_xs *b = (struct block_iq4_xs *)blocks + at;
        int n = n_block - at < most ? n_block - at : most;
        size_t off = (size_t)at * QUANT_SUPER;
        supers_load(&s, x + off, w ? w + off : NULL, n, 8);
        super_fit(&codec, &s, b->d, sizeof *b, &fitted);
        for (int k = 0; k < n; k++, b++) {
            uint16_t high = 0;
            memset(b->scales_l, 0, sizeof b->scales_l);
            for (int j = 0; j < 8; j++) {
                const uint8_t *code = fitted.code + (8 * k + j) * 32;
                int v = fitted.scale[8 * k + j] + 32;
                b->scales_l[j / 2] |= (uint8_t)((v & 15) << j % 2 * 4);
                high |= (uint16_t)(v >> 4 << 2 * j);
                for (int i = 0; i < 16; i++)
                    b->qs[16 * j + i] = (uint8_t)(code[i] | code[i + 16] << 4);
            }
            fit_store16(b->scales_h, high);
        }
    }
}

/* ---- scales and minima --------------------------------------------------------------------------------------- */

/* Weights are d * scale * q - dmin * min, q in 0..hi, scale and min in 0..scale_hi. */
struct affine_codec {
    int hi, scale_hi;
    bool as_large; /* decoded weights are as large as the weights, instead of nearest to them */
};

struct affine {
    uint8_t scale[MAX_UNIT], min[MAX_UNIT], q[MAX_UNIT * 32];
};

/* Scales and minima of sub-blocks, and the numbers that their integers count. */
struct affine_units {
    union units d, dmin, scale, min;
};

static inline struct fit_affine affine_of(const struct affine_units *a, int g, vf scale, vf min)
{
    return (struct fit_affine){a->d.v[g] * scale, -(a->dmin.v[g] * min)};
}

/* Chooses the best integer scales and minima next to the ones at hand. */
static inline void choose_affine(const struct affine_codec *c, const struct batch *b, int len, int g,
                                 struct affine_units *a)
{
    static const int8_t step[8][2] = {{0, 0}, {1, 0}, {-1, 0}, {0, 1}, {0, -1}, {1, 1}, {-1, -1}, {1, -1}};
    vf best = V_ALL(INFINITY), scale = a->scale.v[g], min = a->min.v[g], none = V_ALL(0),
       top = V_ALL((float)c->scale_hi);
    for (int i = 0; i < 8; i++) {
        vf s = v_max(v_min(a->scale.v[g] + (float)step[i][0], top), none);
        vf m = v_max(v_min(a->min.v[g] + (float)step[i][1], top), none);
        vf error = fit_affine_error(b->x, b->w, len, affine_of(a, g, s, m), c->hi, NULL);
        vm better = v_less(error, best);
        best = v_choose(better, error, best);
        scale = v_choose(better, s, scale);
        min = v_choose(better, m, min);
    }
    a->scale.v[g] = scale;
    a->min.v[g] = min;
}

/* Sets d and dmin to those that fit the chosen integers best, if the integers determine them. */
static inline void refit_affine(const struct affine_codec *c, const struct supers *s, const struct affine_units *a,
                                float *d, float *dmin)
{
    union units sum[5];
    float t[5][MAX_UNIT / 8];
    for (int g = 0; g < s->n_group; g++) {
        const struct batch *b = &s->groups[g];
        struct fit_affine f = affine_of(a, g, a->scale.v[g], a->min.v[g]);
        vf id = v_inverse(f.d), m = -a->min.v[g], sw = V_ALL(0), sx = sw, xs = sw, ss = sw, sm = sw;
        for (int i = 0; i < s->len; i++) {
            vf v = a->scale.v[g] * v_clamp_round((b->x[i] - f.m) * id, 0, (float)c->hi), wv = v_weigh(b->w, i, v);
            sw += v_weigh(b->w, i, V_ALL(1));
            sx += v_weigh(b->w, i, b->x[i]);
            xs += wv * b->x[i];
            ss += wv * v;
            sm += wv;
        }
        sum[0].v[g] = xs;
        sum[1].v[g] = sx * m;
        sum[2].v[g] = ss;
        sum[3].v[g] = sm * m;
        sum[4].v[g] = sw * m * m;
    }
    for (int i = 0; i < 5; i++)
        add_up(s, &sum[i], t[i]);
    for (int k = 0; k < s->n_block; k++) {
        float xs = t[0][k], xm = t[1][k], ss = t[2][k], sm = t[3][k], mm = t[4][k], det = ss * mm - sm * sm;
        if (det > 1e-6f * ss * mm && xs * mm > xm * sm && xm * ss > xs * sm) {
            d[k] = (xs * mm - xm * sm) / det;
            dmin[k] = (xm * ss - xs * sm) / det;
        } else if (ss > 0 && !(mm > 0)) {
            d[k] = xs / ss;
        }
    }
}

/* Scales d and dmin so that decoded weights are as large as the weights. */
static inline void resize_affine(const struct affine_codec *c, const struct supers *s, const struct affine_units *a,
                                 float *d, float *dmin)
{
    union units xx, vv;
    float size[MAX_UNIT / 8];
    for (int g = 0; g < s->n_group; g++) {
        const struct batch *b = &s->groups[g];
        struct fit_affine f = affine_of(a, g, a->scale.v[g], a->min.v[g]);
        vi q[32];
        vf v[32];
        fit_affine_error(b->x, b->w, s->len, f, c->hi, q);
        for (int i = 0; i < s->len; i++)
            v[i] = f.d * v_float(q[i]) + f.m;
        xx.v[g] = sum_squares(b->x, b->w, s->len);
        vv.v[g] = sum_squares(v, b->w, s->len);
    }
    for (int k = 0; k < s->n_block; k++)
        size[k] = 1;
    match_sizes(s, &xx, &vv, size);
    for (int k = 0; k < s->n_block; k++) {
        d[k] *= size[k];
        dmin[k] *= size[k];
    }
}

/* Where the first block's halves are; the next ones' are `stride` bytes on. */
struct affine_halves {
    uint8_t *d, *dmin;
    size_t stride;
};

static inline void store_affine(const struct supers *s, const struct affine_halves *to, float *d, float *dmin,
                                struct affine_units *a)
{
    for (int k = 0; k < s->n_block; k++) {
        d[k] = fit_store_half(to->d + (size_t)k * to->stride, d[k]);
        dmin[k] = fit_store_half(to->dmin + (size_t)k * to->stride, dmin[k]);
    }
    spread(s, d, &a->d);
    spread(s, dmin, &a->dmin);
}

static inline void affine_fit(const struct affine_codec *c, const struct supers *s, struct affine_halves to,
                              struct affine *out)
{
    static const struct affine_effort effort = {.n_try = 8, .width = 0.25f, .n_move = 2};
    union units ideal_d = {0}, ideal_m = {0};
    struct affine_units a;
    float d[MAX_UNIT / 8] = {0}, dmin[MAX_UNIT / 8] = {0}, top = (float)c->scale_hi;
    for (int g = 0; g < s->n_group; g++) {
        const struct batch *b = &s->groups[g];
        struct fit_affine f = fit_scale_min(b->x, b->w, s->len, c->hi, 0, effort);
        ideal_d.v[g] = f.d;
        ideal_m.v[g] = -f.m;
    }
    for (int u = 0; u < s->n_block * s->n_sub; u++) {
        int k = u / s->n_sub;
        d[k] = ideal_d.f[u] > d[k] * top ? ideal_d.f[u] / top : d[k];
        dmin[k] = ideal_m.f[u] > dmin[k] * top ? ideal_m.f[u] / top : dmin[k];
    }
    store_affine(s, &to, d, dmin, &a);
    for (int g = 0; g < s->n_group; g++) {
        a.scale.v[g] = v_clamp_round(ideal_d.v[g] * v_inverse(a.d.v[g]), 0, top);
        a.min.v[g] = v_clamp_round(ideal_m.v[g] * v_inverse(a.dmin.v[g]), 0, top);
    }
    for (int round = 0; round < 2; round++) {
        for (int g = 0; g < s->n_group; g++)
            choose_affine(c, &s->groups[g], s->len, g, &a);
        refit_affine(c, s, &a, d, dmin);
        store_affine(s, &to, d, dmin, &a);
    }
    for (int g = 0; g < s->n_group; g++) {
        vi codes[32];
        const struct batch *b = &s->groups[g];
        fit_affine_error(b->x, b->w, s->len, affine_of(&a, g, a.scale.v[g], a.min.v[g]), c->hi, codes);
        lanes_bytes(out->q + g * LANES * s->len, s->len, LANES, codes);
    }
    if (c->as_large) {
        resize_affine(c, s, &a, d, dmin);
        store_affine(s, &to, d, dmin, &a);
    }
    for (int u = 0; u < s->n_group * LANES; u++) {
        out->scale[u] = (uint8_t)a.scale.f[u];
        out->min[u] = (uint8_t)a.min.f[u];
    }
}

static void encode_q2_k(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    static const struct affine_codec codec = {.hi = 3, .scale_hi = 15, .as_large = true};
    struct block_q2_k *b = blocks;
    struct supers s;
    struct affine a;
    for (int at = 0; at < n_block; at++, b++, x += QUANT_SUPER, w += w ? QUANT_SUPER : 0) {
        supers_load(&s, x, w, 1, 16);
        memset(b, 0, sizeof *b);
        affine_fit(&codec, &s, (struct affine_halves){b->d, b->dmin, sizeof *b}, &a);
        for (int j = 0; j < 16; j++)
            b->scales[j] = (uint8_t)(a.scale[j] | a.min[j] << 4);
        for (int run = 0; run < 8; run++)
            for (int i = 0; i < 32; i++)
                b->qs[run / 4 * 32 + i] |= (uint8_t)(a.q[32 * run + i] << run % 4 * 2);
    }
}

/* quant/blocks.h: quant_k4_scale, quant_k4_min */
static void store_k4_scales(uint8_t s[12], const uint8_t scale[8], const uint8_t min[8])
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(min[j] | min[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

/* Fits blocks [at, at + n), n as many as fit: returns n. */
static inline int k4_blocks(int hi, const float *x, const float *w, int at, int n_block, struct affine_halves to,
                            struct affine *out)
{
    const struct affine_codec codec = {.hi = hi, .scale_hi = 63};
    struct supers s;
    int most = supers_per_batch(8), n = n_block - at < most ? n_block - at : most;
    size_t off = (size_t)at * QUANT_SUPER;
    supers_load(&s, x + off, w ? w + off : NULL, n, 8);
    affine_fit(&codec, &s, to, out);
    return n;
}

static void encode_q4_k(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct affine a;
    for (int at = 0, n; at < n_block; at += n) {
        struct block_q4_k *b = (struct block_q4_k *)blocks + at;
        n = k4_blocks(15, x, w, at, n_block, (struct affine_halves){b->d, b->dmin, sizeof *b}, &a);
        for (int k = 0; k < n; k++, b++) {
            store_k4_scales(b->scales, a.scale + 8 * k, a.min + 8 * k);
            for (int j = 0; j < 4; j++)
                for (int i = 0; i < 32; i++) {
                    const uint8_t *q = a.q + QUANT_SUPER * k + 64 * j + i;
                    b->qs[32 * j + i] = (uint8_t)(q[0] | q[32] << 4);
                }
        }
    }
}

static void encode_q5_k(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    struct affine a;
    for (int at = 0, n; at < n_block; at += n) {
        struct block_q5_k *b = (struct block_q5_k *)blocks + at;
        n = k4_blocks(31, x, w, at, n_block, (struct affine_halves){b->d, b->dmin, sizeof *b}, &a);
        for (int k = 0; k < n; k++, b++) {
            store_k4_scales(b->scales, a.scale + 8 * k, a.min + 8 * k);
            memset(b->qh, 0, sizeof b->qh);
            for (int j = 0; j < 4; j++)
                for (int i = 0; i < 32; i++) {
                    const uint8_t *q = a.q + QUANT_SUPER * k + 64 * j + i;
                    b->qs[32 * j + i] = (uint8_t)((q[0] & 15) | (q[32] & 15) << 4);
                    b->qh[i] |= (uint8_t)((q[0] >> 4 | q[32] >> 4 << 1) << 2 * j);
                }
        }
    }
}

#endif
