#include "engine/sized.h"

#include <string.h>

err_code sized_take(void *to, size_t to_bytes, const void *from, size_t from_bytes, const char *name, struct err *e)
{
    const char *p = from;
    for (size_t i = to_bytes; p && i < from_bytes; i++)
        if (p[i])
            return err_set(e, ERR_USAGE, "%s of %zu bytes: this version of the library knows the first %zu", name,
                           from_bytes, to_bytes);
    if (p)
        memcpy(to, p, from_bytes < to_bytes ? from_bytes : to_bytes);
    return ERR_OK;
}

err_code sized_take_list(struct arena *arena, const void **out, size_t to_bytes, const void *from, size_t from_bytes,
                         size_t n, const char *name, struct err *e)
{
    *out = from;
    if (from_bytes == to_bytes)
        return ERR_OK;
    char *to = arena_calloc(arena, n, to_bytes);
    *out = to;
    if (!to)
        return err_nomem(e, n * to_bytes, name);
    for (size_t i = 0; i < n; i++)
        TRY(sized_take(to + i * to_bytes, to_bytes, (const char *)from + i * from_bytes, from_bytes, name, e));
    return ERR_OK;
}

void sized_give(void *to, size_t to_bytes, const void *from, size_t from_bytes)
{
    memset(to, 0, to_bytes);
    memcpy(to, from, from_bytes < to_bytes ? from_bytes : to_bytes);
}
