/* What an engine and a session are made of. */
#ifndef ENGINE_ENGINE_INTERNAL_H
#define ENGINE_ENGINE_INTERNAL_H

#include "base/log.h"
#include "base/pool.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "moebius/moebius.h"
#include "store/store.h"
#include "tokenizer/tokenizer.h"

struct moebius_vocab {
    struct tokenizer *tokenizer;
};

struct moebius_engine {
    struct pool *pool;
    const struct kernels *kernels; /* of the CPU device */
    struct gguf *gguf;
    struct store *store;
    struct backend *device;
    struct model *model;
    struct moebius_vocab vocab;
    struct log log;
    moebius_engine_options options;
    uint64_t total_bytes; /* for progress */
    bool has_fingerprint; /* once somebody wanted it */
    uint32_t fingerprint;
};

struct moebius_session {
    moebius_engine *engine;
    struct model_state *state;
    struct model_work *work;
    int64_t n_batch;
    moebius_kv_type kv;
    int32_t *ids; /* [n_ctx]; those up to the state's position are the text */
    size_t ids_bytes;
    float *logits; /* [n_vocab][n], a few rows; the last eval's last row is `last` */
    size_t logits_bytes;
    const float *last;
    moebius_trace trace;
    struct moe_trace moe_trace;
    struct model_forward_params forward;
};

/* 32 bits that tell models apart. */
MUST_USE err_code engine_fingerprint(moebius_engine *g, uint32_t *out, struct err *e);

/* Hands an internal error out through the public struct; returns its status. */
moebius_status engine_status(err_code code, const struct err *e, moebius_error *out);

#endif
