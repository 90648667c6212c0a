/* What a plan starts from: a model's numbers, as the code that loads and runs it gave them, and what a run is asked to
 * do. Pure data; whoever fills it owns what it points to. */
#ifndef PLANNER_FACTS_H
#define PLANNER_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "planner/gate.h"
#include "quant/quant.h"

enum { FACTS_NAME_BYTES = 128, FACTS_MAX_CACHE = 8, FACTS_MAX_CTX = 24, FACTS_N_KV = 3, FACTS_MAX_TYPE = 16 };

/* Multiply-adds with weights of a type. */
struct plan_product {
    int type;
    double n;
};

/* Bytes to be read, and multiply-adds. */
struct plan_cost {
    double n_bytes;
    double n_float;                               /* of attention and recurrent state */
    struct plan_product products[FACTS_MAX_TYPE]; /* [n_product] each type once */
    int n_product;
};

/* A layer with routed experts. */
struct plan_layer {
    int64_t n_expert, n_used;
    uint64_t slot_bytes;     /* memory of one expert */
    struct plan_cost expert; /* one expert's bytes, and one token's multiply-adds with it */
};

/* Layers whose caches have one window. Of each position that a token sees: */
struct plan_cache {
    int64_t window;          /* positions that a token sees at most; 0: all */
    double n_bytes, n_float; /* that are read, and multiply-adds on floats */
};

/* What depends on the type of the caches. */
struct plan_kv {
    const char *name;                          /* "f16", as --kv has it */
    bool works;                                /* the model runs with it */
    struct plan_cache caches[FACTS_MAX_CACHE]; /* [n_cache] */
    int n_cache;
    uint64_t text_bytes[FACTS_MAX_CTX]; /* a text's state at most, for each of plan_facts.n_ctx */
};

struct plan_facts {
    char name[FACTS_NAME_BYTES], arch[FACTS_NAME_BYTES];
    uint64_t fingerprint, file_bytes;
    int n_file;
    bool is_header; /* the tensors' bytes are not there, or not all */
    int64_t n_layer, n_vocab, n_ctx_train;
    const struct plan_layer *layers; /* [n_moe] */
    int n_moe;
    struct plan_cost token, output, recurrent; /* a token's products but for experts and logits; its logits'; its
                                                  recurrent state, read and written */
    uint64_t process_bytes;                    /* the program with vocabulary and tables */
    uint64_t weight_bytes;                     /* everything but routed experts */
    uint64_t least_slot_bytes;                 /* of experts, the least that works */
    uint64_t work_bytes, work_few_bytes;       /* activations of a batch, and of one of n_few tokens */
    int64_t n_few;                             /* tokens of a pass that takes little memory beside a prompt's */
    int64_t n_logits;                          /* rows of logits in both */
    uint64_t scratch_bytes;                    /* about what operations keep besides */
    uint64_t checkpoint_bytes;                 /* one checkpoint of a text at most; 0: texts go back without */
    int64_t n_ctx[FACTS_MAX_CTX];              /* [n_n_ctx] lengths of texts, ascending */
    int n_n_ctx;
    struct plan_kv kv[FACTS_N_KV];
    /* The share of choices that fell on the i + 1 experts chosen most, over all layers, [n_mass]; NULL: not known. */
    const double *mass;
    int64_t n_mass;
    const struct gate_curve *curve; /* what slots find, as a text's routing showed; NULL: not known */
    int64_t n_unprepared;           /* experts that the prepared store does not have, if there is one */
};

/* How a GPU and the processor divide the experts, or several GPUs the layers. */
enum plan_split {
    PLAN_SPLIT_LAST,  /* the last layers' experts are the processor's */
    PLAN_SPLIT_SHARE, /* each layer's are divided */
    PLAN_SPLIT_CACHE, /* the processor has them all, the GPU copies of what is hot */
    PLAN_SPLIT_STAGES /* GPUs have layers as they have memory, and compute one after the other */
};

enum { FACTS_MAX_DRIVE = 8 };

/* What a run is asked to do. */
struct plan_settings {
    int64_t n_ctx;        /* one of plan_facts.n_ctx; 0: the plan chooses the longest that works well */
    int64_t n_ctx_most;   /* where it chooses: tokens at most */
    int64_t n_depth;      /* tokens in the context for which decode is forecast; 0: all of it */
    uint64_t own_bytes;   /* that the process has of the machine's memory already, beside what is free */
    uint64_t state_bytes; /* for texts' state at most; 0: as there is room */
    int64_t n_texts_most; /* that may be there at once as room permits; 0: no more than n_texts */
    int64_t n_texts;      /* that decode together */
    int64_t n_batch;      /* prompt tokens that are computed together */
    int64_t n_prompt;     /* tokens of the prompt for which prefill is forecast */
    int64_t prompt_from;  /* tokens in the context before it */
    int n_threads;
    int kv;                /* index of plan_facts.kv */
    uint64_t ram_bytes;    /* that the process may take; 0: what the machine has free */
    uint64_t least_bytes;  /* of it, that is known to be needed at least; 0: as the plan finds */
    uint64_t place_bytes;  /* of it, what devices beside the first take to compute experts there */
    uint64_t expert_bytes; /* of it, that experts may take; 0: as expert_share says */
    double expert_share;   /* of each device's experts, those that may have memory; 0: as there is room */
    uint64_t vram_bytes;   /* of each GPU; 0: what it has free */
    bool is_running;       /* drivers have what they need: none of it is free */
    bool uses_gpu;         /* the layers run on the machine's first GPU */
    int n_gpu;             /* of PLAN_SPLIT_STAGES: on the first so many */
    int n_cpu_moe;         /* layers whose experts stay in memory; -1: the least that fits */
    enum plan_split split;
    double gpu_share;            /* of a split of each layer: of all experts, those on the GPU; 0: as there is room */
    int drives[FACTS_MAX_DRIVE]; /* [n_drive] the machine's, from which experts come together; -1: one not measured */
    int n_drive;                 /* 0: the fastest one */
    bool is_prepared;            /* experts come whole from there, as a prepared store has them */
    double car;                  /* threshold of cache-aware routing; 0: off */
    /* Of choices, those found on the GPU, in memory and on drives, as somebody measured; what lacks of 1 gives way to
     * experts that are at hand. All 0: the plan finds them. */
    double found_vram, found_ram, found_drive;
    /* Of several ranks: of the experts, the part that rank 0 has, and the one that the rank with most to do computes.
     * Both 0: equal parts. */
    double rank_part, rank_most;
    int64_t sort_cutoff; /* that moebius tune kept for the model; 0: it was not measured here */
    double floor;        /* tokens a second that decode must be able to reach; 0: none */
};

#endif
