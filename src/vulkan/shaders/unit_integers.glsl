/* Units of weights as bytes, for products on integers (docs/numerics.md). */
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
/* OpSDot of SPV_KHR_integer_dot_product, of four bytes in each dword (format 0). */
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int dot_of_bytes(uint a, uint b, spirv_literal int format);
#endif

const bool HAS_SUBSCALES = TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K;
const uint INT_UNIT_RUNS = HAS_SUBSCALES ? 2 : 1, INT_ROUNDS = INT_UNIT_RUNS;
const int OFFSET = TYPE == Q4_0 ? 8 : TYPE == Q5_0 ? 16 : TYPE == MXFP4 ? int(FP4_OFFSET) : 0; /* what bytes are above their weights */

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

/* What begin_unit is to float products: scales of the rows, and of quads of the low and the high half in each round. */
vec4 int_scale, int_least;
ivec4 sub_scale[2][2], sub_least[2]; /* [half][round], [half] */
uint low_run, high_run;              /* of the unit's halves */

void begin_integers(Words w, uint group, uint lane, uint u)
{
    if (TYPE == Q6_K) { /* runs s and s + 2 of a half of the block share dwords */
        uint half_of = u % 4 / 2, s = u % 2, run = 4 * half_of + s;
        unit_words = w;
        unit_lane = lane;
        unit_at = group + u / 4 * block_dwords();
        unit_sub = run;
        low_run = u / 4 * 8 + run;
        high_run = low_run + 2;
        int_scale = halves_to_floats(tail(52));
        [[unroll]] for (uint h = 0; h < 2; h++) {
            ivec4 x = ivec4(vec(run / 2 + h));
            [[unroll]] for (uint r = 0; r < 2; r++)
                sub_scale[h][r] = bitfieldExtract(x, int(run % 2 * 16 + 8 * r), 8);
        }
    } else if (IS_LONG) {
        unit_words = w;
        unit_lane = lane;
        unit_sub = u % 4;
        unit_at = group + u / 4 * block_dwords();
        low_run = 2 * u;
        high_run = 2 * u + 1;
        uvec4 d = vec(0), x = vec(1), y = vec(2), z = vec(3);
        int_scale = halves_to_floats(d & 0xffffu);
        int_least = halves_to_floats(d >> 16);
        [[unroll]] for (uint h = 0; h < 2; h++) {
            sub_scale[h][0] = sub_scale[h][1] = ivec4(k4_scale(2 * unit_sub + h, x, z));
            sub_least[h] = ivec4(k4_least(2 * unit_sub + h, y, z));
        }
    } else {
        begin_unit(w, group, lane, u);
        int_scale = unit_scale[0];
        low_run = high_run = u;
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

/* Quads 4 r + j of the unit's halves. */
void quads_of(uint r, uint j, out uvec4 low, out uvec4 high)
{
    uvec4 x, h;
    switch (TYPE) {
    case Q8_0:
        low = vec(j);
        high = vec(4 + j);
        return;
    case Q6_K:
        x = vec(4 + unit_sub / 4 * 24 + 3 * (4 * r + j) + unit_sub % 2);
        h = vec(4 + unit_sub / 4 * 24 + 3 * (4 * r + j) + 2) >> unit_sub % 2 * 2;
        low = less_32((x & 0x0f0f0f0fu) | (h & 0x03030303u) << 4);
        high = less_32((x >> 4 & 0x0f0f0f0fu) | (h & 0x30303030u));
        return;
    case Q4_K: x = vec(4 + unit_sub * 8 + 4 * r + j); break;
    case Q5_K:
        x = vec(12 + unit_sub * 8 + 4 * r + j);
        h = vec(4 + 4 * r + j) >> 2 * unit_sub;
        break;
    case Q5_0: x = vec(1 + j); break;
    default: x = vec(j); /* Q4_0, MXFP4 */
    }
    low = x & 0x0f0f0f0fu;
    high = x >> 4 & 0x0f0f0f0fu;
    if (TYPE == Q5_K) {
        low |= (h & 0x01010101u) << 4;
        high |= (h >> 1 & 0x01010101u) << 4;
    } else if (TYPE == Q5_0) {
        low |= fifth_bits(unit_bits >> 4 * j);
        high |= fifth_bits(unit_bits >> 16 + 4 * j);
    } else if (TYPE == MXFP4) {
        low = fp4_bytes(low);
        high = fp4_bytes(high);
    }
}

/* A unit's share of four rows' sums. sum: of its bytes, scaled; the rest are its low run's scale and sum, and its high
 * run's sum. */
vec4 add_unit(ivec4 sum, float scale, int low_sum, int high_sum, vec4 acc)
{
    precise vec4 term = int_scale * vec4(sum - OFFSET * low_sum);
    if (IS_LONG)
        term = fma(-int_least, vec4(sub_least[0] * low_sum + sub_least[1] * high_sum), term);
    precise vec4 y = fma(term, vec4(scale), acc);
    return y;
}
