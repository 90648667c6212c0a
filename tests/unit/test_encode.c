/* Encoders: that what they write decodes to what it should, as near as it should, and is what the formats allow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "base/random.h"
#include "quant/quant_encode.h"

enum { N = 1024, N_ROW = 8 };

static struct quant_tables *tables;

static int open_tables(void **state)
{
    tables = quant_tables_create();
    return tables ? 0 : -1;
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

/* The relative error of N_ROW rows of normal numbers, with errors weighed by `weight` (NULL: alike). */
static double error_of(const struct quant_info *q, const float *importance, const float *weight)
{
    struct random r = random_seed(7);
    double error = 0, size = 0;
    for (int row = 0; row < N_ROW; row++) {
        float x[N], y[N];
        uint8_t bytes[N * 4];
        for (int i = 0; i < N; i++)
            x[i] = 0.02f * normal(&r);
        quant_encode_row(tables, q, x, importance, bytes, N);
        q->decode(bytes, y, N);
        for (int i = 0; i < N; i++) {
            double w = weight ? (double)weight[i] : 1;
            error += w * ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            size += w * (double)x[i] * (double)x[i];
        }
    }
    return sqrt(error / size);
}

/* Errors on normal numbers, and a fiftieth. */
static const struct {
    enum quant_type type;
    double at_most;
} bounds[] = {
    {QUANT_F32, 0},         {QUANT_F16, 0.000215},  {QUANT_BF16, 0.00167},  {QUANT_Q1_0, 0.606},
    {QUANT_Q2_0, 0.356},    {QUANT_Q4_0, 0.081},    {QUANT_Q4_1, 0.0702},   {QUANT_Q5_0, 0.0398},
    {QUANT_Q5_1, 0.034},    {QUANT_Q8_0, 0.00532},  {QUANT_Q2_K, 0.264},    {QUANT_Q3_K, 0.146},
    {QUANT_Q4_K, 0.0703},   {QUANT_Q5_K, 0.0348},   {QUANT_Q6_K, 0.0171},   {QUANT_IQ1_S, 0.449},
    {QUANT_IQ1_M, 0.417},   {QUANT_IQ2_XXS, 0.335}, {QUANT_IQ2_XS, 0.289},  {QUANT_IQ2_S, 0.241},
    {QUANT_IQ3_XXS, 0.181}, {QUANT_IQ3_S, 0.13},    {QUANT_IQ4_NL, 0.0739}, {QUANT_IQ4_XS, 0.0746},
    {QUANT_TQ1_0, 0.437},   {QUANT_TQ2_0, 0.437},   {QUANT_MXFP4, 0.113},   {QUANT_NVFP4, 0.094},
};

static void every_encoder_errs_little(void **state)
{
    size_t n = 0;
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++)
        n += quant_info(id) && quant_can_encode(quant_info(id));
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

/* Rows that tempt encoders to divide by nothing or to overflow. */
static void odd_rows_decode_to_finite_numbers(void **state)
{
    enum { KINDS = 8 };
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++) {
        const struct quant_info *q = quant_info(id);
        for (int kind = 0; q && quant_can_encode(q) && kind < KINDS; kind++) {
            float x[N], y[N], importance[N];
            uint8_t bytes[N * 4];
            for (int i = 0; i < N; i++) {
                const float values[KINDS] = {
                    0, 1, -1, i == 300 ? 3.0f : 0, i % 2 ? 1e-38f : -1e-38f, 1e-5f, 3e4f, i % 7 ? -0.5f : 0.25f};
                x[i] = values[kind];
                importance[i] = i % 300 == 0; /* most blocks have none */
            }
            quant_encode_row(tables, q, x, kind % 2 ? importance : NULL, bytes, N);
            q->decode(bytes, y, N);
            for (int i = 0; i < N; i++)
                if (!isfinite(y[i]) || (kind == 0 && fabsf(y[i]) > 0))
                    fail_msg("%s: kind %d weight %d is %g", q->name, kind, i, (double)y[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_encoder_errs_little),
        cmocka_unit_test(important_columns_err_less),
        cmocka_unit_test(odd_rows_decode_to_finite_numbers),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
