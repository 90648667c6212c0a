/* Encoders of the codebook formats IQ1, IQ2 and IQ3. For a scale, the nearest entry of a grid is found exactly: the
 * cost of each half of the weights at each combination of levels is tabled, and an entry costs the sum of two. */
#include <assert.h>
#include <string.h>

#include "quant/quant_grids.h"
#include "quant/quant_super.h"

void fit_grid_open(struct fit_grid *g, const uint16_t *entries, int n, int n_dim, const int8_t *values, int n_level)
{
    *g = (struct fit_grid){.entries = entries, .values = values, .n_dim = n_dim, .n_level = n_level};
    memset(g->index, -1, sizeof g->index);
    for (int i = 0; i < n; i++) {
        uint8_t high = (uint8_t)(entries[i] >> 8);
        if (i == 0 || high != g->runs[g->n_run - 1].high) {
            g->runs[g->n_run].high = high;
            g->runs[g->n_run++].first = (uint16_t)i;
        }
        g->runs[g->n_run - 1].end = (uint16_t)(i + 1);
        int point = 0, bits = 16 / n_dim;
        for (int k = n_dim - 1; k >= 0; k--)
            point = point * n_level + (entries[i] >> bits * k & ((1 << bits) - 1));
        g->index[point] = (int16_t)i;
    }
}

/* ---- the nearest entry --------------------------------------------------------------------------------------- */

static void check_shape(const struct fit_grid *g)
{
    assert((g->n_dim == 8 && g->n_level == 3) || (g->n_dim == 4 && g->n_level == 8));
}

/* cost[code] of each combination of levels of half of a group's weights; returns the least of them. */
static float half_costs(const struct fit_grid *g, const float *x, const float *w, const float *level, float cost[256])
{
    float c[4][8] = {{0}}, least = 0;
    check_shape(g);
    int n = g->n_dim == 8 ? 4 : 2, bits = n == 4 ? 2 : 4;
    for (int i = 0; i < n; i++) {
        float best = INFINITY;
        for (int l = 0; l < g->n_level; l++) {
            float diff = x[i] - level[l];
            c[i][l] = w[i] * diff * diff;
            best = c[i][l] < best ? c[i][l] : best;
        }
        least += best;
    }
    for (int a = 0; a < g->n_level; a++)
        for (int b = 0; b < g->n_level; b++) {
            float ab = c[n - 1][a] + c[n - 2][b];
            int code = a << bits * (n - 1) | b << bits * (n - 2);
            for (int i = 0; n == 4 && i < 9; i++)
                cost[code | i / 3 << bits | i % 3] = ab + c[1][i / 3] + c[0][i % 3];
            if (n == 2)
                cost[code] = ab;
        }
    return least;
}

/* The index of the point whose weights are each at the level nearest to them; -1 when the grid does not have it. */
static int rounded_entry(const struct fit_grid *g, const float *x, const float *level)
{
    int point = 0;
    check_shape(g);
    for (int i = g->n_dim - 1; i >= 0; i--) {
        int l = 0;
        for (int k = 1; k < g->n_level; k++)
            l += 2 * x[i] > level[k - 1] + level[k];
        point = point * g->n_level + l;
    }
    return g->index[point];
}

/* The entry for which sum w (x - level)^2 over a group is least. */
static int nearest_entry(const struct fit_grid *g, const float *x, const float *w, const float *level)
{
    float low[256], high[256], best = INFINITY;
    int half = g->n_dim / 2, found = rounded_entry(g, x, level);
    if (found >= 0)
        return found;
    float least = half_costs(g, x, w, level, low);
    half_costs(g, x + half, w + half, level, high);
    for (int r = 0; r < g->n_run; r++) {
        float base = high[g->runs[r].high];
        if (base + least >= best)
            continue;
        for (int i = g->runs[r].first; i < g->runs[r].end; i++) {
            float total = base + low[g->entries[i] & 255];
            if (total < best) {
                best = total;
                found = i;
            }
        }
    }
    return found < 0 ? 0 : found; /* 0: no sum is finite */
}

/* Index of the entry that stands for the magnitudes (IQ1: values) of a group. */
static int entry_of(const struct fit_grid *g, const int8_t *value)
{
    int point = 0;
    check_shape(g);
    for (int i = g->n_dim - 1; i >= 0; i--) {
        int l = 0;
        while (l < g->n_level - 1 && g->values[l] != value[i])
            l++;
        point = point * g->n_level + l;
    }
    return g->index[point];
}

/* ---- IQ2, IQ3 ------------------------------------------------------------------------------------------------ */

struct grid_book {
    const struct fit_grid *grid;
    bool even_signs; /* of each eight, an even number is negative */
};

/* Signed values of eight weights for the scale d > 0. */
static void fit_eight(const struct grid_book *b, const float *x, const float *w, float d, int8_t value[8])
{
    float size[8], level[8] = {0};
    bool minus[8], odd = false;
    int cheapest = 0;
    for (int i = 0; i < 8; i++) {
        minus[i] = x[i] < 0;
        size[i] = fabsf(x[i]);
        odd ^= minus[i];
        if (w[i] * size[i] * size[i] < w[cheapest] * size[cheapest] * size[cheapest])
            cheapest = i;
    }
    if (b->even_signs && odd) { /* the weight that a wrong sign costs least */
        minus[cheapest] = !minus[cheapest];
        size[cheapest] = -size[cheapest];
    }
    const struct fit_grid *g = b->grid;
    for (int l = 0; l < g->n_level; l++)
        level[l] = d * (float)g->values[l];
    for (int at = 0; at < 8; at += g->n_dim) {
        uint16_t entry = g->entries[nearest_entry(g, size + at, w + at, level)];
        for (int i = 0; i < g->n_dim; i++) {
            int v = g->values[entry >> 16 / g->n_dim * i & (g->n_dim == 8 ? 3 : 7)];
            value[at + i] = (int8_t)(minus[at + i] ? -v : v);
        }
    }
}

static float error_grid(const void *book, const float *x, const float *w, int n, float d, int8_t *value)
{
    float sum = 0;
    for (int at = 0; at < n; at += 8) {
        fit_eight(book, x + at, w + at, d, value + at);
        for (int i = at; i < at + 8; i++) {
            float diff = x[i] - d * (float)value[i];
            sum += w[i] * diff * diff;
        }
    }
    return sum;
}

/* The best of a few scales from `first` in steps of a factor, each also with the scale that fits its values best. */
static float search_scale(const void *book, const float *x, const float *w, int n, float first, float factor, int n_try,
                          float (*error)(const void *, const float *, const float *, int, float, int8_t *))
{
    float best = INFINITY, best_d = first, d = first;
    int8_t value[32];
    for (int i = 0; i < n_try; i++, d *= factor) {
        float xv = 0, vv = 0, xx = 0;
        error(book, x, w, n, d, value);
        for (int k = 0; k < n; k++) {
            float v = (float)value[k], wx = w[k] * x[k];
            xx += wx * x[k];
            xv += wx * v;
            vv += w[k] * v * v;
        }
        float left = vv > 0 && xv > 0 ? xx - xv * xv / vv : xx;
        if (left < best) {
            best = left;
            best_d = vv > 0 && xv > 0 ? xv / vv : 0;
        }
    }
    return best_d;
}

static float ideal_grid(const void *book, const float *x, const float *w, int n)
{
    const struct fit_grid *g = ((const struct grid_book *)book)->grid;
    float max = fabsf(fit_extreme(x, n));
    if (max == 0)
        return 0;
    return search_scale(book, x, w, n, 0.75f * max / (float)g->values[g->n_level - 1], 1.17f, 5, error_grid);
}

static void fit_grid_super(const struct fit_grid *g, bool even, int len, float unit, const float *x, const float *w,
                           uint8_t d[2], struct super *s)
{
    struct grid_book book = {g, even};
    const struct super_codec codec = {.len = len,
                                      .scale_lo = 1,
                                      .scale_hi = 31,
                                      .scale_step = 2,
                                      .n_round = 1,
                                      .unit = unit,
                                      ideal_grid,
                                      error_grid,
                                      &book};
    super_fit(&codec, x, w, d, s);
}

/* The index of a group's values, and the signs of eight. */
static int grid_index(const struct fit_grid *g, const int8_t *value)
{
    int8_t size[8];
    check_shape(g);
    for (int i = 0; i < g->n_dim; i++)
        size[i] = (int8_t)(value[i] < 0 ? -value[i] : value[i]);
    return entry_of(g, size);
}
static uint32_t sign_bits(const int8_t value[8])
{
    uint32_t bits = 0;
    for (int i = 0; i < 8; i++)
        bits |= (uint32_t)(value[i] < 0) << i;
    return bits;
}

static void store32(uint8_t *p, uint32_t v)
{
    fit_store16(p, (uint16_t)v);
    fit_store16(p + 2, (uint16_t)(v >> 16));
}

/* Seven signs of each eight of 32 values, and the scale in the top. */
static uint32_t signs_and_scale(const int8_t value[32], int scale)
{
    uint32_t aux = (uint32_t)(scale / 2) << 28;
    for (int i = 0; i < 4; i++)
        aux |= (sign_bits(value + 8 * i) & 127) << 7 * i;
    return aux;
}

/* Scales 2s + 1 of sub-blocks, four bits each. */
static void store_scales4(uint8_t *scales, const struct super *s, int n)
{
    for (int j = 0; j < n; j++)
        scales[j / 2] = (uint8_t)(j % 2 ? scales[j / 2] | s->scale[j] / 2 << 4 : s->scale[j] / 2);
}

void encode_iq2_xxs(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_iq2_xxs *b = block;
    struct super s;
    fit_grid_super(&t->iq2_xxs, true, 32, 0.125f, x, w, b->d, &s);
    for (int j = 0; j < 8; j++) {
        for (int i = 0; i < 4; i++)
            b->qs[8 * j + i] = (uint8_t)grid_index(&t->iq2_xxs, s.value + 32 * j + 8 * i);
        store32(b->qs + 8 * j + 4, signs_and_scale(s.value + 32 * j, s.scale[j]));
    }
}

void encode_iq2_xs(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_iq2_xs *b = block;
    struct super s;
    fit_grid_super(&t->iq2_xs, true, 16, 0.125f, x, w, b->d, &s);
    for (int i = 0; i < 32; i++) {
        const int8_t *value = s.value + 8 * i;
        fit_store16(b->qs + 2 * i, (uint16_t)(grid_index(&t->iq2_xs, value) | (int)(sign_bits(value) & 127) << 9));
    }
    store_scales4(b->scales, &s, 16);
}

void encode_iq2_s(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_iq2_s *b = block;
    struct super s;
    memset(b, 0, sizeof *b);
    fit_grid_super(&t->iq2_s, false, 16, 0.125f, x, w, b->d, &s);
    for (int i = 0; i < 32; i++) {
        int index = grid_index(&t->iq2_s, s.value + 8 * i);
        b->qs[i] = (uint8_t)index;
        b->qh[i / 4] |= (uint8_t)(index >> 8 << i % 4 * 2);
        b->signs[i] = (uint8_t)sign_bits(s.value + 8 * i);
    }
    store_scales4(b->scales, &s, 16);
}

void encode_iq3_xxs(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_iq3_xxs *b = block;
    struct super s;
    fit_grid_super(&t->iq3_xxs, true, 32, 0.25f, x, w, b->d, &s);
    for (int i = 0; i < 64; i++)
        b->qs[i] = (uint8_t)grid_index(&t->iq3_xxs, s.value + 4 * i);
    for (int j = 0; j < 8; j++)
        store32(b->aux + 4 * j, signs_and_scale(s.value + 32 * j, s.scale[j]));
}

void encode_iq3_s(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_iq3_s *b = block;
    struct super s;
    memset(b, 0, sizeof *b);
    fit_grid_super(&t->iq3_s, false, 32, 1, x, w, b->d, &s);
    for (int i = 0; i < 64; i++) {
        int index = grid_index(&t->iq3_s, s.value + 4 * i);
        b->qs[i] = (uint8_t)index;
        b->qh[i / 8] |= (uint8_t)(index >> 8 << i % 8);
    }
    for (int i = 0; i < 32; i++)
        b->signs[i] = (uint8_t)sign_bits(s.value + 8 * i);
    store_scales4(b->scales, &s, 8);
}

/* ---- IQ1 ----------------------------------------------------------------------------------------------------- */

struct iq1_book {
    const struct fit_grid *grid;
    int run; /* weights that share the direction in which the grid is moved */
};

/* Values in eighths, 8 * grid + 1 or - 1, whichever direction is better for each run. */
static float error_iq1(const void *book, const float *x, const float *w, int n, float d, int8_t *value)
{
    const struct iq1_book *b = book;
    float total = 0;
    for (int at = 0; at < n; at += b->run) {
        float best = INFINITY;
        for (int shift = -1; shift <= 1; shift += 2) {
            const float level[8] = {d * (float)(shift - 8), d * (float)shift, d * (float)(shift + 8)};
            float sum = 0;
            int8_t v[32];
            for (int i = 0; i < b->run; i += 8) {
                uint16_t entry = b->grid->entries[nearest_entry(b->grid, x + at + i, w + at + i, level)];
                for (int k = i; k < i + 8; k++) {
                    v[k] = (int8_t)(8 * quant_iq1_values[entry >> 2 * (k - i) & 3] + shift);
                    float diff = x[at + k] - d * (float)v[k];
                    sum += w[at + k] * diff * diff;
                }
            }
            if (sum < best) {
                best = sum;
                memcpy(value + at, v, (size_t)b->run);
            }
        }
        total += best;
    }
    return total;
}

static float ideal_iq1(const void *book, const float *x, const float *w, int n)
{
    float max = fabsf(fit_extreme(x, n));
    return max == 0 ? 0 : search_scale(book, x, w, n, 0.45f * max / 8, 1.25f, 4, error_iq1);
}

static void fit_iq1(const struct fit_grid *g, int len, int run, const float *x, const float *w, uint8_t d[2],
                    struct super *s)
{
    struct iq1_book book = {g, run};
    const struct super_codec codec = {.len = len,
                                      .scale_lo = 1,
                                      .scale_hi = 15,
                                      .scale_step = 2,
                                      .n_round = 2,
                                      .unit = 0.125f,
                                      ideal_iq1,
                                      error_iq1,
                                      &book};
    super_fit(&codec, x, w, d, s);
}

/* The index of eight values in eighths; whether they are moved down. */
static int iq1_index(const struct fit_grid *g, const int8_t value[8], bool *down)
{
    int8_t grid[8];
    *down = (value[0] & 7) == 7;
    for (int i = 0; i < 8; i++)
        grid[i] = (int8_t)((value[i] + (*down ? 1 : -1)) / 8);
    return entry_of(g, grid);
}

void encode_iq1_s(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_iq1_s *b = block;
    struct super s;
    bool down = false;
    fit_iq1(&t->iq1, 32, 32, x, w, b->d, &s);
    for (int j = 0; j < 8; j++) {
        int high = s.scale[j] / 2 << 12;
        for (int i = 0; i < 4; i++) {
            int index = iq1_index(&t->iq1, s.value + 32 * j + 8 * i, &down);
            b->qs[4 * j + i] = (uint8_t)index;
            high |= index >> 8 << 3 * i;
        }
        fit_store16(b->qh + 2 * j, (uint16_t)(high | down << 15));
    }
}

void encode_iq1_m(const struct quant_tables *t, const float *x, const float *w, void *block)
{
    struct block_iq1_m *b = block;
    struct super s;
    uint8_t half[2];
    memset(b, 0, sizeof *b);
    fit_iq1(&t->iq1, 16, 8, x, w, half, &s);
    for (int i = 0; i < 32; i++) {
        bool down = false;
        int index = iq1_index(&t->iq1, s.value + 8 * i, &down);
        b->qs[i] = (uint8_t)index;
        b->qh[i / 2] |= (uint8_t)((index >> 8 | down << 3) << i % 2 * 4);
    }
    for (int i = 0; i < 4; i++) { /* four scales and a quarter of d a word */
        int word = (quant_load16(half) >> 4 * i & 15) << 12;
        for (int j = 0; j < 4; j++)
            word |= s.scale[4 * i + j] / 2 << 3 * j;
        fit_store16(b->scales + 2 * i, (uint16_t)word);
    }
}
