#version 460
#extension GL_GOOGLE_include_directive : require
/* What attention needs of q, k and v: a workgroup takes a head of a token, one of q's, then of k's, then of v's. Heads
 * of q and k may be normed and rotated, in place (RMS_NORM, ROPE); those of k and v are stored in caches (KV_STORE).
 * Sixteen-bit places that share a dword with others are written by atomic operations on their own bits. */
#include "common.glsl"
#include "norm.glsl"
#include "paged.glsl"

layout(constant_id = 1) const uint N_Q = 0; /* heads */
layout(constant_id = 2) const uint N_K = 0;
layout(constant_id = 3) const uint N_V = 0;
layout(constant_id = 4) const uint DIM = 1; /* elements of a head of q and k, of v */
layout(constant_id = 5) const uint DIM_V = 1;
layout(constant_id = 6) const uint N_PAIR = 0; /* rotated, of each head */
layout(constant_id = 7) const uint IS_NEOX = 0;
layout(constant_id = 8) const uint NORMED = 0; /* bits: q, k */
layout(constant_id = 9) const uint ROTATED = 0;
layout(constant_id = 10) const uint CACHE_OF_K = 0;
layout(constant_id = 11) const uint CACHE_OF_V = 0;
layout(constant_id = 12) const float EPS = 0;
layout(constant_id = 13) const uint FIRST = 0; /* of a head's elements that are rotated */

layout(push_constant) uniform Push {
    Floats x[3];             /* q, k, v */
    Floats norm_w[2], cs[2]; /* of q and of k: weights of norms or null; cosines and sines */
    Ints pos, table, pages;
    Paged k, v;
} p;

const uint Q = 0, K = 1, V = 2, BLOCK = 64, Q8_LEN = 32, Q8_HALVES = 17, LONGEST = DIM > DIM_V ? DIM : DIM_V;

shared float row[LONGEST];

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
        float a = abs(row[x + i]);
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
            float y = inverse == 0.0 ? 0.0 : clamp(round_even(row[x + 2 * (i - 1) + j] * inverse), -127.0, 127.0);
            both |= (uint(int(y)) & 0xffu) << 8 * j;
        }
        halves[i] = both;
    }
    uint at = block * Q8_HALVES, odd = at % 2; /* an odd one begins in the dword in which its neighbour ends */
    put_half(w, odd == 1 ? at : at + Q8_HALVES - 1, odd == 1 ? halves[0] : halves[Q8_HALVES - 1]);
    for (uint i = odd; i + 1 < Q8_HALVES + odd; i += 2)
        w.d[(at + i) / 2] = halves[i] | halves[i + 1] << 16;
}

void put_halves(Words w, uint at, uint i, uint dim)
{
    uint low = float_to_half(row[i]);
    if (dim % 2 == 0) {
        w.d[(at + i) / 2] = low | float_to_half(row[i + 1]) << 16;
        return;
    }
    put_half(w, at + i, low);
    if (i + 1 < dim)
        put_half(w, at + i + 1, float_to_half(row[i + 1]));
}

/* Stores the row of dim elements, as that of a head at the token's position. */
void store(Paged cache, uint type, uint head, uint dim)
{
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.y, at = uint(p.pos.d[t]) % BLOCK;
    uint page = uint(p.pages.d[p.table.d[t] + p.pos.d[t] / int(BLOCK)]);
    Words w = Words(part_address(cache, page, head));
    if (type == CACHE_F32)
        for (uint i = tid; i < dim; i += NORM_THREADS)
            w.d[at * dim + i] = floatBitsToUint(row[i]);
    else if (type == CACHE_F16)
        for (uint i = 2 * tid; i < dim; i += 2 * NORM_THREADS)
            put_halves(w, at * dim, i, dim);
    else
        for (uint i = tid; i < dim / Q8_LEN; i += NORM_THREADS)
            put_q8(w, at * (dim / Q8_LEN) + i, i * Q8_LEN);
}

void norm(uint which)
{
    uint tid = gl_LocalInvocationID.x;
    precise float sum = 0;
    for (uint i = 4 * tid; i < DIM; i = norm_next(i))
        sum = fma(row[i], row[i], sum);
    float s = norm_scale(sum, DIM, EPS);
    for (uint i = tid; i < DIM; i += NORM_THREADS)
        row[i] = normed(row[i], s, p.norm_w[which], i);
    barrier();
}

void rotate(uint which)
{
    for (uint i = gl_LocalInvocationID.x; i < N_PAIR; i += NORM_THREADS) {
        uint first = FIRST + (IS_NEOX != 0 ? i : 2 * i), second = first + (IS_NEOX != 0 ? N_PAIR : 1);
        uint at = 2 * (gl_WorkGroupID.y * N_PAIR + i);
        float c = p.cs[which].d[at], s = p.cs[which].d[at + 1];
        precise float a = row[first], b = row[second];
        precise float x = fma(a, c, -(b * s)), y = fma(a, s, b * c);
        row[first] = x;
        row[second] = y;
    }
    barrier();
}

void main()
{
    uint tid = gl_LocalInvocationID.x, head = gl_WorkGroupID.x, which = Q, n_head = N_Q;
    if (head >= N_Q) {
        head -= N_Q;
        which = head < N_K ? K : V;
        head -= which == V ? N_K : 0;
        n_head = which == K ? N_K : N_V;
    }
    uint dim = which == V ? DIM_V : DIM, at = (gl_WorkGroupID.y * n_head + head) * dim, bit = which == V ? 0 : 1 << which;
    for (uint i = tid; i < dim; i += NORM_THREADS)
        row[i] = p.x[which].d[at + i];
    barrier();
    if ((NORMED & bit) != 0)
        norm(which);
    if ((ROTATED & bit) != 0)
        rotate(which);
    if (((NORMED | ROTATED) & bit) != 0)
        for (uint i = tid; i < dim; i += NORM_THREADS)
            p.x[which].d[at + i] = row[i];
    if (which == K)
        store(p.k, CACHE_OF_K, head, DIM);
    else if (which == V)
        store(p.v, CACHE_OF_V, head, DIM_V);
}
