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
#include "places/compute.h"
#include "places/division.h"

struct gguf;
struct store;
struct pool;

/* What chooses the positions that a token's attention sees, where there are more than n_chosen (DeepSeek's sparse
 * attention): a light attention of its own, whose scores are the sum over heads of weights[head] * relu(q . k). Keys
 * are normed, and elements of queries and keys are rotated, as many as the layer's, from rot_first on; in compressed
 * attention the last ones.
 *
 * Or it chooses blocks of positions for each KV head (MiniMax's): each has a head of the index, whose score of a block
 * is the largest q . k there. Queries are normed, too, and come of what attention's come of.
 *
 * Or it chooses runs of positions (Qwen's, GLM's): keys are the means of runs' keys, in a compressed cache, and each
 * head's weight is 1 or as above. Positions behind the last whole run are seen in any case. */
struct position_index {
    int64_t n_chosen;       /* positions, blocks for each KV head, or runs; 0: the layer's attention sees all */
    int64_t run;            /* positions of a run, where runs are chosen; else 0 */
    int64_t block, n_local; /* as OP_INDEX takes them */
    int64_t n_head, dim;    /* of the queries, which all meet the same key; 0 where what an earlier layer chose holds */
    enum rope_mode rope;
    int64_t rot_first;         /* the first element that is rotated */
    float k_norm_eps;          /* of the layer norm */
    struct weight *q;          /* [n_head * dim][n_q_latent, or n_embd] */
    struct weight *k;          /* [dim][n_embd]; NULL where keys are those of a compressed cache */
    struct weight *weights;    /* [n_head][n_embd]; NULL: each head's is 1, or blocks are chosen */
    struct tensor q_norm;      /* [dim], of an RMS norm of each head; absent: there is none */
    struct tensor k_norm;      /* [dim], of a layer norm, or of an RMS norm where blocks are chosen; may be absent where
                                  runs are */
    struct tensor k_norm_bias; /* [dim], of the layer norm */
};

/* The most positions that a token sees by an index's choice, and the numbers that the choice consists of. */
int64_t model_index_reach(const struct position_index *x);
int64_t model_index_length(const struct position_index *x);

/* What latent attention has besides struct attention, whose q gives the unrotated parts of the heads' queries and whose
 * k gives the latent [n_latent]. A row of the cache is k_pe's part and the latent, and serves all heads as key and
 * value. Without rope, the parts that are called rotated, if any, are used as they are. */
struct latent_attention {
    int64_t n_nope;          /* elements of a head's query that are not rotated */
    int64_t n_latent;        /* elements of the latent */
    int64_t n_value;         /* elements of a head's value */
    struct weight *q_pe;     /* the rotated parts of the heads' queries; NULL: nothing is */
    struct weight *k_pe;     /* the rotated part of the keys, [n_rot], that all heads share; NULL: nothing is */
    struct tensor k_pe_norm; /* [n_rot], of an RMS norm of that part in front of rope; may be absent */
    struct weight *k_b;      /* for each head: a query into the latent space */
    struct weight *v_b;      /* for each head: a result out of it */
    int temperature; /* index into model.ropes: what scales queries up with the position; negative: nothing does */
};

/* What makes a run of positions an entry of a compressed cache (OP_COMPRESS): all of them leave x . h and gate . h; the
 * mean of the former, weighted by the softmax of the latter, is normed and, where there is rope, rotated by the first
 * position's angles. */
struct compressor {
    int64_t n, width;        /* elements of an entry; of x and gate: n, or 2 * n where runs overlap */
    struct weight *x, *gate; /* [width][n_embd]; gate NULL: the mean is a plain one */
    struct tensor bias;      /* [width][ratio]; zeros where the mean is a plain one */
    struct tensor norm;      /* [n]; may be absent */
};

/* What attention has besides where its keys, of one head, are values, too, tokens see a window of them and a compressed
 * cache of all, and results are rotated back and go through a product for each group of heads into o (DeepSeek V4). */
struct compressed_attention {
    int64_t ratio;                    /* positions for each entry; 0: there are none */
    int list;                         /* which of model.ratios that is */
    int inverse_rope;                 /* index into model.ropes: by which results are rotated back */
    struct compressor entries, index; /* index.n 0: attention sees all entries; else what attention's index chooses */
    int64_t n_group, n_group_out;     /* groups of heads; elements that each puts into o */
    struct weight *o_a;               /* for each group: its heads' results into that */
};

/* Softmax attention with grouped queries. Absent tensors are not applied. */
struct attention {
    int64_t n_head, n_head_kv;    /* heads of q; heads of k and v, which divide them */
    int64_t head_dim, head_dim_v; /* elements of a head of q and k, and of v */
    int64_t n_rot;                /* elements of a head that are rotated: the first ones, or those from rot_first on */
    enum rope_mode rope;
    int rope_table, q_rope_table; /* indices into model.ropes, for k and for q; negative: not rotated */
    float scale;                  /* scores are multiplied by this */
    float softcap;                /* and then soft-capped: softcap * tanh(score / softcap); 0: they are not */
    float qkv_limit;              /* elements of q, k and v are clamped to plus and minus this; 0: they are not */
    int64_t rot_first;            /* the first element of a head that is rotated */
    int64_t window;               /* positions that a token sees, itself included; 0: all */
    bool chunked;                 /* of these, only those from the last multiple of the window on */

    struct weight *q;    /* [n_head * head_dim][n_embd] */
    struct weight *k;    /* [n_head_kv * head_dim][n_embd]; NULL where kv_layer is an earlier layer */
    struct weight *v;    /* [n_head_kv * head_dim_v][n_embd]; NULL there, and where v_is_k */
    struct weight *o;    /* [n_embd][n_head * head_dim_v] */
    struct weight *gate; /* [n_gate][n_embd], which scales what goes into o by gate_act; may be NULL */
    int64_t n_gate;      /* n_head * head_dim_v (latent: n_value), or n_head: one for each head */
    enum act_fn gate_act;
    float out_scale;                              /* what o gives is multiplied by this; 0: it is not */
    struct tensor q_bias, k_bias, v_bias, o_bias; /* a number for each row of the matrix; may be absent */
    struct tensor q_norm, k_norm;   /* weights of RMS norms before rope, [q_norm_len] and [k_norm_len]; absent: ones */
    int64_t q_norm_len, k_norm_len; /* elements that are normed together: a head's, or all of q or k; 0: no norm */
    bool is_gated;                  /* the file's q holds a gate, too */
    bool rope_first;                /* the norms come after rope */
    bool has_unit_v_norm;           /* each head of v is normed to RMS 1 */
    bool v_is_k;                    /* v is k before its norm and rope */
    int64_t kv_layer;               /* the layer whose cache this one uses: itself or an earlier one */
    struct tensor sinks; /* [n_head], scores that count in the softmax's sum, without values; may be absent */

    int64_t n_q_latent; /* rank of the queries; 0 where they are not low-rank */
    struct weight *q_a; /* [n_q_latent][n_embd], in front of q and q_pe; NULL where queries are not low-rank */
    struct tensor q_a_norm;
    struct position_index index; /* of blocks, or in latent or compressed attention of positions or entries */

    bool is_latent, is_compressed;
    struct latent_attention latent;         /* when is_latent */
    struct compressed_attention compressed; /* when is_compressed; of an index of runs `ratio`, `list` and `index` */
};

enum recurrence {
    RECURRENCE_DELTA, /* a gated delta net: linear attention with a state of [dk][dv] for each value head instead of a
                         cache, behind a causal convolution of q, k and v */
    RECURRENCE_SPACE, /* a state space (Mamba-2), which has the same parts; its C, B and x are q, k and v here */
    RECURRENCE_SELECTIVE, /* a selective state space (Mamba): what is convolved is x alone, from which C, B and the step
                             of each value dimension come; decays differ by value and by key dimension */
    RECURRENCE_FIXED,     /* as RECURRENCE_SPACE with a decay that each head has once and for all, behind an activation
                             alone (MiniMax's lightning attention) */
    RECURRENCE_CONV       /* a gated convolution alone: out . (z * conv(gate * mixed)) */
};

/* What stands for attention in a recurrent layer. Of RECURRENCE_CONV, what is said of heads is 0 or absent. */
struct recurrent {
    enum recurrence kind;
    int64_t n_mixed;            /* channels of the convolution: 2 * n_head_k * dk + n_head_v * dv, n_out or n_embd */
    int64_t n_tap;              /* its taps; 0, of RECURRENCE_FIXED: there is none, but its activation */
    int64_t n_out;              /* elements of what goes into out: n_head_v * dv, or n_embd */
    int64_t dk, dv;             /* elements of a head of q and k, and of v */
    int64_t n_head_k, n_head_v; /* heads of q and k; heads of v, a multiple */
    bool grouped;               /* which key head serves a value head: backend.h, DELTA */
    struct weight *mixed;       /* [n_mixed][n_embd]: q, k and v; NULL: the next three */
    struct weight *q, *k, *v;   /* [n_head_k * dk][n_embd] twice, [n_head_v * dv][n_embd] */
    struct weight *gate;        /* [n_mixed][n_embd], of RECURRENCE_CONV */
    struct weight *qk;          /* [2 * dk][n_out], of RECURRENCE_SELECTIVE: q and k of what is convolved */
    struct tensor qk_norm;      /* [2 * dk], of an RMS norm of q and of k; may be absent */
    struct weight *z;           /* [n_out][n_embd or n_rank], which scales what goes into out by z_act */
    enum act_fn z_act;
    float min_log_decay;            /* a lower bound of the decays' logarithm, below 0; 0: there is none */
    float qk_eps;                   /* of the norms of q and k, of RECURRENCE_DELTA */
    struct weight *alpha;           /* [n_alpha][n_embd or n_rank], the decay of the state */
    int64_t n_alpha;                /* n_head_v, or n_head_v * dk: each key dimension has a decay; or n_out; or 0, where
                                       decays are fixed and alpha is NULL */
    int64_t n_rank;                 /* rank of z and alpha; 0 where they are not low-rank */
    struct weight *z_in, *alpha_in; /* [n_rank][n_embd], in front of z and alpha; NULL where these are not low-rank. Of
                                       RECURRENCE_SELECTIVE alpha_in is [n_rank][n_out], of what is convolved */
    struct tensor alpha_norm;       /* [n_rank], of an RMS norm of what alpha_in gives; may be absent */
    struct weight *beta;            /* [n_head_v][n_embd], how much of a token the state learns; of RECURRENCE_DELTA */
    int64_t n_beta;                 /* n_head_v where there is beta, 2 * dk where there is qk, else 0 */
    struct weight *out;             /* [n_embd][n_out] */
    struct tensor conv;             /* [n_mixed][n_tap] */
    struct tensor conv_bias;        /* [n_mixed]; may be absent */
    struct tensor dt, a, skip;      /* as OP_DELTA and OP_SSM take them */
    struct tensor norm; /* of what is recurrent: the same for each n_norm, or for all n_out; may be absent */
    int64_t n_norm;     /* elements that are normed together */
    bool norms_gated;   /* the norm comes after z */
};

/* Angles that layers share, computed once a batch. */
struct rope_table {
    struct rope_angles angles;
    int64_t n_rot;          /* elements of a head that are rotated */
    struct tensor divisors; /* [n_rot/2], frequencies are divided by them; or absent */
};

enum { MODEL_MAX_ROPE = 4, MODEL_MAX_RATIO = 2 };

/* A dense feed-forward: down . (act(gate . x) * (up . x)). Without a gate `gate` is what files call up, and `up` is
 * NULL: down . (act(gate . x) * (gate . x)). */
struct ffn {
    int64_t n_ff; /* its width */
    enum act_fn act;
    float act_limit, act_up_limit;               /* as OP_ACT_MUL takes them */
    struct weight *gate, *up;                    /* [n_ff][n_embd] */
    struct weight *down;                         /* [n_embd][n_ff] */
    struct tensor gate_bias, up_bias, down_bias; /* [n_ff], [n_ff], [n_embd]; may be absent */
};

/* Where the residual stream is several, what weighs them around a block (OP_STREAMS_IN). The streams are normed as one
 * row for the products. Or each is normed for itself, by weights of its own, and the block begins with the mean of
 * gated streams, which is not normed again: sigmoid(up . silu(down . streams / n_stream)) * streams.
 *
 * Where earlier residuals are banked, `score` alone, which weighs these and the stream in front of it (OP_RESIDUALS).
 */
struct stream_weights {
    struct weight *mix;        /* [n_stream_mix][n_stream * n_embd], of the normed streams; in front of the output
                                  [n_stream] rows, or NULL where streams are gated */
    struct tensor scale, base; /* [1 to 3]; a number for each row; absent where streams are gated */
    struct weight *down, *up;  /* [n_stream_rank][n_stream * n_embd] and the other way round; NULL: there is no gate */
    struct tensor score;       /* [n_embd], of banked ones */
};

/* What brings embeddings of n-grams (struct ngram_table) into the streams in front of a layer: with e those of a token
 * one after the other,
 *
 *   gated[i] = STREAMS_MATCH of norm(key . e)[i], norm(x)[i] and value . e;   x += gated + silu(conv(norm(gated)))
 *
 * where norms are of each stream, by weights of its own. */
struct ngram_weights {
    struct weight *key, *value;                 /* [n_stream * n_embd][n_head * width], [n_embd][...]; NULL: none */
    struct tensor key_norm, x_norm, gated_norm; /* [n_stream * n_embd] */
    struct tensor conv;                         /* [n_stream * n_embd][n_tap], taps that are left out being zeros */
};

struct layer {
    struct ngram_weights ngram;                      /* of a recurrent layer */
    struct stream_weights attn_streams, ffn_streams; /* in models of several streams, or of banked ones */
    struct tensor attn_norm; /* [n_embd], or of all streams where they are gated; absent: nothing is mixed, the layer is
                                a feed-forward part alone */
    struct tensor attn_norm_bias, ffn_norm_bias; /* [n_embd]; may be absent */
    bool is_recurrent;
    struct attention attn;        /* when not recurrent; its kv_layer is the layer itself where nothing is mixed */
    struct recurrent recurrent;   /* when recurrent */
    struct tensor attn_post_norm; /* [n_embd], of what attention gives, before it is added; may be absent */
    struct tensor ffn_norm;       /* as attn_norm; absent: there is no feed-forward part */
    bool is_moe;
    bool routes_input;    /* the router sees what goes into the layer, without a norm */
    bool moe_sees_input;  /* the experts and the router see that, too, behind moe_norm, beside a dense branch */
    bool is_parallel;     /* the feed-forward part sees what goes into the layer, too, and not what attention adds */
    struct ffn ffn;       /* when not is_moe, or beside the experts */
    struct moe_layer moe; /* when is_moe */

    /* [n_embd] each, where a dense branch stands beside the experts (is_moe and ffn.down); may be absent: then the
     * experts and the router see what the dense branch does, and what comes out is not normed */
    struct tensor dense_post_norm;         /* of what the dense branch gives */
    struct tensor moe_norm, moe_post_norm; /* of what goes into the experts, of what they give */
    struct tensor router_norm;             /* of what the router sees */

    float ffn_scale;             /* the whole feed-forward part is multiplied by this; 0: it is not */
    struct tensor ffn_post_norm; /* [n_embd], of the whole feed-forward part, before it is added; may be absent */

    /* x += norm(proj . (gelu(gate . x) * the token's embedding for this layer)); may be absent */
    struct weight *token_gate;     /* [n_token_embd][n_embd] */
    struct weight *token_proj;     /* [n_embd][n_token_embd] */
    struct tensor token_post_norm; /* [n_embd] */

    struct tensor out_scale; /* [1], multiplies x at the layer's end; may be absent */
};

/* Multi-token prediction (MTP, files say "nextn"): what guesses a text's tokens from the result of the one before the
 * last. Where h is the normed result at a position, and id the next position's token,
 *
 *   x = layer(proj . [norm(embedding(id)), norm(h)]);   h = norm(x);   logits = output(h)
 *
 * are those of the token behind id, and h leads to the next guess. Of several such layers the first one makes the first
 * guess, the next one the next, and the last one all further ones. Each layer's cache has, of the text's tokens, what
 * the model's own h gives, and of guessed ones what they were guessed from. */
struct mtp_head {
    struct tensor embed_norm, hidden_norm; /* [n_embd] of the embedding, of h */
    struct weight *proj;                   /* [n_embd][2 * n_embd] */
    struct weight *embed, *output;         /* the model's, or its own */
    struct tensor out_norm;                /* [n_embd] */
};
struct mtp {
    int64_t n;              /* layers, behind the trunk's; 0: there is no MTP */
    struct mtp_head *heads; /* [n] what each has besides its layer */
    bool has_layer_norm;    /* the last norm takes the mean away, whatever the model's others do */
    bool is_raw;            /* what leads to guesses is the result before its norm */
};

enum { NGRAM_MAX_TOKENS = 8, NGRAM_MAX_HEAD = 64 };

/* Embeddings of n-grams: hashes of a token and those before it pick rows of a table, n_head of them. The table, which
 * may be larger than all the rest, stays in the file, from where rows are read as they are needed.
 *
 * With t[0] the token and t[j] the one j before it, or eos where an eos or the text's beginning lies between, the heads
 * [(n - 2) * per_length, (n - 1) * per_length) of n tokens have rows
 *
 *   first_row[head] + (t[0] * factor[0] ^ ... ^ t[n - 1] * factor[n - 1]) % n_row[head] */
struct ngram_table {
    int64_t most_tokens; /* of an n-gram; 0: there is no table */
    int64_t per_length;  /* heads for each length from 2 tokens on */
    int64_t n_head;      /* all of them */
    int64_t width;       /* elements of a row */
    int32_t eos;
    uint64_t factor[NGRAM_MAX_TOKENS];                         /* [most_tokens] */
    uint64_t first_row[NGRAM_MAX_HEAD], n_row[NGRAM_MAX_HEAD]; /* [n_head] */
    struct store *store;                                       /* borrowed; NULL: nothing is read */
    const struct quant_info *type;                             /* these and the next: of the file's tensor */
    const char *name;
    int file;
    uint64_t offset;
    size_t row_bytes;
};

enum { MODEL_MAX_STAGE = 8 };

/* Layers that follow each other, and the device that computes them: their weights, experts and caches are there. */
struct model_stage {
    struct backend *device;  /* borrowed */
    int64_t first, end;      /* the layers are [first, end) */
    struct experts *experts; /* of these layers, one of model.devices'; NULL as model.experts */
};

/* A device of this process that has routed experts. */
struct model_device {
    struct backend *device; /* these two are borrowed */
    struct pool *pool;
    int place;                  /* its number in the division of the experts */
    struct experts *experts;    /* what it has; owned by the model, NULL until it is loaded */
    struct expert_rules *rules; /* [n_moe_layer], owned by the model; the biases lie on the device */
};

enum { CACHE_TYPES = ELEM_Q8_0 + 1 }; /* values of enum elem_type, of which caches may have some */

struct model {
    const char *arch;      /* as in arch_list.def */
    int64_t n_layer;       /* layers that are loaded: n_trunk, and those for multi-token prediction */
    int64_t n_trunk;       /* layers of the forward pass, the first ones */
    int64_t n_embd;        /* the width of the residual stream */
    int64_t n_vocab;       /* tokens in the vocabulary */
    int64_t n_ctx_train;   /* the context that the model was trained for */
    float norm_eps;        /* of all norms */
    bool has_layer_norms;  /* the norms of the residual stream take the mean away; else they are RMS norms */
    int64_t n_stream;      /* residual streams, 1 or more */
    int64_t n_stream_mix;  /* numbers that weigh them around a block: n_stream * (n_stream + 2), twice n_stream where
                              they are not mixed, or n_stream where they are gated; 0: there is one stream */
    int64_t n_stream_rank; /* of the gates of streams; 0: there are none */
    float stream_eps, stream_magnitude; /* as OP_STREAMS_IN takes these and the next */
    int64_t n_stream_iteration;
    int64_t bank_period; /* every layer whose number is a multiple of this banks the residual stream, which then begins
                            anew with what the layer's first part adds; parts and the output see a sum of the stream and
                            all banked ones; 0: no layer banks */
    int64_t n_bank;      /* layers that bank */
    int n_ratio;
    int64_t ratios[MODEL_MAX_RATIO]; /* [n_ratio] the ratios of the layers' compressed caches */
    int entry_rope;                  /* index into ropes: by which their entries are rotated */
    int n_rope;
    struct rope_table ropes[MODEL_MAX_ROPE]; /* [n_rope], what the layers' attention rotates by */

    struct weight *embed; /* [n_vocab][n_embd] */
    float embed_scale;    /* embeddings are multiplied by this */
    struct ngram_table ngram;
    /* A token's embedding for each layer is (norm(proj . x / sqrt(n_embd)) + its row of the table * sqrt(n_token_embd))
     * / sqrt(2). */
    int64_t n_token_embd;            /* elements of one; 0: there are none */
    struct weight *token_embed;      /* the table, [n_vocab][n_layer * n_token_embd] */
    struct weight *token_embed_proj; /* [n_layer * n_token_embd][n_embd] */
    struct tensor token_embed_norm;  /* [n_token_embd] */
    float residual_scale;            /* a layer's two parts are multiplied by this before they are added */
    float normed_scale; /* the normed stream, which a part sees, times this is what the part is added to; 0:
                           the stream as it is */
    struct stream_weights out_streams; /* of several streams, or of banked ones */
    struct tensor out_norm;            /* [n_embd], or as attn_norm */
    struct tensor out_norm_bias;       /* [n_embd]; may be absent */
    struct weight *output;             /* [n_vocab][n_embd]; `embed` where the file ties them */
    struct tensor output_bias;         /* [n_vocab]; may be absent */
    float logit_scale;                 /* logits are multiplied by this */
    float logit_softcap;               /* and then soft-capped, as attention's scores; 0: they are not */
    struct layer *layers;              /* [n_layer] */
    struct mtp mtp;                    /* its layers are the last ones, on the last stage's device */

    int n_stage;                                /* 1 where one device computes all layers */
    struct model_stage stages[MODEL_MAX_STAGE]; /* [n_stage], in the layers' order */

    int n_moe_layer;
    struct expert_layer *expert_layers; /* [n_moe_layer] all experts of each */
    struct experts *experts;      /* of `device`, one of `devices`; NULL where that has none: in a dense model, in a
                                     description, and where the layers run elsewhere */
    struct model_device *devices; /* [n_device]; none in a dense model and in a description */
    int n_device;
    struct division division; /* n_place 0: the experts are not divided */
    const struct moe_places
        *places; /* borrowed; the caller's to set after model_load, as places need the model. NULL: one */

    struct err cache_refusals[CACHE_TYPES]; /* why the device can't run it with caches of a type; ERR_OK: it can */

    struct backend *device; /* of the first stage; borrowed */
    struct arena arena;     /* of everything here that is an array */
    struct model_weight {
        struct backend *device;
        struct weight *weight;
    } * weights; /* [n_weights], owned */
    size_t n_weights, weights_capacity;
    struct model_adjugates {
        struct backend *device;
        struct slot_pool *slots;
        struct slot_pool_desc shape;
        int64_t n_used; /* of them, at most, by a token */
    } * adjugates;      /* [n_adjugates] of layers whose experts have some (moe.h), owned */
    int n_adjugates;
    struct model_buffer {
        struct backend *device;
        struct buffer *buffer;
    } * buffers; /* [n_buffers], owned */
    size_t n_buffers;
};

struct model_load_params {
    struct backend *device;
    /* Where several devices compute layers: the stages' devices, `device` being the first, and their ends but for the
     * last one, which has the rest. Experts are with their layers: `devices` lists the same devices, and `divide` is
     * NULL. n_stage 0: `device` computes all layers. */
    const struct model_stage *stages;
    int n_stage; /* up to MODEL_MAX_STAGE */
    struct pool *pool;
    struct store *store;        /* NULL: nothing is read, see model_load */
    bool describes_experts;     /* without a store: there are experts, which count as resident */
    bool mtp;                   /* with multi-token prediction, where the file has it and the architecture can */
    const struct log *log;      /* may be NULL */
    enum policy_kind policy;    /* this and the next three: as in struct experts_params */
    size_t expert_budget_bytes; /* of all devices together, which get it in proportion to what they have */
    double expert_budget_share;
    bool deterministic;
    /* The devices of this process that have routed experts, `device` among them unless its layers are described alone:
     * their device, pool and place. n_device 0: `device` has all of them. */
    const struct model_device *devices;
    int n_device;
    /* Says which place has which experts (division_make), once everything else has been loaded; slot_bytes [n_layer] of
     * one expert, layers being the MoE layers. NULL: the one device has them all. */
    err_code (*divide)(void *user, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                       struct division *out, struct err *e);
    void (*progress)(void *user, uint64_t done_bytes); /* called from any thread; may be NULL */
    void *user;
};

/* Loads everything: device, store and the rest of params are borrowed until model_close; the GGUF may be closed. With
 * the null device and no store, the result is the description alone, with zeros for numbers and, unless asked for,
 * without experts: every check of keys and tensors has been made, and no byte of a tensor was read.
 *
 * What the device can't run is refused with the operation's name before anything is read. What it can't run with some
 * types of caches alone, state_pool_create refuses. */
MUST_USE err_code model_load(struct model **out, const struct gguf *g, const struct model_load_params *params,
                             struct err *e);
void model_close(struct model **m);

/* The stage that computes a layer. */
const struct model_stage *model_stage_of(const struct model *m, int64_t layer);

/* The experts of a MoE layer, where it is computed; NULL as model.experts. */
struct experts *model_experts_of(const struct model *m, int moe_layer);

/* The bytes that model_load will read, for a progress display. */
uint64_t model_load_bytes(const struct gguf *g);

/* ---- state ----------------------------------------------------------------------------------------------------- */

/* Device memory that texts share for their caches and recurrent state. */
struct state_pool;

struct state_pool_params {
    enum elem_type type;         /* of caches: ELEM_F16, ELEM_F32 or, where all heads are multiples of 32, ELEM_Q8_0 */
    size_t max_bytes;            /* of all texts together; above 0 */
    int64_t interval;            /* tokens between checkpoints of texts that can't go back without; 0: there are none */
    size_t max_checkpoint_bytes; /* of checkpoints, within max_bytes */
};

/* Takes no memory yet. To be closed after all its texts and before the model. */
MUST_USE err_code state_pool_create(struct state_pool **out, const struct model *m,
                                    const struct state_pool_params *params, struct err *e);
void state_pool_close(struct state_pool **p);
/* Gives back memory that no text uses. */
void state_pool_trim(struct state_pool *p);
size_t state_pool_used_bytes(const struct state_pool *p); /* of pages that texts and checkpoints hold */
size_t state_pool_max_bytes(const struct state_pool *p);
/* What a checkpoint of a text holds at most; 0: its texts go back without. */
size_t state_pool_checkpoint_bytes(const struct state_pool *p);
/* What a text of n_ctx tokens takes at most, with what batches of n_batch need besides and without checkpoints. */
size_t state_pool_text_bytes(const struct state_pool *p, int64_t n_ctx, int64_t n_batch);

/* The same of the pages' parts on one stage's device. */
size_t state_pool_stage_bytes(const struct state_pool *p, int stage, int64_t n_ctx, int64_t n_batch);

/* One text: its position, and its pages of the pool. */
struct model_state;

/* Attention and dense feed-forward take so many tokens of a batch at a time at most: a ubatch. */
enum { MODEL_UBATCH = 512 };

/* A text of up to n_ctx tokens, which takes no pages before it has tokens. Owned by the caller. */
MUST_USE err_code model_state_create(struct model_state **out, struct state_pool *pool, int64_t n_ctx, struct err *e);
void model_state_close(struct model_state **s);
/* Another text that begins as this one, and shares its pages until one of the two writes there. */
MUST_USE err_code model_state_fork(struct model_state **out, struct model_state *from, struct err *e);
/* Makes room for n_ctx tokens, which must be more than before. After a failure the text is as it was. */
MUST_USE err_code model_state_grow(struct model_state *s, int64_t n_ctx, struct err *e);
int64_t model_state_n_ctx(const struct model_state *s);
int64_t model_state_pos(const struct model_state *s);  /* the number of tokens so far */
size_t model_state_bytes(const struct model_state *s); /* of its pages, shared or not */
/* Keeps a checkpoint, so that the text can go back later to where it is now, if it needs one for that and the pool's
 * budget allows it. The end of a prompt is a good place. */
void model_state_checkpoint(struct model_state *s);
/* Forgets all tokens from position pos on, and returns the position that the text is then at: pos, or that of the
 * nearest checkpoint before it, or 0. Full attention goes back anywhere, windowed attention by MODEL_UBATCH tokens, or
 * as far as what was loaded reaches; else, and with recurrent layers always, it takes a checkpoint. */
int64_t model_state_truncate(struct model_state *s, int64_t pos);
int64_t model_state_way_back(const struct model_state *s, int64_t pos); /* where that would go */
bool model_state_goes_back(const struct model_state *s);                /* whether all layers' is full attention */

/* What a state at position `to` has that the same text's state at `from` has not, as bytes: save hands pieces to `put`,
 * load asks `get` for the same bytes in the same order. The bytes depend on the text alone, so a state of the same
 * model and type that is at `from` may load them if `to` fits. A state is saved as it is now, or was at an earlier
 * position (model_state_save_end). */
typedef err_code model_state_bytes_fn(void *user, void *bytes, size_t n, struct err *e);
MUST_USE err_code model_state_save(const struct model_state *s, int64_t from, int64_t to, model_state_bytes_fn *put,
                                   void *user, struct err *e);
uint64_t model_state_saved_bytes(const struct model_state *s, int64_t from, int64_t to);
/* The last position of (from, to] whose state can be saved, or else the first one after `to`: where the state is now at
 * the latest. Full attention has all, windowed attention as many as going back knows, and beyond these, and with
 * recurrent layers always, there are the checkpoints. */
int64_t model_state_save_end(const struct model_state *s, int64_t from, int64_t to);
/* What is loaded counts when model_state_load_end says that it is good; before, and else, the state is as it was. A
 * failed load has ended. */
MUST_USE err_code model_state_load(struct model_state *s, int64_t to, model_state_bytes_fn *get, void *user,
                                   struct err *e);
void model_state_load_end(struct model_state *s, bool is_good);

/* ---- forward pass ---------------------------------------------------------------------------------------------- */

/* Activations of the forward pass, shared by all texts. */
struct model_work;

/* Room for batches of up to n_batch tokens, and for n_logits rows of logits. Owned by the caller, to be closed before
 * the model. */
MUST_USE err_code model_work_create(struct model_work **out, const struct model *m, int64_t n_batch, int64_t n_logits,
                                    struct err *e);
void model_work_close(struct model_work **w);
/* Makes room for batches of another size. What the last batch kept is lost. After a failure there is room for none. */
MUST_USE err_code model_work_resize(struct model_work *w, const struct model *m, int64_t n_batch, struct err *e);
/* Bytes of device memory that one more token of a batch takes. */
size_t model_work_token_bytes(const struct model_work *w);

struct model_forward_params {
    int64_t sort_cutoff;           /* as in OP_EXPERTS */
    const struct moe_trace *trace; /* may be NULL */
    bool prefetch;                 /* experts that the next layer will probably choose are read ahead of it */
    struct cancel cancel;          /* asked before each ubatch of a layer and each wave of experts; zero: never */
    /* Recurrent state is overwritten where no other text or checkpoint holds it, which spares memory's time; but texts
     * whose batch fails then go back to a checkpoint. */
    bool in_place;
    int64_t *n_done; /* counts tokens by halves of a layer that are done: in the end 2 * n_layer a token; may be NULL */
    /* Gets the residual stream [n_embd] of the batch's last token after each layer, of several the mean. Costs a
     * read-back. May be NULL. */
    void (*hidden)(void *user, int64_t layer, const float *x);
    void *hidden_user;
    bool is_complete; /* all operations of the layers are enqueued, those that this batch does not need, too */
    int64_t n_logits; /* rows of the results that model_logits is to take, with the pass: one wait for both. 0: none */
};

/* Whether some layer is recurrent. */
bool model_is_recurrent(const struct model *m);

/* What a batch adds to a text. */
struct model_rows {
    struct model_state *state; /* each text once in a batch */
    const int32_t *ids;        /* valid tokens, for which the context has room */
    int64_t n;                 /* how many, 1 or more */
    int64_t n_out;             /* the last 0..n of them keep the last layer's result, for model_logits */
    struct car car;            /* zero: no substitutes */
    bool is_decode;            /* the token was sampled: it may have substitutes */
    bool is_draft;             /* the tokens may be taken back (model_go_back): at most MODEL_MAX_DRAFT */
};

enum { MODEL_MAX_DRAFT = 64 };

/* Appends a batch to n_rows texts, n_batch tokens together at most. The results that were asked for stay in work space,
 * in the order of rows. On failure all texts are as before (but see in_place); ERR_LIMIT where the pool has no room. */
MUST_USE err_code model_forward(const struct model *m, struct model_work *w, const struct model_forward_params *p,
                                const struct model_rows *rows, int64_t n_rows, struct err *e);

/* Computes the logits of rows [first, first + n) of those kept by the last model_forward, n up to n_logits, into work
 * space, where they stay until the next call. */
void model_logits(const struct model *m, struct model_work *w, int64_t first, int64_t n);
/* Row i of these (0..n-1) into host memory [n_vocab]. */
MUST_USE err_code model_logits_row(const struct model_work *w, int64_t i, float *logits, struct err *e);

/* A text whose next token is chosen, and guesses of those after it. */
struct model_guess {
    struct model_state *state; /* each text once */
    int64_t most;              /* guesses at most: the context has room for as many */
    int32_t *ids;              /* [most] gets the guesses */
    float *likely;             /* [most] how likely it is that a guess and all before it are right; may be NULL */
    int64_t n;                 /* gets the number of guesses */
    int32_t id;                /* the chosen token, which is not part of the text yet */
    float least;               /* guessing ends when it is less likely than this that all guesses are right */
};

enum { MODEL_MAX_GUESS = 64 };

/* Guesses how up to MODEL_MAX_GUESS texts go on, n_batch at most, by multi-token prediction, which the model must have.
 * No text changes, and the results that the last model_forward kept are lost. Without room in the pool, there are no
 * guesses. */
MUST_USE err_code model_guess(const struct model *m, struct model_work *w, const struct model_forward_params *p,
                              struct model_guess *guesses, int64_t n, struct err *e);

/* As model_state_truncate; but where the tokens from pos on were drafts of the last batch with drafts that this work
 * space saw, and the text's own last one, the text goes back to pos exactly: recurrent layers take the others' inputs,
 * which were kept, once more, and nothing is multiplied with weights. */
int64_t model_go_back(const struct model *m, struct model_work *w, struct model_state *s, int64_t pos);

#endif
