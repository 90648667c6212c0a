/* ROPE_TABLE. The frequencies are computed here, once for each kind of table, in double: what a shader multiplies by a
 * position is an exact fraction of a turn. */
#include <assert.h>
#include <math.h>

#include "vulkan/vk_ops.h"

static bool same_angles(const struct rope_angles *a, const struct rope_angles *b)
{
    return a->freq_base == b->freq_base && a->freq_scale == b->freq_scale && a->yarn == b->yarn &&
           a->yarn_low == b->yarn_low && a->yarn_high == b->yarn_high;
}

/* The frequency of pair i in turns per position, as a fraction of 2^64 without whole turns. */
static uint64_t turns_of(const struct rope_angles *a, int64_t i, int64_t n_rot, double divisor)
{
    double freq = pow(a->freq_base, -2.0 * (double)i / (double)n_rot), scale = a->freq_scale;
    if (a->yarn) {
        double ramp = ((double)i - a->yarn_low) / fmax(0.001, (double)a->yarn_high - a->yarn_low);
        ramp = fmin(1, fmax(0, ramp));
        scale = scale * ramp + (1 - ramp);
    }
    double turn = freq * scale / divisor * 0.15915494309189533577; /* 1 / (2 pi) */
    turn = turn - floor(turn);
    return turn < 1 ? (uint64_t)(turn * 0x1p64) : 0; /* it may round to 1, and a file's divisors may be anything */
}

static err_code make_turns(struct vk *v, const struct op *op, struct vk_turns *t, struct err *e)
{
    enum { MAX_PAIR = 4096 };
    float divisors[MAX_PAIR];
    uint64_t turns[MAX_PAIR];
    int64_t n = t->n_rot / 2;
    if (n > MAX_PAIR)
        return err_set(e, ERR_LIMIT, "%s: %lld rotated pairs, expected %d at most", v->base.name, (long long)n,
                       MAX_PAIR);
    if (op->vec[0].buffer)
        TRY(backend_read(&v->base, &op->vec[0], divisors, e));
    for (int64_t i = 0; i < n; i++)
        turns[i] = turns_of(&t->angles, i, t->n_rot, op->vec[0].buffer ? (double)divisors[i] : 1);
    TRY(vk_piece_take(v, VK_FOR_DEVICE, (size_t)n * sizeof *turns, "frequencies", &t->piece, e));
    vk_write_bytes(v, &t->piece, 0, turns, (size_t)n * sizeof *turns);
    return ERR_OK;
}

/* The frequencies of an operation; NULL after an error, which is remembered. */
static const struct vk_turns *find_turns(struct vk *v, const struct op *op)
{
    struct vk_turns want = {op->rope_table, op->out[0].ne[0], op->vec[0].buffer, op->vec[0].off_bytes, {0}};
    struct err e = {0};
    for (int i = 0; i < v->n_turns; i++) {
        const struct vk_turns *t = &v->turns[i];
        if (t->n_rot == want.n_rot && t->divisors == want.divisors && t->divisors_off == want.divisors_off &&
            same_angles(&t->angles, &want.angles))
            return t;
    }
    if (v->n_turns == VK_MAX_TURNS) { /* the first one makes room */
        vk_drain(v);
        vk_piece_give(v, &v->turns[0].piece);
        v->turns[0] = v->turns[--v->n_turns];
    }
    if (make_turns(v, op, &want, &e) != ERR_OK) {
        v->error = v->error.code == ERR_OK ? e : v->error;
        return NULL;
    }
    v->turns[v->n_turns] = want;
    return &v->turns[v->n_turns++];
}

void vk_op_rope_table(struct vk *v, const struct op *op)
{
    enum { GROUP = 64 };
    const struct rope_angles *a = &op->rope_table;
    const struct vk_turns *t = find_turns(v, op);
    if (!t || op->out[0].ne[0] == 0)
        return;
    const struct {
        uint64_t pos, turns, y;
        uint32_t n_pair, m;
        float magnitude, temperature;
        int32_t span, shift;
        float sign;
        uint32_t unused;
    } push = {vk_address(&op->in[0]),
              vk_piece_address(&t->piece),
              vk_address(&op->out[0]),
              (uint32_t)(op->out[0].ne[0] / 2),
              (uint32_t)op->out[0].ne[1],
              a->magnitude,
              a->temperature,
              (int32_t)a->temperature_span,
              (int32_t)a->temperature_shift,
              a->is_inverse ? -1 : 1,
              0};
    const struct vk_spread rows = vk_spread(v, push.m);
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[0]);
    vk_writes(&x, &op->out[0]);
    x.access[x.n++] = vk_access_piece(&t->piece, false);
    VK_RUN(v, VK_PROGRAM(rope_table, GROUP), push, &x, vk_groups(push.n_pair, GROUP), rows.y, rows.z,
           tensor_bytes(&op->out[0]));
}
