/* Weights: sixteen rows lie interleaved, a dword of each after the other (quant/layout.h: R16; matrices of floats are
 * packed like it, in blocks of 32, with zeros behind the row's end). A thread takes a unit, 32 weights of each of MINE
 * rows that follow each other, four at a time. To add a type: its numbers in block_units and block_dwords, its scales in
 * begin_unit, its quants in quad (types of codebooks: begin_grid and grid_quad in grids.glsl). */
layout(constant_id = 1) const uint TYPE = 0;

const uint F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12,
           Q5_K = 13, Q6_K = 14, IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20, IQ3_S = 21, IQ2_S = 22,
           IQ4_XS = 23, IQ1_M = 29, BF16 = 30, TQ1_0 = 34, TQ2_0 = 35, MXFP4 = 39, NVFP4 = 40, Q1_0 = 41, Q2_0 = 42,
           IQ2_KT = 153, IQ3_KT = 154, IQ4_KT = 155;
const bool IS_FLOAT = TYPE == F32 || TYPE == F16 || TYPE == BF16;
const bool IS_GRID = TYPE == IQ2_XXS || TYPE == IQ2_XS || TYPE == IQ2_S || TYPE == IQ3_XXS || TYPE == IQ3_S ||
                     TYPE == IQ1_S || TYPE == IQ1_M;
const bool IS_TRELLIS = TYPE == IQ2_KT || TYPE == IQ3_KT || TYPE == IQ4_KT;
const uint ROWS = 16, UNIT = 32, MINE = 4;

const float iq4_values[16] = float[](-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0,
                                     53.0, 69.0, 89.0, 113.0);
const float fp4_values[16] = float[](0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0,
                                     -12.0);

/* Units of a block. */
uint block_units()
{
    if (TYPE == NVFP4 || TYPE == Q2_0)
        return 2;
    if (TYPE == Q1_0)
        return 4;
    if (TYPE == Q4_0 || TYPE == Q4_1 || TYPE == Q5_0 || TYPE == Q5_1 || TYPE == Q8_0 || TYPE == IQ4_NL ||
        TYPE == MXFP4 || IS_FLOAT)
        return 1;
    return 8;
}

/* Dwords of a block of sixteen rows: four times a row's bytes. */
uint block_dwords()
{
    switch (TYPE) {
    case F32: return 4 * 128;
    case F16:
    case BF16: return 4 * 64;
    case Q4_0:
    case IQ4_NL:
    case Q1_0:
    case Q2_0: return 4 * 18;
    case Q4_1: return 4 * 20;
    case Q5_0: return 4 * 22;
    case Q5_1: return 4 * 24;
    case Q8_0: return 4 * 34;
    case Q2_K: return 4 * 84;
    case Q3_K: return 4 * 110;
    case Q4_K: return 4 * 144;
    case Q5_K: return 4 * 176;
    case Q6_K: return 4 * 210;
    case IQ4_XS: return 4 * 136;
    case IQ2_XXS:
    case TQ2_0: return 4 * 66;
    case IQ2_XS: return 4 * 74;
    case IQ2_S: return 4 * 82;
    case IQ3_XXS: return 4 * 98;
    case IQ3_S: return 4 * 110;
    case IQ1_S: return 4 * 50;
    case IQ1_M: return 4 * 56;
    case TQ1_0: return 4 * 54;
    case MXFP4: return 4 * 17;
    case NVFP4: return 4 * 36;
    case IQ2_KT: return 4 * 68;
    case IQ3_KT: return 4 * 100;
    default: return 4 * 128; /* IQ4_KT */
    }
}

uint row_units(uint k)
{
    return (k + UNIT - 1) / UNIT;
}

/* Dwords of sixteen rows of k weights. */
uint group_dwords(uint k)
{
    return row_units(k) / block_units() * block_dwords() + (IS_TRELLIS ? ROWS : 0);
}

/* The unit at hand: where its block begins, which row is at hand (of the sixteen, of the thread's), and the scales and
 * minima of its two halves for each row. */
Words unit_words;
uint unit_at, unit_lane, unit_mine, unit_sub;
vec2 unit_scale[MINE], unit_min[MINE];

uint vec(uint i) /* dword i of the row's block */
{
    return unit_words.d[unit_at + i * ROWS + unit_lane];
}

uint tail(uint n_vec) /* the two bytes of the row behind n_vec dwords */
{
    return unit_words.d[unit_at + n_vec * ROWS + unit_lane / 2] >> unit_lane % 2 * 16 & 0xffffu;
}

uint byte_of(uint dword, uint i)
{
    return dword >> i % 4 * 8 & 0xffu;
}

/* Byte i of a run of bytes that begins with dword `first` of the block. */
uint byte_at(uint first, uint i)
{
    return byte_of(vec(first + i / 4), i);
}

float head_scale(uint group) /* of the trellis types: a float for each row, before its blocks */
{
    return uintBitsToFloat(unit_words.d[group + unit_lane]);
}

void set_scales(float d0, float d1, float m0, float m1)
{
    unit_scale[unit_mine] = vec2(d0, d1);
    unit_min[unit_mine] = vec2(m0, m1);
}

/* Q4_K, Q5_K: scale and minimum of sub-block j are six bits each of twelve bytes. */
void begin_k4(uint j)
{
    uint d = vec(0), a = byte_of(vec(1), j), b = byte_of(vec(2), j), c = byte_of(vec(3), j);
    uint scale = j < 4 ? a & 63 : (c & 15) | a >> 6 << 4, least = j < 4 ? b & 63 : c >> 4 | b >> 6 << 4;
    precise float s = half_to_float(d & 0xffffu) * float(scale), m = half_to_float(d >> 16) * float(least);
    set_scales(s, s, m, m);
}

float q3k_scale(uint j)
{
    uint low = byte_at(0, j % 8) >> j / 8 * 4 & 15, high = byte_at(2, j % 4) >> j / 4 * 2 & 3;
    return float(int(low | high << 4) - 32);
}

float nvfp4_scale(uint s)
{
    uint exponent = s >> 3 & 15, mantissa = s & 7;
    if (s == 0x7f)
        return 0.0;
    return float(exponent != 0 ? (8 + mantissa) << (exponent - 1) : mantissa) * 0.0009765625;
}

/* Half of the power of two that MXFP4's exponent stands for. */
float mxfp4_scale(uint e)
{
    return uintBitsToFloat(e < 2 ? 0x200000u << e : (e - 1) << 23);
}

/* Bits 4 i to 4 i + 3 of x. */
vec4 bits_of(uint x, uint i)
{
    uint b = x >> 4 * i;
    return vec4(uvec4(b, b >> 1, b >> 2, b >> 3) & 1u);
}

#include "grids.glsl"

/* Goes to row `mine` of the thread's, of which `first` is the first. */
void use_row(uint first, uint mine)
{
    unit_mine = mine;
    unit_lane = first + mine;
}

/* Goes to unit u of the row at hand of the group that begins at dword `group`. */
void begin_unit(Words w, uint group, uint u)
{
    unit_words = w;
    unit_sub = u % block_units();
    unit_at = group + u / block_units() * block_dwords() + (IS_TRELLIS ? ROWS : 0);
    if (IS_FLOAT) {
        return;
    } else if (TYPE == Q4_0 || TYPE == IQ4_NL || TYPE == Q1_0 || TYPE == Q2_0) {
        float d = half_to_float(tail(4));
        set_scales(d, d, 0, 0);
    } else if (TYPE == Q8_0) {
        float d = half_to_float(tail(8));
        set_scales(d, d, 0, 0);
    } else if (TYPE == Q4_1 || TYPE == Q5_1) {
        uint d = vec(0);
        float scale = half_to_float(d & 0xffffu), least = -half_to_float(d >> 16);
        set_scales(scale, scale, least, least);
    } else if (TYPE == Q5_0) {
        float d = half_to_float(tail(5));
        set_scales(d, d, 0, 0);
    } else if (IS_GRID) {
        begin_grid();
    } else if (TYPE == TQ1_0 || TYPE == TQ2_0) {
        float d = half_to_float(tail(TYPE == TQ1_0 ? 13 : 16));
        set_scales(d, d, 0, 0);
    } else if (TYPE == MXFP4) {
        float d = mxfp4_scale(byte_of(unit_words.d[unit_at + 4 * ROWS + unit_lane / 4], unit_lane));
        set_scales(d, d, 0, 0);
    } else if (TYPE == NVFP4) {
        uint s = vec(0);
        set_scales(nvfp4_scale(byte_of(s, 2 * unit_sub)), nvfp4_scale(byte_of(s, 2 * unit_sub + 1)), 0, 0);
    } else if (TYPE == Q2_K) {
        uint d = vec(20), s0 = byte_at(0, 2 * unit_sub), s1 = byte_at(0, 2 * unit_sub + 1);
        float scale = half_to_float(d & 0xffffu), least = half_to_float(d >> 16);
        set_scales(scale * float(s0 & 15), scale * float(s1 & 15), least * float(s0 >> 4), least * float(s1 >> 4));
    } else if (TYPE == Q3_K) {
        float d = half_to_float(tail(27));
        set_scales(d * q3k_scale(2 * unit_sub), d * q3k_scale(2 * unit_sub + 1), 0, 0);
    } else if (TYPE == Q4_K || TYPE == Q5_K) {
        begin_k4(unit_sub);
    } else if (TYPE == Q6_K) {
        float d = half_to_float(tail(52));
        int s = int(vec(unit_sub / 2)), at = int(unit_sub % 2 * 16);
        set_scales(d * float(bitfieldExtract(s, at, 8)), d * float(bitfieldExtract(s, at + 8, 8)), 0, 0);
    } else if (TYPE == IQ4_XS) {
        uint d = vec(0), low = byte_at(1, unit_sub / 2) >> unit_sub % 2 * 4 & 15, high = d >> (16 + 2 * unit_sub) & 3;
        float scale = half_to_float(d & 0xffffu) * float(int(low | high << 4) - 32);
        set_scales(scale, scale, 0, 0);
    } else if (TYPE == IQ2_KT || TYPE == IQ3_KT) {
        uint s = byte_of(vec(0), unit_sub) >> unit_sub / 4 * 4 & 15;
        float scale = head_scale(group) * (TYPE == IQ2_KT ? iq4_values[s] : float(s));
        set_scales(scale, scale, 0, 0);
    } else if (TYPE == IQ4_KT) {
        float scale = head_scale(group) * float(int(vec(unit_sub) >> 1 & 127) - 64);
        set_scales(scale, scale, 0, 0);
    }
}

vec4 bytes(uint x)
{
    return vec4(uvec4(x, x >> 8, x >> 16, x >> 24) & 0xffu);
}

vec4 signed_bytes(uint x)
{
    int y = int(x);
    return vec4(bitfieldExtract(y, 0, 8), bitfieldExtract(y, 8, 8), bitfieldExtract(y, 16, 8), y >> 24);
}

/* Quad i of 32 weights that begin at dword `first`: bytes hold weights j in their low and j + 16 in their high bits. */
vec4 nibbles(uint first, uint i)
{
    return bytes(vec(first + i % 4) >> (i < 4 ? 0 : 4) & 0x0f0f0f0fu);
}

vec4 look_up(const float values[16], vec4 codes)
{
    uvec4 c = uvec4(codes);
    return vec4(values[c.x], values[c.y], values[c.z], values[c.w]);
}

/* Four weights of a trellis, from number `from` (0 or 4) of the sequence that a seed starts. */
vec4 trellis(uint seed, uint from)
{
    uint state = seed;
    vec4 y = vec4(0);
    for (uint i = 0; i < from + 4; i++) {
        state *= 0xcbac1fedu;
        uint sum = (state & 63) + (state >> 8 & 63) + (state >> 16 & 63) + (state >> 24 & 63);
        if (i >= from)
            y[i - from] = float(int(sum) - 126);
    }
    return y;
}

/* The seed of the eight weights that quad i of the unit is among (IQ2_KT, IQ3_KT). */
uint seed_at(uint i)
{
    uint at = unit_sub * 4 + i / 2;
    return (vec(1 + at / 2) >> at % 2 * 16 & 0xffffu) + 4096;
}

uint iq4kt_seed(uint i)
{
    uint head = vec(unit_sub), at = 8 * unit_sub + i;
    uint seed = byte_at(8, at) | (byte_at(24, at % 32) >> at / 32 * 4 & 15) << 8 | (head >> (8 + 3 * i) & 7) << 12;
    return seed + 4096 + (head & 1) * 32768;
}

/* Quad i of TQ1_0: bytes are fractions of 256, whose digits base three after the point are weights of runs of 32, 16 and
 * 4 bytes. */
vec4 ternary(uint i)
{
    uint w = unit_sub * 32 + 4 * i, at = i, digit = unit_sub;
    if (w >= 240) {
        at = 12;
        digit = (w - 240) / 4;
    } else if (w >= 160) {
        at = 8 + w % 16 / 4;
        digit = (w - 160) / 16;
    }
    const uint power[5] = uint[](1, 3, 9, 27, 81);
    uint x = vec(at);
    uvec4 b = uvec4(x, x >> 8, x >> 16, x >> 24) & 0xffu;
    return vec4((b * power[digit] & 0xffu) * 3 >> 8) - 1.0;
}

/* Weights 4 i to 4 i + 3 of the unit in units of its scale. */
vec4 quad(uint i)
{
    if (IS_GRID)
        return grid_quad(i);
    uint half_of = unit_sub / 4, shift = unit_sub % 4 * 2; /* of 256 weights; in bytes that hold four weights */
    switch (TYPE) {
    case F32: return uintBitsToFloat(uvec4(vec(4 * i), vec(4 * i + 1), vec(4 * i + 2), vec(4 * i + 3)));
    case F16: {
        uint a = vec(2 * i), b = vec(2 * i + 1);
        return vec4(half_to_float(a & 0xffffu), half_to_float(a >> 16), half_to_float(b & 0xffffu),
                    half_to_float(b >> 16));
    }
    case BF16: {
        uint a = vec(2 * i), b = vec(2 * i + 1);
        return uintBitsToFloat(uvec4(a << 16, a & 0xffff0000u, b << 16, b & 0xffff0000u));
    }
    case Q4_0: return nibbles(0, i) - 8.0;
    case Q4_1: return nibbles(1, i);
    case Q5_0: return nibbles(1, i) + 16.0 * bits_of(vec(0), i) - 16.0;
    case Q5_1: return nibbles(2, i) + 16.0 * bits_of(vec(1), i);
    case Q8_0: return signed_bytes(vec(i));
    case Q2_K: return bytes(vec(4 + half_of * 8 + i) >> shift & 0x03030303u);
    case Q3_K: {
        uint at = half_of * 8 + i, q = vec(at < 8 ? 4 + 2 * at : 11 + at);
        return bytes(q >> shift & 0x03030303u) + 4.0 * bytes(vec(3 + 2 * i) >> unit_sub & 0x01010101u) - 4.0;
    }
    case Q4_K: return bytes(vec(4 + unit_sub / 2 * 8 + i) >> unit_sub % 2 * 4 & 0x0f0f0f0fu);
    case Q5_K:
        return bytes(vec(12 + unit_sub / 2 * 8 + i) >> unit_sub % 2 * 4 & 0x0f0f0f0fu) +
               16.0 * bytes(vec(4 + i) >> unit_sub & 0x01010101u);
    case Q6_K: {
        uint at = 4 + half_of * 24 + 3 * i, low = vec(at + unit_sub % 2) >> unit_sub % 4 / 2 * 4 & 0x0f0f0f0fu;
        return bytes(low) + 16.0 * bytes(vec(at + 2) >> shift & 0x03030303u) - 32.0;
    }
    case IQ4_NL: return look_up(iq4_values, nibbles(0, i));
    case IQ4_XS: return look_up(iq4_values, nibbles(2 + 4 * unit_sub, i));
    case TQ1_0: return ternary(i);
    case TQ2_0: return bytes(vec(half_of * 8 + i) >> shift & 0x03030303u) - 1.0;
    case MXFP4: return look_up(fp4_values, nibbles(0, i));
    case NVFP4: {
        uint x = vec(1 + 4 * unit_sub + i / 4 * 2 + i % 2);
        return look_up(fp4_values, bytes(x >> i % 4 / 2 * 4 & 0x0f0f0f0fu));
    }
    case Q1_0: return 2.0 * bits_of(vec(unit_sub), i) - 1.0;
    case Q2_0: {
        uint x = byte_at(0, unit_sub * 8 + i);
        return vec4(uvec4(x, x >> 2, x >> 4, x >> 6) & 3u) - 1.0;
    }
    case IQ2_KT: return trellis(seed_at(i), i % 2 * 4);
    case IQ3_KT: {
        vec4 minus = bytes(vec(17 + i) >> unit_sub & 0x01010101u);
        return abs(trellis(seed_at(i), i % 2 * 4)) * (1.0 - 2.0 * minus);
    }
    default: return trellis(iq4kt_seed(i), 0); /* IQ4_KT */
    }
}

/* Weights 4 i to 4 i + 3 of the unit, with the roundings of quant/quant_decode.c. */
vec4 weights(uint i)
{
    vec4 q = quad(i);
    if (IS_FLOAT)
        return q;
    vec2 d = unit_scale[unit_mine], m = unit_min[unit_mine];
    precise vec4 w = q * (i < 4 ? d.x : d.y) - (i < 4 ? m.x : m.y);
    return w;
}
