/* A GGUF file as lists of keys and tensors, which a test changes and writes again. */
#ifndef TESTS_MODEL_EDIT_H
#define TESTS_MODEL_EDIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "model/model.h"
#include "whole_files.h"

enum { MODEL_EDIT_SPARE = 64 }; /* keys, and tensors, that may be added */

struct model_edit_tensor {
    const char *name;
    int n_dims;
    uint64_t ne[GGUF_MAX_DIMS];
    uint32_t type;
    const void *data;
};

struct model_edit {
    struct arena arena;
    struct gguf_kv *keys;
    size_t n_key;
    struct model_edit_tensor *tensors;
    size_t n_tensor;
};

/* Copies what a value points to. */
static inline struct gguf_value model_edit_copy(struct arena *arena, const struct gguf_value *from)
{
    static const size_t bytes[GGUF_N_VALUE_TYPE] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    struct gguf_value v = *from;
    if (v.type == GGUF_STRING)
        v.str.s = arena_strndup(arena, from->str.s, from->str.n);
    if (v.type != GGUF_ARRAY)
        return v;
    size_t size = bytes[v.arr.type] ? bytes[v.arr.type] : sizeof(struct gguf_string);
    void *data = arena_alloc(arena, v.arr.n * size + 1);
    memcpy(data, from->arr.data, v.arr.n * size);
    v.arr.data = data;
    if (v.arr.type == GGUF_STRING)
        for (uint64_t i = 0; i < v.arr.n; i++) {
            struct gguf_string *s = (struct gguf_string *)data + i;
            s->s = arena_strndup(arena, s->s, s->n);
        }
    return v;
}

static inline void model_edit_open(struct model_edit *m, const char *path)
{
    struct err e;
    struct gguf *g;
    size_t n;
    *m = (struct model_edit){0};
    char *file = read_file(path, &n);
    const char *bytes = arena_strndup(&m->arena, file, n);
    free(file);
    assert_int_equal(gguf_open_memory(&g, bytes, n, path, &e), ERR_OK);
    m->keys = arena_calloc(&m->arena, gguf_n_kv(g) + MODEL_EDIT_SPARE, sizeof *m->keys);
    m->tensors = arena_calloc(&m->arena, gguf_n_tensors(g) + MODEL_EDIT_SPARE, sizeof *m->tensors);
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        m->keys[m->n_key].key = (struct gguf_string){arena_strndup(&m->arena, kv->key.s, kv->key.n), kv->key.n};
        m->keys[m->n_key++].value = model_edit_copy(&m->arena, &kv->value);
    }
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        struct model_edit_tensor *to = &m->tensors[m->n_tensor++];
        *to = (struct model_edit_tensor){.name = arena_strndup(&m->arena, t->name, strlen(t->name)),
                                         .n_dims = t->n_dims,
                                         .type = t->type_id,
                                         .data = bytes + t->offset};
        memcpy(to->ne, t->ne, sizeof to->ne);
    }
    gguf_close(&g);
}

static inline void model_edit_close(struct model_edit *m)
{
    arena_close(&m->arena);
}

static inline struct gguf_value *model_edit_find(struct model_edit *m, const char *key)
{
    for (size_t i = 0; i < m->n_key; i++)
        if (!strcmp(m->keys[i].key.s, key))
            return &m->keys[i].value;
    return NULL;
}

static inline void model_edit_set(struct model_edit *m, const char *key, struct gguf_value v)
{
    struct gguf_value *old = model_edit_find(m, key);
    if (!old) {
        m->keys[m->n_key].key = (struct gguf_string){arena_strndup(&m->arena, key, strlen(key)), strlen(key)};
        old = &m->keys[m->n_key++].value;
    }
    *old = model_edit_copy(&m->arena, &v);
}

static inline void model_edit_set_u32(struct model_edit *m, const char *key, uint32_t v)
{
    model_edit_set(m, key, (struct gguf_value){.type = GGUF_U32, .u = v});
}

static inline void model_edit_set_f32(struct model_edit *m, const char *key, double v)
{
    model_edit_set(m, key, (struct gguf_value){.type = GGUF_F32, .f = v});
}

static inline void model_edit_set_array(struct model_edit *m, const char *key, const uint32_t *v, uint64_t n)
{
    model_edit_set(m, key, (struct gguf_value){.type = GGUF_ARRAY, .arr = {.type = GGUF_U32, .n = n, .data = v}});
}

/* False when there is none. */
static inline bool model_edit_drop(struct model_edit *m, const char *key)
{
    struct gguf_value *v = model_edit_find(m, key);
    if (!v)
        return false;
    size_t i = (size_t)((struct gguf_kv *)((char *)v - offsetof(struct gguf_kv, value)) - m->keys);
    memmove(&m->keys[i], &m->keys[i + 1], (--m->n_key - i) * sizeof *m->keys);
    return true;
}

static inline struct model_edit_tensor *model_edit_tensor(struct model_edit *m, const char *name)
{
    for (size_t i = 0; i < m->n_tensor; i++)
        if (!strcmp(m->tensors[i].name, name))
            return &m->tensors[i];
    return NULL;
}

static inline void model_edit_drop_tensor(struct model_edit *m, const char *name)
{
    struct model_edit_tensor *t = model_edit_tensor(m, name);
    assert_non_null(t);
    *t = m->tensors[--m->n_tensor];
}

/* A tensor of floats, whose `data` the arena owns or the caller keeps; in place of the one of that name, if any. */
static inline struct model_edit_tensor *model_edit_put(struct model_edit *m, const char *name, uint64_t ne0,
                                                       uint64_t ne1, uint64_t ne2, const float *data)
{
    struct model_edit_tensor *t = model_edit_tensor(m, name);
    if (!t)
        t = &m->tensors[m->n_tensor++];
    *t = (struct model_edit_tensor){.name = arena_strndup(&m->arena, name, strlen(name)),
                                    .n_dims = ne2 > 1   ? 3
                                              : ne1 > 1 ? 2
                                                        : 1,
                                    .ne = {ne0, ne1, ne2, 1},
                                    .type = QUANT_F32,
                                    .data = data};
    return t;
}

/* The file's bytes, to be freed with mem_free; NULL, with the error set, where the writer refuses. */
static inline void *model_edit_bytes(const struct model_edit *m, size_t *n, struct err *e)
{
    struct gguf_writer *w;
    void *bytes = NULL;
    assert_int_equal(gguf_writer_create(&w, e), ERR_OK);
    for (size_t i = 0; i < m->n_key; i++)
        gguf_writer_add_value(w, m->keys[i].key.s, &m->keys[i].value);
    for (size_t i = 0; i < m->n_tensor; i++) {
        const struct model_edit_tensor *t = &m->tensors[i];
        gguf_writer_add_tensor(w, t->name, t->n_dims, t->ne, t->type, t->data);
    }
    if (gguf_writer_to_memory(w, &bytes, n, e) != ERR_OK)
        bytes = NULL;
    gguf_writer_close(&w);
    return bytes;
}

/* What loading would say: with the null device, so that nothing of the tensors is read. */
static inline err_code model_edit_load(const struct model_edit *m, struct err *e)
{
    struct gguf *g = NULL;
    struct backend *device = NULL;
    struct model *model = NULL;
    size_t n;
    void *bytes = model_edit_bytes(m, &n, e);
    err_code code = bytes ? gguf_open_memory(&g, bytes, n, "edited.gguf", e) : e->code;
    if (code == ERR_OK)
        code = backend_null_open(&device, e);
    if (code == ERR_OK)
        code = model_load(&model, g, &(struct model_load_params){.device = device, .mtp = true}, e);
    model_close(&model);
    backend_close(&device);
    gguf_close(&g);
    mem_free(bytes);
    return code;
}

#endif
