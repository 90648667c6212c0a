#include "jobs/imatrix_gather.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "gguf/gguf_writer.h"
#include "jobs/imatrix.h"

struct entry {
    const char *tensor;
    int64_t k, n_matrix;
    double *sums;     /* [n_matrix][k] */
    uint64_t *counts; /* [n_matrix] */
};

struct imatrix_gather {
    struct entry *entries;
    size_t n_entry, capacity, last; /* last: the entry of the product before, mostly the next one's, too */
    int64_t n_ctx, n_window;
    struct err *e;
    err_code code;
};

static err_code add_entry(struct imatrix_gather *g, const moebius_product *p)
{
    TRY(mem_grow(&g->entries, &g->capacity, g->n_entry + 1, sizeof *g->entries, "importances", g->e));
    struct entry *y = &g->entries[g->n_entry++];
    size_t n = (size_t)(p->k * p->n_matrix);
    *y = (struct entry){.tensor = p->tensor, .k = p->k, .n_matrix = p->n_matrix};
    y->sums = mem_calloc(n, sizeof *y->sums);
    y->counts = mem_calloc((size_t)p->n_matrix, sizeof *y->counts);
    return y->sums && y->counts ? ERR_OK : err_nomem(g->e, n * sizeof *y->sums, p->tensor);
}

static void gather(void *user, const moebius_product *p)
{
    struct imatrix_gather *g = user;
    if (g->code != ERR_OK)
        return;
    if (g->last >= g->n_entry || g->entries[g->last].tensor != p->tensor)
        for (g->last = 0; g->last < g->n_entry && g->entries[g->last].tensor != p->tensor;)
            g->last++;
    if (g->last == g->n_entry)
        g->code = add_entry(g, p);
    if (g->code != ERR_OK)
        return;
    struct entry *y = &g->entries[g->last];
    double *sums = y->sums + p->matrix * p->k;
    for (int64_t t = 0; t < p->n_row; t++)
        for (int64_t i = 0; i < p->k; i++) {
            double x = (double)p->scale * (double)p->x[t * p->stride + i];
            sums[i] += x * x;
        }
    y->counts[p->matrix] += (uint64_t)p->n_row;
}

static bool keep_on(void *user, size_t i, const float *logits)
{
    const struct imatrix_gather *g = user;
    return g->code == ERR_OK;
}

/* n_window: how many there are to be. window: room for one. */
static err_code run_windows(struct imatrix_gather *g, moebius_session *session, const moebius_vocab *vocab,
                            const int32_t *ids, int64_t n_window, int32_t *window,
                            const struct imatrix_gather_params *p, struct err *e)
{
    moebius_error error = {0};
    for (; g->n_window < n_window; g->n_window++) {
        if (p->progress && !p->progress(p->user, g->n_window, n_window))
            return ERR_OK;
        memcpy(window, ids + g->n_window * g->n_ctx, (size_t)g->n_ctx * sizeof *ids);
        if (moebius_vocab_adds_bos(vocab))
            window[0] = moebius_token_bos(vocab);
        moebius_session_truncate(session, 0);
        /* the logits of all tokens, as the last layer is spared those that nobody asks about */
        moebius_session_eval_each(session, window, (size_t)g->n_ctx, 0, keep_on, g, &error);
        TRY(g->code);
        if (error.status != MOEBIUS_OK)
            return err_adopt(e, &error);
    }
    return ERR_OK;
}

err_code imatrix_gather_run(struct imatrix_gather **out, moebius_session *session, const moebius_engine *engine,
                            const int32_t *ids, size_t n, const struct imatrix_gather_params *p, struct err *e)
{
    struct imatrix_gather *g = mem_calloc(1, sizeof *g);
    *out = g;
    if (!g)
        return err_nomem(e, sizeof *g, "importances");
    *g = (struct imatrix_gather){.n_ctx = p->n_ctx, .e = e};
    int64_t n_window = (int64_t)n / p->n_ctx;
    if (n_window == 0)
        return err_set(e, ERR_USAGE, "the text has %zu tokens: expected at least a window of %lld", n,
                       (long long)p->n_ctx);
    if (p->n_window && p->n_window < n_window)
        n_window = p->n_window;
    int32_t *window = mem_alloc((size_t)p->n_ctx * sizeof *window);
    if (!window)
        return err_nomem(e, (size_t)p->n_ctx * sizeof *window, "a window");
    const moebius_trace trace = {.product = gather, .user = g};
    moebius_session_trace(session, &trace);
    err_code code = run_windows(g, session, moebius_engine_vocab(engine), ids, n_window, window, p, e);
    moebius_session_trace(session, NULL);
    mem_free(window);
    return code;
}

void imatrix_gather_close(struct imatrix_gather **out)
{
    struct imatrix_gather *g = *out;
    if (!g)
        return;
    for (size_t i = 0; i < g->n_entry; i++) {
        mem_free(g->entries[i].sums);
        mem_free(g->entries[i].counts);
    }
    mem_free(g->entries);
    mem_free(g);
    *out = NULL;
}

/* ---- the file ------------------------------------------------------------------------------------------------ */

/* gguf_fill_fn */
static err_code fill_sums(void *user, uint64_t offset, void *dst, size_t n, struct err *e)
{
    const struct entry *y = user;
    float *to = dst;
    for (size_t i = 0; i < n / sizeof *to; i++) {
        uint64_t at = offset / sizeof *to + i;
        to[i] = (float)y->sums[at];
        if (!isfinite(to[i]))
            return err_set(e, ERR_FAIL,
                           "tensor %s: the squares that its column %" PRIu64 " met sum up to %g, which is no number to "
                           "go by: is the model damaged?",
                           y->tensor, at % (uint64_t)y->k, y->sums[at]);
    }
    return ERR_OK;
}

/* gguf_fill_fn */
static err_code fill_counts(void *user, uint64_t offset, void *dst, size_t n, struct err *e)
{
    const struct entry *y = user;
    float *to = dst;
    for (size_t i = 0; i < n / sizeof *to; i++)
        to[i] = (float)y->counts[offset / sizeof *to + i];
    return ERR_OK;
}

err_code imatrix_gather_save(const struct imatrix_gather *g, const char *path, const char *text, struct err *e)
{
    struct gguf_writer *w = NULL;
    TRY(gguf_writer_create(&w, e));
    gguf_writer_add_string(w, "general.type", "imatrix");
    gguf_writer_add_strings(w, "imatrix.datasets", &text, 1);
    gguf_writer_add_u32(w, "imatrix.chunk_count", (uint32_t)g->n_window);
    gguf_writer_add_u32(w, "imatrix.chunk_size", (uint32_t)g->n_ctx);
    for (size_t i = 0; i < g->n_entry; i++) {
        struct entry *y = &g->entries[i];
        const uint64_t sums_ne[2] = {(uint64_t)y->k, (uint64_t)y->n_matrix}, counts_ne[2] = {1, (uint64_t)y->n_matrix};
        char name[320];
        snprintf(name, sizeof name, "%s.in_sum2", y->tensor);
        gguf_writer_add_tensor_fn(w, name, 2, sums_ne, QUANT_F32, fill_sums, y);
        snprintf(name, sizeof name, "%s.counts", y->tensor);
        gguf_writer_add_tensor_fn(w, name, 2, counts_ne, QUANT_F32, fill_counts, y);
    }
    err_code code = gguf_writer_save(w, path, e);
    gguf_writer_close(&w);
    return code;
}

void imatrix_gather_report(const struct imatrix_gather *g, FILE *out)
{
    fprintf(out, "%zu tensors, %" PRId64 " window%s of %" PRId64 " tokens\n", g->n_entry, g->n_window,
            g->n_window == 1 ? "" : "s", g->n_ctx);
    for (size_t i = 0; i < g->n_entry; i++) {
        const struct entry *y = &g->entries[i];
        const char *kind = strstr(y->tensor, ".ffn_down_exps"); /* gate and up saw the same tokens */
        int64_t n_few = 0, least = 0;
        for (int64_t m = 0; kind && m < y->n_matrix; m++) {
            n_few += y->counts[m] < IMATRIX_PRIOR_TOKENS;
            least = y->counts[m] < y->counts[least] ? m : least;
        }
        if (n_few)
            fprintf(out,
                    "%.*s: %" PRId64 " of %" PRId64 " experts saw fewer than %d tokens; expert %" PRId64 " saw %" PRIu64
                    "\n",
                    (int)(kind - y->tensor), y->tensor, n_few, y->n_matrix, IMATRIX_PRIOR_TOKENS, least,
                    y->counts[least]);
    }
}
