/* Metadata that the caller gives in place of the file's. */
#define _POSIX_C_SOURCE 200809L
#include "gguf/gguf_internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *prefix;
    enum gguf_value_type type;
} types[] = {{"int:", GGUF_I64}, {"float:", GGUF_F64}, {"bool:", GGUF_BOOL}, {"str:", GGUF_STRING}};

enum { N_TYPE = sizeof types / sizeof *types };

static bool parse_int(const char *s, struct gguf_value *out)
{
    char *end;
    errno = 0;
    *out = (struct gguf_value){.type = GGUF_I64, .i = strtoll(s, &end, 10)};
    return end != s && !*end && errno == 0;
}

static bool parse_float(const char *s, struct gguf_value *out)
{
    char *end;
    *out = (struct gguf_value){.type = GGUF_F64, .f = strtod(s, &end)};
    return end != s && !*end && out->f - out->f == 0;
}

static bool parse_bool(const char *s, struct gguf_value *out)
{
    *out = (struct gguf_value){.type = GGUF_BOOL, .u = !strcmp(s, "true")};
    return out->u || !strcmp(s, "false");
}

static bool parse_as(enum gguf_value_type type, const char *s, struct gguf_value *out)
{
    switch (type) {
    case GGUF_STRING: *out = (struct gguf_value){.type = type, .str = {s, strlen(s)}}; return true;
    case GGUF_BOOL: return parse_bool(s, out);
    case GGUF_F32:
    case GGUF_F64: return parse_float(s, out);
    default: return parse_int(s, out);
    }
}

/* The type of the value that the file has; an array stands for each of its elements. GGUF_ARRAY: any will do. */
static enum gguf_value_type type_in_file(const struct gguf_value *v)
{
    return !v ? GGUF_ARRAY : v->type == GGUF_ARRAY ? v->arr.type : v->type;
}

static bool parse_value(const char *s, enum gguf_value_type type, struct gguf_value *out)
{
    if (type != GGUF_ARRAY)
        return parse_as(type, s, out);
    return parse_int(s, out) || parse_float(s, out) || parse_bool(s, out) || parse_as(GGUF_STRING, s, out);
}

/* The key and the value borrow from the text. */
static err_code parse(const char *text, const struct gguf *g, struct gguf_kv *out, struct err *e)
{
    const char *equals = strchr(text, '='), *s = equals ? equals + 1 : text;
    if (!equals || equals == text)
        return err_set(e, ERR_USAGE, "override \"%s\": expected KEY=VALUE or KEY=TYPE:VALUE",
                       gguf_show(text, strlen(text)).s);
    out->key = (struct gguf_string){text, (size_t)(equals - text)};
    int64_t at = gguf_index_find(&g->files[0].keys, text, out->key.n);
    enum gguf_value_type type = type_in_file(at == GGUF_INDEX_NONE ? NULL : &g->files[0].kv[at].value);
    for (int i = 0; i < N_TYPE; i++)
        if (!strncmp(s, types[i].prefix, strlen(types[i].prefix))) {
            type = types[i].type;
            s += strlen(types[i].prefix);
            break;
        }
    if (!parse_value(s, type, &out->value))
        return err_set(e, ERR_USAGE, "override \"%s\": expected a value of type %s", gguf_show(text, strlen(text)).s,
                       type == GGUF_BOOL                      ? "bool, which is true or false"
                       : type == GGUF_F32 || type == GGUF_F64 ? "float"
                                                              : "int");
    return ERR_OK;
}

/* Makes room for n more keys, which are marked as the file's own until they are taken. */
static err_code grow(struct gguf *g, uint64_t n, struct err *e)
{
    struct gguf_file *f = &g->files[0];
    size_t n_all = (size_t)(f->n_kv + n);
    struct gguf_kv *kv = arena_calloc(&g->arena, n_all, sizeof *kv);
    atomic_uchar *origins = arena_calloc(&g->arena, n_all, sizeof *origins);
    if (!kv || !origins)
        return err_nomem(e, n_all * (sizeof *kv + sizeof *origins), "overrides");
    memcpy(kv, f->kv, (size_t)f->n_kv * sizeof *kv);
    for (uint64_t i = 0; f->origins && i < f->n_kv; i++)
        atomic_init(&origins[i], atomic_load(&f->origins[i]));
    f->kv = kv;
    f->origins = origins;
    return ERR_OK;
}

static err_code take(struct gguf *g, const char *text, struct err *e)
{
    struct gguf_file *f = &g->files[0];
    struct gguf_kv kv;
    int64_t at = (int64_t)f->n_kv, old;
    char *own = arena_strndup(&g->arena, text, strlen(text));
    if (!own)
        return err_nomem(e, strlen(text), "an override");
    TRY(parse(own, g, &kv, e));
    TRY(gguf_index_add(&f->keys, kv.key.s, kv.key.n, at, &old, e));
    if (old == GGUF_INDEX_NONE)
        f->n_kv++;
    else
        at = old;
    f->kv[at] = kv;
    atomic_store(&f->origins[at], GGUF_GIVEN);
    return ERR_OK;
}

err_code gguf_override(struct gguf *g, const char *const *texts, int n, struct err *e)
{
    if (n == 0)
        return ERR_OK;
    if (n < 0)
        return err_set(e, ERR_USAGE, "%d overrides: expected a number from 0", n);
    if (!g->files[0].origins)
        g->file_fingerprint = gguf_fingerprint(g);
    TRY(grow(g, (uint64_t)n, e));
    for (int i = 0; i < n; i++)
        TRY(take(g, texts[i], e));
    return ERR_OK;
}

err_code gguf_check_overrides(const struct gguf *g, struct err *e)
{
    const struct gguf_file *f = &g->files[0];
    for (uint64_t i = 0; f->origins && i < f->n_kv; i++)
        if (atomic_load(&f->origins[i]) == GGUF_GIVEN)
            return err_set(e, ERR_USAGE,
                           "override of key \"%s\": the model %s has no use for it; `moebius inspect` lists the keys",
                           gguf_show(f->kv[i].key.s, f->kv[i].key.n).s, f->path);
    return ERR_OK;
}

uint64_t gguf_file_fingerprint(const struct gguf *g)
{
    return g->files[0].origins ? g->file_fingerprint : gguf_fingerprint(g);
}
