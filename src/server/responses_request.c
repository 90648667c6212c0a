/* Parses requests of OpenAI's responses API. */
#include <string.h>

#include "server/messages.h"
#include "server/responses_internal.h"

const char responses_sealed[] = "moebius:";

/* ---- items ----------------------------------------------------------------------------------------------------- */

static bool is_either(const char *text, const char *a, const char *b)
{
    return request_is(text, a) || request_is(text, b);
}

/* The type of an item. Messages and references may leave it out. */
static const char *item_type(const json_t *item)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    return type                            ? type
           : json_object_get(item, "role") ? "message"
           : json_object_get(item, "id")   ? "item_reference"
                                           : "";
}

/* Whether the assistant wrote an item. */
static bool is_own(const json_t *item)
{
    const char *type = item_type(item), *role = json_string_value(json_object_get(item, "role"));
    return request_is(role, "assistant") || is_either(type, "function_call", "custom_tool_call") ||
           request_is(type, "reasoning");
}

static err_code add_message(struct message_list *list, const char *path, size_t i, json_t *item, struct err *e)
{
    const char *role;
    json_t *text, *assistant;
    TRY(request_string(item, path, "role", &role, e));
    if (!is_either(role, "user", "assistant") && !is_either(role, "system", "developer"))
        return request_expected(e, field_path(path, -1, "role").s, json_object_get(item, "role"),
                                "system, developer, user or assistant");
    bool is_old = i < list->n_old || request_is(role, "assistant");
    TRY(messages_text(list->r, field_path(path, -1, "content").s, json_object_get(item, "content"), is_old, &text, e));
    if (request_is(role, "user"))
        return messages_add_user(list, text, e);
    if (!request_is(role, "assistant"))
        return messages_add_system(list, text, e);
    if ((assistant = messages_assistant(list, true)))
        return messages_say(list, assistant, text, e);
    json_decref(text);
    return err_nomem(e, 0, "a message");
}

/* Adds reasoning: the text of the content, or else of the summary, or else of what this server put into
 * encrypted_content. */
static err_code add_reasoning(struct message_list *list, const char *path, json_t *item, struct err *e)
{
    const char *encrypted;
    json_t *text, *assistant;
    TRY(request_string(item, path, "encrypted_content", &encrypted, e));
    TRY(messages_text(list->r, field_path(path, -1, "content").s, json_object_get(item, "content"), true, &text, e));
    if (json_string_length(text) == 0) {
        json_decref(text);
        TRY(messages_text(list->r, field_path(path, -1, "summary").s, json_object_get(item, "summary"), true, &text,
                          e));
    }
    if (json_string_length(text) == 0 && encrypted &&
        !strncmp(encrypted, responses_sealed, sizeof responses_sealed - 1)) {
        json_decref(text);
        text = json_string(encrypted + sizeof responses_sealed - 1);
    }
    if (text && json_string_length(text) > 0 && (assistant = messages_assistant(list, true)))
        return messages_reason(list, assistant, text, e);
    bool is_empty = text && json_string_length(text) == 0;
    json_decref(text);
    return is_empty ? ERR_OK : err_nomem(e, 0, "a message");
}

static err_code add_call(struct message_list *list, const char *path, json_t *item, bool is_custom, struct err *e)
{
    const char *id, *name, *space;
    json_t *assistant = messages_assistant(list, true), *arguments = json_object_get(item, "arguments");
    TRY(request_string(item, path, "call_id", &id, e));
    TRY(request_string(item, path, "name", &name, e));
    TRY(request_string(item, path, "namespace", &space, e));
    if (!name)
        return request_expected(e, field_path(path, -1, "name").s, NULL, "a tool's name");
    if (is_custom)
        arguments = request_keep(list->r, json_pack("{s:O*}", "input", json_object_get(item, "input")));
    if (!assistant || (is_custom && !arguments) || !(name = tools_model_name(list->r, space, name)))
        return err_nomem(e, 0, "a call");
    return messages_call(list, assistant, path, id, name, arguments, e);
}

static err_code add_output(struct message_list *list, const char *path, json_t *item, struct err *e)
{
    const char *id;
    json_t *text;
    TRY(request_string(item, path, "call_id", &id, e));
    TRY(messages_text(list->r, field_path(path, -1, "output").s, json_object_get(item, "output"), true, &text, e));
    return messages_add_result(list, id, NULL, text, e);
}

/* A reference to an item that is not kept any more. Missing reasoning is left out, as many clients do not send it back
 * either. */
static err_code add_reference(struct message_list *list, const char *path, const json_t *item, struct err *e)
{
    const char *id = json_string_value(json_object_get(item, "id"));
    if (!id || strncmp(id, "rs_", 3) != 0)
        return err_set(e, ERR_USAGE,
                       "%s: an item_reference to an item that is not here, or no longer; expected the item itself",
                       path);
    server_request_note(list->r, "%s: reasoning that is not here any more is left out", path);
    return ERR_OK;
}

static err_code add_item(struct message_list *list, const char *path, size_t i, json_t *item, struct err *e)
{
    struct field_path at = field_path(path, (long)i, NULL);
    const char *type = item_type(item);
    if (request_is(type, "message"))
        return add_message(list, at.s, i, item, e);
    if (request_is(type, "reasoning"))
        return add_reasoning(list, at.s, item, e);
    if (is_either(type, "function_call", "custom_tool_call"))
        return add_call(list, at.s, item, request_is(type, "custom_tool_call"), e);
    if (is_either(type, "function_call_output", "custom_tool_call_output"))
        return add_output(list, at.s, item, e);
    if (request_is(type, "item_reference"))
        return add_reference(list, at.s, item, e);
    if (!*type)
        return request_expected(e, at.s, item, "an item with a type");
    server_request_note(list->r, "%s: items of type %s are unknown and left out", at.s, type);
    return ERR_OK;
}

/* Replaces references by the items that they refer to, as far as these are kept. A conversation has each item once, so
 * together they can't be more than what is kept. */
static err_code find_items(struct server_request *r, json_t *input, struct err *e)
{
    size_t n_reference = 0, n_all_bytes = 0, n_bytes;
    for (size_t i = 0; i < json_array_size(input) && r->kept; i++) {
        const json_t *item = json_array_get(input, i);
        const char *id = json_string_value(json_object_get(item, "id"));
        if (!id || !request_is(item_type(item), "item_reference"))
            continue;
        json_t *found = kept_items_find(r->kept, id, &n_bytes);
        if (found && json_array_set_new(input, i, found) != 0)
            return err_nomem(e, 0, "an item");
        n_all_bytes += n_bytes;
        if (++n_reference > KEPT_ITEMS_MAX || n_all_bytes > KEPT_ITEMS_BYTES)
            return err_set(e, ERR_USAGE,
                           "input: it refers to more than %d items, or %d bytes of them; expected each once",
                           KEPT_ITEMS_MAX, KEPT_ITEMS_BYTES);
    }
    return ERR_OK;
}

static err_code read_input(struct server_request *r, struct err *e)
{
    json_t *input = json_object_get(r->body, "input");
    const char *instructions;
    struct message_list list;
    if (!json_is_string(input) && json_array_size(input) == 0)
        return request_expected(e, "input", input, "a text, or a list of items");
    TRY(request_string(r->body, "", "instructions", &instructions, e));
    TRY(find_items(r, input, e));
    err_code code = messages_open(&list, r, e);
    for (size_t i = 0; i < json_array_size(input); i++)
        if (is_own(json_array_get(input, i)))
            list.n_old = i;
    if (code == ERR_OK && instructions && *instructions)
        code = messages_add_system(&list, json_string(instructions), e);
    if (code == ERR_OK && json_is_string(input))
        code = messages_add_user(&list, json_incref(input), e);
    for (size_t i = 0; code == ERR_OK && i < json_array_size(input); i++)
        code = add_item(&list, "input", i, json_array_get(input, i), e);
    code = messages_close(&list, code, e);
    if (code == ERR_OK && json_array_size(r->messages) == 0)
        return request_expected(e, "input", input, "a message");
    return code;
}

/* ---- fields ---------------------------------------------------------------------------------------------------- */

static err_code set_text(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    static const struct request_field fields[] = {FIELD_SETTER("format", request_set_response_format),
                                                  FIELD_IGNORED("verbosity")};
    return REQUEST_READ_MEMBERS(r, path, value, fields, e);
}

bool responses_include(const struct server_request *r, const char *what)
{
    const json_t *include = json_object_get(r->body, "include");
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *name = json_string_value(json_array_get(include, i));
        if (request_is(name, what))
            return true;
    }
    return false;
}

err_code responses_parse(struct server_request *r, json_t *body, struct err *e)
{
    static const char stateless[] = "send the whole conversation as input, as this server keeps no responses";
    static const struct request_field fields[] = {
        FIELD_IGNORED("input"), /* read_input */
        FIELD_IGNORED("instructions"),
        FIELD_SETTER("tools", tools_set_responses),
        FIELD_SETTER("tool_choice", tools_set_choice),
        FIELD_SETTER("parallel_tool_calls", tools_set_parallel),
        FIELD_SETTER("text", set_text),
        FIELD_NONE("previous_response_id", stateless),
        FIELD_NONE("conversation", stateless),
        FIELD_NONE("prompt", "stored prompts are the vendor's; send input"),
        FIELD_NONE("background", "the answer comes at once, or as a stream"),
        FIELD_IGNORED("include"), /* responses_include */
        FIELD_IGNORED("truncation"),
        FIELD_IGNORED("client_metadata"),
        FIELD_IGNORED("moderation"),
        FIELD_NUMBER("n", FIELD_INT64, n_choices, 1, 1),
    };
    TRY(request_take_body(r, body, e));
    TRY(REQUEST_READ_FIELDS(r, "", body, fields, e));
    TRY(read_input(r, e));
    if (responses_include(r, "message.output_text.logprobs") && r->n_logprob < 0)
        r->n_logprob = 0;
    TRY(tools_finish(r, e));
    return request_check(r, e);
}
