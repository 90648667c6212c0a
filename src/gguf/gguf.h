/* The GGUF file format, versions 2 and 3: parsed and validated into a read-only view.
 *
 * Opening reads the metadata and the tensor directory of a file (and of its sibling splits) into memory and
 * checks every count, offset and size for overflow and against the file's real size; tensor bytes are never
 * touched here (store/ reads them). The view owns all it points to and, overrides aside, does not change: it may be
 * shared between threads. Refused, with the file, the field and what was expected: other magics and versions,
 * big-endian files, truncated files, impossible counts, duplicate keys or tensor names, misaligned or
 * overlapping-the-end tensors. A tensor of a type that quant/ does not know is listed (info == NULL) and
 * refused only by whoever wants its values. */
#ifndef GGUF_GGUF_H
#define GGUF_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "quant/quant.h"

enum gguf_value_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_VALUE_TYPE
};

const char *gguf_value_type_name(enum gguf_value_type type);

/* Bytes, not necessarily valid UTF-8, followed by a NUL that `n` does not count. May contain NULs. */
struct gguf_string {
    const char *s;
    size_t n;
};

struct gguf_value {
    enum gguf_value_type type;
    union {
        uint64_t u; /* U8 U16 U32 U64, BOOL (0 or 1) */
        int64_t i;  /* I8 I16 I32 I64 */
        double f;   /* F32 F64 */
        struct gguf_string str;
        struct {
            enum gguf_value_type type; /* arrays of arrays are parsed: elements are then struct gguf_value */
            uint64_t n;
            const void *data; /* n elements as C types: uint8_t .. double, bool as uint8_t, struct gguf_string */
        } arr;
    };
};

struct gguf_kv {
    struct gguf_string key;
    struct gguf_value value;
};

enum { GGUF_MAX_DIMS = 4 };

/* The types of tensors that are no weights, by their numbers in files. */
enum { GGUF_TENSOR_I8 = 24, GGUF_TENSOR_I16, GGUF_TENSOR_I32, GGUF_TENSOR_I64, GGUF_TENSOR_F64 };

/* The bytes of an element of such a type, and its name; 0 and NULL: it is none. */
uint64_t gguf_plain_type_bytes(uint32_t type_id);
const char *gguf_plain_type_name(uint32_t type_id);

struct gguf_tensor {
    const char *name; /* 1 to 255 bytes, not necessarily UTF-8 */
    int n_dims;
    uint64_t ne[GGUF_MAX_DIMS]; /* ne[0] is the row length; unused dims are 1 */
    uint32_t type_id;
    const struct quant_info *info; /* NULL: not a type of weights that this build knows */
    int file;                      /* index of the split that holds it */
    uint64_t offset;               /* from the start of that file, bytes */
    uint64_t n_bytes;              /* 0: not known */
};

struct gguf;

/* Opens a model's file or, if it belongs to a split set (NAME-00001-of-00003.gguf), the whole set, whichever part is
 * named. On failure *out is NULL. */
MUST_USE err_code gguf_open(struct gguf **out, const char *path, struct err *e);
/* The same, but files may be cut off after their first megabytes, before their tensors. *is_header: some file is, so
 * tensors must not be read. gguf_file_bytes is then the least length of the whole file. */
MUST_USE err_code gguf_open_header(struct gguf **out, const char *path, bool *is_header, struct err *e);

/* The same from memory (for tests and fuzzing): one file, `name` for messages; the bytes are copied. */
MUST_USE err_code gguf_open_memory(struct gguf **out, const void *bytes, size_t n, const char *name, struct err *e);

void gguf_close(struct gguf **g);

int gguf_version(const struct gguf *g);
int gguf_n_files(const struct gguf *g);
const char *gguf_file_path(const struct gguf *g, int file);
uint64_t gguf_file_bytes(const struct gguf *g, int file);
uint64_t gguf_alignment(const struct gguf *g);

/* Overrides metadata: the view's keys then have these values, and those that the file lacks are added. texts [n]:
 * "KEY=VALUE" or, as llama.cpp writes it, "KEY=TYPE:VALUE", where TYPE is int, float, bool or str. Without it, a value
 * has the type that the file's has (of an array, each element's), or else the first of int, float, bool and str that it
 * can be read as. A single value stands for an array of it where arrays have a value for each layer. To be called
 * before others see the view. */
MUST_USE err_code gguf_override(struct gguf *g, const char *const *texts, int n, struct err *e);
/* ERR_USAGE if some overridden key was never asked for, by gguf_find or a typed getter: the override does nothing. */
MUST_USE err_code gguf_check_overrides(const struct gguf *g, struct err *e);

/* A hash that identifies a model: of its files' lengths, the architecture's keys, and the tensors' names, types, shapes
 * and offsets. It leaves their values out, so that a damaged file is still the same model; store_fingerprint adds some.
 */
uint64_t gguf_fingerprint(const struct gguf *g);
uint64_t gguf_file_fingerprint(const struct gguf *g);   /* the same without overrides: it identifies the files */
uint64_t gguf_mix(uint64_t h, const void *p, size_t n); /* the same hash, continued */

uint64_t gguf_n_kv(const struct gguf *g); /* of the first file */
const struct gguf_kv *gguf_kv_at(const struct gguf *g, uint64_t i);
const struct gguf_value *gguf_find(const struct gguf *g, const char *key); /* NULL when absent; hashed */

uint64_t gguf_n_tensors(const struct gguf *g); /* of all splits, in file order */
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name); /* NULL when absent; hashed */

/* Typed getters. The `need_` form fails with ERR_FORMAT when the key is absent; the `opt_` form then leaves
 * *out alone. Both fail when the value has the wrong type or does not fit. Any integer type serves an
 * integer, and any of numbers a float. */
MUST_USE err_code gguf_need_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e);
MUST_USE err_code gguf_opt_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e);
MUST_USE err_code gguf_need_f32(const struct gguf *g, const char *key, float *out, struct err *e);
MUST_USE err_code gguf_opt_f32(const struct gguf *g, const char *key, float *out, struct err *e);
MUST_USE err_code gguf_opt_bool(const struct gguf *g, const char *key, bool *out, struct err *e);
MUST_USE err_code gguf_need_string(const struct gguf *g, const char *key, struct gguf_string *out, struct err *e);
MUST_USE err_code gguf_opt_string(const struct gguf *g, const char *key, struct gguf_string *out, struct err *e);

/* An array whose elements are of `type`; *data is borrowed from the view. opt: *data NULL and *n 0 when
 * absent. */
MUST_USE err_code gguf_opt_array(const struct gguf *g, const char *key, enum gguf_value_type type, const void **data,
                                 uint64_t *n, struct err *e);

/* Element i of an array, below arr.n, as a value of its own. */
struct gguf_value gguf_array_at(const struct gguf_value *v, uint64_t i);

/* A number for each layer: either one scalar for all or an array of n. Fails when absent and `need`, or when
 * the array's length is not n. */
MUST_USE err_code gguf_layer_u32(const struct gguf *g, const char *key, uint32_t *out, uint32_t n, bool need,
                                 struct err *e);

#endif
