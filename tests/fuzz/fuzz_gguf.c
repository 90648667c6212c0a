/* Any bytes as a GGUF file: opens it and, when that is granted, walks over all that the view offers. */
#include "fuzz.h"

#include <assert.h>
#include <string.h>

#include "gguf/gguf.h"
#include "gguf/gguf_facts.h"

/* Touches every byte that a value refers to; returns something that depends on all of them. */
static uint64_t walk_value(const struct gguf_value *v)
{
    static const uint8_t bytes[GGUF_N_VALUE_TYPE] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t sum = 0;
    if (v->type == GGUF_STRING) {
        assert(v->str.s[v->str.n] == 0);
        for (size_t i = 0; i < v->str.n; i++)
            sum += (uint8_t)v->str.s[i];
        return sum;
    }
    if (v->type != GGUF_ARRAY)
        return v->u;
    const uint8_t *p = v->arr.data;
    for (uint64_t i = 0; i < v->arr.n; i++) {
        if (v->arr.type == GGUF_STRING)
            sum += walk_value(&(struct gguf_value){.type = GGUF_STRING, .str = ((const struct gguf_string *)p)[i]});
        else if (v->arr.type == GGUF_ARRAY)
            sum += walk_value(&((const struct gguf_value *)p)[i]);
        for (unsigned k = 0; k < bytes[v->arr.type]; k++)
            sum += p[i * bytes[v->arr.type] + k];
    }
    return sum;
}

static void try_getters(const struct gguf *g, const char *key)
{
    struct err e = {0};
    uint32_t u, layers[3];
    float f;
    bool b;
    struct gguf_string s;
    const void *data;
    uint64_t n;
    (void)!gguf_need_u32(g, key, &u, &e);
    (void)!gguf_need_f32(g, key, &f, &e);
    (void)!gguf_opt_bool(g, key, &b, &e);
    (void)!gguf_need_string(g, key, &s, &e);
    (void)!gguf_opt_array(g, key, GGUF_STRING, &data, &n, &e);
    (void)!gguf_layer_u32(g, key, layers, 3, true, &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct err e = {0};
    if (gguf_open_memory(&g, data, size, "fuzz", &e) != ERR_OK) {
        assert(!g && e.code != ERR_OK && strncmp(e.text, "fuzz: ", 6) == 0);
        return 0;
    }
    uint64_t sum = 0;
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        assert(gguf_find(g, kv->key.s) == &kv->value);
        sum += walk_value(&kv->value);
        try_getters(g, kv->key.s);
    }
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        assert(gguf_tensor_find(g, t->name) == t);
        assert(t->offset <= size && t->n_bytes <= size - t->offset && t->offset % gguf_alignment(g) == 0);
    }
    struct model_facts f;
    if (gguf_facts_compute(&f, g, &e) == ERR_OK)
        gguf_facts_close(&f);
    gguf_close(&g);
    volatile uint64_t sink = sum;
    (void)sink;
    return 0;
}
