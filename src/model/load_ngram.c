/* Embeddings of n-grams, as files have them: "ple.*". */
#include <string.h>

#include "gguf/gguf.h"
#include "model/loader.h"
#include "store/store.h"

static const char TABLE[] = "per_layer_token_embd.weight";

/* Reads the first n elements of an array of integers, which must have as many, of at most `most`. */
static err_code load_numbers(struct loader *l, const char *suffix, uint64_t most, uint64_t *out, int64_t n,
                             struct err *e)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    const struct gguf_value *v = gguf_find(l->g, key);
    bool is_list = v && v->type == GGUF_ARRAY && (v->arr.type == GGUF_U64 || v->arr.type == GGUF_I64);
    if (!is_list || v->arr.n < (uint64_t)n)
        return err_set(e, ERR_FORMAT, "%s: key %s: expected an array of at least %lld 64-bit integers",
                       gguf_file_path(l->g, 0), key, (long long)n);
    memcpy(out, v->arr.data, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        if (out[i] > most)
            return err_set(e, ERR_FORMAT, "%s: key %s: number %lld is %llu, expected at most %llu",
                           gguf_file_path(l->g, 0), key, (long long)i, (unsigned long long)out[i],
                           (unsigned long long)most);
    return ERR_OK;
}

/* Checks the heads' ranges of rows. *n_row: how many rows a table needs for them. */
static err_code check_ranges(struct loader *l, const struct ngram_table *g, uint64_t *n_row, struct err *e)
{
    *n_row = 0;
    for (int64_t i = 0; i < g->n_head; i++) {
        uint64_t end = g->first_row[i] + g->n_row[i];
        if (g->n_row[i] == 0)
            return err_set(e, ERR_FORMAT, "%s: key %s.ple.head_vocab_sizes: number %lld is 0, expected at least 1",
                           gguf_file_path(l->g, 0), l->m->arch, (long long)i);
        *n_row = end > *n_row ? end : *n_row;
    }
    return ERR_OK;
}

static err_code find_table(struct loader *l, struct ngram_table *g, struct err *e)
{
    const struct gguf_tensor *t = gguf_tensor_find(l->g, TABLE);
    const char *path = gguf_file_path(l->g, t ? t->file : 0);
    uint64_t n_row;
    TRY(check_ranges(l, g, &n_row, e));
    if (!t)
        return err_set(e, ERR_FORMAT, "%s: tensor %s is missing", path, TABLE);
    if (!t->info)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s has type %u, which this version does not know", path, TABLE,
                       t->type_id);
    if (t->ne[0] != (uint64_t)g->width || t->ne[1] < n_row || t->ne[2] != 1 || t->ne[3] != 1)
        return err_set(e, ERR_FORMAT, "%s: tensor %s has shape [%llu, %llu, %llu], expected [%lld, %llu or more]", path,
                       TABLE, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                       (long long)g->width, (unsigned long long)n_row);
    l->used[t - gguf_tensor_at(l->g, 0)] = true;
    quant_row_bytes(t->info, t->ne[0], &g->row_bytes);
    g->store = l->p->store;
    g->type = t->info;
    g->name = arena_strndup(&l->m->arena, TABLE, strlen(TABLE));
    g->file = t->file;
    g->offset = t->offset;
    return g->name ? ERR_OK : err_nomem(e, sizeof TABLE, "a name");
}

static err_code load_table_sizes(struct loader *l, struct ngram_table *g, struct err *e)
{
    int64_t eos;
    TRY(load_u32(l, "ple.ngram_size", &g->most_tokens, e));
    TRY(load_u32(l, "ple.heads_per_ngram", &g->per_length, e));
    TRY(load_u32(l, "ple.eos_token_id", &eos, e));
    TRY(load_u32(l, "embedding_length_per_layer_input", &g->width, e));
    g->n_head = (g->most_tokens - 1) * g->per_length;
    if (g->most_tokens < 2 || g->most_tokens > NGRAM_MAX_TOKENS || g->n_head < 1 || g->n_head > NGRAM_MAX_HEAD ||
        g->width < 1)
        return err_set(e, ERR_FORMAT,
                       "%s: %s.ple.*: n-grams of up to %lld tokens, %lld rows of %lld for each length: expected 2 to "
                       "%d tokens, and 1 to %d rows of at least 1 in all",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)g->most_tokens, (long long)g->per_length,
                       (long long)g->width, NGRAM_MAX_TOKENS, NGRAM_MAX_HEAD);
    g->eos = (int32_t)eos;
    TRY(load_numbers(l, "ple.layer_multipliers", UINT64_MAX, g->factor, g->most_tokens, e));
    TRY(load_numbers(l, "ple.head_offsets", UINT32_MAX, g->first_row, g->n_head, e));
    return load_numbers(l, "ple.head_vocab_sizes", UINT32_MAX, g->n_row, g->n_head, e);
}

/* Loads the taps of a convolution over all tokens. The file has those of every most_tokens-th token; the others are
 * zeros. */
static err_code load_taps(struct loader *l, int64_t layer, int64_t n, struct tensor *out, struct err *e)
{
    struct tensor from;
    struct backend *device = load_device(l, layer);
    int64_t n_tap, step = l->m->ngram.most_tokens;
    TRY(load_u32(l, "ple.conv_kernel", &n_tap, e));
    if (n_tap < 2 || n_tap > (OP_CONV_MAX_TAP - 1) / step + 1)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s.ple.conv_kernel is %lld, of every %lldth token: expected 2 to %lld",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)n_tap, (long long)step,
                       (long long)((OP_CONV_MAX_TAP - 1) / step + 1));
    int64_t n_all = (n_tap - 1) * step + 1;
    TRY(load_table(l, layer, "ple_conv1d.weight", n_tap, n, true, &from, e));
    TRY(load_new_tensor(l, layer, n, n_all, out, e));
    float *taps = mem_calloc((size_t)(n_tap * n), sizeof *taps), *to = mem_calloc((size_t)(n_all * n), sizeof *to);
    err_code code = taps && to ? backend_read(device, &from, taps, e)
                               : err_nomem(e, (size_t)(n_all * n) * sizeof *to, "a convolution");
    if (code == ERR_OK) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n_tap; j++)
                to[j * step * n + i] = taps[i * n_tap + j];
        backend_write(device, out, to);
    }
    mem_free(taps);
    mem_free(to);
    return code;
}

static err_code load_weights(struct loader *l, int64_t layer, struct err *e)
{
    const struct model *m = l->m;
    struct ngram_weights *w = &l->m->layers[layer].ngram;
    int64_t n_embd = m->n_embd, n_in = m->ngram.n_head * m->ngram.width, n_all = m->n_stream * n_embd;
    TRY(load_weight(l, layer, "ple_key.weight", n_in, n_all, &w->key, e));
    TRY(load_weight(l, layer, "ple_value.weight", n_in, n_embd, &w->value, e));
    TRY(load_stream_norm(l, layer, "ple_norm_key.weight", &w->key_norm, e));
    TRY(load_stream_norm(l, layer, "ple_norm_query.weight", &w->x_norm, e));
    TRY(load_stream_norm(l, layer, "ple_norm_conv.weight", &w->gated_norm, e));
    return load_taps(l, layer, n_all, &w->conv, e);
}

err_code load_ngrams(struct loader *l, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    struct model *m = l->m;
    load_key(l, "ple.layers", key);
    const struct gguf_value *v = gguf_find(l->g, key);
    if (!v)
        return ERR_OK;
    bool is_list = v->type == GGUF_ARRAY && (v->arr.type == GGUF_U32 || v->arr.type == GGUF_I32);
    if (is_list && v->arr.n == 0)
        return ERR_OK;
    int64_t layer = is_list ? ((const int32_t *)v->arr.data)[0] : -1;
    if (!is_list || v->arr.n != 1 || layer < 0 || layer >= m->n_layer || !m->layers[layer].is_recurrent)
        return err_set(e, ERR_UNSUPPORTED, "%s: key %s: expected one recurrent layer", gguf_file_path(l->g, 0), key);
    TRY(load_table_sizes(l, &m->ngram, e));
    TRY(find_table(l, &m->ngram, e));
    return load_weights(l, layer, e);
}
