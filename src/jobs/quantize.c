#include "jobs/quantize.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/pool.h"
#include "gguf/gguf_facts.h"
#include "gguf/gguf_writer.h"
#include "jobs/imatrix.h"
#include "jobs/quantize_mix.h"
#include "quant/quant_encode.h"
#include "store/store.h"

struct sums {
    double error, size; /* of (weight - decoded)^2 and weight^2 */
    uint64_t n_weight, n_byte;
};

/* Rows of a tensor that are being encoded, and what encoding them needs. */
struct quantize {
    const struct quantize_params *params;
    FILE *report;
    struct gguf *g;
    struct store *store;
    struct imatrix *imatrix;
    struct mix *mix;
    struct gguf_writer *writer;
    struct quant_tables *tables;
    struct pool *pool;
    struct job *jobs; /* one a tensor */
    uint64_t done, total;
    char *raw; /* source rows */
    size_t raw_capacity;
    float *rows; /* two a thread: of weights, and as they decode */
    size_t row_capacity;
    struct sums *thread_sums, by_use[GGUF_N_USE];
    uint64_t n_poor, n_missing;
};

struct job {
    struct quantize *z;
    const struct gguf_tensor *t;
    const struct quant_info *to, *wanted; /* wanted: NULL, or what does not divide the rows */
    float *importance;
    uint64_t n_matrix;
    struct sums sums;
};

/* A piece of a tensor: rows [row0, row0 + n_row), for the pool. */
struct piece {
    struct job *job;
    uint64_t row0, n_row;
    size_t source_row, dst_row; /* bytes */
    char *dst;
    _Atomic(bool) not_finite;
};

enum { TASK_ROWS = 8 };

static float *thread_row(struct quantize *z, int thread, int which)
{
    return z->rows + (size_t)(2 * thread + which) * z->row_capacity;
}

static void encode_rows(void *arg, size_t task, int thread)
{
    struct piece *p = arg;
    struct job *j = p->job;
    struct quantize *z = j->z;
    uint64_t n = j->t->ne[0], end = (task + 1) * TASK_ROWS < p->n_row ? (task + 1) * TASK_ROWS : p->n_row;
    float *x = thread_row(z, thread, 0), *decoded = thread_row(z, thread, 1);
    struct sums *s = &z->thread_sums[thread];
    for (uint64_t r = task * TASK_ROWS; r < end; r++) {
        char *dst = p->dst + r * p->dst_row;
        uint64_t matrix = j->n_matrix > 1 ? (p->row0 + r) / j->t->ne[1] : 0;
        double error = 0, size = 0;
        j->t->info->decode(z->raw + r * p->source_row, x, (int64_t)n);
        for (uint64_t i = 0; i < n; i++)
            size += (double)x[i] * (double)x[i];
        if (!isfinite(size)) {
            p->not_finite = true;
            return;
        }
        quant_encode_row(z->tables, j->to, x, j->importance ? j->importance + matrix * n : NULL, dst, (int64_t)n);
        j->to->decode(dst, decoded, (int64_t)n);
        for (uint64_t i = 0; i < n; i++)
            error += ((double)x[i] - (double)decoded[i]) * ((double)x[i] - (double)decoded[i]);
        s->error += error;
        s->size += size;
    }
}

static err_code read_source(struct quantize *z, const struct gguf_tensor *t, uint64_t offset, size_t n, void *dst,
                            struct err *e)
{
    struct store_range r = store_tensor_part(t, offset, n, dst);
    TRY(store_read(z->store, &r, 1, e));
    z->done += n;
    if (z->params->progress && !z->params->progress(z->params->user, z->done, z->total))
        return err_set(e, ERR_CANCELLED, "interrupted; %s is as it was", z->params->out);
    return ERR_OK;
}

static err_code fill_encoded(struct job *j, uint64_t offset, void *dst, size_t n, struct err *e)
{
    struct quantize *z = j->z;
    struct piece p = {.job = j, .dst = dst};
    quant_row_bytes(j->t->info, j->t->ne[0], &p.source_row);
    quant_row_bytes(j->to, j->t->ne[0], &p.dst_row);
    p.row0 = offset / p.dst_row;
    p.n_row = n / p.dst_row;
    if (p.n_row * p.source_row > z->raw_capacity) {
        mem_free(z->raw);
        z->raw_capacity = p.n_row * p.source_row;
        z->raw = mem_alloc(z->raw_capacity);
        if (!z->raw) {
            size_t wanted = z->raw_capacity;
            z->raw_capacity = 0;
            return err_nomem(e, wanted, j->t->name);
        }
    }
    TRY(read_source(z, j->t, p.row0 * p.source_row, p.n_row * p.source_row, z->raw, e));
    pool_run(z->pool, (p.n_row + TASK_ROWS - 1) / TASK_ROWS, encode_rows, &p);
    if (p.not_finite)
        return err_set(e, ERR_FORMAT, "%s: tensor %s holds numbers that are not finite or too large",
                       gguf_file_path(z->g, j->t->file), j->t->name);
    return ERR_OK;
}

static void finish_tensor(struct job *j)
{
    struct quantize *z = j->z;
    int layer;
    enum gguf_use use = gguf_tensor_use(j->t, &layer);
    struct sums *s = &j->sums;
    for (int i = 0; i < pool_n_threads(z->pool); i++) {
        s->error += z->thread_sums[i].error;
        s->size += z->thread_sums[i].size;
        z->thread_sums[i] = (struct sums){0};
    }
    struct sums *u = &z->by_use[use];
    u->error += s->error;
    u->size += s->size;
    u->n_weight += s->n_weight;
    u->n_byte += s->n_byte;
    if (j->to == j->t->info)
        return;
    fprintf(z->report, "%-40s %-7s error %.5f%s%s%s\n", j->t->name, j->to->name,
            s->size > 0 ? sqrt(s->error / s->size) : 0,
            j->wanted ? ", since its rows don't divide into blocks of " : "", j->wanted ? j->wanted->name : "",
            z->imatrix && !j->importance ? ", no importances" : "");
    fflush(z->report);
    mem_free(j->importance);
    j->importance = NULL;
}

/* gguf_fill_fn */
static err_code fill(void *user, uint64_t offset, void *dst, size_t n, struct err *e)
{
    struct job *j = user;
    struct quantize *z = j->z;
    bool same = j->to == j->t->info;
    if (offset == 0 && !same && z->imatrix) {
        uint64_t n_poor = 0;
        TRY(imatrix_importance(z->imatrix, j->t, &j->importance, &j->n_matrix, &n_poor, e));
        z->n_poor += n_poor;
        z->n_missing += !j->importance;
    }
    TRY(same ? read_source(z, j->t, offset, n, dst, e) : fill_encoded(j, offset, dst, n, e));
    if (offset + n == j->sums.n_byte)
        finish_tensor(j);
    return ERR_OK;
}

/* ---- the plan ------------------------------------------------------------------------------------------------ */

static err_code plan_tensor(struct quantize *z, struct job *j, struct err *e)
{
    const struct gguf_tensor *t = j->t;
    const char *path = gguf_file_path(z->g, t->file);
    size_t row_bytes = 0;
    if (!t->info)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s has type %u, which this version does not know", path, t->name,
                       t->type_id);
    j->to = mix_choose(z->mix, t, &j->wanted);
    bool source =
        t->type_id == QUANT_F32 || t->type_id == QUANT_F16 || t->type_id == QUANT_BF16 || t->type_id == QUANT_Q8_0;
    if (j->to != t->info && !source)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s is %s, expected F32, F16, BF16 or Q8_0 to make %s from", path,
                       t->name, t->info->name, j->to->name);
    if (!quant_row_bytes(j->to, t->ne[0], &row_bytes))
        return err_set(e, ERR_FORMAT, "%s: tensor %s: rows of %" PRIu64 " do not fit %s", path, t->name, t->ne[0],
                       j->to->name);
    j->sums.n_weight = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    j->sums.n_byte = j->sums.n_weight / t->ne[0] * row_bytes;
    z->total += t->n_bytes;
    if (t->ne[0] > z->row_capacity)
        z->row_capacity = (size_t)t->ne[0];
    return ERR_OK;
}

static void add_metadata(struct quantize *z)
{
    gguf_writer_set_alignment(z->writer, 32);
    for (uint64_t i = 0; i < gguf_n_kv(z->g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(z->g, i);
        const char *key = kv->key.s;
        if (strcmp(key, "general.file_type") != 0 && strcmp(key, "general.quantization_version") != 0 &&
            strcmp(key, "general.alignment") != 0 && strncmp(key, "split.", 6) != 0)
            gguf_writer_add_value(z->writer, key, &kv->value);
    }
    gguf_writer_add_u32(z->writer, "general.quantization_version", 2);
    gguf_writer_add_u32(z->writer, "general.file_type", mix_file_type(z->mix));
}

static err_code plan(struct quantize *z, struct err *e)
{
    struct model_facts f;
    uint64_t n = gguf_n_tensors(z->g);
    const struct quantize_params *p = z->params;
    TRY(gguf_facts_compute(&f, z->g, e));
    uint32_t n_layer = f.n_layer;
    gguf_facts_close(&f);
    TRY(mix_create(&z->mix, p->type, p->pure, p->rules, p->n_rule, n_layer, e));
    z->jobs = mem_calloc((size_t)n + 1, sizeof *z->jobs);
    if (!z->jobs)
        return err_nomem(e, (size_t)n * sizeof *z->jobs, "a plan");
    TRY(gguf_writer_create(&z->writer, e));
    add_metadata(z);
    for (uint64_t i = 0; i < n; i++) {
        struct job *j = &z->jobs[i];
        *j = (struct job){.z = z, .t = gguf_tensor_at(z->g, i)};
        TRY(plan_tensor(z, j, e));
        gguf_writer_add_tensor_fn(z->writer, j->t->name, j->t->n_dims, j->t->ne, j->to->type, fill, j);
    }
    return ERR_OK;
}

/* ---- the whole ----------------------------------------------------------------------------------------------- */

static void print_line(FILE *out, const char *name, const struct sums *s)
{
    fprintf(out, "  %-16s %16" PRIu64 " %16" PRIu64 " %8.4f %10.5f\n", name, s->n_weight, s->n_byte,
            8 * (double)s->n_byte / (double)s->n_weight, s->size > 0 ? sqrt(s->error / s->size) : 0);
}

static void print_summary(struct quantize *z)
{
    struct sums all = {0};
    fprintf(z->report, "\n  %-16s %16s %16s %8s %10s\n", "", "weights", "bytes", "bits", "error");
    for (int u = 0; u < GGUF_N_USE; u++) {
        const struct sums *s = &z->by_use[u];
        if (s->n_weight)
            print_line(z->report, gguf_use_name((enum gguf_use)u), s);
        all.n_weight += s->n_weight;
        all.n_byte += s->n_byte;
        all.error += s->error;
        all.size += s->size;
    }
    if (all.n_weight)
        print_line(z->report, "all", &all);
    if (z->n_missing)
        fprintf(z->report, "%" PRIu64 " tensors have no importances in %s.\n", z->n_missing, z->params->imatrix);
    if (z->n_poor)
        fprintf(z->report,
                "%" PRIu64 " matrices saw fewer than %d tokens; theirs are near the mean of the other experts'.\n",
                z->n_poor, IMATRIX_PRIOR_TOKENS);
}

/* OUT must not be one of the files that are read. */
static err_code check_out(const struct quantize *z, struct err *e)
{
    struct stat out, in;
    if (stat(z->params->out, &out) != 0)
        return ERR_OK;
    for (int i = 0; i < gguf_n_files(z->g); i++)
        if (stat(gguf_file_path(z->g, i), &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            return err_set(e, ERR_USAGE, "%s: is the file to quantise; expected another one to write", z->params->out);
    return ERR_OK;
}

static err_code run(struct quantize *z, struct err *e)
{
    const struct quantize_params *p = z->params;
    TRY(gguf_open(&z->g, p->in, e));
    TRY(check_out(z, e));
    TRY(store_open_gguf(&z->store, z->g, e));
    if (p->imatrix)
        TRY(imatrix_open(&z->imatrix, p->imatrix, e));
    TRY(plan(z, e));
    TRY(pool_create(&z->pool, p->n_threads ? p->n_threads : cpu_n_available(), e));
    size_t n_thread = (size_t)pool_n_threads(z->pool), n_float = 0;
    z->tables = quant_tables_create();
    z->thread_sums = mem_calloc(n_thread, sizeof *z->thread_sums);
    if (mem_mul(2 * n_thread, z->row_capacity, &n_float))
        z->rows = mem_calloc(n_float, sizeof *z->rows);
    if (!z->tables || !z->thread_sums || !z->rows)
        return err_nomem(e, n_float * sizeof *z->rows, "rows of weights");
    TRY(gguf_writer_save(z->writer, p->out, e));
    print_summary(z);
    return ERR_OK;
}

err_code quantize_run(const struct quantize_params *p, FILE *report, struct err *e)
{
    struct quantize z = {.params = p, .report = report};
    err_code code = run(&z, e);
    gguf_writer_close(&z.writer);
    for (uint64_t i = 0; z.jobs && i < gguf_n_tensors(z.g); i++)
        mem_free(z.jobs[i].importance);
    mem_free(z.jobs);
    mem_free(z.raw);
    mem_free(z.rows);
    mem_free(z.thread_sums);
    quant_tables_close(&z.tables);
    pool_close(&z.pool);
    mix_close(&z.mix);
    imatrix_close(&z.imatrix);
    store_close(&z.store);
    gguf_close(&z.g);
    return code;
}
