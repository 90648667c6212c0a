/* Checksums of a GGUF, which has none itself: a file FILE.crc32c beside the model, with a CRC32C for each matrix of
 * each expert and for each other tensor. It is a GGUF file that has only metadata; `moebius verify --write` makes it.
 */
#ifndef STORE_CHECKSUMS_H
#define STORE_CHECKSUMS_H

#include "base/mem.h"
#include "store/store.h"

struct checksums {
    uint64_t n_tensors;
    uint32_t *tensor; /* [n_tensors], checksums in gguf_tensor_at's order; 0 for tensors of routed experts */
    bool *is_expert;  /* [n_tensors], whether a tensor holds routed experts */
    size_t n_parts;   /* matrices of all experts */
    uint32_t *part;   /* [n_parts], their checksums, layer by layer: expert by expert, gate, up, down */
    size_t *first;    /* [store_n_layers + 1], the index of each layer's first in `part` */
    struct arena arena;
};

/* Allocates the checksums of a store's model, all 0. The caller closes them even after a failure. */
MUST_USE err_code checksums_create(struct checksums *c, const struct store *s, struct err *e);
/* Reads the sidecar of the store's model. *found is false, and c empty, when there is none. ERR_FORMAT when it belongs
 * to another model. */
MUST_USE err_code checksums_load(struct checksums *c, const struct store *s, bool *found, struct err *e);
MUST_USE err_code checksums_parse(struct checksums *c, const struct store *s, const struct gguf *sidecar,
                                  struct err *e);
MUST_USE err_code checksums_save(const struct checksums *c, const struct store *s, struct err *e);
void checksums_close(struct checksums *c);

/* The sidecar's path; owned by the caller (mem_free), NULL when out of memory. */
char *checksums_path(const struct store *s);

/* The index of an expert's matrix in `part`. */
size_t checksums_index(const struct checksums *c, int layer, int expert, enum expert_matrix matrix);

#endif
