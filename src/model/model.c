#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#include "model/ask.h"
#include "model/loader.h"

const char *model_arch_names(void)
{
#define ARCH(name, suffix) ", " name
    static const char names[] =
#include "model/arch_list.def"
#undef ARCH
        ;
    return names + 2;
}

static arch_load_fn *arch_loader(struct gguf_string name, const char **kept)
{
#define ARCH(arch, suffix)                                                                                             \
    if (name.n == strlen(arch) && !memcmp(name.s, arch, name.n)) {                                                     \
        *kept = arch;                                                                                                  \
        return arch_##suffix##_load;                                                                                   \
    }
#include "model/arch_list.def"
#undef ARCH
    return NULL;
}

uint64_t model_load_bytes(const struct gguf *g)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++)
        n += gguf_tensor_at(g, i)->n_bytes;
    return n;
}

/* Whether a tensor belongs to the layers after the last, which predict further tokens and are not used here. */
static bool is_nextn(const struct loader *l, const char *name)
{
    return !strncmp(name, "blk.", 4) && strtoll(name + 4, NULL, 10) >= l->m->n_layer;
}

/* Tensors that no block asked for: harmless or a sign that the result will be wrong, so they are named. */
static void warn_unused(const struct loader *l)
{
    uint64_t n_unused = 0, first = 0;
    for (uint64_t i = gguf_n_tensors(l->g); i-- > 0;)
        if (!l->used[i] && !is_nextn(l, gguf_tensor_at(l->g, i)->name)) {
            n_unused++;
            first = i;
        }
    if (n_unused)
        log_line(l->p->log, LOG_WARN, "%s: %llu tensors are not used by architecture %s, the first is %s",
                 gguf_file_path(l->g, 0), (unsigned long long)n_unused, l->m->arch, gguf_tensor_at(l->g, first)->name);
}

struct expert_progress {
    struct loader *l;
    uint64_t n_before;
};

static void expert_progress(void *user, uint64_t n_bytes)
{
    const struct expert_progress *p = user;
    p->l->p->progress(p->l->p->user, p->n_before + n_bytes);
}

static err_code load_experts(struct loader *l, struct err *e)
{
    struct model *m = l->m;
    const struct model_load_params *p = l->p;
    if (m->n_moe_layer == 0 || (!p->store && !p->describes_experts))
        return ERR_OK;
    const struct experts_params params = {.device = p->device,
                                          .store = p->store,
                                          .pool = p->pool,
                                          .policy = p->policy,
                                          .budget_bytes = p->expert_budget_bytes,
                                          .budget_share = p->expert_budget_share,
                                          .deterministic = p->deterministic};
    TRY(experts_create(&m->experts, &params, l->expert_layers, m->n_moe_layer, e));
    struct expert_progress progress = {l, atomic_load(&l->n_read)};
    return experts_load(m->experts, p->progress ? expert_progress : NULL, &progress, e);
}

err_code model_load(struct model **out, const struct gguf *g, const struct model_load_params *params, struct err *e)
{
    err_code code;
    struct loader l = {.g = g, .p = params};
    *out = NULL;
    struct model *m = l.m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_nomem(e, sizeof *m, "the model");
    m->device = params->device;
    if (params->store)
        TRY_OUT(model_ask(g, params, m->cache_refusals, e));
    struct gguf_string arch;
    TRY_OUT(gguf_need_string(g, "general.architecture", &arch, e));
    arch_load_fn *load = arch_loader(arch, &m->arch);
    if (!load) {
        code = err_set(e, ERR_UNSUPPORTED, "%s: architecture \"%.40s\" is not known; known are %s",
                       gguf_file_path(g, 0), arch.s, model_arch_names());
        goto out;
    }
    size_t n = gguf_n_tensors(g);
    m->weights_capacity = 4 * n; /* a tensor may be loaded in parts */
    m->weights = arena_calloc(&m->arena, m->weights_capacity, sizeof *m->weights);
    m->buffers = arena_calloc(&m->arena, n, sizeof *m->buffers);
    l.used = mem_calloc(n, sizeof *l.used);
    if (!m->weights || !m->buffers || !l.used) {
        code = err_nomem(e, n * sizeof *m->weights, "the model");
        goto out;
    }
    TRY_OUT(load(&l, e));
    warn_unused(&l);
    TRY_OUT(load_experts(&l, e));
out:
    mem_free(l.expert_layers);
    mem_free(l.used);
    if (code != ERR_OK)
        model_close(&m);
    *out = m;
    return code;
}

void model_close(struct model **out)
{
    struct model *m = *out;
    if (!m)
        return;
    experts_close(&m->experts);
    for (size_t i = 0; i < m->n_weights; i++)
        backend_weight_close(m->device, &m->weights[i]);
    for (size_t i = 0; i < m->n_buffers; i++)
        backend_buffer_close(m->device, &m->buffers[i]);
    arena_close(&m->arena);
    mem_free(m);
    *out = NULL;
}
