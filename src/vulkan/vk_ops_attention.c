/* ATTENTION. */
#include "vulkan/vk_ops.h"

/* GPU_ROWS: the positions whose values are loaded at a time, where values are not staged in shared memory. Software
 * drivers gain nothing from it. */
enum { GROUP = 128, GPU_ROWS = 8 };

/* How ATTENTION is divided into workgroups. */
struct cut {
    enum vk_shader shader;
    uint32_t heads, n_share; /* query heads of a workgroup; workgroups that share the query heads of a KV head */
    uint32_t n_thread;       /* threads of a workgroup */
    uint32_t y, z;           /* workgroups of each share: tokens or tiles in y, parts of these in z */
    bool is_split;           /* the parts in z are the blocks of a token */
    struct buffer *blocks;   /* if is_split: the results of the blocks */
    struct buffer *done;     /* if is_split: for each token and share, how many of its blocks are done */
};

static int64_t heads_of_kv(const struct op *op)
{
    return op->attention.n_head / op->state[ATTENTION_K].page.ne[2];
}

/* The shared memory that a query head takes: the query, scores and weights. */
static size_t head_bytes(int64_t dk)
{
    enum { STRIDE = ATTENTION_BLOCK + 1 };
    return (size_t)((dk + 3) / 4 * 4 + 2 * STRIDE) * sizeof(float);
}

/* The number of groups of four dwords in a row of a cache; 0: rows don't consist of such groups. */
static int64_t row_fours(const struct tensor *page)
{
    enum { FOUR_BYTES = 16 };
    int64_t n = page->ne[0] * (page->type == ELEM_F32 ? 4 : 2);
    return (page->type == ELEM_F32 || page->type == ELEM_F16) && n % FOUR_BYTES == 0 ? n / FOUR_BYTES : 0;
}

/* Whether a block's keys and values are staged in shared memory (STAGED): it has room for the longer of the two, and
 * threads have registers for both. */
static bool are_staged(const struct vk *v, const struct op *op, uint32_t heads)
{
    enum { FOUR_BYTES = 16, MOST_LOADS = 32, KEPT_BYTES = 256 };
    int64_t k = row_fours(&op->state[ATTENTION_K].page), value = row_fours(&op->state[ATTENTION_V].page),
            most = k > value ? k : value;
    size_t n_bytes = (size_t)(ATTENTION_BLOCK * (most + 1)) * FOUR_BYTES;
    return v->choices.stages_attention && k && value && (k + value) * ATTENTION_BLOCK <= MOST_LOADS * GROUP &&
           n_bytes + heads * head_bytes(op->state[ATTENTION_K].page.ne[0]) + KEPT_BYTES <= v->limits.shared_bytes;
}

/* The number of query heads in a workgroup for single tokens: as many as its shared memory and its threads' registers
 * have room for, but few where a GPU would otherwise have idle processors. */
static uint32_t choose_heads(const struct vk *v, const struct op *op)
{
    enum { MOST = 8, MOST_OF_ONE = 2, MAX_VALUES = 16, KEPT_BYTES = 256 };
    int64_t dk = op->state[ATTENTION_K].page.ne[0], columns = vk_groups(op->state[ATTENTION_V].page.ne[0], GROUP);
    int64_t n = heads_of_kv(op), most = op->in[ATTENTION_Q].ne[1] == 1 && !v->is_software ? MOST_OF_ONE : MOST;
    n = n < most ? n : most;
    while (n > 1 && n * columns > MAX_VALUES)
        n--;
    while (n > 0 && head_bytes(dk) * (size_t)n + KEPT_BYTES > v->limits.shared_bytes)
        n--;
    return (uint32_t)n;
}

bool vk_attention_fits(const struct vk *v, const struct op *op)
{
    return choose_heads(v, op) > 0;
}

/* The most blocks of entries of a compressed cache that a token may see. Its position is not known here, so this goes
 * by the length of the list of pages. */
static int64_t most_entry_blocks(const struct op *op)
{
    return op->attention.ratio ? vk_groups(op->in[ATTENTION_PAGES].ne[0], op->attention.ratio) : 0;
}

/* The number of positions or blocks in each list that INDEX has chosen; 0: nothing is chosen. */
static int64_t n_chosen(const struct op *op)
{
    int64_t n_list = op->attention.chosen_block ? op->state[ATTENTION_K].page.ne[2] : 1;
    return op->in[ATTENTION_CHOSEN].buffer ? op->in[ATTENTION_CHOSEN].ne[0] / n_list : 0;
}

/* The most blocks of positions that a token may see, without regard to windows. */
static int64_t most_listed(const struct op *op)
{
    int64_t n = op->in[ATTENTION_PAGES].ne[0], chosen = n_chosen(op) * (op->attention.chosen_block / ATTENTION_BLOCK);
    return chosen && chosen < n ? chosen : n;
}

/* The most blocks that a token may see in all. */
static int64_t most_blocks(const struct op *op)
{
    int64_t n = most_listed(op), window = op->attention.window, wide = window / ATTENTION_BLOCK + 2;
    return (op->attention.ratio && window && wide < n ? wide : n) + most_entry_blocks(op);
}

/* Divides tokens into workgroups. Single tokens of a few texts give only few; then each block that a token may see gets
 * a workgroup of its own. */
static struct cut cut_tokens(struct vk *v, const struct op *op)
{
    enum { FEW = 128, MAX_BYTES = 64 << 20 };
    int64_t n_kv = op->state[ATTENTION_K].page.ne[2], m = op->in[ATTENTION_Q].ne[1], n_head = op->attention.n_head;
    struct cut c = {
        .shader = VK_SHADER_attention, .heads = choose_heads(v, op), .n_thread = GROUP, .y = (uint32_t)m, .z = 1};
    c.n_share = vk_groups(heads_of_kv(op), c.heads);
    int64_t n_block = most_blocks(op), n_group = m * n_kv * c.n_share;
    size_t n_bytes = (size_t)(m * n_head * n_block * (op->state[ATTENTION_V].page.ne[0] + 2)) * sizeof(float);
    if (n_group >= FEW || n_bytes > MAX_BYTES || n_block > v->limits.n_workgroup_z)
        return c;
    c.is_split = true;
    c.z = (uint32_t)n_block;
    c.blocks = vk_scratch(v, VK_SCRATCH_BLOCKS, n_bytes);
    c.done = vk_scratch(v, VK_SCRATCH_DONE, (size_t)n_group * sizeof(uint32_t));
    return c;
}

/* As in shaders/attention_tile.comp. */
enum { TILE_QUERIES = 32, TILE_THREADS = 128, TILE_BYTES = 21 << 10 };

static uint32_t tile_threads(const struct op *op)
{
    return op->state[ATTENTION_V].page.ne[0] > TILE_THREADS ? 2 * TILE_THREADS : TILE_THREADS;
}

/* Whether the tokens are a prompt's, many of each text, and the device has tiles for them. */
static bool are_tiled(const struct vk *v, const struct op *op)
{
    enum { MANY = 16, MANY_OF_TEXT = 4 };
    int64_t m = op->in[ATTENTION_Q].ne[1], n_text = op->attention.n_text;
    return v->choices.stages_attention && m >= MANY && m >= MANY_OF_TEXT * n_text &&
           v->limits.shared_bytes >= TILE_BYTES && v->limits.n_thread >= tile_threads(op);
}

static struct cut cut_tiles(const struct op *op)
{
    int64_t n = heads_of_kv(op);
    struct cut c = {.shader = VK_SHADER_attention_tile, .heads = (uint32_t)(n < TILE_QUERIES ? n : TILE_QUERIES)};
    c.n_share = vk_groups(n, c.heads);
    c.n_thread = tile_threads(op);
    c.y = vk_groups(op->in[ATTENTION_Q].ne[1], TILE_QUERIES / c.heads);
    c.z = vk_groups(op->state[ATTENTION_V].page.ne[0], c.n_thread);
    return c;
}

/* The most multiply-adds of a token. Its position is not known here, so this counts all pages that are listed. */
static int64_t token_work(const struct op *op)
{
    int64_t n_seen = most_listed(op) * ATTENTION_BLOCK, window = op->attention.window;
    n_seen = window && window < n_seen ? window : n_seen;
    n_seen += most_entry_blocks(op) * ATTENTION_BLOCK;
    return op->attention.n_head * (op->state[ATTENTION_K].page.ne[0] + op->state[ATTENTION_V].page.ne[0]) * n_seen;
}

/* The window as the shader takes it: negative for chunks. */
static int32_t window_of(const struct op *op)
{
    int64_t n = op->attention.window < INT32_MAX ? op->attention.window : INT32_MAX;
    return (int32_t)(op->attention.chunked ? -n : n);
}

static struct cut choose_cut(struct vk *v, const struct op *op)
{
    return are_tiled(v, op) ? cut_tiles(op) : cut_tokens(v, op);
}

/* The counter of positions whose keys and values are read, and of those that query heads see. In latent caches a row is
 * key and value at once. */
static uint32_t position_counter(struct vk *v, const struct op *op)
{
    const struct tensor *k = &op->state[ATTENTION_K].page, *value = &op->state[ATTENTION_V].page;
    bool is_latent = k->buffer == value->buffer && k->off_bytes == value->off_bytes;
    size_t row_bytes = elem_row_bytes(k->type, k->ne[0]) + (is_latent ? 0 : elem_row_bytes(value->type, value->ne[0]));
    const struct vk_unit unit = {.kind = OP_ATTENTION,
                                 .n_bytes = (uint64_t)k->ne[2] * row_bytes,
                                 .n_float = (uint64_t)(op->attention.n_head * (k->ne[0] + value->ne[0]))};
    return vk_counter(v, &unit);
}

/* The caches as the shader takes them. If there is a compressed cache it is the second, and the two part_bytes hold the
 * halves of the address of its list of pages. */
static void push_caches(const struct op *op, struct vk_paged *k, struct vk_paged *v)
{
    uint64_t pages = vk_address(&op->in[ATTENTION_ENTRY_PAGES]);
    *k = vk_paged_push(&op->state[ATTENTION_K]);
    *v = vk_paged_push(&op->state[op->attention.ratio ? ATTENTION_ENTRIES : ATTENTION_V]);
    if (!op->attention.ratio)
        return;
    k->part_bytes = (uint32_t)pages;
    v->part_bytes = (uint32_t)(pages >> 32);
}

/* Records the dispatch for some of an operation's tokens. gate: what the result is multiplied by; absent: nothing, as
 * where positions are chosen. */
static void attend(struct vk *v, const struct op *op, const struct tensor *gate, enum act_fn act)
{
    const struct tensor *k = &op->state[ATTENTION_K].page, *value = &op->state[ATTENTION_V].page;
    int64_t n_head = op->attention.n_head, m = op->in[ATTENTION_Q].ne[1];
    const struct tensor *chosen = &op->in[ATTENTION_CHOSEN];
    const struct cut c = choose_cut(v, op);
    if (c.is_split && (!c.blocks || !c.done))
        return;
    struct {
        uint64_t q, pos, table, pages, out, sinks, gate, blocks, done;
        struct vk_paged k, v;
        uint32_t m;
        int32_t window;
    } push = {.q = vk_address(&op->in[ATTENTION_Q]),
              .pos = vk_address(&op->in[ATTENTION_POS]),
              .table = vk_address(&op->in[ATTENTION_TABLE]),
              .pages = vk_address(&op->in[ATTENTION_PAGES]),
              .out = vk_address(&op->out[0]),
              .sinks = vk_address(&op->vec[0]),
              .gate = vk_address(chosen->buffer ? chosen : gate),
              .blocks = c.is_split ? vk_buffer_address(c.blocks) : 0,
              .done = c.is_split ? vk_buffer_address(c.done) : 0,
              .m = (uint32_t)m,
              .window = window_of(op)};
    struct vk_touched x = {0};
    push_caches(op, &push.k, &push.v);
    for (int i = 0; i < OP_MAX_IN; i++)
        vk_reads(&x, &op->in[i]);
    vk_reads(&x, gate);
    for (int i = 0; i < OP_MAX_STATE; i++)
        if (op->state[i].page.buffer)
            vk_state(&x, &op->state[i], false);
    vk_writes(&x, &op->out[0]);
    if (c.is_split) {
        vk_whole(&x, c.blocks, true);
        vk_whole(&x, c.done, true);
    }
    vk_whole(&x, v->work.buffer, true);
    struct vk_program program = VK_PROGRAM(
        attention, c.n_thread, k->type, c.heads, (uint32_t)k->ne[0], (uint32_t)value->ne[0], (uint32_t)n_head,
        (uint32_t)heads_of_kv(op), gate->buffer != NULL, act, vk_float_bits(op->attention.scale),
        vk_groups(value->ne[0], GROUP), c.is_split, v->is_software ? 1 : GPU_ROWS, are_staged(v, op, c.heads),
        position_counter(v, op), (uint32_t)n_chosen(op), vk_float_bits(op->attention.softcap),
        (uint32_t)op->attention.ratio, (uint32_t)(op->attention.chosen_block / ATTENTION_BLOCK));
    program.shader = c.shader;
    VK_RUN(v, program, push, &x, (uint32_t)k->ne[2] * c.n_share, c.y, c.z, m * token_work(op));
}

struct tensor vk_list_part(struct tensor t, int64_t first, int64_t n)
{
    t.off_bytes += (size_t)first * sizeof(int32_t);
    t.ne[0] = n;
    return t;
}

/* The part of the operation for its tokens from t on that fits into one dispatch: many tokens of a long text would take
 * longer than drivers allow. */
static struct op part_from(const struct vk *v, const struct op *op, int64_t t)
{
    int64_t left = op->in[ATTENTION_Q].ne[1] - t, most = v->limits.work / token_work(op) + 1,
            n = left < most ? left : most;
    struct op part = *op;
    part.in[ATTENTION_Q] = tensor_rows(op->in[ATTENTION_Q], t, n);
    part.in[ATTENTION_POS] = vk_list_part(op->in[ATTENTION_POS], t, n);
    part.in[ATTENTION_TABLE] = vk_list_part(op->in[ATTENTION_TABLE], t, n);
    if (op->in[ATTENTION_CHOSEN].buffer)
        part.in[ATTENTION_CHOSEN] = tensor_rows(op->in[ATTENTION_CHOSEN], t, n);
    part.out[0] = tensor_rows(op->out[0], t, n);
    return part;
}

void vk_scratch_attention(struct vk *v, const struct op *op)
{
    for (int64_t t = 0; t < op->in[ATTENTION_Q].ne[1];) {
        const struct op part = part_from(v, op, t);
        choose_cut(v, &part);
        t += part.in[ATTENTION_Q].ne[1];
    }
}

void vk_attention(struct vk *v, const struct op *op, const struct op *gate)
{
    static const struct tensor none;
    for (int64_t t = 0, n; t < op->in[ATTENTION_Q].ne[1]; t += n) {
        const struct op part = part_from(v, op, t);
        n = part.in[ATTENTION_Q].ne[1];
        const struct tensor g = gate ? tensor_rows(gate->in[ACT_MUL_GATE], t, n) : none;
        attend(v, &part, &g, gate ? gate->act : ACT_SIGMOID);
    }
}
