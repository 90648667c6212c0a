#include "base/crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

/* The remainder of a byte is the sum (xor) of its bits' remainders. */
#define BIT(i, n, remainder) ((i) >> (n)&1 ? (remainder) : 0u)
#define ROW1(i)                                                                                                        \
    (BIT(i, 0, 0xf26b8303) ^ BIT(i, 1, 0xe13b70f7) ^ BIT(i, 2, 0xc79a971f) ^ BIT(i, 3, 0x8ad958cf) ^                   \
     BIT(i, 4, 0x105ec76f) ^ BIT(i, 5, 0x20bd8ede) ^ BIT(i, 6, 0x417b1dbc) ^ BIT(i, 7, 0x82f63b78))
#define ROW4(i)  ROW1(i), ROW1((i) + 1), ROW1((i) + 2), ROW1((i) + 3)
#define ROW16(i) ROW4(i), ROW4((i) + 4), ROW4((i) + 8), ROW4((i) + 12)
#define ROW64(i) ROW16(i), ROW16((i) + 16), ROW16((i) + 32), ROW16((i) + 48)

static const uint32_t remainders[256] = {ROW64(0u), ROW64(64u), ROW64(128u), ROW64(192u)};

uint32_t crc32c_portable(uint32_t crc, const void *p, size_t n)
{
    const unsigned char *bytes = p;
    crc = ~crc;
    for (size_t i = 0; i < n; i++)
        crc = crc >> 8 ^ remainders[(crc ^ bytes[i]) & 255];
    return ~crc;
}

#if defined(__x86_64__)

#define CRC_TARGET __attribute__((target("sse4.2")))

static int has_instruction(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}

#define CRC_WORD(crc, word) ((uint32_t)_mm_crc32_u64(crc, word))
#define CRC_BYTE(crc, byte) _mm_crc32_u8(crc, byte)

#elif defined(__aarch64__) && defined(__linux__)

#define CRC_TARGET

static int has_instruction(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

/* gcc and clang don't agree on how to ask for these in C. */
static inline uint32_t crc_word(uint32_t crc, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

static inline uint32_t crc_byte(uint32_t crc, uint8_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
    return crc;
}

#define CRC_WORD(crc, word) crc_word(crc, word)
#define CRC_BYTE(crc, byte) crc_byte(crc, byte)

#endif

#if defined(CRC_TARGET)

/* The instruction takes three cycles and a new one can start each cycle, so three runs of bytes are summed side by
 * side. A remainder r of bytes that LANE_BYTES more follow counts as r * x^(8 * LANE_BYTES) for the whole. */
enum { LANE_BYTES = 8192 };

/* Product of two polynomials modulo Castagnoli's, bit 31 being x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (int i = 31; i >= 0; i--) {
        product ^= b & -(a >> i & 1);
        b = b >> 1 ^ (0x82f63b78 & -(b & 1));
    }
    return product;
}

/* x^(8 * LANE_BYTES) */
static uint32_t lane_factor(void)
{
    uint32_t power = 1u << (31 - 8);
    for (int n = 1; n < LANE_BYTES; n *= 2)
        power = multiply(power, power);
    return power;
}

CRC_TARGET static uint32_t crc32c_word(uint32_t crc, const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return CRC_WORD(crc, word);
}

CRC_TARGET static uint32_t crc32c_instruction(uint32_t crc, const void *p, size_t n)
{
    const unsigned char *bytes = p;
    const uint32_t factor = n >= 3 * LANE_BYTES ? lane_factor() : 0;
    crc = ~crc;
    for (; n >= 3 * LANE_BYTES; n -= 3 * LANE_BYTES, bytes += 3 * LANE_BYTES) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < LANE_BYTES; i += 8) {
            crc = crc32c_word(crc, bytes + i);
            second = crc32c_word(second, bytes + LANE_BYTES + i);
            third = crc32c_word(third, bytes + 2 * LANE_BYTES + i);
        }
        crc = multiply(multiply(crc, factor) ^ second, factor) ^ third;
    }
    for (; n >= 8; n -= 8, bytes += 8)
        crc = crc32c_word(crc, bytes);
    for (; n > 0; n--, bytes++)
        crc = CRC_BYTE(crc, *bytes);
    return ~crc;
}

uint32_t crc32c(uint32_t crc, const void *p, size_t n)
{
    return has_instruction() ? crc32c_instruction(crc, p, n) : crc32c_portable(crc, p, n);
}

#else

uint32_t crc32c(uint32_t crc, const void *p, size_t n)
{
    return crc32c_portable(crc, p, n);
}

#endif
