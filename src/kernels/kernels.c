#include "kernels/kernels.h"

#include "kernels/kernels_internal.h"
#if defined(__x86_64__)
#include "kernels/x86/kernels_x86.h"
#elif defined(__aarch64__)
#include "kernels/arm/kernels_arm.h"
#endif

/* Layout ROWS and activation kind FLOAT are zero, so tables need not name them. */
_Static_assert(LAYOUT_ROWS == 0 && QUANT_ACT_FLOAT == 0, "the tables leave them out");

static const struct kernels scalar = {
    .name = "scalar",
    .matmul =
        {
#define QUANT(name, id, block_len, block_bytes, decoder, kind) [id] = matmul_##decoder##_scalar,
#include "quant/quant_types.def"
#undef QUANT
        },
    .act =
        {
#include "kernels/act_kinds.def"
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
    KERNELS_FILL_OPS(reference),
    KERNELS_FILL_PEAKS(scalar),
};

#if defined(__x86_64__)

#define K_AVX2(name, type, len)       [QUANT_##name] = matmul_##type##_avx2,
#define K_AVXVNNI(name, type, len)    [QUANT_##name] = matmul_##type##_avxvnni,
#define K_AVX512(name, type, len)     [QUANT_##name] = matmul_##type##_avx512,
#define K_AVX512VNNI(name, type, len) [QUANT_##name] = matmul_##type##_avx512vnni,
#define K_AVX512VBMI(name, type, len) [QUANT_##name] = matmul_##type##_avx512vbmi,
#define K_AMX(name, type, len)        [QUANT_##name] = matmul_##type##_amx,
#define K_R16(name, type, len)        [QUANT_##name] = LAYOUT_R16,

static const struct kernels avx2 = {
    .name = "avx2",
    .matmul = {KERNELS_FLOAT_LIST(K_AVX2) KERNELS_R16_LIST(K_AVX2) KERNELS_EXPAND_LIST(K_AVX2)},
    .layout = {KERNELS_R16_LIST(K_R16) KERNELS_EXPAND_LIST(K_R16)},
    .act =
        {
#include "kernels/act_kinds.def"
        },
    .r16_put = r16_put_avx2,
    KERNELS_FILL_OPS(avx2),
    KERNELS_FILL_PEAKS(avx2),
};

static const struct kernels avxvnni = {
    .name = "avxvnni",
    .matmul = {KERNELS_FLOAT_LIST(K_AVX2) KERNELS_R16_LIST(K_AVXVNNI) KERNELS_EXPAND_LIST(K_AVXVNNI)},
    .layout = {KERNELS_R16_LIST(K_R16) KERNELS_EXPAND_LIST(K_R16)},
    .act =
        {
#include "kernels/act_kinds.def"
        },
    .r16_put = r16_put_avx2,
    KERNELS_FILL_OPS(avx2),
    KERNELS_FILL_PEAKS(avxvnni),
};

static const struct kernels avx512 = {
    .name = "avx512",
    .matmul = {KERNELS_FLOAT_LIST(K_AVX512) KERNELS_R16_LIST(K_AVX512) KERNELS_EXPAND_LIST(K_AVX512)},
    .layout = {KERNELS_R16_LIST(K_R16) KERNELS_EXPAND_LIST(K_R16)},
    .act =
        {
#include "kernels/act_kinds.def"
        },
    .r16_put = r16_put_avx2,
    KERNELS_FILL_OPS(avx512),
    KERNELS_FILL_PEAKS(avx512),
};

static const struct kernels avx512vnni = {
    .name = "avx512vnni",
    .matmul = {KERNELS_FLOAT_LIST(K_AVX512) KERNELS_R16_LIST(K_AVX512VNNI) KERNELS_EXPAND_LIST(K_AVX512VNNI)},
    .layout = {KERNELS_R16_LIST(K_R16) KERNELS_EXPAND_LIST(K_R16)},
    .act =
        {
#include "kernels/act_kinds.def"
        },
    .r16_put = r16_put_avx2,
    KERNELS_FILL_OPS(avx512),
    KERNELS_FILL_PEAKS(avx512vnni),
};

static const struct kernels avx512vbmi = {
    .name = "avx512vbmi",
    .matmul = {KERNELS_FLOAT_LIST(K_AVX512) KERNELS_R16_LIST(K_AVX512VNNI) KERNELS_EXPAND_LIST(K_AVX512VBMI)},
    .layout = {KERNELS_R16_LIST(K_R16) KERNELS_EXPAND_LIST(K_R16)},
    .act =
        {
#include "kernels/act_kinds.def"
        },
    .r16_put = r16_put_avx2,
    KERNELS_FILL_OPS(avx512),
    KERNELS_FILL_PEAKS(avx512vnni),
};

static const struct kernels amx = {
    .name = "amx",
    .matmul = {KERNELS_FLOAT_LIST(K_AVX512) KERNELS_R16_LIST(K_AMX) KERNELS_EXPAND_LIST(K_AVX512VBMI)},
    .layout = {KERNELS_R16_LIST(K_R16) KERNELS_EXPAND_LIST(K_R16)},
    .act =
        {
#include "kernels/act_kinds.def"
        },
    .r16_put = r16_put_avx2,
    .peak_tiles = peak_tiles_amx,
    KERNELS_FILL_OPS(avx512),
    KERNELS_FILL_PEAKS(avx512vnni),
};

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
#define K_R16(name, type, len)     [QUANT_##name] = LAYOUT_R16,

static const struct kernels neon = {
    .name = "neon",
    .matmul = {KERNELS_FLOAT_LIST(K_NEON) KERNELS_R16_LIST(K_NEON) KERNELS_EXPAND_LIST(K_NEON)},
    .layout = {KERNELS_R16_LIST(K_R16) KERNELS_EXPAND_LIST(K_R16)},
    .act =
        {
#include "kernels/act_kinds.def"
        },
    KERNELS_FILL_OPS(neon),
    KERNELS_FILL_PEAKS(neon),
};

static const struct kernels dotprod = {
    .name = "dotprod",
    .matmul = {KERNELS_FLOAT_LIST(K_NEON) KERNELS_R16_LIST(K_DOTPROD) KERNELS_EXPAND_LIST(K_DOTPROD)},
    .layout = {KERNELS_R16_LIST(K_R16) KERNELS_EXPAND_LIST(K_R16)},
    .act =
        {
#include "kernels/act_kinds.def"
        },
    KERNELS_FILL_OPS(neon),
    KERNELS_FILL_PEAKS(dotprod),
};

static const struct kernels i8mm = {
    .name = "i8mm",
    .matmul = {KERNELS_FLOAT_LIST(K_NEON) KERNELS_R16_LIST(K_I8MM) KERNELS_EXPAND_LIST(K_I8MM)},
    .layout = {KERNELS_R16_LIST(K_R16) KERNELS_EXPAND_LIST(K_R16)},
    .act =
        {
#include "kernels/act_kinds.def"
        },
    KERNELS_FILL_OPS(neon),
    KERNELS_FILL_PEAKS(i8mm),
};

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
