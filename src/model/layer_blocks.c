#include "model/layer_blocks.h"

void block_norm(const struct pass *p, const struct tensor *x, const struct tensor *w, int64_t n,
                const struct tensor *out)
{
    backend_enqueue(
        p->b,
        &(struct op){
            .kind = OP_RMS_NORM, .in = {*x}, .out = {*out}, .vec = {*w}, .norm = {.n = n, .eps = p->m->norm_eps}});
}

void block_norm_rows(const struct pass *p, const struct tensor *x, const struct tensor *w, const struct tensor *bias,
                     const struct tensor *out)
{
    backend_enqueue(p->b, &(struct op){.kind = p->m->has_layer_norms ? OP_LAYER_NORM : OP_RMS_NORM,
                                       .in = {*x},
                                       .out = {*out},
                                       .vec = {*w, *bias},
                                       .norm = {.n = p->m->n_embd, .eps = p->m->norm_eps}});
}

void block_scale(const struct pass *p, const struct tensor *x, float number, const struct tensor *factor)
{
    struct op op = {.kind = OP_SCALE, .in = {*x}, .out = {*x}, .scale = number};
    if (factor)
        op.vec[0] = *factor;
    backend_enqueue(p->b, &op);
}

void block_add(const struct pass *p, const struct tensor *x, const struct tensor *y, const struct tensor *out)
{
    backend_enqueue(p->b, &(struct op){.kind = OP_ADD, .in = {*x, *y}, .out = {*out}});
}

/* h = the mean of gated streams, which are normed for that; `mix` as of block_begin. */
static void begin_gated(const struct pass *p, const struct stream_weights *s, const struct tensor *x,
                        const struct tensor *mix, const struct tensor *norm, const struct tensor *h)
{
    const struct model *m = p->m;
    int64_t n = x->ne[1], n_stream = m->n_stream;
    const struct tensor normed = tensor_shaped(p->spare, x->ne[0], n),
                        low = tensor_shaped(p->w->stream_low, m->n_stream_rank, n),
                        gate = tensor_shaped(p->w->stream_gate, x->ne[0], n),
                        by = s->mix ? tensor_shaped(*mix, n_stream, n) : (struct tensor){0};
    block_norm(p, x, norm, m->n_embd, &normed);
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL, .in = {normed}, .out = {low, by}, .weight = {s->down, s->mix}});
    block_scale(p, &low, 1 / (float)n_stream, NULL);
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_ACT_MUL, .in = {low, low}, .out = {low}, .act = ACT_SIGMOID}); /* SiLU */
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {low}, .out = {gate}, .weight = {s->up}});
    backend_enqueue(p->b, &(struct op){.kind = OP_STREAMS_IN,
                                       .in = {[STREAMS_IN_X] = normed, [STREAMS_IN_MIX] = by, [STREAMS_IN_GATE] = gate},
                                       .out = {*h, by},
                                       .streams = {.magnitude = m->stream_magnitude}});
}

void block_residuals(const struct pass *p, const struct stream_weights *s, const struct tensor *x,
                     const struct tensor *out)
{
    backend_enqueue(p->b, &(struct op){.kind = OP_RESIDUALS,
                                       .in = {*x, p->bank},
                                       .out = {*out},
                                       .vec = {s->score},
                                       .residuals = {.n_banked = p->n_banked, .eps = p->m->norm_eps}});
}

void block_bank(const struct pass *p)
{
    int64_t n = p->m->n_embd;
    backend_enqueue(p->b, &(struct op){.kind = OP_HEADS,
                                       .in = {p->x},
                                       .out = {p->bank},
                                       .heads = {.n_head = 1,
                                                 .in_dim = n,
                                                 .n_in = n,
                                                 .out_dim = p->bank.ne[0],
                                                 .out_off = p->n_banked * n,
                                                 .n_out = n}});
    backend_clear(p->b, &p->x);
}

void block_begin(const struct pass *p, const struct stream_weights *s, const struct tensor *x, const struct tensor *mix,
                 const struct tensor *norm, const struct tensor *norm_bias, const struct tensor *h)
{
    static const struct tensor no_weights;
    const struct model *m = p->m;
    if (m->n_stream == 1) {
        if (p->n_banked)
            block_residuals(p, s, x, h);
        block_norm_rows(p, p->n_banked ? h : x, norm, norm_bias, h);
        return;
    }
    if (s->down) {
        begin_gated(p, s, x, mix, norm, h);
        return;
    }
    const struct tensor normed = tensor_shaped(p->spare, x->ne[0], x->ne[1]),
                        by = s->mix ? tensor_shaped(*mix, s->base.ne[0], x->ne[1]) : (struct tensor){0};
    if (s->mix) {
        block_norm(p, x, &no_weights, normed.ne[0], &normed);
        backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {normed}, .out = {by}, .weight = {s->mix}});
    }
    backend_enqueue(p->b, &(struct op){.kind = OP_STREAMS_IN,
                                       .in = {[STREAMS_IN_X] = *x, [STREAMS_IN_MIX] = by},
                                       .out = {*h, by},
                                       .vec = {s->scale, s->base},
                                       .streams = {m->stream_eps, m->stream_magnitude, m->n_stream_iteration}});
    block_norm_rows(p, h, norm, norm_bias, h);
}

void block_keep_normed(const struct pass *p, const struct tensor *h)
{
    if (p->m->normed_scale != 0)
        backend_enqueue(p->b, &(struct op){.kind = OP_SCALE, .in = {*h}, .out = {p->x}, .scale = p->m->normed_scale});
}

void block_end(const struct pass *p, const struct tensor *y, const struct tensor *out)
{
    int64_t n_stream = p->m->n_stream;
    if (p->m->residual_scale != 1)
        block_scale(p, y, p->m->residual_scale, NULL);
    if (n_stream == 1) {
        block_add(p, &p->x, y, out);
        return;
    }
    if (out->buffer != p->x.buffer || out->off_bytes != p->x.off_bytes)
        backend_copy(p->b, &p->x, out);
    const struct tensor mix = tensor_shaped(p->mix, p->m->n_stream_mix, y->ne[1]);
    backend_enqueue(p->b, &(struct op){.kind = OP_STREAMS_OUT,
                                       .in = {[STREAMS_OUT_Y] = *y, [STREAMS_OUT_X] = *out, [STREAMS_OUT_MIX] = mix},
                                       .out = {*out}});
}
