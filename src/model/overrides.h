/* What the caller changes of a model's metadata before it is loaded. */
#ifndef MODEL_OVERRIDES_H
#define MODEL_OVERRIDES_H

#include "gguf/gguf.h"

struct model_overrides {
    const char *const *keys; /* [n_key], as for gguf_override */
    int n_key;
    double yarn; /* extend the trained context by this factor, above 1, with YaRN; 0: don't */
};

/* Opens files as gguf_open does or, if is_header is not NULL, as gguf_open_header, and overrides their metadata. On
 * failure *out is NULL. */
MUST_USE err_code model_open_gguf(struct gguf **out, const char *path, bool *is_header, const struct model_overrides *o,
                                  struct err *e);

#endif
