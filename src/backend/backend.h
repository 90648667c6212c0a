/* The device interface: a closed list of operations, the memory they work on, and the weights they use.
 *
 * The forward pass is written against this alone. A device runs enqueued operations in order; what they compute is
 * defined here and in docs/numerics.md. Enqueueing never fails and never waits: an error (a lost device, a failed
 * check) is remembered and comes back from the next backend_wait or backend_read (or backend_buffer_create, whose
 * buffer could not be cleared then). Everything that changes from token to token (ids, positions, the slot table) lies
 * in device memory, so that a device may record the operations of a decode step once and replay them, and routing never
 * has to come back to the host.
 *
 * The interface refuses to know about models: it sees shapes, not layers. It never reads files: weight bytes arrive
 * through a callback, and the device decides how they lie (layouts, VRAM).
 *
 * Thread-safety: one thread drives a device; backend_slot_fill may run on several threads for different rows. */
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "quant/layout.h"
#include "quant/quant.h"

struct backend;
struct buffer;    /* a block of device memory */
struct weight;    /* a weight matrix on a device */
struct slot_pool; /* slots for routed experts of one shape */

/* ---- tensors ------------------------------------------------------------------------------------------------- */

enum elem_type { ELEM_F32, ELEM_F16, ELEM_I32, ELEM_Q8_0 /* in caches only; ne[0] a multiple of 32 */ };

enum { TENSOR_DIMS = 3 };

/* A dense array in device memory, ne[0] running fastest; a value, borrowed from its buffer. buffer NULL: absent. */
struct tensor {
    struct buffer *buffer;
    size_t off_bytes;
    enum elem_type type;
    int64_t ne[TENSOR_DIMS];
};

size_t elem_row_bytes(enum elem_type type, int64_t n); /* of n elements in a row */
int64_t tensor_n_elem(const struct tensor *t);
size_t tensor_bytes(const struct tensor *t);
/* The n rows from row0 on, where a row is ne[0] elements and ne[1] counts rows. */
struct tensor tensor_rows(struct tensor t, int64_t row0, int64_t n);

/* Zeroed device memory of n_part equal parts, such as heads, that operations work on independently: a device with
 * memory in several places may spread them. Owned by the caller. */
MUST_USE err_code backend_buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag,
                                        struct buffer **out, struct err *e);
int backend_n_node(struct backend *b); /* how many such places there are, 1 or more */
void backend_buffer_close(struct backend *b, struct buffer **buf);

/* A buffer without memory: its units of unit_bytes, a multiple of BUFFER_ALIGN and of mem_page_bytes, take some once
 * they are committed, and give it back when they are decommitted. Committed memory has undefined contents. commit:
 * false when the limit on memory (base/mem.h) forbids it. Tensors and pages lie within a unit. The parts are as above.
 */
enum { BUFFER_ALIGN = 4096 };
MUST_USE err_code backend_buffer_reserve(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part,
                                         enum mem_tag tag, struct buffer **out, struct err *e);
MUST_USE bool backend_buffer_commit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes);
void backend_buffer_decommit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes);

/* One tensor in a buffer of its own, of ne2 parts: buffer_close t->buffer. */
MUST_USE err_code backend_tensor_create(struct backend *b, enum elem_type type, int64_t ne0, int64_t ne1, int64_t ne2,
                                        enum mem_tag tag, struct tensor *out, struct err *e);

/* Host to device, in queue order; `src` may be reused at once. backend_clear writes zeros. */
void backend_clear(struct backend *b, const struct tensor *t);
void backend_write(struct backend *b, const struct tensor *t, const void *src);
/* Device to device, in queue order: tensors of as many bytes, which don't overlap. */
void backend_copy(struct backend *b, const struct tensor *from, const struct tensor *to);
/* Device to host; waits for everything enqueued before. */
MUST_USE err_code backend_read(struct backend *b, const struct tensor *t, void *dst, struct err *e);

/* ---- weights ------------------------------------------------------------------------------------------------- */

/* Where a matrix's bytes come from: reads rows [row0, row0 + n) in GGUF's order. Called from any thread. */
struct weight_source {
    err_code (*read)(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e);
    void *user;
};

struct weight_desc {
    const char *name; /* the file's tensor that it is, or is a part of; borrowed until the weight is closed */
    const struct quant_info *type;
    int64_t k, n_row; /* row length, rows */
    bool is_observed; /* observers are shown what it is multiplied by, in the name of the whole tensor */
};

/* Loads a matrix; owned by the caller. The device reads it once, in parallel, and packs it as it likes. */
MUST_USE err_code backend_weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                                      struct weight **out, struct err *e);
void backend_weight_close(struct backend *b, struct weight **w);

/* The memory that a matrix takes once it is loaded. */
size_t backend_weight_bytes(struct backend *b, const struct weight_desc *d);

/* ---- slot pools -------------------------------------------------------------------------------------------- */

/* The shape of a layer's routed experts: gate and up are [n_ff][n_embd], down is [n_embd][n_ff]. */
struct slot_pool_desc {
    const struct quant_info *type[EXPERT_N_MATRIX];
    int64_t n_embd, n_ff;
    int64_t n_slot;
    bool is_ungated; /* gate and up are the two halves of one matrix, whose products y become act(y) * y; down is
                        [n_embd][2 * n_ff] */
};

/* The length and number of the rows of a matrix; what down is multiplied by. */
int64_t slot_matrix_k(const struct slot_pool_desc *d, enum expert_matrix matrix);
int64_t slot_matrix_rows(const struct slot_pool_desc *d, enum expert_matrix matrix);
int64_t slot_n_hidden(const struct slot_pool_desc *d);
/* Whether experts of the one shape fit into slots of the other. */
bool slot_same_shape(const struct slot_pool_desc *a, const struct slot_pool_desc *b);

/* Slots of one size, all closed: they take no memory until they are opened. */
MUST_USE err_code backend_slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out,
                                           struct err *e);
void backend_slot_pool_close(struct backend *b, struct slot_pool **slot_pool);
size_t backend_slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d);

/* Opens a slot, whose contents are undefined until it is filled; false when the limit on memory (base/mem.h) forbids
 * it. Touching an open slot spares its first use the page faults; several threads may touch different slots. Closing a
 * slot gives its memory back once what was enqueued has run. The caller keeps track of which are open. */
MUST_USE bool backend_slot_open(struct backend *b, struct slot_pool *slot_pool, int64_t slot);
void backend_slot_touch(struct backend *b, struct slot_pool *slot_pool, int64_t slot);
void backend_slot_close(struct backend *b, struct slot_pool *slot_pool, int64_t slot);

/* Slots and the matrices in them are aligned to this and a multiple of it long, so that a drive can write into them
 * past the page cache. */
enum { SLOT_ALIGN = 4096 };

/* How an expert lies in a slot, which is how a prepared store holds it. False: this device takes experts through
 * backend_slot_fill alone. */
bool backend_slot_pool_image(struct backend *b, const struct slot_pool_desc *d, struct layout_image *out);

/* Where in a slot's memory one of an expert's matrices may be read to, aligned to SLOT_ALIGN: as it lies in an image
 * (is_packed), or whole in GGUF's order, with room for all blocks of SLOT_ALIGN that it has a part in. NULL: it goes
 * through backend_slot_fill. */
void *backend_slot_room(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                        bool is_packed);
/* Says that a matrix has been read to that place and begins at `bytes`. One in GGUF's order is packed where it lies by
 * the first operation that uses it: an expert that nobody uses is never packed, and a packed matrix is still in the
 * processor's cache for its product. The caller makes sure that no enqueued operation uses the slot. */
void backend_slot_adopt(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                        const void *bytes, bool is_packed);

/* Rows [row0, row0 + n_row) of one of an expert's matrices, on their way into a slot. */
struct slot_rows {
    enum expert_matrix matrix;
    const void *src; /* these rows alone */
    bool is_packed;  /* src holds them as they lie in an image; else in GGUF's order */
    int64_t row0;    /* a multiple of 16 */
    int64_t n_row;   /* a multiple of 16, or up to the last row */
};

/* Packs rows into a slot. The caller makes sure that no enqueued operation uses the slot. */
MUST_USE err_code backend_slot_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot,
                                    const struct slot_rows *rows, struct err *e);

/* Where one of an expert's matrices lies in a slot that has been filled, for another device's slot_fill: all rows
 * together, *is_packed: as in an image. True until the slot is filled anew or closed, or an operation runs. NULL: it is
 * not in the host's memory in one piece. */
const void *backend_slot_bytes(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                               bool *is_packed);

/* A device with memory of its own may fill slots while the caller goes on: it has what it needs of the host's memory
 * when slot_fill returns, and keeps slot_room's. No operation may use a slot before an upload fence that was made after
 * the slot was filled has been passed. Uploads end in order, and a slot may be filled anew or closed before. For any
 * thread.
 *
 * The fence of all that slots have been filled with so far. 0: it has been passed. */
uint64_t backend_upload_fence(struct backend *b);
/* Whether a fence has been passed; wait: once it has. An error is the device's, and comes back for each fence that
 * can't be passed because of it. */
MUST_USE err_code backend_upload_poll(struct backend *b, uint64_t fence, bool wait, bool *is_passed, struct err *e);

/* ---- state of texts ------------------------------------------------------------------------------------------- */

/* What a layer keeps of texts (keys, values, recurrent state), which share a buffer page by page. A page has parts,
 * such as heads, that may lie far from each other. */
struct paged {
    struct tensor page; /* what the layer has in page 0; ne[2] counts parts */
    size_t page_bytes;  /* from a part to the same part of the next page */
    size_t part_bytes;  /* from a part to the next one of the same page */
};

/* The layer's part of a page, as a tensor with ne[2] = 1. */
struct tensor paged_part(const struct paged *s, int64_t page, int64_t part);

/* ---- operations ---------------------------------------------------------------------------------------------- */

/* OP(name, what it computes). M is the number of tokens, the tensors' ne[1] unless said otherwise. */
#define OP_LIST(OP)                                                                                                    \
    OP(EMBED, "out[t] = scale * W[ids[t]]")                                                                            \
    OP(RMS_NORM, "out = x / sqrt(mean(x^2) + eps) * w, over rows of norm.n")                                           \
    OP(LAYER_NORM, "out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + bias, row by row")                   \
    OP(MATMUL, "out_i[t] = W_i . x[t] + bias_i, for each of up to 4 matrices")                                         \
    OP(HEADS, "out[t][head] = W_head . x[t][head], or just x[t][head], within wider rows")                             \
    OP(ROPE_TABLE, "out[t][i] = (cos, sin) of position t times frequency i")                                           \
    OP(ROPE, "x rotated in place by a table, each head's first elements")                                              \
    OP(KV_STORE, "cache[head][pos[t]] = x[t][head]")                                                                   \
    OP(INDEX, "out[t] = the positions with the largest sum over heads of weights[t][head] * relu(q[t][head] . K)")     \
    OP(ATTENTION, "out[t] = softmax(scale q[t] . K[0..pos[t]]) . V")                                                   \
    OP(COMPRESS, "out[e] = sum over positions up to at[e] of x * softmax(gate + bias), channel by channel")            \
    OP(CONV, "out[t] = act(causal convolution of x over tokens, channel by channel)")                                  \
    OP(DELTA, "out[t] = the gated delta rule's answer to q[t], after its state has learnt k[t], v[t]")                 \
    OP(SSM, "out[t] = a state space's answer to q[t], after its state has taken k[t], v[t], + skip * v[t]")            \
    OP(ACT_MUL, "out = act(gate) * up")                                                                                \
    OP(ADD, "out = a + b")                                                                                             \
    OP(SCALE, "out = x * scale, and times a number in device memory")                                                  \
    OP(SOFTCAP, "out = cap * tanh(x / cap)")                                                                           \
    OP(CLAMP, "out = min(max(x, -limit), limit)")                                                                      \
    OP(SLICE, "out[t] = some elements of x[rows[t]]")                                                                  \
    OP(SCATTER, "out[rows[t]] = x[t]")                                                                                 \
    OP(STREAMS_IN, "out[t] = sum over streams i of a[t][i] * x[t][i], and what STREAMS_OUT takes")                     \
    OP(STREAMS_OUT, "x[t][i] = b[t][i] * y[t] + sum over streams j of c[t][j][i] * x[t][j]")                           \
    OP(STREAMS_MATCH, "out[t][i] = sigmoid(signed root of key[t][i] . query[t][i] / sqrt(n)) * value[t]")              \
    OP(RESIDUALS, "out[t] = sum over residuals r, banked ones and x, of softmax(w . r / rms(r)) * r")                  \
    OP(ROUTE, "ids[t], weights[t] = top-k experts of router(x[t])")                                                    \
    OP(EXPERTS, "y[t][rank] = expert ids[t][rank] of x[t], for the experts that the slot table names")                 \
    OP(COMBINE, "out[t] = sum over ranks of weights[t][rank] * y[t][rank], then + shared")

enum op_kind {
#define OP(name, text) OP_##name,
    OP_LIST(OP)
#undef OP
        OP_N_KIND
};

const char *op_name(enum op_kind kind);

enum act_fn {
    ACT_SILU,
    ACT_GELU,
    ACT_SIGMOID,
    ACT_SWIGLU_OAI, /* gpt-oss's, clamped: kernels.h has the formula */
    ACT_NONE,       /* the gate itself */
    ACT_RELU,
    ACT_SOFTPLUS,     /* log(1 + exp(x)) */
    ACT_SILU_CLAMPED, /* SiLU of what the limit leaves, not limited SiLU */
    ACT_SITU          /* SiLU whose factor x, like up, is bent towards a bound: kernels.h has the formula */
};
enum rope_mode { ROPE_NORMAL, ROPE_NEOX };

/* How routers turn logits into a choice (docs/architecture.md lists which family does what). */
enum route_score {
    ROUTE_SOFTMAX,        /* softmax over all experts, then the top k */
    ROUTE_SIGMOID,        /* sigmoid of each, then the top k */
    ROUTE_SOFTMAX_CHOSEN, /* the top k of the logits, then softmax over those */
    ROUTE_SQRT_SOFTPLUS   /* the root of softplus of each, then the top k */
};

/* How positions become angles. */
struct rope_angles {
    float freq_base;
    float freq_scale; /* positions are multiplied by this; 1 for none */

    /* YaRN (arXiv 2309.00071) mixes scaled and unscaled frequencies: unscaled up to pair `yarn_low`, scaled from pair
     * `yarn_high` on, linear between. */
    bool yarn;
    float yarn_low, yarn_high;

    float magnitude; /* cosines and sines are multiplied by this; 1 for none */
    bool is_inverse; /* the angles are negative: what was rotated is rotated back */

    /* Far attention is made sharper: cosines and sines are multiplied by
     * 1 + temperature * log(floor((position + temperature_shift) / temperature_span) + 1); temperature 0: not. */
    float temperature;
    int64_t temperature_span, temperature_shift;
};

enum { OP_MAX_IN = 6, OP_MAX_OUT = 4, OP_MAX_STATE = 3, OP_CONV_MAX_TAP = 16, OP_MAX_STREAM = 4, OP_MAX_BANK = 64 };

/* Attention reduces over blocks of so many absolute positions, and over spans of those (docs/numerics.md). */
enum { ATTENTION_BLOCK = 64, ATTENTION_SPAN = 512 };

/* A row (token) of KV_STORE, INDEX and ATTENTION is at position pos[t] of its text, and the text's positions [64 * i,
 * 64 * i + 64) are in page pages[table[t] + i]. (table[t] is negative where a text's first pages are not listed; these
 * are not asked for.) Rows of one text follow each other, positions ascending by one. Rows of two texts that follow
 * each other have different numbers in table.
 *
 * A compressed cache has one entry for `ratio` positions that follow each other: entry i stands for positions
 * [ratio * i, ratio * (i + 1)), and a token sees those whose positions it sees all. Entries are to its pages and page
 * tables what positions are to those of other caches; tables begin where table says, too, and pages are listed in lists
 * as long as those of positions.
 *
 * A row of CONV, DELTA and SSM belongs to a run of rows that follow each other and have the same to[t]. A run begins
 * with the state in page from[t] of its first row (-1: zeros), and leaves its state in page to[t]; pages that a run has
 * left may be where a later one begins. */

/* Names of operands, for operations that have several in a list: op->in[ATTENTION_CHOSEN] is what is called chosen
 * below. A list's only operand is [0]; those of MATMUL and ADD are alike, and have numbers.
 *
 * in: */
enum { ROPE_X, ROPE_COS_SIN };
enum { KV_STORE_X, KV_STORE_POS, KV_STORE_TABLE, KV_STORE_PAGES };
enum { INDEX_Q, INDEX_POS, INDEX_TABLE, INDEX_PAGES, INDEX_WEIGHTS };
enum { ATTENTION_Q, ATTENTION_POS, ATTENTION_TABLE, ATTENTION_PAGES, ATTENTION_CHOSEN, ATTENTION_ENTRY_PAGES };
enum { COMPRESS_AT, COMPRESS_TABLE, COMPRESS_PAGES };
enum { CONV_X, CONV_FROM, CONV_TO };
enum { DELTA_QKV, DELTA_ALPHA, DELTA_BETA, DELTA_FROM, DELTA_TO, SSM_QK = DELTA_BETA }; /* SSM's, too */
enum { ACT_MUL_GATE, ACT_MUL_UP };
enum { SLICE_X, SLICE_ROWS };
enum { SCATTER_X, SCATTER_ROWS };
enum { STREAMS_IN_X, STREAMS_IN_MIX, STREAMS_IN_GATE };
enum { STREAMS_OUT_Y, STREAMS_OUT_X, STREAMS_OUT_MIX };
enum { STREAMS_MATCH_KEY, STREAMS_MATCH_QUERY, STREAMS_MATCH_VALUE };
enum { RESIDUALS_X, RESIDUALS_BANK };
enum { ROUTE_X, ROUTE_TOKENS };
enum { EXPERTS_X, EXPERTS_IDS, EXPERTS_SLOTS, EXPERTS_WEIGHTS };
enum { COMBINE_Y, COMBINE_WEIGHTS, COMBINE_SHARED, COMBINE_SHARED_GATE };
/* out: */
enum { STREAMS_IN_Y, STREAMS_IN_MIXED };
enum { ROUTE_IDS, ROUTE_WEIGHTS, ROUTE_SCORES };
enum { EXPERTS_Y, EXPERTS_HIDDEN };
/* vec: */
enum { NORM_W, NORM_BIAS }; /* RMS_NORM's and LAYER_NORM's */
enum { CONV_TAPS, CONV_BIAS };
enum { DELTA_DT, DELTA_A, SSM_SKIP };
enum { STREAMS_IN_SCALE, STREAMS_IN_BASE };
enum { ROUTE_BIAS, ROUTE_CHOICE_BIAS, ROUTE_EXPERT_SCALE, ROUTE_TOKEN_EXPERTS };
/* state: */
enum { ATTENTION_K, ATTENTION_V, ATTENTION_ENTRIES };
enum { COMPRESS_X, COMPRESS_GATE };

/* One operation. `in` and `out` list every activation that it reads and writes (state, such as a KV cache, apart),
 * so that a device can wrap another without knowing what each operation means. Shapes by kind, M tokens:
 *
 * EMBED       in: ids I32 [M].  out: [n_embd][M].  weight[0]: [n_vocab][n_embd]; scale
 * RMS_NORM    in: x.  out: like x.  norm.n divides its rows.  vec: w [n] or of a whole row, bias [n];
 *             both may be absent
 * LAYER_NORM  in: x.  out: like x.  vec: w, bias, of a row or absent; norm.eps
 * MATMUL      in: x [k][M].  out[i]: [n_row_i][M].  weight[i], vec[i]: bias [n_row_i] or absent
 * HEADS       in: x [n_head*in_dim][M].  out: [n_head*out_dim][M], of each head elements [out_off, out_off + n_out),
 *             from elements [in_off, in_off + n_in) of x's.
 *             weight[0]: [n_head * n_out rounded up to 16][n_in], or NULL to copy
 * ROPE_TABLE  in: pos I32 [M].  out: [n_rot][M].  rope_table; vec: frequency divisors [n_rot/2] or absent
 * ROPE        in: x [n_head*head_dim][M], cos_sin [n_rot][M], which ROPE_TABLE gives.  out: the same x.  rope: of each
 *             head elements [off, off + n_rot) are rotated
 * KV_STORE    in: x [n_head*head_dim][M], pos, table, pages.  state: [head_dim][ATTENTION_BLOCK][n_head], F32, F16 or
 *             Q8_0
 * INDEX       in: q [n_head*dim][M], pos, table, pages, weights [n_head][M].  out: I32 [k][M], chosen positions,
 *             ascending: all that a token sees where these are at most k, and then -1, else k; of equal ones the first.
 *             state: K, [dim][ATTENTION_BLOCK][1].  index.ratio above 1: K is a compressed cache, and entries are
 *             chosen.  index.spreads: k at most are, and put out as all their positions; those behind the last entry
 *             that the token sees follow, and then INT32_MAX: out is [k*ratio + ratio-1][M].  weights absent: 1.
 *             index.block: each head chooses blocks of so many positions for itself, by the largest product with a
 *             position of the block that the token sees; there are no weights.  out: I32 [n_head*k][M], k for each
 *             head as above. The last index.n_local blocks, of which the token's own is one, come before all others
 * ATTENTION   in: q [n_head*dk][M], pos, table, pages, chosen, which INDEX has put out, or absent: where it is there,
 *             a token sees these positions alone, and there are no windows.  out: [n_head*dv][M].  state: K, V, or K
 *             again in latent attention; vec: a sink's score for each head, or absent; attention.
 *             With attention.chosen_block chosen is [n_head_kv*k][M], the blocks that the heads of each KV head see.
 *             With attention.ratio K is V, and tokens also see a compressed cache of keys that are values: in
 *             has entry_pages, and state entries [dk][ATTENTION_BLOCK][1]; what is chosen are its entries, and the
 *             window stays
 * COMPRESS    in: at I32 [E], table [E], pages.  out: [n][E].  state: x, gate or absent, caches of floats
 *             [2*n or n][ATTENTION_BLOCK][1]; vec: bias [as these][ratio].  An entry for each of E positions, the last
 *             of its `ratio` ones, is the sum over these of x * softmax(gate + bias), bias by place among them; where
 *             gate is absent, it is 0.
 *             Where rows have 2*n elements, these are the second n, and the softmax and sum take the first n of the
 *             `ratio` positions before, too, if there are any; ratio is bias's ne[1]
 * CONV        in: x [n][M], from, to.  out: [n][M].  vec: taps [n][n_tap], the oldest first, bias [n] or absent; conv;
 *             state: the last inputs [n][n_tap-1], the oldest first
 * DELTA       in: qkv, which is q, k and v of all heads in one row [2*n_head_k*dk + n_head_v*dv][M], alpha
 *             [n_decay*n_head_v][M], beta [n_head_v][M], from, to.  out: [n_head_v*dv][M].  vec: dt, a bias
 *             [n_decay*n_head_v], a [n_head_v]; delta; state: [dk][dv][n_head_v].
 *             q and k are divided by sqrt(sum of squares + eps), q also by sqrt(dk);
 *             decay = exp(a * softplus(alpha + dt)), or exp(bound * sigmoid(a * (alpha + dt))) where
 *             delta.min_log_decay, the bound, is below 0; a head has n_decay of them: 1, or dk, one for each key
 *             dimension.  beta passes through sigmoid
 * SSM         as DELTA, but n_decay is 1 and beta is absent: it is softplus(alpha + dt), q and k are taken as they
 *             are, and nothing that the state has is subtracted from v (kernels.h).  vec has skip [n_head_v], too.
 *             alpha and dt may be absent: beta is 1 then, and decays are exp(a).
 *             Or it is selective: in has q and k apart [2*n_head_k*dk][M], v is alone in qkv's place, and each value
 *             dimension has steps of its own, whose decays differ by key dimension. alpha, dt bias and skip are then
 *             [n_head_v*dv], a is [dk][n_head_v*dv], and n_head_k and n_head_v are 1
 * ACT_MUL     in: gate, up.  out: like up.  act, its limits.  Rows of gate may be shorter by a whole factor: an element
 *             is then that of as many of up's, which follow each other, and there is no limit
 * ADD         in: a, b.  out: like them, may be a
 * SCALE       in: x.  out: like x, may be x.  scale; vec: [1] or absent
 * SOFTCAP     in: x.  out: like x, may be x.  scale: the cap
 * CLAMP       in: x.  out: like x, may be x.  scale: the limit; a NaN stays one
 * SLICE       in: x [n][any], rows I32 [M], ascending, or absent (0, 1, ...).  out: [k][M].  slice_off: the first
 *             element, slice_off + k <= n
 * SCATTER     in: x [k][M], rows I32 [M], all different.  out: [k][any], other rows untouched
 * STREAMS_IN  in: x [n_stream*n][M], mix [k][M].  out: y [n][M], mixed, which is the same as mix and becomes weights of
 *             the streams: a [n_stream], b [n_stream] where k is at least 2 * n_stream, and c [n_stream][n_stream]
 *             where it is n_stream * (n_stream + 2) (docs/numerics.md has the formulas).  vec: scale [1 to 3], base
 *             [k]; streams.
 *             Where in has gate [n_stream*n][M], y is the mean over streams of sigmoid(gate) * x, and mix is b
 *             alone, [n_stream][M] or absent, which becomes magnitude * sigmoid(mix / n_stream); no vec.  Without gate
 *             and mix it is the mean of x
 * STREAMS_OUT in: y [n][M], x [n_stream*n][M], mix with b as STREAMS_IN leaves it; without c streams are not mixed.
 *             out: the same x
 * STREAMS_MATCH
 *             in: key [n_stream*n][M], query like key, value [n][M].  out: like key, may be key.  The root of s is that
 *             of max(|s|, 1e-6), with the sign of s
 * RESIDUALS   in: x [n][M], bank [n_bank*n][M].  out: like x, may be x.  vec: w [n]; residuals: the first n_banked
 *             of the bank's residuals count, x comes last, and rms(r) is sqrt(mean(r^2) + eps)
 * ROUTE       in: x [n_embd][M], tokens, their ids I32 [M] where token_experts is there.  out: ids I32 [k][M], weights
 *             F32 [k][M], scores F32 [n_expert][M] or absent: what choosing starts from, without choice_bias and on one
 *             scale: the softmax over all experts or the sigmoid of each, and 0 for experts of groups that were not
 *             kept.  weight[0]: router [n_expert][n_embd]; vec, each of which may be absent: bias, the router's;
 *             choice_bias, added to the scores for choosing only; expert_scale, what each expert's final weight is
 *             multiplied by; token_experts, the experts of each token of the vocabulary, I32 [k][n_vocab]: then nothing
 *             is chosen; route
 * EXPERTS     in: x [n_embd][M], ids (-1: none), slots I32 [n_expert] (-1: not this time), weights F32 [k][M] that
 *             multiply what gate and up give, or absent.  out: y [n_embd][k][M], hidden [n_hidden][k][M], what down is
 *             multiplied by, or absent; rows of absent experts untouched in both.  slot_pool; vec[enum
 *             expert_matrix]: biases [n_ff][n_expert] of gate and up, [n_embd][n_expert] of down, by expert and not
 *             by slot, or absent; experts
 * COMBINE     in: y, weights or absent (1), shared [n_embd][M] or absent, shared_gate [1][M] or absent (passed through
 *             sigmoid).  out: [n_embd][M] */
struct op {
    enum op_kind kind;
    struct tensor in[OP_MAX_IN];
    struct tensor out[OP_MAX_OUT];
    struct tensor vec[OP_MAX_OUT];    /* constant vectors */
    struct paged state[OP_MAX_STATE]; /* of texts, read or written in place */
    struct weight *weight[OP_MAX_OUT];
    struct slot_pool *slot_pool;
    union {
        struct {
            int64_t n;
            float eps;
        } norm;
        struct {
            int64_t n_head, in_dim, in_off, n_in, out_dim, out_off, n_out;
        } heads;
        float scale;
        int64_t slice_off;
        struct rope_angles rope_table;
        struct {
            enum rope_mode mode;
            int64_t head_dim, n_rot, off;
        } rope;
        struct {
            int64_t n_head;
            float scale;
            int64_t window;       /* positions that a token sees, itself included; 0: all */
            bool chunked;         /* a token sees no position before the last multiple of the window */
            int64_t n_text;       /* texts that the tokens are of; decides how they are computed alone; 0: unknown */
            float softcap;        /* scores are bent towards this bound; 0: they are not */
            int64_t ratio;        /* of the compressed cache; 0: there is none */
            int64_t chosen_block; /* blocks of so many positions are chosen, as of INDEX; 0: positions */
        } attention;
        struct {
            int64_t ratio;   /* of the cache; 0 or 1: it is not compressed */
            int64_t block;   /* positions of a block, a multiple of ATTENTION_BLOCK; 0: blocks are not what is chosen */
            int64_t n_local; /* blocks that a token sees in any case, up to its own; at most as many as are chosen */
            bool spreads;    /* positions are put out for the entries that are chosen */
        } index;
        struct {
            float eps;
            float magnitude;     /* the largest b */
            int64_t n_iteration; /* of Sinkhorn's algorithm, where there is c */
        } streams;               /* of STREAMS_IN */
        struct {
            int64_t n_banked;
            float eps;
        } residuals;
        struct {
            bool has_silu; /* act is SiLU; else there is none */
        } conv;
        struct {
            int64_t n_head_k;
            bool grouped;        /* value head h asks key head h / (n_head_v / n_head_k), else h % n_head_k */
            float eps;           /* of DELTA */
            float min_log_decay; /* of DELTA: a lower bound of the decays' logarithm, below 0; 0: there is none */
        } delta;                 /* of DELTA and SSM */
        struct {
            enum act_fn act;
            /* Of ACT_SILU and ACT_SILU_CLAMPED act_limit is for both factors (kernels.h), 0: none. Of ACT_SITU it is
             * gate's bound, and act_up_limit is up's, 0: none. */
            float act_limit, act_up_limit;
        };
        struct {
            enum route_score score;
            bool norm_weights; /* divide the chosen weights by their sum */
            float scale;       /* then multiply them; 1 for none */
            /* Experts are chosen from the n_group_used best of n_group equal groups alone; 1: no groups. A group is as
             * good as the sum of its two best scores. */
            int64_t n_group, n_group_used;
        } route;
        struct {
            enum act_fn act;
            int64_t sort_cutoff; /* M above it: sorted dispatch, else direct; at least 1 */
            /* [EXPERT_N_MATRIX] names of the file's tensors, for observers; borrowed. NULL: not to be observed. Where
             * one tensor holds two of the matrices, one name is NULL. */
            const char *const *tensors;
            float act_limit, act_up_limit; /* as of ACT_MUL */
            bool
                are_shared; /* the tensors' matrices are those of the slots, which experts share; else of the experts */
        } experts;
    };
};

/* ERR_CHECK, with a sentence that names the operation, where its shapes, types or places in buffers are not as said
 * above. Contents of device memory (ids, positions, pages) are not looked at. */
MUST_USE err_code op_check(struct backend *b, const struct op *op, struct err *e);

/* Puts an operation in the queue; one that op_check refuses is a bug and ends the program. The structs behind `op` are
 * copied; buffers, weights and slot pools must live until the queue has passed them. If memory is
 * reclaimed for the operation, that is done now, and not when a device runs it later. */
void backend_enqueue(struct backend *b, const struct op *op);

/* From now on fn (NULL: nothing) is called after each enqueued operation, so that the host can look after reads and
 * other work beside the device. fn must not enqueue anything. */
void backend_set_between(struct backend *b, void (*fn)(void *user), void *user);

/* Whether the device can run such an operation on such shapes and types. The answer depends on these alone, so that a
 * model's operations can be asked about before it is loaded (backend_asking_open). */
bool backend_supports(struct backend *b, const struct op *op);

/* A fence: everything enqueued so far. backend_wait returns when it has been passed, with the first error since
 * the last report. */
uint64_t backend_fence(struct backend *b);
/* Has the device begin with what is enqueued, which it else may put off until somebody waits. */
void backend_start(struct backend *b);
MUST_USE err_code backend_wait(struct backend *b, uint64_t fence, struct err *e);

/* Gives scratch back, which operations keep for the next ones. Nothing may be in the queue. */
void backend_trim(struct backend *b);

/* What operations of a kind took and what they need at least. */
struct op_counters {
    uint64_t n, n_ns;         /* operations, and how long they took */
    uint64_t n_bytes;         /* of weights and state, each counted once an operation */
    uint64_t n_int8, n_float; /* multiply-adds of the vector units on bytes, on floats */
    uint64_t n_tile;          /* multiply-adds of a matrix unit on bytes */
};

/* What ran, since the device was opened. */
struct backend_counters {
    struct op_counters op[OP_N_KIND];
    uint64_t n_direct, n_sorted;      /* EXPERTS operations by dispatch */
    uint64_t n_expert_rows;           /* token-expert pairs computed */
    uint64_t n_experts;               /* experts that these were of, each once an operation */
    uint64_t n_product[QUANT_MAX_ID]; /* multiply-adds by the weights' type: a null device's */
};
/* A device with memory of its own is read, and waited for. */
struct backend_counters backend_counters(struct backend *b);
/* The time of one kind alone, for which nobody waits where operations are not timed: then 0. */
uint64_t backend_op_ns(struct backend *b, enum op_kind kind);

/* The bytes that the device holds now under a tag: its buffers, weights, open slots and scratch. What lies in the
 * host's memory counts in the process's ledger (base/mem.h), too. For any thread. */
size_t backend_held_bytes(struct backend *b, enum mem_tag tag);

/* The bytes of memory that the device has for itself; 0: it works in the host's memory, whose limit counts. */
size_t backend_own_bytes(struct backend *b);

/* Bytes that may still be taken, of the memory that the device works in. */
size_t backend_room_bytes(struct backend *b);

/* Has memory given back until n_bytes fit: for the host's as mem_make_room does, of the device's own by `reclaim`
 * (NULL, as it is at first: nobody gives any back), in the thread that asks. Whether there is room now. */
MUST_USE bool backend_make_room(struct backend *b, size_t n_bytes);
void backend_set_reclaim(struct backend *b, mem_reclaim_fn *reclaim, void *user);

const char *backend_name(struct backend *b);
void backend_close(struct backend **b); /* accepts NULL */

/* ---- observing ----------------------------------------------------------------------------------------------- */

/* Activations that a matrix of the file is multiplied by: row t is scale * x[t * stride + 0 .. k). */
struct observed {
    const char *tensor;       /* its name in the file */
    int64_t n_matrix, matrix; /* matrices of the tensor (experts, heads), and which of them this is */
    const float *x;
    int64_t k, n_row, stride;
    float scale;
};

/* From now on, until it is ended, every MATMUL, HEADS and EXPERTS shows what its weights are multiplied by (before
 * rounding), on the thread that drives the device; a matrix's rows come in the order of the tokens. Each is waited for.
 * An error of observing comes back from the next backend_wait or backend_read. */
typedef void backend_observer(void *user, const struct observed *o);
MUST_USE err_code backend_observe(struct backend *b, backend_observer *observer, void *user, struct err *e);
void backend_observe_end(struct backend *b); /* nobody may observe */

/* ---- devices ------------------------------------------------------------------------------------------------- */

struct pool;
struct kernels;

/* The CPU: `pool` and `kernels` are borrowed until it is closed. */
MUST_USE err_code backend_cpu_open(struct backend **out, struct pool *pool, const struct kernels *kernels,
                                   struct err *e);

/* A device that holds nothing, for describing a model without loading it: buffers and weights take no memory, sources
 * of weights are not read, operations and what is written are forgotten, and what is read is zeros. */
MUST_USE err_code backend_null_open(struct backend **out, struct err *e);

/* A null device that asks another one, which is borrowed, whether it supports what is enqueued. The first operation
 * that it does not is reported as ERR_UNSUPPORTED, with its types and the names of its weights. backend_held_bytes says
 * what the other one would hold but for slots and scratch, and backend_counters what products with weights take: but
 * for experts and the state of texts. */
MUST_USE err_code backend_asking_open(struct backend **out, struct backend *asked, struct err *e);

/* A checking device: runs every operation on `primary` and, with the same inputs, on `secondary`, and compares.
 * The results are primary's. The first operation whose outputs differ by more than a bound that grows with the
 * length of its sums is reported as ERR_CHECK, by number, kind and shape. Owns both; they are closed with it (and on
 * failure). */
MUST_USE err_code backend_check_open(struct backend **out, struct backend *primary, struct backend *secondary,
                                     struct err *e);

#endif
