/* What a parsed view says of its files, keys and tensors. */
#include "gguf/gguf_internal.h"

#include <string.h>

int gguf_version(const struct gguf *g)
{
    return (int)g->files[0].version;
}

int gguf_n_files(const struct gguf *g)
{
    return g->n_files;
}

const char *gguf_file_path(const struct gguf *g, int file)
{
    return g->files[file].path;
}

uint64_t gguf_file_bytes(const struct gguf *g, int file)
{
    return g->files[file].n_bytes;
}

uint64_t gguf_alignment(const struct gguf *g)
{
    return g->files[0].alignment;
}

uint64_t gguf_n_kv(const struct gguf *g)
{
    return g->files[0].n_kv;
}

const struct gguf_kv *gguf_kv_at(const struct gguf *g, uint64_t i)
{
    return &g->files[0].kv[i];
}

const struct gguf_value *gguf_file_find(const struct gguf_file *f, const char *key)
{
    int64_t i = gguf_index_find(&f->keys, key, strlen(key));
    if (i == GGUF_INDEX_NONE)
        return NULL;
    if (f->origins && atomic_load(&f->origins[i]) == GGUF_GIVEN)
        atomic_store(&f->origins[i], GGUF_GIVEN_AND_READ);
    return &f->kv[i].value;
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    return gguf_file_find(&g->files[0], key);
}

uint64_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    int64_t i = gguf_index_find(&g->names, name, strlen(name));
    return i == GGUF_INDEX_NONE ? NULL : &g->tensors[i];
}
