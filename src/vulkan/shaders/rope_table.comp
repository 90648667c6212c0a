#version 460
#extension GL_GOOGLE_include_directive : require
/* ROPE_TABLE: a thread computes a cosine and a sine. The host gives each pair's frequency in turns a position, as a
 * fraction of 2^64: times a position, modulo a whole turn, it is exact, and no shader needs double precision. */
#include "common.glsl"

layout(push_constant) uniform Push {
    Ints pos;
    Addresses turns; /* [n_rot / 2] low and high half */
    Floats y;
    uint n_pair, m;
    float magnitude, temperature;
    int span, shift;
    float sign; /* of angles: -1 turns back */
} p;

const float TAU_16 = 0.39269908169872414; /* a sixteenth of a turn */

/* ln n for a whole number, within an ulp or two: n = 2^e (1 + f), f in [-0.29, 0.42) */
float log_of(uint n)
{
    int e = findMSB(n);
    precise float m = float(n) * uintBitsToFloat(uint(127 - e) << 23);
    if (m > 1.41421356) {
        m *= 0.5;
        e++;
    }
    precise float f = m - 1.0, s = f / (2.0 + f), z = s * s;
    precise float r = fma(z, fma(z, fma(z, 0.2222222, 0.2857143), 0.4), 0.66666668) * z;
    precise float log1p = f - (0.5 * f * f - s * (0.5 * f * f + r));
    return fma(float(e), 0.693359375, fma(float(e), -2.12194440e-4, log1p));
}

void main()
{
    uint i = gl_GlobalInvocationID.x, t = row_of_group();
    if (i >= p.n_pair || t >= p.m)
        return;
    uint pos = uint(p.pos.d[t]), high, low;
    uvec2 turn = p.turns.d[i];
    umulExtended(turn.x, pos, high, low);
    uint angle = turn.y * pos + high; /* in turns of 2^32 */
    uint octant = (angle + 0x10000000u) >> 29;
    int rest = int(angle - (octant << 29)); /* -1/16 to 1/16 of a turn */
    precise float x = float(rest) * (6.283185307179586 / 4294967296.0), z = x * x;
    precise float sine = fma(fma(fma(z, -1.9515295891e-4, 8.3321608736e-3), z, -1.6666654611e-1) * z, x, x);
    precise float cosine =
        fma(fma(fma(z, 2.443315711809948e-5, -1.388731625493765e-3), z, 4.166664568298827e-2) * z, z, fma(z, -0.5, 1.0));
    const float r = 0.70710678118654752;
    uint quarter = octant / 2;
    if (octant % 2 == 1) { /* an eighth of a turn further */
        precise float c = (cosine - sine) * r;
        sine = (cosine + sine) * r;
        cosine = c;
    }
    vec2 cs = quarter == 0   ? vec2(cosine, sine)
              : quarter == 1 ? vec2(-sine, cosine)
              : quarter == 2 ? vec2(-cosine, -sine)
                             : vec2(sine, -cosine);
    precise float size = p.magnitude;
    if (p.temperature != 0)
        size *= 1.0 + p.temperature * log_of(uint((int(pos) + p.shift) / p.span) + 1);
    uint at = 2 * (t * p.n_pair + i);
    p.y.d[at] = cs.x * size;
    p.y.d[at + 1] = cs.y * p.sign * size;
}
