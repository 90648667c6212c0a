/* The facts of a model that a plan starts from, given by the code that loads and runs it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/free_memory.h"
#include "base/minmax.h"
#include "engine/cache_file.h"
#include "engine/engine_vocab.h"
#include "engine/expert_images.h"
#include "engine/gate_file.h"
#include "engine/planning.h"
#include "gguf/gguf_facts.h"
#include "kernels/kernels.h"
#include "model/sizes.h"

/* What the program takes more until a model is open, as measured: code of kernels, stacks, small allocations. */
enum { OPENING_BYTES = 7 << 19 };

enum { LEAST_CTX = 256, MOST_CTX = 1 << 20 };

_Static_assert((int)FACTS_MAX_CACHE >= (int)SIZES_MAX_CACHE, "room for all kinds of caches");

/* ---- the model -------------------------------------------------------------------------------------------------- */

/* A model's files, and a device that answers for those that will run it. */
struct gathering {
    struct plan_facts *f;
    const struct planning_facts_params *p;
    const struct gguf *g;
    struct pool *pool;
    struct backend *cpu, *null;
    struct model *model; /* the description */
};

static int compare_lengths(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The lengths of texts for which memory is sized: powers of two, the one that is asked for, and what the model was
 * trained for. */
static void list_lengths(struct plan_facts *f, int64_t n_ctx)
{
    f->n_ctx[f->n_n_ctx++] = n_ctx;
    if (f->n_ctx_train > 0 && f->n_ctx_train != n_ctx && f->n_ctx_train <= INT32_MAX)
        f->n_ctx[f->n_n_ctx++] = f->n_ctx_train;
    for (int64_t n = LEAST_CTX; n <= MOST_CTX; n *= 2)
        if (n != n_ctx && n != f->n_ctx_train)
            f->n_ctx[f->n_n_ctx++] = n;
    qsort(f->n_ctx, (size_t)f->n_n_ctx, sizeof *f->n_ctx, compare_lengths);
}

static struct plan_cost cost(const struct model_cost *c)
{
    struct plan_cost p = {.n_bytes = (double)c->n_bytes, .n_float = (double)c->n_float};
    for (int i = 0; i < QUANT_MAX_ID; i++) {
        if (!c->n_product[i])
            continue;
        if (p.n_product < FACTS_MAX_TYPE)
            p.products[p.n_product++].type = i;
        p.products[p.n_product - 1].n += (double)c->n_product[i]; /* of further types, as the last one */
    }
    return p;
}

int64_t planning_few_tokens(int64_t n_batch)
{
    return min_i64(n_batch, max_i64(n_batch / PLAN_FEW_PART, MODEL_MAX_DRAFT));
}

static void take_sizes(struct plan_facts *f, struct plan_kv *kv, const struct model_sizes *s)
{
    f->weight_bytes = s->weight_bytes;
    f->work_bytes = s->work_bytes;
    f->work_few_bytes = s->work_few_bytes;
    f->scratch_bytes = s->scratch_bytes;
    f->token = cost(&s->token);
    f->output = cost(&s->output);
    f->recurrent = cost(&s->recurrent);
    f->checkpoint_bytes = s->checkpoint_bytes;
    kv->works = true;
    kv->n_cache = s->n_cache;
    for (int i = 0; i < s->n_cache; i++)
        kv->caches[i] =
            (struct plan_cache){s->caches[i].window, (double)s->caches[i].n_bytes, (double)s->caches[i].n_float};
}

/* Sizes with each type of caches: a model that runs with none is refused as when it is loaded. */
static err_code size_all(struct gathering *x, struct err *e)
{
    static const enum elem_type types[FACTS_N_KV] = {ELEM_F16, ELEM_F32, ELEM_Q8_0}; /* as moebius_kv_type */
    static const char *const names[FACTS_N_KV] = {"f16", "f32", "q8_0"};
    struct plan_facts *f = x->f;
    bool works = false;
    f->n_few = planning_few_tokens(x->p->n_batch);
    f->n_logits = PLANNING_LOGITS_ROWS;
    for (int i = 0; i < FACTS_N_KV; i++) {
        struct model_sizes s;
        struct err why = {0};
        f->kv[i].name = names[i];
        const struct model_sizes_params p = {.type = types[i],
                                             .mtp = x->p->mtp,
                                             .n_batch = x->p->n_batch,
                                             .n_few = f->n_few,
                                             .n_logits = f->n_logits,
                                             .n_ctx = f->n_ctx,
                                             .text_bytes = f->kv[i].text_bytes,
                                             .n_n_ctx = f->n_n_ctx};
        err_code code = model_sizes_ask(&s, x->g, x->cpu, &p, &why);
        if (code != ERR_OK && (code != ERR_UNSUPPORTED || (i == FACTS_N_KV - 1 && !works)))
            return err_set(e, code, "%s", why.text);
        if (code == ERR_OK)
            take_sizes(f, &f->kv[i], &s);
        works |= code == ERR_OK;
    }
    return ERR_OK;
}

/* The least that experts of one shape need: the layer with most of them for a token. */
static uint64_t least_slots(const struct model *m, const struct plan_layer *layers)
{
    uint64_t n = 0;
    for (int i = 0; i < m->n_moe_layer; i++) {
        bool is_most = true;
        for (int j = 0; j < m->n_moe_layer; j++) {
            bool is_more = layers[j].n_used > layers[i].n_used || (layers[j].n_used == layers[i].n_used && j < i);
            is_most &= !is_more || !slot_same_shape(&m->expert_layers[j].shape, &m->expert_layers[i].shape);
        }
        n += is_most ? (uint64_t)layers[i].n_used * layers[i].slot_bytes : 0;
    }
    return n;
}

static err_code list_layers(struct gathering *x, struct err *e)
{
    const struct model *m = x->model;
    struct plan_layer *layers = mem_calloc((size_t)m->n_moe_layer + 1, sizeof *layers);
    if (!layers)
        return err_nomem(e, (size_t)m->n_moe_layer * sizeof *layers, "a plan");
    x->f->layers = layers;
    x->f->n_moe = m->n_moe_layer;
    for (int i = 0; i < m->n_moe_layer; i++) {
        const struct expert_layer *y = &m->expert_layers[i];
        const struct model_cost expert = model_expert_cost(&y->shape);
        layers[i] =
            (struct plan_layer){y->n_expert, y->n_used, backend_slot_pool_slot_bytes(x->cpu, &y->shape), cost(&expert)};
    }
    x->f->least_slot_bytes = least_slots(m, layers);
    return ERR_OK;
}

/* ---- earlier runs ---------------------------------------------------------------------------------------------- */

static int compare_falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Each expert's share of all choices, the largest first, summed up. */
static err_code sum_mass(struct plan_facts *f, const struct usage *u, struct err *e)
{
    int64_t n = 0;
    double sum = 0, *mass = mem_calloc((size_t)(u->n_layer * u->n_expert) + 1, sizeof *mass);
    if (!mass)
        return err_nomem(e, (size_t)(u->n_layer * u->n_expert) * sizeof *mass, "counts of experts");
    f->mass = mass;
    for (int l = 0; l < u->n_layer && l < f->n_moe; l++)
        for (int64_t i = 0; i < f->layers[l].n_expert; i++, n++) {
            mass[n] = u->total[l] ? (double)u->count[l * u->n_expert + i] / (double)u->total[l] : 0;
            sum += mass[n];
        }
    qsort(mass, (size_t)n, sizeof *mass, compare_falling);
    for (int64_t i = 0; i < n && sum > 0; i++)
        mass[i] = mass[i] / sum + (i ? mass[i - 1] : 0);
    f->n_mass = sum > 0 ? n : 0;
    return ERR_OK;
}

static err_code read_usage(struct gathering *x, struct err *e)
{
    char name[64], *path = NULL, *text = NULL;
    size_t n;
    struct usage u = {0};
    int64_t n_expert = 0;
    err_code code;
    if (!x->p->usage || x->f->n_moe == 0)
        return ERR_OK;
    for (int i = 0; i < x->f->n_moe; i++)
        n_expert = max_i64(n_expert, x->f->layers[i].n_expert);
    snprintf(name, sizeof name, "usage-%016" PRIx64 ".txt", x->f->fingerprint);
    if (!*x->p->usage)
        TRY(cache_file_path(name, &path, e));
    if (!*x->p->usage && !path)
        return ERR_OK;
    const char *from = path ? path : x->p->usage;
    TRY_OUT(cache_file_read(from, &text, &n, e));
    if (text)
        TRY_OUT(usage_parse(&u, text, n, from, x->f->fingerprint, x->f->n_moe, n_expert, e));
    else if (!path)
        code = err_set(e, ERR_IO, "%s: expected a file of counts, there is none", from);
    if (u.count)
        code = sum_mass(x->f, &u, e);
out:
    usage_close(&u);
    mem_free(text);
    mem_free(path);
    return code;
}

/* What a text's routing showed. Of a file that can't be used runs warn. */
static err_code read_curve(struct gathering *x, struct err *e)
{
    bool is_there = false;
    struct err why;
    if (!x->p->usage || *x->p->usage || x->f->n_moe == 0)
        return ERR_OK;
    struct gate_curve *curve = mem_calloc(1, sizeof *curve);
    if (!curve)
        return err_nomem(e, sizeof *curve, "a curve of hits");
    err_code code = gate_file_read(curve, x->f->fingerprint, &is_there, &why);
    if (code == ERR_OK && is_there)
        x->f->curve = curve;
    else
        mem_free(curve);
    return code == ERR_NOMEM ? err_set(e, code, "%s", why.text) : ERR_OK;
}

/* ---- gathering -------------------------------------------------------------------------------------------------- */

static void copy_string(char *to, size_t n_to, struct gguf_string s, const char *instead)
{
    snprintf(to, n_to, "%.*s", (int)min_i64((int64_t)s.n, (int64_t)n_to - 1), s.s ? s.s : "");
    if (!*to)
        snprintf(to, n_to, "%s", instead);
}

static err_code take_names(struct gathering *x, const char *path, struct err *e)
{
    struct model_facts facts;
    struct plan_facts *f = x->f;
    const char *slash = strrchr(path, '/');
    TRY(gguf_facts_compute(&facts, x->g, e));
    copy_string(f->name, sizeof f->name, facts.name, slash ? slash + 1 : path);
    copy_string(f->arch, sizeof f->arch, facts.architecture, "unknown");
    gguf_facts_close(&facts);
    f->fingerprint = gguf_fingerprint(x->g);
    f->n_file = gguf_n_files(x->g);
    for (int i = 0; i < f->n_file; i++)
        f->file_bytes += gguf_file_bytes(x->g, i);
    return ERR_OK;
}

/* The program with what it knows of the file; a model that is loaded beside counts elsewhere. */
static uint64_t process_bytes(void)
{
    size_t resident = resident_memory_bytes(), mapped = mem_total_bytes();
    return (resident > mapped ? resident - mapped : 0) + OPENING_BYTES;
}

static err_code open_device(struct gathering *x, struct err *e)
{
    enum cpu_level level;
    TRY(cpu_level_detect(&level, e));
    TRY(pool_create(&x->pool, 1, e));
    TRY(backend_cpu_open(&x->cpu, x->pool, kernels_for(level), e));
    return backend_null_open(&x->null, e);
}

/* Attaches it as an engine does, and counts what it lacks. */
static err_code look_at_store(struct gathering *x, struct err *e)
{
    err_code code;
    struct store *s = NULL;
    struct layout_image *images = NULL;
    struct store_blob b;
    TRY_OUT(store_open_gguf(&s, x->g, e));
    TRY_OUT(expert_images(x->cpu, s, &images, e));
    TRY_OUT(store_attach(s, x->p->store_dirs, x->p->n_store_dirs, images, NULL, e));
    for (int l = 0; l < store_n_layers(s); l++)
        for (int i = 0; i < store_get_layer(s, l)->n_expert; i++) {
            store_expert_blob(s, l, i, &b);
            x->f->n_unprepared += !b.packed;
        }
out:
    mem_free(images);
    store_close(&s);
    return code;
}

static err_code gather(struct gathering *x, const char *path, struct err *e)
{
    struct plan_facts *f = x->f;
    TRY(open_device(x, e));
    TRY(take_names(x, path, e));
    f->process_bytes = x->p->process_bytes ? x->p->process_bytes : process_bytes();
    const struct model_load_params p = {.describes_experts = true, .mtp = x->p->mtp, .device = x->null};
    TRY(model_load(&x->model, x->g, &p, e));
    f->n_layer = x->model->n_trunk;
    f->n_vocab = x->model->n_vocab;
    f->n_ctx_train = x->model->n_ctx_train;
    list_lengths(f, x->p->n_ctx ? x->p->n_ctx : min_i64(PLANNING_CTX, f->n_ctx_train));
    TRY(list_layers(x, e));
    TRY(size_all(x, e));
    if (x->p->n_store_dirs)
        TRY(look_at_store(x, e));
    TRY(read_usage(x, e));
    return read_curve(x, e);
}

err_code planning_facts_describe(struct plan_facts *f, const struct gguf *g, const char *path,
                                 const struct planning_facts_params *p, struct err *e)
{
    struct gathering x = {.f = f, .p = p, .g = g};
    *f = (struct plan_facts){0};
    err_code code = gather(&x, path, e);
    model_close(&x.model);
    backend_close(&x.null);
    backend_close(&x.cpu);
    pool_close(&x.pool);
    return code;
}

err_code planning_facts_read(struct plan_facts *f, const char *path, const struct planning_facts_params *p,
                             struct err *e)
{
    struct gguf *g = NULL;
    struct moebius_vocab vocab = {0};
    struct planning_facts_params known = *p;
    bool is_header = false;
    err_code code = model_open_gguf(&g, path, &is_header, &p->overrides, e);
    if (code == ERR_OK)
        code = vocab_fill(&vocab, g, e);
    if (is_header) /* of which model a store is, the tensors' bytes tell */
        known.n_store_dirs = 0;
    if (code == ERR_OK)
        code = planning_facts_describe(f, g, path, &known, e);
    else
        *f = (struct plan_facts){0};
    if (code == ERR_OK)
        code = gguf_check_overrides(g, e);
    f->is_header = is_header;
    vocab_empty(&vocab);
    gguf_close(&g);
    return code;
}

void planning_facts_close(struct plan_facts *f)
{
    mem_free((void *)f->layers);
    mem_free((void *)f->mass);
    mem_free((void *)f->curve);
    *f = (struct plan_facts){0};
}
