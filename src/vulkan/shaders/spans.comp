#version 460
#extension GL_GOOGLE_include_directive : require
/* The spans of ATTENTION, folded in ascending order: a workgroup takes a head of a token. */
#include "common.glsl"
#include "softmax.glsl"

layout(push_constant) uniform Push {
    Floats spans; /* [n_span] of dv values, maximum, sum, for each head of each token */
    Ints pos;
    Floats out_, sinks;
    uint n_head, dv, window, is_chunked, n_span;
} p;

const int SPAN = 512;

void main()
{
    uint head = gl_WorkGroupID.x, t = gl_WorkGroupID.y, row = t * p.n_head + head;
    int pos = p.pos.d[t], window = int(p.window), first = 0;
    if (window != 0)
        first = p.is_chunked != 0 ? pos / window * window : max(pos - window + 1, 0);
    int n = pos / SPAN - first / SPAN + 1;
    for (uint j = gl_LocalInvocationID.x; j < p.dv; j += gl_WorkGroupSize.x) {
        uint at = row * p.n_span * (p.dv + 2);
        Softmax whole = Softmax(p.spans.d[at + p.dv], p.spans.d[at + p.dv + 1]);
        float value = p.spans.d[at + j];
        for (int i = 1; i < n; i++) {
            at += p.dv + 2;
            vec2 f = fold(whole, Softmax(p.spans.d[at + p.dv], p.spans.d[at + p.dv + 1]));
            value = fold_value(f, value, p.spans.d[at + j]);
        }
        if (!is_null(p.sinks)) {
            vec2 f = fold(whole, Softmax(p.sinks.d[head], 1));
            value = fold_value(f, value, 0);
        }
        precise float inverse = 1.0 / whole.sum;
        precise float y = value * inverse;
        p.out_.d[row * p.dv + j] = y;
    }
}
