#include "gguf/gguf_internal.h"

#include <inttypes.h>
#include <string.h>

uint64_t gguf_plain_type_bytes(uint32_t type_id)
{
    switch (type_id) {
    case GGUF_TENSOR_I8: return 1;
    case GGUF_TENSOR_I16: return 2;
    case GGUF_TENSOR_I32: return 4;
    case GGUF_TENSOR_I64:
    case GGUF_TENSOR_F64: return 8;
    default: return 0;
    }
}

const char *gguf_plain_type_name(uint32_t type_id)
{
    static const char *const names[] = {"I8", "I16", "I32", "I64", "F64"};
    return gguf_plain_type_bytes(type_id) ? names[type_id - GGUF_TENSOR_I8] : NULL;
}

const char *gguf_value_type_name(enum gguf_value_type type)
{
    static const char *const names[GGUF_N_VALUE_TYPE] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                         "bool", "string", "array", "u64", "i64", "f64"};
    return (unsigned)type < GGUF_N_VALUE_TYPE ? names[type] : "unknown";
}

size_t gguf_value_type_bytes(uint32_t type)
{
    static const uint8_t bytes[GGUF_N_VALUE_TYPE] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < GGUF_N_VALUE_TYPE ? bytes[type] : 0;
}

bool gguf_value_u64(const struct gguf_value *v, uint64_t *out)
{
    switch (v->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64: *out = v->u; return true;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64: *out = (uint64_t)v->i; return v->i >= 0;
    default: return false;
    }
}

/* Says that a value has the wrong type: "string", "array of u32". */
static err_code wrong_type(const struct gguf *g, const char *key, const struct gguf_value *v, const char *expected,
                           struct err *e)
{
    bool array = v->type == GGUF_ARRAY;
    return err_set(e, ERR_FORMAT, "%s: key \"%s\" is of type %s%s, expected %s", g->files[0].path, key,
                   array ? "array of " : "", gguf_value_type_name(array ? v->arr.type : v->type), expected);
}

static err_code missing(const struct gguf *g, const char *key, const char *expected, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: key \"%s\" is missing, expected %s", g->files[0].path, key, expected);
}

static const char U32_WANTED[] = "an integer from 0 to 4294967295";

static err_code value_u32(const struct gguf *g, const char *key, const struct gguf_value *v, uint32_t *out,
                          struct err *e)
{
    uint64_t u;
    if (gguf_value_u64(v, &u) && u <= UINT32_MAX) {
        *out = (uint32_t)u;
        return ERR_OK;
    }
    switch (v->type) {
    case GGUF_U64:
        return err_set(e, ERR_FORMAT, "%s: key \"%s\" is %" PRIu64 ", expected %s", g->files[0].path, key, v->u,
                       U32_WANTED);
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        return err_set(e, ERR_FORMAT, "%s: key \"%s\" is %" PRId64 ", expected %s", g->files[0].path, key, v->i,
                       U32_WANTED);
    default: return wrong_type(g, key, v, U32_WANTED, e);
    }
}

err_code gguf_opt_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e)
{
    const struct gguf_value *v = gguf_find(g, key);
    return v ? value_u32(g, key, v, out, e) : ERR_OK;
}

err_code gguf_need_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e)
{
    const struct gguf_value *v = gguf_find(g, key);
    return v ? value_u32(g, key, v, out, e) : missing(g, key, U32_WANTED, e);
}

/* The value as a float; false when it is no number. */
static bool value_number(const struct gguf_value *v, double *out)
{
    uint64_t u;
    if (v->type == GGUF_F32 || v->type == GGUF_F64)
        *out = v->f;
    else if (gguf_value_u64(v, &u))
        *out = (double)u;
    else if (v->type == GGUF_I8 || v->type == GGUF_I16 || v->type == GGUF_I32 || v->type == GGUF_I64)
        *out = (double)v->i;
    else
        return false;
    return true;
}

err_code gguf_opt_f32(const struct gguf *g, const char *key, float *out, struct err *e)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return ERR_OK;
    double f;
    if (!value_number(v, &f))
        return wrong_type(g, key, v, "a number", e);
    if (f - f == 0 && (f > 3.4028234663852886e38 || f < -3.4028234663852886e38))
        return err_set(e, ERR_FORMAT, "%s: key \"%s\" is %g, expected what fits a 32-bit float", g->files[0].path, key,
                       f);
    *out = (float)f;
    return ERR_OK;
}

err_code gguf_need_f32(const struct gguf *g, const char *key, float *out, struct err *e)
{
    return gguf_find(g, key) ? gguf_opt_f32(g, key, out, e) : missing(g, key, "a number", e);
}

err_code gguf_opt_bool(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return ERR_OK;
    if (v->type != GGUF_BOOL)
        return wrong_type(g, key, v, "bool", e);
    *out = v->u;
    return ERR_OK;
}

err_code gguf_opt_string(const struct gguf *g, const char *key, struct gguf_string *out, struct err *e)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return ERR_OK;
    if (v->type != GGUF_STRING)
        return wrong_type(g, key, v, "string", e);
    *out = v->str;
    return ERR_OK;
}

err_code gguf_need_string(const struct gguf *g, const char *key, struct gguf_string *out, struct err *e)
{
    return gguf_find(g, key) ? gguf_opt_string(g, key, out, e) : missing(g, key, "string", e);
}

err_code gguf_opt_array(const struct gguf *g, const char *key, enum gguf_value_type type, const void **data,
                        uint64_t *n, struct err *e)
{
    *data = NULL;
    *n = 0;
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return ERR_OK;
    if (v->type != GGUF_ARRAY || v->arr.type != type) {
        char expected[32] = "array of ";
        strcat(expected, gguf_value_type_name(type));
        return wrong_type(g, key, v, expected, e);
    }
    *data = v->arr.data;
    *n = v->arr.n;
    return ERR_OK;
}

struct gguf_value gguf_array_at(const struct gguf_value *v, uint64_t i)
{
    const void *p = v->arr.data;
    struct gguf_value x = {.type = v->arr.type};
    switch (v->arr.type) {
    case GGUF_U8:
    case GGUF_BOOL: x.u = ((const uint8_t *)p)[i]; break;
    case GGUF_U16: x.u = ((const uint16_t *)p)[i]; break;
    case GGUF_U32: x.u = ((const uint32_t *)p)[i]; break;
    case GGUF_U64: x.u = ((const uint64_t *)p)[i]; break;
    case GGUF_I8: x.i = ((const int8_t *)p)[i]; break;
    case GGUF_I16: x.i = ((const int16_t *)p)[i]; break;
    case GGUF_I32: x.i = ((const int32_t *)p)[i]; break;
    case GGUF_I64: x.i = ((const int64_t *)p)[i]; break;
    case GGUF_F32: x.f = (double)((const float *)p)[i]; break;
    case GGUF_F64: x.f = ((const double *)p)[i]; break;
    case GGUF_STRING: x.str = ((const struct gguf_string *)p)[i]; break;
    case GGUF_ARRAY: return ((const struct gguf_value *)p)[i];
    case GGUF_N_VALUE_TYPE: break;
    }
    return x;
}

/* Element i of an array of integers or bools; false when it is neither or is negative. */
static bool array_u64(const struct gguf_value *v, uint64_t i, uint64_t *out)
{
    const struct gguf_value x = gguf_array_at(v, i);
    if (x.type != GGUF_BOOL)
        return gguf_value_u64(&x, out);
    *out = x.u;
    return true;
}

err_code gguf_layer_u32(const struct gguf *g, const char *key, uint32_t *out, uint32_t n, bool need, struct err *e)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return need ? missing(g, key, "an integer, or one for each layer", e) : ERR_OK;
    if (v->type != GGUF_ARRAY) {
        uint32_t u = 0;
        TRY(value_u32(g, key, v, &u, e));
        for (uint32_t i = 0; i < n; i++)
            out[i] = u;
        return ERR_OK;
    }
    if (v->arr.n != n)
        return err_set(e, ERR_FORMAT,
                       "%s: key \"%s\" has %" PRIu64 " elements, expected one for each of %" PRIu32 " layers",
                       g->files[0].path, key, v->arr.n, n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t u;
        if (!array_u64(v, i, &u) || u > UINT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: key \"%s\": element %" PRIu32 " of this array of %s: expected %s",
                           g->files[0].path, key, i, gguf_value_type_name(v->arr.type), U32_WANTED);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t u = 0;
        (void)array_u64(v, i, &u);
        out[i] = (uint32_t)u;
    }
    return ERR_OK;
}
