/* CPU kernels behind one table, chosen at run time.
 *
 * A kernel computes and does nothing else: it never allocates, fails, locks or starts threads; callers split
 * work over rows, tokens and heads. The scalar table (plain C) fills every entry, wider instruction sets
 * overwrite entries. All of them follow docs/numerics.md, so every table but the reference gives the same
 * bits; the reference table (float activations, dequantised weights, sums in double) is what they are
 * measured against. The table is constant and may be shared between threads. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/cpu.h"
#include "quant/layout.h"
#include "quant/quant.h"

/* m rows of k activations, as the products take them. Exactly one kind is filled:
 *   FLOAT     f32: [m][k]
 *   INT8_32   q: int8 [m][k];  d: float [m][k/32], x ~ d * q;   sum: int16 [m][4][k/32], sums of q over each 32
 *   INT8_256  q: int8 [m][k];  d: float [m][k/256];             sum: int16 [m][3][k/16], sums of q over each 16
 * Behind a row's sums stand their two parts, beside each other: of elements 0 and 1 of every four, and of 2 and 3. Dots
 * in words of 16 bits begin there. INT8_32 has the sums over the first 16 of each 32 behind them. All arrays are
 * 64-byte aligned at row 0; rows of q are kernel_act_q_stride apart. */
struct kernel_act {
    enum quant_act kind;
    int64_t k;
    const float *f32;
    const int8_t *q;
    const float *d;
    const int16_t *sum;
};

/* Bytes from a row of q to the next: an odd number of lines, so that rows don't meet in few sets of the caches. */
static inline int64_t kernel_act_q_stride(int64_t k)
{
    return ((k + 63) / 64 | 1) * 64;
}

/* How many scales and sums of all kinds a row of k activations has (0 for FLOAT). */
static inline int64_t kernel_act_n_scale(enum quant_act kind, int64_t k)
{
    return kind == QUANT_ACT_INT8_32 ? k / 32 : kind == QUANT_ACT_INT8_256 ? k / 256 : 0;
}
static inline int64_t kernel_act_n_sum(enum quant_act kind, int64_t k)
{
    return kind == QUANT_ACT_INT8_32 ? k / 32 * 4 : kind == QUANT_ACT_INT8_256 ? k / 16 * 3 : 0;
}

/* Where weights that will be needed soon are asked for. It decides speed alone, never a bit of the results. */
enum kernel_cache {
    KERNEL_CACHE_L1,
    KERNEL_CACHE_L2,  /* and no nearer */
    KERNEL_CACHE_NTA, /* L1, and out of it soon: non-temporal */
    KERNEL_CACHE_BOTH /* L2 and, KERNEL_NEAR_BYTES ahead, L1: more lines are on their way than L1 can wait for */
};
enum { KERNEL_NEAR_BYTES = 1536 };
struct kernel_prefetch {
    int32_t ahead_bytes; /* of the weights in hand; 0: nothing is asked for */
    enum kernel_cache to;
};

/* How a product goes about its work; its results are the same to the bit. */
struct kernel_how {
    struct kernel_prefetch prefetch; /* of the weights; kernels may leave it unused */
    int32_t tiles_from; /* so many tokens and more go to the matrix unit, where there is one (peak_tiles); 0: none do */
    int32_t panels_from; /* so many tokens and more meet weights that are unpacked once for all, where kernels can do
                            that and they are more than a tile; 0: none do */
};

/* y[t * ldy + row] = W[row] . x[t] for row in [row0, row1) and t in [0, m); overwrites.
 * w: the whole packed matrix, in the table's layout for the type. row0: a multiple of 16; row1: a multiple of
 * 16 or n_row, the matrix's row count. An element's bits depend on its weight row and activation row alone.
 * In R16, kernels may compute the padding rows of the last group but must not store them. */
struct kernel_matmul {
    const void *w;
    int64_t k, n_row, row0, row1;
    const struct kernel_act *x;
    int64_t m;
    float *y;
    int64_t ldy;
    struct kernel_how how;
};
typedef void kernel_matmul_fn(const struct kernel_matmul *a);

enum kernel_act_fn {
    KERNEL_SILU,         /* x / (1 + exp(-x)) */
    KERNEL_GELU,         /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    KERNEL_SIGMOID,      /* 1 / (1 + exp(-x)) */
    KERNEL_SWIGLU_OAI,   /* gpt-oss, of g = min(x, 7) and u = clamp(up, -7, 7): g / (1 + exp(-1.702 g)) * (u + 1) */
    KERNEL_NO_ACT,       /* x */
    KERNEL_RELU,         /* max(x, 0) */
    KERNEL_SOFTPLUS,     /* log(1 + exp(x)) */
    KERNEL_SILU_CLAMPED, /* KERNEL_SILU of min(x, limit); without a limit the same */
    KERNEL_N_ACT_FN
};

/* y[i] = act(bias[i] + sum over taps j, ascending, of w[j * ld_w + i] * x[j][i]), for n channels i. */
struct kernel_conv {
    const float *const *x; /* [n_tap] rows of n */
    const float *w;        /* n_tap rows of n, ld_w apart */
    const float *bias;     /* [n], or NULL: zeros */
    int64_t ld_w, n_tap, n;
    bool has_silu; /* act is SiLU; else there is none */
};

enum kernel_rope {
    KERNEL_ROPE_NORMAL, /* rotates pairs (x[2i], x[2i+1]) */
    KERNEL_ROPE_NEOX,   /* rotates pairs (x[i], x[i + n_rot/2]) */
};

/* The gated delta rule (arXiv 2412.06464) or a state space (Mamba-2, arXiv 2405.21060) over n tokens, for n_dim value
 * dimensions of a head. */
struct kernel_recurrence {
    int64_t n, n_dim, dk;
    const float *decay; /* one a token, ld_decay apart, or [dk] */
    const float *beta;  /* one a token, ld_beta apart */
    const float *q, *k; /* [dk] a token, ld_qk apart; of the delta rule of length 1, q scaled */
    const float *v;     /* [n_dim] a token, ld_v apart, like o */
    float *o;
    int64_t ld_decay, ld_beta, ld_qk, ld_v;
    bool decays_by_dim; /* of the delta rule (KDA, arXiv 2510.26692): decay is [dk], one for each key dimension */
    float skip;         /* of a state space: how much of v goes past the state */
};

/* A selective state space (Mamba, arXiv 2312.00752) over n tokens, for n_dim value dimensions, each of which has steps
 * of its own. */
struct kernel_scan {
    int64_t n, n_dim, dk;
    const float *a;     /* [n_dim][dk]: times a step, the logarithm of a decay */
    const float *skip;  /* [n_dim], how much of v goes past the state */
    const float *q, *k; /* [dk] a token, ld_qk apart */
    const float *step;  /* [n_dim] a token, ld_v apart, like v and o */
    const float *v;
    float *o;
    int64_t ld_qk, ld_v;
};

enum { KERNEL_ATTN_BLOCK = 64, KERNEL_ATTN_QUERIES = 16 };

/* n_q queries (1..KERNEL_ATTN_QUERIES) against n consecutive positions (1..KERNEL_ATTN_BLOCK) of one KV head: of each
 * a partial softmax, for attn_merge:
 *   s_i = softcap(scale * q . k_i);  max = max s_i;  w_i = exp(s_i - max);  sum = sum w_i;
 *   o[d] = sum_i w_i v_i[d], i ascending.
 * Blocks cover [i * BLOCK, (i + 1) * BLOCK) of absolute positions. softcap(s): c * tanh(s / c), or s for softcap 0. */
struct kernel_attn {
    const float *const *q; /* [n_q], each hd_k long */
    int n_q;
    const void *k, *v; /* n rows of hd_k and of hd_v, without gaps */
    int64_t hd_k, hd_v, n;
    float scale, softcap;
    float *max, *sum;        /* [n_q] */
    float *o;                /* [n_q][hd_v] */
    const void *prefetch[2]; /* keys and values that will be read next, or NULL */
    int64_t prefetch_bytes[2];
};

struct kernels {
    const char *name;

    /* Products, indexed by quant type; NULL where the type id is unknown. matmul[t] reads weights in layout[t] and
     * takes activations of the kind that kernels_act says. */
    kernel_matmul_fn *matmul[QUANT_MAX_ID];
    enum quant_layout layout[QUANT_MAX_ID];
    bool takes_floats; /* activations are never rounded */

    layout_put_fn *r16_put; /* for layout_pack; NULL: plain C */

    /* Rounds one row of k activations. k: a multiple of 32 or 256. NaN and infinity give unspecified finite
     * q. */
    void (*quantize_int8_32)(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum);
    void (*quantize_int8_256)(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum);

    /* y = x / sqrt(mean(x^2) + eps) * w over n elements; w may be NULL (all ones); y may be x. */
    void (*rms_norm)(float *y, const float *x, const float *w, int64_t n, float eps);
    /* The sum of x * w over n elements, over sqrt(mean(x^2) + eps). */
    float (*norm_dot)(const float *x, const float *w, int64_t n, float eps);
    /* y = act(gate) * up (SWIGLU_OAI: as above); y may be gate or up. limit: 0, or of SILU that of both factors,
     * min(act(gate), limit) * clamp(up, -limit, limit). */
    void (*act_mul)(enum kernel_act_fn fn, float limit, float *y, const float *gate, const float *up, int64_t n);
    /* SiTU: y = bound * tanh(gate / bound) / (1 + exp(-gate)) * (up_bound * tanh(up / up_bound)), or with up as it is
     * where up_bound is 0; y may be gate or up. */
    void (*situ)(float bound, float up_bound, float *y, const float *gate, const float *up, int64_t n);
    void (*add)(float *y, const float *a, const float *b, int64_t n);            /* y = a + b; y may be either */
    void (*fma_scalar)(float *y, const float *x, float a, int64_t n);            /* y = fma(a, x, y) */
    void (*exp_sum)(float *y, const float *x, float max, int64_t n, float *sum); /* y = exp(x - max), their sum */
    void (*conv)(float *y, const struct kernel_conv *a);
    /* For each token and dimension: s *= decay;  s += k * ((v - s . k) * beta);  o = s . q. s: [n_dim][dk]; o may
     * be v. */
    void (*delta_rule)(float *s, const struct kernel_recurrence *a);
    /* The same with s = s * decay + k * (v * beta);  o = s . q + skip * v. */
    void (*state_space)(float *s, const struct kernel_recurrence *a);
    /* The same with a decay for each element of s, exp(step * a), and step in place of beta. o may be v. */
    void (*selective_scan)(float *s, const struct kernel_scan *a);
    /* Rotates the first n_rot of the elements of one head; cs: n_rot/2 pairs (cos, sin). */
    void (*rope)(enum kernel_rope mode, float *x, const float *cs, int64_t n_rot);

    void (*f32_to_f16)(uint16_t *y, const float *x, int64_t n);
    void (*f16_to_f32)(float *y, const uint16_t *x, int64_t n);
    /* To and from blocks of Q8_0 (quant/blocks.h), n a multiple of 32. The scale is max / 127 rounded to half
     * precision, and quants are multiples of the rounded scale; a block with a NaN or an infinity in it comes back as
     * NaNs. Decoding is exact: eight bits times eleven fit a float. */
    void (*f32_to_q8_0)(void *y, const float *x, int64_t n);
    void (*q8_0_to_f32)(float *y, const void *x, int64_t n);

    /* Partial softmaxes of queries that see the same positions, keys and values in F16 or F32. */
    void (*attn_block_f16)(const struct kernel_attn *a);
    void (*attn_block_f32)(const struct kernel_attn *a);
    /* Folds partials (max_b, sum_b, o_b) into (max, sum, o), for n_q (1..KERNEL_ATTN_QUERIES) queries with [hd_v] of
     * each o: with m = max(max, max_b), a = exp(max - m) and b = exp(max_b - m): o = fma(b, o_b, a * o), sum likewise,
     * max = m. A first partial is folded into max = -inf, sum = 0, o = 0. */
    void (*attn_merge)(int n_q, float *max, float *sum, float *o, const float *max_b, const float *sum_b,
                       const float *o_b, int64_t hd_v);

    /* Peak rates of this instruction set, to measure a machine by. peak_int8 and peak_float do n_round rounds of
     * multiply-adds on registers and return how many those were; peak_tiles, the same of the matrix unit that products
     * may go to (kernel_how.tiles_from), is NULL without one; peak_read reads n bytes (a multiple of 4096) from p,
     * which is 64-byte aligned, and asks for them ahead or leaves that to the processor: one machine reads faster so,
     * another one so. */
    int64_t (*peak_int8)(int64_t n_round);
    int64_t (*peak_tiles)(int64_t n_round);
    int64_t (*peak_float)(int64_t n_round);
    void (*peak_read)(const void *p, int64_t n, bool asks_ahead);
};

/* The kind of activations that products with weights of a type take. */
static inline enum quant_act kernels_act(const struct kernels *k, const struct quant_info *type)
{
    return k->takes_floats ? QUANT_ACT_FLOAT : type->act;
}

/* The table of a level (cpu_level_detect). Never NULL; constant. */
const struct kernels *kernels_for(enum cpu_level level);

/* The exact engine: float activations, weights decoded by quant/, sums in double, libm's exp. */
const struct kernels *kernels_reference(void);

#endif
