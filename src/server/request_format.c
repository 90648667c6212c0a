#include "server/request_format.h"

#include <string.h>

#include "base/bytes.h"
#include "base/json_text.h"

static err_code set_format(struct server_request *r, const char *path, enum answer_format format, struct err *e)
{
    if (r->format != FORMAT_TEXT)
        return err_set(e, ERR_USAGE, "%s: a second form for the answer; expected one", path);
    r->format = format;
    return ERR_OK;
}

err_code request_set_json_object(struct server_request *r, const char *path, struct err *e)
{
    return set_format(r, path, FORMAT_JSON_OBJECT, e);
}

/* Some clients send a schema as a text. */
static json_t *parse_schema(struct server_request *r, json_t *value)
{
    if (!json_is_string(value))
        return value;
    json_error_t error;
    json_t *schema = json_read(json_string_value(value), json_string_length(value), JSON_REJECT_DUPLICATES, &error);
    return schema ? request_keep(r, schema) : value;
}

/* is_strict: the client relies on the schema being enforced. */
static err_code set_strict_schema(struct server_request *r, const char *path, json_t *value, bool is_strict,
                                  struct err *e)
{
    json_t *schema = parse_schema(r, value);
    if (!json_is_object(schema))
        return request_expected(e, path, value, "a JSON schema, an object");
    TRY(set_format(r, path, FORMAT_JSON_SCHEMA, e));
    r->schema = json_incref(schema);
    r->is_strict = is_strict;
    return ERR_OK;
}

err_code request_set_schema(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    return set_strict_schema(r, path, value, false, e);
}

static err_code set_text(struct server_request *r, const char *path, const json_t *value, enum answer_format format,
                         const char *expected, struct err *e)
{
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
        return request_expected(e, path, value, expected);
    if (json_string_length(value) == 0) /* sent by clients whose settings have an empty field */
        return ERR_OK;
    TRY(set_format(r, path, format, e));
    r->grammar = json_string_value(value);
    return ERR_OK;
}

err_code request_set_grammar(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    return set_text(r, path, value, FORMAT_GBNF, "a grammar in GBNF, a text", e);
}

err_code request_set_regex(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    return set_text(r, path, value, FORMAT_REGEX, "a regular expression, a text", e);
}

/* A text as a literal of GBNF. */
static err_code add_literal(struct bytes *grammar, const char *text, struct err *e)
{
    TRY(bytes_add_text(grammar, "\"", e));
    for (const char *p = text; *p; p++) {
        unsigned char byte = (unsigned char)*p;
        if (byte == '"' || byte == '\\')
            TRY(bytes_print(grammar, e, "\\%c", byte));
        else if (byte < 0x20 || byte == 0x7f)
            TRY(bytes_print(grammar, e, "\\x%02X", byte));
        else
            TRY(bytes_add(grammar, p, 1, e));
    }
    return bytes_add_text(grammar, "\"", e);
}

static err_code write_choices(struct bytes *grammar, const char *path, const json_t *choices, struct err *e)
{
    TRY(bytes_add_text(grammar, "root ::= ", e));
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        const char *text = json_string_value(choice);
        if (!text || strlen(text) != json_string_length(choice))
            return request_expected(e, path, choice, "a list of texts without zero bytes");
        TRY(bytes_add_text(grammar, i ? " | " : "", e));
        TRY(add_literal(grammar, text, e));
    }
    return ERR_OK;
}

err_code request_set_choice(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    struct bytes grammar = {0};
    err_code code = ERR_OK;
    if (json_array_size(value) == 0)
        return request_expected(e, path, value, "a list of texts");
    TRY_OUT(write_choices(&grammar, path, value, e));
    TRY_OUT(set_format(r, path, FORMAT_GBNF, e));
    r->grammar = json_string_value(request_keep(r, json_stringn(grammar.s, grammar.n)));
    if (!r->grammar)
        code = err_nomem(e, grammar.n, path);
out:
    bytes_close(&grammar);
    return code;
}

static err_code set_wants_object(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    if (!json_is_boolean(value))
        return request_expected(e, path, value, "true or false");
    return json_is_true(value) ? request_set_json_object(r, path, e) : ERR_OK;
}

err_code request_set_structured(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    static const struct request_field fields[] = {
        FIELD_SETTER("json", request_set_schema),       FIELD_SETTER("regex", request_set_regex),
        FIELD_SETTER("choice", request_set_choice),     FIELD_SETTER("grammar", request_set_grammar),
        FIELD_SETTER("json_object", set_wants_object),  FIELD_IGNORED("disable_any_whitespace"),
        FIELD_IGNORED("disable_additional_properties"), FIELD_IGNORED("whitespace_pattern"),
    };
    return REQUEST_READ_MEMBERS(r, path, value, fields, e);
}

/* OpenAI's chat API has the schema in a member "json_schema", its responses API beside the type. llama.cpp's server
 * takes both, and also a schema with the type "json_object". */
err_code request_set_response_format(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    const char *type;
    bool is_strict = false;
    TRY(request_string(value, path, "type", &type, e));
    if (!request_is(type, "text") && !request_is(type, "json_object") && !request_is(type, "json_schema"))
        return request_expected(e, field_path(path, -1, "type").s, json_object_get(value, "type"),
                                "text, json_object or json_schema");
    json_t *inner = json_object_get(value, "json_schema");
    struct field_path at = json_is_object(inner) ? field_path(path, -1, "json_schema") : field_path(path, -1, NULL);
    json_t *holder = json_is_object(inner) ? inner : value;
    json_t *schema = json_object_get(holder, "schema");
    if (request_is(type, "text"))
        return ERR_OK;
    if (request_is(type, "json_object") && !schema)
        return request_set_json_object(r, path, e);
    TRY(request_flag(holder, at.s, "strict", &is_strict, e));
    return set_strict_schema(r, field_path(at.s, -1, "schema").s, schema, is_strict, e);
}
