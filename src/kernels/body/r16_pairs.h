/* Panels of two vectors of rows, multiplied by a tile of tokens together: each activation is broadcast once for both,
 * and their sums are enough to keep the units busy. Included by r16_template.h. */
#ifndef KERNELS_BODY_R16_PAIRS_H
#define KERNELS_BODY_R16_PAIRS_H

/* parts[g][t] += vectors [first, first + n_vec) of block j of panel g times the activations at q[t] */
KERNELS_ALWAYS_INLINE void r16_pair_dots(vi parts[2][TILE], const struct r16_panel *p, int j, int first, int n_vec,
                                         const int8_t *const q[], int n_tok)
{
    KERNELS_UNROLL
    for (int i = first; i < first + n_vec; i++) {
        vi a = vi_held(p[0].w[8 * j + i]), b = vi_held(p[1].w[8 * j + i]);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            dot_both(&parts[0][t], &parts[1][t], a, b, q[t] + 4 * i);
    }
}

/* s[g][t] += the sums of sub-block j of panel g, or of its two halves, times their scales. */
KERNELS_ALWAYS_INLINE void r16_pair_sub(struct r16_sums256 out[2], const struct r16_panel *p, enum quant_type type,
                                        int j, const struct r16_acts *x, const struct r16_sums *sums, int n_tok)
{
    bool is_iq4xs = type == QUANT_IQ4_XS;
    int n_part = r16_subs_of_32(type) && !dot_in_words(type) ? 1 : 2;
    const int8_t *q[TILE];
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        q[t] = x->q[t] + 32 * j;
    KERNELS_UNROLL
    for (int c = 0; c < n_part; c++) {
        vi parts[2][TILE];
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            parts[0][t] = parts[1][t] = is_iq4xs           ? dot_start_iq4xs(sums->of_32[t][j])
                                        : dot_offset(type) ? vi_bcast(sums->start[t] + 2 * j + c)
                                                           : vi_set1(0);
        r16_pair_dots(parts, p, j, 8 / n_part * c, 8 / n_part, q, n_tok);
        KERNELS_UNROLL
        for (int g = 0; g < 2; g++) {
            vi scale = is_iq4xs ? r16_iq4xs_scale(&p[g].sub, j) : p[g].scales[r16_subs_of_32(type) ? j : 2 * j + c];
            KERNELS_UNROLL
            for (int t = 0; t < n_tok; t++)
                out[g].s[t] = dot_add_scaled(out[g].s[t], parts[g][t], scale, type);
        }
    }
}

/* acc0[t] and acc1[t] += the products of both panels, of a format of 256, with token t. */
KERNELS_ALWAYS_INLINE void r16_pair_256(const struct r16_panel *p, enum quant_type type, const struct r16_acts *x,
                                        struct r16_prefetch *prefetch, vf *acc0, vf *acc1, int n_tok)
{
    struct r16_sums256 out[2];
    struct r16_sums sums;
    r16_sums_load(&sums, x, type, n_tok);
    KERNELS_UNROLL
    for (int t = 0; t < n_tok; t++)
        out[0].s[t] = out[1].s[t] = vi_set1(0);
    for (int j = 0; j < 8; j++) {
        r16_prefetch_lines(&prefetch[0]);
        r16_prefetch_lines(&prefetch[1]);
        r16_pair_sub(out, p, type, j, x, &sums, n_tok);
    }
    KERNELS_UNROLL
    for (int g = 0; g < 2; g++) {
        if (r16_has_min256(type))
            r16_dot_sums(x, &sums, p[g].sub.min, out[g].m, type, false, n_tok);
        r16_add_block(g ? acc1 : acc0, &out[g], &p[g].scale256, type, x, n_tok);
    }
}

/* The same for n_block blocks of 32. Moves x behind them. */
KERNELS_ALWAYS_INLINE void r16_pair_32(const struct r16_panel *p, enum quant_type type, int n_block, struct r16_acts *x,
                                       struct r16_prefetch *prefetch, vf *acc0, vf *acc1, int n_tok)
{
    for (int j = 0; j < n_block; j++) {
        struct r16_acts again = *x;
        vi parts[2][TILE];
        r16_prefetch_lines(&prefetch[0]);
        r16_prefetch_lines(&prefetch[1]);
        KERNELS_UNROLL
        for (int t = 0; t < n_tok; t++)
            parts[0][t] = parts[1][t] = dot_start_32(type, x->sum[t], x->parts[t]);
        r16_pair_dots(parts, p, j, 0, 8, x->q, n_tok);
        r16_add_32(acc0, parts[0], &p[0].scale32[j], type, &again, n_tok);
        r16_add_32(acc1, parts[1], &p[1].scale32[j], type, x, n_tok);
    }
}

#endif
