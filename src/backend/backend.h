/* The device interface: a closed list of operations, the memory they work on, and the weights they use.
 *
 * The forward pass uses devices through this interface only. A device runs enqueued operations in order; what they
 * compute is defined here and in docs/numerics.md. Enqueueing never fails and never waits: an error (a lost device, a
 * failed check) is remembered and returned by the next backend_wait or backend_read (or by backend_buffer_create, as
 * the new buffer could not be cleared). Everything that changes from token to token (ids, positions, the slot table)
 * lies in device memory, so that a device can record the operations of a decode step once and replay them, and so that
 * routing needs no round trip to the host.
 *
 * The interface knows nothing about models: it sees shapes, not layers. It never reads files: the bytes of weights
 * arrive through a callback, and the device decides in which memory and layout it keeps them.
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

/* A dense array in device memory. Passed by value; it doesn't own its buffer. */
struct tensor {
    struct buffer *buffer; /* NULL: the tensor is absent */
    size_t off_bytes;      /* where it begins in the buffer */
    enum elem_type type;
    int64_t ne[TENSOR_DIMS]; /* the number of elements of each dimension; neighbours in memory differ in the first */
};

size_t elem_row_bytes(enum elem_type type, int64_t n); /* bytes of a row of n elements */
int64_t tensor_n_elem(const struct tensor *t);
size_t tensor_bytes(const struct tensor *t);
/* The part of a matrix that has n rows from row0 on; a row has ne[0] elements. */
struct tensor tensor_rows(struct tensor t, int64_t row0, int64_t n);

/* Creates a buffer of zeroed device memory, owned by the caller. It consists of n_part equal parts, such as heads, that
 * operations work on independently: a device with several memory nodes may spread the parts over them. */
MUST_USE err_code backend_buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag,
                                        struct buffer **out, struct err *e);
int backend_n_node(struct backend *b); /* the device's memory nodes, at least 1 */
void backend_buffer_close(struct backend *b, struct buffer **buf);

/* Reserves a buffer that takes no memory at first. Its units of unit_bytes, a multiple of BUFFER_ALIGN and of
 * mem_page_bytes, take memory when they are committed and give it back when they are decommitted. The contents of
 * committed memory are undefined. backend_buffer_commit is false when the limit on memory (base/mem.h) forbids it. A
 * tensor or page must lie within one unit. n_part is as above. */
enum { BUFFER_ALIGN = 4096 };
MUST_USE err_code backend_buffer_reserve(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part,
                                         enum mem_tag tag, struct buffer **out, struct err *e);
MUST_USE bool backend_buffer_commit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes);
void backend_buffer_decommit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes);

/* Creates a tensor in a buffer of its own, of ne2 parts; the caller closes out->buffer. */
MUST_USE err_code backend_tensor_create(struct backend *b, enum elem_type type, int64_t ne0, int64_t ne1, int64_t ne2,
                                        enum mem_tag tag, struct tensor *out, struct err *e);

/* Write a whole tensor, in queue order: zeros, or bytes of the host (`src` may be reused at once). */
void backend_clear(struct backend *b, const struct tensor *t);
void backend_write(struct backend *b, const struct tensor *t, const void *src);
/* Copies a tensor to another one of the same number of bytes, in queue order. They must not overlap. */
void backend_copy(struct backend *b, const struct tensor *from, const struct tensor *to);
/* Reads a whole tensor into the host's memory. Waits for everything that was enqueued before. */
MUST_USE err_code backend_read(struct backend *b, const struct tensor *t, void *dst, struct err *e);

/* ---- weights ------------------------------------------------------------------------------------------------- */

/* Where the bytes of a matrix come from: `read` reads rows [row0, row0 + n) in GGUF's order. Any thread may call it. */
struct weight_source {
    err_code (*read)(void *user, uint64_t row0, uint64_t n, void *dst, struct err *e);
    void *user;
};

struct weight_desc {
    const char
        *name; /* of the file's tensor that the matrix is, or is a part of; borrowed until the weight is closed */
    const struct quant_info *type;
    int64_t k, n_row; /* elements of a row, and rows */
    bool is_observed; /* observers (backend_observe) are shown what the matrix is multiplied by, under this name */
};

/* Loads a matrix, which the caller owns. The device reads it once, in parallel, and packs it into a layout of its
 * choice. */
MUST_USE err_code backend_weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                                      struct weight **out, struct err *e);
void backend_weight_close(struct backend *b, struct weight **w);

/* The bytes of memory that a matrix takes when it is loaded. */
size_t backend_weight_bytes(struct backend *b, const struct weight_desc *d);

/* ---- slot pools -------------------------------------------------------------------------------------------- */

/* The shape of a layer's routed experts: gate and up are [n_ff][n_embd], down is [n_embd][n_ff]. */
struct slot_pool_desc {
    const struct quant_info *type[EXPERT_N_MATRIX];
    int64_t n_embd, n_ff;
    int64_t n_slot;
    bool is_ungated; /* there is no gate: gate and up are the two halves of one matrix, whose products y become
                        act(y) * y, and down is [n_embd][2 * n_ff] */
};

int64_t slot_matrix_k(const struct slot_pool_desc *d, enum expert_matrix matrix);    /* elements of a matrix's row */
int64_t slot_matrix_rows(const struct slot_pool_desc *d, enum expert_matrix matrix); /* rows of a matrix */
int64_t slot_n_hidden(const struct slot_pool_desc *d);                               /* elements that down takes */
/* Whether experts of one shape fit into slots of the other. */
bool slot_same_shape(const struct slot_pool_desc *a, const struct slot_pool_desc *b);

/* Creates slots of one size. They are closed at first, and take no memory until they are opened. */
MUST_USE err_code backend_slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out,
                                           struct err *e);
void backend_slot_pool_close(struct backend *b, struct slot_pool **slot_pool);
size_t backend_slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d);

/* Opens a slot; false when the limit on memory (base/mem.h) forbids it. Its contents are undefined until it is filled.
 * Touching an open slot takes its page faults ahead of its first use; several threads may touch different slots.
 * Closing a slot gives its memory back once the operations that are enqueued have run. The caller keeps track of which
 * slots are open. */
MUST_USE bool backend_slot_open(struct backend *b, struct slot_pool *slot_pool, int64_t slot);
void backend_slot_touch(struct backend *b, struct slot_pool *slot_pool, int64_t slot);
void backend_slot_close(struct backend *b, struct slot_pool *slot_pool, int64_t slot);

/* Slots and the matrices in them are aligned to this and a multiple of it long, so that drives can write into them with
 * direct I/O. */
enum { SLOT_ALIGN = 4096 };

/* How an expert lies in a slot, which is also how a prepared store holds it. False: this device takes experts only
 * through backend_slot_fill. */
bool backend_slot_pool_image(struct backend *b, const struct slot_pool_desc *d, struct layout_image *out);

/* Where in a slot's memory one of an expert's matrices can be read to directly, aligned to SLOT_ALIGN. is_packed: it
 * will be read as it lies in an image; else whole and in GGUF's order, for which there is room for all blocks of
 * SLOT_ALIGN bytes of the file that contain a part of it. NULL: it must go through backend_slot_fill. */
void *backend_slot_room(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                        bool is_packed);
/* Tells the device that a matrix has been read to that place and begins at `bytes`. A matrix in GGUF's order is packed
 * in place by the first operation that uses it: so an expert that is never used is never packed, and a packed matrix
 * is still in the processor's cache for its product. The caller makes sure that no enqueued operation uses the slot. */
void backend_slot_adopt(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                        const void *bytes, bool is_packed);

/* Rows [row0, row0 + n_row) of one of an expert's matrices, to be put into a slot. */
struct slot_rows {
    enum expert_matrix matrix;
    const void *src; /* the first of these rows */
    bool is_packed;  /* src holds them as they lie in an image; else in GGUF's order */
    int64_t row0;    /* a multiple of 16 */
    int64_t n_row;   /* a multiple of 16, or all rows from row0 on */
};

/* Puts rows into a slot, in the device's layout. The caller makes sure that no enqueued operation uses the slot. */
MUST_USE err_code backend_slot_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot,
                                    const struct slot_rows *rows, struct err *e);

/* Where one of an expert's matrices lies in a slot that has been filled, for another device's backend_slot_fill: all of
 * its rows, as in an image (*is_packed) or in GGUF's order. Valid until the slot is filled again or closed, or an
 * operation runs. NULL: the matrix does not lie in the host's memory in one piece. */
const void *backend_slot_bytes(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                               bool *is_packed);

/* A device with memory of its own may upload experts while the caller goes on: the rows that backend_slot_fill was
 * given may be reused as soon as it returns, while the memory of backend_slot_room stays in use. No operation may use a
 * slot until an upload fence that was taken after the slot was filled has been passed. Uploads end in order; a slot may
 * be filled again or closed before its upload has ended. Any thread may call these two functions.
 *
 * A fence behind all uploads so far. 0: they have all ended. */
uint64_t backend_upload_fence(struct backend *b);
/* Sets *is_passed to whether a fence has been passed, after waiting for it if `wait` is set. An error of the device is
 * returned for every fence that can't be passed because of it. */
MUST_USE err_code backend_upload_poll(struct backend *b, uint64_t fence, bool wait, bool *is_passed, struct err *e);

/* ---- state of texts ------------------------------------------------------------------------------------------- */

/* The paged state that a layer keeps of texts (keys, values, recurrent state). All texts share one buffer, of which
 * each has some pages. A page has parts, such as heads, that may lie far from each other. */
struct paged {
    struct tensor page; /* page 0; ne[2] is the number of parts */
    size_t page_bytes;  /* distance from a part to the same part of the next page */
    size_t part_bytes;  /* distance from a part to the next one of the same page */
};

/* One part of one page, as a tensor with ne[2] = 1. */
struct tensor paged_part(const struct paged *s, int64_t page, int64_t part);

/* ---- operations ---------------------------------------------------------------------------------------------- */

/* OP(name, what it computes). M is the number of tokens: the tensors' ne[1] unless said otherwise. */
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
    OP(SCALE, "out = x * scale, times a number in device memory if there is one")                                      \
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
    ACT_SWIGLU_OAI, /* the clamped SwiGLU of gpt-oss: kernels.h has the formula */
    ACT_NONE,       /* the identity */
    ACT_RELU,
    ACT_SOFTPLUS,     /* log(1 + exp(x)) */
    ACT_SILU_CLAMPED, /* SiLU of the clamped gate, while ACT_SILU with a limit clamps SiLU's result */
    ACT_SITU          /* SiLU with soft bounds on its factor x and on up: kernels.h has the formula */
};

/* Which elements are rotated as a pair: neighbours (NORMAL), or i and i + n_rot / 2 (NEOX). */
enum rope_mode { ROPE_NORMAL, ROPE_NEOX };

/* How a router turns logits into a choice of experts (docs/architecture.md lists which family uses which). */
enum route_score {
    ROUTE_SOFTMAX,        /* softmax over all experts, then the top k */
    ROUTE_SIGMOID,        /* sigmoid of each, then the top k */
    ROUTE_SOFTMAX_CHOSEN, /* the top k of the logits, then softmax over those */
    ROUTE_SQRT_SOFTPLUS   /* the square root of softplus of each, then the top k */
};

/* How positions become angles of rotation. */
struct rope_angles {
    float freq_base;
    float freq_scale; /* positions are multiplied by this; 1 for none */

    /* YaRN (arXiv 2309.00071) mixes scaled and unscaled frequencies: unscaled up to pair `yarn_low`, scaled from pair
     * `yarn_high` on, linear between. */
    bool yarn;
    float yarn_low, yarn_high;

    float magnitude; /* cosines and sines are multiplied by this; 1 for none */
    bool is_inverse; /* the angles are negated, to undo a rotation */

    /* Attention temperature, which makes attention sharper at large positions: cosines and sines are multiplied by
     * 1 + temperature * log(floor((position + temperature_shift) / temperature_span) + 1). 0: there is none. */
    float temperature;
    int64_t temperature_span, temperature_shift;
};

enum { OP_MAX_IN = 6, OP_MAX_OUT = 4, OP_MAX_STATE = 3, OP_CONV_MAX_TAP = 16, OP_MAX_STREAM = 4, OP_MAX_BANK = 64 };

/* Attention reduces over blocks of so many absolute positions, and over spans of blocks (docs/numerics.md). */
enum { ATTENTION_BLOCK = 64, ATTENTION_SPAN = 512 };

/* Pages of KV_STORE, INDEX and ATTENTION: row t is a token at position pos[t] of its text, and the text's positions
 * [64 * i, 64 * i + 64) are in page pages[table[t] + i]. (table[t] is negative where a text's first pages are not
 * listed, as no token needs them.) The rows of a text are neighbours, and their positions ascend by one. Where two
 * texts meet, their rows differ in table.
 *
 * A compressed cache has one entry for each `ratio` positions: entry i stands for positions [ratio * i,
 * ratio * (i + 1)). A token sees an entry if it sees all of its positions. Its pages hold 64 entries as other caches'
 * pages hold 64 positions; table and the length of the lists of pages are the same for both.
 *
 * Pages of CONV, DELTA and SSM: neighbouring rows with the same to[t] are a run. A run begins with the state in page
 * from[t] of its first row (-1: zeros) and leaves its state in page to[t], where a later run may begin. */

/* The indices of operands: op->in[ATTENTION_CHOSEN] is what is called `chosen` below. Where an operation has only one
 * operand of a kind it is [0]; those of MATMUL and ADD have plain numbers.
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

/* One operation. `in` and `out` list every activation that it reads and writes, so that a device can wrap another one
 * without knowing what each operation means. (State such as a KV cache is listed apart.) Shapes by kind, for M tokens,
 * of floats unless said otherwise:
 *
 * EMBED       in: ids I32 [M].  out: [n_embd][M].  weight[0]: [n_vocab][n_embd].  Parameter: scale
 * RMS_NORM    in: x.  out: like x.  vec: w [norm.n] or as long as a row of x, bias [norm.n], each or absent.
 *             norm.n divides the length of x's rows: each n elements are normed by themselves.  Parameters: norm
 * LAYER_NORM  in: x.  out: like x.  vec: w, bias, each as long as a row of x, or absent.  Parameter: norm.eps
 * MATMUL      in: x [k][M].  out[i]: [n_row_i][M].  weight[i]: [n_row_i][k].  vec[i]: bias [n_row_i] or absent
 * HEADS       in: x [n_head*in_dim][M].  out: [n_head*out_dim][M].  weight[0]: [n_head * n_out rounded up to 16][n_in],
 *             or NULL to copy.  Of each head, elements [in_off, in_off + n_in) of x are read and elements
 *             [out_off, out_off + n_out) of out written.  Parameters: heads
 * ROPE_TABLE  in: pos I32 [M].  out: [n_rot][M].  vec: frequency divisors [n_rot/2] or absent.  Parameters: rope_table
 * ROPE        in: x [n_head*head_dim][M], cos_sin [n_rot][M], the result of ROPE_TABLE.  out: the same x.  Of each
 *             head, elements [off, off + n_rot) are rotated.  Parameters: rope
 * KV_STORE    in: x [n_head*head_dim][M], pos, table, pages.  state: [head_dim][ATTENTION_BLOCK][n_head], F32, F16 or
 *             Q8_0
 * INDEX       in: q [n_head*dim][M], pos, table, pages, weights [n_head][M] or absent (1).  out: I32 [k][M].  state: K,
 *             [dim][ATTENTION_BLOCK][1].  Parameters: index.
 *             Each token chooses k positions, of equally good ones the first, and lists them in ascending order. If it
 *             sees no more than k, it lists all of them, followed by -1.
 *             index.ratio above 1: K is a compressed cache, and the token chooses entries.
 *             index.spreads: it chooses at most k entries, but lists all positions of each, then the positions behind
 *             the last entry that it sees, then INT32_MAX: out is [k*ratio + ratio-1][M].
 *             index.block: each head chooses k blocks of so many positions for itself, by the largest product with a
 *             position of the block that the token sees; out is I32 [n_head*k][M], and there are no weights. The last
 *             index.n_local blocks, the token's own among them, come before all others
 * ATTENTION   in: q [n_head*dk][M], pos, table, pages, chosen or absent, entry_pages or absent.  out: [n_head*dv][M].
 *             state: K, V (in latent attention K again).  vec: the score of each head's attention sink, or absent.
 *             Parameters: attention.
 *             chosen is the result of INDEX: a token sees these positions only, and there are no windows.
 *             attention.chosen_block: chosen is [n_head_kv*k][M], the blocks that the heads of each KV head see.
 *             attention.ratio: K is V, and tokens also see a compressed cache whose keys are its values, too: in has
 *             entry_pages, and state entries [dk][ATTENTION_BLOCK][1]. chosen then lists entries, and there may be a
 *             window
 * COMPRESS    in: at I32 [E], table [E], pages.  out: [n][E].  state: x, gate or absent, caches of F32
 *             [n or 2*n][ATTENTION_BLOCK][1].  vec: bias [n or 2*n][ratio].
 *             Makes entries of the `ratio` positions up to at[e], that one included: the sum over them of
 *             x * softmax(gate + bias), where bias goes by the place among the positions, and an absent gate is 0.
 *             Where rows have 2*n elements, these positions take the second n of them, and the `ratio` positions before
 *             them, if there are any, join the sum and the softmax with the first n. ratio is bias's ne[1]
 * CONV        in: x [n][M], from, to.  out: [n][M].  vec: taps [n][n_tap], the oldest first, bias [n] or absent.
 *             state: the last inputs [n][n_tap-1], the oldest first.  Parameters: conv
 * DELTA       in: qkv [2*n_head_k*dk + n_head_v*dv][M], which holds q, k and v of all heads, alpha
 *             [n_decay*n_head_v][M], beta [n_head_v][M], from, to.  out: [n_head_v*dv][M].  vec: dt, a bias
 *             [n_decay*n_head_v], a [n_head_v].  state: [dk][dv][n_head_v].  Parameters: delta.
 *             q and k are divided by sqrt(sum of squares + eps), and q by sqrt(dk) as well. beta passes through a
 *             sigmoid. decay = exp(a * softplus(alpha + dt)), or where min_log_decay is below 0,
 *             exp(min_log_decay * sigmoid(a * (alpha + dt))). A head has n_decay decays: 1, or dk, one for each key
 *             dimension
 * SSM         as DELTA with n_decay 1, but without beta, in place of which there is softplus(alpha + dt); q and k are
 *             taken as they are; nothing that the state holds is subtracted from v (kernels.h); and vec has
 *             skip [n_head_v], too.
 *             alpha and dt may be absent: beta is then 1, and decays are exp(a).
 *             Where in has qk [2*n_head_k*dk][M] the scan is selective: qkv holds v alone, each value dimension has a
 *             step of its own, and its decays differ by key dimension. alpha, dt and skip are then [n_head_v*dv], a is
 *             [dk][n_head_v*dv], and n_head_k and n_head_v are 1
 * ACT_MUL     in: gate, up.  out: like up.  Parameters: act, act_limit, act_up_limit.  Rows of gate may be shorter by a
 *             whole factor: each element is then used for as many neighbours of up, and there is no limit
 * ADD         in: a, b.  out: like them, may be a
 * SCALE       in: x.  out: like x, may be x.  vec: [1] or absent.  Parameter: scale
 * SOFTCAP     in: x.  out: like x, may be x.  Parameter: scale, the cap
 * CLAMP       in: x.  out: like x, may be x.  Parameter: scale, the limit.  A NaN stays one
 * SLICE       in: x [n][any], rows I32 [M], ascending, or absent (0, 1, ...).  out: [k][M], elements
 *             [slice_off, slice_off + k) of these rows.  Parameter: slice_off
 * SCATTER     in: x [k][M], rows I32 [M], all different.  out: [k][any], other rows untouched
 * STREAMS_IN  in: x [n_stream*n][M], mix [k][M], gate [n_stream*n][M] or absent.  out: y [n][M], mixed, which must be
 *             the same tensor as mix.  vec: scale [1 to 3], base [k].  Parameters: streams.
 *             mix becomes weights of the streams: a [n_stream], then b [n_stream] where k is at least 2 * n_stream,
 *             then c [n_stream][n_stream] where k is n_stream * (n_stream + 2) (docs/numerics.md has the formulas).
 *             With gate, y is the mean over streams of sigmoid(gate) * x; mix is b alone, [n_stream][M], which becomes
 *             magnitude * sigmoid(mix / n_stream), or is absent; and there is no vec. With neither gate nor mix y is
 *             the mean of x
 * STREAMS_OUT in: y [n][M], x [n_stream*n][M], mix with b as STREAMS_IN leaves it; without c, streams are not mixed.
 *             out: the same x
 * STREAMS_MATCH
 *             in: key [n_stream*n][M], query like key, value [n][M].  out: like key, may be key.  The signed root of s
 *             is sqrt(max(|s|, 1e-6)) with the sign of s
 * RESIDUALS   in: x [n][M], bank [n_bank*n][M].  out: like x, may be x.  vec: w [n].  Parameters: residuals.  The sum
 *             runs over the first n_banked residuals of the bank, then x; rms(r) is sqrt(mean(r^2) + eps)
 * ROUTE       in: x [n_embd][M], tokens I32 [M], their ids, needed where token_experts is there.  out: ids I32 [k][M],
 *             weights [k][M], scores [n_expert][M] or absent.  weight[0]: router [n_expert][n_embd].  Parameters:
 *             route.  vec, each of which may be absent: bias, which is the router's; choice_bias, which is added to the
 *             scores for choosing only; expert_scale, which each expert's final weight is multiplied by;
 *             token_experts I32 [k][n_vocab], the experts of each token of the vocabulary, in place of a choice.
 *             scores are what the choice starts from, without choice_bias and always on the same scale: the softmax
 *             over all experts or the sigmoid of each, and 0 for experts of groups that were dropped
 * EXPERTS     in: x [n_embd][M], ids (-1: none), slots I32 [n_expert] (-1: left out this time), weights [k][M], which
 *             the results of gate and up are multiplied by, or absent.  out: y [n_embd][k][M], hidden
 *             [n_hidden][k][M], what down is multiplied by, or absent; in both, rows whose id or slot is -1 are
 *             untouched.  slot_pool.  vec[enum expert_matrix]: biases, [n_ff][n_expert] of gate and up,
 *             [n_embd][n_expert] of down, by expert and not by slot, or absent.  Parameters: experts
 * COMBINE     in: y, weights or absent (1), shared [n_embd][M] or absent, shared_gate [1][M] or absent, which passes
 *             through a sigmoid.  out: [n_embd][M] */
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
            int64_t n_text;       /* texts that the tokens belong to, for speed only; 0: unknown */
            float softcap;        /* scores become softcap * tanh(score / softcap); 0: they don't */
            int64_t ratio;        /* positions for each entry of the compressed cache; 0: there is no such cache */
            int64_t chosen_block; /* INDEX chose blocks of so many positions; 0: it chose positions */
        } attention;
        struct {
            int64_t ratio;   /* positions for each entry of the cache; 0 or 1: it is not compressed */
            int64_t block;   /* positions of a block, a multiple of ATTENTION_BLOCK; 0: blocks are not what is chosen */
            int64_t n_local; /* last blocks, up to the token's own, that are always chosen; at most k */
            bool spreads;    /* entries are chosen, but their positions are listed */
        } index;
        struct {
            float eps;
            float magnitude;     /* the largest b */
            int64_t n_iteration; /* rounds of Sinkhorn's algorithm, where there is c */
        } streams;               /* for STREAMS_IN */
        struct {
            int64_t n_banked;
            float eps;
        } residuals;
        struct {
            bool has_silu; /* act is SiLU; else the identity */
        } conv;
        struct {
            int64_t n_head_k;
            bool grouped;        /* value head h uses key head h / (n_head_v / n_head_k), else h % n_head_k */
            float eps;           /* for DELTA */
            float min_log_decay; /* for DELTA: a lower bound of the decays' logarithm, below 0; 0: there is none */
        } delta;                 /* for DELTA and SSM */
        struct {
            enum act_fn act;
            float act_limit;    /* ACT_SILU, ACT_SILU_CLAMPED: limit of both factors (kernels.h), 0: none. ACT_SITU:
                                   gate's bound */
            float act_up_limit; /* ACT_SITU: up's bound; 0: none */
        };
        struct {
            enum route_score score;
            bool norm_weights;    /* the weights of the chosen experts are divided by their sum */
            float scale;          /* then they are multiplied by this; 1 for none */
            int64_t n_group;      /* equal groups of experts; 1: there are no groups */
            int64_t n_group_used; /* experts are chosen from so many groups: those whose two best scores have the
                                     largest sums */
        } route;
        struct {
            enum act_fn act;
            int64_t sort_cutoff; /* dispatch is sorted where M is above it, else direct; at least 1 */
            /* [EXPERT_N_MATRIX] names of the file's tensors, for observers; borrowed. NULL: not to be observed. Where
             * one tensor holds two of the matrices, one name is NULL. */
            const char *const *tensors;
            float act_limit, act_up_limit; /* as for ACT_MUL */
            bool are_shared; /* the tensors' matrices are those of slots, which experts share; else those of experts */
        } experts;
    };
};

/* Checks that shapes, types and places in buffers are as said above; else ERR_CHECK with a sentence that names the
 * operation. Contents of device memory (ids, positions, pages) are not checked. */
MUST_USE err_code op_check(struct backend *b, const struct op *op, struct err *e);

/* Puts an operation into the queue. One that op_check refuses is a bug and ends the program. *op is copied; its
 * buffers, weights and slot pools must live until the operation has run. If memory has to be reclaimed for the
 * operation, that happens now, and not when a device runs it later. */
void backend_enqueue(struct backend *b, const struct op *op);

/* From now on fn (NULL: nothing) is called after each enqueued operation, so that the host can look after reads and
 * other work meanwhile. fn must not enqueue anything. */
void backend_set_between(struct backend *b, void (*fn)(void *user), void *user);

/* Whether the device can run such an operation. The answer depends on shapes and types only, so that a model's
 * operations can be checked before it is loaded (backend_asking_open). */
bool backend_supports(struct backend *b, const struct op *op);

/* A fence behind everything that has been enqueued so far. */
uint64_t backend_fence(struct backend *b);
/* Has the device begin with what is enqueued; else it may put that off until somebody waits. */
void backend_start(struct backend *b);
/* Waits until a fence has been passed, and returns the first error since the last one that was returned. */
MUST_USE err_code backend_wait(struct backend *b, uint64_t fence, struct err *e);

/* Frees the scratch memory that operations have left for the next ones. The queue must be empty. */
void backend_trim(struct backend *b);

/* What the operations of a kind took, and the least work that they consist of. */
struct op_counters {
    uint64_t n, n_ns;         /* operations, and how long they took */
    uint64_t n_bytes;         /* of weights and state, each counted once for an operation */
    uint64_t n_int8, n_float; /* multiply-adds of vector units on bytes, on floats */
    uint64_t n_tile;          /* multiply-adds of a matrix unit on bytes */
};

/* What has run since the device was opened. */
struct backend_counters {
    struct op_counters op[OP_N_KIND];
    uint64_t n_direct, n_sorted;      /* EXPERTS operations by dispatch */
    uint64_t n_expert_rows;           /* token-expert pairs computed */
    uint64_t n_experts;               /* different experts of each EXPERTS operation, summed over operations */
    uint64_t n_product[QUANT_MAX_ID]; /* multiply-adds by type of the weights; only a null device counts them */
};
/* Waits for a device with memory of its own, to read its counters. */
struct backend_counters backend_counters(struct backend *b);
/* The time of one kind only. Where operations are not timed this is 0, without waiting. */
uint64_t backend_op_ns(struct backend *b, enum op_kind kind);

/* The bytes that the device holds now under a tag: its buffers, weights, open slots and scratch. Memory of the host
 * counts in the process's ledger (base/mem.h) as well. For any thread. */
size_t backend_held_bytes(struct backend *b, enum mem_tag tag);

/* The bytes of the device's own memory; 0: it works in the host's memory, and the host's limit holds. */
size_t backend_own_bytes(struct backend *b);

/* The bytes that can still be taken of the memory that the device works in. */
size_t backend_room_bytes(struct backend *b);

/* Reclaims memory until n_bytes fit, in the calling thread: the host's as mem_make_room does, the device's own with
 * `reclaim` (NULL, as at first: none can be reclaimed). Returns whether there is room now. */
MUST_USE bool backend_make_room(struct backend *b, size_t n_bytes);
void backend_set_reclaim(struct backend *b, mem_reclaim_fn *reclaim, void *user);

const char *backend_name(struct backend *b);
void backend_close(struct backend **b); /* accepts NULL */

/* ---- observing ----------------------------------------------------------------------------------------------- */

/* Activations that a matrix of the file is multiplied by: row t is scale * x[t * stride .. t * stride + k). */
struct observed {
    const char *tensor;       /* the tensor's name in the file */
    int64_t n_matrix, matrix; /* matrices of the tensor (experts, heads), and which of them this is */
    const float *x;
    int64_t k, n_row, stride;
    float scale;
};

/* From now on until backend_observe_end, every MATMUL, HEADS and EXPERTS calls the observer with what its weights are
 * multiplied by (before rounding), on the thread that drives the device. A matrix's rows come in the order of the
 * tokens. The device is waited for after each operation. An error of observing is returned by the next backend_wait or
 * backend_read. */
typedef void backend_observer(void *user, const struct observed *o);
MUST_USE err_code backend_observe(struct backend *b, backend_observer *observer, void *user, struct err *e);
void backend_observe_end(struct backend *b); /* does nothing where there is no observer */

/* ---- devices ------------------------------------------------------------------------------------------------- */

struct pool;
struct kernels;

/* The CPU. `pool` and `kernels` are borrowed until the device is closed. */
MUST_USE err_code backend_cpu_open(struct backend **out, struct pool *pool, const struct kernels *kernels,
                                   struct err *e);

/* A null device, for describing a model without loading it: buffers and weights take no memory, sources of weights are
 * not read, operations and writes do nothing, and reads return zeros. */
MUST_USE err_code backend_null_open(struct backend **out, struct err *e);

/* A null device that asks another device, which is borrowed, whether it supports each operation that is enqueued. The
 * first one that it doesn't support is reported as ERR_UNSUPPORTED, with its types and the names of its weights.
 * backend_held_bytes says what the other device would hold, without slots and scratch, and backend_counters the work of
 * products with weights, without experts and the state of texts. */
MUST_USE err_code backend_asking_open(struct backend **out, struct backend *asked, struct err *e);

/* A checking device: runs every operation on `primary` and, with the same inputs, on `secondary`, and compares. The
 * results are primary's. The first operation whose outputs differ by more than a bound that grows with the length of
 * its sums is reported as ERR_CHECK, by number, kind and shape. The device owns both others, and closes them with
 * itself, or when opening it fails. */
MUST_USE err_code backend_check_open(struct backend **out, struct backend *primary, struct backend *secondary,
                                     struct err *e);

#endif
