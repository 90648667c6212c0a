#include "server/tools.h"

#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"

struct tool {
    const char *name, *space, *description;
    json_t *parameters, *format; /* borrowed; NULL: none */
    bool is_custom, is_deferred;
};

/* ---- names ----------------------------------------------------------------------------------------------------- */

const char *tools_model_name(struct server_request *r, const char *space, const char *name)
{
    if (!space || !*space)
        return name;
    const char *between = space[strlen(space) - 1] == '_' ? "" : "__";
    return json_string_value(request_keep(r, json_sprintf("%s%s%s", space, between, name)));
}

struct tool_name tools_client_name(const struct server_request *r, const char *name)
{
    const json_t *kind = json_object_get(r->tool_kinds, name);
    const char *own = json_string_value(json_object_get(kind, "name"));
    const char *what = json_string_value(json_object_get(kind, "kind"));
    return (struct tool_name){.name = own ? own : name,
                              .space = json_string_value(json_object_get(kind, "namespace")),
                              .is_custom = request_is(what, "custom")};
}

json_t *tools_custom_input(const char *arguments, size_t n)
{
    json_error_t error;
    json_t *object = json_read(arguments, n, JSON_ALLOW_NUL, &error);
    json_t *input = json_object_get(object, "input");
    input = json_is_string(input) ? json_incref(input) : json_text(arguments, n);
    json_decref(object);
    return input;
}

json_t *tools_arguments_object(const char *text, size_t n)
{
    json_error_t error;
    json_t *object = n ? json_read(text, n, JSON_ALLOW_NUL, &error) : json_object();
    if (json_is_object(object))
        return object;
    json_decref(object);
    return json_pack("{s:o}", "arguments", json_text(text, n));
}

/* ---- adding ---------------------------------------------------------------------------------------------------- */

/* A custom tool's description also says what its input must look like. */
static json_t *describe(const struct tool *t)
{
    const char *text = t->description ? t->description : "";
    json_t *inner = json_object_get(t->format, "grammar"); /* Chat has one more level than Responses */
    const json_t *format = json_is_object(inner) ? inner : t->format;
    const char *syntax = json_string_value(json_object_get(format, "syntax"));
    const char *definition = json_string_value(json_object_get(format, "definition"));
    if (!t->is_custom || !definition)
        return json_string(text);
    return json_sprintf("%s\n\nThe input follows this grammar (%s):\n%s", text, syntax ? syntax : "lark", definition);
}

static json_t *make_parameters(const struct tool *t)
{
    if (t->is_custom)
        return json_pack("{s:s,s:{s:{s:s}},s:[s],s:b}", "type", "object", "properties", "input", "type", "string",
                         "required", "input", "additionalProperties", 0);
    if (t->parameters && json_object_size(t->parameters) > 0)
        return json_incref(t->parameters);
    return json_pack("{s:s,s:{}}", "type", "object", "properties");
}

static err_code add_tool(struct server_request *r, const char *path, const struct tool *t, struct err *e)
{
    const char *name = tools_model_name(r, t->space, t->name);
    if (!name)
        return err_nomem(e, 0, path);
    if (json_object_get(r->tool_kinds, name)) {
        server_request_note(r, "%s: a second tool with the name %s is ignored", path, name);
        return ERR_OK;
    }
    json_t *function =
        json_pack("{s:s,s:o,s:o}", "name", name, "description", describe(t), "parameters", make_parameters(t));
    json_t *kind = json_pack("{s:s,s:s,s:s*,s:O*}", "kind", t->is_custom ? "custom" : "function", "name", t->name,
                             "namespace", t->space, "format", t->format);
    json_t *tool = json_pack("{s:s,s:o}", "type", "function", "function", function);
    if (t->is_deferred && !r->deferred)
        r->deferred = json_object();
    int bad = t->is_deferred ? json_object_set_new(r->deferred, name, tool) : json_array_append_new(r->tools, tool);
    bad |= json_object_set_new(r->tool_kinds, name, kind);
    return bad ? err_nomem(e, 0, path) : ERR_OK;
}

/* Reads the members that all forms have in common. schema: the name of the member with the parameters. */
static err_code read_tool(struct tool *t, const char *path, json_t *object, const char *schema, struct err *e)
{
    t->parameters = json_object_get(object, schema);
    t->format = json_object_get(object, "format");
    TRY(request_string(object, path, "name", &t->name, e));
    TRY(request_string(object, path, "description", &t->description, e));
    if (!t->name || !*t->name)
        return request_expected(e, field_path(path, -1, "name").s, json_object_get(object, "name"), "a tool's name");
    if (json_is_null(t->parameters))
        t->parameters = NULL;
    if (t->parameters && !json_is_object(t->parameters))
        return request_expected(e, field_path(path, -1, schema).s, t->parameters, "a JSON schema, an object");
    return ERR_OK;
}

typedef err_code tool_reader(struct server_request *r, const char *path, const char *type, json_t *tool, struct err *e);

static err_code read_tools(struct server_request *r, const char *path, json_t *tools, tool_reader *read, struct err *e)
{
    enum { MAX_TOOLS = 4096 };
    if (!json_is_array(tools) || json_array_size(tools) > MAX_TOOLS)
        return request_expected(e, path, tools, "a list of at most 4096 tools");
    if (json_array_size(tools) == 0)
        return ERR_OK;
    if (!(r->tools = json_array()) || !(r->tool_kinds = json_object()))
        return err_nomem(e, 0, path);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        struct field_path at = field_path(path, (long)i, NULL);
        json_t *tool = json_array_get(tools, i);
        const char *type;
        if (!json_is_object(tool))
            return request_expected(e, at.s, tool, "an object");
        TRY(request_string(tool, at.s, "type", &type, e));
        TRY(read(r, at.s, type, tool, e));
    }
    return ERR_OK;
}

static err_code ignore_tool(struct server_request *r, const char *path, const char *type)
{
    server_request_note(r, "%s: tools of type %s are unknown and ignored", path, type);
    return ERR_OK;
}

static err_code read_chat_tool(struct server_request *r, const char *path, const char *type, json_t *tool,
                               struct err *e)
{
    struct tool t = {.is_custom = request_is(type, "custom")};
    const char *member = t.is_custom ? "custom" : "function";
    if (type && !request_is(type, "function") && !t.is_custom)
        return ignore_tool(r, path, type);
    struct field_path at = field_path(path, -1, member);
    if (!json_is_object(json_object_get(tool, member)))
        return request_expected(e, at.s, json_object_get(tool, member), "an object");
    TRY(read_tool(&t, at.s, json_object_get(tool, member), "parameters", e));
    return add_tool(r, path, &t, e);
}

err_code tools_set_chat(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    return read_tools(r, path, value, read_chat_tool, e);
}

static err_code add_responses_tool(struct server_request *r, const char *path, const char *space, const char *type,
                                   json_t *tool, struct err *e)
{
    struct tool t = {.is_custom = request_is(type, "custom"), .space = space};
    if (type && !request_is(type, "function") && !t.is_custom)
        return ignore_tool(r, path, type);
    TRY(read_tool(&t, path, tool, "parameters", e));
    return add_tool(r, path, &t, e);
}

static err_code read_responses_tool(struct server_request *r, const char *path, const char *type, json_t *tool,
                                    struct err *e)
{
    if (!request_is(type, "namespace"))
        return add_responses_tool(r, path, NULL, type, tool, e);
    const char *space, *inner_type;
    json_t *inner = json_object_get(tool, "tools");
    TRY(request_string(tool, path, "name", &space, e));
    if (!space || !*space)
        return request_expected(e, field_path(path, -1, "name").s, NULL, "a namespace's name");
    if (!json_is_array(inner))
        return request_expected(e, field_path(path, -1, "tools").s, inner, "a list of tools");
    for (size_t i = 0; i < json_array_size(inner); i++) {
        struct field_path at = field_path(field_path(path, -1, "tools").s, (long)i, NULL);
        json_t *one = json_array_get(inner, i);
        if (!json_is_object(one))
            return request_expected(e, at.s, one, "an object");
        TRY(request_string(one, at.s, "type", &inner_type, e));
        TRY(add_responses_tool(r, at.s, space, inner_type, one, e));
    }
    return ERR_OK;
}

err_code tools_set_responses(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    return read_tools(r, path, value, read_responses_tool, e);
}

static err_code read_messages_tool(struct server_request *r, const char *path, const char *type, json_t *tool,
                                   struct err *e)
{
    struct tool t = {0};
    if (type && !request_is(type, "custom"))
        return ignore_tool(r, path, type);
    TRY(request_flag(tool, path, "defer_loading", &t.is_deferred, e));
    TRY(read_tool(&t, path, tool, "input_schema", e));
    return add_tool(r, path, &t, e);
}

err_code tools_set_messages(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    return read_tools(r, path, value, read_messages_tool, e);
}

err_code tools_load(struct server_request *r, const json_t *part, json_t **text, struct err *e)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const char *name = json_string_value(json_object_get(part, "tool_name"));
    json_t *tool = request_is(type, "tool_reference") && name ? json_object_get(r->deferred, name) : NULL;
    *text = NULL;
    if (!tool)
        return ERR_OK;
    if (json_object_get(r->loaded, name)) { /* once, so that the prompt grows no more than the request */
        *text = json_sprintf("%s is loaded", name);
        return *text ? ERR_OK : err_nomem(e, 0, "a tool");
    }
    if (!r->loaded)
        r->loaded = json_object();
    char *function = json_write(json_object_get(tool, "function"), 0, NULL);
    if (function && json_object_set(r->loaded, name, tool) == 0)
        *text = json_sprintf("<functions>\n<function>%s</function>\n</functions>", function);
    mem_free(function);
    return *text ? ERR_OK : err_nomem(e, 0, "a tool");
}

/* ---- the choice ------------------------------------------------------------------------------------------------ */

err_code tools_set_parallel(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    if (!json_is_boolean(value))
        return request_expected(e, path, value, "true or false");
    r->one_call = json_is_false(value);
    return ERR_OK;
}

static bool set_mode(struct server_request *r, const char *mode)
{
    static const struct {
        const char *name;
        enum tool_choice choice;
    } modes[] = {{"auto", TOOL_CHOICE_AUTO},
                 {"none", TOOL_CHOICE_NONE},
                 {"required", TOOL_CHOICE_REQUIRED},
                 {"any", TOOL_CHOICE_REQUIRED}};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (request_is(mode, modes[i].name)) {
            r->tool_choice = modes[i].choice;
            return true;
        }
    return false;
}

/* {"type": "function", "function": {"name"}} of Chat, {"type": "function", "name", "namespace"} of Responses; the same
 * with "custom"; {"type": "tool", "name"} of Anthropic. */
static err_code set_named(struct server_request *r, const char *path, json_t *value, const char *type, struct err *e)
{
    json_t *inner = json_object_get(value, type);
    json_t *holder = json_is_object(inner) ? inner : value;
    const char *name, *space;
    TRY(request_string(holder, path, "name", &name, e));
    TRY(request_string(holder, path, "namespace", &space, e));
    if (!name)
        return request_expected(e, field_path(path, -1, "name").s, json_object_get(holder, "name"), "a tool's name");
    r->tool_choice = TOOL_CHOICE_NAMED;
    r->tool_name = tools_model_name(r, space, name);
    return r->tool_name ? ERR_OK : err_nomem(e, 0, path);
}

err_code tools_set_choice(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    static const char expected[] = "none, auto, required, or an object that names a tool";
    const char *type;
    if (json_is_string(value))
        return set_mode(r, json_string_value(value)) ? ERR_OK : request_expected(e, path, value, expected);
    if (!json_is_object(value))
        return request_expected(e, path, value, expected);
    TRY(request_string(value, path, "type", &type, e));
    if (!type)
        return request_expected(e, field_path(path, -1, "type").s, NULL, "function, custom or allowed_tools");
    if (request_is(type, "function") || request_is(type, "custom"))
        return set_named(r, path, value, type, e);
    if (!request_is(type, "allowed_tools")) {
        server_request_note(r, "%s: of type %s, ignored", path, type);
        return ERR_OK;
    }
    json_t *inner = json_object_get(value, "allowed_tools");
    const json_t *mode = json_object_get(json_is_object(inner) ? inner : value, "mode");
    return set_mode(r, json_string_value(mode))
               ? ERR_OK
               : request_expected(e, field_path(path, -1, "mode").s, mode, "auto or required");
}

err_code tools_set_messages_choice(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    const char *type;
    r->one_call = false;
    TRY(request_flag(value, path, "disable_parallel_tool_use", &r->one_call, e));
    TRY(request_string(value, path, "type", &type, e));
    if (request_is(type, "tool"))
        return set_named(r, path, value, type, e);
    return set_mode(r, type) ? ERR_OK
                             : request_expected(e, field_path(path, -1, "type").s, json_object_get(value, "type"),
                                                "auto, any, tool or none");
}

/* Leaves only the tools that tool_choice's allowed_tools lists. */
static err_code keep_allowed(struct server_request *r, const json_t *choice, struct err *e)
{
    json_t *inner = json_object_get(choice, "allowed_tools");
    const json_t *list = json_object_get(json_is_object(inner) ? inner : choice, "tools");
    json_t *allowed = json_object();
    err_code code = allowed ? ERR_OK : err_nomem(e, 0, "tool_choice");
    for (size_t i = 0; code == ERR_OK && i < json_array_size(list); i++) {
        const json_t *tool = json_array_get(list, i), *custom = json_object_get(tool, "custom");
        const json_t *named = custom ? custom : json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(json_is_object(named) ? named : tool, "name"));
        if (name && json_object_set_new(allowed, name, json_true()) != 0)
            code = err_nomem(e, 0, "tool_choice");
    }
    for (size_t i = json_array_size(r->tools); code == ERR_OK && i-- > 0;) {
        const json_t *function = json_object_get(json_array_get(r->tools, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (json_object_get(allowed, tools_client_name(r, name).name))
            continue;
        json_object_del(r->tool_kinds, name);
        json_array_remove(r->tools, i);
    }
    json_decref(allowed);
    return code;
}

err_code tools_finish(struct server_request *r, struct err *e)
{
    const json_t *choice = json_object_get(r->body, "tool_choice");
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (request_is(type, "allowed_tools"))
        TRY(keep_allowed(r, choice, e));
    bool can_call = json_array_size(r->tools) > 0 || json_object_size(r->loaded) > 0;
    if (r->tool_choice == TOOL_CHOICE_NAMED && !json_object_get(r->tool_kinds, r->tool_name))
        return err_set(e, ERR_USAGE, "tool_choice: there is no tool with the name \"%s\"", r->tool_name);
    if (r->tool_choice == TOOL_CHOICE_REQUIRED && !can_call)
        return err_set(e, ERR_USAGE, "tool_choice: a call is required, but there are no tools");
    if (r->tools && !can_call) { /* all were ignored */
        json_decref(r->tools);
        json_decref(r->tool_kinds);
        r->tools = r->tool_kinds = NULL;
    }
    return ERR_OK;
}
