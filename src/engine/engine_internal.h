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
};

/* Hands an internal error out through the public struct; returns its status. */
moebius_status engine_status(err_code code, const struct err *e, moebius_error *out);

#endif
