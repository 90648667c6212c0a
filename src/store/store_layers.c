/* Where the routed experts lie in a GGUF. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/model_limits.h"
#include "store/store_internal.h"

static const struct gguf_tensor *find(const struct gguf *g, int layer, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", layer, what);
    const struct gguf_tensor *t = gguf_tensor_find(g, name);
    return t && t->info && t->ne[3] == 1 && t->n_bytes > 0 ? t : NULL;
}

/* All rows of each expert's part of a tensor, or one of the two halves of one that stands for gate and up. */
static struct store_matrix matrix(const struct gguf *g, const struct gguf_tensor *t, uint64_t half, uint64_t n_half)
{
    uint64_t stride = t->n_bytes / t->ne[2];
    return (struct store_matrix){.type = t->info,
                                 .tensor = (uint64_t)(t - gguf_tensor_at(g, 0)),
                                 .n_row = t->ne[1] / n_half,
                                 .k = t->ne[0],
                                 .file = t->file,
                                 .offset = t->offset + stride / n_half * half,
                                 .stride_bytes = stride,
                                 .n_bytes = (size_t)(stride / n_half)};
}

static void find_layer(const struct gguf *g, int layer, struct store_layer *out)
{
    const struct gguf_tensor *down = find(g, layer, "down"), *fused = find(g, layer, "gate_up");
    const struct gguf_tensor *gate = fused ? fused : find(g, layer, "gate"), *up = fused ? fused : find(g, layer, "up");
    const bool is_ungated = !gate && up;
    uint64_t n_half = fused || is_ungated ? 2 : 1;
    gate = gate ? gate : up;
    if (!down || !gate || !up || gate->ne[1] % n_half || down->ne[2] > INT32_MAX || gate->ne[2] != down->ne[2] ||
        up->ne[2] != down->ne[2])
        return;
    struct store_layer l = {
        .n_expert = (int)down->ne[2],
        .part = {matrix(g, gate, 0, n_half), matrix(g, up, n_half - 1, n_half), matrix(g, down, 0, 1)}};
    const struct store_matrix *p = l.part;
    if (p[0].n_row == p[1].n_row && p[0].k == p[1].k && p[2].n_row == p[0].k &&
        p[2].k == (is_ungated ? 2 * p[0].n_row : p[0].n_row))
        *out = l;
}

/* Refuses more experts than a model may have. */
static err_code check_limits(const struct gguf *g, const struct store_layer *layers, int n, struct err *e)
{
    uint64_t n_moe = 0, most = 0;
    for (int i = 0; i < n; i++) {
        uint64_t n_expert = (uint64_t)layers[i].n_expert;
        n_moe += n_expert > 0;
        most = n_expert > most ? n_expert : most;
    }
    if (most <= LIMIT_EXPERTS && n_moe * most <= LIMIT_ALL_EXPERTS)
        return ERR_OK;
    return err_set(e, ERR_LIMIT,
                   "%s: %" PRIu64 " layers of up to %" PRIu64 " experts: expected at most %d in a layer and %d in all",
                   gguf_file_path(g, 0), n_moe, most, LIMIT_EXPERTS, LIMIT_ALL_EXPERTS);
}

err_code store_layers_find(const struct gguf *g, struct store_layer **out, int *n, struct err *e)
{
    uint64_t n_tensors = gguf_n_tensors(g), n_layers = 0;
    for (uint64_t i = 0; i < n_tensors; i++) {
        const char *name = gguf_tensor_at(g, i)->name;
        uint64_t layer = strncmp(name, "blk.", 4) ? 0 : strtoull(name + 4, NULL, 10);
        if (layer < LIMIT_LAYERS && layer >= n_layers)
            n_layers = layer + 1;
    }
    *n = (int)n_layers;
    *out = mem_calloc(n_layers ? (size_t)n_layers : 1, sizeof **out);
    if (!*out)
        return err_nomem(e, (size_t)n_layers * sizeof **out, "the directory of experts");
    for (int i = 0; i < *n; i++)
        find_layer(g, i, &(*out)[i]);
    err_code code = check_limits(g, *out, *n, e);
    if (code != ERR_OK) {
        mem_free(*out);
        *out = NULL;
    }
    return code;
}
