/* What inspect says of a tensor: its type, and its values in figures. */
#include "jobs/inspect_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { PIECE_WEIGHTS = 1 << 16 }; /* decoded at a time */

struct inspect_type_text inspect_type_name(uint32_t type_id, const struct quant_info *info)
{
    struct inspect_type_text out;
    if (info)
        snprintf(out.s, sizeof out.s, "%s", info->name);
    else if (gguf_plain_type_name(type_id))
        snprintf(out.s, sizeof out.s, "%s", gguf_plain_type_name(type_id));
    else
        snprintf(out.s, sizeof out.s, "type %" PRIu32 " (unknown)", type_id);
    return out;
}

/* Sums of deviations, mergeable (Chan, Golub, LeVeque 1979), so that a large mean does not drown the spread.
 */
struct moments {
    uint64_t n;
    double mean, m2;
};

static void add_piece(struct inspect_stats *st, struct moments *m, const float *x, size_t n)
{
    uint64_t n_finite = 0;
    double sum = 0, m2 = 0;
    for (size_t i = 0; i < n; i++) {
        st->n_nan += isnan(x[i]) != 0;
        st->n_inf += isinf(x[i]) != 0;
        if (!isfinite(x[i]))
            continue;
        double v = (double)x[i];
        st->min = m->n + n_finite == 0 || v < st->min ? v : st->min;
        st->max = m->n + n_finite == 0 || v > st->max ? v : st->max;
        n_finite++;
        sum += v;
    }
    if (n_finite == 0)
        return;
    double mean = sum / (double)n_finite;
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            m2 += ((double)x[i] - mean) * ((double)x[i] - mean);
    double n_all = (double)(m->n + n_finite), delta = mean - m->mean;
    m->m2 += m2 + delta * delta * (double)m->n * (double)n_finite / n_all;
    m->mean += delta * (double)n_finite / n_all;
    m->n += n_finite;
}

err_code inspect_measure_tensor(struct inspect_stats *out, struct store *s, const struct gguf_tensor *t, struct err *e)
{
    const struct quant_info *q = t->info;
    /* units that can be decoded alone: blocks or, where rows have a head, rows */
    size_t len = q->head_bytes ? t->ne[0] : (size_t)q->block_len, bytes = (size_t)q->block_bytes;
    if (q->head_bytes)
        quant_row_bytes(q, t->ne[0], &bytes);
    size_t piece = PIECE_WEIGHTS / len ? PIECE_WEIGHTS / len : 1;
    uint64_t n_unit = t->n_bytes / bytes;
    struct moments m = {0};
    *out = (struct inspect_stats){0};
    err_code code = ERR_OK;
    void *raw = mem_alloc(piece * bytes);
    float *x = mem_calloc(piece * len, sizeof *x);
    if (!raw || !x) {
        code = err_nomem(e, piece * (bytes + len * sizeof *x), "decoding a tensor");
        goto out;
    }
    for (uint64_t at = 0; at < n_unit; at += piece) {
        size_t n = n_unit - at < piece ? (size_t)(n_unit - at) : piece;
        struct store_range r = store_tensor_part(t, at * bytes, n * bytes, raw);
        TRY_OUT(store_read(s, &r, 1, e));
        for (size_t i = 0; i < (q->head_bytes ? n : 1); i++)
            q->decode((char *)raw + i * bytes, x + i * len, (int64_t)(q->head_bytes ? len : n * len));
        for (size_t i = 0; at == 0 && i < n * len && i < INSPECT_FIRST_VALUES; i++)
            out->first[out->n_first++] = x[i];
        add_piece(out, &m, x, n * len);
    }
    out->n_values = n_unit * len;
    out->mean = m.mean;
    out->std = m.n ? sqrt(m.m2 / (double)m.n) : 0;
out:
    mem_free(raw);
    mem_free(x);
    return code;
}
