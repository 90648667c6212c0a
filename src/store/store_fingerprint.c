#include <assert.h>

#include "base/mem.h"
#include "store/store_internal.h"

enum { END_BYTES = 64 };

err_code store_fingerprint(struct store *s, uint64_t *out, struct err *e)
{
    assert(s->gguf);
    size_t n = (size_t)gguf_n_tensors(s->gguf);
    char(*ends)[2][END_BYTES] = mem_calloc(n + 1, sizeof *ends); /* [n] */
    struct store_range(*ranges)[2] = mem_calloc(n + 1, sizeof *ranges);
    err_code code = ERR_OK;
    *out = gguf_file_fingerprint(s->gguf);
    if (!ends || !ranges)
        code = err_nomem(e, n * (sizeof *ends + sizeof *ranges), "a model's fingerprint");
    for (size_t i = 0; i < n && code == ERR_OK; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(s->gguf, i);
        size_t n_bytes = t->n_bytes < END_BYTES ? (size_t)t->n_bytes : END_BYTES;
        ranges[i][0] = store_tensor_part(t, 0, n_bytes, ends[i][0]);
        ranges[i][1] = store_tensor_part(t, t->n_bytes - n_bytes, n_bytes, ends[i][1]);
    }
    if (code == ERR_OK)
        code = store_read(s, ranges[0], 2 * n, e);
    if (code == ERR_OK)
        *out = gguf_mix(*out, ends, n * sizeof *ends);
    mem_free(ranges);
    mem_free(ends);
    return code;
}
