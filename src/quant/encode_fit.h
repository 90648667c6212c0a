/* What the encoders share: fitting blocks of weights by integers times a scale, or by a scale and a minimum. Each lane
 * is a block (or sub-block) of its own: x[i] holds weight i of all, w[i] its importance. w is NULL where all weights
 * are alike. Include after the lanes (encode_lanes_*.h; none: the generic ones). */
#ifndef QUANT_ENCODE_FIT_H
#define QUANT_ENCODE_FIT_H

#include "quant/quant_fit.h"
#ifndef QUANT_LANES
#include "quant/encode_lanes_generic.h"
#endif

#define V_ALL(c) ((vf){0} + (c))

static inline vf v_abs(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}

static inline vi v_int(vf x) /* toward zero */
{
    return __builtin_convertvector(x, vi);
}

static inline vf v_float(vi x)
{
    return __builtin_convertvector(x, vf);
}

/* The integers nearest to x within lo..hi, ties to even. */
static inline vf v_clamp_round(vf x, float lo, float hi)
{
    x = v_max(v_min(x, V_ALL(hi)), V_ALL(lo));
    return x + 0x1.8p+23f - 0x1.8p+23f;
}

/* 1 / d; 0 where that would overflow. */
static inline vf v_inverse(vf d)
{
    vm safe = v_less(V_ALL(1e-30f), v_abs(d));
    return v_choose(safe, 1 / v_choose(safe, d, V_ALL(1)), V_ALL(0));
}

static inline vf v_weigh(const vf *w, int i, vf v)
{
    if (w)
        v *= w[i];
    return v;
}

/* sum w x^2 */
static inline vf sum_squares(const vf *x, const vf *w, int n)
{
    vf sum = V_ALL(0);
    for (int i = 0; i < n; i++)
        sum += v_weigh(w, i, x[i] * x[i]);
    return sum;
}

/* ---- in and out ---------------------------------------------------------------------------------------------- */

/* Loads neighbouring blocks of n weights (a multiple of four); lanes beyond n_lane hold the first block again. */
static inline void lanes_load(const float *x, int n, int n_lane, vf *out)
{
    const float *block[LANES];
    for (int l = 0; l < LANES; l++)
        block[l] = x + (l < n_lane ? l : 0) * n;
    for (int i = 0; i < n; i += 4)
        v_columns(block, i, out + i);
}

/* Four codes a word, those of weights i, i + 1, i + 2, i + 3 from the low byte on. */
static inline vi v_bytes(vi a, vi b, vi c, vi d)
{
    return a | b << 8 | c << 16 | d << 24;
}

/* Stores words of each lane at lane * stride bytes behind dst. */
static inline void lanes_store(uint8_t *dst, size_t stride, int n_lane, const vi *words, int n)
{
    for (int l = 0; l < n_lane; l++)
        for (int k = 0; k < n; k++) {
            int32_t word = words[k][l];
            memcpy(dst + (size_t)l * stride + 4 * (size_t)k, &word, 4);
        }
}

/* Stores each lane's v as the nearest half that is not infinity; returns the stored values. */
static inline vf lanes_store_half(uint8_t *dst, size_t stride, int n_lane, vf v)
{
    vf stored = V_ALL(0);
    for (int l = 0; l < n_lane; l++)
        stored[l] = fit_store_half(dst + (size_t)l * stride, v[l]);
    return stored;
}

/* ---- a scale ------------------------------------------------------------------------------------------------- */

/* The weight of the largest magnitude, with its sign. */
static inline vf v_extreme(const vf *x, int n)
{
    vf max = V_ALL(0);
    for (int i = 0; i < n; i++)
        max = v_choose(v_less(v_abs(max), v_abs(x[i])), x[i], max);
    return max;
}

struct fit_best {
    vf d, gain;
};

/* Keeps the scale that fits some integers best, if it is the best so far. xq, qq: their sums of w x q and w q^2. */
static inline void keep_best(struct fit_best *best, vf xq, vf qq)
{
    vf d = xq / v_choose(v_less(V_ALL(0), qq), qq, V_ALL(1)), gain = d * xq; /* all integers are zeros: no gain */
    vm better = v_less(best->gain, gain);
    best->gain = v_choose(better, gain, best->gain);
    best->d = v_choose(better, d, best->d);
}

/* Tries up to four inverse scales, each with the scale that fits their integers best, and keeps the best so far: that
 * which lowers sum w x^2 most. */
static inline void try_scales(const vf *x, const vf *w, int n, const vf *id, int n_id, float lo, float hi,
                              struct fit_best *best)
{
    vf xq[4] = {V_ALL(0), V_ALL(0), V_ALL(0), V_ALL(0)}, qq[4] = {V_ALL(0), V_ALL(0), V_ALL(0), V_ALL(0)};
    for (int i = 0; i < n; i++)
        for (int t = 0; t < n_id; t++) {
            vf q = v_clamp_round(id[t] * x[i], lo, hi), wq = v_weigh(w, i, q);
            xq[t] += wq * x[i];
            qq[t] += wq * q;
        }
    for (int t = 0; t < n_id; t++)
        keep_best(best, xq[t], qq[t]);
}

/* The scale d for which sum w (x - d q)^2 with integers q in lo..hi is about least; 0 when nothing helps. Tries
 * 4 * n_round scales that put the extreme weight near each end, then the best again, as it fits its integers. */
static inline vf fit_scale(const vf *x, const vf *w, int n, int lo, int hi, int n_round)
{
    vf inverse = v_inverse(v_extreme(x, n)), id[4];
    struct fit_best best = {V_ALL(0), V_ALL(0)};
    for (int round = 0; round < 2 * n_round; round++) {
        for (int t = 0; t < 4; t++) {
            float off = 0.4f * (float)t + 0.2f * (float)(round / 2) - 0.6f;
            id[t] = inverse * (round % 2 ? (float)hi + off : (float)lo - off);
        }
        try_scales(x, w, n, id, 4, (float)lo, (float)hi, &best);
    }
    id[0] = v_inverse(best.d);
    try_scales(x, w, n, id, 1, (float)lo, (float)hi, &best);
    return best.d;
}

/* sum w (x - d q)^2 with the best integers in lo..hi, which go to q unless it is NULL. */
static inline vf fit_error(const vf *x, const vf *w, int n, vf d, int lo, int hi, vi *q)
{
    vf id = v_inverse(d), sum = V_ALL(0);
    for (int i = 0; i < n; i++) {
        vf r = v_clamp_round(x[i] * id, (float)lo, (float)hi), diff = x[i] - r * d;
        sum += v_weigh(w, i, diff * diff);
        if (q)
            q[i] = v_int(r);
    }
    return sum;
}

/* ---- a scale and a minimum ----------------------------------------------------------------------------------- */

struct fit_affine {
    vf d, m;
};

/* Sums over a block of w, w x, w q, w x q and w q^2. */
struct affine_sums {
    vf w, x, q, xq, qq;
};

/* A search for the best scale and minimum. */
struct affine_search {
    float max_min;
    struct affine_sums s;
    struct fit_affine best;
    vf gain; /* by how much the best lowers sum w x^2 */
};

/* Returns the scale and the minimum that fit the integers best, and keeps them if they are the best so far; `from` if
 * the integers determine none. */
static inline struct fit_affine take_affine(struct affine_search *a, struct fit_affine from)
{
    const struct affine_sums *s = &a->s;
    vf det = s->w * s->qq - s->q * s->q, one = V_ALL(1), limit = V_ALL(a->max_min);
    vm solved = v_less(1e-6f * s->w * s->qq, det);
    det = 1 / v_choose(solved, det, one);
    vf free_d = (s->w * s->xq - s->x * s->q) * det, free_m = (s->qq * s->x - s->q * s->xq) * det;
    vf held_d = (s->xq - limit * s->q) / v_choose(v_less(V_ALL(0), s->qq), s->qq, one);
    vm is_free = solved & v_less(free_m, limit);
    vf d = v_choose(is_free, free_d, held_d), m = v_choose(is_free, free_m, limit);
    vf gain = 2 * (d * s->xq + m * s->x) - (d * d * s->qq + 2 * d * m * s->q + m * m * s->w);
    vm useful = v_less(V_ALL(1e-30f), d), better = useful & v_less(a->gain, gain);
    a->gain = v_choose(better, gain, a->gain);
    a->best.d = v_choose(better, d, a->best.d);
    a->best.m = v_choose(better, m, a->best.m);
    return (struct fit_affine){v_choose(useful, d, from.d), v_choose(useful, m, from.m)};
}

/* The sums for the integers that f gives. */
static inline void sum_affine(struct affine_sums *s, const vf *x, const vf *w, int n, int hi, struct fit_affine f)
{
    vf id = v_inverse(f.d);
    s->q = s->xq = s->qq = V_ALL(0);
    for (int i = 0; i < n; i++) {
        vf q = v_clamp_round((x[i] - f.m) * id, 0, (float)hi), wq = v_weigh(w, i, q);
        s->q += wq;
        s->xq += wq * x[i];
        s->qq += wq * q;
    }
}

/* How many scales are tried: n_try around the one that the range of the weights gives, `width` of an integer apart.
 * Each is moved n_move times to the scale that fits its integers best, and the best one n_last times more. */
struct affine_effort {
    int n_try, n_move, n_last;
    float width;
};

/* Scale and minimum for sum w (x - d q - m)^2, q in 0..hi; m at most max_min. */
static inline struct fit_affine fit_scale_min(const vf *x, const vf *w, int n, int hi, float max_min,
                                              struct affine_effort effort)
{
    vf min = x[0], max = x[0];
    struct affine_search a = {.max_min = max_min, .s = {.w = V_ALL(0), .x = V_ALL(0)}, .gain = V_ALL(-INFINITY)};
    for (int i = 0; i < n; i++) {
        min = v_min(x[i], min);
        max = v_max(x[i], max);
        a.s.w += v_weigh(w, i, V_ALL(1));
        a.s.x += v_weigh(w, i, x[i]);
    }
    min = v_min(min, V_ALL(max_min));
    a.best = (struct fit_affine){V_ALL(0), min};
    for (int t = 0; t < effort.n_try; t++) {
        float steps = (float)hi + effort.width * (float)(t - (effort.n_try - 1) / 2);
        struct fit_affine f = {(max - min) * (1 / steps), min};
        for (int move = 0; move <= effort.n_move; move++) {
            sum_affine(&a.s, x, w, n, hi, f);
            f = take_affine(&a, f);
        }
    }
    for (int move = 0; move < effort.n_last; move++) {
        sum_affine(&a.s, x, w, n, hi, a.best);
        (void)take_affine(&a, a.best);
    }
    return a.best;
}

/* sum w (x - d q - m)^2 with the best integers in 0..hi, which go to q unless it is NULL. */
static inline vf fit_affine_error(const vf *x, const vf *w, int n, struct fit_affine f, int hi, vi *q)
{
    vf id = v_inverse(f.d), sum = V_ALL(0);
    for (int i = 0; i < n; i++) {
        vf r = v_clamp_round((x[i] - f.m) * id, 0, (float)hi), diff = x[i] - (r * f.d + f.m);
        sum += v_weigh(w, i, diff * diff);
        if (q)
            q[i] = v_int(r);
    }
    return sum;
}

/* ---- codebooks ----------------------------------------------------------------------------------------------- */

/* The value of a codebook nearest to y, and how many of its ascending values are less. */
static inline vf book_value(const struct fit_book *b, vf y)
{
    vf value = V_ALL(b->value[0]);
    for (int k = 1; k < b->n; k++)
        value += v_choose(v_less(V_ALL(b->midway[k]), y), V_ALL(b->value[k] - b->value[k - 1]), V_ALL(0));
    return value;
}

static inline vf book_error(const struct fit_book *b, const vf *x, const vf *w, int n, vf d)
{
    vf id = v_inverse(d), sum = V_ALL(0);
    for (int i = 0; i < n; i++) {
        vf diff = x[i] - d * book_value(b, x[i] * id);
        sum += v_weigh(w, i, diff * diff);
    }
    return sum;
}

/* The nearest values' numbers, counted from the least. */
static inline void book_indices(const struct fit_book *b, const vf *x, int n, vf d, vi *index)
{
    vf id = v_inverse(d);
    for (int i = 0; i < n; i++) {
        vf y = x[i] * id;
        index[i] = (vi){0};
        for (int k = 1; k < b->n; k++)
            index[i] += v_choose_int(v_less(V_ALL(b->midway[k]), y), (vi){0} + 1, (vi){0});
    }
}

/* Tries an inverse scale, with the scale that fits its values best. */
static inline void try_book_scale(const struct fit_book *b, const vf *x, const vf *w, int n, vf id,
                                  struct fit_best *best)
{
    vf xv = V_ALL(0), vv = V_ALL(0);
    for (int i = 0; i < n; i++) {
        vf v = book_value(b, x[i] * id), wv = v_weigh(w, i, v);
        xv += wv * x[i];
        vv += wv * v;
    }
    keep_best(best, xv, vv);
}

#endif
