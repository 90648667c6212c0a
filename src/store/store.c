#include "store/store.h"

#include <assert.h>

#include "base/clock.h"
#include "store/store_internal.h"

err_code store_read(struct store *s, const struct store_range *ranges, size_t n, struct err *e)
{
    int64_t start_ns = clock_ns();
    err_code code = ERR_OK;
    uint64_t n_bytes = 0;
    size_t i;
    if (n > 1 && s->ops->prefetch)
        s->ops->prefetch(s, ranges, n);
    for (i = 0; i < n; i++) {
        code = s->ops->read(s, &ranges[i], e);
        if (code != ERR_OK)
            break;
        n_bytes += ranges[i].n_bytes;
    }
    atomic_fetch_add_explicit(&s->n_reads, i, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->n_bytes, n_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->n_ns, (uint64_t)(clock_ns() - start_ns), memory_order_relaxed);
    return code;
}

struct store_range store_tensor_part(const struct gguf_tensor *t, uint64_t offset, size_t n_bytes, void *dst)
{
    assert(offset <= t->n_bytes && n_bytes <= t->n_bytes - offset);
    return (struct store_range){.file = t->file, .offset = t->offset + offset, .n_bytes = n_bytes, .dst = dst};
}

struct store_range store_tensor_range(const struct gguf_tensor *t, void *dst)
{
    return store_tensor_part(t, 0, (size_t)t->n_bytes, dst);
}

struct store_counters store_get_counters(const struct store *s)
{
    return (struct store_counters){
        .n_reads = atomic_load_explicit(&s->n_reads, memory_order_relaxed),
        .n_bytes = atomic_load_explicit(&s->n_bytes, memory_order_relaxed),
        .n_ns = atomic_load_explicit(&s->n_ns, memory_order_relaxed),
    };
}

void store_close(struct store **s)
{
    if (*s)
        (*s)->ops->close(*s);
    *s = NULL;
}
