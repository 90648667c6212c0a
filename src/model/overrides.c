#include "model/overrides.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ARCH_BYTES = 64, KEY_BYTES = 128, TEXT_BYTES = 192, MOST_YARN = 64 };

/* Refuses a model whose positions its file scales already. */
static err_code check_is_unscaled(const struct gguf *g, const char *arch, struct err *e)
{
    static const char *const factors[] = {"rope.scaling.factor", "rope.scale_linear"};
    struct gguf_string type = {"none", 4};
    char key[KEY_BYTES];
    float factor = 1;
    for (int i = 0; i < 2 && (factor == 0 || factor == 1); i++) {
        snprintf(key, sizeof key, "%s.%s", arch, factors[i]);
        TRY(gguf_opt_f32(g, key, &factor, e));
    }
    bool is_scaled = factor != 0 && factor != 1;
    if (!is_scaled) {
        snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
        TRY(gguf_opt_string(g, key, &type, e));
        is_scaled = strcmp(type.s, "none") != 0 && strcmp(type.s, "linear") != 0;
    }
    if (!is_scaled) {
        snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
        is_scaled = gguf_find(g, key) != NULL;
    }
    if (is_scaled)
        return err_set(e, ERR_USAGE,
                       "%s: key \"%s\" scales the model's positions already; expected a model without "
                       "for YaRN",
                       gguf_file_path(g, 0), key);
    return ERR_OK;
}

/* YaRN (Peng et al., 2023) by the keys that files have for it. */
static err_code extend_context(struct gguf *g, double factor, struct err *e)
{
    struct gguf_string arch;
    char key[KEY_BYTES], type[TEXT_BYTES], scale[TEXT_BYTES], original[TEXT_BYTES], length[TEXT_BYTES];
    uint32_t n_ctx;
    if (!(factor > 1 && factor <= MOST_YARN))
        return err_set(e, ERR_USAGE, "YaRN by a factor of %g: expected more than 1, and at most %d", factor, MOST_YARN);
    TRY(gguf_need_string(g, "general.architecture", &arch, e));
    if (arch.n > MAX_ARCH_BYTES)
        return err_set(e, ERR_FORMAT, "%s: an architecture's name of %zu bytes", gguf_file_path(g, 0), arch.n);
    TRY(check_is_unscaled(g, arch.s, e));
    snprintf(key, sizeof key, "%s.context_length", arch.s);
    TRY(gguf_need_u32(g, key, &n_ctx, e));
    snprintf(type, sizeof type, "%s.rope.scaling.type=str:yarn", arch.s);
    snprintf(scale, sizeof scale, "%s.rope.scaling.factor=float:%.17g", arch.s, factor);
    snprintf(original, sizeof original, "%s.rope.scaling.original_context_length=int:%" PRIu32, arch.s, n_ctx);
    snprintf(length, sizeof length, "%s=int:%.0f", key, n_ctx * factor);
    return gguf_override(g, (const char *const[]){type, scale, original, length}, 4, e);
}

err_code model_open_gguf(struct gguf **out, const char *path, bool *is_header, const struct model_overrides *o,
                         struct err *e)
{
    TRY(is_header ? gguf_open_header(out, path, is_header, e) : gguf_open(out, path, e));
    err_code code = gguf_override(*out, o->keys, o->n_key, e);
    if (code == ERR_OK && o->yarn != 0)
        code = extend_context(*out, o->yarn, e);
    if (code != ERR_OK)
        gguf_close(out);
    return code;
}
