/* The table of encoders by type and machine, and the tables that they read. */
#include "quant/quant_encode.h"

#include <assert.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "quant/quant_encode_kt.h"
#include "quant/quant_fit.h"
#include "quant/quant_grids.h"

static void fit_book_open(struct fit_book *b, const int8_t *values, int n)
{
    *b = (struct fit_book){.n = n};
    for (int i = 0; i < n; i++) {
        b->value[i] = (float)values[i];
        b->midway[i] = i ? 0.5f * (b->value[i] + b->value[i - 1]) : 0;
    }
}

static void fit_grid_open(struct fit_grid *g, const uint16_t *entries, int n, int n_dim, const int8_t *values,
                          int n_level)
{
    *g = (struct fit_grid){.entries = entries, .values = values, .n_dim = n_dim, .n_level = n_level};
    memset(g->index, -1, sizeof g->index);
    for (int i = 0; i < n; i++) {
        uint8_t high = (uint8_t)(entries[i] >> 8);
        if (i == 0 || high != g->runs[g->n_run - 1].high) {
            g->runs[g->n_run].high = high;
            g->runs[g->n_run++].first = (uint16_t)i;
        }
        g->runs[g->n_run - 1].end = (uint16_t)(i + 1);
        int point = 0, bits = 16 / n_dim;
        for (int k = n_dim - 1; k >= 0; k--)
            point = point * n_level + (entries[i] >> bits * k & ((1 << bits) - 1));
        g->index[point] = (int16_t)i;
    }
}

err_code quant_tables_create(struct quant_tables **out, struct err *e)
{
    enum cpu_level level;
    *out = NULL;
    TRY(cpu_level_detect(&level, e));
    struct quant_tables *t = mem_alloc(sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t, "tables of the encoders");
    t->kt = kt_tables_create();
    if (!t->kt) {
        mem_free(t);
        return err_nomem(e, KT_TABLE_BYTES, "tables of the trellis formats");
    }
#if defined(__x86_64__)
    t->encoders = level >= CPU_AVX512 ? &encoders_avx512 : level >= CPU_AVX2 ? &encoders_avx2 : &encoders_generic;
#else
    t->encoders = &encoders_generic;
#endif
    fit_book_open(&t->iq4, quant_iq4_values, 16);
    fit_book_open(&t->fp4, quant_mxfp4_values, 8); /* without signs */
    fit_grid_open(&t->iq1, quant_grid_iq1, 2048, 8, quant_iq1_values, 3);
    fit_grid_open(&t->iq2_xxs, quant_grid_iq2_xxs, 256, 8, quant_iq2_values, 3);
    fit_grid_open(&t->iq2_xs, quant_grid_iq2_xs, 512, 8, quant_iq2_values, 3);
    fit_grid_open(&t->iq2_s, quant_grid_iq2_s, 1024, 8, quant_iq2_values, 3);
    fit_grid_open(&t->iq3_xxs, quant_grid_iq3_xxs, 256, 4, quant_iq3_xxs_values, 8);
    fit_grid_open(&t->iq3_s, quant_grid_iq3_s, 512, 4, quant_iq3_s_values, 8);
    *out = t;
    return ERR_OK;
}

void quant_tables_close(struct quant_tables **t)
{
    if (*t)
        kt_tables_close(&(*t)->kt);
    mem_free(*t);
    *t = NULL;
}

enum { RUN = 4096 }; /* columns whose importances are prepared at a time: a multiple of every block's length */

void quant_encode_rows(const struct quant_tables *t, const struct quant_info *q, const float *x,
                       const float *importance, void *rows, int64_t n, int64_t n_row)
{
    float w[RUN];
    int len = q->block_len;
    encode_fn *encode = t->encoders->of[q->type];
    size_t block_bytes = (size_t)q->block_bytes, row_bytes = (size_t)q->head_bytes + (size_t)(n / len) * block_bytes;
    if (q->head_bytes) {
        for (int64_t r = 0; r < n_row; r++)
            kt_encode_row(t->kt, q, x + r * n, importance, (uint8_t *)rows + (size_t)r * row_bytes, n);
        return;
    }
    assert(encode && n % len == 0 && RUN % len == 0);
    if (!importance) {
        encode(t, x, NULL, rows, (int)(n / len * n_row));
        return;
    }
    for (int64_t at = 0; at < n; at += RUN) {
        int64_t n_run = n - at < RUN ? n - at : RUN;
        fit_importances(w, importance + at, n_run, len);
        for (int64_t r = 0; r < n_row; r++)
            encode(t, x + r * n + at, w, (uint8_t *)rows + (size_t)r * row_bytes + (size_t)(at / len) * block_bytes,
                   (int)(n_run / len));
    }
}
