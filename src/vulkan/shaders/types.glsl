/* Weights: sixteen rows lie interleaved, a dword of each after the other (quant/layout.h: R16; matrices of floats are
 * packed like it, in blocks of 32, with zeros behind the row's end). A thread takes four rows that follow each other: what
 * it loads are dwords of all four, a component for each. It takes a unit of UNIT weights of each row at a time, in steps:
 * of one dword, or a few, a step unpacks a quad of weights, or two where the dword holds both. To add a type: its numbers
 * in block_units and block_dwords, its scales in begin_unit, its dwords in begin_step if two quads share them, its quants
 * in quad (types of codebooks: begin_grid and grid_quad in grids.glsl). */
layout(constant_id = 1) const uint TYPE = 0;

const uint F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12,
           Q5_K = 13, Q6_K = 14, IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20, IQ3_S = 21, IQ2_S = 22,
           IQ4_XS = 23, IQ1_M = 29, BF16 = 30, TQ1_0 = 34, TQ2_0 = 35, MXFP4 = 39, NVFP4 = 40, Q1_0 = 41, Q2_0 = 42,
           IQ2_KT = 153, IQ3_KT = 154, IQ4_KT = 155;
const bool IS_FLOAT = TYPE == F32 || TYPE == F16 || TYPE == BF16;
const bool IS_GRID = TYPE == IQ2_XXS || TYPE == IQ2_XS || TYPE == IQ2_S || TYPE == IQ3_XXS || TYPE == IQ3_S ||
                     TYPE == IQ1_S || TYPE == IQ1_M;
const bool IS_TRELLIS = TYPE == IQ2_KT || TYPE == IQ3_KT || TYPE == IQ4_KT;
const bool HAS_MINIMA = TYPE == Q4_1 || TYPE == Q5_1 || TYPE == Q2_K || TYPE == Q4_K || TYPE == Q5_K;
const bool IS_LONG = TYPE == Q4_K || TYPE == Q5_K; /* dwords hold four bits of two units of 32 */
const bool HAS_HALVES = IS_LONG || TYPE == Q4_0 || TYPE == Q4_1 || TYPE == Q5_0 || TYPE == Q5_1 || TYPE == IQ4_NL ||
                        TYPE == IQ4_XS || TYPE == MXFP4;
const uint ROWS = 16, MINE = 4, UNIT = IS_LONG ? 64 : 32, STEP_QUADS = HAS_HALVES ? 2 : 1,
           STEPS = UNIT / 4 / STEP_QUADS; /* a step's quads are number step and number step + STEPS of the unit */

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
    return IS_LONG ? 4 : 8;
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

const uint TRELLIS_1 = 0xcbac1fedu, TRELLIS_4 = 0xe50c7d11u; /* to the next state, and over four of them */

/* The sixteen levels of IQ4, bytes: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113. */
vec4 iq4_values(uvec4 code)
{
    uvec4 low = mix(uvec4(0xbfad9881u), uvec4(0xf6eaddcfu), greaterThan(code, uvec4(3)));
    uvec4 high = mix(uvec4(0x26190d01u), uvec4(0x71594535u), greaterThan(code, uvec4(11)));
    uvec4 four = mix(low, high, greaterThan(code, uvec4(7)));
    return vec4(ivec4(four << 24u - 8u * (code & 3u)) >> 24);
}

mat4 iq4_quad(uvec4 codes)
{
    return mat4(iq4_values(codes & 15u), iq4_values(codes >> 8 & 15u), iq4_values(codes >> 16 & 15u),
                iq4_values(codes >> 24));
}

/* Four codes of FP4 in bytes as twice what they stand for (0 1 2 3 4 6 8 12, then the same below zero), and 12. */
const uint FP4_OFFSET = 12;
uvec4 fp4_bytes(uvec4 x)
{
    uvec4 is_large = x >> 2 & 0x01010101u, more = x & (is_large | is_large << 1); /* of 4 to 7: 0 to 3 */
    uvec4 size = (x & 0x07070707u) + more + ((more & more >> 1) << 1);
    uvec4 is_minus = x >> 3 & 0x01010101u, minus = (is_minus << 8) - is_minus;
    return FP4_OFFSET * 0x01010101u + size - ((size & minus) << 1);
}

/* The unit at hand: where its block begins, the first of the four rows, and the scales and minima of its two halves. */
Words unit_words;
uint unit_at, unit_lane, unit_sub;
vec4 unit_scale[2], unit_min[2];
uvec4 unit_bits;            /* the fifth bits of Q5_0 and Q5_1 */
uvec4 step_low, step_high; /* dwords of the step at hand */

uvec4 vec(uint i) /* dword i of the rows' blocks */
{
    return four_at(uvec2(unit_words), unit_at + i * ROWS + unit_lane);
}

uvec2 tail_two(uint n_vec) /* the two bytes of the rows behind n_vec dwords */
{
    return two_at(uvec2(unit_words), unit_at + n_vec * ROWS + unit_lane / 2);
}

uvec4 unpack_tail(uvec2 x)
{
    return uvec4(x.x & 0xffffu, x.x >> 16, x.y & 0xffffu, x.y >> 16);
}

uvec4 tail(uint n_vec)
{
    return unpack_tail(tail_two(n_vec));
}

uvec4 byte_of(uvec4 dword, uint i)
{
    return dword >> i % 4 * 8 & 0xffu;
}

/* Byte i of a run of bytes that begins with dword `first` of the block. */
uvec4 byte_at(uint first, uint i)
{
    return byte_of(vec(first + i / 4), i);
}

/* Four fields of each row's dword, `width` bits apart. */
mat4 fields(uvec4 x, uint width, uint mask)
{
    return mat4(vec4(x & mask), vec4(x >> width & mask), vec4(x >> 2 * width & mask), vec4(x >> 3 * width & mask));
}

mat4 bytes(uvec4 x)
{
    return fields(x, 8, 0xffu);
}

/* Bits 4 i to 4 i + 3 of x. */
mat4 bits_of(uvec4 x, uint i)
{
    return fields(x >> 4 * i, 1, 1u);
}

vec4 halves_to_floats(uvec4 h)
{
    uvec4 size = h & 0x7fffu, bits = (size << 13) + 0x38000000u;
    bits = mix(bits, floatBitsToUint(vec4(size) * 5.9604644775390625e-8), lessThan(size, uvec4(0x400u)));
    bits = mix(bits, (size << 13) | 0x7f800000u, greaterThanEqual(size, uvec4(0x7c00u)));
    return uintBitsToFloat(bits | (h & 0x8000u) << 16);
}

vec4 head_scale() /* of the trellis types: a float for each row, before its blocks */
{
    return uintBitsToFloat(four_at(uvec2(unit_words), unit_lane));
}

void set_scales(vec4 d0, vec4 d1)
{
    unit_scale[0] = d0;
    unit_scale[1] = d1;
}

void set_minima(vec4 m0, vec4 m1)
{
    unit_min[0] = m0;
    unit_min[1] = m1;
}

/* Q4_K, Q5_K: scale and minimum of sub-block j are six bits each of twelve bytes, the dwords x, y and z. */
uvec4 k4_scale(uint j, uvec4 x, uvec4 z)
{
    uvec4 a = byte_of(x, j), c = byte_of(z, j);
    return j < 4 ? a & 63u : (c & 15u) | a >> 6 << 4;
}

uvec4 k4_least(uint j, uvec4 y, uvec4 z)
{
    uvec4 b = byte_of(y, j), c = byte_of(z, j);
    return j < 4 ? b & 63u : c >> 4 | b >> 6 << 4;
}

void begin_k4(uint i, uint j, uvec4 d, uvec4 x, uvec4 y, uvec4 z)
{
    precise vec4 s = halves_to_floats(d & 0xffffu) * vec4(k4_scale(j, x, z)),
                 m = halves_to_floats(d >> 16) * vec4(k4_least(j, y, z));
    unit_scale[i] = s;
    unit_min[i] = m;
}

vec4 q3k_scale(uint j)
{
    uvec4 low = byte_at(0, j % 8) >> j / 8 * 4 & 15u, high = byte_at(2, j % 4) >> j / 4 * 2 & 3u;
    return vec4(ivec4(low | high << 4) - 32);
}

vec4 nvfp4_scale(uvec4 s)
{
    uvec4 exponent = s >> 3 & 15u, mantissa = s & 7u;
    uvec4 x = mix(mantissa, (8u + mantissa) << (exponent - 1u), notEqual(exponent, uvec4(0)));
    return vec4(mix(x, uvec4(0), equal(s, uvec4(0x7fu)))) * 0.0009765625;
}

/* Half of the power of two that MXFP4's exponent stands for. */
vec4 mxfp4_scale(uvec4 e)
{
    return uintBitsToFloat(mix((e - 1u) << 23, uvec4(0x200000u) << e, lessThan(e, uvec4(2))));
}

#include "grids.glsl"

/* The byte of each row's exponent, behind four dwords of MXFP4. */
uint exponents()
{
    return unit_words.d[unit_at + 4 * ROWS + unit_lane / 4];
}

/* Says which unit is at hand: number u of rows `lane` to `lane` + 3 of sixteen. */
void find_unit(Words w, uint lane, uint u)
{
    unit_words = w;
    unit_lane = lane;
    unit_sub = u % block_units();
    unit_at = u / block_units() * block_dwords() + (IS_TRELLIS ? ROWS : 0);
}

/* Goes to that unit, for products on floats. */
void begin_unit(Words w, uint lane, uint u)
{
    find_unit(w, lane, u);
    if (IS_FLOAT) {
        return;
    } else if (TYPE == Q4_0 || TYPE == IQ4_NL || TYPE == Q1_0 || TYPE == Q2_0) {
        vec4 d = halves_to_floats(tail(4));
        set_scales(d, d);
    } else if (TYPE == Q8_0) {
        vec4 d = halves_to_floats(tail(8));
        set_scales(d, d);
    } else if (TYPE == Q4_1 || TYPE == Q5_1) {
        uvec4 d = vec(0);
        vec4 scale = halves_to_floats(d & 0xffffu), least = -halves_to_floats(d >> 16);
        set_scales(scale, scale);
        set_minima(least, least);
        if (TYPE == Q5_1)
            unit_bits = vec(1);
    } else if (TYPE == Q5_0) {
        vec4 d = halves_to_floats(tail(5));
        set_scales(d, d);
        unit_bits = vec(0);
    } else if (IS_GRID) {
        begin_grid();
    } else if (TYPE == TQ1_0 || TYPE == TQ2_0) {
        vec4 d = halves_to_floats(tail(TYPE == TQ1_0 ? 13 : 16));
        set_scales(d, d);
    } else if (TYPE == MXFP4) {
        vec4 d = mxfp4_scale(uvec4(exponents()) >> uvec4(0, 8, 16, 24) & 0xffu);
        set_scales(d, d);
    } else if (TYPE == NVFP4) {
        uvec4 s = vec(0);
        set_scales(nvfp4_scale(byte_of(s, 2 * unit_sub)), nvfp4_scale(byte_of(s, 2 * unit_sub + 1)));
    } else if (TYPE == Q2_K) {
        uvec4 d = vec(20), s0 = byte_at(0, 2 * unit_sub), s1 = byte_at(0, 2 * unit_sub + 1);
        vec4 scale = halves_to_floats(d & 0xffffu), least = halves_to_floats(d >> 16);
        set_scales(scale * vec4(s0 & 15u), scale * vec4(s1 & 15u));
        set_minima(least * vec4(s0 >> 4), least * vec4(s1 >> 4));
    } else if (TYPE == Q3_K) {
        vec4 d = halves_to_floats(tail(27));
        set_scales(d * q3k_scale(2 * unit_sub), d * q3k_scale(2 * unit_sub + 1));
    } else if (IS_LONG) {
        uvec4 d = vec(0), x = vec(1), y = vec(2), z = vec(3);
        begin_k4(0, 2 * unit_sub, d, x, y, z);
        begin_k4(1, 2 * unit_sub + 1, d, x, y, z);
    } else if (TYPE == Q6_K) {
        vec4 d = halves_to_floats(tail(52));
        ivec4 s = ivec4(vec(unit_sub / 2));
        int at = int(unit_sub % 2 * 16);
        set_scales(d * vec4(bitfieldExtract(s, at, 8)), d * vec4(bitfieldExtract(s, at + 8, 8)));
    } else if (TYPE == IQ4_XS) {
        uvec4 d = vec(0), low = byte_at(1, unit_sub / 2) >> unit_sub % 2 * 4 & 15u, high = d >> (16 + 2 * unit_sub) & 3u;
        vec4 scale = halves_to_floats(d & 0xffffu) * vec4(ivec4(low | high << 4) - 32);
        set_scales(scale, scale);
    } else if (TYPE == IQ2_KT || TYPE == IQ3_KT) {
        uvec4 s = byte_of(vec(0), unit_sub) >> unit_sub / 4 * 4 & 15u;
        vec4 scale = head_scale() * (TYPE == IQ2_KT ? iq4_values(s) : vec4(s));
        set_scales(scale, scale);
    } else if (TYPE == IQ4_KT) {
        vec4 scale = head_scale() * vec4(ivec4(vec(unit_sub) >> 1 & 127u) - 64);
        set_scales(scale, scale);
    }
}

/* Four weights of a trellis, from number `from` (0 or 4) of the sequence that a seed starts. */
mat4 trellis(uvec4 seed, uint from)
{
    uvec4 state = from == 0 ? seed : seed * TRELLIS_4;
    mat4 y;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        state *= TRELLIS_1;
        uvec4 sum = (state & 63u) + (state >> 8 & 63u) + (state >> 16 & 63u) + (state >> 24 & 63u);
        y[i] = vec4(ivec4(sum) - 126);
    }
    return y;
}

/* The seed of the eight weights that quad i of the unit is among (IQ2_KT, IQ3_KT). */
uvec4 seed_at(uint i)
{
    uint at = unit_sub * 4 + i / 2;
    return (vec(1 + at / 2) >> at % 2 * 16 & 0xffffu) + 4096u;
}

uvec4 iq4kt_seed(uint i)
{
    uint at = 8 * unit_sub + i;
    uvec4 head = vec(unit_sub), high = byte_at(24, at % 32) >> at / 32 * 4 & 15u;
    return (byte_at(8, at) | high << 8 | (head >> (8 + 3 * i) & 7u) << 12) + 4096u + (head & 1u) * 32768u;
}

/* Quad i of TQ1_0: bytes are fractions of 256, whose digits base three after the point are weights of runs of 32, 16 and
 * 4 bytes. */
mat4 ternary(uint i)
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
    uvec4 x = vec(at);
    mat4 y;
    [[unroll]] for (uint j = 0; j < 4; j++)
        y[j] = vec4(((x >> 8 * j & 0xffu) * power[digit] & 0xffu) * 3u >> 8) - 1.0;
    return y;
}

/* Goes to a step of the unit: loads the dwords that its quads share. */
void begin_step(uint step)
{
    switch (TYPE) {
    case Q4_0:
    case IQ4_NL:
    case MXFP4: step_low = vec(step); break;
    case Q4_1:
    case Q5_0: step_low = vec(1 + step); break;
    case Q5_1: step_low = vec(2 + step); break;
    case IQ4_XS: step_low = vec(2 + 4 * unit_sub + step); break;
    case Q4_K: step_low = vec(4 + unit_sub * 8 + step); break;
    case Q5_K:
        step_low = vec(12 + unit_sub * 8 + step);
        step_high = vec(4 + step) >> 2 * unit_sub;
        break;
    }
}

/* Quad i of the unit, the step's number `h`, in units of the scale: a column for each of four weights, with four rows. */
mat4 quad(uint i, uint h)
{
    if (IS_GRID)
        return grid_quad(i);
    uint half_of = unit_sub / 4, shift = unit_sub % 4 * 2; /* of 256 weights; in bytes that hold four weights */
    uvec4 nibbles = step_low >> 4 * h & 0x0f0f0f0fu;
    switch (TYPE) {
    case F32:
        return mat4(uintBitsToFloat(vec(4 * i)), uintBitsToFloat(vec(4 * i + 1)), uintBitsToFloat(vec(4 * i + 2)),
                    uintBitsToFloat(vec(4 * i + 3)));
    case F16: {
        uvec4 a = vec(2 * i), b = vec(2 * i + 1);
        return mat4(halves_to_floats(a & 0xffffu), halves_to_floats(a >> 16), halves_to_floats(b & 0xffffu),
                    halves_to_floats(b >> 16));
    }
    case BF16: {
        uvec4 a = vec(2 * i), b = vec(2 * i + 1);
        return mat4(uintBitsToFloat(a << 16), uintBitsToFloat(a & 0xffff0000u), uintBitsToFloat(b << 16),
                    uintBitsToFloat(b & 0xffff0000u));
    }
    case Q4_0: return bytes(nibbles) - 8.0;
    case Q4_1:
    case Q4_K: return bytes(nibbles);
    case Q5_0: return bytes(nibbles) + 16.0 * bits_of(unit_bits, i) - 16.0;
    case Q5_1: return bytes(nibbles) + 16.0 * bits_of(unit_bits, i);
    case Q5_K: return bytes(nibbles) + 16.0 * bytes(step_high >> h & 0x01010101u);
    case IQ4_NL:
    case IQ4_XS: return iq4_quad(nibbles);
    case MXFP4: return bytes(fp4_bytes(nibbles)) - FP4_OFFSET;
    case Q8_0: {
        ivec4 x = ivec4(vec(i));
        return mat4(vec4(x << 24 >> 24), vec4(x << 16 >> 24), vec4(x << 8 >> 24), vec4(x >> 24));
    }
    case Q2_K: return bytes(vec(4 + half_of * 8 + i) >> shift & 0x03030303u);
    case Q3_K: {
        uint at = half_of * 8 + i;
        uvec4 q = vec(at < 8 ? 4 + 2 * at : 11 + at);
        return bytes(q >> shift & 0x03030303u) + 4.0 * bytes(vec(3 + 2 * i) >> unit_sub & 0x01010101u) - 4.0;
    }
    case Q6_K: {
        uint at = 4 + half_of * 24 + 3 * i;
        uvec4 low = vec(at + unit_sub % 2) >> unit_sub % 4 / 2 * 4 & 0x0f0f0f0fu;
        return bytes(low | (vec(at + 2) >> shift & 0x03030303u) << 4) - 32.0;
    }
    case TQ1_0: return ternary(i);
    case TQ2_0: return bytes(vec(half_of * 8 + i) >> shift & 0x03030303u) - 1.0;
    case NVFP4:
        return bytes(fp4_bytes(vec(1 + 4 * unit_sub + i / 4 * 2 + i % 2) >> i % 4 / 2 * 4 & 0x0f0f0f0fu)) - FP4_OFFSET;
    case Q1_0: return 2.0 * bits_of(vec(unit_sub), i) - 1.0;
    case Q2_0: return fields(byte_at(0, unit_sub * 8 + i), 2, 3u) - 1.0;
    case IQ2_KT: return trellis(seed_at(i), i % 2 * 4);
    case IQ3_KT: {
        mat4 sizes = trellis(seed_at(i), i % 2 * 4), minus = bytes(vec(17 + i) >> unit_sub & 0x01010101u);
        [[unroll]] for (uint j = 0; j < 4; j++)
            sizes[j] = abs(sizes[j]) * (1.0 - 2.0 * minus[j]);
        return sizes;
    }
    default: return trellis(iq4kt_seed(i), 0); /* IQ4_KT */
    }
}

/* Quad number `h` of a step, with the roundings of quant/quant_decode.c. */
mat4 weights(uint step, uint h)
{
    uint i = step + h * STEPS;
    mat4 q = quad(i, h);
    if (IS_FLOAT)
        return q;
    bool is_first = i < UNIT / 8;
    vec4 d = is_first ? unit_scale[0] : unit_scale[1];
    precise mat4 w;
    for (uint j = 0; j < 4; j++) /* glslc's own copies of a loop are no longer precise */
        w[j] = HAS_MINIMA ? q[j] * d - (is_first ? unit_min[0] : unit_min[1]) : q[j] * d;
    return w;
}
