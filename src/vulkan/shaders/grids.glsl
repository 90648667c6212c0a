/* The types of codebooks, IQ1, IQ2 and IQ3: an index stands for the levels of eight (IQ3: four) weights
 * (quant/quant_grids.h). The codebooks lie one behind the other in a buffer that is bound (vk_grids.c). */
layout(set = 0, binding = 0, std430) readonly buffer Grids {
    uint entries[]; /* two in each */
} grids;

const uint GRID_IQ1 = 0, GRID_IQ2_XXS = 2048, GRID_IQ2_XS = 2304, GRID_IQ2_S = 2816, GRID_IQ3_XXS = 3840,
           GRID_IQ3_S = 4096; /* the first entry of each; vk_grids.c */

uvec4 grid_entry(uint grid, uvec4 i)
{
    uvec4 at = grid + i, both;
    [[unroll]] for (uint r = 0; r < 4; r++)
        both[r] = grids.entries[at[r] / 2];
    return both >> at % 2u * 16u & 0xffffu;
}

/* Levels of two bits, quad `half_of` of eight. */
mat4 levels2(uvec4 entry, uint half_of)
{
    return fields(entry >> 8 * half_of, 2, 3u);
}

mat4 levels4(uvec4 entry)
{
    return fields(entry, 4, 7u);
}

/* Signs of which seven bits are stored: the eighth makes their number even. */
uvec4 even_signs(uvec4 seven)
{
    return seven | uvec4(bitCount(seven) & 1) << 7;
}

mat4 with_signs(mat4 sizes, uvec4 signs, uint half_of)
{
    return matrixCompMult(sizes, 1.0 - 2.0 * bits_of(signs, half_of));
}

/* Values of IQ2's levels: 8, 25, 43. */
mat4 iq2_values(uvec4 entry, uint half_of)
{
    mat4 l = levels2(entry, half_of);
    [[unroll]] for (uint j = 0; j < 4; j++)
        l[j] = 8.0 + 17.0 * l[j] + step(2.0, l[j]);
    return l;
}

/* Values of IQ3_XXS's levels: 4, 12, 20 up to 52, 62. */
mat4 iq3_values(uvec4 entry)
{
    mat4 l = levels4(entry);
    [[unroll]] for (uint j = 0; j < 4; j++)
        l[j] = 4.0 + 8.0 * l[j] + 2.0 * step(7.0, l[j]);
    return l;
}

/* Levels of IQ1, less 7/8 or 9/8. */
mat4 iq1_quad(uvec4 index, uvec4 is_more, uint half_of)
{
    mat4 l = levels2(grid_entry(GRID_IQ1, index), half_of);
    vec4 less = mix(vec4(0.875), vec4(1.125), notEqual(is_more, uvec4(0)));
    return l - mat4(less, less, less, less);
}

/* The word of sixteen bits that IQ1_S keeps for a unit. */
uvec4 iq1s_high()
{
    return vec(8 + unit_sub / 2) >> unit_sub % 2 * 16 & 0xffffu;
}

/* Word w of IQ1_M's scales. */
uvec4 iq1m_word(uint w)
{
    return vec(12 + w / 2) >> w % 2 * 16 & 0xffffu;
}

/* d * (0.5 + s) * by */
vec4 grid_scale(vec4 d, uvec4 s, float by)
{
    return d * (0.5 + vec4(s)) * by;
}

void begin_grid()
{
    if (TYPE == IQ2_XXS) {
        vec4 d = grid_scale(halves_to_floats(tail(16)), vec(2 * unit_sub + 1) >> 28, 0.25);
        set_scales(d, d);
    } else if (TYPE == IQ2_XS || TYPE == IQ2_S) {
        const uint n_vec = TYPE == IQ2_XS ? 18 : 20;
        uvec4 s = byte_at(n_vec - 2, unit_sub);
        vec4 d = halves_to_floats(tail(n_vec));
        set_scales(grid_scale(d, s & 15u, 0.25), grid_scale(d, s >> 4, 0.25));
    } else if (TYPE == IQ3_XXS) {
        vec4 d = grid_scale(halves_to_floats(tail(24)), vec(16 + unit_sub) >> 28, 0.5);
        set_scales(d, d);
    } else if (TYPE == IQ3_S) {
        uvec4 s = byte_at(26, unit_sub / 2) >> unit_sub % 2 * 4 & 15u;
        vec4 d = halves_to_floats(tail(27)) * vec4(1u + 2u * s);
        set_scales(d, d);
    } else if (TYPE == IQ1_S) {
        vec4 d = halves_to_floats(tail(12)) * vec4(2u * (iq1s_high() >> 12 & 7u) + 1u);
        set_scales(d, d);
    } else if (TYPE == IQ1_M) {
        uvec4 s = iq1m_word(unit_sub / 2) >> unit_sub % 2 * 6;
        vec4 d = halves_to_floats(iq1m_word(0) >> 12 | iq1m_word(1) >> 12 << 4 | iq1m_word(2) >> 12 << 8 |
                                  iq1m_word(3) >> 12 << 12);
        set_scales(d * vec4(2u * (s & 7u) + 1u), d * vec4(2u * (s >> 3 & 7u) + 1u));
    }
}

/* As quad. */
mat4 grid_quad(uint i)
{
    uint of8 = i / 2, half_of = i % 2; /* of the unit's eights; of its weights */
    switch (TYPE) {
    case IQ2_XXS: {
        uvec4 entry = grid_entry(GRID_IQ2_XXS, byte_of(vec(2 * unit_sub), of8));
        uvec4 signs = even_signs(vec(2 * unit_sub + 1) >> 7 * of8 & 127u);
        return with_signs(iq2_values(entry, half_of), signs, half_of);
    }
    case IQ2_XS: {
        uvec4 code = vec(2 * unit_sub + of8 / 2) >> of8 % 2 * 16 & 0xffffu;
        uvec4 entry = grid_entry(GRID_IQ2_XS, code & 511u);
        return with_signs(iq2_values(entry, half_of), even_signs(code >> 9), half_of);
    }
    case IQ2_S: {
        uvec4 index = byte_of(vec(unit_sub), of8) | (byte_at(16, unit_sub) >> 2 * of8 & 3u) << 8;
        return with_signs(iq2_values(grid_entry(GRID_IQ2_S, index), half_of), byte_of(vec(8 + unit_sub), of8), half_of);
    }
    case IQ3_XXS: {
        uvec4 entry = grid_entry(GRID_IQ3_XXS, byte_of(vec(2 * unit_sub + i / 4), i));
        return with_signs(iq3_values(entry), even_signs(vec(16 + unit_sub) >> 7 * of8 & 127u), half_of);
    }
    case IQ3_S: {
        uvec4 index = byte_of(vec(2 * unit_sub + i / 4), i) | (byte_at(16, unit_sub) >> i & 1u) << 8;
        mat4 l = levels4(grid_entry(GRID_IQ3_S, index));
        return with_signs(1.0 + 2.0 * l, byte_of(vec(18 + unit_sub), of8), half_of);
    }
    case IQ1_S: {
        uvec4 high = iq1s_high();
        return iq1_quad(byte_of(vec(unit_sub), of8) | (high >> 3 * of8 & 7u) << 8, high >> 15, half_of);
    }
    default: { /* IQ1_M */
        uvec4 high = byte_at(8, 2 * unit_sub + of8 / 2) >> of8 % 2 * 4;
        return iq1_quad(byte_of(vec(unit_sub), of8) | (high & 7u) << 8, high & 8u, half_of);
    }
    }
}
