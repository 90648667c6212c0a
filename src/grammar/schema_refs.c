#include <string.h>

#include "grammar/schema_compiler.h"

/* One step of a pointer, its escapes (%41, ~0, ~1) resolved in place; returns its length. */
static size_t unescape(char *s, size_t n)
{
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '%' && i + 2 < n && hex_value(s[i + 1]) >= 0 && hex_value(s[i + 2]) >= 0) {
            s[out++] = (char)(hex_value(s[i + 1]) * 16 + hex_value(s[i + 2]));
            i += 2;
        } else
            s[out++] = s[i];
    }
    n = out;
    out = 0;
    for (size_t i = 0; i < n; i++) {
        bool tilde = s[i] == '~' && i + 1 < n && (s[i + 1] == '0' || s[i + 1] == '1');
        s[out++] = (char)(!tilde ? s[i] : s[i + 1] == '0' ? '~' : '/');
        i += tilde;
    }
    return out;
}

static const json_t *step(const json_t *at, const char *key, size_t n)
{
    size_t index = 0;
    if (json_is_object(at))
        return json_object_getn(at, key, n);
    if (!json_is_array(at) || n == 0 || n > 9)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        if (key[i] < '0' || key[i] > '9')
            return NULL;
        index = index * 10 + (size_t)(key[i] - '0');
    }
    return json_array_get(at, index);
}

/* What "/a/b" points to; NULL: nothing. Changes the text. */
static const json_t *follow(const json_t *at, char *pointer)
{
    while (at && *pointer == '/') {
        char *key = ++pointer;
        while (*pointer && *pointer != '/')
            pointer++;
        char end = *pointer;
        size_t n = unescape(key, (size_t)(pointer - key));
        at = step(at, key, n);
        *pointer = end;
    }
    return *pointer ? NULL : at;
}

/* The schema with this anchor ("$anchor": "name", "$id": "#name" or "id": "#name") or this identifier. */
static const json_t *find_named(const json_t *at, const char *name, int depth)
{
    static const char *const keys[] = {"$anchor", "$id", "id"};
    const json_t *found = NULL;
    if (depth > SCHEMA_MAX_DEPTH)
        return NULL;
    for (unsigned i = 0; i < 3 && json_is_object(at); i++) {
        const char *s = json_string_value(json_object_get(at, keys[i]));
        if (s && (!strcmp(s, name) || (i == 0 && name[0] == '#' && !strcmp(s, name + 1))))
            return at;
    }
    for (void *i = json_object_iter((json_t *)at); i && !found; i = json_object_iter_next((json_t *)at, i))
        found = find_named(json_object_iter_value(i), name, depth + 1);
    for (size_t i = 0; i < json_array_size(at) && !found; i++)
        found = find_named(json_array_get(at, i), name, depth + 1);
    return found;
}

err_code schema_resolve(struct schema_draft *d, const char *ref, const json_t **json, const char **pointer)
{
    struct schema_compiler *c = d->c;
    const char *fragment = strchr(ref, '#'), *id = json_string_value(json_object_get(c->root, "$id"));
    size_t n_base = fragment ? (size_t)(fragment - ref) : strlen(ref);
    *json = NULL;
    if (!id)
        id = json_string_value(json_object_get(c->root, "id"));
    size_t n_id = id ? strcspn(id, "#") : 0;
    char *copy = arena_strndup(&c->arena, fragment ? fragment : "#", fragment ? strlen(fragment) : 1);
    if (!copy)
        return schema_no_memory(c);
    *pointer = copy;
    if (n_base > 0 && (n_base != n_id || memcmp(ref, id, n_base) != 0)) { /* perhaps another schema's identifier */
        if (!fragment)
            *json = find_named(c->root, ref, 0);
        return ERR_OK;
    }
    if (copy[1] == '\0')
        *json = c->root;
    else if (copy[1] == '/') {
        char *changed = arena_strndup(&c->arena, copy + 1, strlen(copy + 1));
        if (!changed)
            return schema_no_memory(c);
        *json = follow(c->root, changed);
    } else
        *json = find_named(c->root, copy, 0);
    *pointer = copy + 1;
    if (!*json && !c->lenient)
        return err_set(c->e, ERR_FORMAT, "schema, at %s: $ref points to %s, which is not there", d->pointer, ref);
    return ERR_OK;
}
