/* llama4: Scout and Maverick. Three of four layers attend within chunks of the text and are rotated, q and k then
 * brought to RMS 1 in all but the model of 128 experts; every fourth attends to everything, is not rotated, and has
 * queries that grow with the position. Dense and MoE layers alternate in some; sigmoid weights of the chosen experts
 * multiply what goes into them; a shared expert. */
#include "model/loader.h"

/* What the published models have, and files don't say. */
enum { FULL_PERIOD = 4, CHUNK = 8192, TEMPERATURE_SPAN = 8192, N_EXPERT_WITHOUT_NORMS = 128 };
#define TEMPERATURE 0.1f

err_code arch_llama4_load(struct loader *l, struct err *e)
{
    static const struct transformer_rules rules = {.rope = ROPE_NORMAL, .moe = {.score = ROUTE_SIGMOID}};
    struct model *m = l->m;
    int64_t chunk = CHUNK, n_expert = 0;
    TRY(load_transformer(l, &rules, e));
    TRY(load_u32_opt(l, "attention.sliding_window", &chunk, e));
    TRY(load_u32(l, "expert_count", &n_expert, e));
    if (chunk < 1)
        return err_set(e, ERR_UNSUPPORTED, "%s: llama4.attention.sliding_window is 0, expected the size of a chunk",
                       gguf_file_path(l->g, 0));
    int temperature = load_add_temperature(m, m->layers[0].attn.n_rot, TEMPERATURE, TEMPERATURE_SPAN, 1);
    for (int64_t i = 0; i < m->n_layer; i++) {
        struct attention *a = &m->layers[i].attn;
        if (a->n_rot != a->head_dim)
            return err_set(e, ERR_UNSUPPORTED, "%s: llama4.rope.dimension_count is %lld, expected the head's %lld",
                           gguf_file_path(l->g, 0), (long long)a->n_rot, (long long)a->head_dim);
        TRY(load_is_windowed(l, i, FULL_PERIOD, false, &a->chunked, e));
        m->layers[i].moe.weighs_input = true;
        if (!a->chunked) {
            a->rope_table = -1;
            a->q_rope_table = temperature;
            continue;
        }
        a->window = chunk;
        a->rope_first = true;
        a->q_norm_len = a->k_norm_len = n_expert == N_EXPERT_WITHOUT_NORMS ? 0 : a->head_dim;
    }
    return ERR_OK;
}
