/* What a directory of a prepared store holds.
 *
 * A store is one or several directories, each complete in itself. MANIFEST_FILE says which experts lie where in
 * MANIFEST_DATA, with their checksums, their layouts and the fingerprint of the model that they were made from. The
 * manifest is a GGUF file that has only metadata (`moebius inspect` shows it). It is written last, so a directory
 * without it is not a store; while one is being made, MANIFEST_PART says what is safely there already. */
#ifndef STORE_MANIFEST_H
#define STORE_MANIFEST_H

#include "base/mem.h"
#include "quant/layout.h"
#include "store/store.h"

#define MANIFEST_FILE "store.gguf"
#define MANIFEST_PART "store.gguf.part"
#define MANIFEST_DATA "experts.bin"

#define MANIFEST_ABSENT UINT64_MAX

struct manifest {
    char fingerprint[28]; /* store_fingerprint, in hexadecimal digits */
    int n_layers;
    struct manifest_layer {
        int n_expert;
        size_t first;              /* the index of its first expert in the arrays below */
        struct layout_image image; /* how each of its experts lies; offsets and n_bytes are multiples of STORE_ALIGN */
    } * layers;
    size_t n_experts; /* of all layers */
    uint64_t *place;  /* [n_experts], where each image begins in MANIFEST_DATA, a multiple of STORE_ALIGN; or
                         MANIFEST_ABSENT */
    uint32_t *crc;    /* [n_experts][EXPERT_N_MATRIX], CRC32C of each matrix in its image */
    struct arena arena;
};

/* Creates a manifest in which every expert is absent. images [n_layers] is filled for layers that have experts. The
 * caller closes the manifest even after a failure; so for the next function. */
MUST_USE err_code manifest_create(struct manifest *m, uint64_t fingerprint, const struct store_layer *layers,
                                  const struct layout_image *images, int n_layers, struct err *e);
/* The same for the model and layouts of another. */
MUST_USE err_code manifest_create_like(struct manifest *m, const struct manifest *other, struct err *e);
MUST_USE err_code manifest_load(struct manifest *m, const char *path, struct err *e);
/* Loads the manifest of a directory. If there is only MANIFEST_PART, the error says that the store is not finished. */
MUST_USE err_code manifest_load_dir(struct manifest *m, const char *dir, struct err *e);
/* Reads a manifest from a parsed file. The caller closes it even after a failure. */
MUST_USE err_code manifest_parse(struct manifest *m, const struct gguf *g, struct err *e);
MUST_USE err_code manifest_save(const struct manifest *m, const char *path, struct err *e); /* whole or not at all */
void manifest_close(struct manifest *m);

/* The length of one matrix in an expert's image, up to the next matrix. */
size_t manifest_part_bytes(const struct manifest_layer *l, enum expert_matrix matrix);

size_t manifest_index(const struct manifest *m, int layer, int expert);
/* Where the last expert in MANIFEST_DATA ends: the file must be at least so long. */
uint64_t manifest_data_bytes(const struct manifest *m);

/* ERR_FORMAT, with the reason, if a manifest that was read from `path` is of another model than `wanted`, or in other
 * layouts. */
MUST_USE err_code manifest_check(const struct manifest *m, const char *path, const struct manifest *wanted,
                                 struct err *e);

#endif
