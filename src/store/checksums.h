/* Checksums of a GGUF, which has none itself: a file beside the model, FILE.crc32c, with a CRC32C for each expert's
 * part and each other tensor. It is a GGUF file of metadata only, made by `moebius verify --write`. */
#ifndef STORE_CHECKSUMS_H
#define STORE_CHECKSUMS_H

#include "base/mem.h"
#include "store/store.h"

struct checksums {
    uint64_t n_tensors;
    uint32_t *tensor; /* [n_tensors] in gguf_tensor_at's order; 0 for tensors of routed experts */
    bool *is_expert;  /* [n_tensors] whether it is one of routed experts */
    size_t n_parts;
    uint32_t *part; /* [n_parts] of all layers in order: expert by expert, gate, up, down */
    size_t *first;  /* [store_n_layers + 1] of a layer's parts */
    struct arena arena;
};

/* Zeros, for the model of a store. Half-open after a failure. */
MUST_USE err_code checksums_create(struct checksums *c, const struct store *s, struct err *e);
/* The sidecar of the store's model; *found false, and c empty, when there is none. ERR_FORMAT when it is of another
 * model. */
MUST_USE err_code checksums_load(struct checksums *c, const struct store *s, bool *found, struct err *e);
MUST_USE err_code checksums_parse(struct checksums *c, const struct store *s, const struct gguf *sidecar,
                                  struct err *e);
MUST_USE err_code checksums_save(const struct checksums *c, const struct store *s, struct err *e);
void checksums_close(struct checksums *c);

/* The sidecar's path; owned by the caller (mem_free), NULL when out of memory. */
char *checksums_path(const struct store *s);

/* Of a part of an expert, into `part`. */
size_t checksums_index(const struct checksums *c, int layer, int expert, enum expert_matrix matrix);

#endif
