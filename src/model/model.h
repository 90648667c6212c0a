/* A model: its numbers, its weights on a device, and the forward pass over them.
 *
 * An architecture (arch_NAME.c, one line in arch_list.def) reads a GGUF's metadata and tensors into this description,
 * composing shared blocks; the forward pass (forward.c) walks the description and knows no names. State that grows with
 * the text (the KV cache) is apart from the model, so that several texts can share one.
 * Refused, with the key or tensor and what was expected: unknown architectures, missing keys, missing or misshapen
 * tensors, unknown rope scalings.
 *
 * Thread-safety: a loaded model is read-only, but its device is driven by one thread at a time. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "backend/backend.h"
#include "base/cancel.h"
#include "base/log.h"
#include "experts/experts.h"
#include "moe/moe.h"

struct gguf;
struct store;
struct pool;

/* What latent attention has besides struct attention, whose q gives the unrotated parts of the heads' queries and whose
 * k gives the latent [n_latent]. A row of the cache is k_pe's part and the latent, and serves all heads as key and
 * value. */
struct latent_attention {
    int64_t n_nope;     /* elements of a head's query that are not rotated */
    int64_t n_latent;   /* elements of the latent */
    int64_t n_value;    /* elements of a head's value */
    int64_t n_q_latent; /* rank of the queries; 0 where they are not low-rank */
    struct weight *q_a; /* [n_q_latent][n_embd], in front of q and q_pe; NULL where queries are not low-rank */
    struct tensor q_a_norm;
    struct weight *q_pe; /* the rotated parts of the heads' queries */
    struct weight *k_pe; /* the rotated part of the keys, [n_rot], that all heads share */
    struct weight *k_b;  /* for each head: a query into the latent space */
    struct weight *v_b;  /* for each head: a result out of it */
};

/* Softmax attention with grouped queries. Shapes: q [n_head * head_dim][n_embd], k and v [n_head_kv * ...],
 * o [n_embd][n_head * head_dim_v]. Absent tensors are not applied. */
struct attention {
    int64_t n_head, n_head_kv, head_dim, head_dim_v;
    int64_t n_rot;
    enum rope_mode rope;
    int rope_table, q_rope_table; /* indices into the model's, for k and for q; negative: not rotated */
    float scale;
    int64_t window; /* positions that a token sees; 0: all */
    bool chunked;   /* but none before the last multiple of the window */
    struct weight *q, *k, *v, *o;
    float out_scale; /* what o gives is multiplied by this; 0: not */
    bool is_gated;
    struct weight *gate; /* [n_head * head_dim][n_embd]: its sigmoid scales what goes into o; may be NULL */
    struct tensor q_bias, k_bias, v_bias, o_bias;
    struct tensor q_norm, k_norm;   /* RMS norms before rope; absent: to RMS 1 */
    int64_t q_norm_len, k_norm_len; /* over each head, or over all of q and k; 0: no norms */
    bool rope_first;                /* they come after rope instead */

    bool is_latent;
    struct latent_attention latent; /* when is_latent */
    bool has_unit_v_norm;           /* v to RMS 1, over each head */
    bool v_is_k;                    /* v is k before its norm and rope; there is no v */
    int64_t kv_layer; /* the layer whose cache this one uses: its own, or an earlier one's; then k and v are absent */
    struct tensor sinks; /* [n_head]: a score each that takes part in the softmax and contributes nothing */
};

/* A gated delta net: linear attention with a state of [dk][dv] for each value head instead of a cache, behind a causal
 * convolution of q, k and v. */
struct delta_net {
    int64_t dk, dv, n_head_k, n_head_v;
    int64_t n_mixed; /* q, k and v of all heads: 2 * n_head_k * dk + n_head_v * dv */
    int64_t n_tap;   /* of the convolution */
    bool grouped;    /* which key head serves a value head: backend.h, DELTA */
    struct weight *qkv, *z, *alpha, *beta,
        *out;            /* [n_mixed][n_embd], [n_head_v * dv][n_embd], [n_head_v][n_embd] ... */
    struct tensor conv;  /* [n_mixed][n_tap] */
    struct tensor dt, a; /* [n_head_v] */
    struct tensor norm;  /* [dv] */
};

/* Angles that layers share, computed once a call. */
struct rope_table {
    struct rope_angles angles;
    int64_t n_rot;
    struct tensor divisors; /* [n_rot/2] or absent */
};

enum { MODEL_MAX_ROPE = 2 };

/* A dense gated feed-forward: down . (act(gate . x) * (up . x)). */
struct ffn {
    int64_t n_ff;
    enum act_fn act;
    struct weight *gate, *up, *down;
    struct tensor gate_bias, up_bias, down_bias; /* may be absent */
};

struct layer {
    struct tensor attn_norm;
    bool is_recurrent;
    struct attention attn;        /* when not recurrent */
    struct delta_net delta;       /* when it is */
    struct tensor attn_post_norm; /* of what attention gives, before it is added; may be absent */
    struct tensor ffn_norm;
    bool is_moe;
    struct ffn ffn;       /* when dense */
    struct moe_layer moe; /* when not */
    /* Both, side by side (is_moe and ffn.down): the dense branch is normed after, the experts before and after, and the
     * router sees x at RMS 1 times router_norm. */
    struct tensor dense_post_norm, moe_norm, moe_post_norm, router_norm;
    struct tensor ffn_post_norm; /* of the whole feed-forward part; may be absent */
    /* An embedding of the token for this very layer: x += norm(proj . (gelu(gate . x) * embedding)); may be absent */
    struct weight *token_gate, *token_proj;
    struct tensor token_post_norm;
    struct tensor out_scale; /* [1]: x is multiplied by it in the end; may be absent */
};

struct model {
    const char *arch;
    int64_t n_layer, n_embd, n_vocab, n_ctx_train;
    float norm_eps;
    int n_rope;
    struct rope_table ropes[MODEL_MAX_ROPE]; /* what the layers' attention rotates by */

    struct weight *embed; /* [n_vocab][n_embd] */
    float embed_scale;
    /* tokens' embeddings for each layer: norm(proj . x / sqrt(n_embd)) and a table's row, added; n_token_embd 0: none
     */
    int64_t n_token_embd;
    struct weight *token_embed, *token_embed_proj; /* [n_vocab][n_layer * n_token_embd], [..][n_embd] */
    struct tensor token_embed_norm;                /* [n_token_embd] */
    float residual_scale; /* what each layer's two parts are multiplied by before they are added */
    struct tensor out_norm;
    float logit_scale;     /* what logits are multiplied by */
    float logit_softcap;   /* 0: none */
    struct weight *output; /* [n_vocab][n_embd]; the embedding when the file ties them */
    struct layer *layers;  /* [n_layer] */

    int n_moe_layer;
    struct experts *experts; /* NULL in a dense model */

    /* what the model owns besides the experts */
    struct backend *device;
    struct arena arena;
    struct weight **weights;
    size_t n_weights, weights_capacity;
    struct buffer **buffers;
    size_t n_buffers;
};

struct model_load_params {
    struct backend *device;
    struct pool *pool;
    struct store *store;     /* NULL: nothing is read, see model_load */
    const struct log *log;   /* may be NULL */
    enum policy_kind policy; /* the next three as in struct experts_params */
    size_t expert_budget_bytes;
    double expert_budget_share;
    bool deterministic;                                /* as in experts.h */
    void (*progress)(void *user, uint64_t done_bytes); /* may be NULL; from any thread */
    void *user;
};

/* Loads everything: device, store and the rest of params are borrowed until model_close; the GGUF may be closed. With
 * the null device and no store, the result is the description alone, with zeros for numbers and without experts: every
 * check of keys and tensors has been made, and no byte of a tensor was read. */
MUST_USE err_code model_load(struct model **out, const struct gguf *g, const struct model_load_params *params,
                             struct err *e);
void model_close(struct model **m);

/* The bytes that model_load will read, for a progress display. */
uint64_t model_load_bytes(const struct gguf *g);

/* The known architectures, "llama, olmoe, ...", for messages. */
const char *model_arch_names(void);

/* ---- state and forward pass ---------------------------------------------------------------------------------- */

struct model_state; /* one text: its KV cache and position */

/* All but the routed experts take so many tokens of a call at a time at most. */
enum { MODEL_UBATCH = 512 };

/* Room for n_ctx positions; kv: ELEM_F16, ELEM_F32 or, where all heads are multiples of 32, ELEM_Q8_0. Windowed layers
 * keep their window and n_batch or MODEL_UBATCH more, whichever is less. Owned by the caller, to be closed before the
 * model. */
MUST_USE err_code model_state_create(struct model_state **out, const struct model *m, int64_t n_ctx, int64_t n_batch,
                                     enum elem_type kv, struct err *e);
void model_state_close(struct model_state **s);
int64_t model_state_n_ctx(const struct model_state *s);
int64_t model_state_pos(const struct model_state *s);
size_t model_state_bytes(const struct model_state *s); /* of device memory */
/* Forgets everything from position pos on and returns the position it is then at: pos, or 0 when a layer knows no way
 * back but to the start. Recurrent layers never do; windowed layers do as long as they hold the window before pos,
 * which is so for the last n_batch or MODEL_UBATCH positions at least, whichever is less, unless they come from a file.
 */
int64_t model_state_truncate(struct model_state *s, int64_t pos);

/* A state as bytes: save hands pieces to `put`, load asks `get` for the same bytes in the same order. A state of n_ctx
 * or n_batch may be loaded into one of others, of the same model and type, where pos fits. After a failed load it is
 * empty. */
typedef err_code model_state_bytes_fn(void *user, void *bytes, size_t n, struct err *e);
MUST_USE err_code model_state_save(const struct model_state *s, model_state_bytes_fn *put, void *user, struct err *e);
MUST_USE err_code model_state_load(struct model_state *s, int64_t pos, model_state_bytes_fn *get, void *user,
                                   struct err *e);
uint64_t model_state_saved_bytes(const struct model_state *s, int64_t pos); /* of a state at pos */

/* Work space of the forward pass, for chunks of up to n_batch tokens and n_logits rows of logits at a time. */
struct model_work;
MUST_USE err_code model_work_create(struct model_work **out, const struct model *m, int64_t n_batch, int64_t n_logits,
                                    struct err *e);
void model_work_close(struct model_work **w);
/* Makes room for other chunks. What the last call kept is lost. After a failure there is room for none. */
MUST_USE err_code model_work_resize(struct model_work *w, const struct model *m, int64_t n_batch, struct err *e);
/* What a token more in a chunk takes there. */
size_t model_work_token_bytes(const struct model_work *w);
/* Whether a state can take chunks of more tokens than it was made for. */
bool model_takes_any_batch(const struct model *m);

struct model_forward_params {
    int64_t sort_cutoff;
    const struct moe_trace *trace; /* may be NULL */
    bool prefetch;                 /* read ahead what the next layer will probably choose */
    struct car car;                /* stand-ins for experts that are not at hand; zero: none */
    struct cancel cancel;          /* asked in each layer, before each ubatch and wave of experts; zero: never */
    /* Called after each layer with the residual stream [n_embd] of the last token; may be NULL. Costs a read-back. */
    void (*hidden)(void *user, int64_t layer, const float *x);
    void *hidden_user;
};

/* Appends n tokens (1..n_batch, valid ids, room for them in the context) to the state and keeps the last n_out (0..n)
 * rows of the last layer's result in work space, for model_logits. On failure the state is as before or empty, where
 * layers know no way back. */
MUST_USE err_code model_forward(const struct model *m, struct model_state *s, struct model_work *w,
                                const struct model_forward_params *p, const int32_t *ids, int64_t n, int64_t n_out,
                                struct err *e);

/* Computes the logits of rows [first, first + n) of those kept by the last model_forward, n up to n_logits, into work
 * space, where they stay until the next call. */
void model_logits(const struct model *m, struct model_work *w, int64_t first, int64_t n);
/* Row i of these (0..n-1) into host memory [n_vocab]. */
MUST_USE err_code model_logits_row(const struct model_work *w, int64_t i, float *logits, struct err *e);

#endif
