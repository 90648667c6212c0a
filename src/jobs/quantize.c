#define _POSIX_C_SOURCE 200809L /* times of files */
#include "jobs/quantize.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/printable.h"
#include "base/units_text.h"
#include "gguf/gguf_writer.h"
#include "jobs/quantize_internal.h"
#include "jobs/quantize_mix.h"

/* ---- the report ---------------------------------------------------------------------------------------------- */

/* A tensor is done. */
static void report_tensor(struct quantize *z, const struct tensor_job *j)
{
    int layer;
    char name[PRINTABLE_FORMAT_BYTES];
    struct quantize_sums s = j->sums, *u = &z->by_use[gguf_tensor_use(j->t, &layer)];
    for (size_t i = j->first_piece; i < j->first_piece + j->n_piece; i++) { /* in this order, whoever made them */
        s.error += z->part.pieces[i].error;
        s.size += z->part.pieces[i].size;
    }
    u->error += s.error;
    u->size += s.size;
    u->n_weight += s.n_weight;
    u->n_byte += s.n_byte;
    if (j->to == j->t->info)
        return;
    (void)printable_line(j->t->name, strlen(j->t->name), name, sizeof name);
    fprintf(z->report, "%-40s %-7s error %.5f%s%s%s\n", name, j->to->name, s.size > 0 ? sqrt(s.error / s.size) : 0,
            j->wanted ? ", since its rows don't divide into blocks of " : "", j->wanted ? j->wanted->name : "",
            z->imatrix && !j->importance ? ", no importances" : "");
    fflush(z->report);
}

static void print_line(FILE *out, const char *name, const struct quantize_sums *s)
{
    fprintf(out, "  %-16s %16" PRIu64 " %16" PRIu64 " %8.4f %10.5f\n", name, s->n_weight, s->n_byte,
            8 * (double)s->n_byte / (double)s->n_weight, s->size > 0 ? sqrt(s->error / s->size) : 0);
}

static void print_summary(struct quantize *z)
{
    struct quantize_sums all = {0};
    fprintf(z->report, "\n  %-16s %16s %16s %8s %10s\n", "", "weights", "bytes", "bits", "error");
    for (int u = 0; u < GGUF_N_USE; u++) {
        const struct quantize_sums *s = &z->by_use[u];
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

/* "27.29 MiB to 15.51 MiB: wrote OUT". */
static void print_sizes(const struct quantize *z)
{
    struct stat st = {0};
    uint64_t before = 0;
    for (int i = 0; i < gguf_n_files(z->g); i++)
        before += gguf_file_bytes(z->g, i);
    (void)stat(z->params->out, &st);
    fprintf(z->report, "\n%s to %s: wrote %s\n", units_size(before).s, units_size((uint64_t)st.st_size).s,
            z->params->out);
}

/* ---- the plan ------------------------------------------------------------------------------------------------ */

/* The bytes of a tensor's row in type q; NULL: in its own, which is none of weights. False: it has none. */
static bool row_bytes_of(const struct gguf_tensor *t, const struct quant_info *q, size_t *out)
{
    if (q)
        return quant_row_bytes(q, t->ne[0], out);
    *out = (size_t)(t->ne[0] * gguf_plain_type_bytes(t->type_id));
    return *out > 0;
}

static void plan_pieces(struct quantize *z, struct tensor_job *j, size_t dst_row)
{
    const struct gguf_tensor *t = j->t;
    assert(t->ne[0] > 0);
    bool has_rows = row_bytes_of(t, t->info, &j->source_row);
    assert(has_rows);
    j->dst_row = dst_row;
    j->n_row = j->sums.n_weight / t->ne[0];
    assert(j->n_row > 0);
    j->piece_rows = t->ne[0] < PIECE_WEIGHTS ? PIECE_WEIGHTS / t->ne[0] : 1;
    if (j->piece_rows > j->n_row)
        j->piece_rows = j->n_row;
    j->first_piece = z->n_piece;
    j->n_piece = j->n_left = (size_t)((j->n_row + j->piece_rows - 1) / j->piece_rows);
    z->n_piece += j->n_piece;
    size_t row = j->source_row > j->dst_row ? j->source_row : j->dst_row, n = row * (size_t)j->piece_rows;
    z->piece_bytes = n > z->piece_bytes ? n : z->piece_bytes;
}

static err_code plan_tensor(struct quantize *z, struct tensor_job *j, struct err *e)
{
    const struct gguf_tensor *t = j->t;
    const char *path = gguf_file_path(z->g, t->file);
    size_t row_bytes = 0;
    if (!t->info && t->n_bytes == 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s has type %u, which this version does not know", path, t->name,
                       t->type_id);
    if (t->ne[0] > MAX_ROW_WEIGHTS)
        return err_set(e, ERR_LIMIT, "%s: tensor %s has rows of %" PRIu64 " weights, expected at most %d", path,
                       t->name, t->ne[0], MAX_ROW_WEIGHTS);
    j->to = t->info ? mix_choose(z->mix, t, &j->wanted) : NULL;
    bool source =
        t->type_id == QUANT_F32 || t->type_id == QUANT_F16 || t->type_id == QUANT_BF16 || t->type_id == QUANT_Q8_0;
    if (j->to != t->info && !source)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s is %s, expected F32, F16, BF16 or Q8_0 to make %s from", path,
                       t->name, t->info->name, j->to->name);
    if (!row_bytes_of(t, j->to, &row_bytes))
        return err_set(e, ERR_FORMAT, "%s: tensor %s: rows of %" PRIu64 " do not fit %s", path, t->name, t->ne[0],
                       j->to->name);
    j->sums.n_weight = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    j->sums.n_byte = j->sums.n_weight / t->ne[0] * row_bytes;
    z->total += t->n_bytes;
    plan_pieces(z, j, row_bytes);
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
    z->n_job = (size_t)n;
    z->jobs = mem_calloc((size_t)n + 1, sizeof *z->jobs);
    if (!z->jobs)
        return err_nomem(e, (size_t)n * sizeof *z->jobs, "a plan");
    TRY(gguf_writer_create(&z->writer, e));
    add_metadata(z);
    for (uint64_t i = 0; i < n; i++) {
        struct tensor_job *j = &z->jobs[i];
        j->t = gguf_tensor_at(z->g, i);
        TRY(plan_tensor(z, j, e));
        j->off = gguf_writer_place_tensor(z->writer, j->t->name, j->t->n_dims, j->t->ne,
                                          j->to ? (uint32_t)j->to->type : j->t->type_id);
    }
    return mix_check_rules(z->mix, e);
}

/* Below 3 bits a weight importances decide what a model is still good for; those that are ternary already need none. */
static void warn_of_few_bits(const struct quantize *z)
{
    enum { FEW = 3 };
    const struct quant_info *least = NULL;
    for (size_t i = 0; i < z->n_job && !z->imatrix; i++) {
        const struct quant_info *to = z->jobs[i].to;
        bool is_ternary = to && (to->type == QUANT_TQ1_0 || to->type == QUANT_TQ2_0);
        if (to && !is_ternary && 8 * to->block_bytes < FEW * to->block_len &&
            (!least || to->block_bytes * least->block_len < least->block_bytes * to->block_len))
            least = to;
    }
    if (least)
        fprintf(z->report, "%s without an importance matrix loses much: moebius imatrix makes one (--imatrix)\n",
                least->name);
}

/* ---- the whole ----------------------------------------------------------------------------------------------- */

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

/* Of all that the bytes depend on: the source, its files' times, the head (every tensor's name, type and place), the
 * importances, and whose encoders these are. */
static err_code work_fingerprint(const struct quantize *z, const void *head, size_t n_head, uint64_t *out,
                                 struct err *e)
{
    uint64_t weights = 0;
    TRY(store_fingerprint(z->store, out, e));
    *out = gguf_mix(*out, MOEBIUS_VERSION, sizeof MOEBIUS_VERSION);
    *out = gguf_mix(*out, head, n_head);
    for (int i = 0; i < gguf_n_files(z->g); i++) {
        struct stat st = {0};
        if (stat(gguf_file_path(z->g, i), &st) != 0)
            return err_set(e, ERR_IO, "%s: %s", gguf_file_path(z->g, i), strerror(errno));
        *out = gguf_mix(*out, &st.st_mtim, sizeof st.st_mtim);
    }
    if (z->imatrix)
        TRY(imatrix_fingerprint(z->imatrix, &weights, e));
    *out = gguf_mix(*out, &weights, sizeof weights);
    return ERR_OK;
}

/* The file to write to, with its head; places in it are final then. */
static err_code open_part(struct quantize *z, struct err *e)
{
    void *head = NULL;
    size_t n_head = 0;
    uint64_t fingerprint = 0;
    err_code code;
    TRY_OUT(gguf_writer_head(z->writer, &head, &n_head, e));
    TRY_OUT(work_fingerprint(z, head, n_head, &fingerprint, e));
    for (size_t i = 0; i < z->n_job; i++)
        z->jobs[i].off += n_head;
    TRY_OUT(
        part_open(&z->part, z->params->out, fingerprint, n_head + gguf_writer_data_bytes(z->writer), z->n_piece, e));
    if (z->part.is_stale)
        fprintf(z->report, "%s is of another source or other settings: starting afresh\n", z->part.path);
    if (z->part.n_found > 0)
        fprintf(z->report, "%s has %.0f %% of the work: going on\n", z->part.path,
                100 * (double)z->part.n_found / (double)z->n_piece);
    code = part_write(&z->part, 0, head, n_head, e);
out:
    mem_free(head);
    return code;
}

static err_code run(struct quantize *z, struct err *e)
{
    const struct quantize_params *p = z->params;
    z->has_lock = pthread_mutex_init(&z->lock, NULL) == 0;
    if (!z->has_lock)
        return err_nomem(e, sizeof z->lock, "a lock");
    TRY(gguf_open(&z->g, p->in, e));
    TRY(check_out(z, e));
    TRY(store_open_gguf(&z->store, z->g, e));
    if (p->imatrix)
        TRY(imatrix_open(&z->imatrix, p->imatrix, e));
    TRY(plan(z, e));
    warn_of_few_bits(z);
    TRY(pool_create(&z->pool, p->n_threads ? p->n_threads : cpu_n_available(), e));
    TRY(quant_tables_create(&z->tables, e));
    TRY(open_part(z, e));
    TRY(pieces_make(z, report_tensor, e));
    TRY(part_finish(&z->part, e));
    print_summary(z);
    print_sizes(z);
    return ERR_OK;
}

/* Whether what was done is of use after the failure: when it may end otherwise next time. */
static bool may_go_on(err_code code)
{
    return code == ERR_CANCELLED || code == ERR_IO || code == ERR_NOMEM;
}

err_code quantize_run(const struct quantize_params *p, FILE *report, struct err *e)
{
    struct quantize z = {.params = p, .report = report, .part.fd = -1};
    err_code code = run(&z, e);
    part_close(&z.part, !may_go_on(code) || (z.done == 0 && z.part.n_found == 0));
    gguf_writer_close(&z.writer);
    for (size_t i = 0; z.jobs && i < z.n_job; i++)
        mem_free(z.jobs[i].importance);
    mem_free(z.jobs);
    mem_free(z.work);
    quant_tables_close(&z.tables);
    pool_close(&z.pool);
    mix_close(&z.mix);
    imatrix_close(&z.imatrix);
    store_close(&z.store);
    gguf_close(&z.g);
    if (z.has_lock)
        pthread_mutex_destroy(&z.lock);
    return code;
}
