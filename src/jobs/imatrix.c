#include "jobs/imatrix.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "gguf/gguf.h"
#include "store/store.h"

struct imatrix {
    struct gguf *g;
    struct store *s;
};

err_code imatrix_open(struct imatrix **out, const char *path, struct err *e)
{
    struct imatrix *m = mem_calloc(1, sizeof *m);
    *out = m;
    if (!m)
        return err_nomem(e, sizeof *m, path);
    TRY(gguf_open(&m->g, path, e));
    struct gguf_string type = {"", 0};
    TRY(gguf_opt_string(m->g, "general.type", &type, e));
    if (strcmp(type.s, "imatrix") != 0)
        return err_set(e, ERR_FORMAT, "%s: key \"general.type\" is \"%s\", expected \"imatrix\"", path, type.s);
    return store_open_gguf(&m->s, m->g, e);
}

void imatrix_close(struct imatrix **m)
{
    if (!*m)
        return;
    store_close(&(*m)->s);
    gguf_close(&(*m)->g);
    mem_free(*m);
    *m = NULL;
}

err_code imatrix_fingerprint(struct imatrix *m, uint64_t *out, struct err *e)
{
    return store_fingerprint(m->s, out, e);
}

/* NAME + suffix: *n_row rows of n_column floats, 1 or n_matrix; NULL without an error when it is absent. How the file
 * divides them is no matter: where heads have a matrix each, llama.cpp writes all of them as one row. */
static err_code read_table(struct imatrix *m, const char *name, const char *suffix, uint64_t n_column,
                           uint64_t n_matrix, uint64_t *n_row, float **out, struct err *e)
{
    char full[320];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    const struct gguf_tensor *t = gguf_tensor_find(m->g, full);
    *out = NULL;
    if (!t)
        return ERR_OK;
    const char *path = gguf_file_path(m->g, t->file);
    uint64_t n = t->n_bytes / sizeof **out;
    if (t->type_id != QUANT_F32 || (n != n_column && (n % n_matrix != 0 || n / n_matrix != n_column)))
        return err_set(e, ERR_FORMAT,
                       "%s: tensor %s has %" PRIu64 " numbers of type %u, expected F32, %" PRIu64
                       " for each of 1 or %" PRIu64 " matrices",
                       path, full, n, t->type_id, n_column, n_matrix);
    *n_row = n / n_column;
    *out = mem_alloc((size_t)t->n_bytes);
    if (!*out)
        return err_nomem(e, (size_t)t->n_bytes, full);
    struct store_range r = store_tensor_range(t, *out);
    TRY(store_read(m->s, &r, 1, e));
    for (uint64_t i = 0; i < n; i++)
        if (!((*out)[i] >= 0) || isinf((*out)[i]))
            return err_set(e, ERR_FORMAT, "%s: tensor %s: number %" PRIu64 " is %g, expected at least 0 and finite",
                           path, full, i, (double)(*out)[i]);
    return ERR_OK;
}

/* Sums to means, each drawn to the mean of all matrices as far as it saw few tokens. n_count: 1 or n_matrix. */
static uint64_t means_of_sums(float *sums, uint64_t n_matrix, uint64_t n, const float *counts, uint64_t n_count)
{
    double n_token = 0;
    uint64_t n_poor = 0;
    for (uint64_t i = 0; i < n_matrix; i++) {
        float count = counts[n_count > 1 ? i : 0];
        n_token += (double)count;
        n_poor += count < IMATRIX_PRIOR_TOKENS;
    }
    for (uint64_t c = 0; c < n && n_token > 0; c++) {
        double all = 0;
        for (uint64_t i = 0; i < n_matrix; i++)
            all += (double)sums[i * n + c];
        for (uint64_t i = 0; i < n_matrix; i++) {
            double sum = (double)sums[i * n + c] + IMATRIX_PRIOR_TOKENS * all / n_token;
            sums[i * n + c] = (float)(sum / ((double)counts[n_count > 1 ? i : 0] + IMATRIX_PRIOR_TOKENS));
        }
    }
    return n_poor;
}

err_code imatrix_importance(struct imatrix *m, const struct gguf_tensor *weight, float **out, uint64_t *n_matrix,
                            uint64_t *n_poor, struct err *e)
{
    float *sums = NULL, *counts = NULL;
    uint64_t n_count = 0, n_all = weight->ne[2] * weight->ne[3];
    err_code code;
    *out = NULL;
    *n_matrix = 0;
    TRY_OUT(read_table(m, weight->name, ".in_sum2", weight->ne[0], n_all, n_matrix, &sums, e));
    if (!sums)
        goto out;
    TRY_OUT(read_table(m, weight->name, ".counts", 1, *n_matrix, &n_count, &counts, e));
    if (!counts) {
        code = err_set(e, ERR_FORMAT, "%s: tensor %s.counts is missing beside its sums (in_sum2)",
                       gguf_file_path(m->g, 0), weight->name);
        goto out;
    }
    *n_poor = means_of_sums(sums, *n_matrix, weight->ne[0], counts, n_count);
    *out = sums;
    sums = NULL;
out:
    mem_free(sums);
    mem_free(counts);
    return code;
}
