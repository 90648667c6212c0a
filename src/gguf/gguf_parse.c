#define _GNU_SOURCE
#include "gguf/gguf_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF is read by copying its little-endian values: this machine is big-endian"
#endif

/* Walks over a file through a window: the length of the metadata is not written anywhere, and tensor data
 * must not be read. From memory the window is the whole of it. */
struct reader {
    const char *path;
    struct gguf_source src;
    uint8_t *own;          /* WINDOW_BYTES, when read from a descriptor */
    const uint8_t *window; /* bytes [window_off, window_off + n_window) of the file */
    uint64_t window_off, n_window;
    uint64_t pos; /* the next byte, from the start of the file */
    char *small;  /* arena memory where small values go next, n_small bytes of it left */
    size_t n_small;
    struct arena *arena;
    struct gguf_totals *totals; /* counts of the files before this one and of this one */
    struct err *e;
    char where[160]; /* what is being read, for messages */
};

enum { WINDOW_BYTES = 256 << 10, SMALL_CHUNK_BYTES = 64 << 10 };

struct gguf_shown gguf_show(const char *s, size_t n)
{
    struct gguf_shown out;
    size_t keep = sizeof out.s - 4, i = 0;
    for (; i < n && i < keep; i++)
        out.s[i] = s[i] >= 0x20 && s[i] < 0x7f ? s[i] : '?';
    memcpy(out.s + i, n > keep ? "..." : "", n > keep ? 4 : 1);
    return out;
}

/* Moves the window to `pos` and fills it as far as the file goes. */
static err_code fill(struct reader *r)
{
    r->window_off = r->pos;
    r->n_window = 0;
    uint64_t want = r->src.n_bytes - r->pos;
    want = want < WINDOW_BYTES ? want : WINDOW_BYTES;
    while (r->n_window < want) {
        uint64_t at = r->window_off + r->n_window;
        ssize_t n = pread(r->src.fd, r->own + r->n_window, (size_t)(want - r->n_window), (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(r->e, ERR_IO, "%s: reading %s at byte %" PRIu64 ": %s", r->path, r->where, at,
                           strerror(errno));
        if (n == 0)
            return err_set(r->e, ERR_IO,
                           "%s: reading %s: the file had %" PRIu64 " bytes when it was opened and ends at byte %" PRIu64
                           " now",
                           r->path, r->where, r->src.n_bytes, at);
        r->n_window += (uint64_t)n;
    }
    return ERR_OK;
}

/* Checks that n more bytes follow and that the metadata does not go on forever. */
static err_code need(struct reader *r, uint64_t n)
{
    uint64_t rest = r->src.n_bytes - r->pos;
    if (n > rest)
        return err_set(r->e, ERR_FORMAT,
                       "%s: %s at byte %" PRIu64 " needs %" PRIu64 " bytes, but only %" PRIu64
                       " are left in the file (truncated or corrupt)",
                       r->path, r->where, r->pos, n, rest);
    if (r->pos + n > GGUF_MAX_META_BYTES - r->totals->n_bytes)
        return err_set(r->e, ERR_LIMIT, "%s: %s: metadata of more than %d bytes, of all files of a model, is refused",
                       r->path, r->where, GGUF_MAX_META_BYTES);
    return ERR_OK;
}

/* The next n bytes to `dst`. */
static err_code take(struct reader *r, void *dst, uint64_t n)
{
    TRY(need(r, n));
    for (uint8_t *p = dst; n > 0;) {
        uint64_t have = r->window_off + r->n_window - r->pos;
        if (have == 0) {
            TRY(fill(r));
            continue;
        }
        have = have < n ? have : n;
        memcpy(p, r->window + (r->pos - r->window_off), (size_t)have);
        r->pos += have;
        p += have;
        n -= have;
    }
    return ERR_OK;
}

/* Checks that n elements of at least min_bytes each fit into what is left of the file. No count is used before that. */
static err_code check_count(struct reader *r, uint64_t n, uint64_t min_bytes, const char *what)
{
    uint64_t rest = r->src.n_bytes - r->pos;
    if (n > rest / min_bytes)
        return err_set(r->e, ERR_FORMAT,
                       "%s: %s says %" PRIu64 " %s, but only %" PRIu64 " bytes are left after byte %" PRIu64, r->path,
                       r->where, n, what, rest, r->pos);
    return ERR_OK;
}

/* The same for things whose number is limited over all files of a model; *total: how many there were before. */
static err_code add_count(struct reader *r, uint64_t *total, uint64_t n, uint64_t min_bytes, uint64_t limit,
                          const char *what)
{
    TRY(check_count(r, n, min_bytes, what));
    if (n > limit - *total)
        return err_set(r->e, ERR_LIMIT, "%s: %s says %" PRIu64 " %s; more than %" PRIu64 " of a model are refused",
                       r->path, r->where, n, what, limit);
    *total += n;
    return ERR_OK;
}

static err_code read_u32(struct reader *r, uint32_t *out)
{
    return take(r, out, sizeof *out);
}

static err_code read_u64(struct reader *r, uint64_t *out)
{
    return take(r, out, sizeof *out);
}

/* Zeroed arena memory for n bytes of a text (align 1) or of numbers (align 8); small ones lie side by side, as there
 * may be a million of them. */
static void *alloc_packed(struct reader *r, size_t n, size_t align)
{
    size_t gap = (size_t) - (uintptr_t)r->small % align;
    if (n >= SMALL_CHUNK_BYTES / 4)
        return arena_alloc(r->arena, n);
    if (gap + n > r->n_small || !r->small) {
        r->small = arena_alloc(r->arena, SMALL_CHUNK_BYTES);
        r->n_small = r->small ? SMALL_CHUNK_BYTES : 0;
        if (!r->small)
            return NULL;
        gap = 0;
    }
    char *p = r->small + gap;
    r->small = p + n;
    r->n_small -= gap + n;
    return p;
}

static err_code read_string(struct reader *r, struct gguf_string *out)
{
    uint64_t n;
    TRY(read_u64(r, &n));
    TRY(need(r, n));
    char *s = alloc_packed(r, (size_t)n + 1, 1);
    if (!s)
        return err_nomem(r->e, (size_t)n, "a GGUF string");
    *out = (struct gguf_string){s, (size_t)n};
    return take(r, s, n);
}

/* Reads a key or a tensor's name, which has 1 to max bytes and no NUL. */
static err_code read_name(struct reader *r, uint64_t max, struct gguf_string *out)
{
    uint64_t at = r->pos;
    TRY(read_string(r, out));
    if (out->n == 0 || out->n > max)
        return err_set(r->e, ERR_FORMAT, "%s: %s at byte %" PRIu64 " has %zu bytes, expected 1 to %" PRIu64, r->path,
                       r->where, at, out->n, max);
    if (memchr(out->s, 0, out->n))
        return err_set(r->e, ERR_FORMAT, "%s: %s at byte %" PRIu64 " contains a NUL byte", r->path, r->where, at);
    return ERR_OK;
}

/* Checks n bools that were read from byte `at` on. */
static err_code check_bools(struct reader *r, const uint8_t *b, uint64_t n, uint64_t at)
{
    for (uint64_t i = 0; i < n; i++)
        if (b[i] > 1)
            return err_set(r->e, ERR_FORMAT, "%s: %s: byte %" PRIu64 " is %d, expected a bool of 0 or 1", r->path,
                           r->where, at + i, b[i]);
    return ERR_OK;
}

static err_code bad_type(struct reader *r, uint32_t type, uint64_t at)
{
    return err_set(r->e, ERR_FORMAT, "%s: %s has value type %" PRIu32 " at byte %" PRIu64 ", expected 0 to %d", r->path,
                   r->where, type, at, GGUF_N_VALUE_TYPE - 1);
}

static err_code read_scalar(struct reader *r, struct gguf_value *out)
{
    union {
        uint64_t u64;
        int8_t i8;
        int16_t i16;
        int32_t i32;
        float f32;
        double f64;
        uint8_t bytes[8];
    } raw = {0};
    uint64_t at = r->pos;
    TRY(take(r, &raw, gguf_value_type_bytes(out->type)));
    switch (out->type) {
    case GGUF_I8: out->i = raw.i8; break;
    case GGUF_I16: out->i = raw.i16; break;
    case GGUF_I32: out->i = raw.i32; break;
    case GGUF_F32: out->f = (double)raw.f32; break;
    case GGUF_F64: out->f = raw.f64; break;
    case GGUF_BOOL: out->u = raw.u64; return check_bools(r, raw.bytes, 1, at);
    default: out->u = raw.u64; break; /* the unsigned ones and I64: the bits as they are */
    }
    return ERR_OK;
}

static err_code read_strings(struct reader *r, uint64_t n, struct gguf_value *out)
{
    struct gguf_string *s = alloc_packed(r, (size_t)n * sizeof *s, 8);
    if (!s)
        return err_nomem(r->e, (size_t)n * sizeof *s, "an array of GGUF strings");
    for (uint64_t i = 0; i < n; i++)
        TRY(read_string(r, &s[i]));
    out->arr.data = s;
    return ERR_OK;
}

static err_code read_array(struct reader *r, struct gguf_value *out, int depth);

static err_code read_arrays(struct reader *r, uint64_t n, struct gguf_value *out, int depth)
{
    if (depth >= GGUF_MAX_DEPTH)
        return err_set(r->e, ERR_LIMIT, "%s: %s: arrays nested more than %d deep are refused", r->path, r->where,
                       GGUF_MAX_DEPTH);
    struct gguf_value *v = alloc_packed(r, (size_t)n * sizeof *v, 8);
    if (!v)
        return err_nomem(r->e, (size_t)n * sizeof *v, "an array of GGUF arrays");
    for (uint64_t i = 0; i < n; i++)
        TRY(read_array(r, &v[i], depth + 1));
    out->arr.data = v;
    return ERR_OK;
}

static err_code read_scalars(struct reader *r, uint64_t n, struct gguf_value *out)
{
    uint64_t at = r->pos, n_bytes = n * gguf_value_type_bytes(out->arr.type);
    void *data = alloc_packed(r, (size_t)n_bytes, 8);
    if (!data)
        return err_nomem(r->e, (size_t)n_bytes, "a GGUF array");
    TRY(take(r, data, n_bytes));
    out->arr.data = data;
    return out->arr.type == GGUF_BOOL ? check_bools(r, data, n, at) : ERR_OK;
}

static err_code read_array(struct reader *r, struct gguf_value *out, int depth)
{
    uint64_t at = r->pos, n;
    uint32_t type;
    TRY(read_u32(r, &type));
    if (type >= GGUF_N_VALUE_TYPE)
        return bad_type(r, type, at);
    TRY(read_u64(r, &n));
    *out = (struct gguf_value){.type = GGUF_ARRAY, .arr = {.type = type, .n = n}};
    switch (out->arr.type) {
    case GGUF_STRING:
        TRY(add_count(r, &r->totals->n_strings, n, sizeof(uint64_t), GGUF_MAX_STRINGS, "strings"));
        return read_strings(r, n, out);
    case GGUF_ARRAY:
        TRY(add_count(r, &r->totals->n_nested, n, sizeof(uint32_t) + sizeof(uint64_t), GGUF_MAX_NESTED, "arrays"));
        return read_arrays(r, n, out, depth);
    default:
        TRY(check_count(r, n, gguf_value_type_bytes(type), "elements"));
        TRY(need(r, n * gguf_value_type_bytes(type)));
        return read_scalars(r, n, out);
    }
}

static err_code read_kv(struct reader *r, struct gguf_file *f, uint64_t i)
{
    struct gguf_kv *kv = &f->kv[i];
    snprintf(r->where, sizeof r->where, "the key of metadata entry %" PRIu64, i);
    uint64_t at = r->pos;
    TRY(read_name(r, GGUF_MAX_KEY_BYTES, &kv->key));
    snprintf(r->where, sizeof r->where, "key \"%s\"", gguf_show(kv->key.s, kv->key.n).s);
    int64_t old;
    TRY(gguf_index_add(&f->keys, kv->key.s, kv->key.n, (int64_t)i, &old, r->e));
    if (old != GGUF_INDEX_NONE)
        return err_set(r->e, ERR_FORMAT,
                       "%s: %s at byte %" PRIu64 " occurs twice (entries %" PRId64 " and %" PRIu64 ")", r->path,
                       r->where, at, old, i);
    uint32_t type;
    at = r->pos;
    TRY(read_u32(r, &type));
    if (type >= GGUF_N_VALUE_TYPE)
        return bad_type(r, type, at);
    kv->value.type = type;
    switch (kv->value.type) {
    case GGUF_STRING: return read_string(r, &kv->value.str);
    case GGUF_ARRAY: return read_array(r, &kv->value, 0);
    default: return read_scalar(r, &kv->value);
    }
}

/* Sets info and n_bytes. Of a type that quant/ doesn't know, info stays NULL. */
static err_code size_tensor(struct reader *r, struct gguf_tensor *t)
{
    uint64_t n = 1;
    for (int d = 0; d < t->n_dims; d++)
        if (t->ne[d] == 0 || __builtin_mul_overflow(n, t->ne[d], &n) || n > INT64_MAX)
            return err_set(r->e, ERR_FORMAT,
                           "%s: %s: dimension %d is %" PRIu64 ", expected at least 1 and a product below 2^63", r->path,
                           r->where, d, t->ne[d]);
    t->info = quant_info(t->type_id);
    if (!t->info && !__builtin_mul_overflow(n, gguf_plain_type_bytes(t->type_id), &t->n_bytes))
        return ERR_OK;
    if (t->info && t->ne[0] % (uint64_t)t->info->block_len)
        return err_set(r->e, ERR_FORMAT,
                       "%s: %s: dimension 0 is %" PRIu64 ", expected a multiple of %d, the block length of %s", r->path,
                       r->where, t->ne[0], t->info->block_len, t->info->name);
    size_t row_bytes;
    if (!t->info || !quant_row_bytes(t->info, t->ne[0], &row_bytes) ||
        __builtin_mul_overflow((uint64_t)row_bytes, n / t->ne[0], &t->n_bytes))
        return err_set(r->e, ERR_FORMAT, "%s: %s: the size of the tensor overflows 64 bits", r->path, r->where);
    return ERR_OK;
}

static err_code read_tensor(struct reader *r, struct gguf_file *f, uint64_t i)
{
    struct gguf_tensor *t = &f->tensors[i];
    struct gguf_string name;
    snprintf(r->where, sizeof r->where, "the name of tensor %" PRIu64, i);
    TRY(read_name(r, GGUF_MAX_NAME_BYTES, &name));
    snprintf(r->where, sizeof r->where, "tensor \"%s\"", gguf_show(name.s, name.n).s);
    uint64_t at = r->pos;
    uint32_t n_dims;
    TRY(read_u32(r, &n_dims));
    if (n_dims < 1 || n_dims > GGUF_MAX_DIMS)
        return err_set(r->e, ERR_FORMAT, "%s: %s has %" PRIu32 " dimensions at byte %" PRIu64 ", expected 1 to %d",
                       r->path, r->where, n_dims, at, GGUF_MAX_DIMS);
    *t = (struct gguf_tensor){.name = name.s, .n_dims = (int)n_dims, .ne = {1, 1, 1, 1}};
    for (uint32_t d = 0; d < n_dims; d++)
        TRY(read_u64(r, &t->ne[d]));
    TRY(read_u32(r, &t->type_id));
    TRY(size_tensor(r, t));
    TRY(read_u64(r, &t->offset));
    if (t->offset % f->alignment)
        return err_set(r->e, ERR_FORMAT,
                       "%s: %s: offset %" PRIu64 " (at byte %" PRIu64 ") is not a multiple of the alignment %" PRIu64,
                       r->path, r->where, t->offset, r->pos - sizeof t->offset, f->alignment);
    return ERR_OK;
}

/* Offsets in the directory count from the start of the data, which is known only after the last entry. */
static err_code place_tensors(struct reader *r, struct gguf_file *f)
{
    uint64_t data_off = (r->pos + f->alignment - 1) / f->alignment * f->alignment;
    for (uint64_t i = 0; i < f->n_tensors; i++) {
        struct gguf_tensor *t = &f->tensors[i];
        uint64_t end;
        bool is_far = __builtin_add_overflow(t->offset, data_off, &t->offset) ||
                      __builtin_add_overflow(t->offset, t->n_bytes, &end);
        if (!is_far && end > f->n_bytes && r->src.may_be_header && end <= INT64_MAX) {
            f->n_bytes = end;
            f->is_header = true;
        }
        if (is_far || end > f->n_bytes)
            return err_set(r->e, ERR_FORMAT,
                           "%s: tensor \"%s\": its %" PRIu64 " bytes at byte %" PRIu64 " end beyond the file's %" PRIu64
                           " bytes (truncated or corrupt)",
                           r->path, gguf_show(t->name, strlen(t->name)).s, t->n_bytes, t->offset, f->n_bytes);
    }
    return ERR_OK;
}

static err_code read_header(struct reader *r, struct gguf_file *f)
{
    uint8_t magic[4];
    snprintf(r->where, sizeof r->where, "the header");
    TRY(take(r, magic, sizeof magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(r->e, ERR_FORMAT,
                       "%s: not a GGUF file: it starts with bytes %02x %02x %02x %02x, expected 47 47 55 46 (\"GGUF\")",
                       r->path, magic[0], magic[1], magic[2], magic[3]);
    TRY(read_u32(r, &f->version));
    if ((f->version & 0xffff) == 0 && f->version >> 16)
        return err_set(r->e, ERR_UNSUPPORTED,
                       "%s: a big-endian GGUF file (version field 0x%08" PRIx32
                       "); only little-endian files are supported",
                       r->path, f->version);
    if (f->version != 2 && f->version != 3)
        return err_set(r->e, ERR_UNSUPPORTED, "%s: GGUF version %" PRIu32 "; versions 2 and 3 are supported", r->path,
                       f->version);
    TRY(read_u64(r, &f->n_tensors));
    TRY(read_u64(r, &f->n_kv));
    uint64_t min_tensor = 8 + 1 + 4 + 8 + 4 + 8; /* name, n_dims, ne[0], type, offset */
    uint64_t min_kv = 8 + 1 + 4 + 1;             /* key, type, a byte */
    TRY(add_count(r, &r->totals->n_tensors, f->n_tensors, min_tensor, GGUF_MAX_TENSORS, "tensors"));
    return add_count(r, &r->totals->n_kv, f->n_kv, min_kv, GGUF_MAX_KV, "metadata entries");
}

static err_code find_alignment(struct reader *r, struct gguf_file *f)
{
    f->alignment = GGUF_DEFAULT_ALIGNMENT;
    const struct gguf_value *v = gguf_file_find(f, "general.alignment");
    if (!v)
        return ERR_OK;
    uint64_t a;
    if (!gguf_value_u64(v, &a) || a == 0 || a > GGUF_MAX_ALIGNMENT || (a & (a - 1)))
        return err_set(r->e, ERR_FORMAT, "%s: key \"general.alignment\": expected a power of two up to %d", r->path,
                       GGUF_MAX_ALIGNMENT);
    f->alignment = a;
    return ERR_OK;
}

err_code gguf_parse(struct gguf_file *f, const struct gguf_source *src, struct arena *arena, struct gguf_totals *totals,
                    struct err *e)
{
    struct reader r = {.path = f->path, .src = *src, .arena = arena, .totals = totals, .e = e};
    err_code code = ERR_OK;
    if (src->bytes) {
        r.window = src->bytes;
        r.n_window = src->n_bytes;
    } else {
        r.window = r.own = mem_alloc(WINDOW_BYTES);
        if (!r.own)
            return err_nomem(e, WINDOW_BYTES, "reading GGUF metadata");
    }
    f->n_bytes = src->n_bytes;
    TRY_OUT(read_header(&r, f));
    f->kv = arena_calloc(arena, (size_t)f->n_kv, sizeof *f->kv);
    f->tensors = arena_calloc(arena, (size_t)f->n_tensors, sizeof *f->tensors);
    if (!f->kv || !f->tensors) {
        code = err_nomem(e, (size_t)f->n_kv * sizeof *f->kv + (size_t)f->n_tensors * sizeof *f->tensors,
                         "a GGUF directory");
        goto out;
    }
    for (uint64_t i = 0; i < f->n_kv; i++)
        TRY_OUT(read_kv(&r, f, i));
    TRY_OUT(find_alignment(&r, f));
    for (uint64_t i = 0; i < f->n_tensors; i++)
        TRY_OUT(read_tensor(&r, f, i));
    TRY_OUT(place_tensors(&r, f));
    totals->n_bytes += r.pos;
out:
    mem_free(r.own);
    return code;
}
