#version 460
#extension GL_GOOGLE_include_directive : require
/* KV_STORE: a thread stores a piece of a head's row: an element, two halves or a block of Q8_0. Sixteen-bit places that
 * share a dword with others are written by atomic operations on their own bits. */
#include "common.glsl"
#include "paged.glsl"

layout(constant_id = 1) const uint CACHE = 0;

layout(push_constant) uniform Push {
    Floats x;
    Ints pos, table, pages;
    Paged cache;
    uint dim, n_head, n_piece;
} p;

const uint BLOCK = 64, Q8_LEN = 32, Q8_HALVES = 17;

void put_half(Words w, uint at, uint bits)
{
    uint shift = at % 2 * 16;
    atomicAnd(w.d[at / 2], ~(0xffffu << shift));
    atomicOr(w.d[at / 2], bits << shift);
}

/* The scale of 32 numbers, as a half. A NaN or an infinity among them makes it one. */
uint block_scale(uint x)
{
    float most = 0;
    bool is_finite = true;
    for (uint i = 0; i < Q8_LEN; i++) {
        float a = abs(p.x.d[x + i]);
        is_finite = is_finite && (floatBitsToUint(a) < 0x7f800000u);
        most = max(most, a);
    }
    return is_finite ? float_to_half(most / 127.0) : 0x7e00u;
}

void put_q8(Words w, uint block, uint x)
{
    uint d = block_scale(x), halves[Q8_HALVES];
    float scale = half_to_float(d), inverse = d == 0 || d >= 0x7c00u ? 0.0 : 1.0 / scale;
    halves[0] = d;
    for (uint i = 1; i < Q8_HALVES; i++) {
        uint both = 0;
        for (uint j = 0; j < 2; j++) {
            float y = inverse == 0.0 ? 0.0 : clamp(roundEven(p.x.d[x + 2 * (i - 1) + j] * inverse), -127.0, 127.0);
            both |= (uint(int(y)) & 0xffu) << 8 * j;
        }
        halves[i] = both;
    }
    uint at = block * Q8_HALVES, odd = at % 2; /* an odd one begins in the dword in which its neighbour ends */
    put_half(w, odd == 1 ? at : at + Q8_HALVES - 1, odd == 1 ? halves[0] : halves[Q8_HALVES - 1]);
    for (uint i = odd; i + 1 < Q8_HALVES + odd; i += 2)
        w.d[(at + i) / 2] = halves[i] | halves[i + 1] << 16;
}

void main()
{
    uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= p.n_head * p.n_piece)
        return;
    uint head = i / p.n_piece, piece = i % p.n_piece, row = uint(p.pos.d[t]) % BLOCK;
    uint page = uint(p.pages.d[p.table.d[t] + p.pos.d[t] / int(BLOCK)]), x = (t * p.n_head + head) * p.dim;
    Words w = Words(part_address(p.cache, page, head));
    if (CACHE == CACHE_F32) {
        w.d[row * p.dim + piece] = floatBitsToUint(p.x.d[x + piece]);
    } else if (CACHE == CACHE_F16) {
        uint at = row * p.dim + 2 * piece, low = float_to_half(p.x.d[x + 2 * piece]);
        if (p.dim % 2 == 0) {
            w.d[at / 2] = low | float_to_half(p.x.d[x + 2 * piece + 1]) << 16;
        } else {
            put_half(w, at, low);
            if (2 * piece + 1 < p.dim)
                put_half(w, at + 1, float_to_half(p.x.d[x + 2 * piece + 1]));
        }
    } else {
        put_q8(w, row * p.n_piece + piece, x + piece * Q8_LEN);
    }
}
