#include "kernels/kernels.h"

#include "kernels/kernels_internal.h"
#if defined(__x86_64__)
#include "kernels/x86/kernels_x86.h"
#elif defined(__aarch64__)
#include "kernels/arm/kernels_arm.h"
#endif

/* Layout ROWS is 0, so tables needn't set it. */
_Static_assert(LAYOUT_ROWS == 0, "the tables leave it out");

static const struct kernels scalar = {
    .name = "scalar",
    .matmul =
        {
#define QUANT(name, id, block_len, block_bytes, decoder, kind) [id] = matmul_##decoder##_scalar,
#include "quant/quant_types.def"
#undef QUANT
        },
    KERNELS_FILL_OPS(scalar),
    KERNELS_FILL_PEAKS(scalar),
};

static const struct kernels reference = {
    .name = "reference",
    .matmul =
        {
#define QUANT(name, id, block_len, block_bytes, decoder, kind) [id] = matmul_##decoder##_reference,
#include "quant/quant_types.def"
#undef QUANT
        },
    .takes_floats = true,
    KERNELS_FILL_OPS(reference),
    KERNELS_FILL_PEAKS(scalar),
};

#define K_R16(name, type, len) [QUANT_##name] = LAYOUT_R16,

/* A table. The arguments choose the level of its products of floats, of types in R16 and of types that are expanded
 * first, of its operations and of its peaks; further entries may follow. */
#define TABLE(level, k_float, k_r16, k_expand, ops, peaks, ...)                                                        \
    static const struct kernels level = {                                                                              \
        .name = #level,                                                                                                \
        .matmul = {KERNELS_FLOAT_LIST(k_float) KERNELS_R16_LIST(k_r16) KERNELS_EXPAND_LIST(k_expand)},                 \
        .layout = {KERNELS_R16_LIST(K_R16) KERNELS_EXPAND_LIST(K_R16)},                                                \
        KERNELS_FILL_OPS(ops),                                                                                         \
        KERNELS_FILL_PEAKS(peaks),                                                                                     \
        __VA_ARGS__};

#if defined(__x86_64__)

#define K_AVX2(name, type, len)       [QUANT_##name] = matmul_##type##_avx2,
#define K_AVXVNNI(name, type, len)    [QUANT_##name] = matmul_##type##_avxvnni,
#define K_AVX512(name, type, len)     [QUANT_##name] = matmul_##type##_avx512,
#define K_AVX512VNNI(name, type, len) [QUANT_##name] = matmul_##type##_avx512vnni,
#define K_AVX512VBMI(name, type, len) [QUANT_##name] = matmul_##type##_avx512vbmi,
#define K_AMX(name, type, len)        [QUANT_##name] = matmul_##type##_amx,

TABLE(avx2, K_AVX2, K_AVX2, K_AVX2, avx2, avx2, .r16_put = r16_put_avx2)
TABLE(avxvnni, K_AVX2, K_AVXVNNI, K_AVXVNNI, avx2, avxvnni, .r16_put = r16_put_avx2)
TABLE(avx512, K_AVX512, K_AVX512, K_AVX512, avx512, avx512, .r16_put = r16_put_avx2)
TABLE(avx512vnni, K_AVX512, K_AVX512VNNI, K_AVX512VNNI, avx512, avx512vnni, .r16_put = r16_put_avx2)
TABLE(avx512vbmi, K_AVX512, K_AVX512VNNI, K_AVX512VBMI, avx512, avx512vnni, .r16_put = r16_put_avx2)
TABLE(amx, K_AVX512, K_AMX, K_AVX512VBMI, avx512, avx512vnni, .r16_put = r16_put_avx2, .peak_tiles = peak_tiles_amx)

static const struct kernels *const tables[CPU_N_LEVEL] = {
    [CPU_SCALAR] = &scalar,
    [CPU_AVX2] = &avx2,
    [CPU_AVXVNNI] = &avxvnni,
    [CPU_AVX512] = &avx512,
    [CPU_AVX512VNNI] = &avx512vnni,
    [CPU_AVX512VBMI] = &avx512vbmi,
    [CPU_AMX] = &amx,
};

#elif defined(__aarch64__)

#define K_NEON(name, type, len)    [QUANT_##name] = matmul_##type##_neon,
#define K_DOTPROD(name, type, len) [QUANT_##name] = matmul_##type##_dotprod,
#define K_I8MM(name, type, len)    [QUANT_##name] = matmul_##type##_i8mm,

TABLE(neon, K_NEON, K_NEON, K_NEON, neon, neon, .r16_put = NULL)
TABLE(dotprod, K_NEON, K_DOTPROD, K_DOTPROD, neon, dotprod, .r16_put = NULL)
TABLE(i8mm, K_NEON, K_I8MM, K_I8MM, neon, i8mm, .r16_put = NULL)

static const struct kernels *const tables[CPU_N_LEVEL] = {
    [CPU_SCALAR] = &scalar, [CPU_NEON] = &neon, [CPU_DOTPROD] = &dotprod, [CPU_I8MM] = &i8mm};

#else

static const struct kernels *const tables[CPU_N_LEVEL] = {&scalar};

#endif

const struct kernels *kernels_for(enum cpu_level level)
{
    return tables[level];
}

const struct kernels *kernels_reference(void)
{
    return &reference;
}
