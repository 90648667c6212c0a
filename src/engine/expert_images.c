#include "engine/expert_images.h"

err_code expert_images(struct backend *device, const struct store *s, struct layout_image **out, struct err *e)
{
    int n = store_n_layers(s);
    *out = mem_calloc((size_t)n + 1, sizeof **out);
    if (!*out)
        return err_nomem(e, (size_t)n * sizeof **out, "the experts' layouts");
    for (int i = 0; i < n; i++) {
        const struct store_layer *l = store_get_layer(s, i);
        const struct slot_pool_desc d = {
            .type = {l->part[EXPERT_GATE].type, l->part[EXPERT_UP].type, l->part[EXPERT_DOWN].type},
            .n_embd = (int64_t)l->part[EXPERT_GATE].k,
            .n_ff = (int64_t)l->part[EXPERT_GATE].n_row,
            .n_slot = 1,
            .is_ungated = l->part[EXPERT_DOWN].k != l->part[EXPERT_GATE].n_row};
        if (l->n_expert && !backend_slot_pool_image(device, &d, &(*out)[i])) {
            mem_free(*out);
            *out = NULL;
            return err_set(e, ERR_USAGE,
                           "a prepared store can't be used with --check-ops: its experts are packed already");
        }
    }
    return ERR_OK;
}
