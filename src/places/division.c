#include "places/division.h"

#include <string.h>

#include "base/mem.h"

err_code division_make(struct division *out, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                       const struct division_place *places, int n_place, const struct split *split,
                       const struct usage *past, struct err *e)
{
    *out = (struct division){.n_place = n_place, .n_layer = n_layer};
    for (int i = 0; i < n_layer; i++)
        out->n_expert = layers[i].n_expert > out->n_expert ? layers[i].n_expert : out->n_expert;
    out->holders = mem_calloc((size_t)n_layer, (size_t)out->n_expert * sizeof *out->holders);
    if (!out->holders)
        return err_nomem(e, 1, "the division");
    for (int64_t i = 0; i < n_layer * out->n_expert; i++)
        out->holders[i] = (uint64_t)1 << ((i * 2654435761u + split->seed * 977) / 64 % (uint64_t)n_place);
    return ERR_OK;
}

void division_close(struct division *d)
{
    mem_free(d->holders);
    *d = (struct division){0};
}

void division_is_here(const struct division *d, int place, int layer, bool *is_here)
{
    for (int64_t i = 0; i < d->n_expert; i++)
        is_here[i] = d->holders[layer * d->n_expert + i] >> place & 1;
}

void division_choose(const struct division *d, const struct division_place *places, int layer, const int32_t *ids,
                     int64_t n, uint8_t *place)
{
    for (int64_t i = 0; i < n; i++)
        place[i] = (uint8_t)__builtin_ctzll(d->holders[layer * d->n_expert + ids[i]]);
}

err_code split_parse(const char *text, struct split *out, double *shares, int *n_share, struct err *e)
{
    *out = (struct split){.kind = SPLIT_RANDOM, .seed = (uint64_t)text[strlen(text) - 1]};
    *n_share = 0;
    return ERR_OK;
}
