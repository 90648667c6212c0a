/* Checks the shapes and types of operations against what backend.h says, in the same way for every device. */
#include <string.h>

#include "backend/vtable.h"

/* The operation that is checked. *e gets its first fault. */
struct op_checker {
    struct backend *b;
    const struct op *op;
    struct err *e;
};

enum { ANY = -1 };

/* Returns an error with a sentence about the operation, if `cond` does not hold. */
#define CHECK(c, cond, ...)                                                                                            \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            return err_set((c)->e, ERR_CHECK, __VA_ARGS__);                                                            \
    } while (0)

/* ---- operands ------------------------------------------------------------------------------------------------- */

/* Checks that the tensor, and more_bytes behind it, lie in its buffer. */
static err_code check_place(const struct op_checker *c, const char *name, const struct tensor *t, size_t more_bytes)
{
    size_t n_bytes = c->b->v->buffer_bytes(c->b, t->buffer);
    for (int i = 0; i < TENSOR_DIMS; i++)
        CHECK(c, t->ne[i] > 0, "%s has %lld elements in dimension %d", name, (long long)t->ne[i], i);
    CHECK(c, t->off_bytes <= n_bytes && tensor_bytes(t) + more_bytes <= n_bytes - t->off_bytes,
          "%s takes bytes %zu to %zu of a buffer of %zu", name, t->off_bytes,
          t->off_bytes + tensor_bytes(t) + more_bytes, n_bytes);
    return ERR_OK;
}

static err_code check_there(const struct op_checker *c, const char *name, const struct tensor *t)
{
    CHECK(c, t->buffer, "%s is absent", name);
    return ERR_OK;
}

/* Checks that the tensor is there, has this type and these dimensions (ANY: of any size), and lies in its buffer. */
static err_code check_tensor(const struct op_checker *c, const char *name, const struct tensor *t, enum elem_type type,
                             int64_t ne0, int64_t ne1, int64_t ne2)
{
    const int64_t ne[TENSOR_DIMS] = {ne0, ne1, ne2};
    TRY(check_there(c, name, t));
    CHECK(c, t->type == type, "%s has elements of type %d, expected %d", name, (int)t->type, (int)type);
    for (int i = 0; i < TENSOR_DIMS; i++)
        CHECK(c, ne[i] == ANY || t->ne[i] == ne[i], "%s has %lld elements in dimension %d, expected %lld", name,
              (long long)t->ne[i], i, (long long)ne[i]);
    return check_place(c, name, t, 0);
}

static err_code check_optional(const struct op_checker *c, const char *name, const struct tensor *t,
                               enum elem_type type, int64_t ne0, int64_t ne1, int64_t ne2)
{
    return t->buffer ? check_tensor(c, name, t, type, ne0, ne1, ne2) : ERR_OK;
}

/* Rows of floats: [n][m]. */
static err_code check_rows(const struct op_checker *c, const char *name, const struct tensor *t, int64_t n, int64_t m)
{
    return check_tensor(c, name, t, ELEM_F32, n, m, 1);
}

/* A number for each of m rows. */
static err_code check_ints(const struct op_checker *c, const char *name, const struct tensor *t, int64_t m)
{
    return check_tensor(c, name, t, ELEM_I32, m, 1, 1);
}

static err_code check_vec(const struct op_checker *c, int i, const char *name, int64_t n)
{
    return check_optional(c, name, &c->op->vec[i], ELEM_F32, n, 1, 1);
}

static err_code check_needed_vec(const struct op_checker *c, int i, const char *name, int64_t n)
{
    TRY(check_there(c, name, &c->op->vec[i]));
    return check_vec(c, i, name, n);
}

/* Two tensors of the same shape. */
static err_code check_alike(const struct op_checker *c, const char *name, const struct tensor *t,
                            const struct tensor *like)
{
    return check_tensor(c, name, t, ELEM_F32, like->ne[0], like->ne[1], like->ne[2]);
}

static err_code check_weight(const struct op_checker *c, int i, int64_t k, int64_t n_row, struct weight_shape *shape)
{
    CHECK(c, c->op->weight[i], "weight %d is absent", i);
    *shape = c->b->v->weight_shape(c->b, c->op->weight[i]);
    CHECK(c, k == ANY || shape->k == k, "weight %d has rows of %lld, expected %lld", i, (long long)shape->k,
          (long long)k);
    CHECK(c, n_row == ANY || shape->n_row == n_row, "weight %d has %lld rows, expected %lld", i,
          (long long)shape->n_row, (long long)n_row);
    return ERR_OK;
}

/* Checks that page 0 has these dimensions and lies in its buffer with all of its parts. */
static err_code check_state(const struct op_checker *c, int i, const char *name, int64_t ne0, int64_t ne1, int64_t ne2)
{
    const struct paged *s = &c->op->state[i];
    const int64_t ne[TENSOR_DIMS] = {ne0, ne1, ne2};
    TRY(check_there(c, name, &s->page));
    for (int d = 0; d < TENSOR_DIMS; d++)
        CHECK(c, ne[d] == ANY || s->page.ne[d] == ne[d], "%s has %lld elements in dimension %d, expected %lld", name,
              (long long)s->page.ne[d], d, (long long)ne[d]);
    struct tensor part = s->page;
    part.ne[2] = 1;
    CHECK(c, s->page.ne[2] > 0 && s->page_bytes >= tensor_bytes(&part),
          "%s has pages of %zu bytes, expected at least %zu", name, s->page_bytes, tensor_bytes(&part));
    return check_place(c, name, &part, (size_t)(s->page.ne[2] - 1) * s->part_bytes);
}

static err_code check_float_state(const struct op_checker *c, int i, const char *name, int64_t ne0, int64_t ne1,
                                  int64_t ne2)
{
    CHECK(c, c->op->state[i].page.type == ELEM_F32, "%s is not of floats", name);
    return check_state(c, i, name, ne0, ne1, ne2);
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

static int64_t n_token(const struct op *op)
{
    return op->in[0].ne[1];
}

static err_code check_embed(const struct op_checker *c)
{
    struct weight_shape w;
    int64_t m = c->op->in[0].ne[0];
    TRY(check_ints(c, "ids", &c->op->in[0], m));
    TRY(check_weight(c, 0, ANY, ANY, &w));
    return check_rows(c, "out", &c->op->out[0], w.k, m);
}

static err_code check_layer_norm(const struct op_checker *c)
{
    const struct op *op = c->op;
    TRY(check_rows(c, "x", &op->in[0], ANY, ANY));
    TRY(check_alike(c, "out", &op->out[0], &op->in[0]));
    TRY(check_vec(c, NORM_W, "w", op->in[0].ne[0]));
    return check_vec(c, NORM_BIAS, "bias", op->in[0].ne[0]);
}

static err_code check_rms_norm(const struct op_checker *c)
{
    const struct op *op = c->op;
    TRY(check_tensor(c, "x", &op->in[0], ELEM_F32, ANY, ANY, ANY));
    TRY(check_alike(c, "out", &op->out[0], &op->in[0]));
    CHECK(c, op->norm.n > 0 && op->in[0].ne[0] % op->norm.n == 0, "norm.n is %lld, expected a divisor of %lld",
          (long long)op->norm.n, (long long)op->in[0].ne[0]);
    bool is_whole = op->vec[NORM_W].ne[0] == op->in[0].ne[0];
    TRY(check_vec(c, NORM_W, "w", is_whole ? op->in[0].ne[0] : op->norm.n));
    return check_vec(c, NORM_BIAS, "bias", op->norm.n);
}

static err_code check_matmul(const struct op_checker *c)
{
    const struct op *op = c->op;
    struct weight_shape w;
    TRY(check_rows(c, "x", &op->in[0], ANY, ANY));
    TRY(check_weight(c, 0, op->in[0].ne[0], ANY, &w));
    for (int i = 0; i < OP_MAX_OUT && op->weight[i]; i++) {
        TRY(check_weight(c, i, op->in[0].ne[0], ANY, &w));
        TRY(check_rows(c, "out", &op->out[i], w.n_row, n_token(op)));
        TRY(check_vec(c, i, "bias", w.n_row));
    }
    return ERR_OK;
}

static err_code check_heads(const struct op_checker *c)
{
    enum { ROWS = 16 }; /* a head's rows are rounded up to a multiple of this */
    const struct op *op = c->op;
    struct weight_shape w;
    int64_t n_head = op->heads.n_head, n_in = op->heads.n_in, n_out = op->heads.n_out;
    CHECK(c, n_head > 0 && n_in > 0 && n_out > 0, "there are %lld heads of %lld to %lld elements", (long long)n_head,
          (long long)n_in, (long long)n_out);
    CHECK(c,
          op->heads.in_off >= 0 && op->heads.in_off + n_in <= op->heads.in_dim && op->heads.out_off >= 0 &&
              op->heads.out_off + n_out <= op->heads.out_dim,
          "a head's elements reach beyond it");
    TRY(check_rows(c, "x", &op->in[0], n_head * op->heads.in_dim, ANY));
    TRY(check_rows(c, "out", &op->out[0], n_head * op->heads.out_dim, n_token(op)));
    CHECK(c, op->weight[0] || n_in == n_out, "%lld elements are copied to %lld", (long long)n_in, (long long)n_out);
    return op->weight[0] ? check_weight(c, 0, n_in, n_head * ((n_out + ROWS - 1) / ROWS * ROWS), &w) : ERR_OK;
}

static err_code check_rope_table(const struct op_checker *c)
{
    const struct op *op = c->op;
    int64_t m = op->in[0].ne[0], n_rot = op->out[0].ne[0];
    TRY(check_ints(c, "pos", &op->in[0], m));
    TRY(check_rows(c, "out", &op->out[0], ANY, m));
    CHECK(c, n_rot % 2 == 0, "rows have %lld elements, expected an even number", (long long)n_rot);
    return check_vec(c, 0, "divisors", n_rot / 2);
}

static err_code check_rope(const struct op_checker *c)
{
    const struct op *op = c->op;
    const struct tensor *x = &op->in[ROPE_X], *out = &op->out[0];
    int64_t head_dim = op->rope.head_dim, n_rot = op->rope.n_rot;
    TRY(check_rows(c, "x", x, ANY, ANY));
    TRY(check_alike(c, "out", out, x));
    CHECK(c, out->buffer == x->buffer && out->off_bytes == x->off_bytes, "out is not x");
    CHECK(c, head_dim > 0 && x->ne[0] % head_dim == 0, "head_dim is %lld, expected a divisor of %lld",
          (long long)head_dim, (long long)x->ne[0]);
    CHECK(c, n_rot % 2 == 0 && n_rot <= head_dim, "n_rot is %lld, expected an even number up to %lld", (long long)n_rot,
          (long long)head_dim);
    CHECK(c, op->rope.off >= 0 && op->rope.off + n_rot <= head_dim, "elements from %lld on are rotated, of %lld",
          (long long)op->rope.off, (long long)head_dim);
    return check_rows(c, "table", &op->in[ROPE_COS_SIN], n_rot, n_token(op));
}

/* Positions, and page tables. */
static err_code check_positions(const struct op_checker *c, const struct tensor *pos, const struct tensor *table,
                                const struct tensor *pages)
{
    int64_t m = n_token(c->op);
    TRY(check_ints(c, "pos", pos, m));
    TRY(check_ints(c, "table", table, m));
    return check_ints(c, "pages", pages, pages->ne[0]);
}

/* A cache of keys or values. */
static err_code check_cache(const struct op_checker *c, int i, const char *name, int64_t ne2)
{
    enum elem_type type = c->op->state[i].page.type;
    CHECK(c, type == ELEM_F32 || type == ELEM_F16 || type == ELEM_Q8_0, "%s is of type %d", name, (int)type);
    return check_state(c, i, name, ANY, ATTENTION_BLOCK, ne2);
}

static err_code check_kv_store(const struct op_checker *c)
{
    const struct op *op = c->op;
    const struct tensor *cache = &op->state[0].page;
    TRY(check_cache(c, 0, "the cache", ANY));
    TRY(check_rows(c, "x", &op->in[KV_STORE_X], cache->ne[0] * cache->ne[2], ANY));
    return check_positions(c, &op->in[KV_STORE_POS], &op->in[KV_STORE_TABLE], &op->in[KV_STORE_PAGES]);
}

/* Blocks consist of whole blocks of the cache, and each of n_list lists of a token has the same number of them. */
static err_code check_blocks(const struct op_checker *c, int64_t block, int64_t n_chosen, int64_t n_list)
{
    CHECK(c, block >= ATTENTION_BLOCK && block % ATTENTION_BLOCK == 0,
          "there are blocks of %lld positions, expected a multiple of %d", (long long)block, ATTENTION_BLOCK);
    CHECK(c, n_chosen % n_list == 0, "%lld blocks are chosen for %lld heads, expected as many for each",
          (long long)n_chosen, (long long)n_list);
    return ERR_OK;
}

/* INDEX that chooses blocks. */
static err_code check_block_index(const struct op_checker *c)
{
    const struct op *op = c->op;
    int64_t dim = op->state[0].page.ne[0], n_head = op->in[INDEX_Q].ne[0] / dim;
    CHECK(c, n_head > 0, "q has %lld elements, expected heads of %lld", (long long)op->in[INDEX_Q].ne[0],
          (long long)dim);
    TRY(check_rows(c, "q", &op->in[INDEX_Q], n_head * dim, ANY));
    TRY(check_blocks(c, op->index.block, op->out[0].ne[0], n_head));
    CHECK(c, op->index.ratio <= 1, "there are blocks of a compressed cache");
    CHECK(c, op->index.n_local >= 0 && op->index.n_local <= op->out[0].ne[0] / n_head,
          "%lld of %lld blocks are taken in any case", (long long)op->index.n_local,
          (long long)(op->out[0].ne[0] / n_head));
    return ERR_OK;
}

static err_code check_index(const struct op_checker *c)
{
    const struct op *op = c->op;
    int64_t m = n_token(op), ratio = op->index.ratio;
    TRY(check_cache(c, 0, "K", 1));
    TRY(check_tensor(c, "out", &op->out[0], ELEM_I32, ANY, m, 1));
    CHECK(c, ratio >= 0, "there are %lld positions for an entry", (long long)ratio);
    TRY(check_positions(c, &op->in[INDEX_POS], &op->in[INDEX_TABLE], &op->in[INDEX_PAGES]));
    if (op->index.block)
        return check_block_index(c);
    int64_t dim = op->state[0].page.ne[0], n_head = op->in[INDEX_Q].ne[0] / dim;
    CHECK(c, !op->index.spreads || (ratio > 1 && op->out[0].ne[0] >= ratio && op->out[0].ne[0] % ratio == ratio - 1),
          "lists have %lld positions of entries of %lld, expected those of some and of one that is not full",
          (long long)op->out[0].ne[0], (long long)ratio);
    CHECK(c, n_head > 0, "q has %lld elements, expected heads of %lld", (long long)op->in[INDEX_Q].ne[0],
          (long long)dim);
    if (op->in[INDEX_WEIGHTS].buffer)
        TRY(check_rows(c, "weights", &op->in[INDEX_WEIGHTS], n_head, m));
    return check_rows(c, "q", &op->in[INDEX_Q], n_head * dim, ANY);
}

/* The compressed cache of ATTENTION, beside a cache whose keys are values. */
static err_code check_compressed(const struct op_checker *c)
{
    const struct op *op = c->op;
    const struct tensor *k = &op->state[ATTENTION_K].page, *v = &op->state[ATTENTION_V].page,
                        *entries = &op->state[ATTENTION_ENTRIES].page;
    CHECK(c, k->buffer == v->buffer && k->off_bytes == v->off_bytes && k->ne[2] == 1,
          "there is a compressed cache beside keys that are not values");
    TRY(check_state(c, ATTENTION_ENTRIES, "the compressed cache", k->ne[0], ATTENTION_BLOCK, 1));
    CHECK(c, entries->type == k->type, "K and the compressed cache are of different types");
    return check_ints(c, "the compressed cache's pages", &op->in[ATTENTION_ENTRY_PAGES],
                      op->in[ATTENTION_ENTRY_PAGES].ne[0]);
}

static err_code check_compress(const struct op_checker *c)
{
    const struct op *op = c->op;
    int64_t n = op->out[0].ne[0], m = op->in[COMPRESS_AT].ne[0], width = op->vec[0].ne[0], ratio = op->vec[0].ne[1];
    TRY(check_ints(c, "at", &op->in[COMPRESS_AT], m));
    TRY(check_ints(c, "table", &op->in[COMPRESS_TABLE], m));
    TRY(check_ints(c, "pages", &op->in[COMPRESS_PAGES], op->in[COMPRESS_PAGES].ne[0]));
    TRY(check_rows(c, "out", &op->out[0], ANY, m));
    TRY(check_rows(c, "bias", &op->vec[0], ANY, ANY));
    CHECK(c, width == n || width == 2 * n, "rows have %lld elements, expected once or twice %lld", (long long)width,
          (long long)n);
    CHECK(c, ratio >= 2, "there are %lld positions for an entry", (long long)ratio);
    TRY(check_float_state(c, COMPRESS_X, "x", width, ATTENTION_BLOCK, 1));
    return op->state[COMPRESS_GATE].page.buffer ? check_float_state(c, COMPRESS_GATE, "gate", width, ATTENTION_BLOCK, 1)
                                                : ERR_OK;
}

/* Checks that rows of `all` elements are a possible number of streams of n elements. */
static err_code check_n_stream(const struct op_checker *c, int64_t all, int64_t n)
{
    CHECK(c, all % n == 0 && all / n >= 1 && all / n <= OP_MAX_STREAM,
          "rows of %lld elements are not 1 to %d streams of %lld", (long long)all, OP_MAX_STREAM, (long long)n);
    return ERR_OK;
}

/* A mix of n_part numbers for each stream, which must also be the second output. */
static err_code check_mix(const struct op_checker *c, int64_t n_stream, int64_t n_part)
{
    const struct tensor *mix = &c->op->in[STREAMS_IN_MIX], *out = &c->op->out[STREAMS_IN_MIXED];
    TRY(check_rows(c, "mix", mix, n_part * n_stream, n_token(c->op)));
    TRY(check_alike(c, "the second output", out, mix));
    CHECK(c, out->buffer == mix->buffer && out->off_bytes == mix->off_bytes, "the second output is not mix");
    return ERR_OK;
}

static err_code check_streams_in(const struct op_checker *c)
{
    const struct op *op = c->op;
    const struct tensor *mix = &op->in[STREAMS_IN_MIX];
    int64_t n = op->out[STREAMS_IN_Y].ne[0], m = n_token(op);
    TRY(check_rows(c, "x", &op->in[STREAMS_IN_X], ANY, ANY));
    TRY(check_rows(c, "out", &op->out[STREAMS_IN_Y], ANY, m));
    TRY(check_n_stream(c, op->in[STREAMS_IN_X].ne[0], n));
    int64_t n_stream = op->in[STREAMS_IN_X].ne[0] / n;
    if (op->in[STREAMS_IN_GATE].buffer || !mix->buffer) {
        CHECK(c, !mix->buffer || op->streams.magnitude > 0, "the magnitude is %g", (double)op->streams.magnitude);
        TRY(check_optional(c, "gate", &op->in[STREAMS_IN_GATE], ELEM_F32, n_stream * n, m, 1));
        return mix->buffer ? check_mix(c, n_stream, 1) : ERR_OK;
    }
    int64_t n_part = mix->ne[0] / n_stream, n_scale = n_part < 3 ? n_part : 3;
    CHECK(c, n_part == 1 || n_part == 2 || n_part == n_stream + 2, "there are %lld numbers for %lld streams",
          (long long)mix->ne[0], (long long)n_stream);
    TRY(check_mix(c, n_stream, n_part));
    CHECK(c, n_scale < 3 || op->streams.n_iteration > 0, "there are %lld iterations",
          (long long)op->streams.n_iteration);
    CHECK(c, n_scale < 2 || op->streams.magnitude > 0, "the magnitude is %g", (double)op->streams.magnitude);
    TRY(check_needed_vec(c, STREAMS_IN_SCALE, "scale", n_scale));
    return check_needed_vec(c, STREAMS_IN_BASE, "base", mix->ne[0]);
}

static err_code check_streams_out(const struct op_checker *c)
{
    const struct op *op = c->op;
    const struct tensor *x = &op->in[STREAMS_OUT_X];
    int64_t m = n_token(op);
    TRY(check_rows(c, "y", &op->in[STREAMS_OUT_Y], ANY, ANY));
    TRY(check_rows(c, "x", x, ANY, m));
    TRY(check_n_stream(c, x->ne[0], op->in[STREAMS_OUT_Y].ne[0]));
    int64_t n_stream = x->ne[0] / op->in[STREAMS_OUT_Y].ne[0], n_part = op->in[STREAMS_OUT_MIX].ne[0] / n_stream;
    TRY(check_rows(c, "mix", &op->in[STREAMS_OUT_MIX], n_stream * (n_part == 1 || n_part == 2 ? n_part : n_stream + 2),
                   m));
    TRY(check_alike(c, "out", &op->out[0], x));
    CHECK(c, op->out[0].buffer == x->buffer && op->out[0].off_bytes == x->off_bytes, "out is not x");
    return ERR_OK;
}

static err_code check_streams_match(const struct op_checker *c)
{
    const struct op *op = c->op;
    TRY(check_rows(c, "key", &op->in[STREAMS_MATCH_KEY], ANY, ANY));
    TRY(check_alike(c, "query", &op->in[STREAMS_MATCH_QUERY], &op->in[STREAMS_MATCH_KEY]));
    TRY(check_rows(c, "value", &op->in[STREAMS_MATCH_VALUE], ANY, n_token(op)));
    TRY(check_n_stream(c, op->in[STREAMS_MATCH_KEY].ne[0], op->in[STREAMS_MATCH_VALUE].ne[0]));
    return check_alike(c, "out", &op->out[0], &op->in[STREAMS_MATCH_KEY]);
}

static err_code check_residuals(const struct op_checker *c)
{
    const struct op *op = c->op;
    int64_t n = op->in[RESIDUALS_X].ne[0], n_banked = op->residuals.n_banked;
    TRY(check_rows(c, "x", &op->in[RESIDUALS_X], ANY, ANY));
    int64_t n_bank = op->in[RESIDUALS_BANK].ne[0] / n;
    TRY(check_rows(c, "the bank", &op->in[RESIDUALS_BANK], n_bank * n, n_token(op)));
    CHECK(c, n_banked >= 1 && n_banked <= n_bank && n_banked <= OP_MAX_BANK,
          "%lld of %lld residuals are banked, expected 1 to %d", (long long)n_banked, (long long)n_bank, OP_MAX_BANK);
    TRY(check_needed_vec(c, 0, "w", n));
    return check_alike(c, "out", &op->out[0], &op->in[RESIDUALS_X]);
}

static err_code check_attention(const struct op_checker *c)
{
    const struct op *op = c->op;
    const struct tensor *k = &op->state[ATTENTION_K].page, *v = &op->state[ATTENTION_V].page;
    int64_t n_head = op->attention.n_head;
    TRY(check_cache(c, ATTENTION_K, "K", ANY));
    TRY(check_cache(c, ATTENTION_V, "V", k->ne[2]));
    CHECK(c, n_head > 0 && n_head % k->ne[2] == 0, "there are %lld heads, expected a multiple of %lld",
          (long long)n_head, (long long)k->ne[2]);
    CHECK(c, k->type == v->type, "K and V are of different types");
    CHECK(c, op->attention.window >= 0, "the window is %lld", (long long)op->attention.window);
    CHECK(c, op->attention.softcap >= 0, "the bound of scores is %g", (double)op->attention.softcap);
    TRY(check_rows(c, "q", &op->in[ATTENTION_Q], n_head * k->ne[0], ANY));
    TRY(check_rows(c, "out", &op->out[0], n_head * v->ne[0], n_token(op)));
    TRY(check_vec(c, 0, "sinks", n_head));
    if (op->in[ATTENTION_CHOSEN].buffer) {
        TRY(check_tensor(c, "chosen", &op->in[ATTENTION_CHOSEN], ELEM_I32, ANY, n_token(op), 1));
        CHECK(c, op->attention.window == 0 || op->attention.ratio, "there are a window and chosen positions");
    }
    if (op->attention.chosen_block) {
        CHECK(c, op->in[ATTENTION_CHOSEN].buffer && !op->attention.ratio,
              "there are blocks of %lld positions, but no choice of them", (long long)op->attention.chosen_block);
        TRY(check_blocks(c, op->attention.chosen_block, op->in[ATTENTION_CHOSEN].ne[0], k->ne[2]));
    }
    CHECK(c, op->attention.ratio >= 0, "there are %lld positions for an entry", (long long)op->attention.ratio);
    if (op->attention.ratio)
        TRY(check_compressed(c));
    return check_positions(c, &op->in[ATTENTION_POS], &op->in[ATTENTION_TABLE], &op->in[ATTENTION_PAGES]);
}

static err_code check_conv(const struct op_checker *c)
{
    const struct op *op = c->op;
    int64_t n = op->in[CONV_X].ne[0], m = n_token(op), n_tap = op->vec[CONV_TAPS].ne[1];
    TRY(check_rows(c, "x", &op->in[CONV_X], ANY, ANY));
    TRY(check_rows(c, "out", &op->out[0], n, m));
    TRY(check_tensor(c, "taps", &op->vec[CONV_TAPS], ELEM_F32, n, ANY, 1));
    CHECK(c, n_tap >= 2 && n_tap <= OP_CONV_MAX_TAP, "there are %lld taps, expected 2 to %d", (long long)n_tap,
          OP_CONV_MAX_TAP);
    TRY(check_vec(c, CONV_BIAS, "bias", n));
    TRY(check_float_state(c, 0, "the state", n, n_tap - 1, 1));
    TRY(check_ints(c, "from", &op->in[CONV_FROM], m));
    return check_ints(c, "to", &op->in[CONV_TO], m);
}

static err_code check_delta(const struct op_checker *c)
{
    const struct op *op = c->op;
    const int64_t *ne = op->state[0].page.ne;
    int64_t m = n_token(op), n_head_k = op->delta.n_head_k;
    bool is_selective = op->kind == OP_SSM && op->in[SSM_QK].buffer;
    TRY(check_float_state(c, 0, "the state", ANY, ANY, is_selective ? 1 : ANY));
    CHECK(c, op->delta.min_log_decay <= 0 && (op->kind == OP_DELTA || op->delta.min_log_decay == 0),
          "min_log_decay is %g", (double)op->delta.min_log_decay);
    CHECK(c, n_head_k > 0 && ne[2] % n_head_k == 0, "there are %lld value heads for %lld key heads", (long long)ne[2],
          (long long)n_head_k);
    int64_t n_qk = 2 * n_head_k * ne[0], n_v = ne[2] * ne[1];
    TRY(check_rows(c, is_selective ? "v" : "q, k and v", &op->in[DELTA_QKV], is_selective ? n_v : n_qk + n_v, ANY));
    bool by_dim = op->kind == OP_DELTA && op->in[DELTA_ALPHA].ne[0] == ne[0] * ne[2];
    int64_t n_alpha = is_selective ? n_v : by_dim ? ne[0] * ne[2] : ne[2];
    bool is_fixed = op->kind == OP_SSM && !is_selective && !op->in[DELTA_ALPHA].buffer;
    if (!is_fixed)
        TRY(check_rows(c, "alpha", &op->in[DELTA_ALPHA], n_alpha, m));
    if (op->kind == OP_DELTA)
        TRY(check_rows(c, "beta", &op->in[DELTA_BETA], ne[2], m));
    else
        TRY(check_needed_vec(c, SSM_SKIP, "skip", is_selective ? n_v : ne[2]));
    if (is_selective)
        TRY(check_rows(c, "q and k", &op->in[SSM_QK], n_qk, m));
    TRY(check_ints(c, "from", &op->in[DELTA_FROM], m));
    TRY(check_ints(c, "to", &op->in[DELTA_TO], m));
    if (!is_fixed)
        TRY(check_needed_vec(c, DELTA_DT, "dt bias", n_alpha));
    if (is_selective)
        TRY(check_tensor(c, "a", &op->vec[DELTA_A], ELEM_F32, ne[0], n_v, 1));
    else
        TRY(check_needed_vec(c, DELTA_A, "a", ne[2]));
    return check_rows(c, "out", &op->out[0], ne[2] * ne[1], m);
}

/* One or two inputs, and an output like them. */
static err_code check_elements(const struct op_checker *c, int n_in)
{
    const struct op *op = c->op;
    TRY(check_tensor(c, "x", &op->in[0], ELEM_F32, ANY, ANY, ANY));
    if (n_in == 2)
        TRY(check_alike(c, "the second input", &op->in[1], &op->in[0]));
    return check_alike(c, "out", &op->out[0], &op->in[0]);
}

static err_code check_clamp(const struct op_checker *c)
{
    CHECK(c, c->op->scale > 0, "the limit is %g", (double)c->op->scale);
    return check_elements(c, 1);
}

/* The limits of an activation's factors. */
static err_code check_limits(const struct op_checker *c, enum act_fn act, float limit, float up_limit)
{
    bool is_situ = act == ACT_SITU, can_have = is_situ || act == ACT_SILU || act == ACT_SILU_CLAMPED;
    CHECK(c, (limit == 0 && !is_situ) || (can_have && limit > 0), "the limit of activation %d is %g", (int)act,
          (double)limit);
    CHECK(c, up_limit == 0 || (is_situ && up_limit > 0), "the limit of up with activation %d is %g", (int)act,
          (double)up_limit);
    return ERR_OK;
}

static err_code check_act_mul(const struct op_checker *c)
{
    const struct tensor *gate = &c->op->in[ACT_MUL_GATE], *up = &c->op->in[ACT_MUL_UP];
    TRY(check_tensor(c, "up", up, ELEM_F32, ANY, ANY, ANY));
    TRY(check_tensor(c, "gate", gate, ELEM_F32, ANY, up->ne[1], up->ne[2]));
    CHECK(c, up->ne[0] % gate->ne[0] == 0, "rows of %lld gates are for rows of %lld", (long long)gate->ne[0],
          (long long)up->ne[0]);
    CHECK(c, c->op->act_limit == 0 || up->ne[0] == gate->ne[0], "there is a limit, but not a gate for each element");
    TRY(check_limits(c, c->op->act, c->op->act_limit, c->op->act_up_limit));
    return check_alike(c, "out", &c->op->out[0], up);
}

static err_code check_scale(const struct op_checker *c)
{
    TRY(check_elements(c, 1));
    return check_vec(c, 0, "the factor", 1);
}

static err_code check_slice(const struct op_checker *c)
{
    const struct op *op = c->op;
    int64_t k = op->out[0].ne[0], m = op->out[0].ne[1];
    TRY(check_rows(c, "x", &op->in[SLICE_X], ANY, ANY));
    TRY(check_rows(c, "out", &op->out[0], ANY, ANY));
    CHECK(c, op->slice_off >= 0 && op->slice_off + k <= op->in[SLICE_X].ne[0],
          "elements %lld to %lld are taken of rows of %lld", (long long)op->slice_off, (long long)(op->slice_off + k),
          (long long)op->in[SLICE_X].ne[0]);
    if (op->in[SLICE_ROWS].buffer)
        return check_ints(c, "rows", &op->in[SLICE_ROWS], m);
    CHECK(c, m <= op->in[SLICE_X].ne[1], "%lld rows are taken of %lld", (long long)m, (long long)op->in[SLICE_X].ne[1]);
    return ERR_OK;
}

static err_code check_scatter(const struct op_checker *c)
{
    const struct op *op = c->op;
    int64_t m = n_token(op);
    TRY(check_rows(c, "x", &op->in[SCATTER_X], ANY, ANY));
    TRY(check_ints(c, "rows", &op->in[SCATTER_ROWS], m));
    TRY(check_rows(c, "out", &op->out[0], op->in[SCATTER_X].ne[0], ANY));
    CHECK(c, m <= op->out[0].ne[1], "%lld rows go to %lld", (long long)m, (long long)op->out[0].ne[1]);
    return ERR_OK;
}

static err_code check_route(const struct op_checker *c)
{
    const struct op *op = c->op;
    struct weight_shape w;
    int64_t m = n_token(op), k = op->out[ROUTE_IDS].ne[0], n_group = op->route.n_group, used = op->route.n_group_used;
    TRY(check_rows(c, "x", &op->in[ROUTE_X], ANY, ANY));
    TRY(check_weight(c, 0, op->in[ROUTE_X].ne[0], ANY, &w));
    TRY(check_tensor(c, "ids", &op->out[ROUTE_IDS], ELEM_I32, ANY, m, 1));
    TRY(check_rows(c, "weights", &op->out[ROUTE_WEIGHTS], k, m));
    TRY(check_optional(c, "scores", &op->out[ROUTE_SCORES], ELEM_F32, w.n_row, m, 1));
    CHECK(c, n_group >= 1 && w.n_row % n_group == 0 && used >= 1 && used <= n_group,
          "%lld of %lld groups are used, of %lld experts", (long long)used, (long long)n_group, (long long)w.n_row);
    CHECK(c, k <= w.n_row / n_group * used, "%lld experts are chosen from %lld", (long long)k,
          (long long)(w.n_row / n_group * used));
    TRY(check_vec(c, ROUTE_BIAS, "the bias", w.n_row));
    TRY(check_vec(c, ROUTE_CHOICE_BIAS, "the choice's bias", w.n_row));
    if (op->vec[ROUTE_TOKEN_EXPERTS].buffer) {
        TRY(check_tensor(c, "the tokens' experts", &op->vec[ROUTE_TOKEN_EXPERTS], ELEM_I32, k, ANY, 1));
        TRY(check_ints(c, "token ids", &op->in[ROUTE_TOKENS], m));
    }
    return check_vec(c, ROUTE_EXPERT_SCALE, "the experts' factors", w.n_row);
}

static err_code check_experts(const struct op_checker *c)
{
    const struct op *op = c->op;
    CHECK(c, op->slot_pool, "there is no slot pool");
    const struct slot_pool_desc d = c->b->v->slot_pool_shape(c->b, op->slot_pool);
    int64_t m = n_token(op), k = op->in[EXPERTS_IDS].ne[0], n_expert = op->in[EXPERTS_SLOTS].ne[0];
    TRY(check_rows(c, "x", &op->in[EXPERTS_X], d.n_embd, ANY));
    TRY(check_tensor(c, "ids", &op->in[EXPERTS_IDS], ELEM_I32, ANY, m, 1));
    TRY(check_ints(c, "slots", &op->in[EXPERTS_SLOTS], n_expert));
    TRY(check_optional(c, "weights", &op->in[EXPERTS_WEIGHTS], ELEM_F32, k, m, 1));
    TRY(check_tensor(c, "y", &op->out[EXPERTS_Y], ELEM_F32, d.n_embd, k, m));
    TRY(check_optional(c, "hidden rows", &op->out[EXPERTS_HIDDEN], ELEM_F32, slot_n_hidden(&d), k, m));
    CHECK(c, op->experts.sort_cutoff >= 1, "sort_cutoff is %lld", (long long)op->experts.sort_cutoff);
    TRY(check_limits(c, op->experts.act, op->experts.act_limit, op->experts.act_up_limit));
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        TRY(check_optional(c, "a bias", &op->vec[i], ELEM_F32, slot_matrix_rows(&d, i), n_expert, 1));
    return ERR_OK;
}

static err_code check_combine(const struct op_checker *c)
{
    const struct op *op = c->op;
    int64_t n = op->in[COMBINE_Y].ne[0], k = op->in[COMBINE_Y].ne[1], m = op->in[COMBINE_Y].ne[2];
    TRY(check_tensor(c, "y", &op->in[COMBINE_Y], ELEM_F32, ANY, ANY, ANY));
    TRY(check_optional(c, "weights", &op->in[COMBINE_WEIGHTS], ELEM_F32, k, m, 1));
    TRY(check_optional(c, "shared", &op->in[COMBINE_SHARED], ELEM_F32, n, m, 1));
    CHECK(c, op->in[COMBINE_SHARED].buffer || !op->in[COMBINE_SHARED_GATE].buffer,
          "there is a shared gate without a shared expert");
    TRY(check_optional(c, "the shared gate", &op->in[COMBINE_SHARED_GATE], ELEM_F32, 1, m, 1));
    return check_rows(c, "out", &op->out[0], n, m);
}

static err_code check_op(const struct op_checker *c)
{
    switch (c->op->kind) {
    case OP_EMBED: return check_embed(c);
    case OP_RMS_NORM: return check_rms_norm(c);
    case OP_LAYER_NORM: return check_layer_norm(c);
    case OP_MATMUL: return check_matmul(c);
    case OP_HEADS: return check_heads(c);
    case OP_ROPE_TABLE: return check_rope_table(c);
    case OP_ROPE: return check_rope(c);
    case OP_KV_STORE: return check_kv_store(c);
    case OP_INDEX: return check_index(c);
    case OP_ATTENTION: return check_attention(c);
    case OP_COMPRESS: return check_compress(c);
    case OP_STREAMS_IN: return check_streams_in(c);
    case OP_STREAMS_OUT: return check_streams_out(c);
    case OP_STREAMS_MATCH: return check_streams_match(c);
    case OP_RESIDUALS: return check_residuals(c);
    case OP_CONV: return check_conv(c);
    case OP_DELTA:
    case OP_SSM: return check_delta(c);
    case OP_ACT_MUL: return check_act_mul(c);
    case OP_ADD: return check_elements(c, 2);
    case OP_SCALE: return check_scale(c);
    case OP_SOFTCAP: return check_elements(c, 1);
    case OP_CLAMP: return check_clamp(c);
    case OP_SLICE: return check_slice(c);
    case OP_SCATTER: return check_scatter(c);
    case OP_ROUTE: return check_route(c);
    case OP_EXPERTS: return check_experts(c);
    case OP_COMBINE: return check_combine(c);
    case OP_N_KIND: break;
    }
    return err_set(c->e, ERR_CHECK, "there is no operation %d", (int)c->op->kind);
}

err_code op_check(struct backend *b, const struct op *op, struct err *e)
{
    const struct op_checker c = {b, op, e};
    if (check_op(&c) == ERR_OK)
        return ERR_OK;
    return op->kind < OP_N_KIND ? err_prefix(e, "operation %s", op_name(op->kind)) : e->code;
}
