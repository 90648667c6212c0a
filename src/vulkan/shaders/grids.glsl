/* The types of codebooks, IQ1, IQ2 and IQ3: an index stands for the levels of eight (IQ3: four) weights
 * (quant/quant_grids.h). The codebooks lie one behind the other in the only buffer that is bound (vk_grids.c). */
layout(set = 0, binding = 0, std430) readonly buffer Grids {
    uint entries[]; /* two in each */
} grids;

const uint GRID_IQ1 = 0, GRID_IQ2_XXS = 2048, GRID_IQ2_XS = 2304, GRID_IQ2_S = 2816, GRID_IQ3_XXS = 3840,
           GRID_IQ3_S = 4096; /* the first entry of each; vk_grids.c */

uint grid_entry(uint grid, uint i)
{
    uint at = grid + i;
    return grids.entries[at / 2] >> at % 2 * 16 & 0xffffu;
}

/* Levels of two bits, quad `half_of` of eight. */
vec4 levels2(uint entry, uint half_of)
{
    uint e = entry >> 8 * half_of;
    return vec4(uvec4(e, e >> 2, e >> 4, e >> 6) & 3u);
}

vec4 levels4(uint entry)
{
    return vec4(uvec4(entry, entry >> 4, entry >> 8, entry >> 12) & 7u);
}

/* Signs of which seven bits are stored: the eighth makes their number even. */
uint even_signs(uint seven)
{
    return seven | (bitCount(seven) & 1u) << 7;
}

vec4 with_signs(vec4 sizes, uint signs, uint half_of)
{
    return sizes * (1.0 - 2.0 * bits_of(signs, half_of));
}

/* Values of IQ2's levels: 8, 25, 43. */
vec4 iq2_values(uint entry, uint half_of)
{
    vec4 l = levels2(entry, half_of);
    return 8.0 + 17.0 * l + step(2.0, l);
}

/* The word of sixteen bits that IQ1_S keeps for a unit. */
uint iq1s_high()
{
    return vec(8 + unit_sub / 2) >> unit_sub % 2 * 16 & 0xffffu;
}

/* Word w of IQ1_M's scales. */
uint iq1m_word(uint w)
{
    return vec(12 + w / 2) >> w % 2 * 16 & 0xffffu;
}

/* d * (0.5 + s) * by */
float grid_scale(float d, uint s, float by)
{
    return d * (0.5 + float(s)) * by;
}

void begin_grid()
{
    if (TYPE == IQ2_XXS) {
        float d = grid_scale(half_to_float(tail(16)), vec(2 * unit_sub + 1) >> 28, 0.25);
        set_scales(d, d, 0, 0);
    } else if (TYPE == IQ2_XS || TYPE == IQ2_S) {
        const uint n_vec = TYPE == IQ2_XS ? 18 : 20;
        uint s = byte_at(n_vec - 2, unit_sub);
        float d = half_to_float(tail(n_vec));
        set_scales(grid_scale(d, s & 15, 0.25), grid_scale(d, s >> 4, 0.25), 0, 0);
    } else if (TYPE == IQ3_XXS) {
        float d = grid_scale(half_to_float(tail(24)), vec(16 + unit_sub) >> 28, 0.5);
        set_scales(d, d, 0, 0);
    } else if (TYPE == IQ3_S) {
        float d = half_to_float(tail(27)) * float(1 + 2 * (byte_at(26, unit_sub / 2) >> unit_sub % 2 * 4 & 15));
        set_scales(d, d, 0, 0);
    } else if (TYPE == IQ1_S) {
        float d = half_to_float(tail(12)) * float(2 * (iq1s_high() >> 12 & 7) + 1);
        set_scales(d, d, 0, 0);
    } else if (TYPE == IQ1_M) {
        uint s = iq1m_word(unit_sub / 2) >> unit_sub % 2 * 6;
        float d = half_to_float(iq1m_word(0) >> 12 | iq1m_word(1) >> 12 << 4 | iq1m_word(2) >> 12 << 8 |
                                iq1m_word(3) >> 12 << 12);
        set_scales(d * float(2 * (s & 7) + 1), d * float(2 * (s >> 3 & 7) + 1), 0, 0);
    }
}

/* Weights 4 i to 4 i + 3 of the unit in units of its scale. */
vec4 grid_quad(uint i)
{
    uint of8 = i / 2, half_of = i % 2; /* of the unit's eights; of its weights */
    switch (TYPE) {
    case IQ2_XXS: {
        uint entry = grid_entry(GRID_IQ2_XXS, byte_of(vec(2 * unit_sub), of8));
        uint signs = even_signs(vec(2 * unit_sub + 1) >> 7 * of8 & 127);
        return with_signs(iq2_values(entry, half_of), signs, half_of);
    }
    case IQ2_XS: {
        uint code = vec(2 * unit_sub + of8 / 2) >> of8 % 2 * 16 & 0xffffu;
        return with_signs(iq2_values(grid_entry(GRID_IQ2_XS, code & 511), half_of), even_signs(code >> 9), half_of);
    }
    case IQ2_S: {
        uint index = byte_of(vec(unit_sub), of8) | (byte_at(16, unit_sub) >> 2 * of8 & 3) << 8;
        return with_signs(iq2_values(grid_entry(GRID_IQ2_S, index), half_of), byte_of(vec(8 + unit_sub), of8), half_of);
    }
    case IQ3_XXS: {
        vec4 l = levels4(grid_entry(GRID_IQ3_XXS, byte_of(vec(2 * unit_sub + i / 4), i)));
        uint signs = even_signs(vec(16 + unit_sub) >> 7 * of8 & 127);
        return with_signs(4.0 + 8.0 * l + 2.0 * step(7.0, l), signs, half_of);
    }
    case IQ3_S: {
        uint index = byte_of(vec(2 * unit_sub + i / 4), i) | (byte_at(16, unit_sub) >> i & 1) << 8;
        vec4 l = levels4(grid_entry(GRID_IQ3_S, index));
        return with_signs(1.0 + 2.0 * l, byte_of(vec(18 + unit_sub), of8), half_of);
    }
    case IQ1_S: {
        uint high = iq1s_high(), index = byte_of(vec(unit_sub), of8) | (high >> 3 * of8 & 7) << 8;
        return levels2(grid_entry(GRID_IQ1, index), half_of) - (high >> 15 != 0 ? 1.125 : 0.875);
    }
    default: { /* IQ1_M */
        uint high = byte_at(8, 2 * unit_sub + of8 / 2) >> of8 % 2 * 4;
        uint index = byte_of(vec(unit_sub), of8) | (high & 7) << 8;
        return levels2(grid_entry(GRID_IQ1, index), half_of) - ((high & 8) != 0 ? 1.125 : 0.875);
    }
    }
}
