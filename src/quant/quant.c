#include "quant/quant.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "quant/blocks.h"
#include "quant/quant_decode.h"

static const struct quant_info infos[QUANT_MAX_ID] = {
#define QUANT_HEADED(n, id, len, bytes, head, decoder, kind)                                                           \
    [id] = {.name = #n,                                                                                                \
            .type = QUANT_##n,                                                                                         \
            .block_len = len,                                                                                          \
            .block_bytes = bytes,                                                                                      \
            .head_bytes = head,                                                                                        \
            .act = QUANT_ACT_##kind,                                                                                   \
            .decode = decode_##decoder},
#define QUANT(n, id, len, bytes, decoder, kind) QUANT_HEADED(n, id, len, bytes, 0, decoder, kind)
#include "quant/quant_types.def"
#undef QUANT
};

_Static_assert(sizeof(struct block_q4_0) == 18 && sizeof(struct block_q4_1) == 20, "block layout");
_Static_assert(sizeof(struct block_q5_0) == 22 && sizeof(struct block_q5_1) == 24, "block layout");
_Static_assert(sizeof(struct block_q8_0) == 34 && sizeof(struct block_iq4_nl) == 18, "block layout");
_Static_assert(sizeof(struct block_mxfp4) == 17 && sizeof(struct block_iq4_xs) == 136, "block layout");
_Static_assert(sizeof(struct block_q2_k) == 84 && sizeof(struct block_q3_k) == 110, "block layout");
_Static_assert(sizeof(struct block_q4_k) == 144 && sizeof(struct block_q5_k) == 176, "block layout");
_Static_assert(sizeof(struct block_q6_k) == 210, "block layout");
_Static_assert(sizeof(struct block_iq1_s) == 50 && sizeof(struct block_iq1_m) == 56, "block layout");
_Static_assert(sizeof(struct block_iq2_xxs) == 66 && sizeof(struct block_iq2_xs) == 74, "block layout");
_Static_assert(sizeof(struct block_iq2_s) == 82 && sizeof(struct block_iq3_xxs) == 98, "block layout");
_Static_assert(sizeof(struct block_iq3_s) == 110 && sizeof(struct block_nvfp4) == 36, "block layout");
_Static_assert(sizeof(struct block_tq1_0) == 54 && sizeof(struct block_tq2_0) == 66, "block layout");
_Static_assert(sizeof(struct block_q1_0) == 18 && sizeof(struct block_q2_0) == 18, "block layout");
_Static_assert(sizeof(struct block_iq2_kt) == 68 && sizeof(struct block_iq3_kt) == 100, "block layout");
_Static_assert(sizeof(struct block_iq4_kt) == 128, "block layout");

const struct quant_info *quant_info(uint32_t type_id)
{
    return type_id < QUANT_MAX_ID && infos[type_id].name ? &infos[type_id] : NULL;
}

const struct quant_info *quant_find(const char *name)
{
    for (uint32_t id = 0; id < QUANT_MAX_ID; id++)
        if (infos[id].name && !strcasecmp(infos[id].name, name))
            return &infos[id];
    return NULL;
}

bool quant_row_bytes(const struct quant_info *q, uint64_t n, size_t *out)
{
    uint64_t n_block = n / (uint64_t)q->block_len;
    if (n % (uint64_t)q->block_len || n_block > SIZE_MAX)
        return false;
    return mem_mul((size_t)n_block, (size_t)q->block_bytes, out) && mem_add(*out, (size_t)q->head_bytes, out);
}

void quant_decode_block(const struct quant_info *q, const void *row, int64_t block, float *dst)
{
    uint8_t alone[256]; /* a row of this block only */
    size_t head = (size_t)q->head_bytes, n = (size_t)q->block_bytes;
    const uint8_t *src = (const uint8_t *)row + head + (size_t)block * n;
    if (head) {
        assert(head + n <= sizeof alone);
        memcpy(alone, row, head);
        memcpy(alone + head, src, n);
        src = alone;
    }
    q->decode(src, dst, q->block_len);
}

static uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float quant_half_to_float(uint16_t h)
{
    return decode_half(h);
}

uint16_t quant_float_to_half(float f)
{
    uint32_t bits = bits_of_float(f), sign = bits >> 16 & 0x8000, mag = bits & 0x7fffffff;
    if (mag > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000) /* halfway between the largest half and 2^16 rounds to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (mag < 0x38800000) {
        /* below 2^-14: adding 0.5 makes the float's last place 2^-24, the subnormals' step */
        uint32_t rounded = bits_of_float(decode_float(mag) + 0.5f) - bits_of_float(0.5f);
        return (uint16_t)(sign | rounded);
    }
    uint32_t odd = mag >> 13 & 1;
    return (uint16_t)(sign | (mag + 0xfff + odd - 0x38000000) >> 13);
}

float quant_bf16_to_float(uint16_t h)
{
    return decode_float((uint32_t)h << 16);
}

uint16_t quant_float_to_bf16(float f)
{
    uint32_t bits = bits_of_float(f);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
