/* Attention over a window and a compressed cache (DeepSeek V4). Keys of one head are values, too; where there is an
 * index, it chooses which entries a token sees. */
#include "model/mix_internal.h"

void mix_make_entries(const struct pass *p, const struct attention *a, const struct compressor *c,
                      const struct entry_caches *to, int64_t rot_first, const struct tensor *h)
{
    static const struct paged none;
    const struct entry_list *list = &p->entries[a->compressed.list];
    const struct tensor x = tensor_shaped(p->w->compress_x, c->width, p->n),
                        gate = tensor_shaped(p->w->compress_gate, c->width, p->n),
                        entry = tensor_shaped(p->w->entry, c->n, list->n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {x, gate}, .weight = {c->x, c->gate}});
    if (c == &a->compressed.index && a->index.k_norm.buffer)
        mix_norm_index(p, &a->index, &x);
    mix_store(p, to->part_kind, &x, to->x);
    if (c->gate)
        mix_store(p, to->part_kind, &gate, to->gate);
    if (list->n == 0)
        return;
    backend_enqueue(p->b, &(struct op){.kind = OP_COMPRESS,
                                       .in = {[COMPRESS_AT] = list->at,
                                              [COMPRESS_TABLE] = list->table,
                                              [COMPRESS_PAGES] = mix_pages(p, to->part_kind)},
                                       .out = {entry},
                                       .vec = {c->bias},
                                       .state = {*to->x, c->gate ? *to->gate : none}});
    if (c->norm.buffer)
        block_norm(p, &entry, &c->norm, c->n, &entry);
    if (a->rope_table >= 0)
        backend_enqueue(p->b, &(struct op){.kind = OP_ROPE,
                                           .in = {entry, list->rope},
                                           .out = {entry},
                                           .rope = {a->rope, c->n, a->n_rot, rot_first}});
    backend_enqueue(p->b, &(struct op){.kind = OP_KV_STORE,
                                       .in = {[KV_STORE_X] = entry,
                                              [KV_STORE_POS] = list->index,
                                              [KV_STORE_TABLE] = list->table,
                                              [KV_STORE_PAGES] = mix_pages(p, to->kind)},
                                       .state = {*to->out}});
}

/* The entries that the tokens see; absent: all. */
static struct tensor choose_entries(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                                    const struct tensor *q_latent, const struct tensor *h)
{
    const struct position_index *x = &a->index;
    int64_t ratio = a->compressed.ratio;
    struct tensor q = tensor_shaped(p->w->index_q, x->n_head * x->dim, p->n);
    struct tensor weights = tensor_shaped(p->w->index_weights, x->n_head, p->n);
    if (x->n_head == 0 || block_sees_all(p, x->n_chosen * ratio + ratio - 1))
        return (struct tensor){0};
    const struct tensor chosen =
        tensor_rows(tensor_shaped(p->w->chosen, x->n_chosen, p->w->chosen.ne[1]), p->first, p->n);
    const struct attention how = {
        .rope = x->rope, .head_dim = x->dim, .n_rot = a->n_rot, .rot_first = x->dim - a->n_rot};
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {weights}, .weight = {x->weights}});
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*q_latent}, .out = {q}, .weight = {x->q}});
    mix_rope(p, &how, a->q_rope_table, &q);
    backend_enqueue(p->b, &(struct op){.kind = OP_INDEX,
                                       .in = {[INDEX_Q] = q,
                                              [INDEX_POS] = p->pos,
                                              [INDEX_TABLE] = p->table,
                                              [INDEX_PAGES] = mix_pages(p, kv->entry_kind),
                                              [INDEX_WEIGHTS] = weights},
                                       .out = {chosen},
                                       .state = {kv->index},
                                       .index = {.ratio = ratio}});
    return chosen;
}

void mix_store_window(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                      const struct tensor *k)
{
    block_norm(p, k, &a->k_norm, a->head_dim, k);
    mix_rope(p, a, a->rope_table, k);
    mix_store(p, kv->kind, k, &kv->k);
}

void mix_compressed(const struct pass *p, const struct attention *a, const struct layer_pages *kv,
                    const struct tensor *h)
{
    static const struct tensor no_weights;
    const struct compressed_attention *c = &a->compressed;
    int64_t n = p->n, dim = a->head_dim, n_q = a->n_head * dim, n_in = n_q / c->n_group;
    struct tensor q_latent = tensor_shaped(p->w->q_latent, a->n_q_latent, n), q = tensor_shaped(p->w->q, n_q, n);
    struct tensor k = tensor_shaped(p->w->k, dim, n), out = tensor_shaped(p->w->attn, n_q, n);
    struct tensor grouped = tensor_shaped(p->w->z, c->n_group * c->n_group_out, n);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {*h}, .out = {q_latent, k}, .weight = {a->q_a, a->k}});
    block_norm(p, &q_latent, &a->q_a_norm, a->n_q_latent, &q_latent);
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {q_latent}, .out = {q}, .weight = {a->q}});
    block_norm(p, &q, &no_weights, dim, &q);
    mix_rope(p, a, a->q_rope_table, &q);
    mix_store_window(p, a, kv, &k);
    struct op attend = mix_attention(p, a, kv, &q, &out);
    attend.attention.ratio = c->ratio;
    if (c->ratio) {
        const struct entry_caches entries = {&kv->compress_x, &kv->compress_gate, kv->kind, &kv->entries,
                                             kv->entry_kind},
                                  index = {&kv->index_x, &kv->index_gate, kv->part_kind, &kv->index, kv->entry_kind};
        mix_make_entries(p, a, &c->entries, &entries, c->entries.n - a->n_rot, h);
        if (c->index.n)
            mix_make_entries(p, a, &c->index, &index, c->index.n - a->n_rot, h);
        attend.in[ATTENTION_CHOSEN] = choose_entries(p, a, kv, &q_latent, h);
        attend.in[ATTENTION_ENTRY_PAGES] = mix_pages(p, kv->entry_kind);
        attend.state[ATTENTION_ENTRIES] = kv->entries;
    }
    backend_enqueue(p->b, &attend);
    mix_rope(p, a, c->inverse_rope, &out);
    mix_heads(p, c->o_a, c->n_group, (struct head_part){&out, 0, n_in},
              (struct head_part){&grouped, 0, c->n_group_out});
    backend_enqueue(p->b, &(struct op){.kind = OP_MATMUL, .in = {grouped}, .out = {*h}, .weight = {a->o}});
}
