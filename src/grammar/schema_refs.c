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

/* Notes that a schema is called so, unless another one was before it. */
static err_code note_name(struct schema_compiler *c, const char *name, const json_t *schema)
{
    uint32_t number = intern_text(&c->anchors, name, strlen(name));
    bool is_known = number < c->anchored.n;
    return is_known || (number != INTERN_NONE && LIST_PUSH(&c->anchored, schema)) ? ERR_OK : schema_no_memory(c);
}

/* "$anchor": "name" is also called "#name". */
static err_code note_anchor(struct schema_compiler *c, const char *name, const json_t *schema)
{
    size_t n = strlen(name);
    char *with_mark = arena_alloc(&c->arena, n + 2);
    if (!with_mark)
        return schema_no_memory(c);
    with_mark[0] = '#';
    memcpy(with_mark + 1, name, n + 1);
    TRY(note_name(c, with_mark, schema));
    return note_name(c, name, schema);
}

/* Notes all anchors and identifiers ("$anchor": "name", "$id": "#name", "id": "URI") in a part of the document. */
static err_code note_names(struct schema_compiler *c, const json_t *at, int depth)
{
    static const char *const keys[] = {"$anchor", "$id", "id"};
    if (depth > SCHEMA_MAX_DEPTH)
        return ERR_OK;
    for (unsigned i = 0; i < 3 && json_is_object(at); i++) {
        const char *s = json_string_value(json_object_get(at, keys[i]));
        if (s)
            TRY(i == 0 ? note_anchor(c, s, at) : note_name(c, s, at));
    }
    for (void *i = json_object_iter((json_t *)at); i; i = json_object_iter_next((json_t *)at, i))
        TRY(note_names(c, json_object_iter_value(i), depth + 1));
    for (size_t i = 0; i < json_array_size(at); i++)
        TRY(note_names(c, json_array_get(at, i), depth + 1));
    return ERR_OK;
}

/* The schema with this anchor or identifier; *schema NULL: there is none. */
static err_code find_named(struct schema_compiler *c, const char *name, const json_t **schema)
{
    if (c->anchored.n == 0)
        TRY(note_names(c, c->root, 0));
    uint32_t number = intern_text(&c->anchors, name, strlen(name));
    if (number == INTERN_NONE)
        return schema_no_memory(c);
    if (number == c->anchored.n && !LIST_PUSH(&c->anchored, NULL)) /* so that it is known to be missing */
        return schema_no_memory(c);
    *schema = c->anchored.at[number];
    return ERR_OK;
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
        return fragment ? ERR_OK : find_named(c, ref, json);
    }
    if (copy[1] == '\0')
        *json = c->root;
    else if (copy[1] == '/') {
        char *changed = arena_strndup(&c->arena, copy + 1, strlen(copy + 1));
        if (!changed)
            return schema_no_memory(c);
        *json = follow(c->root, changed);
    } else
        TRY(find_named(c, copy, json));
    *pointer = copy + 1;
    if (!*json && !c->lenient)
        return err_set(c->e, ERR_FORMAT, "schema, at %s: $ref points to %s, which is not there", d->pointer, ref);
    return ERR_OK;
}
