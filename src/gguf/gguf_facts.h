/* What a model costs, computed from its GGUF directory alone: layers, experts, and which bytes belong to
 * what.
 *
 * A pure function of the view; the planner and `moebius inspect` read the result. Nothing is assumed from a
 * model's name: experts are recognised by their tensors (blk.N.ffn_{gate,up,down,gate_up}_exps.*, whose last
 * dimension is the number of experts), the rest by the metadata. Files that are no language model give facts
 * that are mostly zero. Tensors of a type that this build does not know count no bytes; n_unknown says how
 * many there are. */
#ifndef GGUF_GGUF_FACTS_H
#define GGUF_GGUF_FACTS_H

#include "base/mem.h"
#include "gguf/gguf.h"

/* What a tensor is for. Each tensor has one use; layers of multi-token prediction ("nextn") are counted
 * apart, because plain decoding does not touch them. */
enum gguf_use {
    GGUF_USE_EMBEDDING, /* token_embd and its like: a token reads one row */
    GGUF_USE_OUTPUT,    /* output, output_norm */
    GGUF_USE_ATTENTION, /* attention and recurrent mixing, with their norms */
    GGUF_USE_DENSE_FFN,
    GGUF_USE_ROUTER,
    GGUF_USE_SHARED_EXPERT,
    GGUF_USE_ROUTED_EXPERT,
    GGUF_USE_NEXTN,
    GGUF_USE_OTHER, /* norms around the feed-forward part, scales, tables */
    GGUF_N_USE
};

const char *gguf_use_name(enum gguf_use use);

/* Embeddings of n-grams, of which rows are read from the file as tokens need them; NULL: the model has none. */
const struct gguf_tensor *gguf_ngram_table(const struct gguf *g);

/* What a tensor is for, by its name alone (never NEXTN), and its layer, -1 when it is of none. */
enum gguf_use gguf_tensor_use(const struct gguf_tensor *t, int *layer);

struct model_layer_facts {
    uint32_t n_expert, n_expert_used; /* 0: a layer without experts */
    uint32_t n_ff_exp;                /* width of a routed expert */
    uint32_t n_ff_shexp;              /* width of the shared expert(s) together; 0: none */
    bool is_nextn;
    bool has_dense_ffn;      /* beside experts, too */
    uint64_t expert_bytes;   /* one routed expert: all its tensors' slices */
    uint64_t adjugate_bytes; /* the same of a small one that some of these share (ffn_*_chexps); 0: there is none */
    uint64_t routed_bytes;   /* all routed experts */
    uint64_t other_bytes;    /* everything else of the layer, shared experts included */
};

struct model_type_facts {
    uint32_t type_id;
    const struct quant_info *info; /* NULL: unknown */
    uint64_t n_tensors, n_weights, n_bytes;
};

struct model_facts {
    struct gguf_string architecture, name; /* borrowed from the view; empty when absent */
    uint32_t n_layer;                      /* all of them: dense, MoE, nextn, and those that only mix tokens */
    uint32_t n_layer_dense, n_layer_moe, n_layer_nextn, n_layer_mixing;
    uint32_t n_embd, n_ctx_train, n_vocab;
    uint32_t n_expert, n_expert_used; /* the largest of any layer */
    uint32_t n_expert_shared;         /* as the metadata says; widths are the layers' */
    uint32_t n_ff_exp_min, n_ff_exp_max, n_ff_shexp_min, n_ff_shexp_max; /* over layers that have them, not nextn */
    uint64_t expert_bytes_min, expert_bytes_max;                         /* over MoE layers, not nextn */
    bool is_tied; /* no output matrix: the embedding is read as one */
    uint64_t use_bytes[GGUF_N_USE], n_bytes, n_weights;
    uint64_t ngram_bytes;    /* of a table of n-grams (gguf_ngram_table), beside use_bytes; 0: there is none */
    uint64_t resident_bytes; /* all that plain decoding uses except routed experts and a table of n-grams */
    uint64_t token_bytes;    /* read to decode one token: see gguf_facts.c */
    uint64_t token_use_bytes[GGUF_N_USE];
    uint64_t n_unknown;               /* tensors of unknown types */
    struct model_layer_facts *layers; /* n_layer */
    struct model_type_facts *types;   /* most bytes first */
    size_t n_types;
    struct arena arena; /* owns layers and types */
};

/* The view must outlive the facts. Fails when metadata and tensors contradict each other, and leaves *f
 * closed. */
MUST_USE err_code gguf_facts_compute(struct model_facts *f, const struct gguf *g, struct err *e);
void gguf_facts_close(struct model_facts *f);

#endif
