/* Units of weights as bytes, for products on integers (docs/numerics.md). */
const bool HAS_SUBSCALES = TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K;
const uint INT_UNIT_RUNS = HAS_SUBSCALES ? 2 : 1, INT_ROUNDS = INT_UNIT_RUNS;
const uint OFFSET = TYPE == Q4_0 ? 8 : TYPE == Q5_0 ? 16 : TYPE == MXFP4 ? FP4_OFFSET : 0; /* what bytes are above their weights */

/* Integers of less than 2^22 become floats without a conversion, which takes GPUs four times an addition: they are added
 * to the bits of 1.5 * 2^23. Sums of Q4_K and Q5_K begin with those. */
const int FLOAT_BITS = 0x4b400000;
const ivec4 NO_BITS = ivec4(IS_LONG ? FLOAT_BITS : 0);

vec4 float_of(ivec4 above_bits)
{
    precise vec4 y = intBitsToFloat(above_bits) - 12582912.0;
    return y;
}

vec4 small_float(uvec4 x)
{
    return float_of(ivec4(x) + FLOAT_BITS);
}

/* Four bytes of each row with four activations, added to sum. */
ivec4 add_dots(uvec4 w, uint q, ivec4 sum)
{
#ifdef DOT
    return sum + ivec4(dot_of_bytes(w.x, q, 0), dot_of_bytes(w.y, q, 0), dot_of_bytes(w.z, q, 0), dot_of_bytes(w.w, q, 0));
#else
    [[unroll]] for (uint j = 0; j < 4; j++)
        sum += (ivec4(w << 24 - 8 * j) >> 24) * (int(q << 24 - 8 * j) >> 24);
    return sum;
#endif
}

/* Scales of the unit's rows, and of quads of the low and the high half in each round. */
vec4 int_scale, int_least;
ivec4 sub_scale[2][2];              /* [half][round], of Q6_K */
vec4 half_scale[2], half_least[2]; /* of Q4_K and Q5_K */
uint low_run, high_run;              /* of the unit's halves */

/* What is loaded of a unit before any of it is used: what begins its block, or its row's part of one, and the dwords of
 * its quads, of which those with more bits come second (and Q8_0's high half). */
const bool HAS_MORE = TYPE == Q5_K || TYPE == Q6_K || TYPE == Q8_0;
const uint N_QUAD = 4 * INT_ROUNDS;
struct Unit {
    uvec4 head[4];
    uvec2 tail;
    uvec4 quads[N_QUAD], more[HAS_MORE ? N_QUAD : 1];
};

/* Goes to the unit, as find_unit does. */
void find_integers(Words w, uint lane, uint u)
{
    find_unit(w, lane, TYPE == Q6_K ? u / 4 * 8 + u % 4 / 2 * 4 + u % 2 : u);
    low_run = high_run = u;
    if (TYPE == Q6_K) { /* runs s and s + 2 of a half of the block share dwords */
        low_run = u / 4 * 8 + unit_sub;
        high_run = low_run + 2;
    } else if (IS_LONG) {
        low_run = 2 * u;
        high_run = 2 * u + 1;
    }
}

void load_head(inout Unit x)
{
    if (TYPE == Q6_K) {
        x.tail = tail_two(52);
        x.head[0] = vec(unit_sub / 2);
        x.head[1] = vec(unit_sub / 2 + 1);
    } else if (IS_LONG) {
        [[unroll]] for (uint i = 0; i < 4; i++)
            x.head[i] = vec(i);
    } else if (TYPE == MXFP4) {
        x.tail.x = exponents();
    } else {
        x.tail = tail_two(TYPE == Q8_0 ? 8 : TYPE == Q5_0 ? 5 : 4);
        if (TYPE == Q5_0)
            x.head[0] = vec(0);
    }
}

/* The dwords of quads 4 r + j of the unit's halves. */
uvec4 load_quads(uint r, uint j)
{
    if (TYPE == Q6_K)
        return vec(4 + unit_sub / 4 * 24 + 3 * (4 * r + j) + unit_sub % 2);
    if (IS_LONG)
        return vec((TYPE == Q5_K ? 12 : 4) + unit_sub * 8 + 4 * r + j);
    return vec(TYPE == Q5_0 ? 1 + j : j);
}

uvec4 load_more(uint r, uint j)
{
    if (TYPE == Q6_K)
        return vec(4 + unit_sub / 4 * 24 + 3 * (4 * r + j) + 2);
    return vec(TYPE == Q5_K ? 4 + 4 * r + j : 4 + j);
}

void load_unit(out Unit x)
{
    load_head(x);
    [[unroll]] for (uint i = 0; i < N_QUAD; i++) {
        x.quads[i] = load_quads(i / 4, i % 4);
        if (HAS_MORE)
            x.more[i] = load_more(i / 4, i % 4);
    }
}

/* What begin_unit is to float products. */
void begin_integers(Unit x)
{
    if (TYPE == Q6_K) {
        int_scale = halves_to_floats(unpack_tail(x.tail));
        [[unroll]] for (uint h = 0; h < 2; h++)
            [[unroll]] for (uint r = 0; r < 2; r++)
                sub_scale[h][r] = bitfieldExtract(ivec4(x.head[h]), int(unit_sub % 2 * 16 + 8 * r), 8);
    } else if (IS_LONG) {
        int_scale = halves_to_floats(x.head[0] & 0xffffu);
        int_least = halves_to_floats(x.head[0] >> 16);
        [[unroll]] for (uint h = 0; h < 2; h++) {
            half_scale[h] = small_float(k4_scale(2 * unit_sub + h, x.head[1], x.head[3]));
            half_least[h] = small_float(k4_least(2 * unit_sub + h, x.head[2], x.head[3]));
        }
    } else if (TYPE == MXFP4) {
        int_scale = mxfp4_scale(uvec4(x.tail.x) >> uvec4(0, 8, 16, 24) & 0xffu);
    } else {
        int_scale = halves_to_floats(unpack_tail(x.tail));
        unit_bits = x.head[0];
    }
}

/* Four bits of each row as the fifth bits of its bytes. */
uvec4 fifth_bits(uvec4 bits)
{
    return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4;
}

/* Bytes of six bits, less 32. */
uvec4 less_32(uvec4 x)
{
    return ((x | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
}

/* Quads 4 r + j of the unit's halves, of their dwords. */
void unpack_quads(uint j, uvec4 x, uvec4 more, out uvec4 low, out uvec4 high)
{
    low = x & 0x0f0f0f0fu;
    high = x >> 4 & 0x0f0f0f0fu;
    if (TYPE == Q8_0) {
        low = x;
        high = more;
    } else if (TYPE == Q6_K) {
        more = more >> unit_sub % 2 * 2;
        low = less_32(low | (more & 0x03030303u) << 4);
        high = less_32(high | (more & 0x30303030u));
    } else if (TYPE == Q5_K) {
        more = more >> 2 * unit_sub;
        low |= (more & 0x01010101u) << 4;
        high |= (more >> 1 & 0x01010101u) << 4;
    } else if (TYPE == Q5_0) {
        low |= fifth_bits(unit_bits >> 4 * j);
        high |= fifth_bits(unit_bits >> 16 + 4 * j);
    } else if (TYPE == MXFP4) {
        low = fp4_bytes(low);
        high = fp4_bytes(high);
    }
}

/* What products of a unit add up to: of Q4_K and Q5_K numbers below 2^24, which are exact as floats, else integers. */
struct UnitSum {
    vec4 floats;
    ivec4 integers;
};

UnitSum no_sum()
{
    return UnitSum(vec4(0), ivec4(0));
}

/* Adds what products of a half in a round add up to, which began with NO_BITS. */
void add_scaled(inout UnitSum sum, uint half_of, uint r, ivec4 s)
{
    if (IS_LONG)
        sum.floats = fma(half_scale[half_of], float_of(s), sum.floats);
    else
        sum.integers += TYPE == Q6_K ? sub_scale[half_of][r] * s : s;
}

/* The sum of products with the weights themselves, whose bytes are OFFSET above them. low_sum: of the activations. */
vec4 whole_sum(UnitSum sum, float low_sum)
{
    if (IS_LONG)
        return sum.floats;
    if (TYPE == Q6_K)
        return vec4(sum.integers);
    return fma(vec4(-float(OFFSET)), vec4(low_sum), float_of(sum.integers + FLOAT_BITS));
}

/* Adds a unit's share to four rows' sums. The rest are its low run's scale and sum, and its high run's sum. */
vec4 add_unit(UnitSum sum, float scale, float low_sum, float high_sum, vec4 acc)
{
    precise vec4 term = int_scale * whole_sum(sum, low_sum);
    if (IS_LONG)
        term = fma(-int_least, fma(half_least[1], vec4(high_sum), half_least[0] * low_sum), term);
    precise vec4 y = fma(term, vec4(scale), acc);
    return y;
}
