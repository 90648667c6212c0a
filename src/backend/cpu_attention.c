/* Attention: partial softmaxes over blocks of absolute positions are folded in ascending order into one for each span
 * of positions, and those into the result (docs/numerics.md). A task takes a tile of a text's tokens and the query
 * heads of one KV head, so that each block of the cache is loaded once for all of them. Single tokens of a few texts
 * give only few such tasks; where these would leave threads without work, each span of a token is a task. */
#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu_ops_internal.h"
#include "base/minmax.h"

_Static_assert((int)ATTENTION_BLOCK == (int)KERNEL_ATTN_BLOCK, "a page is a block of the kernels");
_Static_assert((int)ATTENTION_SPAN % (int)KERNEL_ATTN_BLOCK == 0, "spans are whole blocks");

/* A block of the cache is decoded once for all queries of a task. These are at most TASK_QUERIES, as many as TASK_BYTES
 * hold with their results (half of a second-level cache of 512 KiB), of at most TASK_HEADS query heads: where a KV head
 * serves more heads (in latent attention it serves all) several tasks share them. Where there would be fewer tasks than
 * TASKS_PER_THREAD for each thread, they have fewer queries. Neither makes them fewer than FEWEST_QUERIES. If tiles are
 * single tokens then, each span of a token is a task. */
enum { TASK_QUERIES = 256, FEWEST_QUERIES = 64, TASK_BYTES = 256 << 10, TASK_HEADS = 16, TASKS_PER_THREAD = 4 };

/* Running softmaxes of n queries. */
struct softmax {
    float *max, *sum; /* [n] */
    float *acc;       /* [n][dv] */
};

/* A cache that tokens see, and which part of it. For a compressed cache, "position" below means an entry. */
struct attn_cache {
    const struct paged *k, *v;
    const int32_t *pages;  /* page tables of all texts */
    const int32_t *chosen; /* [n_chosen] for each token, ascending; blocks: for each KV head of each token */
    int64_t n_chosen;      /* positions or blocks that a token sees, if there are more; 0: it sees all */
    int64_t chosen_block;  /* positions of a block, if blocks are chosen; 0: positions are */
    int64_t window;
    bool is_chunked;
    int64_t ratio; /* positions of the text for each position of the cache; 1 unless it is compressed */
};

/* The operation: what all its loops need. */
struct attn_op {
    const struct kernels *kernels;
    const struct op *op;
    int64_t dk, dv;          /* elements of a key, of a value */
    int64_t n_head, n_group; /* query heads in all, and for each KV head */
    int64_t m;               /* tokens */
    bool is_latent;          /* rows of the caches are keys and values both */
    struct attn_cache caches[2];
    int n_cache;
};

/* The tokens of a task: neighbouring tokens of one text with all spans that they see, or one span of a single token. */
struct attn_unit {
    int32_t t0, n_t;
    int32_t span;   /* index of the token's span; spans of the first cache come first */
    int32_t n_span; /* units that the token has; 1: this one takes all spans */
};

/* How the operation is divided into tasks: one for each unit and each share of the query heads. */
struct attn_cut {
    int64_t n_share;     /* shares of a KV head's query heads */
    int64_t tile_tokens; /* the most tokens of a unit, of most_queries queries */
    int64_t most_queries;
    struct attn_unit *units;
    int64_t n_unit;
};

/* The spans of single tokens, where each is a task. */
struct attn_spans {
    atomic_int *n_left; /* [n_head_kv * n_share][n_unit], at a token's first unit: its spans that are not done yet */
    float *softmaxes;   /* [n_head_kv * n_share][n_unit] */
    size_t softmax_elems;
};

struct attn_loop {
    const struct pool *pool;
    struct attn_op a;
    struct attn_cut cut;
    struct attn_spans spans;
    float *work; /* for each thread */
    size_t work_elems;
};

/* The queries of a task: heads [head, head + n_head), which share a KV head, of tokens [t0, t0 + n_t). Query i is head
 * `head + i % n_head` of token t0 + i / n_head. */
struct attn_queries {
    int64_t head_kv, t0, n_t, head, n_head;
    const int32_t *pos;             /* [n_t] */
    int32_t table;                  /* where the text's page tables begin */
    const struct attn_cache *cache; /* the current cache; the next two belong to it */
    const int32_t *pages;           /* the text's page table, by block of positions */
    const int32_t *chosen;          /* the single token's positions, ascending; NULL: positions are not chosen */
    struct softmax span;            /* over the current span */
    struct softmax all;             /* over the spans before it */
    float *partial;                 /* [KERNEL_ATTN_QUERIES][dv] */
    float *decoded;                 /* a block of keys and values, where `decodes` or where positions are chosen */
};

static int64_t n_query(const struct attn_queries *x)
{
    return x->n_t * x->n_head;
}

/* The number of floats that the softmaxes of n queries take, and their places in this memory. */
static size_t softmax_elems(int64_t n, int64_t dv)
{
    return align64((size_t)(n * (dv + 2)) * sizeof(float)) / sizeof(float);
}

static struct softmax softmax_at(float *p, int64_t n, int64_t dv)
{
    return (struct softmax){.acc = p, .max = p + n * dv, .sum = p + n * (dv + 1)};
}

static void softmax_clear(const struct softmax *s, int64_t n, int64_t dv)
{
    for (int64_t i = 0; i < n; i++)
        s->max[i] = -INFINITY;
    memset(s->sum, 0, (size_t)n * sizeof *s->sum);
    memset(s->acc, 0, (size_t)(n * dv) * sizeof *s->acc);
}

/* The positions that a token at `pos` may see are [first_position, end_position). */
static int64_t end_position(const struct attn_cache *c, int64_t pos)
{
    return (pos + 1) / c->ratio;
}

static int64_t first_position(const struct attn_cache *c, int64_t pos)
{
    if (c->window && c->is_chunked)
        return pos / c->window * c->window;
    return c->window && pos >= c->window ? pos - c->window + 1 : 0;
}

/* Whether it sees only some of these, as positions are chosen. */
static bool is_chosen(const struct attn_cache *c, int64_t pos)
{
    return c->n_chosen && !c->chosen_block && end_position(c, pos) > c->n_chosen;
}

static bool is_chosen_anywhere(const struct attn_op *a, int64_t pos)
{
    bool any = false;
    for (int i = 0; i < a->n_cache; i++)
        any |= is_chosen(&a->caches[i], pos);
    return any;
}

/* The index of the first of n ascending numbers that is not less than x. */
static int64_t find_in(const int32_t *ascending, int64_t n, int64_t x)
{
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (ascending[mid] < x)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The first position of the first block that a task's queries see. */
static int64_t first_block(const struct attn_queries *x)
{
    return first_position(x->cache, x->pos[0]) / KERNEL_ATTN_BLOCK * KERNEL_ATTN_BLOCK;
}

/* The position behind the last one that a task's queries see. */
static int64_t end_of(const struct attn_queries *x)
{
    return end_position(x->cache, x->pos[x->n_t - 1]);
}

/* Makes cache i the current one. */
static void enter_cache(const struct attn_op *a, struct attn_queries *x, int i)
{
    const struct attn_cache *c = x->cache = &a->caches[i];
    x->pages = c->pages + x->table;
    x->chosen = is_chosen(c, x->pos[x->n_t - 1]) ? c->chosen + x->t0 * c->n_chosen : NULL;
}

/* A block of the cache, as the kernels take it. */
struct cache_block {
    const char *k, *v;
    size_t k_bytes, v_bytes; /* of a row */
    bool is_half;            /* elements are F16, not F32 */
};

/* The block of a KV head that begins at position p0 of a task's text. */
static struct cache_block get_block(const struct attn_op *a, const struct attn_queries *x, int64_t head_kv, int64_t p0)
{
    const struct paged *k = x->cache->k, *v = x->cache->v;
    int32_t page = x->pages[p0 / KERNEL_ATTN_BLOCK];
    assert(page >= 0);
    struct cache_block b = {.k = paged_data(k, page, head_kv),
                            .k_bytes = elem_row_bytes(k->page.type, a->dk),
                            .is_half = k->page.type == ELEM_F16};
    b.v = a->is_latent ? b.k : paged_data(v, page, head_kv);
    b.v_bytes = elem_row_bytes(v->page.type, a->dv);
    return b;
}

/* Whether a task with as many queries decodes a block into floats. */
static bool decodes(const struct attn_op *a, int64_t n_query)
{
    enum elem_type type = a->op->state[ATTENTION_K].page.type;
    return type == ELEM_Q8_0 || (type == ELEM_F16 && n_query > 2 * KERNEL_ATTN_QUERIES);
}

static void decode_rows(const struct attn_op *a, float *y, const void *x, int64_t n)
{
    if (a->op->state[ATTENTION_K].page.type == ELEM_F32)
        memcpy(y, x, (size_t)n * sizeof *y);
    else if (a->op->state[ATTENTION_K].page.type == ELEM_F16)
        a->kernels->f16_to_f32(y, x, n);
    else
        a->kernels->q8_0_to_f32(y, x, n);
}

/* Decodes rows [from, to) of a block into a thread's work space, once for all queries of a task. */
static struct cache_block decode_block(const struct attn_op *a, const struct cache_block *b, int64_t from, int64_t to,
                                       float *work)
{
    float *kf = work, *vf = a->is_latent ? work : work + KERNEL_ATTN_BLOCK * a->dk;
    decode_rows(a, kf + from * a->dk, b->k + (size_t)from * b->k_bytes, (to - from) * a->dk);
    if (!a->is_latent)
        decode_rows(a, vf + from * a->dv, b->v + (size_t)from * b->v_bytes, (to - from) * a->dv);
    return (struct cache_block){(const char *)kf, (const char *)vf, (size_t)a->dk * sizeof *kf,
                                (size_t)a->dv * sizeof *vf, false};
}

/* Decodes the chosen rows of the block that begins at position p0, and puts them together. Returns how many they
 * are. */
static int64_t gather_block(const struct attn_op *a, const struct attn_queries *x, int64_t p0, struct cache_block *b)
{
    float *kf = x->decoded, *vf = a->is_latent ? kf : kf + KERNEL_ATTN_BLOCK * a->dk;
    int64_t first = find_in(x->chosen, x->cache->n_chosen, p0), n = 0;
    for (; first + n < x->cache->n_chosen && x->chosen[first + n] < p0 + KERNEL_ATTN_BLOCK; n++) {
        size_t row = (size_t)(x->chosen[first + n] - p0);
        decode_rows(a, kf + n * a->dk, b->k + row * b->k_bytes, a->dk);
        if (!a->is_latent)
            decode_rows(a, vf + n * a->dv, b->v + row * b->v_bytes, a->dv);
    }
    *b = (struct cache_block){(const char *)kf, (const char *)vf, (size_t)a->dk * sizeof *kf,
                              (size_t)a->dv * sizeof *vf, false};
    return n;
}

/* Whether a task's token t sees the block that begins at position p0, where blocks are chosen. */
static bool has_block(const struct attn_queries *x, int64_t t, int64_t p0)
{
    const struct attn_cache *c = x->cache;
    if (!c->chosen_block || end_position(c, x->pos[t]) <= c->n_chosen * c->chosen_block)
        return true;
    const int32_t *chosen = c->chosen + ((x->t0 + t) * c->k->page.ne[2] + x->head_kv) * c->n_chosen;
    int64_t block = p0 / c->chosen_block, i = find_in(chosen, c->n_chosen, block);
    return i < c->n_chosen && chosen[i] == block;
}

/* Rows of a block: none where end is not above from. */
struct row_range {
    int64_t from, end;
};

/* The rows that a task's token t sees of the block that begins at position p0. */
static struct row_range rows_of(const struct attn_queries *x, int64_t t, int64_t p0)
{
    if (!has_block(x, t, p0))
        return (struct row_range){0};
    return (struct row_range){max_i64(first_position(x->cache, x->pos[t]) - p0, 0),
                              min_i64(end_position(x->cache, x->pos[t]) - p0, KERNEL_ATTN_BLOCK)};
}

static bool is_same_range(struct row_range a, struct row_range b)
{
    return a.from == b.from && a.end == b.end;
}

/* Whether all of a task's tokens see the same rows of a block. Ranges only move up from token to token, unless blocks
 * are chosen. */
static bool is_seen_alike(const struct attn_queries *x, int64_t p0)
{
    return !x->cache->chosen_block && is_same_range(rows_of(x, 0, p0), rows_of(x, x->n_t - 1, p0));
}

/* The range of rows that any of its tokens sees. */
static struct row_range rows_of_all(const struct attn_queries *x, int64_t p0)
{
    struct row_range all = {KERNEL_ATTN_BLOCK, 0};
    for (int64_t t = 0; t < x->n_t; t++) {
        const struct row_range r = rows_of(x, t, p0);
        if (r.end > r.from)
            all = (struct row_range){min_i64(all.from, r.from), max_i64(all.end, r.end)};
    }
    return all;
}

/* Folds rows [from, from + n) of a block into the span's softmaxes of queries [first, first + n_q). next: a block to
 * prefetch meanwhile, or NULL. */
static void fold_block(const struct attn_op *a, struct attn_queries *x, const struct cache_block *b, int64_t from,
                       int64_t n, int64_t first, int64_t n_q, const struct cache_block *next)
{
    const struct kernels *kern = a->kernels;
    const struct op *op = a->op;
    const float *q = tensor_data(&op->in[ATTENTION_Q]), *rows[KERNEL_ATTN_QUERIES];
    float max[KERNEL_ATTN_QUERIES], sum[KERNEL_ATTN_QUERIES];
    for (int64_t i = 0; i < n_q; i++) {
        int64_t t = x->t0 + (first + i) / x->n_head, head = x->head + (first + i) % x->n_head;
        rows[i] = q + (t * a->n_head + head) * a->dk;
    }
    struct kernel_attn call = {.q = rows,
                               .n_q = (int)n_q,
                               .k = b->k + (size_t)from * b->k_bytes,
                               .v = b->v + (size_t)from * b->v_bytes,
                               .hd_k = a->dk,
                               .hd_v = a->dv,
                               .n = n,
                               .scale = op->attention.scale,
                               .softcap = op->attention.softcap,
                               .max = max,
                               .sum = sum,
                               .o = x->partial};
    if (next) {
        call.prefetch[0] = next->k;
        call.prefetch_bytes[0] = KERNEL_ATTN_BLOCK * (int64_t)next->k_bytes;
        call.prefetch[1] = next->v;
        call.prefetch_bytes[1] = KERNEL_ATTN_BLOCK * (int64_t)next->v_bytes;
    }
    (b->is_half ? kern->attn_block_f16 : kern->attn_block_f32)(&call);
    kern->attn_merge((int)n_q, x->span.max + first, x->span.sum + first, x->span.acc + first * a->dv, max, sum,
                     x->partial, a->dv);
}

/* The block that will be read next: the task's next one, or the first one of the next task. False: it is not known.
 * Where blocks are chosen, it is the following block if the task's first token sees it. */
static bool next_block(const struct attn_loop *l, const struct attn_queries *x, int64_t p0, struct cache_block *next)
{
    const struct attn_op *a = &l->a;
    bool is_last = p0 + KERNEL_ATTN_BLOCK >= end_of(x);
    bool is_alone = a->n_cache == 1 && (l->cut.n_unit == 1 || a->m == 1); /* units are of one token, or there is one */
    if (is_last && (!is_alone || l->cut.n_share > 1 || x->head_kv + 1 == a->op->state[ATTENTION_K].page.ne[2]))
        return false;
    if (x->cache->chosen_block && (is_last || !has_block(x, 0, p0 + KERNEL_ATTN_BLOCK)))
        return false;
    *next =
        is_last ? get_block(a, x, x->head_kv + 1, first_block(x)) : get_block(a, x, x->head_kv, p0 + KERNEL_ATTN_BLOCK);
    return true;
}

/* Folds the chosen rows of the block that begins at position p0 into the softmaxes of a token's queries. */
static void visit_chosen(const struct attn_op *a, struct attn_queries *x, struct cache_block *b, int64_t p0)
{
    int64_t n = gather_block(a, x, p0, b);
    for (int64_t i = 0; n && i < x->n_head; i += KERNEL_ATTN_QUERIES)
        fold_block(a, x, b, 0, n, i, min_i64(x->n_head - i, KERNEL_ATTN_QUERIES), NULL);
}

/* Folds the block that begins at position p0 into all queries' softmaxes; queries that see the same rows share a call.
 */
static void visit_block(const struct attn_loop *l, struct attn_queries *x, int64_t p0)
{
    const struct attn_op *a = &l->a;
    struct cache_block b = get_block(a, x, x->head_kv, p0), next;
    if (x->chosen) {
        visit_chosen(a, x, &b, p0);
        return;
    }
    bool alike = is_seen_alike(x, p0);
    const struct row_range all = alike ? rows_of(x, 0, p0) : rows_of_all(x, p0);
    if (all.end <= all.from)
        return;
    const struct cache_block *to_prefetch = next_block(l, x, p0, &next) ? &next : NULL;
    if (decodes(a, n_query(x)))
        b = decode_block(a, &b, all.from, all.end, x->decoded);
    for (int64_t t = 0; t < x->n_t;) {
        const struct row_range r = rows_of(x, t, p0);
        int64_t t_end = alike ? x->n_t : t + 1;
        while (t_end < x->n_t && is_same_range(r, rows_of(x, t_end, p0)))
            t_end++;
        for (int64_t i = t * x->n_head; r.end > r.from && i < t_end * x->n_head; i += KERNEL_ATTN_QUERIES) {
            int64_t rest = t_end * x->n_head - i;
            fold_block(a, x, &b, r.from, r.end - r.from, i, min_i64(rest, KERNEL_ATTN_QUERIES), to_prefetch);
            to_prefetch = NULL;
        }
        t = t_end;
    }
}

/* The spans that a task's queries see: [first_span, end_span). */
static int64_t first_span(const struct attn_queries *x)
{
    return first_position(x->cache, x->pos[0]) / ATTENTION_SPAN;
}

static int64_t end_span(const struct attn_queries *x)
{
    return (end_of(x) + ATTENTION_SPAN - 1) / ATTENTION_SPAN;
}

/* Computes the queries' softmaxes over a span, into x->span. */
static void visit_span(const struct attn_loop *l, struct attn_queries *x, int64_t span)
{
    int64_t end = min_i64((span + 1) * ATTENTION_SPAN, end_of(x));
    softmax_clear(&x->span, n_query(x), l->a.dv);
    for (int64_t p0 = max_i64(span * ATTENTION_SPAN, first_block(x)); p0 < end; p0 += KERNEL_ATTN_BLOCK)
        visit_block(l, x, p0);
}

/* Folds a span's softmaxes into those of the spans before it. A query that sees nothing of the span is unchanged; one
 * that has seen nothing before takes the span's softmax as it is. */
static void add_span(const struct attn_op *a, const struct attn_queries *x, const struct softmax *span)
{
    for (int64_t i = 0; i < n_query(x); i++) {
        float *acc = x->all.acc + i * a->dv, *span_acc = span->acc + i * a->dv;
        if (span->sum[i] == 0)
            continue;
        if (x->all.sum[i] != 0) {
            a->kernels->attn_merge(1, &x->all.max[i], &x->all.sum[i], acc, &span->max[i], &span->sum[i], span_acc,
                                   a->dv);
            continue;
        }
        x->all.max[i] = span->max[i];
        x->all.sum[i] = span->sum[i];
        memcpy(acc, span_acc, (size_t)a->dv * sizeof *acc);
    }
}

/* Folds the sinks in, each one more score with a value of zero, and writes the queries' results. */
static void finish(const struct attn_op *a, struct attn_queries *x)
{
    const float *sinks = tensor_data(&a->op->vec[0]), one = 1;
    for (int64_t i = 0; i < n_query(x); i++) {
        int64_t t = x->t0 + i / x->n_head, head = x->head + i % x->n_head;
        float *o = x->all.acc + i * a->dv;
        float *y = (float *)tensor_data(&a->op->out[0]) + (t * a->n_head + head) * a->dv;
        if (sinks) {
            memset(x->partial, 0, (size_t)a->dv * sizeof *x->partial);
            a->kernels->attn_merge(1, &x->all.max[i], &x->all.sum[i], o, &sinks[head], &one, x->partial, a->dv);
        }
        float inv = 1 / x->all.sum[i];
        for (int64_t j = 0; j < a->dv; j++)
            y[j] = o[j] * inv;
    }
}

/* The softmax of a unit that is a span, for the token's queries in a share of the heads. */
static struct softmax stored_span(const struct attn_loop *l, const struct attn_queries *x, int64_t share, int64_t unit)
{
    float *p = l->spans.softmaxes + (size_t)(share * l->cut.n_unit + unit) * l->spans.softmax_elems;
    return softmax_at(p, n_query(x), l->a.dv);
}

/* Computes one span of a token; the thread that has done the last one folds them all. */
static void one_span(const struct attn_loop *l, struct attn_queries *x, int64_t share, int64_t i)
{
    const struct attn_unit *u = &l->cut.units[i];
    int64_t first = i - u->span;
    x->span = stored_span(l, x, share, i);
    int64_t nth = u->span;
    enter_cache(&l->a, x, 0);
    if (nth >= end_span(x) - first_span(x)) {
        nth -= end_span(x) - first_span(x);
        enter_cache(&l->a, x, 1);
    }
    visit_span(l, x, first_span(x) + nth);
    if (atomic_fetch_sub(&l->spans.n_left[share * l->cut.n_unit + first], 1) > 1)
        return;
    x->all = stored_span(l, x, share, first);
    for (int64_t j = first + 1; j < first + u->n_span; j++) {
        const struct softmax span = stored_span(l, x, share, j);
        add_span(&l->a, x, &span);
    }
    finish(&l->a, x);
}

static void all_spans(const struct attn_loop *l, struct attn_queries *x)
{
    const struct softmax work = x->span;
    enter_cache(&l->a, x, 0);
    x->span = x->all;
    visit_span(l, x, first_span(x));
    x->span = work;
    int64_t from = first_span(x) + 1;
    for (int i = 0; i < l->a.n_cache; i++, from = 0) {
        enter_cache(&l->a, x, i);
        for (int64_t s = from; s < end_span(x); s++) {
            visit_span(l, x, s);
            add_span(&l->a, x, &x->span);
        }
    }
    finish(&l->a, x);
}

static void attention_task(void *arg, size_t task, int thread)
{
    const struct attn_loop *l = arg;
    const struct attn_op *a = &l->a;
    if (pool_is_cancelled(l->pool))
        return;
    int64_t unit = (int64_t)task % l->cut.n_unit, share = (int64_t)task / l->cut.n_unit;
    const struct attn_unit *u = &l->cut.units[unit];
    int64_t first_head = share % l->cut.n_share * TASK_HEADS;
    struct attn_queries x = {.head_kv = share / l->cut.n_share, .t0 = u->t0, .n_t = u->n_t};
    x.head = x.head_kv * a->n_group + first_head;
    x.n_head = min_i64(a->n_group - first_head, TASK_HEADS);
    x.pos = (const int32_t *)tensor_data(&a->op->in[ATTENTION_POS]) + x.t0;
    x.table = ((const int32_t *)tensor_data(&a->op->in[ATTENTION_TABLE]))[x.t0];
    float *work = l->work + (size_t)thread * l->work_elems;
    size_t softmax = softmax_elems(l->cut.most_queries, a->dv);
    x.span = softmax_at(work, n_query(&x), a->dv);
    x.all = softmax_at(work + softmax, n_query(&x), a->dv);
    x.partial = work + 2 * softmax;
    x.decoded = x.partial + KERNEL_ATTN_QUERIES * a->dv;
    if (u->n_span > 1)
        one_span(l, &x, share, unit);
    else
        all_spans(l, &x);
}

/* Cuts the tokens into tiles. */
static void cut_tiles(struct attn_loop *l)
{
    const int32_t *pos = tensor_data(&l->a.op->in[ATTENTION_POS]), *table = tensor_data(&l->a.op->in[ATTENTION_TABLE]);
    struct attn_unit *u = NULL;
    l->cut.n_unit = 0;
    for (int64_t t = 0; t < l->a.m; t++)
        if (u && u->n_t < l->cut.tile_tokens && table[t] == table[t - 1] && !is_chosen_anywhere(&l->a, pos[t])) {
            assert(pos[t] == pos[t - 1] + 1);
            u->n_t++;
        } else {
            u = &l->cut.units[l->cut.n_unit++];
            *u = (struct attn_unit){.t0 = (int32_t)t, .n_t = 1, .n_span = 1};
        }
}

/* The spans that the token of a unit sees. */
static int64_t n_span(const struct attn_op *a, const struct attn_unit *u)
{
    const int32_t *pos = tensor_data(&a->op->in[ATTENTION_POS]);
    assert(pos);
    struct attn_queries x = {.n_t = 1, .pos = pos + u->t0};
    int64_t n = 0;
    for (int i = 0; i < a->n_cache; i++) {
        x.cache = &a->caches[i];
        n += end_span(&x) - first_span(&x);
    }
    return n;
}

/* Divides single tokens into their spans: each unit becomes one for each of its spans. False where these would be more
 * than `most`: as each token sees the positions that are chosen for it, tokens of one text may have more spans than the
 * texts have pages. */
static bool cut_spans(struct attn_cut *cut, const struct attn_op *a, int64_t most)
{
    int64_t n = cut->n_unit, end = 0;
    for (int64_t i = 0; i < n; i++)
        end += n_span(a, &cut->units[i]);
    if (end > most)
        return false;
    cut->n_unit = end;
    for (int64_t i = n - 1; i >= 0; i--) { /* from the end, as units move up */
        struct attn_unit u = cut->units[i];
        u.n_span = (int32_t)n_span(a, &u);
        for (u.span = u.n_span - 1; u.span >= 0; u.span--)
            cut->units[--end] = u;
    }
    return true;
}

/* Makes room for the softmaxes of n_share shares of all units. The room is enough for as many spans as the texts' pages
 * can hold, so that it doesn't grow from token to token. False when out of memory. */
static bool place_spans(struct attn_loop *l, struct cpu *c, int64_t n_share, int64_t most)
{
    size_t left_bytes = align64((size_t)(n_share * most) * sizeof *l->spans.n_left);
    l->spans.softmax_elems = softmax_elems(min_i64(l->a.n_group, TASK_HEADS), l->a.dv);
    char *p =
        cpu_scratch(c, SCRATCH_SPANS, left_bytes + (size_t)(n_share * most) * l->spans.softmax_elems * sizeof(float));
    if (!p)
        return false;
    l->spans.n_left = (atomic_int *)p;
    l->spans.softmaxes = (float *)(p + left_bytes);
    for (int64_t i = 0; i < n_share * l->cut.n_unit; i++)
        atomic_init(&l->spans.n_left[i], l->cut.units[i % l->cut.n_unit].n_span);
    return true;
}

/* Divides an operation, whose heads have n_share shares, into tasks. False when out of memory. */
static bool cut(struct attn_loop *l, struct cpu *c, int64_t n_share)
{
    const struct attn_op *a = &l->a;
    int64_t n_thread = pool_n_used(c->pool), pages_a_span = ATTENTION_SPAN / ATTENTION_BLOCK;
    int64_t most =
        a->op->in[ATTENTION_PAGES].ne[0] / pages_a_span + 2 * a->m; /* a text's first and last span may be cut short */
    most *= a->n_cache;
    l->cut.units = cpu_scratch(c, SCRATCH_UNITS, (size_t)max_i64(most, a->m) * sizeof *l->cut.units);
    if (!l->cut.units)
        return false;
    cut_tiles(l);
    if (n_thread == 1 || l->cut.n_unit < a->m || n_share * l->cut.n_unit >= TASKS_PER_THREAD * n_thread)
        return true;
    return !cut_spans(&l->cut, a, most) || place_spans(l, c, n_share, most);
}

/* Chooses the most tokens that a task has: n_share tasks share the heads of each. */
static void choose_tile(struct attn_cut *cut, const struct attn_op *a, int64_t n_share, int64_t n_thread)
{
    int64_t n_head = min_i64(a->n_group, TASK_HEADS), n_query = TASK_QUERIES;
    int64_t query_bytes = (a->dk + a->dv) * (int64_t)sizeof(float), most_queries = TASK_BYTES / query_bytes;
    while (n_query > FEWEST_QUERIES &&
           (n_query > most_queries || n_share * (a->m * n_head / n_query) < TASKS_PER_THREAD * n_thread))
        n_query /= 2;
    cut->tile_tokens = min_i64(n_query / n_head, a->m);
    cut->most_queries = cut->tile_tokens * n_head;
}

/* A thread's work space: the softmaxes of a span and of those before it, a partial result, a decoded block. */
static size_t work_elems(const struct attn_op *a, int64_t n_query)
{
    int64_t n_decoded =
        a->op->in[ATTENTION_CHOSEN].buffer || decodes(a, n_query) ? KERNEL_ATTN_BLOCK * (a->dk + a->dv) : 0;
    int64_t n = 2 * (int64_t)softmax_elems(n_query, a->dv) + a->dv * KERNEL_ATTN_QUERIES + n_decoded;
    return align64((size_t)n * sizeof(float)) / sizeof(float);
}

/* Sets the operation's caches. What is chosen refers to the last one. */
static void set_caches(struct attn_op *a)
{
    const struct op *op = a->op;
    a->caches[a->n_cache++] = (struct attn_cache){.k = &op->state[ATTENTION_K],
                                                  .v = &op->state[ATTENTION_V],
                                                  .pages = tensor_data(&op->in[ATTENTION_PAGES]),
                                                  .window = op->attention.window,
                                                  .is_chunked = op->attention.chunked,
                                                  .ratio = 1};
    if (op->attention.ratio)
        a->caches[a->n_cache++] = (struct attn_cache){.k = &op->state[ATTENTION_ENTRIES],
                                                      .v = &op->state[ATTENTION_ENTRIES],
                                                      .pages = tensor_data(&op->in[ATTENTION_ENTRY_PAGES]),
                                                      .ratio = op->attention.ratio};
    if (op->in[ATTENTION_CHOSEN].buffer) {
        struct attn_cache *c = &a->caches[a->n_cache - 1];
        c->chosen = tensor_data(&op->in[ATTENTION_CHOSEN]);
        c->chosen_block = op->attention.chosen_block;
        c->n_chosen = op->in[ATTENTION_CHOSEN].ne[0] / (c->chosen_block ? op->state[ATTENTION_K].page.ne[2] : 1);
    }
}

void cpu_op_attention(struct cpu *c, const struct op *op)
{
    const struct tensor *k = &op->state[ATTENTION_K].page;
    struct attn_op a = {.kernels = c->kernels,
                        .op = op,
                        .dk = k->ne[0],
                        .dv = op->state[ATTENTION_V].page.ne[0],
                        .n_head = op->attention.n_head,
                        .n_group = op->attention.n_head / k->ne[2],
                        .m = op->in[ATTENTION_Q].ne[1],
                        .is_latent = cpu_attention_is_latent(op)};
    set_caches(&a);
    struct attn_loop l = {.pool = c->pool, .a = a, .cut.n_share = (a.n_group + TASK_HEADS - 1) / TASK_HEADS};
    int64_t n_share = k->ne[2] * l.cut.n_share;
    choose_tile(&l.cut, &a, n_share, pool_n_used(c->pool));
    l.work_elems = work_elems(&a, l.cut.most_queries);
    l.work = cpu_scratch(c, SCRATCH_THREAD, l.work_elems * sizeof(float) * (size_t)pool_n_threads(c->pool));
    if (l.work && cut(&l, c, n_share))
        pool_run(c->pool, (size_t)(n_share * l.cut.n_unit), attention_task, &l);
}
