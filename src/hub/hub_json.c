#include <string.h>

#include "base/json_text.h"
#include "hub/hub_api.h"

static json_t *parse(const char *text, size_t n, const char *url, struct err *e)
{
    json_error_t error;
    json_t *j = json_read(text, n, JSON_REJECT_DUPLICATES, &error);
    if (!j && *error.text)
        err_set(e, ERR_FORMAT, "%.300s: not the JSON that the Hub gives: %s", url, error.text);
    else if (!j)
        err_nomem(e, n, "an answer of the Hub");
    return j;
}

err_code hub_api_read_commit(const char *text, size_t n, const char *url, char commit[HUB_COMMIT_BYTES], struct err *e)
{
    json_t *j = parse(text, n, url, e);
    if (!j)
        return e->code;
    const char *sha = json_string_value(json_object_get(j, "sha"));
    err_code code = ERR_OK;
    if (!sha || strlen(sha) != HUB_COMMIT_BYTES - 1 || !hub_is_hex(sha, HUB_COMMIT_BYTES - 1))
        code = err_set(e, ERR_FORMAT, "%.300s: sha: expected 40 hexadecimal digits", url);
    else
        memcpy(commit, sha, HUB_COMMIT_BYTES);
    json_decref(j);
    return code;
}

static bool read_size(const json_t *j, uint64_t *out)
{
    json_int_t n = json_integer_value(j);
    *out = (uint64_t)n;
    return json_is_integer(j) && n > 0 && n <= HUB_MOST_BYTES;
}

static err_code add_entry(const json_t *entry, const char *url, struct model_sets *out, struct err *e)
{
    const char *type = json_string_value(json_object_get(entry, "type"));
    const char *path = json_string_value(json_object_get(entry, "path"));
    const json_t *lfs = json_object_get(entry, "lfs");
    const char *digest = json_string_value(json_object_get(lfs ? lfs : entry, "oid"));
    const size_t n_digit = lfs ? HUB_SHA256_DIGITS : HUB_GIT_DIGITS;
    struct hub_file f = {.path = path, .digest = digest};
    size_t n = path ? strlen(path) : 0;
    if (!type || !path)
        return err_set(e, ERR_FORMAT, "%.300s: expected entries with type and path", url);
    if (strcmp(type, "file") != 0 || n < 5 || strcmp(path + n - 5, ".gguf") != 0)
        return ERR_OK;
    if (!hub_path_is_safe(path))
        return err_set(e, ERR_FORMAT, "%.300s: names a file \"%.200s\", which is refused", url, path);
    if (!read_size(json_object_get(entry, "size"), &f.n_bytes))
        return err_set(e, ERR_FORMAT, "%.300s: %s: size: expected a number of bytes", url, path);
    if (!digest)
        return err_set(e, ERR_FORMAT,
                       "%.300s: %s: no checksum is given; expected one in lfs.oid or, of a file outside LFS, in oid",
                       url, path);
    if (strlen(digest) != n_digit || !hub_is_hex(digest, n_digit))
        return err_set(e, ERR_FORMAT, "%.300s: %s: %soid: expected %zu hexadecimal digits", url, path,
                       lfs ? "lfs." : "", n_digit);
    return model_sets_add(out, &f, e);
}

err_code hub_api_read_tree(const char *text, size_t n, const char *url, struct model_sets *out, struct err *e)
{
    json_t *j = parse(text, n, url, e);
    if (!j)
        return e->code;
    err_code code = json_is_array(j) ? ERR_OK : err_set(e, ERR_FORMAT, "%.300s: expected a list of files", url);
    for (size_t i = 0; code == ERR_OK && i < json_array_size(j); i++)
        code = add_entry(json_array_get(j, i), url, out, e);
    json_decref(j);
    return code;
}
