/* Keys of a GGUF, checked. */
#include "model/loader.h"

#include <stdio.h>
#include <string.h>

void load_key(const struct loader *l, const char *suffix, char key[LOAD_KEY_BYTES])
{
    snprintf(key, LOAD_KEY_BYTES, "%s.%s", l->m->arch, suffix);
}

bool load_has_key(const struct loader *l, const char *suffix)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    return gguf_find(l->g, key) != NULL;
}

static err_code too_large(const struct loader *l, const char *key, uint64_t v, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: key \"%s\" is %llu, expected at most %d", gguf_file_path(l->g, 0), key,
                   (unsigned long long)v, LOAD_MAX_U32);
}

err_code load_u32(struct loader *l, const char *suffix, int64_t *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    uint32_t v;
    load_key(l, suffix, key);
    TRY(gguf_need_u32(l->g, key, &v, e));
    *out = v;
    return *out <= LOAD_MAX_U32 ? ERR_OK : too_large(l, key, v, e);
}

err_code load_u32_opt(struct loader *l, const char *suffix, int64_t *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    return gguf_find(l->g, key) ? load_u32(l, suffix, out, e) : ERR_OK;
}

const struct f32_range load_factor_range = {1e-6f, 1e6f, true}, load_base_range = {1, 1e12f, false};

static err_code take_f32(const struct loader *l, const char *key, const struct f32_range *range, float v, float *out,
                         struct err *e)
{
    if (!(v >= range->least && v <= range->most) && !(v == 0 && range->zero_is_none))
        return err_set(e, ERR_FORMAT, "%s: key \"%s\" is %g, expected %s%g to %g", gguf_file_path(l->g, 0), key,
                       (double)v, range->zero_is_none ? "0 or " : "", (double)range->least, (double)range->most);
    *out = v;
    return ERR_OK;
}

err_code load_f32_opt(struct loader *l, const char *suffix, const struct f32_range *range, float *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    float v = *out;
    load_key(l, suffix, key);
    if (!gguf_find(l->g, key))
        return ERR_OK;
    TRY(gguf_opt_f32(l->g, key, &v, e));
    return take_f32(l, key, range, v, out, e);
}

err_code load_f32(struct loader *l, const char *suffix, const struct f32_range *range, float *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    TRY(gguf_need_f32(l->g, key, out, e));
    return load_f32_opt(l, suffix, range, out, e);
}

err_code load_bool_opt(struct loader *l, const char *suffix, bool *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    return gguf_opt_bool(l->g, key, out, e);
}

err_code load_layer_u32_opt(struct loader *l, const char *suffix, int64_t layer, int64_t *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    load_key(l, suffix, key);
    if (!gguf_find(l->g, key))
        return ERR_OK;
    uint32_t *all = mem_calloc((size_t)l->n_block, sizeof *all);
    if (!all)
        return err_nomem(e, (size_t)l->n_block * sizeof *all, key);
    err_code code = gguf_layer_u32(l->g, key, all, (uint32_t)l->n_block, true, e);
    if (code == ERR_OK)
        *out = all[layer];
    mem_free(all);
    return code != ERR_OK || *out <= LOAD_MAX_U32 ? code : too_large(l, key, (uint64_t)*out, e);
}

err_code load_layer_f32_opt(struct loader *l, const char *suffix, int64_t layer, const struct f32_range *range,
                            float *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    const void *all;
    uint64_t n;
    float v;
    load_key(l, suffix, key);
    const struct gguf_value *value = gguf_find(l->g, key);
    if (!value || value->type != GGUF_ARRAY)
        return load_f32_opt(l, suffix, range, out, e);
    TRY(gguf_opt_array(l->g, key, GGUF_F32, &all, &n, e));
    if (n != (uint64_t)l->n_block)
        return err_set(e, ERR_FORMAT, "%s: key \"%s\" has %llu elements, expected one for each of %lld layers",
                       gguf_file_path(l->g, 0), key, (unsigned long long)n, (long long)l->n_block);
    memcpy(&v, (const char *)all + (size_t)layer * sizeof v, sizeof v);
    return take_f32(l, key, range, v, out, e);
}

err_code load_layer_flag_opt(struct loader *l, const char *suffix, int64_t layer, bool *out, struct err *e)
{
    char key[LOAD_KEY_BYTES];
    const void *flags;
    uint64_t n;
    load_key(l, suffix, key);
    const struct gguf_value *v = gguf_find(l->g, key);
    if (!v || v->type != GGUF_ARRAY)
        return ERR_OK;
    if (v->arr.type != GGUF_BOOL) { /* some converters write 0 and 1 */
        int64_t number = 0;
        TRY(load_layer_u32_opt(l, suffix, layer, &number, e));
        *out = number != 0;
        return ERR_OK;
    }
    TRY(gguf_opt_array(l->g, key, GGUF_BOOL, &flags, &n, e));
    if (n < (uint64_t)l->m->n_layer)
        return err_set(e, ERR_FORMAT, "%s: %s has %llu elements, expected one for each of %lld layers",
                       gguf_file_path(l->g, 0), key, (unsigned long long)n, (long long)l->m->n_layer);
    *out = ((const uint8_t *)flags)[layer];
    return ERR_OK;
}
