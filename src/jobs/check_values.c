#include "jobs/check_values.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "jobs/scan.h"

/* A matrix of fewer bytes may be zero, as may be what is no matrix: biases often are. */
enum { ZERO_MIN_BYTES = 4096 };

/* One matrix of a tensor. */
struct matrix {
    const struct gguf_tensor *t;
    uint64_t i;
    size_t row_bytes;
    struct quant_check check;
    bool is_zero; /* so far */
};

struct check {
    struct matrix *matrices;
    size_t n_matrix, n_bytes;
    struct values_of_type *out;
    pthread_mutex_t lock; /* of what `out` points to */
};

static uint64_t matrix_bytes(const struct gguf_tensor *t)
{
    return t->n_bytes / (t->ne[2] * t->ne[3]);
}

static struct scan_piece piece_at(void *user, size_t i, size_t *unit)
{
    const struct matrix *m = &((struct check *)user)->matrices[i];
    uint64_t n = matrix_bytes(m->t);
    *unit = m->t->info->head_bytes ? m->row_bytes : (size_t)m->t->info->block_bytes;
    return (struct scan_piece){m->t->file, m->t->offset + m->i * n, n};
}

static void add_chunk(void *user, size_t i, const void *bytes, size_t n_bytes)
{
    struct matrix *m = &((struct check *)user)->matrices[i];
    quant_check_rows(m->t->info, bytes, n_bytes, m->row_bytes, &m->check);
    m->is_zero = m->is_zero && quant_is_zero(bytes, n_bytes);
}

static void end_matrix(void *user, size_t i, const struct err *failure)
{
    struct check *c = user;
    const struct matrix *m = &c->matrices[i];
    struct values_of_type *v = &c->out[m->t->info->type];
    bool is_zero = !failure && m->is_zero && m->t->n_dims > 1 && matrix_bytes(m->t) >= ZERO_MIN_BYTES;
    pthread_mutex_lock(&c->lock);
    v->check.n_scale += m->check.n_scale;
    v->check.n_nan += m->check.n_nan;
    v->check.n_absurd += m->check.n_absurd;
    v->n_zero += is_zero;
    v->n_unread += failure != NULL;
    if (failure && !*v->why_unread)
        snprintf(v->why_unread, sizeof v->why_unread, "%s", failure->text);
    if ((failure || is_zero || m->check.n_nan || m->check.n_absurd) && (!v->first || m->t < v->first))
        v->first = m->t;
    pthread_mutex_unlock(&c->lock);
}

/* Whether a tensor's rows can be looked at: of types with heads, whole rows must fit a chunk. */
static bool is_readable(const struct gguf_tensor *t, size_t *row_bytes)
{
    return t->info && t->n_bytes > 0 && quant_row_bytes(t->info, t->ne[0], row_bytes) &&
           (!t->info->head_bytes || *row_bytes <= SCAN_CHUNK_BYTES);
}

static err_code list_matrices(struct check *c, const struct gguf *g, struct err *e)
{
    size_t n = 0, row_bytes;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        n += is_readable(t, &row_bytes) ? t->ne[2] * t->ne[3] : 0;
    }
    c->matrices = mem_calloc(n, sizeof *c->matrices);
    if (!c->matrices)
        return err_nomem(e, n * sizeof *c->matrices, "what to check");
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (!is_readable(t, &row_bytes))
            continue;
        c->out[t->info->type].n_tensor++;
        c->out[t->info->type].n_bytes += t->n_bytes;
        c->n_bytes += t->n_bytes;
        for (uint64_t k = 0; k < t->ne[2] * t->ne[3]; k++)
            c->matrices[c->n_matrix++] = (struct matrix){.t = t, .i = k, .row_bytes = row_bytes, .is_zero = true};
    }
    return ERR_OK;
}

err_code check_values(const struct check_values_params *p, struct values_of_type *out, struct err *e)
{
    struct check c = {.out = out, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct store *store = NULL;
    memset(out, 0, QUANT_MAX_ID * sizeof *out);
    err_code code = store_open_gguf(&store, p->gguf, e);
    if (code == ERR_OK)
        code = list_matrices(&c, p->gguf, e);
    if (code == ERR_OK)
        code = scan_run(&(struct scan_params){.store = store,
                                              .n_piece = c.n_matrix,
                                              .n_bytes = c.n_bytes,
                                              .n_threads = p->n_threads,
                                              .piece = piece_at,
                                              .chunk = add_chunk,
                                              .end = end_matrix,
                                              .progress = p->progress,
                                              .progress_user = p->user,
                                              .user = &c},
                        e);
    mem_free(c.matrices);
    store_close(&store);
    pthread_mutex_destroy(&c.lock);
    return code;
}
