/* Products on integers: weights as bytes with activations as bytes, the sums of a unit scaled once (docs/numerics.md).
 *
 * A thread takes a unit of four rows in rounds of eight quads: four of the unit's low half and four of its high half,
 * which 4-bit types hold in the same dwords. Types whose scales are for sub-blocks have units of two runs, others of one,
 * whose halves are half a run each. */
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
/* OpSDot of SPV_KHR_integer_dot_product, of four bytes in each dword (format 0). */
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int dot_of_bytes(uint a, uint b, spirv_literal int format);
#endif

const bool HAS_SUBSCALES = TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K;
const uint INT_UNIT_RUNS = HAS_SUBSCALES ? 2 : 1, INT_ROUNDS = INT_UNIT_RUNS;
const int OFFSET = TYPE == Q4_0 ? 8 : TYPE == Q5_0 ? 16 : TYPE == MXFP4 ? int(FP4_OFFSET) : 0; /* what bytes are above their weights */

const bool ROUNDS_HERE = INTEGER == ROUNDED || INTEGER == ROUNDED_STAGED;
const uint N_RUN = ROUNDS_HERE ? STAGED / RUN : 1;

/* The row's runs, and the largest activation of each block, as bits, which compare as numbers do. */
#ifdef WIDE
shared u64vec2 runs[RUN_FOURS * N_RUN];
#else
shared uvec4 runs[RUN_FOURS * N_RUN];
#endif
shared uint block_most[N_RUN];

void put_four(uint i, uvec4 x)
{
#ifdef WIDE
    runs[i] = u64vec2(pack64(x.xy), pack64(x.zw));
#else
    runs[i] = x;
#endif
}

/* Rounds row x_at[0] of x, or the one that is staged. */
void stage_runs(Floats x)
{
    uint tid = gl_LocalInvocationID.x;
    for (uint b = tid; b < N_RUN / BLOCK_RUNS && BLOCK_RUNS > 1; b += N_THREAD)
        block_most[b] = 0;
    barrier();
    uint run = tid;
    do {
        vec4 four[8];
        float most = 0;
        if (run < N_RUN) {
            [[unroll]] for (uint i = 0; i < 8; i++)
                four[i] = INTEGER == ROUNDED_STAGED
                              ? staged_four(run * 8 + i)
                              : uintBitsToFloat(four_at(uvec2(x), x_at[0] + run * RUN + 4 * i));
            most = largest(four);
        }
        if (BLOCK_RUNS > 1) {
            if (run < N_RUN)
                atomicMax(block_most[run / BLOCK_RUNS], floatBitsToUint(most));
            barrier();
        }
        if (run < N_RUN) {
            Run r = rounded_run(four, BLOCK_RUNS > 1 ? uintBitsToFloat(block_most[run / BLOCK_RUNS]) : most);
            put_four(run * RUN_FOURS, r.q[0]);
            put_four(run * RUN_FOURS + 1, r.q[1]);
            put_four(run * RUN_FOURS + 2, uvec4(r.scale, r.sum, 0, 0));
        }
        run += N_THREAD;
    } while (run - tid < N_RUN);
    barrier();
}

/* Four dwords, and two, of the runs of tile row t. */
uvec4 run_four(Floats x, uint t, uint i)
{
    if (!ROUNDS_HERE)
        return four_at(uvec2(x), 4 * (x_at[t] / RUN * RUN_FOURS + i));
#ifdef WIDE
    return uvec4(unpack32(runs[i].x), unpack32(runs[i].y));
#else
    return runs[i];
#endif
}

uvec2 run_two(Floats x, uint t, uint i)
{
    if (!ROUNDS_HERE)
        return two_at(uvec2(x), 4 * (x_at[t] / RUN * RUN_FOURS + i));
#ifdef WIDE
    return unpack32(runs[i].x);
#else
    return runs[i].xy;
#endif
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

/* What a thread adds up: a chain of its units. */
void multiply_integers(Words w, uint group, Floats x, uint k, out vec4 sums[TILE])
{
    uint tid = gl_LocalInvocationID.x;
    precise vec4 acc[TILE];
    [[unroll]] for (uint t = 0; t < TILE; t++)
        acc[t] = vec4(0);
    uint u = tid / LANES, n_unit = k / (RUN * INT_UNIT_RUNS);
    if (u < n_unit) do {
        begin_integers(w, group, tid % LANES * MINE, u);
        ivec4 sum[TILE];
        [[unroll]] for (uint t = 0; t < TILE; t++)
            sum[t] = ivec4(0);
        [[unroll]] for (uint r = 0; r < INT_ROUNDS; r++) {
            uvec4 low[4], high[4];
            [[unroll]] for (uint j = 0; j < 4; j++)
                quads_of(r, j, low[j], high[j]);
            [[unroll]] for (uint t = 0; t < TILE; t++) {
                uvec4 a = run_four(x, t, low_run * RUN_FOURS + r),
                      b = run_four(x, t, high_run * RUN_FOURS + (HAS_SUBSCALES ? r : 1));
                ivec4 s[2] = ivec4[](ivec4(0), ivec4(0));
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    s[0] = add_dots(low[j], a[j], s[0]);
                    s[1] = add_dots(high[j], b[j], s[1]);
                }
                sum[t] += HAS_SUBSCALES ? sub_scale[0][r] * s[0] + sub_scale[1][r] * s[1] : s[0] + s[1];
            }
        }
        [[unroll]] for (uint t = 0; t < TILE; t++) {
            uvec2 head = run_two(x, t, low_run * RUN_FOURS + 2);
            precise vec4 term = int_scale * vec4(OFFSET != 0 ? sum[t] - OFFSET * int(head.y) : sum[t]);
            if (IS_LONG) {
                uvec2 other = run_two(x, t, high_run * RUN_FOURS + 2);
                term = fma(-int_least, vec4(sub_least[0] * int(head.y) + sub_least[1] * int(other.y)), term);
            }
            acc[t] = fma(term, vec4(uintBitsToFloat(head.x)), acc[t]);
        }
        u += SPLIT;
    } while (u < n_unit);
    [[unroll]] for (uint t = 0; t < TILE; t++)
        sums[t] = acc[t];
}
