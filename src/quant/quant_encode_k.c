/* Encoders of the formats with scales of scales: Q2_K to Q6_K and IQ4_XS, and what the IQ formats share with them. */
#include <string.h>

#include "quant/quant_super.h"

/* ---- a scale of integer scales ------------------------------------------------------------------------------- */

static int nearest_scale(const struct super_codec *c, float s)
{
    float at = fit_round(fit_clamp((s - (float)c->scale_lo) / (float)c->scale_step, 0,
                                   (float)((c->scale_hi - c->scale_lo) / c->scale_step)));
    return c->scale_lo + (int)at * c->scale_step;
}

/* Chooses the integer scale of sub-block j among those next to `near`. */
static void choose_scale(const struct super_codec *c, const float *x, const float *w, float d, int j, int near,
                         struct super *out)
{
    int8_t value[FIT_MAX];
    const float *xs = x + j * c->len, *ws = w + j * c->len;
    float best = INFINITY;
    for (int s = near - c->scale_step; s <= near + c->scale_step; s += c->scale_step) {
        if (s < c->scale_lo || s > c->scale_hi)
            continue;
        float error = c->error(c->book, xs, ws, c->len, d * (float)s, value);
        if (error < best) {
            best = error;
            out->scale[j] = (int16_t)s;
            memcpy(out->value + j * c->len, value, (size_t)c->len);
        }
    }
}

/* The scale that fits the chosen integers best. */
static float refit(const struct super_codec *c, const float *x, const float *w, const struct super *s, float d)
{
    float xv = 0, vv = 0;
    for (int i = 0; i < QUANT_SUPER; i++) {
        float v = (float)(s->scale[i / c->len] * s->value[i]), wv = w[i] * v;
        xv += wv * x[i];
        vv += wv * v;
    }
    return vv > 0 ? xv / vv : d;
}

void super_fit(const struct super_codec *c, const float *x, const float *w, uint8_t half[2], struct super *out)
{
    float ideal[QUANT_SUPER / 8], extreme = 0;
    int n_sub = QUANT_SUPER / c->len;
    for (int j = 0; j < n_sub; j++) {
        ideal[j] = c->ideal(c->book, x + j * c->len, w + j * c->len, c->len);
        if (fabsf(ideal[j]) > fabsf(extreme))
            extreme = ideal[j];
    }
    float top = (float)(c->scale_lo < 0 ? c->scale_lo : c->scale_hi);
    float d = fit_store_half(half, extreme / top / c->unit) * c->unit;
    for (int round = 0; round < c->n_round; round++) {
        for (int j = 0; j < n_sub; j++) {
            int near = round ? out->scale[j] : nearest_scale(c, d != 0 ? ideal[j] / d : 0);
            choose_scale(c, x, w, d, j, near, out);
        }
        d = fit_store_half(half, refit(c, x, w, out, d) / c->unit) * c->unit;
    }
    for (int j = 0; j < n_sub; j++)
        c->error(c->book, x + j * c->len, w + j * c->len, c->len, d * (float)out->scale[j], out->value + j * c->len);
}

static float ideal_3bit(const void *book, const float *x, const float *w, int n)
{
    (void)book;
    return fit_scale(x, w, n, -4, 3);
}
static float error_3bit(const void *book, const float *x, const float *w, int n, float d, int8_t *value)
{
    (void)book;
    return fit_error(x, w, n, d, -4, 3, value);
}
static float ideal_6bit(const void *book, const float *x, const float *w, int n)
{
    (void)book;
    return fit_scale(x, w, n, -32, 31);
}
static float error_6bit(const void *book, const float *x, const float *w, int n, float d, int8_t *value)
{
    (void)book;
    return fit_error(x, w, n, d, -32, 31, value);
}

void encode_q3_k(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    static const struct super_codec codec = {
        .len = 16, .scale_lo = -32, .scale_hi = 31, .scale_step = 1, .n_round = 2, .unit = 1, ideal_3bit, error_3bit};
    struct block_q3_k *b = block;
    struct super s;
    memset(b, 0, sizeof *b);
    super_fit(&codec, x, w, b->d, &s);
    for (int j = 0; j < 16; j++) { /* quant/blocks.h: quant_q3k_scale */
        int v = s.scale[j] + 32;
        b->scales[j % 8] |= (uint8_t)((v & 15) << j / 8 * 4);
        b->scales[8 + j % 4] |= (uint8_t)(v >> 4 << j / 4 * 2);
    }
    for (int i = 0; i < QUANT_SUPER; i++) {
        int q = s.value[i] + 4;
        b->qs[i / 128 * 32 + i % 32] |= (uint8_t)((q & 3) << i % 128 / 32 * 2);
        b->hmask[i % 32] |= (uint8_t)(q >> 2 << i / 32);
    }
}

void encode_q6_k(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    static const struct super_codec codec = {
        .len = 16, .scale_lo = -128, .scale_hi = 127, .scale_step = 1, .n_round = 1, .unit = 1, ideal_6bit, error_6bit};
    struct block_q6_k *b = block;
    struct super s;
    memset(b, 0, sizeof *b);
    super_fit(&codec, x, w, b->d, &s);
    for (int j = 0; j < 16; j++)
        b->scales[j] = (int8_t)s.scale[j];
    for (int i = 0; i < QUANT_SUPER; i++) {
        int half = i / 128, j = i % 128, q = s.value[i] + 32;
        b->ql[half * 64 + j % 64] |= (uint8_t)((q & 15) << j / 64 * 4);
        b->qh[half * 32 + j % 32] |= (uint8_t)(q >> 4 << j / 32 * 2);
    }
}

static float ideal_iq4(const void *book, const float *x, const float *w, int n)
{
    return fit_book_scale(book, x, w, n, 5);
}
static float error_iq4(const void *book, const float *x, const float *w, int n, float d, int8_t *value)
{
    uint8_t codes[32];
    float error = fit_book_error(book, x, w, n, d, codes);
    for (int i = 0; i < n; i++)
        value[i] = quant_iq4_values[codes[i]];
    return error;
}

void encode_iq4_xs(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    const struct super_codec codec = {.len = 32,
                                      .scale_lo = -32,
                                      .scale_hi = 31,
                                      .scale_step = 1,
                                      .n_round = 2,
                                      .unit = 1,
                                      ideal_iq4,
                                      error_iq4,
                                      &t->iq4};
    struct block_iq4_xs *b = block;
    struct super s;
    uint16_t high = 0;
    memset(b, 0, sizeof *b);
    super_fit(&codec, x, w, b->d, &s);
    float d = quant_half_to_float(quant_load16(b->d));
    for (int j = 0; j < 8; j++) {
        uint8_t codes[32];
        int v = s.scale[j] + 32;
        b->scales_l[j / 2] |= (uint8_t)((v & 15) << j % 2 * 4);
        high |= (uint16_t)(v >> 4 << 2 * j);
        fit_book_error(codec.book, x + 32 * j, w + 32 * j, 32, d * (float)s.scale[j], codes);
        for (int i = 0; i < 16; i++)
            b->qs[16 * j + i] = (uint8_t)(codes[i] | codes[i + 16] << 4);
    }
    fit_store16(b->scales_h, high);
}

/* ---- scales and minima --------------------------------------------------------------------------------------- */

/* Sub-blocks of `len` weights d * scale * q - dmin * min, q in 0..hi, scale and min in 0..scale_hi. */
struct affine_codec {
    int len, hi, scale_hi, width; /* width: fit_scale_min */
};

struct affine {
    float d, dmin;
    uint8_t scale[16], min[16], q[QUANT_SUPER];
};

static struct fit_affine affine_of(const struct affine *a, int j)
{
    return (struct fit_affine){a->d * (float)a->scale[j], -a->dmin * (float)a->min[j]};
}

/* Chooses scale and minimum of sub-block j next to those it has. */
static void choose_affine(const struct affine_codec *c, const float *x, const float *w, int j, struct affine *a)
{
    enum { N = 2 * FIT_LANES };
    static const int8_t step[N][2] = {{0, 0}, {1, 0}, {-1, 0}, {0, 1}, {0, -1}, {1, 1}, {-1, -1}, {1, -1}};
    uint8_t scale[N], min[N];
    float d[N], m[N], error[N];
    int best = 0;
    for (int i = 0; i < N; i++) {
        int s = a->scale[j] + step[i][0], n = a->min[j] + step[i][1];
        scale[i] = (uint8_t)(s < 0 ? 0 : s > c->scale_hi ? c->scale_hi : s);
        min[i] = (uint8_t)(n < 0 ? 0 : n > c->scale_hi ? c->scale_hi : n);
        d[i] = a->d * (float)scale[i];
        m[i] = -a->dmin * (float)min[i];
    }
    for (int i = 0; i < N; i += FIT_LANES)
        fit_affine_errors(x + j * c->len, w + j * c->len, c->len, d + i, m + i, c->hi, error + i);
    for (int i = 1; i < N; i++)
        if (error[i] < error[best])
            best = i;
    a->scale[j] = scale[best];
    a->min[j] = min[best];
    fit_affine_error(x + j * c->len, w + j * c->len, c->len, affine_of(a, j), c->hi, a->q + j * c->len);
}

/* d and dmin that fit the chosen integers best; as they are when that is not determined. */
static void refit_affine(const struct affine_codec *c, const float *x, const float *w, struct affine *a)
{
    float xs = 0, xm = 0, ss = 0, sm = 0, mm = 0;
    for (int i = 0; i < QUANT_SUPER; i++) {
        float s = (float)(a->scale[i / c->len] * a->q[i]), m = -(float)a->min[i / c->len];
        xs += w[i] * x[i] * s;
        xm += w[i] * x[i] * m;
        ss += w[i] * s * s;
        sm += w[i] * s * m;
        mm += w[i] * m * m;
    }
    float det = ss * mm - sm * sm;
    if (det > 1e-6f * ss * mm && xs * mm > xm * sm && xm * ss > xs * sm) {
        a->d = (xs * mm - xm * sm) / det;
        a->dmin = (xm * ss - xs * sm) / det;
    } else if (ss > 0 && mm == 0) {
        a->d = xs / ss;
    }
}

static void affine_fit(const struct affine_codec *c, const float *x, const float *w, uint8_t d[2], uint8_t dmin[2],
                       struct affine *a)
{
    struct fit_affine ideal[16];
    int n_sub = QUANT_SUPER / c->len;
    float max_d = 0, max_m = 0;
    for (int j = 0; j < n_sub; j++) {
        ideal[j] = fit_scale_min(x + j * c->len, w + j * c->len, c->len, c->hi, c->width, 3, 0);
        max_d = ideal[j].d > max_d ? ideal[j].d : max_d;
        max_m = -ideal[j].m > max_m ? -ideal[j].m : max_m;
    }
    a->d = fit_store_half(d, max_d / (float)c->scale_hi);
    a->dmin = fit_store_half(dmin, max_m / (float)c->scale_hi);
    for (int j = 0; j < n_sub; j++) {
        float s = a->d > 0 ? ideal[j].d / a->d : 0, m = a->dmin > 0 ? -ideal[j].m / a->dmin : 0;
        a->scale[j] = (uint8_t)fit_clamp(fit_round(s), 0, (float)c->scale_hi);
        a->min[j] = (uint8_t)fit_clamp(fit_round(m), 0, (float)c->scale_hi);
    }
    for (int round = 0; round < 2; round++) {
        for (int j = 0; j < n_sub; j++)
            choose_affine(c, x, w, j, a);
        refit_affine(c, x, w, a);
        a->d = fit_store_half(d, a->d);
        a->dmin = fit_store_half(dmin, a->dmin);
    }
    for (int j = 0; j < n_sub; j++)
        fit_affine_error(x + j * c->len, w + j * c->len, c->len, affine_of(a, j), c->hi, a->q + j * c->len);
}

void encode_q2_k(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    static const struct affine_codec codec = {.len = 16, .hi = 3, .scale_hi = 15, .width = 1};
    struct block_q2_k *b = block;
    struct affine a;
    memset(b, 0, sizeof *b);
    affine_fit(&codec, x, w, b->d, b->dmin, &a);
    for (int j = 0; j < 16; j++)
        b->scales[j] = (uint8_t)(a.scale[j] | a.min[j] << 4);
    for (int i = 0; i < QUANT_SUPER; i++)
        b->qs[i / 128 * 32 + i % 32] |= (uint8_t)(a.q[i] << i % 128 / 32 * 2);
}

/* quant/blocks.h: quant_k4_scale, quant_k4_min */
static void store_k4_scales(uint8_t s[12], const struct affine *a)
{
    memset(s, 0, 12);
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(a->scale[j] | a->scale[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(a->min[j] | a->min[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((a->scale[j + 4] & 15) | (a->min[j + 4] & 15) << 4);
    }
}

void encode_q4_k(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    static const struct affine_codec codec = {.len = 32, .hi = 15, .scale_hi = 63, .width = 1};
    struct block_q4_k *b = block;
    struct affine a;
    memset(b, 0, sizeof *b);
    affine_fit(&codec, x, w, b->d, b->dmin, &a);
    store_k4_scales(b->scales, &a);
    for (int i = 0; i < QUANT_SUPER; i++)
        b->qs[i / 64 * 32 + i % 32] |= (uint8_t)(a.q[i] << i / 32 % 2 * 4);
}

void encode_q5_k(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    static const struct affine_codec codec = {.len = 32, .hi = 31, .scale_hi = 63, .width = 1};
    struct block_q5_k *b = block;
    struct affine a;
    memset(b, 0, sizeof *b);
    affine_fit(&codec, x, w, b->d, b->dmin, &a);
    store_k4_scales(b->scales, &a);
    for (int i = 0; i < QUANT_SUPER; i++) {
        b->qs[i / 64 * 32 + i % 32] |= (uint8_t)((a.q[i] & 15) << i / 32 % 2 * 4);
        b->qh[i % 32] |= (uint8_t)(a.q[i] >> 4 << i / 32);
    }
}
