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

CRC_TARGET static uint32_t crc32c_instruction(uint32_t crc, const void *p, size_t n)
{
    const unsigned char *bytes = p;
    crc = ~crc;
    for (; n >= 8; n -= 8, bytes += 8) {
        uint64_t word;
        memcpy(&word, bytes, sizeof word);
        crc = CRC_WORD(crc, word);
    }
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
