/* The input of a plan: a model's numbers, as the code that loads and runs the model computes them, and the settings of
 * the run to be planned. Plain data; whoever fills it in owns what it points to. */
#ifndef PLANNER_FACTS_H
#define PLANNER_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "planner/gate.h"
#include "quant/quant.h"

enum { FACTS_NAME_BYTES = 128, FACTS_MAX_CACHE = 8, FACTS_MAX_CTX = 24, FACTS_N_KV = 3, FACTS_MAX_TYPE = 16 };

/* Multiply-adds with weights of one type. */
struct plan_product {
    int type; /* of ggml */
    double n;
};

/* Work: bytes to read, and multiply-adds. */
struct plan_cost {
    double n_bytes;
    double n_float;                               /* multiply-adds of attention and recurrent state */
    struct plan_product products[FACTS_MAX_TYPE]; /* [n_product] each type once */
    int n_product;
};

/* A layer with routed experts. */
struct plan_layer {
    int64_t n_expert, n_used;
    uint64_t slot_bytes;     /* memory of one expert */
    struct plan_cost expert; /* one expert's bytes, and one token's multiply-adds with it */
};

/* All layers whose caches have the same window, together. */
struct plan_cache {
    int64_t window; /* positions that a token sees at most; 0: all */
    double n_bytes; /* bytes read for each position that a token sees */
    double n_float; /* multiply-adds on floats for each position that a token sees */
};

/* The numbers that depend on the type of the key-value caches. */
struct plan_kv {
    const char *name;                          /* "f16": the value of --kv */
    bool works;                                /* the model can run with this type */
    struct plan_cache caches[FACTS_MAX_CACHE]; /* [n_cache] */
    int n_cache;
    uint64_t text_bytes[FACTS_MAX_CTX]; /* most bytes of a text's state, for each of plan_facts.n_ctx */
};

struct plan_facts {
    char name[FACTS_NAME_BYTES], arch[FACTS_NAME_BYTES];
    uint64_t fingerprint, file_bytes;
    int n_file;
    bool is_header; /* the file has its header, but not all bytes of the tensors */
    int64_t n_layer, n_vocab, n_ctx_train;
    const struct plan_layer *layers; /* [n_moe] */
    int n_moe;
    struct plan_cost token;              /* one token's work, without its experts, logits and recurrent state */
    struct plan_cost output;             /* the logits of one token */
    struct plan_cost recurrent;          /* reading and writing a text's recurrent state for one token */
    uint64_t process_bytes;              /* memory of the program with vocabulary and tables */
    uint64_t weight_bytes;               /* all weights but the routed experts */
    uint64_t least_slot_bytes;           /* memory for experts without which nothing can run */
    uint64_t work_bytes, work_few_bytes; /* activations of a whole batch, and of a pass of n_few tokens */
    int64_t n_few;                       /* a pass of so many tokens takes little memory beside a prompt's */
    int64_t n_logits;                    /* rows of logits within work_bytes, and within work_few_bytes */
    uint64_t scratch_bytes;              /* estimate of what operations keep besides their results */
    uint64_t checkpoint_bytes;           /* most bytes of one checkpoint of a text; 0: texts need none to go back */
    int64_t n_ctx[FACTS_MAX_CTX];        /* [n_n_ctx] the context lengths that were sized, ascending */
    int n_n_ctx;
    struct plan_kv kv[FACTS_N_KV];
    /* [n_mass] mass[i]: the share of choices that fell on the i + 1 experts chosen most, over all layers; NULL: not
     * known. */
    const double *mass;
    int64_t n_mass;
    const struct gate_curve *curve; /* measured hit rates of slots (moebius profile --gate); NULL: not known */
    int64_t n_unprepared;           /* experts that the prepared store lacks, if there is a store */
};

/* How a GPU and the processor divide the experts, or several GPUs the layers. */
enum plan_split {
    PLAN_SPLIT_LAST,  /* the processor computes the experts of the last layers, the GPU all others */
    PLAN_SPLIT_SHARE, /* the experts of each layer are divided */
    PLAN_SPLIT_CACHE, /* the processor has all experts, the GPU copies of those chosen most */
    PLAN_SPLIT_STAGES /* each GPU has as many layers as its memory holds; they compute one after the other */
};

enum { FACTS_MAX_DRIVE = 8 };

/* The settings of the run to be planned. */
struct plan_settings {
    int64_t n_ctx;        /* context length, one of plan_facts.n_ctx; 0: the plan chooses the longest that works well */
    int64_t n_ctx_most;   /* the longest that the plan may choose */
    int64_t n_depth;      /* tokens in the context for which decode is forecast; 0: n_ctx */
    uint64_t own_bytes;   /* memory that the process has already, in addition to what is free */
    uint64_t state_bytes; /* most memory for texts' state; 0: as there is room */
    int64_t n_texts_most; /* most texts that may be there at once as room permits; 0: n_texts */
    int64_t n_texts;      /* texts that decode together */
    int64_t n_batch;      /* prompt tokens that are computed together */
    int64_t n_prompt;     /* length of the prompt for which prefill is forecast */
    int64_t prompt_from;  /* tokens in the context before that prompt */
    int n_threads;
    int kv;                /* index into plan_facts.kv */
    uint64_t ram_bytes;    /* memory that the process may take; 0: what the machine has free */
    uint64_t least_bytes;  /* memory that is known to be needed at least; 0: the plan computes it */
    uint64_t place_bytes;  /* part of the memory that devices beside the first need to compute experts there */
    uint64_t expert_bytes; /* part of the memory that experts may take; 0: expert_share decides */
    double expert_share;   /* share of each device's experts that may have memory; 0: as there is room */
    uint64_t vram_bytes;   /* memory of each GPU that may be taken; 0: what it has free */
    bool is_running;       /* GPU drivers have taken what they need already, so it is not counted again */
    bool uses_gpu;         /* the layers run on the machine's first GPU */
    int n_gpu;             /* PLAN_SPLIT_STAGES: the layers run on the first n_gpu GPUs */
    int n_cpu_moe;         /* layers whose experts stay in the machine's memory; -1: the fewest that fit */
    enum plan_split split;
    double gpu_share; /* PLAN_SPLIT_SHARE, PLAN_SPLIT_CACHE: share of experts on the GPU; 0: as there is room */
    int drives[FACTS_MAX_DRIVE]; /* [n_drive] the machine's drives that experts are read from in parallel; -1: one that
                                    was not measured */
    int n_drive;                 /* 0: the fastest drive of the machine */
    bool is_prepared;            /* the drives have a prepared store, which gives experts whole */
    double car;                  /* threshold of cache-aware routing; 0: off */
    /* Measured shares of the choices that are found on the GPU, in memory and on drives. If they sum to less than 1,
     * cache-aware routing replaces the rest. All 0: the plan estimates them. */
    double found_vram, found_ram, found_drive;
    /* With several ranks: the share of experts that rank 0 has, and the share that the rank with most to do computes.
     * Both 0: equal shares. */
    double rank_part, rank_most;
    int64_t sort_cutoff; /* what moebius tune found for the model; 0: it was not measured here */
    double floor;        /* tokens a second that decode must be able to reach; 0: no floor */
    const char *given;   /* a run's further options for a shell, each after a space; borrowed; NULL: none */
};

#endif
