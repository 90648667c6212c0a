/* What architectures are made of: typed access to a GGUF's keys and tensors while a model is loaded, and loaders
 * for the blocks that architectures share. Every function fails with a sentence that names the key or tensor. */
#ifndef MODEL_LOADER_H
#define MODEL_LOADER_H

#include <stdatomic.h>

#include "gguf/gguf.h"
#include "model/model.h"

struct loader {
    const struct gguf *g;
    const struct model_load_params *p;
    struct model *m;
    int64_t n_block;      /* layers in the file, those for predicting further tokens included */
    bool can_mtp;         /* the architecture's layer for multi-token prediction is known: set before load_trunk */
    bool *used;           /* by tensor index: read or known */
    atomic_ullong n_read; /* bytes, for progress */
};

/* Every architecture: fills *l->m from l->g. */
typedef err_code arch_load_fn(struct loader *l, struct err *e);
#define ARCH(name, suffix) arch_load_fn arch_##suffix##_load;
#include "model/arch_list.def"
#undef ARCH

/* What speaks against an architecture that is none of these, a clause; empty: nothing is known of it. */
const char *arch_why_unknown(const struct gguf *g, const char *arch);

/* ---- load_keys.c; "SUFFIX" stands for "ARCH.SUFFIX" ---------------------------------------------------------- */

enum { LOAD_KEY_BYTES = 160 };
void load_key(const struct loader *l, const char *suffix, char key[LOAD_KEY_BYTES]); /* the whole key */
bool load_has_key(const struct loader *l, const char *suffix);
/* Counts and lengths are at most this, so that a product of two of them, four times over, fits in 64 bits. */
enum { LOAD_MAX_U32 = 1 << 30 };
MUST_USE err_code load_u32(struct loader *l, const char *suffix, int64_t *out, struct err *e);     /* must be there */
MUST_USE err_code load_u32_opt(struct loader *l, const char *suffix, int64_t *out, struct err *e); /* else *out stays */

/* What a float may be: from `least` to `most`, or 0 where that stands for "none". NaN and infinity are never in range.
 */
struct f32_range {
    float least, most;
    bool zero_is_none;
};
extern const struct f32_range load_factor_range; /* of what something is multiplied or divided by; 0 is none */
extern const struct f32_range load_base_range;   /* of rope's frequency bases */
MUST_USE err_code load_f32(struct loader *l, const char *suffix, const struct f32_range *range, float *out,
                           struct err *e);
MUST_USE err_code load_f32_opt(struct loader *l, const char *suffix, const struct f32_range *range, float *out,
                               struct err *e);
MUST_USE err_code load_bool_opt(struct loader *l, const char *suffix, bool *out, struct err *e);
/* A number that is one for all layers or an array of one for each; *out stays when the key is absent. */
MUST_USE err_code load_layer_u32_opt(struct loader *l, const char *suffix, int64_t layer, int64_t *out, struct err *e);
MUST_USE err_code load_layer_f32_opt(struct loader *l, const char *suffix, int64_t layer, const struct f32_range *range,
                                     float *out, struct err *e);

/* A flag from an array of one for each layer; *out stays when the key is absent or no array. */
MUST_USE err_code load_layer_flag_opt(struct loader *l, const char *suffix, int64_t layer, bool *out, struct err *e);

/* ---- load_tensors.c; "blk.LAYER.NAME", or NAME where `layer` is one of these ----------------------------------- */

enum {
    LOAD_INPUT = -1, /* on the first layer's device */
    LOAD_OUTPUT = -2 /* on the last one's */
};

/* The device that has a layer's tensors. */
struct backend *load_device(const struct loader *l, int64_t layer);

/* NULL when absent. */
const struct gguf_tensor *load_find(const struct loader *l, int64_t layer, const char *name);

/* The tensor, which must be there, be of a type that we decode, and have this shape (ne2 1: a matrix or vector). */
MUST_USE err_code load_need(struct loader *l, int64_t layer, const char *name, int64_t ne0, int64_t ne1, int64_t ne2,
                            const struct gguf_tensor **out, struct err *e);

/* A tensor's name, for as long as the model. */
MUST_USE err_code load_name(struct loader *l, const struct gguf_tensor *t, const char **out, struct err *e);

/* Bytes of a tensor, from where the model is read; p->store is there. */
MUST_USE err_code load_read(struct loader *l, const struct gguf_tensor *t, uint64_t off_bytes, size_t n_bytes,
                            void *dst, struct err *e);

/* A matrix [n_row][k], which must be there. */
MUST_USE err_code load_weight(struct loader *l, int64_t layer, const char *name, int64_t k, int64_t n_row,
                              struct weight **out, struct err *e);

/* A matrix as the file has it. */
struct file_matrix {
    int64_t layer; /* or LOAD_INPUT, LOAD_OUTPUT */
    const char *name;
    int64_t k, n_row;
};

/* Rows of a tensor that make up (part of) a matrix: n_row of them in blocks of `block` rows, `stride` rows apart, from
 * row `first` on. */
struct row_run {
    int64_t n_row, block, stride, first;
};

/* A matrix of some of the rows of a tensor: those of n_run runs, one after the other. */
MUST_USE err_code load_weight_rows(struct loader *l, const struct file_matrix *from, const struct row_run *runs,
                                   int n_run, struct weight **out, struct err *e);

/* Where each head's matrix [n_row][k] lies in a tensor: from row head * stride + first on; transposed, it is the
 * [k][n_row] there. */
struct head_rows {
    int64_t k, n_row, stride, first;
    bool transposed;
};

/* A matrix for each of n_head heads, as OP_HEADS takes them, from a tensor of the given shape. */
MUST_USE err_code load_head_weight(struct loader *l, int64_t layer, const char *name, const int64_t shape[3],
                                   const struct head_rows *rows, int64_t n_head, struct weight **out, struct err *e);

/* A vector of n numbers; when `need` is false an absent one leaves *out absent. */
MUST_USE err_code load_vector(struct loader *l, int64_t layer, const char *name, int64_t n, bool need,
                              struct tensor *out, struct err *e);

/* n_row rows of n numbers. */
MUST_USE err_code load_table(struct loader *l, int64_t layer, const char *name, int64_t n, int64_t n_row, bool need,
                             struct tensor *out, struct err *e);

/* The same on a device of choice. */
MUST_USE err_code load_table_to(struct loader *l, struct backend *device, const struct file_matrix *from, bool need,
                                struct tensor *out, struct err *e);

/* n_row rows of n zeros, which no tensor of the file is. */
MUST_USE err_code load_new_tensor(struct loader *l, int64_t layer, int64_t n, int64_t n_row, struct tensor *out,
                                  struct err *e);

enum { LOAD_MAX_TABLE = 3 };

/* The rows of up to LOAD_MAX_TABLE tables of a layer, which must be there, one after the other. */
MUST_USE err_code load_tables(struct loader *l, const struct file_matrix *tables, int n_table, struct tensor *out,
                              struct err *e);

/* ---- blocks -------------------------------------------------------------------------------------------------- */

/* How q and k are normed. */
enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEAD,          /* each head, before rope */
    QK_NORM_HEAD_OPTIONAL, /* the same in files that have the tensors, else not at all */
    QK_NORM_HEAD_ROPED,    /* each head, after rope */
    QK_NORM_ALL            /* all of q, and all of k, before rope */
};

/* A family's rules for MoE layers. */
struct moe_rules {
    enum route_score score; /* unless the file says otherwise */
    bool norm_weights;      /* unless the file says otherwise */
    enum act_fn act;
    bool is_ungated; /* experts have no gate: down . (act(up . x) * (up . x)) */
};

/* Loads the model's own numbers, its embedding and its output, and allocates m->layers. */
MUST_USE err_code load_trunk(struct loader *l, struct err *e);

/* Loads nextn.*, what multi-token prediction has besides its layer, if that is to be loaded. */
MUST_USE err_code load_mtp(struct loader *l, struct err *e);

/* Loads attn_{q,k,v,output}, or attn_qkv and attn_output, with the biases that the file has. */
MUST_USE err_code load_attention(struct loader *l, int64_t layer, enum rope_mode rope, enum qk_norm qk_norm,
                                 struct attention *a, struct err *e);

/* Loads latent attention: attn_q or attn_q_a and attn_q_b, attn_kv_a_mqa, attn_k_b and attn_v_b or attn_kv_b,
 * attn_output. Without rope the part that all heads share is not rotated. */
MUST_USE err_code load_latent_attention(struct loader *l, int64_t layer, bool has_rope, struct attention *a,
                                        struct err *e);

/* Loads attn_gate: one for each head, or for each element of what attention gives. */
MUST_USE err_code load_attention_gate(struct loader *l, int64_t layer, enum act_fn act, struct attention *a,
                                      struct err *e);

/* How a family's index of positions is, where it has one. */
struct index_rules {
    enum rope_mode rope;
    bool rotates_last;  /* the last elements of queries and keys are rotated, not the first ones */
    bool is_shared;     /* some layers see what an earlier one chose */
    bool has_period;    /* which ones, as in GLM 5.2 where a file with its context doesn't say */
    bool has_model_eps; /* the keys' norm has the model's epsilon, not 1e-6 */
};

/* Loads the index of latent attention that is loaded: indexer.*. */
MUST_USE err_code load_position_index(struct loader *l, int64_t layer, const struct index_rules *rules,
                                      struct attention *a, struct err *e);

/* Residual streams: their numbers, and what weighs them around a layer's parts (hc_*) and in front of the output.
 * mixes: what streams become is a sum of all of them. */
MUST_USE err_code load_stream_sizes(struct loader *l, bool mixes, struct err *e);
MUST_USE err_code load_streams(struct loader *l, int64_t layer, struct layer *y, struct err *e);
MUST_USE err_code load_out_streams(struct loader *l, struct err *e);

/* The same of gated streams, whose norms are those of the layer and of the output. */
MUST_USE err_code load_gated_stream_sizes(struct loader *l, struct err *e);
MUST_USE err_code load_gated_streams(struct loader *l, int64_t layer, struct layer *y, struct err *e);
MUST_USE err_code load_gated_out_streams(struct loader *l, struct err *e);

/* A number for each element of each stream. */
MUST_USE err_code load_stream_norm(struct loader *l, int64_t layer, const char *name, struct tensor *out,
                                   struct err *e);

/* Loads embeddings of n-grams and what brings them into a layer, if the file has that. For models whose layers are
 * loaded. */
MUST_USE err_code load_ngrams(struct loader *l, struct err *e);

/* Finds c->ratio among the model's ratios, or adds it. */
MUST_USE err_code load_list_ratio(struct loader *l, struct compressed_attention *c, struct err *e);

/* Loads attention over residuals: how often these are banked, and what weighs them in front of the parts of layers,
 * which are loaded, and of the output (attn_res_score and its like). */
MUST_USE err_code load_residuals(struct loader *l, struct err *e);

/* Loads the limits of the factors of a layer's activations, if there are any. Dense layers have the shared experts'. */
MUST_USE err_code load_act_limits(struct loader *l, int64_t layer, struct layer *y, struct err *e);

/* How positions become angles of n_rot elements: the base of `base_key` or else 10000, and the file's scaling. */
MUST_USE err_code load_rope_angles(struct loader *l, const char *base_key, int64_t n_rot, struct rope_angles *out,
                                   struct err *e);

/* Adds a table of such angles to the model, with the divisors of a tensor that may be absent (NULL: none). */
MUST_USE err_code load_rope(struct loader *l, const char *base_key, int64_t n_rot, const char *divisors, int *index,
                            struct err *e);

/* Adds a table to model.ropes and returns its index. */
int load_add_rope(struct model *m, struct rope_table r);

/* The same of a table that leaves directions of n_rot elements as they are and lengthens with the position (backend.h).
 */
int load_add_temperature(struct model *m, int64_t n_rot, float temperature, int64_t span, int64_t shift);

/* Whether a layer attends to a window only: as the file's pattern says, else all but the last of every `period`, or the
 * first. */
MUST_USE err_code load_is_windowed(struct loader *l, int64_t layer, int64_t period, bool full_first, bool *windowed,
                                   struct err *e);

/* The window of a layer; 0 when it attends to everything, as load_is_windowed says. */
MUST_USE err_code load_window(struct loader *l, int64_t layer, int64_t period, bool full_first, int64_t *window,
                              struct err *e);

/* What a windowed layer rotates by, where it is something else than what the others do: by a base or a number of
 * elements of their own, or by plain angles. */
MUST_USE err_code load_window_rope(struct loader *l, bool is_plain, struct attention *a, struct err *e);

/* Which layers attend to a window, as the file's pattern says, which must be there: these rotate by
 * rope.dimension_count_swa elements, or as many as the others, and by a base of their own, 10000 unless the file says
 * otherwise. For models whose layers are loaded. */
MUST_USE err_code load_pattern_windows(struct loader *l, struct err *e);

/* What a convolution of recurrent layers is called. */
struct conv_names {
    const char *key; /* of its taps, for messages */
    const char *weight, *bias;
};

/* A convolution of some of the channels. */
struct conv_part {
    const char *weight;
    int64_t n; /* channels */
};
extern const struct conv_names load_ssm_conv;

/* Loads the convolution of r->n_mixed channels and r->n_tap taps, the bias if there is one: channels in the order in
 * which n_run runs pick them (NULL: as in the file). */
MUST_USE err_code load_conv(struct loader *l, int64_t layer, const struct conv_names *names, const struct row_run *runs,
                            int n_run, struct recurrent *r, struct err *e);

/* The same of several convolutions without biases, up to LOAD_MAX_TABLE, one after the other. */
MUST_USE err_code load_conv_parts(struct loader *l, int64_t layer, const char *key, const struct conv_part *parts,
                                  int n_part, struct recurrent *r, struct err *e);

/* A number for each head, which files have as a vector or as rows of one. */
MUST_USE err_code load_head_numbers(struct loader *l, int64_t layer, const char *name, int64_t n, struct tensor *out,
                                    struct err *e);

/* A gated delta net as Qwen's families have it; grouped: as in backend.h, DELTA. */
MUST_USE err_code load_delta_net(struct loader *l, int64_t layer, bool grouped, struct recurrent *d, struct err *e);

/* Whether a layer is recurrent: as the file lists them, or all but every full_attention_interval-th (else `interval`).
 */
MUST_USE err_code load_is_recurrent(struct loader *l, int64_t layer, int64_t interval, bool *out, struct err *e);

/* What stands for attention in a recurrent layer. */
typedef err_code load_recurrent_fn(struct loader *l, int64_t layer, struct recurrent *r, struct err *e);

/* A state space as Mamba-2 has it: ssm_in, ssm_conv1d, ssm_dt, ssm_a, ssm_d, ssm_norm if there is one, ssm_out. */
MUST_USE load_recurrent_fn load_state_space;

/* A selective state space as Mamba and Jamba have it: ssm_in, ssm_conv1d, ssm_x, ssm_{dt,b,c}_norm, ssm_dt, ssm_a,
 * ssm_d, ssm_out. */
MUST_USE load_recurrent_fn load_selective_space;

/* Loads ffn_{gate,up,down} with the biases that the file has. */
MUST_USE err_code load_ffn(struct loader *l, int64_t layer, struct ffn *f, struct err *e);
/* The same of a width that the file does not say. */
MUST_USE err_code load_wide_ffn(struct loader *l, int64_t layer, int64_t n_ff, struct ffn *f, struct err *e);
/* The same as load_ffn without a gate. */
MUST_USE err_code load_ungated_ffn(struct loader *l, int64_t layer, enum act_fn act, struct ffn *f, struct err *e);

/* Loads ffn_gate_inp, ffn_{gate,up,down}_exps or a fused ffn_gate_up_exps and, when the file has them, the shared
 * expert with or without its gate, and the products that lead into and out of the space that routed experts work in. */
MUST_USE err_code load_moe(struct loader *l, int64_t layer, const struct moe_rules *rules, struct moe_layer *y,
                           struct err *e);

/* Loads a layer's experts where it has a router, else a dense feed-forward part. */
MUST_USE err_code load_moe_or_ffn(struct loader *l, int64_t layer, const struct moe_rules *rules, struct layer *y,
                                  struct err *e);

/* Loads ffn_{gate,up,down}_chexps, the adjugates of a layer's experts, and their numbers. */
MUST_USE err_code load_adjugates(struct loader *l, int64_t layer, struct moe_layer *y, struct err *e);

/* Loads ffn_gate_tid2eid, which experts each token of the vocabulary has. */
MUST_USE err_code load_token_experts(struct loader *l, int64_t layer, struct moe_layer *y, struct err *e);

/* How a layer's experts compute on one of the model's devices, to which their biases are loaded. */
MUST_USE err_code load_expert_rules(struct loader *l, const struct model_device *d, const struct moe_layer *y,
                                    struct expert_rules *out, struct err *e);

/* A transformer of the plain kind: x += attention(norm(x)); x += ffn(norm(x)), where a layer is a MoE when it has a
 * router and dense otherwise. */
struct transformer_rules {
    enum rope_mode rope;
    enum qk_norm qk_norm;
    const char *ffn_norm;         /* NULL: ffn_norm.weight */
    load_recurrent_fn *recurrent; /* loads layers that have no heads of keys; NULL: there are none */
    int64_t window_period; /* every window_period-th layer attends to everything, the others to a window; 0: all to
                              everything */
    bool full_first;       /* of each period the first layer attends to everything, not the last */
    bool rope_in_window;   /* only the windowed layers are rotated */
    bool plain_in_window;  /* these are rotated by plain angles, whatever the file's scaling is */
    bool is_parallel;      /* the feed-forward part stands beside attention, behind the same norm */
    struct moe_rules moe;
};
MUST_USE err_code load_transformer(struct loader *l, const struct transformer_rules *r, struct err *e);

#endif
