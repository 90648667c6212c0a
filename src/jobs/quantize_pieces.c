/* Each piece is read, encoded, measured and written by one thread, so that reading, computing and writing overlap. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "jobs/quantize_internal.h"

enum { CHUNK_WEIGHTS = 1 << 14 }; /* what is encoded at a time stays in a cache */

/* A piece, and where its thread works. */
struct quantize_piece {
    struct tensor_job *j;
    size_t index; /* of all pieces */
    uint64_t row0, n_row;
    char *source, *dst;
    float *x, *decoded;
    double error, size;
};

/* sum (x - y)^2, in eight sums side by side; y NULL: zeros. */
static double sum_squares(const float *x, const float *y, size_t n)
{
    enum { WIDTH = 8 };
    double sum[WIDTH] = {0}, all = 0;
    for (size_t i = 0; i + WIDTH <= n; i += WIDTH)
        for (size_t k = 0; k < WIDTH; k++) {
            double diff = (double)x[i + k] - (y ? (double)y[i + k] : 0);
            sum[k] += diff * diff;
        }
    for (size_t i = n / WIDTH * WIDTH; i < n; i++) {
        double diff = (double)x[i] - (y ? (double)y[i] : 0);
        all += diff * diff;
    }
    for (int k = 0; k < WIDTH; k++)
        all += sum[k];
    return all;
}

static uint64_t chunk_rows(uint64_t n)
{
    return n < CHUNK_WEIGHTS ? CHUNK_WEIGHTS / n : 1;
}

static struct quantize_piece find_piece(struct quantize *z, size_t index, int thread)
{
    size_t lo = 0, hi = z->n_job - 1;
    while (lo < hi) { /* the last job that begins at the piece or before; jobs have a piece or more */
        size_t mid = (lo + hi + 1) / 2;
        if (z->jobs[mid].first_piece <= index)
            lo = mid;
        else
            hi = mid - 1;
    }
    struct tensor_job *j = &z->jobs[lo];
    char *work = z->work + (size_t)thread * z->work_bytes;
    struct quantize_piece p = {.j = j, .index = index, .row0 = (index - j->first_piece) * j->piece_rows};
    p.n_row = j->n_row - p.row0 < j->piece_rows ? j->n_row - p.row0 : j->piece_rows;
    p.source = work;
    p.dst = work + z->piece_bytes;
    p.x = (float *)(void *)(work + 2 * z->piece_bytes);
    p.decoded = p.x + z->n_float;
    return p;
}

/* Rows [row, row + n_row) of the piece, all of one matrix when there are importances. */
static err_code encode_chunk(struct quantize *z, struct quantize_piece *p, uint64_t row, uint64_t n_row, struct err *e)
{
    const struct tensor_job *j = p->j;
    size_t n = (size_t)j->t->ne[0], n_all = n * (size_t)n_row;
    char *dst = p->dst + row * j->dst_row;
    uint64_t matrix = j->n_matrix > 1 ? (p->row0 + row) / j->t->ne[1] : 0;
    assert(matrix == 0 || matrix < j->n_matrix);
    const float *importance = j->importance ? j->importance + matrix * n : NULL;
    j->t->info->decode(p->source + row * j->source_row, p->x, (int64_t)n_all); /* sources have no heads */
    double size = sum_squares(p->x, NULL, n_all);
    if (!isfinite(size))
        return err_set(e, ERR_FORMAT, "%s: tensor %s holds numbers that are not finite or too large",
                       gguf_file_path(z->g, j->t->file), j->t->name);
    quant_encode_rows(z->tables, j->to, p->x, importance, dst, (int64_t)n, (int64_t)n_row);
    for (uint64_t r = 0; r < n_row; r++)
        j->to->decode(dst + r * j->dst_row, p->decoded + r * n, (int64_t)n);
    p->error += sum_squares(p->x, p->decoded, n_all);
    p->size += size;
    return ERR_OK;
}

static err_code encode_piece(struct quantize *z, struct quantize_piece *p, struct err *e)
{
    const struct tensor_job *j = p->j;
    uint64_t most = chunk_rows(j->t->ne[0]);
    for (uint64_t row = 0; row < p->n_row;) {
        uint64_t n = p->n_row - row < most ? p->n_row - row : most;
        if (j->n_matrix > 1) { /* not beyond the matrix */
            uint64_t left = j->t->ne[1] - (p->row0 + row) % j->t->ne[1];
            n = n < left ? n : left;
        }
        TRY(encode_chunk(z, p, row, n, e));
        row += n;
    }
    return ERR_OK;
}

static err_code make_piece(struct quantize *z, struct quantize_piece *p, bool *found, struct err *e)
{
    struct tensor_job *j = p->j;
    bool same = j->to == j->t->info;
    size_t n_source = p->n_row * j->source_row, n_dst = p->n_row * j->dst_row;
    uint64_t off = j->off + p->row0 * j->dst_row;
    *found = part_has(&z->part, p->index, off, p->dst, n_dst);
    if (*found)
        return ERR_OK;
    struct store_range r = store_tensor_part(j->t, p->row0 * j->source_row, n_source, p->source);
    TRY(store_read(z->store, &r, 1, e));
    if (!same)
        TRY(encode_piece(z, p, e));
    return part_add(&z->part, p->index, off, same ? p->source : p->dst, n_dst, p->error, p->size, e);
}

/* The tensor's importances, when this is the first of its pieces. */
static err_code prepare_job(struct quantize *z, struct tensor_job *j, struct err *e)
{
    if (j->is_asked || !z->imatrix || j->to == j->t->info)
        return ERR_OK;
    uint64_t n_poor = 0;
    TRY(imatrix_importance(z->imatrix, j->t, &j->importance, &j->n_matrix, &n_poor, e));
    j->is_asked = true;
    z->n_poor += n_poor;
    z->n_missing += !j->importance;
    return ERR_OK;
}

static err_code count_piece(struct quantize *z, const struct quantize_piece *p, bool found, struct err *e)
{
    uint64_t n = p->n_row * p->j->source_row;
    const struct quantize_params *params = z->params;
    p->j->n_left--;
    z->done += n;
    z->found += found ? n : 0;
    if (params->progress && !params->progress(params->user, z->done, z->found, z->total))
        return err_set(e, ERR_CANCELLED, "interrupted; %s keeps what is done, and the same command goes on with it",
                       z->part.path);
    return ERR_OK;
}

struct making {
    struct quantize *z;
    void (*finished)(struct quantize *z, const struct tensor_job *j);
};

/* pool_fn */
static void make_task(void *arg, size_t index, int thread)
{
    struct making *m = arg;
    struct quantize *z = m->z;
    struct quantize_piece p = find_piece(z, index, thread);
    struct err e = {0};
    bool found = false;
    pthread_mutex_lock(&z->lock);
    bool stop = z->stop;
    err_code code = stop ? ERR_OK : prepare_job(z, p.j, &e);
    pthread_mutex_unlock(&z->lock);
    if (stop)
        return;
    if (code == ERR_OK)
        code = make_piece(z, &p, &found, &e);
    pthread_mutex_lock(&z->lock);
    if (code == ERR_OK)
        code = count_piece(z, &p, found, &e);
    for (; z->n_reported < z->n_job && z->jobs[z->n_reported].n_left == 0; z->n_reported++) {
        struct tensor_job *j = &z->jobs[z->n_reported];
        m->finished(z, j);
        mem_free(j->importance);
        j->importance = NULL;
    }
    if (code != ERR_OK && !z->stop) {
        z->stop = true;
        z->code = code;
        z->err = e;
    }
    pthread_mutex_unlock(&z->lock);
}

err_code pieces_make(struct quantize *z, void (*finished)(struct quantize *z, const struct tensor_job *j),
                     struct err *e)
{
    for (size_t i = 0; i < z->n_job; i++) {
        uint64_t n = z->jobs[i].t->ne[0], n_float = n * chunk_rows(n);
        z->n_float = n_float > z->n_float ? n_float : z->n_float;
    }
    size_t n_thread = (size_t)pool_n_threads(z->pool), n_all = 0, floats = 0;
    bool fits = mem_mul((size_t)z->n_float, 2 * sizeof(float), &floats) && mem_mul(z->piece_bytes, 2, &z->work_bytes) &&
                mem_add(z->work_bytes, floats, &z->work_bytes) && mem_mul(z->work_bytes, n_thread, &n_all);
    z->work = fits ? mem_alloc_aligned(64, n_all) : NULL;
    if (!z->work)
        return err_nomem(e, n_all, "rows of weights");
    struct making m = {z, finished};
    if (z->n_job > 0)
        pool_run(z->pool, z->n_piece, make_task, &m);
    return z->code == ERR_OK ? ERR_OK : err_set(e, z->code, "%s", z->err.text);
}
