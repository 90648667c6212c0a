/* Writes GGUF files, version 3: metadata and tensors are announced first, then the whole is written in one
 * go.
 *
 * Adding never fails on the spot: the first mistake (no memory, a key twice, a bad shape) is kept, later
 * calls do nothing, and gguf_writer_save or gguf_writer_to_memory reports it. Files are written by
 * base/output_file.h: they appear whole or not at all. Not thread-safe. */
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include "base/output_file.h"
#include "gguf/gguf.h"

struct gguf_writer;

MUST_USE err_code gguf_writer_create(struct gguf_writer **out, struct err *e);
void gguf_writer_close(struct gguf_writer **w);

/* Everything passed in is copied, the data of tensors excepted. */
void gguf_writer_add_value(struct gguf_writer *w, const char *key, const struct gguf_value *v);
void gguf_writer_add_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_writer_add_f32(struct gguf_writer *w, const char *key, float v);
void gguf_writer_add_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_writer_add_string(struct gguf_writer *w, const char *key, const char *v);
void gguf_writer_add_strings(struct gguf_writer *w, const char *key, const char *const *v, uint64_t n);
void gguf_writer_add_array(struct gguf_writer *w, const char *key, enum gguf_value_type type, const void *data,
                           uint64_t n); /* data: as in struct gguf_value */

/* Adds "general.alignment" and aligns tensors to it (a power of two, 8 or more). Without: 32. Before any
 * tensor is added. */
void gguf_writer_set_alignment(struct gguf_writer *w, uint32_t alignment);

/* A tensor whose bytes lie at `data`, borrowed until the file is written. ne: n_dims of them. */
void gguf_writer_add_tensor(struct gguf_writer *w, const char *name, int n_dims, const uint64_t *ne, uint32_t type,
                            const void *data);

/* A tensor whose bytes come when they are written: `fill` is called with ascending, gapless pieces of whole
 * rows until all n_bytes of the tensor are there. It writes n bytes, those from `offset` within the tensor,
 * to dst. */
typedef err_code gguf_fill_fn(void *user, uint64_t offset, void *dst, size_t n, struct err *e);
void gguf_writer_add_tensor_fn(struct gguf_writer *w, const char *name, int n_dims, const uint64_t *ne, uint32_t type,
                               gguf_fill_fn *fill, void *user);

/* A tensor whose bytes the caller writes into the file itself: from the returned place behind the head. Then the file
 * is the head and gguf_writer_data_bytes of data, zeros where no tensor lies; gguf_writer_save and _to_memory can't
 * make it. */
uint64_t gguf_writer_place_tensor(struct gguf_writer *w, const char *name, int n_dims, const uint64_t *ne,
                                  uint32_t type);
uint64_t gguf_writer_data_bytes(const struct gguf_writer *w);

/* What stands before the data, owned by the caller (mem_free). */
MUST_USE err_code gguf_writer_head(struct gguf_writer *w, void **out, size_t *n, struct err *e);

/* Writes into an open file and finishes it, or abandons it on failure. */
MUST_USE err_code gguf_writer_write(struct gguf_writer *w, struct output_file *f, struct err *e);
/* Writes PATH. On failure PATH is as it was. May be called again, to another path. */
MUST_USE err_code gguf_writer_save(struct gguf_writer *w, const char *path, struct err *e);

/* The file's bytes, owned by the caller (mem_free). */
MUST_USE err_code gguf_writer_to_memory(struct gguf_writer *w, void **out, size_t *n, struct err *e);

#endif
