#include <string.h>

#include "gguf/gguf.h"

/* FNV-1a, 64 bits. */
static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

static uint64_t mix_number(uint64_t h, uint64_t v)
{
    for (int i = 0; i < 8; i++, v >>= 8)
        h = mix(h, &(unsigned char){(unsigned char)v}, 1);
    return h;
}

uint64_t gguf_fingerprint(const struct gguf *g)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < gguf_n_files(g); i++)
        h = mix_number(h, gguf_file_bytes(g, i));
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        h = mix(h, t->name, strlen(t->name) + 1);
        h = mix_number(h, t->type_id);
        h = mix_number(h, t->offset);
        for (int d = 0; d < GGUF_MAX_DIMS; d++)
            h = mix_number(h, t->ne[d]);
    }
    return h;
}
