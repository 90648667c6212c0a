/* Encoders of the codebook formats IQ1, IQ2 and IQ3. Lanes are sub-blocks (encode_super.h). For a scale, the nearest
 * entry of a grid is found exactly: the cost of each half of a group's weights at each combination of levels is tabled,
 * and an entry costs the sum of two. */
#ifndef QUANT_ENCODE_GRIDS_H
#define QUANT_ENCODE_GRIDS_H

#include <assert.h>

#include "quant/encode_super.h"
#include "quant/quant_grids.h"

/* Weights are d * unit * scale * value, scale odd and at most scale_hi. value: a grid's, with the sign of the weight;
 * or where has_shift 8 * value + 1 or 8 * value - 1, one of these for shift_run weights. */
struct grid_codec {
    const struct fit_grid *grid;
    int scale_hi, n_round;
    float unit;
    bool as_large;   /* decoded weights are as large as the weights, instead of nearest to them */
    bool even_signs; /* an even number of each eight weights is negative */
    bool has_shift;
    int shift_run;
    /* the n_try scales that are tried for a sub-block: `first` times the one that puts the largest weight at the
     * largest value, then each `factor` times the one before */
    float first, factor;
    int n_try;
};

enum { MAX_CODE = 8 }; /* groups in a sub-block: of 4 weights in 32 */

/* Sub-blocks as codes of a grid. */
struct grid_codes {
    int8_t scale[MAX_UNIT];
    uint16_t code[MAX_UNIT][MAX_CODE]; /* entries of the grid */
    uint8_t signs[MAX_UNIT][4];        /* of eight weights each; a set bit is minus */
    bool down[MAX_UNIT][4];            /* for each run of shift_run weights: 8 * value - 1 instead of + 1 */
};

/* ---- the nearest entry --------------------------------------------------------------------------------------- */

/* Computes cost[code] of each combination of levels of half of a group's weights, and returns the least. with_code: the
 * last eight bits of a cost are its code, so that the least cost tells its code. */
static inline vf half_costs(const struct fit_grid *g, const vf *x, const vf *w, const vf *level, bool with_code,
                            vf cost[256])
{
    vf c[4][8], least = V_ALL(0);
    int n = g->n_dim == 8 ? 4 : 2, n_level = n == 4 ? 3 : 8, bits = n == 4 ? 2 : 4;
    assert(g->n_level == n_level);
    for (int i = 0; i < n; i++) {
        vf best = V_ALL(INFINITY);
        for (int l = 0; l < n_level; l++) {
            vf diff = x[i] - level[l];
            c[i][l] = v_weigh(w, i, diff * diff);
            best = v_min(c[i][l], best);
        }
        least += best;
    }
    for (int a = 0; a < n_level; a++)
        for (int b = 0; b < n_level; b++) {
            vf ab = c[n - 1][a] + c[n - 2][b];
            int code = a << bits * (n - 1) | b << bits * (n - 2);
            for (int i = 0; i < (n == 4 ? 9 : 1); i++) {
                int all = n == 4 ? code | i / 3 << bits | i % 3 : code;
                vf sum = ab;
                if (n == 4)
                    sum += c[1][i / 3] + c[0][i % 3];
                cost[all] = with_code ? (vf)(((vi)sum & ~255) | all) : sum;
            }
        }
    return least;
}

/* The entry for which sum w (x - level)^2 over a group is least. */
static inline vi nearest_entry(const struct fit_grid *g, const vf *x, const vf *w, const vf *level)
{
    vf low[256], high[256], best = V_ALL(INFINITY);
    vi found = (vi){0} + g->entries[0];
    int half = g->n_dim / 2;
    vf least = half_costs(g, x, w, level, true, low);
    half_costs(g, x + half, w ? w + half : NULL, level, false, high);
    for (int r = 0; r < g->n_run; r++) { /* entries with the same high half */
        const uint16_t *entry = g->entries + g->runs[r].first, *end = g->entries + g->runs[r].end;
        vf base = high[g->runs[r].high];
        if (end - entry > 8 && !v_any(v_less(base + least, best))) /* the look costs as much as a few entries */
            continue;
        vf cost = low[*entry & 255];
        while (++entry < end)
            cost = v_min(low[*entry & 255], cost);
        vi code = ((vi)cost & 255) | g->runs[r].high << 8;
        cost += base;
        found = v_choose_int(v_less(cost, best), code, found);
        best = v_min(cost, best);
    }
    return found;
}

/* ---- a sub-block at a scale ---------------------------------------------------------------------------------- */

struct grid_sums {
    vf xv, vv; /* of w x value and w value^2 */
};

/* Adds the sums of a group whose entries have the values `value`. */
static inline void add_group(const struct fit_grid *g, const float *value, const vf *x, const vf *w, vi entry,
                             struct grid_sums *s)
{
    int bits = 16 / g->n_dim;
    for (int i = 0; i < g->n_dim; i++) {
        vf level = v_float(entry >> bits * i & ((1 << bits) - 1)), v = V_ALL(value[0]);
        for (int l = 1; l < g->n_level; l++)
            v += v_choose(v_less(V_ALL((float)l - 0.5f), level), V_ALL(value[l] - value[l - 1]), V_ALL(0));
        vf wv = v_weigh(w, i, v);
        s->xv += wv * x[i];
        s->vv += wv * v;
    }
}

/* Fits n weights at the scale d, with values moved by `shift`. */
static inline struct grid_sums fit_run(const struct grid_codec *c, const vf *x, const vf *w, int n, vf d, int shift,
                                       vi *entry)
{
    const struct fit_grid *g = c->grid;
    struct grid_sums s = {V_ALL(0), V_ALL(0)};
    float value[8];
    vf level[8];
    for (int l = 0; l < g->n_level; l++) {
        value[l] = (float)(c->has_shift ? 8 * g->values[l] + shift : g->values[l]);
        level[l] = d * value[l];
    }
    for (int i = 0; i < n; i += g->n_dim, entry++) {
        const vf *ws = w ? w + i : NULL;
        *entry = nearest_entry(g, x + i, ws, level);
        add_group(g, value, x + i, ws, *entry, &s);
    }
    return s;
}

/* Fits a sub-block of len weights at the scale d. down: whether each run is moved down, all bits or none. */
static inline struct grid_sums fit_sub(const struct grid_codec *c, const vf *x, const vf *w, int len, vf d, vi *entries,
                                       vi *down)
{
    struct grid_sums all = {V_ALL(0), V_ALL(0)};
    if (!c->has_shift)
        return fit_run(c, x, w, len, d, 0, entries);
    for (int i = 0; i < len; i += c->shift_run, down++) {
        vi low[MAX_CODE], *up = entries + i / c->grid->n_dim;
        const vf *ws = w ? w + i : NULL;
        struct grid_sums a = fit_run(c, x + i, ws, c->shift_run, d, -1, low);
        struct grid_sums b = fit_run(c, x + i, ws, c->shift_run, d, 1, up);
        vm lower = v_less(d * (d * a.vv - 2 * a.xv), d * (d * b.vv - 2 * b.xv));
        *down = v_choose_int(lower, (vi){0} - 1, (vi){0});
        for (int k = 0; k < c->shift_run / c->grid->n_dim; k++)
            up[k] = v_choose_int(lower, low[k], up[k]);
        all.xv += v_choose(lower, a.xv, b.xv);
        all.vv += v_choose(lower, a.vv, b.vv);
    }
    return all;
}

/* ---- blocks -------------------------------------------------------------------------------------------------- */

/* Takes the signs off the weights, as grids have none; a weight that must be stored with the wrong sign becomes
 * negative. */
static inline void take_signs(const struct grid_codec *c, struct batch *b, int len, vi *signs)
{
    for (int at = 0; at < len; at += 8, signs++) {
        vi bits = {0}, parity = {0}, cheapest = {0};
        vf least = V_ALL(INFINITY);
        for (int i = 0; i < 8; i++) {
            vf x = b->x[at + i], cost = v_weigh(b->w, at + i, x * x);
            vi minus = (vi)v_choose(v_less(x, V_ALL(0)), (vf)((vi){0} + 1), V_ALL(0));
            bits |= minus << i;
            parity ^= minus;
            cheapest = v_choose_int(v_less(cost, least), (vi){0} + (1 << i), cheapest);
            least = v_min(cost, least);
            b->x[at + i] = v_abs(x);
        }
        vi wrong = c->even_signs ? cheapest & -parity : (vi){0};
        for (int i = 0; i < 8; i++)
            b->x[at + i] = (vf)((vi)b->x[at + i] ^ (wrong >> i & 1) << 31);
        *signs = bits ^ wrong;
    }
}

/* A sub-block's best scale, any number. */
static inline vf ideal_scale(const struct grid_codec *c, const struct batch *b, int len)
{
    const struct fit_grid *g = c->grid;
    vf d = v_abs(v_extreme(b->x, len)) * (c->first / (float)g->values[g->n_level - 1]), best_d = d, best = V_ALL(0);
    vi entries[MAX_CODE], down[4];
    for (int i = 0; i < c->n_try; i++, d *= c->factor) {
        struct grid_sums s = fit_sub(c, b->x, b->w, len, d, entries, down);
        vm some = v_less(V_ALL(0), s.xv);
        vf fit = s.xv / v_choose(some, s.vv, V_ALL(1)), gain = v_choose(some, fit * s.xv, V_ALL(0));
        vm better = v_less(best, gain);
        best = v_choose(better, gain, best);
        best_d = v_choose(better, fit, best_d);
    }
    return best_d;
}

/* Chooses the best integer scale next to `scale`; the sums of its values, scale included. */
static inline vf choose_grid_scale(const struct grid_codec *c, const struct batch *b, int len, vf d, vf scale,
                                   struct grid_sums *sums)
{
    vf best = V_ALL(INFINITY), chosen = scale;
    vi entries[MAX_CODE], down[4];
    *sums = (struct grid_sums){V_ALL(0), V_ALL(0)};
    for (int step = -2; step <= 2; step += 2) {
        vf s = v_max(v_min(scale + (float)step, V_ALL((float)c->scale_hi)), V_ALL(1)), ds = d * s;
        struct grid_sums here = fit_sub(c, b->x, b->w, len, ds, entries, down);
        vf error = ds * (ds * here.vv - 2 * here.xv);
        vm better = v_less(error, best);
        best = v_choose(better, error, best);
        chosen = v_choose(better, s, chosen);
        sums->xv = v_choose(better, s * here.xv, sums->xv);
        sums->vv = v_choose(better, s * s * here.vv, sums->vv);
    }
    return chosen;
}

/* Stores each block's d as half, the first at `half`, the next ones `stride` bytes on. */
static inline void store_units(const struct supers *s, const struct grid_codec *c, uint8_t *half, size_t stride,
                               const float *of_block, union units *d)
{
    float stored[MAX_UNIT / 8] = {0};
    for (int k = 0; k < s->n_block; k++)
        stored[k] = fit_store_half(half + (size_t)k * stride, of_block[k] / c->unit) * c->unit;
    spread(s, stored, d);
}

static inline void grid_output(const struct grid_codec *c, const struct supers *s, int g, vf scale, const vi *entries,
                               const vi *down, const vi *signs, struct grid_codes *out)
{
    for (int l = 0; l < LANES; l++) {
        int u = g * LANES + l;
        out->scale[u] = (int8_t)scale[l];
        for (int k = 0; k < s->len / c->grid->n_dim; k++)
            out->code[u][k] = (uint16_t)entries[k][l];
        for (int k = 0; k < s->len / 8; k++) {
            out->signs[u][k] = c->has_shift ? 0 : (uint8_t)signs[k][l];
            out->down[u][k] = c->has_shift && down[k * 8 / c->shift_run][l] != 0;
        }
    }
}

static inline void grid_fit(const struct grid_codec *c, struct supers *s, uint8_t *half, size_t stride,
                            struct grid_codes *out)
{
    union units ideal = {0}, scale = {0}, d, xx, xv, vv;
    vi signs[MAX_GROUP][4], entries[MAX_CODE], down[4];
    float of_block[MAX_UNIT / 8] = {0}, sum_xv[MAX_UNIT / 8], sum_vv[MAX_UNIT / 8];
    for (int g = 0; g < s->n_group; g++) {
        if (!c->has_shift)
            take_signs(c, &s->groups[g], s->len, signs[g]);
        ideal.v[g] = ideal_scale(c, &s->groups[g], s->len);
    }
    for (int u = 0; u < s->n_block * s->n_sub; u++) {
        float top = ideal.f[u] / (float)c->scale_hi, *max = &of_block[u / s->n_sub];
        *max = top > *max ? top : *max;
    }
    store_units(s, c, half, stride, of_block, &d);
    for (int g = 0; g < s->n_group; g++)
        scale.v[g] = 1 + 2 * v_clamp_round((ideal.v[g] * v_inverse(d.v[g]) - 1) * 0.5f, 0, (float)(c->scale_hi / 2));
    for (int round = 0; round < c->n_round; round++) {
        for (int g = 0; g < s->n_group; g++) {
            struct grid_sums sums;
            scale.v[g] = choose_grid_scale(c, &s->groups[g], s->len, d.v[g], scale.v[g], &sums);
            xv.v[g] = sums.xv;
            vv.v[g] = sums.vv;
        }
        add_up(s, &xv, sum_xv);
        add_up(s, &vv, sum_vv);
        for (int k = 0; k < s->n_block; k++)
            of_block[k] = sum_xv[k] > 0 && sum_vv[k] > 0 ? sum_xv[k] / sum_vv[k] : of_block[k];
        store_units(s, c, half, stride, of_block, &d);
    }
    for (int g = 0; g < s->n_group; g++) {
        const struct batch *b = &s->groups[g];
        vv.v[g] = scale.v[g] * scale.v[g] * fit_sub(c, b->x, b->w, s->len, d.v[g] * scale.v[g], entries, down).vv;
        xx.v[g] = sum_squares(b->x, b->w, s->len);
        grid_output(c, s, g, scale.v[g], entries, down, signs[g], out);
    }
    if (c->as_large) {
        match_sizes(s, &xx, &vv, of_block);
        store_units(s, c, half, stride, of_block, &d);
    }
}

/* ---- formats ------------------------------------------------------------------------------------------------- */

/* The index of an entry. */
static int entry_index(const struct fit_grid *g, uint16_t entry)
{
    int point = 0, bits = 16 / g->n_dim;
    for (int i = g->n_dim - 1; i >= 0; i--)
        point = point * g->n_level + (entry >> bits * i & ((1 << bits) - 1));
    return g->index[point];
}

static void store32(uint8_t *p, uint32_t v)
{
    fit_store16(p, (uint16_t)v);
    fit_store16(p + 2, (uint16_t)(v >> 16));
}

/* Seven signs of each eight of 32 weights, and the scale in the top. */
static uint32_t signs_and_scale(const uint8_t signs[4], int scale)
{
    uint32_t aux = (uint32_t)(scale / 2) << 28;
    for (int i = 0; i < 4; i++)
        aux |= (uint32_t)(signs[i] & 127) << 7 * i;
    return aux;
}

/* Scales 2s + 1 of sub-blocks, four bits each. */
static void store_scales4(uint8_t *scales, const int8_t *scale, int n)
{
    for (int j = 0; j < n; j++)
        scales[j / 2] = (uint8_t)(j % 2 ? scales[j / 2] | scale[j] / 2 << 4 : scale[j] / 2);
}

/* Blocks to be encoded. */
struct grid_input {
    const float *x, *w; /* weights and their importances; w may be NULL */
    int n_block;
    int n_sub; /* sub-blocks of a block */
};

/* Fits blocks [at, at + n), n as many as fit the lanes; returns n. */
static inline int grid_blocks(const struct grid_codec *c, const struct grid_input *in, int at, uint8_t *half,
                              size_t stride, struct grid_codes *out)
{
    struct supers s;
    int most = supers_per_batch(in->n_sub), n = in->n_block - at < most ? in->n_block - at : most;
    size_t off = (size_t)at * QUANT_SUPER;
    supers_load(&s, in->x + off, in->w ? in->w + off : NULL, n, in->n_sub);
    grid_fit(c, &s, half, stride, out);
    return n;
}

#define GRID_SIGNED(name, u, even, large)                                                                              \
    {                                                                                                                  \
        .grid = &t->name, .scale_hi = 31, .n_round = 1, .unit = (u), .as_large = (large), .even_signs = (even),        \
        .first = 0.75f, .factor = 1.17f, .n_try = 5                                                                    \
    }

static void encode_iq2_xxs(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    const struct grid_codec codec = GRID_SIGNED(iq2_xxs, 0.125f, true, true);
    const struct grid_input in = {x, w, n_block, 8};
    struct grid_codes c;
    for (int at = 0, n; at < n_block; at += n) {
        struct block_iq2_xxs *b = (struct block_iq2_xxs *)blocks + at;
        n = grid_blocks(&codec, &in, at, b->d, sizeof *b, &c);
        for (int u = 0; u < 8 * n; u++) {
            uint8_t *qs = b[u / 8].qs + u % 8 * 8;
            for (int i = 0; i < 4; i++)
                qs[i] = (uint8_t)entry_index(codec.grid, c.code[u][i]);
            store32(qs + 4, signs_and_scale(c.signs[u], c.scale[u]));
        }
    }
}

static void encode_iq2_xs(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    const struct grid_codec codec = GRID_SIGNED(iq2_xs, 0.125f, true, false);
    const struct grid_input in = {x, w, n_block, 16};
    struct grid_codes c;
    struct block_iq2_xs *b = blocks;
    for (int at = 0; at < n_block; at++, b++) {
        grid_blocks(&codec, &in, at, b->d, sizeof *b, &c);
        for (int i = 0; i < 32; i++) {
            int word = entry_index(codec.grid, c.code[i / 2][i % 2]) | (c.signs[i / 2][i % 2] & 127) << 9;
            fit_store16(b->qs + 2 * i, (uint16_t)word);
        }
        store_scales4(b->scales, c.scale, 16);
    }
}

static void encode_iq2_s(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    const struct grid_codec codec = GRID_SIGNED(iq2_s, 0.125f, false, true);
    const struct grid_input in = {x, w, n_block, 16};
    struct grid_codes c;
    struct block_iq2_s *b = blocks;
    for (int at = 0; at < n_block; at++, b++) {
        memset(b, 0, sizeof *b);
        grid_blocks(&codec, &in, at, b->d, sizeof *b, &c);
        for (int i = 0; i < 32; i++) {
            int index = entry_index(codec.grid, c.code[i / 2][i % 2]);
            b->qs[i] = (uint8_t)index;
            b->qh[i / 4] |= (uint8_t)(index >> 8 << i % 4 * 2);
            b->signs[i] = c.signs[i / 2][i % 2];
        }
        store_scales4(b->scales, c.scale, 16);
    }
}

static void encode_iq3_xxs(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    const struct grid_codec codec = GRID_SIGNED(iq3_xxs, 0.25f, true, true);
    const struct grid_input in = {x, w, n_block, 8};
    struct grid_codes c;
    for (int at = 0, n; at < n_block; at += n) {
        struct block_iq3_xxs *b = (struct block_iq3_xxs *)blocks + at;
        n = grid_blocks(&codec, &in, at, b->d, sizeof *b, &c);
        for (int u = 0; u < 8 * n; u++) {
            for (int i = 0; i < 8; i++)
                b[u / 8].qs[u % 8 * 8 + i] = (uint8_t)entry_index(codec.grid, c.code[u][i]);
            store32(b[u / 8].aux + u % 8 * 4, signs_and_scale(c.signs[u], c.scale[u]));
        }
    }
}

static void encode_iq3_s(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    const struct grid_codec codec = GRID_SIGNED(iq3_s, 1, false, true);
    const struct grid_input in = {x, w, n_block, 8};
    struct grid_codes c;
    for (int at = 0, n; at < n_block; at += n) {
        struct block_iq3_s *b = (struct block_iq3_s *)blocks + at;
        n = grid_blocks(&codec, &in, at, b->d, sizeof *b, &c);
        for (int k = 0; k < n; k++, b++) {
            memset(b->qh, 0, sizeof b->qh);
            for (int i = 0; i < 64; i++) {
                int index = entry_index(codec.grid, c.code[8 * k + i / 8][i % 8]);
                b->qs[i] = (uint8_t)index;
                b->qh[i / 8] |= (uint8_t)(index >> 8 << i % 8);
            }
            for (int i = 0; i < 32; i++)
                b->signs[i] = c.signs[8 * k + i / 4][i % 4];
            store_scales4(b->scales, c.scale + 8 * k, 8);
        }
    }
}

#define GRID_IQ1(run)                                                                                                  \
    {                                                                                                                  \
        .grid = &t->iq1, .scale_hi = 15, .n_round = 1, .unit = 0.125f, .as_large = true, .has_shift = true,            \
        .shift_run = (run), .first = 0.48f / 8, .factor = 1.3f, .n_try = 3                                             \
    }

static void encode_iq1_s(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    const struct grid_codec codec = GRID_IQ1(32);
    const struct grid_input in = {x, w, n_block, 8};
    struct grid_codes c;
    for (int at = 0, n; at < n_block; at += n) {
        struct block_iq1_s *b = (struct block_iq1_s *)blocks + at;
        n = grid_blocks(&codec, &in, at, b->d, sizeof *b, &c);
        for (int u = 0; u < 8 * n; u++) {
            int high = c.scale[u] / 2 << 12 | c.down[u][0] << 15;
            for (int i = 0; i < 4; i++) {
                int index = entry_index(codec.grid, c.code[u][i]);
                b[u / 8].qs[u % 8 * 4 + i] = (uint8_t)index;
                high |= index >> 8 << 3 * i;
            }
            fit_store16(b[u / 8].qh + u % 8 * 2, (uint16_t)high);
        }
    }
}

static void encode_iq1_m(const struct quant_tables *t, const float *x, const float *w, void *blocks, int n_block)
{
    const struct grid_codec codec = GRID_IQ1(8);
    const struct grid_input in = {x, w, n_block, 16};
    struct grid_codes c;
    struct block_iq1_m *b = blocks;
    uint8_t half[2];
    for (int at = 0; at < n_block; at++, b++) {
        memset(b, 0, sizeof *b);
        grid_blocks(&codec, &in, at, half, sizeof half, &c);
        for (int i = 0; i < 32; i++) {
            int index = entry_index(codec.grid, c.code[i / 2][i % 2]);
            b->qs[i] = (uint8_t)index;
            b->qh[i / 2] |= (uint8_t)((index >> 8 | c.down[i / 2][i % 2] << 3) << i % 2 * 4);
        }
        for (int i = 0; i < 4; i++) { /* four scales and a quarter of d a word */
            int word = (quant_load16(half) >> 4 * i & 15) << 12;
            for (int j = 0; j < 4; j++)
                word |= c.scale[4 * i + j] / 2 << 3 * j;
            fit_store16(b->scales + 2 * i, (uint16_t)word);
        }
    }
}

#endif
