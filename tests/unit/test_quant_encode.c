#define _POSIX_C_SOURCE 200809L
/* Encoders: that what they write decodes to what it should, as near as it should, and is what the formats allow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/random.h"
#include "quant/quant_encode.h"
#include "quant/quant_nearest.h"

enum { N = 1024, N_ROW = 8 };

static struct quant_tables *tables;

static int open_tables(void **state)
{
    struct err e = {0};
    return quant_tables_create(&tables, &e) == ERR_OK ? 0 : -1;
}

static int close_tables(void **state)
{
    quant_tables_close(&tables);
    return 0;
}

static float normal(struct random *r)
{
    double u = 1 - random_unit(r);
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * random_unit(r)));
}

/* Sums over N_ROW rows of normal numbers, weighed by `weight` (NULL: alike). */
struct sums {
    double error, size, decoded; /* of squares: of what decoded weights are off, of weights, of decoded weights */
};

static struct sums sums_of(const struct quant_info *q, const float *importance, const float *weight)
{
    struct random r = random_seed(7);
    struct sums s = {0, 0, 0};
    for (int row = 0; row < N_ROW; row++) {
        float x[N], y[N];
        uint8_t bytes[N * 4];
        for (int i = 0; i < N; i++)
            x[i] = 0.02f * normal(&r);
        quant_encode_rows(tables, q, x, importance, bytes, N, 1);
        q->decode(bytes, y, N);
        for (int i = 0; i < N; i++) {
            double w = weight ? (double)weight[i] : 1;
            s.error += w * ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            s.size += w * (double)x[i] * (double)x[i];
            s.decoded += w * (double)y[i] * (double)y[i];
        }
    }
    return s;
}

/* Relative. */
static double error_of(const struct quant_info *q, const float *importance, const float *weight)
{
    struct sums s = sums_of(q, importance, weight);
    return sqrt(s.error / s.size);
}

/* Errors on normal numbers, and a fiftieth. */
static const struct {
    enum quant_type type;
    double at_most;
} bounds[] = {
    {QUANT_F32, 0},         {QUANT_F16, 0.000215},  {QUANT_BF16, 0.00167},  {QUANT_Q1_0, 0.606},
    {QUANT_Q2_0, 0.356},    {QUANT_Q4_0, 0.081},    {QUANT_Q4_1, 0.0716},   {QUANT_Q5_0, 0.0398},
    {QUANT_Q5_1, 0.034},    {QUANT_Q8_0, 0.00532},  {QUANT_Q2_K, 0.267},    {QUANT_Q3_K, 0.146},
    {QUANT_Q4_K, 0.0703},   {QUANT_Q5_K, 0.0348},   {QUANT_Q6_K, 0.0171},   {QUANT_IQ1_S, 0.461},
    {QUANT_IQ1_M, 0.427},   {QUANT_IQ2_XXS, 0.34},  {QUANT_IQ2_XS, 0.289},  {QUANT_IQ2_S, 0.243},
    {QUANT_IQ3_XXS, 0.181}, {QUANT_IQ3_S, 0.1301},  {QUANT_IQ4_NL, 0.0739}, {QUANT_IQ4_XS, 0.0746},
    {QUANT_TQ1_0, 0.437},   {QUANT_TQ2_0, 0.437},   {QUANT_MXFP4, 0.113},   {QUANT_NVFP4, 0.0915},
    {QUANT_IQ2_KT, 0.2959}, {QUANT_IQ3_KT, 0.1541}, {QUANT_IQ4_KT, 0.089},
};

static void every_encoder_errs_little(void **state)
{
    size_t n = 0;
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++)
        n += quant_info(id) != NULL;
    assert_int_equal(n, sizeof bounds / sizeof *bounds);
    for (size_t i = 0; i < n; i++) {
        const struct quant_info *q = quant_info(bounds[i].type);
        double error = error_of(q, NULL, NULL);
        if (!(error <= bounds[i].at_most))
            fail_msg("%s errs by %.5f, expected at most %.5f", q->name, error, bounds[i].at_most);
    }
}

static void important_columns_err_less(void **state)
{
    float importance[N];
    for (int i = 0; i < N; i++)
        importance[i] = i % 5 == 0 ? 100 : 1;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        const struct quant_info *q = quant_info(bounds[i].type);
        double with = error_of(q, importance, importance), without = error_of(q, NULL, importance);
        bool has_choice = q->block_len > 1 && q->type != QUANT_Q8_0;
        if (has_choice ? !(with < 0.995 * without) : with != without)
            fail_msg("%s errs by %.5f with importances, %.5f without", q->name, with, without);
    }
}

/* With importances: as these weigh them. */
static void weights_of_few_bits_keep_their_size(void **state)
{
    static const enum quant_type types[] = {QUANT_IQ1_S,   QUANT_IQ1_M, QUANT_IQ2_XXS, QUANT_IQ2_S,
                                            QUANT_IQ3_XXS, QUANT_IQ3_S, QUANT_IQ2_KT,  QUANT_IQ3_KT,
                                            QUANT_IQ4_KT,  QUANT_Q2_K,  QUANT_Q3_K};
    float importance[N];
    for (int i = 0; i < N; i++)
        importance[i] = i % 5 == 0 ? 100 : 1;
    for (size_t i = 0; i < 2 * sizeof types / sizeof *types; i++) {
        const struct quant_info *q = quant_info(types[i / 2]);
        struct sums s = sums_of(q, i % 2 ? importance : NULL, i % 2 ? importance : NULL);
        double times = sqrt(s.decoded / s.size);
        if (!(fabs(times - 1) < 0.001))
            fail_msg("%s: decoded weights are %.5f times as large%s", q->name, times, i % 2 ? ", weighted" : "");
    }
}

/* Rows that tempt encoders to divide by nothing or to overflow. */
static void odd_rows_decode_to_finite_numbers(void **state)
{
    enum { KINDS = 8 };
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++) {
        const struct quant_info *q = quant_info(id);
        for (int kind = 0; q && kind < KINDS; kind++) {
            float x[N], y[N], importance[N];
            uint8_t bytes[N * 4];
            for (int i = 0; i < N; i++) {
                const float values[KINDS] = {
                    0, 1, -1, i == 300 ? 3.0f : 0, i % 2 ? 1e-38f : -1e-38f, 1e-5f, 3e4f, i % 7 ? -0.5f : 0.25f};
                x[i] = values[kind];
                importance[i] = i % 300 == 0; /* most blocks have none */
            }
            quant_encode_rows(tables, q, x, kind % 2 ? importance : NULL, bytes, N, 1);
            q->decode(bytes, y, N);
            for (int i = 0; i < N; i++)
                if (!isfinite(y[i]) || (kind == 0 && fabsf(y[i]) > 0))
                    fail_msg("%s: kind %d weight %d is %g", q->name, kind, i, (double)y[i]);
        }
    }
}

enum { MANY = 7, LONG = 2 * N + 256 }; /* no multiples of how many blocks are encoded side by side */

/* Numbers of all sizes, rows of zeros and equal numbers among them. */
static void fill_rows(float *x, float *importance)
{
    struct random r = random_seed(11);
    for (int i = 0; i < MANY * LONG; i++)
        x[i] = i / 256 % 5 == 4 ? (float)(i / 256 % 3 - 1) : ldexpf(normal(&r), -(int)(r.state % 24));
    for (int i = 0; i < LONG; i++)
        importance[i] = i / 512 == 1 ? 0 : (float)random_unit(&r);
}

/* Whatever the instructions, and whether rows come alone or together. */
static void every_machine_gives_the_same_bytes(void **state)
{
    static const char *const levels[] = {"scalar", "avx2", "avx512"};
    static float x[MANY * LONG], importance[LONG];
    static uint8_t expected[sizeof x], bytes[sizeof x];
    const char *mask = getenv("MOEBIUS_CPU");
    char *saved = mask ? strdup(mask) : NULL;
    fill_rows(x, importance);
    for (int way = 0; way < 12; way++) {
        struct quant_tables *t[2] = {NULL, NULL};
        struct err e = {0};
        const float *w = way % 2 ? importance : NULL;
        bool alone = way / 2 % 2;
        setenv("MOEBIUS_CPU", levels[0], 1);
        assert_int_equal(quant_tables_create(&t[0], &e), ERR_OK);
        setenv("MOEBIUS_CPU", levels[way / 4], 1);
        if (quant_tables_create(&t[1], &e) == ERR_OK)
            for (uint32_t id = 0; id < QUANT_MAX_ID; id++) {
                const struct quant_info *q = quant_info(id);
                size_t row_bytes = 0;
                if (!q)
                    continue;
                assert_true(quant_row_bytes(q, LONG, &row_bytes));
                quant_encode_rows(t[0], q, x, w, expected, LONG, MANY);
                for (int row = 0; row < (alone ? MANY : 1); row++)
                    quant_encode_rows(t[1], q, x + row * LONG, w, bytes + (size_t)row * row_bytes, LONG,
                                      alone ? 1 : MANY);
                for (size_t i = 0; i < row_bytes * MANY; i++)
                    if (bytes[i] != expected[i])
                        fail_msg("%s: byte %zu of %s differs (way %d)", q->name, i, levels[way / 4], way);
            }
        quant_tables_close(&t[0]);
        quant_tables_close(&t[1]);
    }
    if (saved)
        setenv("MOEBIUS_CPU", saved, 1);
    else
        unsetenv("MOEBIUS_CPU");
    free(saved);
}

static float distance(const float *at, const float *w, const int8_t *point, int n_dim)
{
    float sum = 0;
    for (int k = 0; k < n_dim; k++)
        sum += w[k] * (at[k] - (float)point[k]) * (at[k] - (float)point[k]);
    return sum;
}

static void the_nearest_point_is_found(void **state)
{
    enum { N_POINT = 2048, N_QUERY = 200 };
    struct random r = random_seed(5);
    for (int n_dim = 4; n_dim <= 8; n_dim += 4) {
        int8_t points[N_POINT * 8];
        int n = n_dim == 8 ? 1024 : 2048; /* a leaf's points times a power of four */
        struct nearest t;
        for (int i = 0; i < n * n_dim; i++)
            points[i] = (int8_t)(30 * normal(&r));
        assert_true(nearest_open(&t, points, n, n_dim));
        for (int i = 0; i < N_QUERY; i++) {
            float at[8], w[8], least = INFINITY, found = INFINITY;
            for (int k = 0; k < n_dim; k++) {
                at[k] = 35 * normal(&r);
                w[k] = k == i % 16 ? 0 : (float)random_unit(&r);
            }
            for (int p = 0; p < n; p++)
                least = fminf(least, distance(at, w, points + p * n_dim, n_dim));
            int p = nearest_find(&t, at, w, 1, &found);
            assert_in_range(p, 0, n - 1);
            assert_float_equal(found, distance(at, w, points + p * n_dim, n_dim), 1e-4f * least);
            assert_float_equal(found, least, 1e-4f * least);
            float bound = found;
            assert_int_equal(nearest_find(&t, at, w, 1, &bound), -1); /* none is nearer than the nearest */
            assert_true(bound == found);
        }
        nearest_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_encoder_errs_little),          cmocka_unit_test(important_columns_err_less),
        cmocka_unit_test(odd_rows_decode_to_finite_numbers),  cmocka_unit_test(the_nearest_point_is_found),
        cmocka_unit_test(every_machine_gives_the_same_bytes), cmocka_unit_test(weights_of_few_bits_keep_their_size),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
