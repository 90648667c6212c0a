/* What tells one model from another: 32 bits of its numbers, its tensors' names, types and shapes, and how each of
 * them begins (so that the fine-tunes of a model differ). */
#include <string.h>

#include "base/crc32c.h"
#include "engine/engine_internal.h"

enum { HEAD_BYTES = 64 };

/* Bytes of a plain value; 0 for strings and arrays. */
static size_t value_bytes(enum gguf_value_type type)
{
    static const unsigned char sizes[GGUF_N_VALUE_TYPE] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_BOOL] = 1, [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4,
        [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_U64] = 8,  [GGUF_I64] = 8, [GGUF_F64] = 8};
    return sizes[type];
}

static uint32_t add_value(uint32_t crc, const struct gguf_value *v)
{
    uint64_t bits = v->type == GGUF_BOOL ? v->u & 1 : v->u; /* all plain values share their place */
    if (v->type == GGUF_STRING)
        return crc32c(crc, v->str.s, v->str.n);
    if (v->type == GGUF_ARRAY)
        return crc32c(crc, v->arr.data, (size_t)v->arr.n * value_bytes(v->arr.type));
    return crc32c(crc, &bits, sizeof bits);
}

/* The keys of the architecture: "ARCH.attention.sliding_window" and so on. */
static uint32_t add_numbers(uint32_t crc, const struct gguf *g, const char *arch)
{
    size_t n = strlen(arch);
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        if (kv->key.n > n && !memcmp(kv->key.s, arch, n) && kv->key.s[n] == '.')
            crc = add_value(crc32c(crc, kv->key.s, kv->key.n), &kv->value);
    }
    return crc;
}

err_code engine_fingerprint(moebius_engine *g, uint32_t *out, struct err *e)
{
    if (g->has_fingerprint) {
        *out = g->fingerprint;
        return ERR_OK;
    }
    uint32_t crc = add_numbers(0, g->gguf, g->model->arch);
    for (uint64_t i = 0; i < gguf_n_tensors(g->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g->gguf, i);
        char head[HEAD_BYTES];
        struct store_range r =
            store_tensor_part(t, 0, t->n_bytes < sizeof head ? (size_t)t->n_bytes : sizeof head, head);
        TRY(store_read(g->store, &r, 1, e));
        crc = crc32c(crc, t->name, strlen(t->name));
        crc = crc32c(crc, t->ne, sizeof t->ne);
        crc = crc32c(crc, &t->type_id, sizeof t->type_id);
        crc = crc32c(crc, head, r.n_bytes);
    }
    *out = g->fingerprint = crc;
    g->has_fingerprint = true;
    return ERR_OK;
}
