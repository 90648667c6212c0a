#include "quant/quant_fit.h"

/* For four inverse scales, the scales that fit their integers best, and by how much those lower sum w x^2. */
static void scales_at(const float *x, const float *w, int n, const fit_vec *id, int lo, int hi, fit_vec *d,
                      fit_vec *gain)
{
    fit_vec xq = {0}, qq = {0};
    for (int i = 0; i < n; i++) {
        fit_vec q = *id * x[i];
        q = fit_clamp_round(q, (float)lo, (float)hi);
        fit_vec wq = q * w[i];
        xq += wq * x[i];
        qq += wq * q;
    }
    qq += FIT_CHOOSE(FIT_LESS(FIT_ALL(0), qq), FIT_ALL(0), FIT_ALL(1)); /* nothing but zeros: no gain */
    *d = xq / qq;
    *gain = *d * xq;
}

float fit_scale(const float *x, const float *w, int n, int lo, int hi)
{
    float max = fit_extreme(x, n), best_d = 0, best_gain = 0;
    if (fit_inverse(max) == 0)
        return 0;
    for (int round = 0; round < 5; round++) {
        fit_vec id, d, gain;
        for (int l = 0; l < FIT_LANES; l++) { /* two rounds near either end; then near the best */
            float off = 0.2f * (float)(round % 2 * FIT_LANES + l - 3);
            id[l] = round < 2   ? ((float)lo - off) / max
                    : round < 4 ? ((float)hi + off) / max
                                : fit_inverse(best_d) * (1 + 0.01f * (float)l);
        }
        scales_at(x, w, n, &id, lo, hi, &d, &gain);
        for (int l = 0; l < FIT_LANES; l++)
            if (gain[l] > best_gain) {
                best_gain = gain[l];
                best_d = d[l];
            }
    }
    return best_d;
}

float fit_error(const float *x, const float *w, int n, float d, int lo, int hi, int8_t *q)
{
    float id = fit_inverse(d);
    fit_vec sum = {0};
    for (int i = 0; i < n; i += FIT_LANES) {
        fit_vec v = fit_load(x + i), r = v * id;
        r = fit_clamp_round(r, (float)lo, (float)hi);
        fit_vec diff = v - r * d;
        sum += fit_load(w + i) * diff * diff;
        for (int l = 0; q && l < FIT_LANES; l++)
            q[i + l] = (int8_t)r[l];
    }
    return fit_total(sum);
}

/* Moves four scales and minima to those that fit their integers best; by how much these lower sum w x^2. */
static void affine_step(const float *x, const float *w, int n, int hi, float max_min, fit_vec *d, fit_vec *m,
                        fit_vec *gain)
{
    fit_vec sq = {0}, sxq = {0}, sqq = {0}, id = 1 / *d;
    float sw = 0, sx = 0;
    for (int i = 0; i < n; i++) {
        fit_vec q = (x[i] - *m) * id;
        q = fit_clamp_round(q, 0, (float)hi);
        fit_vec wq = q * w[i];
        sw += w[i];
        sx += w[i] * x[i];
        sq += wq;
        sxq += wq * x[i];
        sqq += wq * q;
    }
    fit_vec det = sw * sqq - sq * sq, none = FIT_ALL(0), limit = FIT_ALL(max_min);
    fit_mask solved = FIT_LESS(1e-6f * sw * sqq, det);
    det = FIT_CHOOSE(solved, det, FIT_ALL(1));
    fit_vec free_d = (sw * sxq - sx * sq) / det, free_m = (sqq * sx - sq * sxq) / det;
    fit_vec some = FIT_CHOOSE(FIT_LESS(none, sqq), sqq, FIT_ALL(1)), held_d = (sxq - limit * sq) / some;
    fit_mask is_free = solved & FIT_LESS(free_m, limit);
    fit_vec new_d = FIT_CHOOSE(is_free, free_d, held_d), new_m = FIT_CHOOSE(is_free, free_m, limit);
    *gain = 2 * (new_d * sxq + new_m * sx) - (new_d * new_d * sqq + 2 * new_d * new_m * sq + new_m * new_m * sw);
    fit_mask useful = FIT_LESS(FIT_ALL(1e-30f), new_d);
    *gain = FIT_CHOOSE(useful, *gain, FIT_ALL(-INFINITY));
    *d = FIT_CHOOSE(useful, new_d, *d);
    *m = FIT_CHOOSE(useful, new_m, *m);
}

struct fit_affine fit_scale_min(const float *x, const float *w, int n, int hi, int width, int n_round, float max_min)
{
    float min = x[0], max = x[0], best_gain = -INFINITY;
    for (int i = 1; i < n; i++) {
        min = x[i] < min ? x[i] : min;
        max = x[i] > max ? x[i] : max;
    }
    min = min < max_min ? min : max_min;
    struct fit_affine best = {0, min};
    if (fit_inverse(max - min) == 0)
        return best;
    for (int first = 0; first < 2 * FIT_LANES; first += FIT_LANES) {
        fit_vec d, m = FIT_ALL(min), gain;
        for (int l = 0; l < FIT_LANES; l++)
            d[l] = (max - min) / ((float)hi + 0.25f * (float)((first + l - 3) * width));
        for (int round = 0; round < n_round; round++) {
            affine_step(x, w, n, hi, max_min, &d, &m, &gain);
            for (int l = 0; l < FIT_LANES; l++)
                if (gain[l] > best_gain) {
                    best_gain = gain[l];
                    best = (struct fit_affine){d[l], m[l]};
                }
        }
    }
    return best;
}

void fit_affine_errors(const float *x, const float *w, int n, const float d[FIT_LANES], const float m[FIT_LANES],
                       int hi, float error[FIT_LANES])
{
    fit_vec sum = FIT_ALL(0), scale = fit_load(d), min = fit_load(m), id;
    for (int l = 0; l < FIT_LANES; l++)
        id[l] = fit_inverse(d[l]);
    for (int i = 0; i < n; i++) {
        fit_vec q = (x[i] - min) * id;
        q = fit_clamp_round(q, 0, (float)hi);
        fit_vec diff = x[i] - (q * scale + min);
        sum += diff * diff * w[i];
    }
    for (int l = 0; l < FIT_LANES; l++)
        error[l] = sum[l];
}

float fit_affine_error(const float *x, const float *w, int n, struct fit_affine f, int hi, uint8_t *q)
{
    float id = fit_inverse(f.d);
    fit_vec sum = {0};
    for (int i = 0; i < n; i += FIT_LANES) {
        fit_vec v = fit_load(x + i), r = (v - f.m) * id;
        r = fit_clamp_round(r, 0, (float)hi);
        fit_vec diff = v - (r * f.d + f.m);
        sum += fit_load(w + i) * diff * diff;
        for (int l = 0; q && l < FIT_LANES; l++)
            q[i + l] = (uint8_t)r[l];
    }
    return fit_total(sum);
}

/* ---- codebooks ----------------------------------------------------------------------------------------------- */

void fit_book_open(struct fit_book *b, const int8_t values[16])
{
    *b = (struct fit_book){.values = values};
    for (int i = 0; i < 16; i++) {
        b->first = values[i] < b->first ? (float)values[i] : b->first;
        b->last = values[i] > b->last ? (float)values[i] : b->last;
    }
    for (int c = 0; c < FIT_BOOK_CELLS; c++) {
        float at = b->first + 0.5f * (float)c + 0.25f;
        for (int i = 1; i < 16; i++)
            if (fabsf((float)values[i] - at) < fabsf((float)values[b->nearest[c]] - at))
                b->nearest[c] = (uint8_t)i;
    }
}

static int book_nearest(const struct fit_book *b, float y)
{
    return b->nearest[(int)(2 * (fit_clamp(y, b->first, b->last) - b->first))];
}

float fit_book_error(const struct fit_book *b, const float *x, const float *w, int n, float d, uint8_t *q)
{
    float id = fit_inverse(d), sum = 0;
    for (int i = 0; i < n; i++) {
        int code = book_nearest(b, x[i] * id);
        float diff = x[i] - d * (float)b->values[code];
        if (q)
            q[i] = (uint8_t)code;
        sum += w[i] * diff * diff;
    }
    return sum;
}

struct book_sums {
    float xq, qq; /* of w x value and w value^2 */
};

static struct book_sums book_sums(const struct fit_book *b, const float *x, const float *w, int n, float id)
{
    struct book_sums s = {0, 0};
    for (int i = 0; i < n; i++) {
        float v = (float)b->values[book_nearest(b, x[i] * id)], wv = w[i] * v;
        s.xq += wv * x[i];
        s.qq += wv * v;
    }
    return s;
}

float fit_book_scale(const struct fit_book *b, const float *x, const float *w, int n, int steps)
{
    float max = fit_extreme(x, n), best_d = 0, best_gain = 0;
    if (fit_inverse(max) == 0)
        return 0;
    for (int end = 0; end < 2; end++)
        for (int step = -steps; step <= steps; step++) {
            float id = (end ? b->last : b->first) * (1 + 0.03f * (float)step) / max;
            for (int i = 0; i < 2; i++) { /* once as tried, once with the scale that fits best */
                struct book_sums s = book_sums(b, x, w, n, id);
                if (!(s.qq > 0) || s.xq * s.xq <= best_gain * s.qq)
                    break;
                best_gain = s.xq * s.xq / s.qq;
                best_d = s.xq / s.qq;
                id = fit_inverse(best_d);
            }
        }
    return best_d;
}
