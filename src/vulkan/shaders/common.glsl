/* What all shaders share: references to memory, exact conversions, an exponential of our own.
 *
 * Buffers are reached by their addresses, which come in push constants (vk_ops*.c have the same structs in C). What a
 * sum adds up in which order is fixed by the size of the workgroup alone, so that devices with subgroups of 4 to 128 give
 * the same results. */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats {
    float d[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Ints {
    int d[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words {
    uint d[];
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Addresses {
    uvec2 d[];
};
/* Two dwords, which begin at a multiple of eight bytes. Where the device has 64-bit integers (WIDE: shaders are compiled
 * without and with it) they are loaded as one: a driver that loads component by component takes half as long. */
#ifdef WIDE
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Twos {
    uint64_t d[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Fours {
    u64vec2 d[];
};
#define FOUR u64vec2 /* four dwords in shared memory */
#else
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Twos {
    uvec2 d[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Fours {
    uvec4 d[];
};
#define FOUR uvec4
#endif
/* What other workgroups of the same dispatch write or read, too. */
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer SharedFloats {
    float d[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer SharedWords {
    uint d[];
};

/* ACTIVATION as enum act_fn. */
const uint ACT_SILU = 0, ACT_GELU = 1, ACT_SIGMOID = 2, ACT_SWIGLU_OAI = 3, ACT_NONE = 4, ACT_RELU = 5, ACT_SOFTPLUS = 6,
           ACT_SILU_CLAMPED = 7, ACT_SITU = 8;

bool is_null(Floats p)
{
    return uvec2(p) == uvec2(0);
}

/* address + n * size, in 64 bits */
uvec2 address_at(uvec2 address, uint n, uint size)
{
    uint high, low, carry;
    umulExtended(n, size, high, low);
    low = uaddCarry(address.x, low, carry);
    return uvec2(low, address.y + high + carry);
}

/* The row that a workgroup has, or another thing of which there may be more than workgroups in y: these go on in z
 * (vk_spread). The last workgroups may have none. */
uint row_of_group()
{
    return gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y;
}

/* Dwords `at` and the next, and it and the next three, of what begins at an address. */
uvec2 two_at(uvec2 address, uint at)
{
#ifdef WIDE
    return unpack32(Twos(address).d[at / 2]);
#else
    return Twos(address).d[at / 2];
#endif
}

uvec4 unpack_four(FOUR x)
{
#ifdef WIDE
    return uvec4(unpack32(x.x), unpack32(x.y));
#else
    return x;
#endif
}

FOUR pack_four(uvec4 x)
{
#ifdef WIDE
    return u64vec2(pack64(x.xy), pack64(x.zw));
#else
    return x;
#endif
}

uvec4 four_at(uvec2 address, uint at)
{
    return unpack_four(Fours(address).d[at / 4]);
}

float half_to_float(uint h)
{
    uint size = h & 0x7fffu, bits = (size << 13) + 0x38000000u;
    if (size < 0x400u)
        bits = floatBitsToUint(float(size) * 5.9604644775390625e-8);
    else if (size >= 0x7c00u)
        bits = (size << 13) | 0x7f800000u;
    return uintBitsToFloat(bits | (h & 0x8000u) << 16);
}

const float ROUNDS = 12582912.0; /* 1.5 * 2^23: floats of this size are whole numbers */

/* The nearest whole numbers, the even ones of two, for |x| up to 2^22. Mesa's software driver rounds halves away from
 * zero in roundEven where its vectors are wider than the processor's. */
float round_even(float x)
{
    precise float y = x + ROUNDS;
    y -= ROUNDS;
    return y;
}

vec4 round_even(vec4 x)
{
    precise vec4 y = x + ROUNDS;
    y -= ROUNDS;
    return y;
}

/* Rounds to nearest even. */
uint float_to_half(float x)
{
    uint bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return sign | 0x7e00u;
    if (size >= 0x477ff000u) /* from 65520 on, half of a step beyond the largest */
        return sign | 0x7c00u;
    if (size < 0x38800000u) /* the smallest halves are multiples of 2^-24 */
        return sign | uint(round_even(uintBitsToFloat(size) * 16777216.0));
    return sign | (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13;
}

/* e^x within 2 ulp: x = n ln 2 + r, a polynomial of r, times 2^n in two steps so that small results lose nothing. */
float exp_of(float x)
{
    precise float y = clamp(x, -104.0, 89.0);
    precise float n = round_even(y * 1.44269504088896341);
    precise float r = fma(n, -0.693359375, y);
    r = fma(n, 2.12194440e-4, r);
    precise float p = fma(r, 1.9875691500e-4, 1.3981999507e-3);
    p = fma(p, r, 8.3334519073e-3);
    p = fma(p, r, 4.1665795894e-2);
    p = fma(p, r, 1.6666665459e-1);
    p = fma(p, r, 5.0000001201e-1);
    p = fma(p, r * r, r) + 1.0;
    int i = int(n), half_n = i >> 1;
    p = p * uintBitsToFloat(uint(half_n + 127) << 23) * uintBitsToFloat(uint(i - half_n + 127) << 23);
    return isnan(x) ? x : p;
}

float sigmoid(float x)
{
    return 1.0 / (1.0 + exp_of(-x));
}

/* tanh within a few ulp: a polynomial where what is below would cancel */
float tanh_of(float x)
{
    precise float z = x * x;
    precise float p = fma(z, fma(z, fma(z, fma(z, -0.00570498453, 0.0206390861), -0.0537397154), 0.133314416), -0.333332807);
    return abs(x) < 0.625 ? fma(z * x, p, x) : 2.0 / (1.0 + exp_of(-2.0 * x)) - 1.0;
}

/* ln(1 + y) for y of 0 to 1, within an ulp or two */
float log1p_of(float y)
{
    bool is_large = y > 0.41421356;
    precise float f = is_large ? 0.5 * (y - 1.0) : y, s = f / (2.0 + f), z = s * s;
    precise float r = fma(z, fma(z, fma(z, 0.2222222, 0.2857143), 0.4), 0.66666668) * z;
    precise float log1p = f - (0.5 * f * f - s * (0.5 * f * f + r));
    return is_large ? log1p + 0.69314718 : log1p;
}

float softplus(float x)
{
    return max(x, 0.0) + log1p_of(exp_of(-abs(x)));
}

/* act(gate) * up, as kernels.h has the formulas; limits as ACT_MUL has them */
float activate(uint act, float limit, float up_limit, float gate, float up)
{
    precise float y;
    if (act == ACT_SILU) {
        y = gate * sigmoid(gate);
        y = limit > 0.0 ? min(y, limit) * clamp(up, -limit, limit) : y * up;
    } else if (act == ACT_SILU_CLAMPED) {
        float g = limit > 0.0 ? min(gate, limit) : gate;
        y = g * sigmoid(g) * (limit > 0.0 ? clamp(up, -limit, limit) : up);
    } else if (act == ACT_GELU) {
        y = 0.5 * gate * (1.0 + tanh_of(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up;
    } else if (act == ACT_SIGMOID) {
        y = sigmoid(gate) * up;
    } else if (act == ACT_NONE) {
        y = gate * up;
    } else if (act == ACT_RELU) {
        y = max(gate, 0.0) * up;
    } else if (act == ACT_SOFTPLUS) {
        y = softplus(gate) * up;
    } else if (act == ACT_SITU) {
        y = limit * tanh_of(gate / limit) * sigmoid(gate) * (up_limit > 0.0 ? up_limit * tanh_of(up / up_limit) : up);
    } else {
        float g = min(gate, 7.0);
        y = g * sigmoid(1.702 * g) * (clamp(up, -7.0, 7.0) + 1.0);
    }
    return y;
}
