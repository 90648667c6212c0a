/* What the files of gguf/ share: the view's fields and the parser of one file. */
#ifndef GGUF_INTERNAL_H
#define GGUF_INTERNAL_H

#include <stdatomic.h>

#include "base/mem.h"
#include "gguf/gguf.h"
#include "gguf/gguf_index.h"

/* Limits against absurd files, over all files of a model; real ones stay far below (the largest known vocabulary takes
 * 16 MB, and models whose experts have a tensor each 70,000 tensors). */
enum {
    GGUF_MAX_META_BYTES = 64 << 20, /* headers, metadata and tensor directories */
    GGUF_MAX_KV = 1 << 16,
    GGUF_MAX_TENSORS = 1 << 18,
    GGUF_MAX_STRINGS = 1 << 22, /* in arrays */
    GGUF_MAX_NESTED = 1 << 16,  /* arrays in arrays */
    GGUF_MAX_FILES = 4096,
};

enum {
    GGUF_MAX_KEY_BYTES = 65535, /* from the specification */
    GGUF_MAX_NAME_BYTES = 255,  /* the specification says 64; some writers exceed it */
    GGUF_MAX_DEPTH = 4,         /* arrays in arrays */
    GGUF_MAX_ALIGNMENT = 1 << 30,
    GGUF_DEFAULT_ALIGNMENT = 32,
};

/* What was read of a model's files so far, to hold against the limits. */
struct gguf_totals {
    uint64_t n_bytes, n_kv, n_tensors, n_strings, n_nested;
};

/* Where a key's value comes from. */
enum gguf_origin {
    GGUF_FROM_FILE,
    GGUF_GIVEN, /* by gguf_override, and gguf_find was not asked for it yet */
    GGUF_GIVEN_AND_READ,
};

/* One file of the model. All memory belongs to the view's arena, the index excepted. */
struct gguf_file {
    char *path;
    uint64_t n_bytes, alignment; /* n_bytes: of a header that is there alone, what the whole file has at least */
    bool is_header;              /* the file ends before its tensors do */
    uint32_t version;
    struct gguf_kv *kv;
    uint64_t n_kv;
    atomic_uchar *origins; /* [n_kv] enum gguf_origin; NULL: nothing was overridden */
    struct gguf_tensor *tensors;
    uint64_t n_tensors;
    struct gguf_index keys; /* key -> index into kv */
};

struct gguf {
    struct arena arena;
    struct gguf_totals totals;
    struct gguf_file *files;
    int n_files;
    bool may_be_header;          /* files may end before their tensors do */
    uint64_t file_fingerprint;   /* if something was overridden: the fingerprint before that */
    struct gguf_tensor *tensors; /* of all files */
    uint64_t n_tensors;
    struct gguf_index names; /* tensor name -> index into tensors */
};

/* Where a file's bytes come from: a descriptor, or memory when `bytes` is not NULL. */
struct gguf_source {
    int fd;
    const void *bytes;
    uint64_t n_bytes;
    bool may_be_header; /* the tensors may lie beyond the end */
};

/* Parses one file into `f`, whose path is set and whose other fields are zero; adds to the totals, and refuses what
 * would exceed a limit. The tensors' `file` is left 0. */
MUST_USE err_code gguf_parse(struct gguf_file *f, const struct gguf_source *src, struct arena *arena,
                             struct gguf_totals *totals, struct err *e);

const struct gguf_value *gguf_file_find(const struct gguf_file *f, const char *key);

/* The value as an unsigned integer; false when it is no integer or is negative. */
bool gguf_value_u64(const struct gguf_value *v, uint64_t *out);

/* Bytes of an element of a scalar type, as stored in files; 0 for strings, arrays and what is no type. */
size_t gguf_value_type_bytes(uint32_t type);

/* Bytes from a file made fit for a message: printable ASCII, cut at about 80 characters. */
struct gguf_shown {
    char s[96];
};
struct gguf_shown gguf_show(const char *s, size_t n);

#endif
