/* CPU kernels in a table that is chosen at run time.
 *
 * A kernel only computes: it never allocates, fails, locks or starts threads. Callers divide the work by rows, tokens
 * and heads. The scalar table (plain C) has every entry, and wider instruction sets replace some. All tables follow
 * docs/numerics.md and give the same bits, but for the reference table (float activations, dequantised weights, sums in
 * double), which the others are measured against. Tables are constant and may be shared between threads. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/cpu.h"
#include "quant/layout.h"
#include "quant/quant.h"

/* m rows of k activations, as the products take them. The kind says which arrays there are:
 *   FLOAT     f32: [m][k]
 *   INT8_32   q: int8 [m][k];  d: float [m][k/32], x ~ d * q;   sum: int16 [m][4][k/32], sums of q over each 32
 *   INT8_256  q: int8 [m][k];  d: float [m][k/256];             sum: int16 [m][3][k/16], sums of q over each 16
 * A row of `sum` begins with the sums. Behind all of them come, for each, its two parts side by side: the sum over
 * elements 0 and 1 of every four and the sum over elements 2 and 3, with which dot products in 16-bit words begin.
 * INT8_32 has, behind those, the sums over the first 16 of each 32. All arrays are 64-byte aligned at row 0; rows of q
 * are kernel_act_q_stride apart. */
struct kernel_act {
    enum quant_act kind;
    int64_t k;
    const float *f32;
    const int8_t *q;
    const float *d;
    const int16_t *sum;
};

/* Bytes from a row of q to the next: an odd number of cache lines, so that rows don't compete for a few cache sets. */
static inline int64_t kernel_act_q_stride(int64_t k)
{
    return ((k + 63) / 64 | 1) * 64;
}

/* The number of scales, and of sums in all arrays together, of a row of k activations (0 for FLOAT). */
static inline int64_t kernel_act_n_scale(enum quant_act kind, int64_t k)
{
    return kind == QUANT_ACT_INT8_32 ? k / 32 : kind == QUANT_ACT_INT8_256 ? k / 256 : 0;
}
static inline int64_t kernel_act_n_sum(enum quant_act kind, int64_t k)
{
    return kind == QUANT_ACT_INT8_32 ? k / 32 * 4 : kind == QUANT_ACT_INT8_256 ? k / 16 * 3 : 0;
}

/* The cache that weights are prefetched to. It affects speed only, never a bit of the results. */
enum kernel_cache {
    KERNEL_CACHE_L1,
    KERNEL_CACHE_L2,  /* but not L1 */
    KERNEL_CACHE_NTA, /* L1 as non-temporal data, which leaves the caches soon */
    KERNEL_CACHE_BOTH /* L2 and, KERNEL_NEAR_BYTES ahead, L1: with more lines on their way than L1 can keep track of */
};
enum { KERNEL_NEAR_BYTES = 1536 };
struct kernel_prefetch {
    int32_t ahead_bytes; /* how far ahead of the weights in use; 0: nothing is prefetched */
    enum kernel_cache to;
};

/* How a product is computed, which affects speed only, never a bit of the results. */
struct kernel_how {
    struct kernel_prefetch prefetch; /* of the weights; kernels may ignore it */
    int32_t tiles_from;              /* number of tokens from which the matrix unit is used, where there is one
                                        (peak_tiles); 0: never */
    int32_t panels_from;             /* number of tokens, more than a tile, from which weights are unpacked once for all
                                        tokens, by kernels that can do that; 0: never */
};

/* A product: y[t * ldy + row] = W[row] . x[t] for row in [row0, row1) and t in [0, m). The bits of a result depend on
 * its weight row and its activation row only. In layout R16, kernels may compute the padding rows of the last group but
 * must not store them. */
struct kernel_matmul {
    const void *w;    /* the whole packed matrix, in the table's layout for the type */
    int64_t k, n_row; /* elements of a row, and rows of the matrix */
    int64_t row0;     /* a multiple of 16 */
    int64_t row1;     /* a multiple of 16, or n_row */
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
    KERNEL_SWIGLU_OAI,   /* with up (gpt-oss): g / (1 + exp(-1.702 g)) * (u + 1), g = min(x, 7), u = clamp(up, -7, 7) */
    KERNEL_NO_ACT,       /* x */
    KERNEL_RELU,         /* max(x, 0) */
    KERNEL_SOFTPLUS,     /* log(1 + exp(x)) */
    KERNEL_SILU_CLAMPED, /* KERNEL_SILU of min(x, limit), or without a limit KERNEL_SILU */
    KERNEL_N_ACT_FN
};

/* A convolution: y[i] = act(bias[i] + sum over taps j, ascending, of w[j * ld_w + i] * x[j][i]), for n channels i. */
struct kernel_conv {
    const float *const *x; /* [n_tap] rows of n */
    const float *w;        /* n_tap rows of n, ld_w apart */
    const float *bias;     /* [n], or NULL: zeros */
    int64_t ld_w, n_tap, n;
    bool has_silu; /* act is SiLU; else the identity */
};

enum kernel_rope {
    KERNEL_ROPE_NORMAL, /* rotates pairs (x[2i], x[2i+1]) */
    KERNEL_ROPE_NEOX,   /* rotates pairs (x[i], x[i + n_rot/2]) */
};

/* The gated delta rule (arXiv 2412.06464) or a state space (Mamba-2, arXiv 2405.21060) over n tokens, for n_dim value
 * dimensions of a head. */
struct kernel_recurrence {
    int64_t n, n_dim, dk;
    const float *decay; /* for each token one number, or [dk] if decays_by_dim, ld_decay apart */
    const float *beta;  /* for each token one number, ld_beta apart */
    const float *q, *k; /* for each token [dk], ld_qk apart; the delta rule needs them of length 1, and q scaled */
    const float *v;     /* for each token [n_dim], ld_v apart */
    float *o;           /* as v */
    int64_t ld_decay, ld_beta, ld_qk, ld_v;
    bool decays_by_dim; /* for the delta rule: each key dimension has a decay of its own (KDA, arXiv 2510.26692) */
    float skip;         /* for a state space: the factor with which v is added to the result */
};

/* A selective state space (Mamba, arXiv 2312.00752) over n tokens, for n_dim value dimensions, each of which has steps
 * of its own. */
struct kernel_scan {
    int64_t n, n_dim, dk;
    const float *a;     /* [n_dim][dk]: times a step, the logarithm of a decay */
    const float *skip;  /* [n_dim]: the factor with which v is added to the result */
    const float *q, *k; /* for each token [dk], ld_qk apart */
    const float *step;  /* for each token [n_dim], ld_v apart */
    const float *v;     /* as step */
    float *o;           /* as step */
    int64_t ld_qk, ld_v;
};

enum { KERNEL_ATTN_BLOCK = 64, KERNEL_ATTN_QUERIES = 16 };

/* Attention of n_q queries (1..KERNEL_ATTN_QUERIES) to n consecutive positions (1..KERNEL_ATTN_BLOCK) of one KV head,
 * which lie in one block [i * KERNEL_ATTN_BLOCK, (i + 1) * KERNEL_ATTN_BLOCK) of absolute positions. The result is a
 * partial softmax for each query, for attn_merge:
 *   s_i = softcap(scale * q . k_i);  max = max s_i;  w_i = exp(s_i - max);  sum = sum w_i;
 *   o[d] = sum_i w_i v_i[d], i ascending.
 * softcap(s) is softcap * tanh(s / softcap), or s if softcap is 0. */
struct kernel_attn {
    const float *const *q; /* [n_q], each hd_k long */
    int n_q;
    const void *k, *v; /* n rows of hd_k and of hd_v elements, without gaps */
    int64_t hd_k, hd_v, n;
    float scale, softcap;
    float *max, *sum;        /* [n_q] */
    float *o;                /* [n_q][hd_v] */
    const void *prefetch[2]; /* keys and values that will be read next, or NULL */
    int64_t prefetch_bytes[2];
};

struct kernels {
    const char *name;

    /* Products by quant type; NULL for unknown type ids. matmul[t] takes weights in layout[t], and activations of the
     * kind that kernels_act returns. */
    kernel_matmul_fn *matmul[QUANT_MAX_ID];
    enum quant_layout layout[QUANT_MAX_ID];
    bool takes_floats; /* activations are never rounded */

    layout_put_fn *r16_put; /* for layout_pack; NULL: plain C */

    /* Round one row of k activations; k is a multiple of 32 or of 256. NaN and infinity give unspecified q. */
    void (*quantize_int8_32)(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum);
    void (*quantize_int8_256)(const float *x, int64_t k, int8_t *q, float *d, int16_t *sum);

    /* y = x / sqrt(mean(x^2) + eps) * w over n elements; w may be NULL (all ones); y may be x. */
    void (*rms_norm)(float *y, const float *x, const float *w, int64_t n, float eps);
    /* The sum of x * w over n elements, divided by sqrt(mean(x^2) + eps). */
    float (*norm_dot)(const float *x, const float *w, int64_t n, float eps);
    /* y = act(gate) * up (SWIGLU_OAI: as above); y may be gate or up. limit, with SILU and SILU_CLAMPED: 0 for none, or
     * up is clamped to [-limit, limit], and the limit is the most of act(gate) with SILU, and of gate with
     * SILU_CLAMPED. */
    void (*act_mul)(enum kernel_act_fn fn, float limit, float *y, const float *gate, const float *up, int64_t n);
    /* SiTU: y = bound * tanh(gate / bound) / (1 + exp(-gate)) * (up_bound * tanh(up / up_bound)); where up_bound is 0
     * the second factor is up. y may be gate or up. */
    void (*situ)(float bound, float up_bound, float *y, const float *gate, const float *up, int64_t n);
    void (*add)(float *y, const float *a, const float *b, int64_t n);            /* y = a + b; y may be either */
    void (*fma_scalar)(float *y, const float *x, float a, int64_t n);            /* y = fma(a, x, y) */
    void (*exp_sum)(float *y, const float *x, float max, int64_t n, float *sum); /* y = exp(x - max), and their sum */
    void (*conv)(float *y, const struct kernel_conv *a);
    /* For each token and dimension: s *= decay;  s += k * ((v - s . k) * beta);  o = s . q. s: [n_dim][dk]; o may
     * be v. */
    void (*delta_rule)(float *s, const struct kernel_recurrence *a);
    /* The same with s = s * decay + k * (v * beta);  o = s . q + skip * v. */
    void (*state_space)(float *s, const struct kernel_recurrence *a);
    /* As state_space, but with a decay exp(step * a) for each element of s, and step in place of beta. o may be v. */
    void (*selective_scan)(float *s, const struct kernel_scan *a);
    /* Rotates the first n_rot elements of one head; cs: n_rot/2 pairs (cos, sin). */
    void (*rope)(enum kernel_rope mode, float *x, const float *cs, int64_t n_rot);

    void (*f32_to_f16)(uint16_t *y, const float *x, int64_t n);
    void (*f16_to_f32)(float *y, const uint16_t *x, int64_t n);
    /* To and from blocks of Q8_0 (quant/blocks.h); n is a multiple of 32. The scale is max / 127 rounded to half
     * precision, and quants are multiples of the rounded scale; a block that contains a NaN or an infinity is decoded
     * as NaNs. Decoding is exact, as the product of 8 bits and 11 bits fits into a float. */
    void (*f32_to_q8_0)(void *y, const float *x, int64_t n);
    void (*q8_0_to_f32)(float *y, const void *x, int64_t n);

    /* Partial softmaxes of queries that see the same positions, with keys and values in F16 or F32. */
    void (*attn_block_f16)(const struct kernel_attn *a);
    void (*attn_block_f32)(const struct kernel_attn *a);
    /* Folds partial softmaxes (max_b, sum_b, o_b) into (max, sum, o), for n_q (1..KERNEL_ATTN_QUERIES) queries, whose o
     * and o_b are [hd_v] each: with m = max(max, max_b), a = exp(max - m) and b = exp(max_b - m),
     * o = fma(b, o_b, a * o), sum likewise, max = m. Before the first one is folded in, max is -inf, sum 0, o 0. */
    void (*attn_merge)(int n_q, float *max, float *sum, float *o, const float *max_b, const float *sum_b,
                       const float *o_b, int64_t hd_v);

    /* Loops that run at the peak rates of this instruction set, for measuring a machine. peak_int8 and peak_float do
     * n_round rounds of multiply-adds on registers and return how many multiply-adds these were. peak_tiles does the
     * same on the matrix unit that products may use (kernel_how.tiles_from), and is NULL if there is none. peak_read
     * reads n bytes (a multiple of 4096) from p, which must be 64-byte aligned, with or without software prefetching:
     * which of the two is faster depends on the machine. */
    int64_t (*peak_int8)(int64_t n_round);
    int64_t (*peak_tiles)(int64_t n_round);
    int64_t (*peak_float)(int64_t n_round);
    void (*peak_read)(const void *p, int64_t n, bool asks_ahead);
};

/* The kind of activations that products with weights of a type need. */
static inline enum quant_act kernels_act(const struct kernels *k, const struct quant_info *type)
{
    return k->takes_floats ? QUANT_ACT_FLOAT : type->act;
}

/* The table for a level (cpu_level_detect). Never NULL; constant. */
const struct kernels *kernels_for(enum cpu_level level);

/* The reference table: float activations, weights decoded by quant/, sums in double, libm's exp. */
const struct kernels *kernels_reference(void);

#endif
