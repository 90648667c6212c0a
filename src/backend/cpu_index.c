/* INDEX: chooses for each token the positions that its attention will see, or for each of its heads the blocks. The
 * scores of a page are computed with the float kernels and kept as integers of the same order (ranks), in one row for
 * each token, or for each head of it; then the best are picked. Tokens that see no more than they may choose need no
 * scores. As many tokens are taken together as have rows that fit in RANK_BYTES. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu_ops_internal.h"
#include "base/minmax.h"

enum { RANK_BYTES = 16 << 20 };

struct index_loop {
    struct cpu *c;
    const struct op *op;
    int64_t dim, n_head; /* elements of a key; heads of queries */
    int64_t k;           /* the most positions, entries or blocks that each list chooses */
    int64_t list_len;    /* numbers of a list: k, or the positions that k entries stand for */
    int64_t t0, n_t;     /* the current tokens, all of one text */
    int64_t ratio;       /* positions of the text for each position of the cache; below, positions are the cache's */
    int64_t block;       /* positions of a block, if blocks are chosen; else 1 */
    int64_t n_list;      /* lists of a token: n_head if blocks are chosen, else 1 */
    int64_t n_pos;       /* positions that the last of the current tokens sees */
    uint32_t *ranks;     /* scores as integers of the same order, [n_t][n_list][rank_stride] */
    float *work;         /* for each thread: a page's keys, and its products with a token's queries */
};

/* How many positions a token sees. */
static int64_t n_seen(const struct index_loop *l, int64_t t)
{
    return (((const int32_t *)tensor_data(&l->op->in[INDEX_POS]))[t] + 1) / l->ratio;
}

static int32_t table_of(const struct index_loop *l, int64_t t)
{
    return ((const int32_t *)tensor_data(&l->op->in[INDEX_TABLE]))[t];
}

static int64_t n_pages(int64_t n_pos)
{
    return (n_pos + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
}

/* How many blocks, or positions where these are chosen, there are in n_pos positions. */
static int64_t n_choice(const struct index_loop *l, int64_t n_pos)
{
    return (n_pos + l->block - 1) / l->block;
}

/* The ranks in a row for n_pos positions: those of whole pages. */
static int64_t rank_stride(const struct index_loop *l, int64_t n_pos)
{
    return n_choice(l, n_pages(n_pos) * ATTENTION_BLOCK);
}

/* The ranks of one of a token's lists. */
static uint32_t *ranks_of(const struct index_loop *l, int64_t t, int64_t list)
{
    return l->ranks + ((t - l->t0) * l->n_list + list) * rank_stride(l, l->n_pos);
}

static int64_t work_elems(const struct index_loop *l)
{
    return ATTENTION_BLOCK * (l->dim + l->n_head);
}

/* A page's keys as a matrix of F32 or F16. */
static const void *page_keys(const struct index_loop *l, int64_t page, float *work, enum quant_type *type)
{
    const struct paged *s = &l->op->state[0];
    const int32_t *pages = (const int32_t *)tensor_data(&l->op->in[INDEX_PAGES]) + table_of(l, l->t0);
    assert(pages[page] >= 0);
    const void *keys = paged_data(s, pages[page], 0);
    *type = s->page.type == ELEM_F16 ? QUANT_F16 : QUANT_F32;
    if (s->page.type != ELEM_Q8_0)
        return keys;
    l->c->kernels->q8_0_to_f32(work, keys, ATTENTION_BLOCK * l->dim);
    return work;
}

/* Maps a score to an integer, keeping the order; NaN is the lowest. */
static uint32_t order_of(float score)
{
    uint32_t bits;
    if (isnan(score))
        return 0;
    score += 0.0f; /* -0 is 0 */
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* ranks[r] = the rank of the sum over heads, ascending, of weights[head] (NULL: 1) * relu(product[head][r]). product is
 * overwritten. */
static void rank_positions(const struct kernels *kern, const float *weights, float *product, int64_t n_head,
                           uint32_t *ranks)
{
    float sum[ATTENTION_BLOCK] = {0};
    for (int64_t i = 0; i < n_head * ATTENTION_BLOCK; i++)
        product[i] = product[i] < 0 ? 0 : product[i];
    for (int64_t h = 0; h < n_head; h++)
        kern->fma_scalar(sum, product + h * ATTENTION_BLOCK, weights ? weights[h] : 1, ATTENTION_BLOCK);
    for (int64_t r = 0; r < ATTENTION_BLOCK; r++)
        ranks[r] = order_of(sum[r]);
}

/* Updates a block's rank for each head with the products of the page that begins at p0: it is the rank of the largest
 * product with a position of the block that the token sees. Blocks that are always chosen rank above all scores. */
static void rank_block(const struct index_loop *l, int64_t t, int64_t p0, const float *product)
{
    int64_t block = p0 / l->block, n = min_i64(n_seen(l, t) - p0, ATTENTION_BLOCK);
    bool is_local = block + l->op->index.n_local >= n_choice(l, n_seen(l, t));
    for (int64_t h = 0; h < l->n_head; h++) {
        uint32_t *rank = ranks_of(l, t, h) + block, best = p0 % l->block ? *rank : 0;
        float most = -INFINITY;
        for (int64_t r = 0; r < n; r++)
            most = product[h * ATTENTION_BLOCK + r] > most ? product[h * ATTENTION_BLOCK + r] : most;
        *rank = is_local ? UINT32_MAX : order_of(most) > best ? order_of(most) : best;
    }
}

/* Computes a page's scores for all current tokens that see a part of it. Positions that they don't see get some score,
 * too, which nobody reads. */
static void score_page(const struct index_loop *l, int64_t page, int thread)
{
    int64_t p0 = page * ATTENTION_BLOCK;
    float *keys = l->work + thread * work_elems(l), *product = keys + ATTENTION_BLOCK * l->dim;
    enum quant_type type;
    const void *w = page_keys(l, page, keys, &type);
    for (int64_t t = l->t0; t < l->t0 + l->n_t && !pool_is_cancelled(l->c->pool); t++) {
        if (n_seen(l, t) <= p0)
            continue;
        const struct kernel_act x = {.kind = QUANT_ACT_FLOAT, .k = l->dim, .f32 = tensor_row(&l->op->in[INDEX_Q], t)};
        const struct kernel_matmul a = {.w = w,
                                        .k = l->dim,
                                        .n_row = ATTENTION_BLOCK,
                                        .row1 = ATTENTION_BLOCK,
                                        .x = &x,
                                        .m = l->n_head,
                                        .y = product,
                                        .ldy = ATTENTION_BLOCK};
        l->c->kernels->matmul[type](&a);
        if (l->op->index.block)
            rank_block(l, t, p0, product);
        else
            rank_positions(l->c->kernels,
                           l->op->in[INDEX_WEIGHTS].buffer ? tensor_row(&l->op->in[INDEX_WEIGHTS], t) : NULL, product,
                           l->n_head, ranks_of(l, t, 0) + p0);
    }
}

/* The number of pages of a task: those of a block. */
static int64_t task_pages(const struct index_loop *l)
{
    return n_pages(l->block);
}

static void score_task(void *arg, size_t task, int thread)
{
    const struct index_loop *l = arg;
    int64_t first = (int64_t)task * task_pages(l), end = min_i64(first + task_pages(l), n_pages(l->n_pos));
    for (int64_t page = first; page < end; page++)
        score_page(l, page, thread);
}

/* Finds the k-th largest of n >= k ranks, and how many ranks that equal it are among the k largest. It finds one digit
 * after the other, the highest first. */
static uint32_t find_kth(const uint32_t *ranks, int64_t n, int64_t k, int64_t *n_equal)
{
    enum { DIGIT_BITS = 8, N_DIGIT = 1 << DIGIT_BITS };
    uint32_t kth = 0, known = 0; /* known: the bits that have been found */
    for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        int64_t count[N_DIGIT] = {0};
        uint32_t digit = N_DIGIT - 1;
        for (int64_t i = 0; i < n; i++)
            if ((ranks[i] & known) == kth)
                count[ranks[i] >> shift & (N_DIGIT - 1)]++;
        for (; count[digit] < k; digit--)
            k -= count[digit];
        kth |= digit << shift;
        known |= (uint32_t)(N_DIGIT - 1) << shift;
    }
    *n_equal = k;
    return kth;
}

/* Replaces the n entries at the beginning of `out` by their positions, and adds the positions behind the last of
 * n_entry entries. Returns how many positions there are. */
static int64_t spread(const struct index_loop *l, int64_t t, int32_t *out, int64_t n, int64_t n_entry)
{
    int64_t pos = ((const int32_t *)tensor_data(&l->op->in[INDEX_POS]))[t];
    for (int64_t i = n; i-- > 0;) /* from the last on, as they lie in the same list */
        for (int64_t j = l->ratio; j-- > 0;)
            out[i * l->ratio + j] = (int32_t)(out[i] * l->ratio + j);
    n *= l->ratio;
    for (int64_t p = n_entry * l->ratio; p <= pos; p++)
        out[n++] = (int32_t)p;
    return n;
}

/* Makes one list of a token: everything that it chooses from if that fits, else the best, of equally good ones the
 * first. */
static void choose_task(void *arg, size_t i, int thread)
{
    const struct index_loop *l = arg;
    int64_t t = l->t0 + (int64_t)i / l->n_list, list = (int64_t)i % l->n_list;
    int64_t n = n_choice(l, n_seen(l, t)), n_out = 0, n_equal;
    int32_t *out = (int32_t *)tensor_data(&l->op->out[0]) + (t * l->n_list + list) * l->list_len;
    if (n > l->k) {
        const uint32_t *ranks = ranks_of(l, t, list);
        uint32_t kth = find_kth(ranks, n, l->k, &n_equal);
        for (int64_t p = 0; p < n; p++)
            if (ranks[p] > kth || (ranks[p] == kth && n_equal-- > 0))
                out[n_out++] = (int32_t)p;
        assert(n_out == l->k);
    }
    for (; n_out < n && n <= l->k; n_out++)
        out[n_out] = (int32_t)n_out;
    if (l->op->index.spreads)
        n_out = spread(l, t, out, n_out, n);
    while (n_out < l->list_len)
        out[n_out++] = l->op->index.spreads ? INT32_MAX : -1;
}

/* Processes tokens of one text from t0 on, as many as fit. False when out of memory. */
static bool index_tokens(struct index_loop *l)
{
    int64_t m = l->op->in[INDEX_Q].ne[1], most = RANK_BYTES / (int64_t)sizeof(uint32_t);
    l->n_t = 1;
    while (l->t0 + l->n_t < m && table_of(l, l->t0 + l->n_t) == table_of(l, l->t0) &&
           (l->n_t + 1) * l->n_list * rank_stride(l, n_seen(l, l->t0 + l->n_t)) <= most)
        l->n_t++;
    l->n_pos = n_seen(l, l->t0 + l->n_t - 1);
    if (n_choice(l, l->n_pos) > l->k) {
        /* as much as all listed pages need, so that a token allocates no more than the one before */
        int64_t of_all = rank_stride(l, l->op->in[INDEX_PAGES].ne[0] * ATTENTION_BLOCK);
        int64_t n_rank = l->n_list * max_i64(l->n_t * rank_stride(l, l->n_pos), of_all);
        l->ranks = cpu_scratch(l->c, SCRATCH_SPANS, (size_t)n_rank * sizeof *l->ranks);
        if (!l->ranks)
            return false;
        pool_run(l->c->pool, (size_t)((n_pages(l->n_pos) + task_pages(l) - 1) / task_pages(l)), score_task, l);
    }
    pool_run(l->c->pool, (size_t)(l->n_t * l->n_list), choose_task, l);
    return true;
}

void cpu_op_index(struct cpu *c, const struct op *op)
{
    int64_t dim = op->state[0].page.ne[0], n_head = op->in[INDEX_Q].ne[0] / dim, n_list = op->index.block ? n_head : 1;
    int64_t list_len = op->out[0].ne[0] / n_list;
    struct index_loop l = {.c = c,
                           .op = op,
                           .dim = dim,
                           .n_head = n_head,
                           .k = op->index.spreads ? list_len / op->index.ratio : list_len,
                           .list_len = list_len,
                           .ratio = max_i64(op->index.ratio, 1),
                           .block = max_i64(op->index.block, 1),
                           .n_list = n_list};
    l.work = cpu_scratch(c, SCRATCH_THREAD, (size_t)(work_elems(&l) * pool_n_threads(c->pool)) * sizeof(float));
    for (bool ok = l.work; ok && l.t0 < op->in[INDEX_Q].ne[1]; l.t0 += l.n_t)
        ok = index_tokens(&l);
}
