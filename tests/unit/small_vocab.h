/* Small vocabularies built in memory, for the tokenizer's tests. */
#ifndef TESTS_SMALL_VOCAB_H
#define TESTS_SMALL_VOCAB_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "gguf/gguf_writer.h"
#include "tokenizer/tokenizer.h"
#include "base/utf8.h"
#include "tokenizer/vocab.h"

enum { SMALL_MAX = 400, SMALL_TEXT = 48 };

/* tokenizer.ggml.token_type */
enum { SMALL_NORMAL = 1, SMALL_UNKNOWN, SMALL_CONTROL, SMALL_USER_DEFINED, SMALL_UNUSED, SMALL_BYTE };

struct small_vocab {
    char texts[SMALL_MAX][SMALL_TEXT];
    const char *tokens[SMALL_MAX];
    int32_t types[SMALL_MAX];
    float scores[SMALL_MAX];
    uint32_t n;
    struct gguf_writer *w;
};

static inline int32_t small_add(struct small_vocab *v, const char *text, int32_t type, float score)
{
    snprintf(v->texts[v->n], SMALL_TEXT, "%s", text);
    v->tokens[v->n] = v->texts[v->n];
    v->types[v->n] = type;
    v->scores[v->n] = score;
    return (int32_t)v->n++;
}

/* Tokens 0..255: each byte's character, in the order of the bytes. */
static inline void small_add_bytes(struct small_vocab *v)
{
    uint16_t code_of[256];
    byte_codes_fill(code_of);
    for (int b = 0; b < 256; b++) {
        char text[UTF8_MAX_BYTES + 1] = "";
        utf8_encode(code_of[b], text);
        small_add(v, text, SMALL_NORMAL, 0);
    }
}

/* 256 tokens <0x00> to <0xFF>. */
static inline void small_add_byte_names(struct small_vocab *v)
{
    for (int b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        small_add(v, text, SMALL_BYTE, 0);
    }
}

static inline err_code small_begin(struct small_vocab *v, const char *model, const char *pre, struct err *e)
{
    *v = (struct small_vocab){0};
    err_code code = gguf_writer_create(&v->w, e);
    if (code == ERR_OK)
        gguf_writer_add_string(v->w, "tokenizer.ggml.model", model);
    if (code == ERR_OK && pre)
        gguf_writer_add_string(v->w, "tokenizer.ggml.pre", pre);
    return code;
}

/* The file with what was added, owned by the caller (mem_free); closes the writer. */
static inline err_code small_finish(struct small_vocab *v, void **bytes, size_t *n, struct err *e)
{
    if (v->n > 0) {
        gguf_writer_add_strings(v->w, "tokenizer.ggml.tokens", v->tokens, v->n);
        gguf_writer_add_array(v->w, "tokenizer.ggml.token_type", GGUF_I32, v->types, v->n);
        gguf_writer_add_array(v->w, "tokenizer.ggml.scores", GGUF_F32, v->scores, v->n);
    }
    err_code code = gguf_writer_to_memory(v->w, bytes, n, e);
    gguf_writer_close(&v->w);
    return code;
}

/* The same to a file. */
static inline err_code small_write(struct small_vocab *v, const char *path, struct err *e)
{
    void *bytes = NULL;
    size_t n = 0;
    err_code code = small_finish(v, &bytes, &n, e);
    FILE *f = code == ERR_OK ? fopen(path, "wb") : NULL;
    if (code == ERR_OK && (!f || fwrite(bytes, 1, n, f) != n))
        code = err_set(e, ERR_IO, "%s can't be written", path);
    if (f)
        fclose(f);
    mem_free(bytes);
    return code;
}

/* Opens the tokenizer of what was added. */
static inline err_code small_open(struct small_vocab *v, struct tokenizer **t, struct err *e)
{
    void *bytes = NULL;
    size_t n;
    struct gguf *g = NULL;
    *t = NULL;
    err_code code = small_finish(v, &bytes, &n, e);
    if (code == ERR_OK)
        code = gguf_open_memory(&g, bytes, n, "small.gguf", e);
    if (code == ERR_OK)
        code = tokenizer_open(t, g, e);
    gguf_close(&g);
    mem_free(bytes);
    return code;
}

#endif
