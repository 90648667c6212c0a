/* Embeddings of n-grams: which rows of the table tokens have, reading them, and what they add to the residual streams.
 */
#include <assert.h>

#include "base/minmax.h"
#include "model/layer_blocks.h"
#include "store/store.h"

/* The rows of the token at pos of a text. */
static void find_rows(const struct ngram_table *g, const int32_t *ids, int64_t pos, uint64_t *rows)
{
    uint64_t mixed = (uint64_t)ids[pos] * g->factor[0];
    bool is_cut = false;
    for (int64_t n = 1; n < g->most_tokens; n++) {
        int64_t at = pos - n;
        is_cut = is_cut || at < 0 || ids[at] == g->eos;
        mixed ^= (uint64_t)(is_cut ? g->eos : ids[at]) * g->factor[n];
        for (int64_t head = (n - 1) * g->per_length; head < n * g->per_length; head++)
            rows[head] = g->first_row[head] + mixed % g->n_row[head];
    }
}

void block_find_ngrams(const struct pass *p)
{
    const struct ngram_table *g = &p->m->ngram;
    struct store_range *range = p->w->ngram_ranges;
    uint64_t rows[NGRAM_MAX_HEAD] = {0};
    for (int64_t r = 0; r < p->n_rows; r++) {
        const struct model_state *s = p->rows[r].state;
        for (int64_t i = 0; i < p->rows[r].n; i++) {
            find_rows(g, s->ids, s->pos + i, rows);
            for (int64_t head = 0; head < g->n_head; head++)
                *range++ = (struct store_range){
                    .file = g->file, .offset = g->offset + rows[head] * g->row_bytes, .n_bytes = g->row_bytes};
        }
    }
    if (g->store)
        store_read_ahead(g->store, p->w->ngram_ranges, (size_t)(range - p->w->ngram_ranges));
}

/* Reads a ubatch's rows, as they lie in the file, and writes them as floats to the device. */
static err_code read_rows(const struct pass *p, const struct tensor *out, struct err *e)
{
    const struct ngram_table *g = &p->m->ngram;
    struct store_range *ranges = p->w->ngram_ranges + p->first * g->n_head;
    int64_t n = p->n * g->n_head;
    if (!g->store)
        return ERR_OK;
    for (int64_t i = 0; i < n; i++)
        ranges[i].dst = p->w->ngram_bytes + (size_t)i * g->row_bytes;
    if (store_read(g->store, ranges, (size_t)n, e) != ERR_OK)
        return err_prefix(e, "tensor %s", g->name);
    for (int64_t i = 0; i < n; i++)
        g->type->decode(p->w->ngram_bytes + (size_t)i * g->row_bytes, p->w->ngram_rows + i * g->width, g->width);
    backend_write(p->b, out, p->w->ngram_rows);
    return ERR_OK;
}

/* out = silu(conv(x)), for the tokens of p->from and p->to */
static void convolve(const struct pass *p, const struct ngram_weights *w, const struct paged *past,
                     const struct tensor *x, const struct tensor *out)
{
    backend_enqueue(p->b, &(struct op){.kind = OP_CONV,
                                       .in = {[CONV_X] = *x, [CONV_FROM] = p->from, [CONV_TO] = p->to},
                                       .out = {*out},
                                       .vec = {w->conv},
                                       .state = {*past},
                                       .conv = {.has_silu = true}});
}

err_code block_add_ngrams(const struct pass *p, int64_t i, struct err *e)
{
    const struct model *m = p->m;
    const struct ngram_weights *w = &m->layers[i].ngram;
    int64_t n_embd = m->n_embd, n_all = m->n_stream * n_embd, n = p->n;
    if (!w->key)
        return ERR_OK;
    const struct tensor rows = tensor_shaped(p->w->ngram_x, m->ngram.n_head * m->ngram.width, n),
                        value = tensor_shaped(p->w->ngram_value, n_embd, n),
                        gated = tensor_shaped(p->w->stream_gate, n_all, n), x = tensor_shaped(p->spare, n_all, n),
                        out = tensor_shaped(p->w->ngram_out, n_all, n);
    TRY(read_rows(p, &rows, e));
    backend_enqueue(p->b,
                    &(struct op){.kind = OP_MATMUL, .in = {rows}, .out = {gated, value}, .weight = {w->key, w->value}});
    block_norm(p, &gated, &w->key_norm, n_embd, &gated);
    block_norm(p, &p->x, &w->x_norm, n_embd, &x);
    backend_enqueue(
        p->b,
        &(struct op){.kind = OP_STREAMS_MATCH,
                     .in = {[STREAMS_MATCH_KEY] = gated, [STREAMS_MATCH_QUERY] = x, [STREAMS_MATCH_VALUE] = value},
                     .out = {gated}});
    block_norm(p, &gated, &w->gated_norm, n_embd, &x);
    if (p->keeps_inputs)
        block_keep_rows(p, &x, &p->w->inputs.ngram);
    convolve(p, w, &p->pool->layers[i].ngram_past, &x, &out);
    block_add(p, &gated, &out, &out);
    block_add(p, &p->x, &out, &p->x);
    return ERR_OK;
}

void block_ngrams_again(const struct pass *p, int64_t i, int64_t row)
{
    const struct ngram_weights *w = &p->m->layers[i].ngram;
    if (!w->key)
        return;
    const struct tensor x = tensor_rows(p->w->inputs.ngram, row, p->n),
                        out = tensor_shaped(p->w->ngram_out, p->m->n_stream * p->m->n_embd, p->n);
    convolve(p, w, &p->pool->layers[i].ngram_past, &x, &out);
}
