/* LAYER_NORM and INDEX. */
#include "vulkan/vk_ops.h"

enum { CHOOSE_THREADS = 256 }; /* as in shaders/index_choose.comp */

void vk_op_layer_norm(struct vk *v, const struct op *op)
{
    enum { GROUP = 128 };
    int64_t n = op->in[0].ne[0], m = op->in[0].ne[1];
    const struct vk_spread rows = vk_spread(v, m);
    const struct {
        uint64_t x, w, bias, y;
        uint32_t n;
        float eps;
        uint32_t m, unused;
    } push = {vk_address(&op->in[0]),
              vk_address(&op->vec[NORM_W]),
              vk_address(&op->vec[NORM_BIAS]),
              vk_address(&op->out[0]),
              (uint32_t)n,
              op->norm.eps,
              (uint32_t)m,
              0};
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[0]);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(layer_norm, GROUP), push, &x, 1, rows.y, rows.z, tensor_bytes(&op->out[0]));
}

bool vk_index_fits(const struct vk *v, const struct op *op)
{
    return v->limits.n_thread >= CHOOSE_THREADS &&
           (size_t)(op->state[0].page.ne[0] + ATTENTION_BLOCK) * sizeof(float) <= v->limits.shared_bytes;
}

static uint32_t ratio_of(const struct op *op)
{
    return (uint32_t)(op->index.ratio > 1 ? op->index.ratio : 1);
}

static int64_t n_heads(const struct op *op)
{
    return op->in[INDEX_Q].ne[0] / op->state[0].page.ne[0];
}

static int64_t n_lists(const struct op *op)
{
    return op->index.block ? n_heads(op) : 1;
}

/* The most positions, entries or blocks that a list chooses. */
static uint32_t n_chosen(const struct op *op)
{
    int64_t n = op->out[0].ne[0] / n_lists(op);
    return (uint32_t)(op->index.spreads ? n / op->index.ratio : n);
}

/* The most pages that a token may see: all that are listed. The list of a compressed cache's pages is as long as that
 * of positions, but uses only a part of it. */
static int64_t most_pages(const struct op *op)
{
    return vk_groups(op->in[INDEX_PAGES].ne[0], ratio_of(op));
}

/* The number of pages that a workgroup computes ranks for. */
static int64_t group_pages(const struct op *op)
{
    return op->index.block ? op->index.block / ATTENTION_BLOCK : 1;
}

/* The number of ranks for a list. */
static int64_t list_ranks(const struct op *op)
{
    return op->index.block ? vk_groups(most_pages(op), group_pages(op)) : most_pages(op) * ATTENTION_BLOCK;
}

static int64_t token_ranks(const struct op *op)
{
    return n_lists(op) * list_ranks(op);
}

/* The most multiply-adds of a token. */
static int64_t token_work(const struct op *op)
{
    return most_pages(op) * ATTENTION_BLOCK * op->in[INDEX_Q].ne[0];
}

/* The number of tokens in a part of the operation: the memory for ranks and the work of a dispatch are limited. */
static int64_t part_tokens(const struct vk *v, const struct op *op)
{
    enum { RANK_BYTES = 32 << 20 };
    int64_t fit = RANK_BYTES / (int64_t)sizeof(uint32_t) / token_ranks(op);
    int64_t work = v->limits.work / token_work(op) + 1, m = op->in[INDEX_Q].ne[1];
    fit = fit < 1 ? 1 : fit;
    fit = fit < work ? fit : work;
    return fit < m ? fit : m;
}

void vk_scratch_index(struct vk *v, const struct op *op)
{
    vk_scratch(v, VK_SCRATCH_RANKS, (size_t)(part_tokens(v, op) * token_ranks(op)) * sizeof(uint32_t));
}

static void rank(struct vk *v, const struct op *op, struct buffer *ranks)
{
    const struct tensor *k = &op->state[0].page;
    int64_t m = op->in[INDEX_Q].ne[1];
    const struct {
        uint64_t q, weights, pos, table, pages, ranks;
        struct vk_paged k;
        uint32_t m, n_chosen, ratio, n_local;
    } push = {.q = vk_address(&op->in[INDEX_Q]),
              .weights = vk_address(&op->in[INDEX_WEIGHTS]),
              .pos = vk_address(&op->in[INDEX_POS]),
              .table = vk_address(&op->in[INDEX_TABLE]),
              .pages = vk_address(&op->in[INDEX_PAGES]),
              .ranks = vk_buffer_address(ranks),
              .k = vk_paged_push(&op->state[0]),
              .m = (uint32_t)m,
              .n_chosen = n_chosen(op),
              .ratio = ratio_of(op),
              .n_local = (uint32_t)op->index.n_local};
    const struct vk_unit unit = {
        .kind = OP_INDEX, .n_bytes = elem_row_bytes(k->type, k->ne[0]), .n_float = (uint64_t)op->in[INDEX_Q].ne[0]};
    struct vk_touched x = {0};
    for (int i = INDEX_Q; i <= INDEX_WEIGHTS; i++)
        vk_reads(&x, &op->in[i]);
    vk_state(&x, &op->state[0], false);
    vk_whole(&x, ranks, true);
    vk_whole(&x, v->work.buffer, true);
    VK_RUN(v,
           VK_PROGRAM(index_ranks, ATTENTION_BLOCK, k->type, (uint32_t)k->ne[0], (uint32_t)n_heads(op),
                      vk_counter(v, &unit), op->index.block ? (uint32_t)group_pages(op) : 0),
           push, &x, vk_groups(most_pages(op), group_pages(op)), (uint32_t)m, 1, m * token_work(op));
}

static void choose(struct vk *v, const struct op *op, struct buffer *ranks)
{
    enum { PASSES = 5 };
    int64_t m = op->in[INDEX_Q].ne[1];
    const struct {
        uint64_t pos, ranks, chosen;
        uint32_t stride, n_chosen, ratio, more;
    } push = {.pos = vk_address(&op->in[INDEX_POS]),
              .ranks = vk_buffer_address(ranks),
              .chosen = vk_address(&op->out[0]),
              .stride = (uint32_t)list_ranks(op),
              .n_chosen = n_chosen(op),
              .ratio = op->index.block ? (uint32_t)op->index.block : ratio_of(op),
              .more = op->index.block ? (uint32_t)op->index.block : 1};
    struct vk_touched x = {0};
    vk_reads(&x, &op->in[INDEX_POS]);
    vk_whole(&x, ranks, false);
    vk_writes(&x, &op->out[0]);
    VK_RUN(v, VK_PROGRAM(index_choose, CHOOSE_THREADS, op->index.spreads), push, &x, (uint32_t)n_lists(op), (uint32_t)m,
           1, m * token_ranks(op) * PASSES);
}

void vk_op_index(struct vk *v, const struct op *op)
{
    struct buffer *ranks =
        vk_scratch(v, VK_SCRATCH_RANKS, (size_t)(part_tokens(v, op) * token_ranks(op)) * sizeof(uint32_t));
    for (int64_t t = 0, n; ranks && t < op->in[INDEX_Q].ne[1]; t += n) {
        int64_t left = op->in[INDEX_Q].ne[1] - t, most = part_tokens(v, op);
        struct op part = *op;
        n = left < most ? left : most;
        part.in[INDEX_Q] = tensor_rows(op->in[INDEX_Q], t, n);
        part.in[INDEX_POS] = vk_list_part(op->in[INDEX_POS], t, n);
        part.in[INDEX_TABLE] = vk_list_part(op->in[INDEX_TABLE], t, n);
        if (op->in[INDEX_WEIGHTS].buffer)
            part.in[INDEX_WEIGHTS] = tensor_rows(op->in[INDEX_WEIGHTS], t, n);
        part.out[0] = tensor_rows(op->out[0], t, n);
        rank(v, &part, ranks);
        choose(v, &part, ranks);
    }
}
