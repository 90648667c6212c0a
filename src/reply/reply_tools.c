#include "reply/reply_tools.h"

#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"

enum {
    MAX_TOOLS = 1024,
    MAX_NAME = 128,        /* bytes */
    MAX_SCHEMA_DEPTH = 16, /* of references and alternatives that are followed */
    MAX_LOOKS = 4096,      /* schemas and values that are looked at for one parameter */
};

/* What a schema lets a value be. */
enum { MAY_BE_STRING = 1, MAY_BE_NULL = 2, MAY_BE_OTHER = 4, MAY_BE_ANY = 7 };

static bool is_name_byte(char c)
{
    return c > ' ' && c < 0x7f && !strchr("<>{}()[]\"'`=,;", c);
}

static err_code check_name(const char *name, size_t i, struct err *e)
{
    size_t n = name ? strlen(name) : 0, good = 0;
    while (good < n && is_name_byte(name[good]))
        good++;
    if (n == 0)
        return err_set(e, ERR_FORMAT, "tools[%zu]: expected a name", i);
    if (good < n || n > MAX_NAME)
        return err_set(e, ERR_FORMAT, "tools[%zu]: \"%.*s\": expected a name of letters, digits, - and _, at most %d",
                       i, MAX_NAME, name, MAX_NAME);
    return ERR_OK;
}

static err_code take_tool(struct reply_tools *t, const json_t *j, size_t i, struct err *e)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    const json_t *function = json_object_get(j, "function");
    if (!json_is_object(j))
        return err_set(e, ERR_FORMAT, "tools[%zu]: expected an object", i);
    if (type && strcmp(type, "function") != 0)
        return ERR_OK;
    function = function ? function : j;
    const char *name = json_string_value(json_object_get(function, "name"));
    const json_t *parameters = json_object_get(function, "parameters");
    parameters = parameters ? parameters : json_object_get(function, "input_schema");
    TRY(check_name(name, i, e));
    if (reply_tools_find(t, name))
        return err_set(e, ERR_FORMAT, "tools[%zu]: \"%s\" is there twice", i, name);
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return err_set(e, ERR_FORMAT, "tools[%zu]: \"%s\": expected parameters to be a schema, an object", i, name);
    t->tools[t->n++] = (struct reply_tool){name, json_is_object(parameters) ? parameters : NULL};
    return ERR_OK;
}

err_code reply_tools_open(struct reply_tools *t, const char *json, struct err *e)
{
    json_error_t error;
    *t = (struct reply_tools){.json = json_read(json, strlen(json), JSON_ALLOW_NUL, &error)};
    if (!t->json && !*error.text)
        return err_nomem(e, strlen(json), "the tools");
    if (!t->json)
        return err_set(e, ERR_FORMAT, "tools: line %d, column %d: %s", error.line, error.column, error.text);
    size_t n = json_array_size(t->json);
    if (!json_is_array(t->json))
        return err_set(e, ERR_FORMAT, "tools: expected a JSON array");
    if (n > MAX_TOOLS)
        return err_set(e, ERR_LIMIT, "%zu tools: expected at most %d", n, MAX_TOOLS);
    t->tools = mem_calloc(n + 1, sizeof *t->tools);
    if (!t->tools)
        return err_nomem(e, n * sizeof *t->tools, "the tools");
    for (size_t i = 0; i < n; i++)
        TRY(take_tool(t, json_array_get(t->json, i), i, e));
    return ERR_OK;
}

void reply_tools_close(struct reply_tools *t)
{
    json_decref(t->json);
    mem_free(t->tools);
    *t = (struct reply_tools){0};
}

const struct reply_tool *reply_tools_find(const struct reply_tools *t, const char *name)
{
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->tools[i].name, name))
            return &t->tools[i];
    return NULL;
}

/* ---- kinds --------------------------------------------------------------------------------------------------- */

/* What #/a/b names within the schema; NULL: nothing. Escapes in pointers are not read. */
static const json_t *follow(const json_t *root, const char *pointer)
{
    char key[256];
    const json_t *at = root;
    if (*pointer++ != '#')
        return NULL;
    while (at && *pointer == '/') {
        size_t n = strcspn(++pointer, "/");
        if (n >= sizeof key)
            return NULL;
        memcpy(key, pointer, n);
        key[n] = '\0';
        at = json_object_get(at, key);
        pointer += n;
    }
    return at;
}

static unsigned of_type(const char *type)
{
    if (!type)
        return MAY_BE_ANY;
    return !strcmp(type, "string") ? MAY_BE_STRING : !strcmp(type, "null") ? MAY_BE_NULL : MAY_BE_OTHER;
}

static unsigned of_values(const json_t *values, size_t *n_left)
{
    unsigned mask = 0;
    size_t i;
    json_t *value;
    if (json_array_size(values) > *n_left)
        return MAY_BE_ANY;
    *n_left -= json_array_size(values);
    json_array_foreach(values, i, value)
    {
        mask |= json_is_string(value) ? MAY_BE_STRING : json_is_null(value) ? MAY_BE_NULL : MAY_BE_OTHER;
    }
    return mask;
}

/* *n_left: how many more schemas and values are looked at, as references may lead to the same ones again and again. */
static unsigned what_it_may_be(const json_t *schema, const json_t *root, int depth, size_t *n_left)
{
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const"), *any = json_object_get(schema, "anyOf");
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    unsigned mask = 0;
    size_t i;
    json_t *item;
    if (!json_is_object(schema) || depth >= MAX_SCHEMA_DEPTH || *n_left == 0)
        return MAY_BE_ANY;
    --*n_left;
    any = any ? any : json_object_get(schema, "oneOf");
    if (json_is_array(type)) {
        json_array_foreach(type, i, item)
        {
            mask |= of_type(json_string_value(item));
        }
    } else if (type) {
        mask = of_type(json_string_value(type));
    } else if (constant) {
        mask = json_is_string(constant) ? MAY_BE_STRING : json_is_null(constant) ? MAY_BE_NULL : MAY_BE_OTHER;
    } else if (json_is_array(values)) {
        mask = of_values(values, n_left);
    } else if (ref) {
        mask = what_it_may_be(follow(root, ref), root, depth + 1, n_left);
    } else if (json_is_array(any) && json_array_size(any) <= MAX_SCHEMA_DEPTH) {
        json_array_foreach(any, i, item)
        {
            mask |= what_it_may_be(item, root, depth + 4, n_left); /* few levels, as each may branch */
        }
    } else {
        const json_t *all = json_object_get(schema, "allOf");
        return json_array_size(all) == 1 ? what_it_may_be(json_array_get(all, 0), root, depth + 1, n_left) : MAY_BE_ANY;
    }
    return mask;
}

enum reply_kind reply_tool_kind(const struct reply_tool *tool, const char *parameter)
{
    const json_t *properties = json_object_get(tool->parameters, "properties");
    size_t n_left = MAX_LOOKS;
    unsigned mask = what_it_may_be(json_object_get(properties, parameter), tool->parameters, 0, &n_left);
    return mask == MAY_BE_STRING                   ? REPLY_KIND_STRING
           : mask == (MAY_BE_STRING | MAY_BE_NULL) ? REPLY_KIND_STRING_NULL
                                                   : REPLY_KIND_ANY;
}
