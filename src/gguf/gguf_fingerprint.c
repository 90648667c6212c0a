#include <string.h>

#include "gguf/gguf_internal.h"

/* FNV-1a, 64 bits. */
uint64_t gguf_mix(uint64_t h, const void *p, size_t n)
{
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

static uint64_t mix_number(uint64_t h, uint64_t v)
{
    for (int i = 0; i < 8; i++, v >>= 8)
        h = gguf_mix(h, &(unsigned char){(unsigned char)v}, 1);
    return h;
}

/* Arrays of strings and of arrays don't count. */
static uint64_t mix_value(uint64_t h, const struct gguf_value *v)
{
    if (v->type == GGUF_STRING)
        return gguf_mix(h, v->str.s, v->str.n);
    if (v->type == GGUF_ARRAY)
        return gguf_mix(h, v->arr.data, (size_t)v->arr.n * gguf_value_type_bytes(v->arr.type));
    return mix_number(h, v->type == GGUF_BOOL ? v->u & 1 : v->u); /* all scalars share a union */
}

/* The keys of the architecture: "ARCH.attention.sliding_window" and so on. */
static uint64_t mix_facts(uint64_t h, const struct gguf *g)
{
    const struct gguf_value *arch = gguf_find(g, "general.architecture");
    if (!arch || arch->type != GGUF_STRING)
        return h;
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        if (kv->key.n > arch->str.n && !memcmp(kv->key.s, arch->str.s, arch->str.n) && kv->key.s[arch->str.n] == '.')
            h = mix_value(gguf_mix(h, kv->key.s, kv->key.n), &kv->value);
    }
    return h;
}

uint64_t gguf_fingerprint(const struct gguf *g)
{
    uint64_t h = mix_facts(0xcbf29ce484222325u, g);
    for (int i = 0; i < gguf_n_files(g); i++)
        h = mix_number(h, gguf_file_bytes(g, i));
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        h = gguf_mix(h, t->name, strlen(t->name) + 1);
        h = mix_number(h, t->type_id);
        h = mix_number(h, t->offset);
        for (int d = 0; d < GGUF_MAX_DIMS; d++)
            h = mix_number(h, t->ne[d]);
    }
    return h;
}
