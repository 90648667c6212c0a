#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "quant/layout.h"
#include "quant/quant.h"
#include "quant/quant_check.h"

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

enum { N_BLOCK = 3 };

/* What the decoders of llama.cpp and, for the trellis formats, ik_llama.cpp make of three blocks of known bytes
 * (fill_blocks): the bits of the weights 0, 1, in the middle and at the end of the first block and at the end of the
 * last one, and FNV-1a over the bits of all. */
static const struct decoded {
    enum quant_type type;
    int field_off[2]; /* half-precision fields of a block; -1: none */
    uint32_t some[5];
    uint64_t hash;
} decoded[] = {
    {QUANT_Q4_0, {0, -1}, {0x3e999000, 0xbeccc000, 0x3e999000, 0xbefff000, 0xbe4cc000}, 0xc332efd64295635a},
    {QUANT_Q4_1, {0, 2}, {0x3fa5c260, 0x3f185cc0, 0x3eca5980, 0x3f98f660, 0x3fbf5a60}, 0x8f1343fdeae84b9a},
    {QUANT_Q5_0, {0, -1}, {0x3fbff400, 0x3f4cc000, 0x3fa65c00, 0x3f199000, 0x3f4cc000}, 0x5baaee2bb0d4d0a3},
    {QUANT_Q5_1, {0, 2}, {0x403fa730, 0x3f31f4c0, 0x40194330, 0x3fbf5a60, 0x3e47f300}, 0xe5dabfdbaf13afc6},
    {QUANT_Q8_0, {0, -1}, {0xc0dcbf00, 0x3eccc000, 0xc144c080, 0x3f199000, 0x40a65c00}, 0x69e70c08218d4194},
    {QUANT_Q2_K, {80, 82}, {0x402d5ba0, 0x3c19a000, 0x40879140, 0x4028c280, 0x405672f0}, 0xdd8ce99652c17127},
    {QUANT_Q3_K, {108, -1}, {0x3efff000, 0xbf7ff000, 0x40acc200, 0x40acc200, 0xc03ff400}, 0xebb5a1f5806e279d},
    {QUANT_Q4_K, {0, 2}, {0x407dbd60, 0x417a96d8, 0x419ff95e, 0x41881130, 0x3e4e6f00}, 0xe8873ff80988e2ac},
    {QUANT_Q5_K, {0, 2}, {0x41efaaac, 0x3d866c00, 0x425ff3af, 0x41135d60, 0x41c3f71e}, 0xf1d00716ffe8776b},
    {QUANT_Q6_K, {208, -1}, {0x4284f7b0, 0xc197f680, 0xc10ff700, 0xc177f080, 0xc274bd80}, 0xa893be85b9045f0e},
    {QUANT_IQ4_NL, {0, -1}, {0x40732400, 0xc09cc300, 0x40732400, 0xc0cff300, 0xc00cc400}, 0x1c8234e974749c37},
    {QUANT_IQ4_XS, {0, -1}, {0x438104bc, 0xc1e7f180, 0x42159040, 0x41eff100, 0xc286f790}, 0xeadf1d699befdfcc},
    {QUANT_IQ2_XXS, {0, -1}, {0xc16824b0, 0xc16824b0, 0xbfa65c00, 0xbff32400, 0xc0f9f060}, 0x287bdbb780d5e630},
    {QUANT_IQ2_XS, {0, -1}, {0x3f332800, 0xc00bf740, 0x3fbff400, 0x40465a00, 0xbefff000}, 0x9860f58ad6dd658d},
    {QUANT_IQ3_XXS, {0, -1}, {0xc1ca59c0, 0xc1a58f40, 0xbfd98c00, 0x405ff200, 0x41418d80}, 0xd25c493c4882b5f0},
    {QUANT_IQ1_S, {0, -1}, {0x3e865e00, 0xbeacc200, 0xbfd7f280, 0xbf9e5c80, 0x3fa7f580}, 0xf5e4a914ef06a8b1},
    {QUANT_IQ3_S, {0, -1}, {0x4147f380, 0x401ff600, 0x41ff2340, 0xc1ca59c0, 0xc167f180}, 0xe44b165e7cca156c},
    {QUANT_IQ2_S, {0, -1}, {0xbfd98c00, 0xc0a9f560, 0xc01ff600, 0xc081f7e0, 0xbff32400}, 0xcec5528d839c46a6},
    {QUANT_IQ1_M, {-1, -1}, {0x3a5ec600, 0x3a5ec600, 0xb9cfec00, 0x3b35ee80, 0xbe046c00}, 0xdfaa0aa0b408f23a},
    {QUANT_TQ1_0, {52, -1}, {0xbdccc000, 0x00000000, 0x3dccc000, 0x00000000, 0xbdccc000}, 0x9259f3d144f046aa},
    {QUANT_TQ2_0, {64, -1}, {0x00000000, 0x3dccc000, 0x00000000, 0x3e4cc000, 0xbdccc000}, 0x3c0d60badd748762},
    {QUANT_NVFP4, {-1, -1}, {0xbf580000, 0x3f900000, 0x41040000, 0xbb800000, 0xbfa00000}, 0x240d2a41c303449a},
    {QUANT_Q1_0, {0, -1}, {0x3dccc000, 0x3dccc000, 0xbdccc000, 0xbdccc000, 0xbdccc000}, 0x5664611ab291ab25},
    {QUANT_Q2_0, {0, -1}, {0x3e4cc000, 0x3dccc000, 0xbdccc000, 0xbdccc000, 0x00000000}, 0x82fcf76809924a9c},
    {QUANT_IQ2_KT, {-1, -1}, {0x4056e7d5, 0x4142703b, 0xc2dc83b0, 0xc2bb73b6, 0x41f30c4a}, 0x752502399e156e6d},
    {QUANT_IQ3_KT, {-1, -1}, {0x4014c7e2, 0xc1069c77, 0x402a0902, 0x00000000, 0x3fb37b4a}, 0x741a543c45958035},
    {QUANT_IQ4_KT, {-1, -1}, {0x41248659, 0xc19334d6, 0xc21d0be1, 0xbf305532, 0xc152c5d7}, 0xe6f50747f5cdd61a},
    {QUANT_MXFP4, {-1, -1}, {0x3c000000, 0xbc400000, 0x3d400000, 0xbd400000, 0x3d000000}, 0xe9e64064f60eb2c8},
};

static void fill_blocks(const struct quant_info *q, const int field_off[2], uint8_t *p)
{
    static const uint16_t fields[2] = {0x2e66, 0x9ccd}; /* about 0.1 and -0.005 */
    static const float head = -0.0123f;
    memcpy(p, &head, (size_t)q->head_bytes);
    p += q->head_bytes;
    for (int b = 0; b < N_BLOCK; b++, p += q->block_bytes) {
        for (int i = 0; i < q->block_bytes; i++)
            p[i] = (uint8_t)(b * 151 + i * 73 + 41 + (i >> 3) * 29);
        for (int i = 0; i < 2; i++)
            if (field_off[i] >= 0)
                memcpy(p + field_off[i], &fields[i], 2);
        if (q->type == QUANT_MXFP4)
            p[0] = (uint8_t)(120 + b);
    }
}

static void decoders_agree_with_those_of_the_formats_makers_to_the_bit(void **state)
{
    for (size_t i = 0; i < sizeof decoded / sizeof *decoded; i++) {
        const struct decoded *want = &decoded[i];
        const struct quant_info *q = quant_info(want->type);
        uint8_t blocks[4 + N_BLOCK * 256];
        float out[N_BLOCK * 256];
        uint64_t hash = 0xcbf29ce484222325;
        int len = q->block_len, at[5] = {0, 1, len / 2, len - 1, N_BLOCK * len - 1};
        fill_blocks(q, want->field_off, blocks);
        q->decode(blocks, out, N_BLOCK * len);
        for (int j = 0; j < 5; j++)
            if (bits_of(out[at[j]]) != want->some[j])
                fail_msg("%s weight %d: %08x, expected %08x", q->name, at[j], bits_of(out[at[j]]), want->some[j]);
        for (int j = 0; j < N_BLOCK * len; j++)
            for (int k = 0; k < 32; k += 8)
                hash = (hash ^ (bits_of(out[j]) >> k & 255)) * 0x100000001b3;
        if (hash != want->hash)
            fail_msg("%s: weights hash to %016llx", q->name, (unsigned long long)hash);
    }
}

static void a_block_decodes_alone_as_in_its_row(void **state)
{
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++) {
        const struct quant_info *q = quant_info(id);
        if (!q)
            continue;
        uint8_t blocks[4 + N_BLOCK * 256];
        float row[N_BLOCK * 256], alone[256];
        fill_blocks(q, (int[2]){-1, -1}, blocks);
        q->decode(blocks, row, N_BLOCK * q->block_len);
        for (int b = 0; b < N_BLOCK; b++) {
            quant_decode_block(q, blocks, b, alone);
            assert_memory_equal(alone, row + b * q->block_len, (size_t)q->block_len * sizeof *alone);
        }
    }
}

static void float_formats_decode_to_themselves(void **state)
{
    const float f[3] = {1.5f, -0.0f, 3e38f};
    const uint16_t h[3] = {0x3e00, 0x8000, 0x7bff}, b[3] = {0x3fc0, 0x8000, 0x7f7f};
    float out[3];
    quant_info(QUANT_F32)->decode(f, out, 3);
    assert_memory_equal(out, f, sizeof f);
    quant_info(QUANT_F16)->decode(h, out, 3);
    assert_true(out[0] == 1.5f && bits_of(out[1]) == 0x80000000 && out[2] == 65504.0f);
    quant_info(QUANT_BF16)->decode(b, out, 3);
    assert_true(out[0] == 1.5f && bits_of(out[1]) == 0x80000000 && bits_of(out[2]) == 0x7f7f0000);
}

static void every_half_survives_the_round_trip(void **state)
{
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t exponent = h >> 10 & 31, mantissa = h & 0x3ff;
        float f = quant_half_to_float((uint16_t)h);
        double sign = h & 0x8000 ? -1 : 1;
        bool is_nan = exponent == 31 && mantissa;
        if (exponent < 31)
            assert_true((double)f == sign * (exponent ? ldexp(1024.0 + mantissa, (int)exponent - 25)
                                                      : ldexp((double)mantissa, -24)));
        assert_true(is_nan ? isnan(f) : exponent < 31 || isinf(f));
        /* a NaN comes back quiet */
        assert_int_equal(quant_float_to_half(f), is_nan ? h | 0x200 : h);
        float b = quant_bf16_to_float((uint16_t)h);
        assert_int_equal(quant_float_to_bf16(b), isnan(b) ? h | 0x40 : h);
    }
}

static void halves_round_to_nearest_even(void **state)
{
    for (uint32_t h = 0; h < 0x7bff; h++) { /* between each positive half and the next */
        float low = quant_half_to_float((uint16_t)h), high = quant_half_to_float((uint16_t)(h + 1));
        float middle = (low + high) / 2;
        assert_int_equal(quant_float_to_half(middle), h % 2 ? h + 1 : h);
        assert_int_equal(quant_float_to_half(nextafterf(middle, 0)), h);
        assert_int_equal(quant_float_to_half(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(quant_float_to_half(65519.99f), 0x7bff);
    assert_int_equal(quant_float_to_half(65520.0f), 0x7c00);
    assert_int_equal(quant_float_to_half(-1e30f), 0xfc00);
    assert_int_equal(quant_float_to_bf16(0x1.01p0f), 0x3f80);
    assert_int_equal(quant_float_to_bf16(0x1.03p0f), 0x3f82);
    assert_int_equal(quant_float_to_bf16(3.4e38f), 0x7f80);
}

static void row_bytes_refuse_broken_blocks_and_overflow(void **state)
{
    const struct quant_info *q4 = quant_info(QUANT_Q4_K), *f32 = quant_info(QUANT_F32);
    size_t n = 7;
    assert_false(quant_row_bytes(q4, 255, &n));
    assert_false(quant_row_bytes(f32, UINT64_MAX, &n));
    assert_false(layout_bytes(LAYOUT_ROWS, q4, UINT64_MAX / 2, 512, &n));
    assert_false(layout_bytes(LAYOUT_R16, q4, UINT64_MAX - 3, 256, &n));
    assert_false(layout_bytes(LAYOUT_R16, f32, 16, 16, &n));
    assert_true(quant_row_bytes(q4, 512, &n));
    assert_int_equal(n, 288);
    assert_true(layout_bytes(LAYOUT_R16, q4, 17, 512, &n));
    assert_int_equal(n, 32 * 288);
    assert_true(quant_row_bytes(quant_info(QUANT_IQ2_KT), 512, &n));
    assert_int_equal(n, 4 + 2 * 68);
    assert_true(layout_bytes(LAYOUT_R16, quant_info(QUANT_IQ2_KT), 17, 512, &n));
    assert_int_equal(n, 32 * (4 + 2 * 68));
    assert_true(quant_row_bytes(q4, 0, &n));
    assert_int_equal(n, 0);
}

static void the_table_knows_its_types_and_no_others(void **state)
{
    static const uint32_t unknown[] = {4, 5, 9, 15, 31, 63, 152, 160, 1000, UINT32_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_null(quant_info(unknown[i]));
    assert_string_equal(quant_info(12)->name, "Q4_K");
    assert_int_equal(quant_info(QUANT_MXFP4)->block_bytes, 17);
    assert_int_equal(quant_info(QUANT_IQ4_XS)->act, QUANT_ACT_INT8_256);
}

/* Bytes of all ones are a NaN in each type that has a scale or is a float; zeros are fine. */
static void damaged_scales_are_told_in_every_type(void **state)
{
    static uint8_t row[2 * 256 * 4];
    for (uint32_t i = 0; i < QUANT_MAX_ID; i++) {
        const struct quant_info *q = quant_info(i);
        struct quant_check ones = {0}, zeros = {0};
        size_t n_bytes;
        if (!q)
            continue;
        assert_true(quant_row_bytes(q, 512, &n_bytes) && n_bytes <= sizeof row);
        memset(row, 0, sizeof row);
        quant_check_rows(q, row, n_bytes, n_bytes, &zeros);
        assert_true(quant_is_zero(row, n_bytes));
        memset(row, 0xff, sizeof row);
        quant_check_rows(q, row, n_bytes, n_bytes, &ones);
        assert_false(quant_is_zero(row, n_bytes));
        assert_true(ones.n_scale > 0 && ones.n_nan == ones.n_scale && ones.n_absurd == 0);
        assert_true(zeros.n_scale == ones.n_scale && zeros.n_nan == 0 && zeros.n_absurd == 0);
    }
}

static void scales_larger_than_any_weights_are_told(void **state)
{
    static const uint8_t q8[34] = {0x01, 0x64}, fine[34] = {0x00, 0x64}; /* the half after 1024, and 1024 */
    static const uint8_t f32[] = {0, 0, 0, 0x72}, mxfp4[17] = {139}, nvfp4[36] = {0x80};
    const struct {
        enum quant_type type;
        const uint8_t *bytes;
        size_t n_bytes;
        uint64_t n_absurd;
    } cases[] = {{QUANT_Q8_0, q8, sizeof q8, 1},        {QUANT_Q8_0, fine, sizeof fine, 0},
                 {QUANT_F32, f32, sizeof f32, 1},       {QUANT_BF16, f32 + 2, 2, 1},
                 {QUANT_MXFP4, mxfp4, sizeof mxfp4, 1}, {QUANT_NVFP4, nvfp4, sizeof nvfp4, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct quant_check c = {0};
        quant_check_rows(quant_info(cases[i].type), cases[i].bytes, cases[i].n_bytes, 0, &c);
        assert_int_equal(c.n_absurd, cases[i].n_absurd);
        assert_int_equal(c.n_nan, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoders_agree_with_those_of_the_formats_makers_to_the_bit),
        cmocka_unit_test(a_block_decodes_alone_as_in_its_row),
        cmocka_unit_test(float_formats_decode_to_themselves),
        cmocka_unit_test(every_half_survives_the_round_trip),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(row_bytes_refuse_broken_blocks_and_overflow),
        cmocka_unit_test(the_table_knows_its_types_and_no_others),
        cmocka_unit_test(damaged_scales_are_told_in_every_type),
        cmocka_unit_test(scales_larger_than_any_weights_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
