#include "model/work_space.h"

#include "base/minmax.h"
#include "store/store.h"

static struct work_sizes find_sizes(const struct model *m, const struct model_stage *s, int64_t n_logits)
{
    struct work_sizes d = {.n_logits = n_logits,
                           .n_embd = m->n_embd,
                           .n_vocab = m->n_vocab,
                           .n_next = m->n_moe_layer ? m->n_embd : 0,
                           .n_token_embd = m->n_token_embd,
                           .n_token_all = m->n_token_embd * m->n_layer,
                           .n_residual = m->n_stream * m->n_embd,
                           .n_spare = m->n_stream > 1 ? m->n_stream * m->n_embd : 0,
                           .n_mix = m->n_stream_mix,
                           .n_stream_rank = m->n_stream_rank,
                           .n_stream_gate = m->n_stream_rank ? m->n_stream * m->n_embd : 0,
                           .n_bank = m->n_bank * m->n_embd,
                           .n_mtp = m->mtp.n && s->end == m->n_layer ? m->n_stream * m->n_embd : 0,
                           .n_ratio = m->n_ratio,
                           .n_entry_rot = m->ropes[m->entry_rope].n_rot};
    for (int i = 0; i < m->n_rope; i++)
        d.n_rope += m->ropes[i].n_rot;
    for (int64_t i = s->first; i < s->end; i++) {
        const struct layer *y = &m->layers[i];
        const struct attention *a = &y->attn;
        const struct recurrent *r = &y->recurrent;
        const struct position_index *x = &a->index;
        d.n_q = max_i64(d.n_q, max_i64(a->n_head * a->head_dim, a->is_latent ? a->n_gate : 0));
        d.n_k = max_i64(d.n_k, a->n_head_kv * a->head_dim);
        d.n_v = max_i64(d.n_v, a->n_head_kv * a->head_dim_v);
        d.n_out = max_i64(d.n_out, a->n_head * max_i64(a->head_dim_v, max_i64(a->latent.n_nope, a->latent.n_value)));
        d.n_out = max_i64(d.n_out, r->n_out);
        d.n_q_latent = max_i64(d.n_q_latent, a->n_q_latent);
        d.n_out = max_i64(d.n_out, a->compressed.n_group * a->compressed.n_group_out);
        d.n_compress = max_i64(d.n_compress, max_i64(a->compressed.entries.width, a->compressed.index.width));
        d.n_entry = max_i64(d.n_entry, max_i64(a->compressed.entries.n, a->compressed.index.n));
        d.n_q_rot = max_i64(d.n_q_rot, a->is_latent ? a->n_head * a->n_rot : 0);
        d.n_rot = max_i64(d.n_rot, a->is_latent ? a->n_rot : 0);
        d.n_chosen = max_i64(d.n_chosen, model_index_length(x));
        d.sees_earlier |= x->n_chosen && x->n_head == 0;
        d.n_index_q = max_i64(d.n_index_q, x->n_head * x->dim);
        d.n_index_k = max_i64(d.n_index_k, x->dim);
        d.n_index_head = max_i64(d.n_index_head, x->weights ? x->n_head : 0);
        d.n_q = max_i64(d.n_q, r->q ? r->n_head_k * r->dk : 0);
        d.n_k = max_i64(d.n_k, r->k ? r->n_head_k * r->dk : 0);
        d.n_v = max_i64(d.n_v, r->v ? r->n_out : 0);
        d.n_mixed = max_i64(d.n_mixed, r->n_mixed);
        d.n_alpha = max_i64(d.n_alpha, r->n_alpha);
        d.n_rank = max_i64(d.n_rank, r->n_rank);
        d.is_recurrent |= y->is_recurrent;
        if (y->ngram.key)
            d.n_ngram = m->ngram.n_head * m->ngram.width;
        d.n_beta = max_i64(d.n_beta, r->n_beta);
        d.n_ff = max_i64(d.n_ff, y->ffn.n_ff);
        if (y->routes_input || y->moe_sees_input || y->is_parallel)
            d.n_input = m->n_embd;
        if (y->is_moe && y->ffn.down)
            d.n_branch = m->n_embd;
    }
    return d;
}

static err_code create_moe_work(struct stage_work *w, const struct model *m, const struct model_stage *s, struct err *e)
{
    struct moe_layer *all = mem_calloc((size_t)m->n_moe_layer, sizeof *all);
    if (!all)
        return err_nomem(e, (size_t)m->n_moe_layer * sizeof *all, "work space");
    int n = 0;
    for (int64_t i = s->first; i < s->end; i++)
        if (m->layers[i].is_moe)
            all[n++] = m->layers[i].moe;
    err_code code =
        n ? moe_work_create(&w->moe, s->device, s->experts, m->places, all, n, w->sizes.n_batch, e) : ERR_OK;
    mem_free(all);
    return code;
}

#define CREATE(name, type, ne0, ne1)                                                                                   \
    if ((ne0) * (ne1) > 0)                                                                                             \
        TRY(backend_tensor_create(w->device, type, ne0, ne1, 1, MEM_SCRATCH, &w->name, e));

/* Host memory for the rows of n-grams that a ubatch's tokens have. */
static err_code create_ngrams(struct stage_work *w, const struct model *m, struct err *e)
{
    size_t n = (size_t)(m->ngram.n_head * w->sizes.n_ubatch);
    w->ngram_bytes = mem_alloc(n * m->ngram.row_bytes);
    w->ngram_rows = mem_calloc((size_t)(w->sizes.n_ngram * w->sizes.n_ubatch), sizeof *w->ngram_rows);
    return w->ngram_bytes && w->ngram_rows ? ERR_OK : err_nomem(e, n * m->ngram.row_bytes, "rows of n-grams");
}

static err_code create_ubatch(struct stage_work *w, const struct model *m, struct err *e)
{
    const struct work_sizes *d = &w->sizes;
    UBATCH_TENSORS(CREATE)
    if (d->n_ngram)
        TRY(create_ngrams(w, m, e));
    w->host_x = mem_calloc((size_t)d->n_residual, sizeof *w->host_x);
    w->car = mem_calloc(MOE_MAX_CAR, sizeof(const struct car *));
    if (d->n_mtp && !(w->host_logits = mem_calloc((size_t)d->n_vocab, sizeof *w->host_logits)))
        return err_nomem(e, (size_t)d->n_vocab * sizeof *w->host_logits, "logits");
    return w->host_x && w->car ? ERR_OK : err_nomem(e, (size_t)d->n_residual * sizeof *w->host_x, "work space");
}

static err_code create_batch(struct stage_work *w, const struct model *m, const struct model_stage *s, struct err *e)
{
    const struct work_sizes *d = &w->sizes;
    BATCH_TENSORS(CREATE)
    w->host_rows = mem_calloc((size_t)d->n_batch, sizeof *w->host_rows);
    if (!w->host_rows)
        return err_nomem(e, (size_t)d->n_batch * sizeof *w->host_rows, "work space");
    size_t n_row = d->n_ngram ? (size_t)(m->ngram.n_head * d->n_batch) : 0;
    if (n_row && !(w->ngram_ranges = mem_calloc(n_row, sizeof *w->ngram_ranges)))
        return err_nomem(e, n_row * sizeof *w->ngram_ranges, "rows of n-grams");
    return m->n_moe_layer ? create_moe_work(w, m, s, e) : ERR_OK;
}

#undef CREATE

#define CLOSE(name, ...) backend_buffer_close(w->device, &w->name.buffer);

static void close_batch(struct stage_work *w)
{
    BATCH_TENSORS(CLOSE)
    moe_work_close(&w->moe);
    mem_free(w->host_rows);
    mem_free(w->ngram_ranges);
    w->host_rows = NULL;
    w->ngram_ranges = NULL;
    w->sizes.n_batch = 0;
}

static void close_inputs(struct stage_work *w)
{
    backend_buffer_close(w->device, &w->inputs.mixed.buffer);
    backend_buffer_close(w->device, &w->inputs.alpha.buffer);
    backend_buffer_close(w->device, &w->inputs.beta.buffer);
    backend_buffer_close(w->device, &w->inputs.ngram.buffer);
    w->inputs = (struct kept_inputs){0};
}

err_code work_fit_inputs(struct stage_work *w, int64_t n, int64_t n_layer, struct err *e)
{
    struct kept_inputs *x = &w->inputs;
    const struct work_sizes *d = &w->sizes;
    if (n <= x->most_rows)
        return ERR_OK;
    close_inputs(w);
    TRY(backend_tensor_create(w->device, ELEM_F32, d->n_mixed, n * n_layer, 1, MEM_SCRATCH, &x->mixed, e));
    if (d->n_alpha)
        TRY(backend_tensor_create(w->device, ELEM_F32, d->n_alpha, n * n_layer, 1, MEM_SCRATCH, &x->alpha, e));
    if (d->n_beta)
        TRY(backend_tensor_create(w->device, ELEM_F32, d->n_beta, n * n_layer, 1, MEM_SCRATCH, &x->beta, e));
    if (d->n_ngram)
        TRY(backend_tensor_create(w->device, ELEM_F32, d->n_residual, n, 1, MEM_SCRATCH, &x->ngram, e));
    x->most_rows = n;
    return ERR_OK;
}

err_code work_fit_pages(struct stage_work *w, int64_t n, int n_kind, struct err *e)
{
    if (n <= w->most_pages)
        return ERR_OK;
    w->most_pages = 0;
    backend_buffer_close(w->device, &w->pages.buffer);
    mem_free(w->host_pages);
    w->host_pages = mem_calloc((size_t)n, sizeof *w->host_pages);
    if (!w->host_pages)
        return err_nomem(e, (size_t)n * sizeof *w->host_pages, "page tables");
    TRY(backend_tensor_create(w->device, ELEM_I32, n, n_kind, 1, MEM_SCRATCH, &w->pages, e));
    w->most_pages = n;
    return ERR_OK;
}

static void close_stage(struct stage_work *w)
{
    UBATCH_TENSORS(CLOSE)
    close_batch(w);
    close_inputs(w);
    backend_buffer_close(w->device, &w->pages.buffer);
    mem_free(w->host_pages);
    mem_free(w->host_x);
    mem_free(w->host_logits);
    mem_free(w->ngram_bytes);
    mem_free(w->ngram_rows);
    mem_free((void *)w->car);
}

#undef CLOSE

static err_code create_stage(struct stage_work *w, const struct model *m, const struct model_stage *s, int64_t n_batch,
                             int64_t n_logits, struct err *e)
{
    w->device = s->device;
    w->sizes = find_sizes(m, s, n_logits);
    w->sizes.n_ubatch = min_i64(n_batch, MODEL_UBATCH);
    return create_ubatch(w, m, e);
}

static err_code resize_stage(struct stage_work *w, const struct model *m, const struct model_stage *s, int64_t n_batch,
                             struct err *e)
{
    w->sizes.n_batch = n_batch;
    w->sizes.n_recurrent = w->sizes.is_recurrent ? n_batch : 0;
    w->sizes.n_before = w->sizes.n_mtp ? n_batch : 0;
    return create_batch(w, m, s, e);
}

void model_work_close(struct model_work **out)
{
    struct model_work *w = *out;
    if (!w)
        return;
    for (int i = 0; i < w->n_stage; i++)
        close_stage(&w->stages[i]);
    mem_free(w->crossing);
    mem_free(w);
    *out = NULL;
}

static size_t stage_bytes(const struct stage_work *w)
{
    size_t n = moe_work_bytes(w->moe);
#define ADD(name, ...) n += w->name.buffer ? tensor_bytes(&w->name) : 0;
    BATCH_TENSORS(ADD)
#undef ADD
    return n;
}

size_t model_work_token_bytes(const struct model_work *w)
{
    size_t n = 0;
    for (int i = 0; i < w->n_stage; i++)
        n += stage_bytes(&w->stages[i]);
    return n / (size_t)w->stages[0].sizes.n_batch;
}

/* Room for the largest tensor that crosses. */
static err_code create_crossing(struct model_work *w, int64_t n_batch, struct err *e)
{
    const struct work_sizes *d = &w->stages[0].sizes;
    int64_t most = max_i64(max_i64(d->n_residual, d->n_bank), max_i64(d->n_chosen, max_i64(d->n_rope, d->n_token_all)));
    size_t n = (size_t)(most * n_batch) * sizeof(float);
    mem_free(w->crossing);
    w->crossing = w->n_stage > 1 ? mem_alloc(n) : NULL;
    return w->crossing || w->n_stage == 1 ? ERR_OK : err_nomem(e, n, "what goes from a device to the next");
}

err_code model_work_resize(struct model_work *w, const struct model *m, int64_t n_batch, struct err *e)
{
    for (int i = 0; i < w->n_stage; i++)
        close_batch(&w->stages[i]);
    err_code code = create_crossing(w, n_batch, e);
    for (int i = 0; i < w->n_stage && code == ERR_OK; i++)
        code = resize_stage(&w->stages[i], m, &m->stages[i], n_batch, e);
    for (int i = 0; i < w->n_stage && code != ERR_OK; i++)
        close_batch(&w->stages[i]);
    return code;
}

err_code model_work_create(struct model_work **out, const struct model *m, int64_t n_batch, int64_t n_logits,
                           struct err *e)
{
    struct model_work *w = *out = mem_calloc(1, sizeof *w);
    err_code code = ERR_OK;
    if (!w)
        return err_nomem(e, sizeof *w, "work space");
    for (int i = 0; i < m->n_stage && code == ERR_OK; i++) {
        w->n_stage++;
        code = create_stage(&w->stages[i], m, &m->stages[i], n_batch, i == m->n_stage - 1 ? n_logits : 0, e);
    }
    if (code == ERR_OK)
        code = model_work_resize(w, m, n_batch, e);
    if (code != ERR_OK)
        model_work_close(out);
    return code;
}
