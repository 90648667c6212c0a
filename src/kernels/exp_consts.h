/* The constants of our exp, tanh and softplus, shared by the scalar and the vector code so that both give the same
 * bits.
 *
 * exp(x): n = rint(x / ln 2), r = x - n ln 2 in two steps, e^r = 1 + (r + r^2 P(r)), times 2^n in two factors
 * so that subnormal results round once. P is a minimax fit of (e^r - 1 - r) / r^2 over |r| <= ln 2 / 2.
 * tanh(x): x + x^3 P(x^2) below 0.625 (a minimax fit), 1 - 2 / (exp(2 |x|) + 1) with the sign of x above.
 * softplus(x): max(x, 0) + log(1 + y), y = exp(-|x|). log(1 + f) = f + s (f^2 / 2 + R) - f^2 / 2 with s = f / (2 + f)
 * and R = s^2 P(s^2), the first terms of its series; f = y or, of y above sqrt(2) - 1, (y - 1) / 2, whose logarithm is
 * smaller by ln 2. */
#ifndef KERNELS_EXP_CONSTS_H
#define KERNELS_EXP_CONSTS_H

#define EXP_MIN     (-104.0f) /* below: 0 */
#define EXP_MAX     89.0f     /* above: infinity */
#define EXP_LOG2E   0x1.715476p+0f
#define EXP_ROUND   0x1.8p+23f /* adding it leaves the nearest integer in the low bits */
#define EXP_LN2_HI  0x1.62e4p-1f
#define EXP_LN2_LO  0x1.7f7d1cp-20f
#define EXP_P0      0x1.fffffcp-2f
#define EXP_P1      0x1.555490p-3f
#define EXP_P2      0x1.5558f4p-5f
#define EXP_P3      0x1.123a6cp-7f
#define EXP_P4      0x1.6a234ep-10f
#define TANH_SMALL  0.625f
#define TANH_P0     -0x1.555532p-2f
#define TANH_P1     0x1.110726p-3f
#define TANH_P2     -0x1.b83c5ap-5f
#define TANH_P3     0x1.52269ap-6f
#define TANH_P4     -0x1.75e1c2p-8f
#define LOG1P_LARGE 0x1.a8279ap-2f /* sqrt(2) - 1 */
#define LOG1P_LN2   0x1.62e43p-1f
#define LOG1P_P0    (2.0f / 3)
#define LOG1P_P1    (2.0f / 5)
#define LOG1P_P2    (2.0f / 7)
#define LOG1P_P3    (2.0f / 9)
#define GELU_C0     -0x1.988454p+0f /* -2 sqrt(2 / pi) */
#define GELU_C1     -0x1.2444f2p-4f /* the same times 0.044715 */
#define OAI_ALPHA   1.702f
#define OAI_LIMIT   7.0f
#define ROUND_MAGIC 0x1.8p+23f /* rounds |x| < 2^22 to an integer, ties to even */

#endif
