#include "gguf/gguf_writer.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "gguf/gguf_internal.h"

struct writer_tensor {
    char *name;
    int n_dims;
    uint64_t ne[GGUF_MAX_DIMS];
    uint32_t type;
    uint64_t n_bytes, row_bytes;
    uint64_t off;     /* from the start of the data */
    const void *data; /* NULL: fill gives the bytes; both NULL: the caller writes them */
    gguf_fill_fn *fill;
    void *user;
};

struct gguf_writer {
    struct arena arena; /* names */
    struct bytes kv;    /* the metadata, as it will stand in the file */
    uint64_t n_kv, alignment;
    uint64_t data_bytes; /* of the tensors so far, padded */
    struct writer_tensor *tensors;
    size_t n_tensors, n_alloc;
    struct gguf_index keys, names;
    struct err err; /* the first mistake */
};

err_code gguf_writer_create(struct gguf_writer **out, struct err *e)
{
    *out = mem_calloc(1, sizeof **out);
    if (!*out)
        return err_nomem(e, sizeof **out, "a GGUF writer");
    (*out)->alignment = GGUF_DEFAULT_ALIGNMENT;
    return ERR_OK;
}

void gguf_writer_close(struct gguf_writer **w)
{
    if (!*w)
        return;
    gguf_index_close(&(*w)->keys);
    gguf_index_close(&(*w)->names);
    arena_close(&(*w)->arena);
    bytes_close(&(*w)->kv);
    mem_free((*w)->tensors);
    mem_free(*w);
    *w = NULL;
}

static err_code put_u32(struct bytes *b, uint32_t v, struct err *e)
{
    return bytes_add(b, &v, sizeof v, e);
}

static err_code put_u64(struct bytes *b, uint64_t v, struct err *e)
{
    return bytes_add(b, &v, sizeof v, e);
}

static err_code put_string(struct bytes *b, struct gguf_string s, struct err *e)
{
    TRY(put_u64(b, s.n, e));
    return bytes_add(b, s.s, s.n, e);
}

static err_code put_scalar(struct bytes *b, const struct gguf_value *v, struct err *e)
{
    float f32 = (float)v->f;
    switch (v->type) {
    case GGUF_F32: return bytes_add(b, &f32, sizeof f32, e);
    default:
        return bytes_add(b, &v->u, gguf_value_type_bytes(v->type), e); /* little-endian: the low bytes come first */
    }
}

static err_code put_array(struct bytes *b, const struct gguf_value *v, int depth, struct err *e)
{
    if (depth >= GGUF_MAX_DEPTH)
        return err_set(e, ERR_LIMIT, "arrays nested more than %d deep are not written", GGUF_MAX_DEPTH);
    TRY(put_u32(b, v->arr.type, e));
    TRY(put_u64(b, v->arr.n, e));
    if (v->arr.type == GGUF_STRING) {
        for (uint64_t i = 0; i < v->arr.n; i++)
            TRY(put_string(b, ((const struct gguf_string *)v->arr.data)[i], e));
        return ERR_OK;
    }
    if (v->arr.type == GGUF_ARRAY) {
        for (uint64_t i = 0; i < v->arr.n; i++)
            TRY(put_array(b, &((const struct gguf_value *)v->arr.data)[i], depth + 1, e));
        return ERR_OK;
    }
    return bytes_add(b, v->arr.data, (size_t)v->arr.n * gguf_value_type_bytes(v->arr.type), e);
}

/* Copies a name, which must not be in the index yet, and adds it there. */
static err_code keep_name(struct gguf_writer *w, struct gguf_index *ix, const char *name, size_t max, int64_t number,
                          char **out)
{
    size_t n = strlen(name);
    int64_t old;
    struct err *e = &w->err;
    if (n == 0 || n > max)
        return err_set(e, ERR_USAGE, "name \"%s\" has %zu bytes, expected 1 to %zu", gguf_show(name, n).s, n, max);
    *out = arena_strndup(&w->arena, name, n);
    if (!*out)
        return err_nomem(e, n, "a name");
    TRY(gguf_index_add(ix, *out, n, number, &old, e));
    return old == GGUF_INDEX_NONE ? ERR_OK : err_set(e, ERR_USAGE, "name \"%s\" is added twice", gguf_show(name, n).s);
}

void gguf_writer_add_value(struct gguf_writer *w, const char *key, const struct gguf_value *v)
{
    assert((unsigned)v->type < GGUF_N_VALUE_TYPE);
    struct err *e = &w->err;
    char *copy;
    if (e->code || keep_name(w, &w->keys, key, GGUF_MAX_KEY_BYTES, (int64_t)w->n_kv, &copy) ||
        put_string(&w->kv, (struct gguf_string){key, strlen(key)}, e) || put_u32(&w->kv, v->type, e))
        return;
    err_code code = v->type == GGUF_STRING  ? put_string(&w->kv, v->str, e)
                    : v->type == GGUF_ARRAY ? put_array(&w->kv, v, 0, e)
                                            : put_scalar(&w->kv, v, e);
    if (code == ERR_OK)
        w->n_kv++;
}

void gguf_writer_add_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    gguf_writer_add_value(w, key, &(struct gguf_value){.type = GGUF_U32, .u = v});
}

void gguf_writer_add_f32(struct gguf_writer *w, const char *key, float v)
{
    gguf_writer_add_value(w, key, &(struct gguf_value){.type = GGUF_F32, .f = (double)v});
}

void gguf_writer_add_bool(struct gguf_writer *w, const char *key, bool v)
{
    gguf_writer_add_value(w, key, &(struct gguf_value){.type = GGUF_BOOL, .u = v});
}

void gguf_writer_add_string(struct gguf_writer *w, const char *key, const char *v)
{
    gguf_writer_add_value(w, key, &(struct gguf_value){.type = GGUF_STRING, .str = {v, strlen(v)}});
}

void gguf_writer_add_strings(struct gguf_writer *w, const char *key, const char *const *v, uint64_t n)
{
    struct gguf_string *s = mem_calloc((size_t)n, sizeof *s);
    if (!s) {
        if (!w->err.code)
            (void)err_nomem(&w->err, (size_t)n * sizeof *s, "an array of strings");
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        s[i] = (struct gguf_string){v[i], strlen(v[i])};
    gguf_writer_add_array(w, key, GGUF_STRING, s, n);
    mem_free(s);
}

void gguf_writer_add_array(struct gguf_writer *w, const char *key, enum gguf_value_type type, const void *data,
                           uint64_t n)
{
    gguf_writer_add_value(w, key, &(struct gguf_value){.type = GGUF_ARRAY, .arr = {type, n, data}});
}

void gguf_writer_set_alignment(struct gguf_writer *w, uint32_t alignment)
{
    if (!w->err.code && (alignment < 8 || alignment > GGUF_MAX_ALIGNMENT || (alignment & (alignment - 1))))
        (void)err_set(&w->err, ERR_USAGE, "alignment %" PRIu32 ": expected a power of two from 8 to %d", alignment,
                      GGUF_MAX_ALIGNMENT);
    assert(w->n_tensors == 0); /* their places depend on it */
    gguf_writer_add_u32(w, "general.alignment", alignment);
    w->alignment = alignment;
}

static err_code size_tensor(struct writer_tensor *t, struct err *e)
{
    const struct quant_info *info = quant_info(t->type);
    uint64_t n_row = 1;
    for (int d = 0; d < t->n_dims; d++)
        if (t->ne[d] == 0 || (d && __builtin_mul_overflow(n_row, t->ne[d], &n_row)))
            return err_set(e, ERR_USAGE, "tensor \"%s\": dimension %d is %" PRIu64, t->name, d, t->ne[d]);
    size_t row_bytes = 0;
    bool is_plain = !__builtin_mul_overflow(t->ne[0], gguf_plain_type_bytes(t->type), &row_bytes) && row_bytes > 0;
    if (!(info ? quant_row_bytes(info, t->ne[0], &row_bytes) : is_plain) ||
        __builtin_mul_overflow((uint64_t)row_bytes, n_row, &t->n_bytes) || t->n_bytes > INT64_MAX / 2)
        return err_set(e, ERR_USAGE, "tensor \"%s\": rows of %" PRIu64 " do not fit type %s", t->name, t->ne[0],
                       info ? info->name : "(unknown)");
    t->row_bytes = row_bytes;
    return ERR_OK;
}

static void add_tensor(struct gguf_writer *w, const char *name, const uint64_t *ne, struct writer_tensor t)
{
    assert(t.n_dims >= 1 && t.n_dims <= GGUF_MAX_DIMS);
    if (w->err.code || keep_name(w, &w->names, name, GGUF_MAX_NAME_BYTES, (int64_t)w->n_tensors, &t.name))
        return;
    memcpy(t.ne, ne, (size_t)t.n_dims * sizeof *ne);
    if (size_tensor(&t, &w->err))
        return;
    if (mem_grow(&w->tensors, &w->n_alloc, w->n_tensors + 1, sizeof *w->tensors, "a list of tensors", &w->err))
        return;
    uint64_t n = 0;
    t.off = w->data_bytes;
    if (__builtin_add_overflow(t.n_bytes, w->alignment - 1, &n) ||
        __builtin_add_overflow(w->data_bytes, n / w->alignment * w->alignment, &w->data_bytes)) {
        (void)err_set(&w->err, ERR_LIMIT, "tensor \"%s\": the file would be too large", t.name);
        return;
    }
    w->tensors[w->n_tensors++] = t;
}

void gguf_writer_add_tensor(struct gguf_writer *w, const char *name, int n_dims, const uint64_t *ne, uint32_t type,
                            const void *data)
{
    assert(data);
    add_tensor(w, name, ne, (struct writer_tensor){.n_dims = n_dims, .type = type, .data = data});
}

void gguf_writer_add_tensor_fn(struct gguf_writer *w, const char *name, int n_dims, const uint64_t *ne, uint32_t type,
                               gguf_fill_fn *fill, void *user)
{
    assert(fill);
    add_tensor(w, name, ne, (struct writer_tensor){.n_dims = n_dims, .type = type, .fill = fill, .user = user});
}

uint64_t gguf_writer_place_tensor(struct gguf_writer *w, const char *name, int n_dims, const uint64_t *ne,
                                  uint32_t type)
{
    uint64_t off = w->data_bytes;
    add_tensor(w, name, ne, (struct writer_tensor){.n_dims = n_dims, .type = type});
    return off;
}

uint64_t gguf_writer_data_bytes(const struct gguf_writer *w)
{
    return w->data_bytes;
}

/* Where the bytes go: a file, or memory when there is none. */
struct sink {
    FILE *file;
    const char *path;
    struct bytes mem;
    uint64_t n_bytes; /* so far */
};

static err_code sink_put(struct sink *s, const void *p, size_t n, struct err *e)
{
    s->n_bytes += n;
    if (!s->file)
        return bytes_add(&s->mem, p, n, e);
    if (fwrite(p, 1, n, s->file) != n)
        return err_set(e, ERR_IO, "%s: writing at byte %" PRIu64 ": %s", s->path, s->n_bytes - n, strerror(errno));
    return ERR_OK;
}

static err_code sink_pad(struct sink *s, uint64_t alignment, struct err *e)
{
    static const uint8_t zeros[4096];
    for (uint64_t n = (alignment - s->n_bytes % alignment) % alignment; n > 0;) {
        size_t piece = n < sizeof zeros ? (size_t)n : sizeof zeros;
        TRY(sink_put(s, zeros, piece, e));
        n -= piece;
    }
    return ERR_OK;
}

/* Everything before the tensor data. */
static err_code write_head(const struct gguf_writer *w, struct sink *s, struct err *e)
{
    struct bytes b = {0};
    err_code code;
    TRY_OUT(bytes_add(&b, "GGUF", 4, e));
    TRY_OUT(put_u32(&b, 3, e));
    TRY_OUT(put_u64(&b, w->n_tensors, e));
    TRY_OUT(put_u64(&b, w->n_kv, e));
    TRY_OUT(bytes_add(&b, w->kv.s, w->kv.n, e));
    for (size_t i = 0; i < w->n_tensors; i++) {
        const struct writer_tensor *t = &w->tensors[i];
        TRY_OUT(put_string(&b, (struct gguf_string){t->name, strlen(t->name)}, e));
        TRY_OUT(put_u32(&b, (uint32_t)t->n_dims, e));
        TRY_OUT(bytes_add(&b, t->ne, (size_t)t->n_dims * sizeof *t->ne, e));
        TRY_OUT(put_u32(&b, t->type, e));
        TRY_OUT(put_u64(&b, t->off, e));
    }
    TRY_OUT(sink_put(s, b.s, b.n, e));
    code = sink_pad(s, w->alignment, e);
out:
    bytes_close(&b);
    return code;
}

err_code gguf_writer_head(struct gguf_writer *w, void **out, size_t *n, struct err *e)
{
    struct sink s = {.path = "a GGUF file"};
    *out = NULL;
    *n = 0;
    if (w->err.code)
        return err_set(e, w->err.code, "%s", w->err.text);
    err_code code = write_head(w, &s, e);
    if (code != ERR_OK) {
        bytes_close(&s.mem);
        return code;
    }
    *out = s.mem.s;
    *n = s.mem.n;
    return ERR_OK;
}

enum { PIECE_BYTES = 4 << 20 }; /* about as much of a tensor is filled at a time, in whole rows */

static err_code write_filled(const struct writer_tensor *t, struct sink *s, struct err *e)
{
    uint64_t piece = t->row_bytes > PIECE_BYTES ? t->row_bytes : PIECE_BYTES / t->row_bytes * t->row_bytes;
    piece = piece < t->n_bytes ? piece : t->n_bytes;
    void *buffer = mem_alloc((size_t)piece);
    if (!buffer)
        return err_nomem(e, (size_t)piece, "a piece of a tensor");
    err_code code = ERR_OK;
    for (uint64_t off = 0; off < t->n_bytes;) {
        uint64_t rest = t->n_bytes - off, n = piece < rest ? piece : rest;
        TRY_OUT(t->fill(t->user, off, buffer, (size_t)n, e));
        TRY_OUT(sink_put(s, buffer, (size_t)n, e));
        off += n;
    }
out:
    mem_free(buffer);
    return code;
}

static err_code write_all(const struct gguf_writer *w, struct sink *s, struct err *e)
{
    if (w->err.code)
        return err_set(e, w->err.code, "%s: %s", s->path, w->err.text);
    TRY(write_head(w, s, e));
    for (size_t i = 0; i < w->n_tensors; i++) {
        const struct writer_tensor *t = &w->tensors[i];
        assert(t->data || t->fill);
        TRY(t->data ? sink_put(s, t->data, (size_t)t->n_bytes, e) : write_filled(t, s, e));
        TRY(sink_pad(s, w->alignment, e));
    }
    return ERR_OK;
}

err_code gguf_writer_write(struct gguf_writer *w, struct output_file *f, struct err *e)
{
    struct sink s = {.file = f->stream, .path = f->path};
    err_code code = write_all(w, &s, e);
    if (code == ERR_OK)
        code = output_file_finish(f, e);
    output_file_abandon(f);
    return code;
}

err_code gguf_writer_save(struct gguf_writer *w, const char *path, struct err *e)
{
    struct output_file f;
    TRY(output_file_open(&f, path, e));
    return gguf_writer_write(w, &f, e);
}

err_code gguf_writer_to_memory(struct gguf_writer *w, void **out, size_t *n, struct err *e)
{
    struct sink s = {.path = "memory"};
    err_code code = write_all(w, &s, e);
    *out = NULL;
    *n = 0;
    if (code != ERR_OK) {
        bytes_close(&s.mem);
        return code;
    }
    *out = s.mem.s;
    *n = s.mem.n;
    return ERR_OK;
}
