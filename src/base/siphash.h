/* SipHash: a keyed hash for which nobody can construct collisions without knowing the key (J.-P. Aumasson and D. J.
 * Bernstein, "SipHash: a fast short-input PRF", 2012). For hash tables whose keys come from files. As each process
 * draws keys of its own, hashes must not be stored. */
#ifndef BASE_SIPHASH_H
#define BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"

struct siphash_key {
    uint64_t k0, k1;
};

/* Draws a key from the system's random numbers. Each table has one of its own. */
MUST_USE err_code siphash_key_make(struct siphash_key *key, struct err *e);

struct siphash_state {
    uint64_t v0, v1, v2, v3;
};

static inline uint64_t siphash_rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static inline void siphash_rounds(struct siphash_state *s, int n)
{
    for (int i = 0; i < n; i++) {
        s->v0 += s->v1;
        s->v2 += s->v3;
        s->v1 = siphash_rotate(s->v1, 13) ^ s->v0;
        s->v3 = siphash_rotate(s->v3, 16) ^ s->v2;
        s->v0 = siphash_rotate(s->v0, 32) + s->v3;
        s->v2 += s->v1;
        s->v1 = siphash_rotate(s->v1, 17) ^ s->v2;
        s->v3 = siphash_rotate(s->v3, 21) ^ s->v0;
        s->v2 = siphash_rotate(s->v2, 32);
    }
}

static inline void siphash_block(struct siphash_state *s, uint64_t block, int n_round)
{
    s->v3 ^= block;
    siphash_rounds(s, n_round);
    s->v0 ^= block;
}

/* The last n < 8 bytes as a little-endian number: read in two or three pieces, which may overlap. */
static inline uint64_t siphash_tail(const unsigned char *p, size_t n)
{
    if (n >= 4) {
        uint32_t first, last;
        memcpy(&first, p, sizeof first);
        memcpy(&last, p + n - sizeof last, sizeof last);
        return first | (uint64_t)last << 8 * (n - sizeof last);
    }
    return n == 0 ? 0 : p[0] | (uint64_t)p[n / 2] << 8 * (n / 2) | (uint64_t)p[n - 1] << 8 * (n - 1);
}

/* SipHash-c-d with c = n_block_round and d = n_end_round, on a little-endian machine. */
static inline uint64_t siphash(struct siphash_key key, const void *bytes, size_t n, int n_block_round, int n_end_round)
{
    struct siphash_state s = {key.k0 ^ 0x736f6d6570736575u, key.k1 ^ 0x646f72616e646f6du, key.k0 ^ 0x6c7967656e657261u,
                              key.k1 ^ 0x7465646279746573u};
    const unsigned char *p = bytes;
    size_t rest = n;
    for (; rest >= 8; p += 8, rest -= 8) {
        uint64_t block;
        memcpy(&block, p, sizeof block);
        siphash_block(&s, block, n_block_round);
    }
    siphash_block(&s, (uint64_t)n << 56 | siphash_tail(p, rest), n_block_round);
    s.v2 ^= 0xff;
    siphash_rounds(&s, n_end_round);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

/* The variant for hash tables: an attacker never sees the hashes themselves. */
static inline uint64_t siphash13(struct siphash_key key, const void *bytes, size_t n)
{
    return siphash(key, bytes, n, 1, 3);
}

#endif
