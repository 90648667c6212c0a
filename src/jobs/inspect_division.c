/* How a model's experts would be divided among devices. */
#include "base/mem.h"
#include "base/pool.h"
#include "engine/cache_file.h"
#include "experts/usage.h"
#include "jobs/inspect_internal.h"
#include "kernels/kernels.h"

/* The sizes of slots on a CPU device. */
static err_code measure_slots(struct inspect_division *d, const struct model *m, struct err *e)
{
    enum cpu_level level;
    struct pool *pool = NULL;
    struct backend *cpu = NULL;
    err_code code;
    d->slot_bytes = mem_calloc((size_t)m->n_moe_layer, sizeof *d->slot_bytes);
    if (!d->slot_bytes)
        return err_nomem(e, (size_t)m->n_moe_layer * sizeof *d->slot_bytes, "the division");
    TRY_OUT(cpu_level_detect(&level, e));
    TRY_OUT(pool_create(&pool, 1, e));
    TRY_OUT(backend_cpu_open(&cpu, pool, kernels_for(level), e));
    for (int i = 0; i < m->n_moe_layer; i++)
        d->slot_bytes[i] = backend_slot_pool_slot_bytes(cpu, &m->expert_layers[i].shape);
out:
    backend_close(&cpu);
    pool_close(&pool);
    return code;
}

static err_code read_usage(struct usage *past, const char *path, const struct gguf *g, const struct model *m,
                           struct err *e)
{
    char *text = NULL;
    size_t n;
    int64_t n_expert = 0;
    *past = (struct usage){0};
    if (!path)
        return ERR_OK;
    for (int i = 0; i < m->n_moe_layer; i++)
        n_expert = m->expert_layers[i].n_expert > n_expert ? m->expert_layers[i].n_expert : n_expert;
    TRY(cache_file_read(path, &text, &n, e));
    if (!text)
        return err_set(e, ERR_IO, "%s: expected a file of counts, there is none", path);
    err_code code = usage_parse(past, text, n, path, gguf_fingerprint(g), m->n_moe_layer, n_expert, e);
    mem_free(text);
    return code;
}

err_code inspect_division_open(struct inspect_division *d, const struct inspect_params *p, const struct gguf *g,
                               const struct model *m, struct err *e)
{
    struct division_place places[ENGINE_MAX_DEVICE];
    struct usage past;
    *d = (struct inspect_division){0};
    TRY(device_options_parse(&d->asked, p->devices, 1, 1, p->split, e));
    if (d->asked.split.kind == SPLIT_STAGES)
        return err_set(e, ERR_USAGE, "split %s: it divides layers, not their experts; expected another one", p->split);
    if (d->asked.split.kind == SPLIT_GATE)
        return err_set(e, ERR_USAGE, "split %s: runs decide that when they begin; expected another one", p->split);
    if (m->n_moe_layer == 0)
        return err_set(e, ERR_USAGE, "%s: no routed experts that could be divided", gguf_file_path(g, 0));
    device_options_places(&d->asked, places);
    d->asked.split.replica_bytes = (size_t)p->replica_bytes;
    d->asked.split.replica_share = p->replica_share;
    TRY(measure_slots(d, m, e));
    TRY(read_usage(&past, p->usage, g, m, e));
    err_code code = division_make(&d->division, m->expert_layers, d->slot_bytes, m->n_moe_layer, places,
                                  d->asked.n_device, &d->asked.split, past.count ? &past : NULL, e);
    usage_close(&past);
    return code;
}

void inspect_division_close(struct inspect_division *d)
{
    division_close(&d->division);
    mem_free(d->slot_bytes);
    d->slot_bytes = NULL;
}

uint64_t inspect_division_n_replica(const struct inspect_division *d, int place)
{
    const struct division *x = &d->division;
    uint64_t n = 0;
    for (int64_t i = 0; i < x->n_layer * x->n_expert; i++)
        n += x->holders[i] >> place & 1 && x->holders[i] != UINT64_C(1) << place;
    return n;
}

bool inspect_division_has(const struct inspect_division *d, int place, int layer, int64_t expert)
{
    return d->division.holders[layer * d->division.n_expert + expert] >> place & 1;
}

void inspect_division_sum(const struct inspect_division *d, const struct model *m, int place, uint64_t *n_expert,
                          uint64_t *n_bytes)
{
    *n_expert = *n_bytes = 0;
    for (int l = 0; l < m->n_moe_layer; l++)
        for (int64_t i = 0; i < m->expert_layers[l].n_expert; i++)
            if (inspect_division_has(d, place, l, i)) {
                ++*n_expert;
                *n_bytes += d->slot_bytes[l];
            }
}
