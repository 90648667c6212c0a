/* Parses the messages of OpenAI's chat API, and Ollama's, which have the same form. */

#include "server/messages.h"

static err_code add_calls(struct message_list *list, const char *path, json_t *assistant, json_t *calls, struct err *e)
{
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return request_expected(e, path, calls, "a list of calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        struct field_path at = field_path(path, (long)i, NULL);
        json_t *call = json_array_get(calls, i), *custom = json_object_get(call, "custom");
        json_t *function = custom ? custom : json_object_get(call, "function");
        const char *id, *name;
        TRY(request_string(call, at.s, "id", &id, e));
        TRY(request_string(function, field_path(at.s, -1, "function").s, "name", &name, e));
        if (!name)
            return request_expected(e, field_path(at.s, -1, "function.name").s, NULL, "a tool's name");
        json_t *arguments = json_object_get(function, "arguments");
        if (custom) {
            arguments = request_keep(list->r, json_pack("{s:O*}", "input", json_object_get(custom, "input")));
            if (!arguments)
                return err_nomem(e, 0, "a call");
        }
        TRY(messages_call(list, assistant, at.s, id, name, arguments, e));
    }
    return ERR_OK;
}

static err_code add_assistant(struct message_list *list, const char *path, json_t *message, struct err *e)
{
    json_t *assistant = messages_assistant(list, false), *text;
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    const char *reasoning = NULL, *refusal;
    bool is_prefix = false;
    if (!assistant)
        return err_nomem(e, 0, "a message");
    for (size_t i = 0; !reasoning && i < sizeof names / sizeof *names; i++)
        TRY(request_string(message, path, names[i], &reasoning, e));
    if (reasoning)
        TRY(messages_reason(list, assistant, json_string(reasoning), e));
    TRY(messages_text(list->r, field_path(path, -1, "content").s, json_object_get(message, "content"), true, &text, e));
    TRY(messages_say(list, assistant, text, e));
    TRY(request_string(message, path, "refusal", &refusal, e));
    if (refusal)
        TRY(messages_say(list, assistant, json_string(refusal), e));
    TRY(request_flag(message, path, "prefix", &is_prefix, e));
    list->r->continues_message |= is_prefix;
    return add_calls(list, field_path(path, -1, "tool_calls").s, assistant, json_object_get(message, "tool_calls"), e);
}

static err_code add_message(struct message_list *list, const char *path, size_t i, json_t *message, struct err *e)
{
    struct field_path at = field_path(path, (long)i, NULL);
    const char *role, *name, *id;
    json_t *text;
    TRY(request_string(message, at.s, "role", &role, e));
    if (request_is(role, "assistant"))
        return add_assistant(list, at.s, message, e);
    bool is_result = request_is(role, "tool") || request_is(role, "function");
    bool is_old = is_result || i < list->n_old;
    bool is_system = request_is(role, "system") || request_is(role, "developer");
    if (!is_result && !is_system && !request_is(role, "user"))
        return request_expected(e, field_path(at.s, -1, "role").s, json_object_get(message, "role"),
                                "system, developer, user, assistant or tool");
    TRY(request_string(message, at.s, "name", &name, e));
    if (!name)
        TRY(request_string(message, at.s, "tool_name", &name, e)); /* Ollama's */
    TRY(request_string(message, at.s, "tool_call_id", &id, e));
    TRY(messages_text(list->r, field_path(at.s, -1, "content").s, json_object_get(message, "content"), is_old, &text,
                      e));
    if (json_array_size(json_object_get(message, "images")) > 0 && !is_old) {
        json_decref(text);
        return err_set(e, ERR_USAGE, "%s: expected none, as this server reads text only",
                       field_path(at.s, -1, "images").s);
    }
    if (is_result)
        return messages_add_result(list, id, name, text, e);
    return is_system ? messages_add_system(list, text, e) : messages_add_user(list, text, e);
}

err_code messages_set_chat(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    struct message_list list;
    if (json_array_size(value) == 0)
        return request_expected(e, path, value, "a list of messages, one at least");
    err_code code = messages_open(&list, r, e);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *role = json_string_value(json_object_get(json_array_get(value, i), "role"));
        if (request_is(role, "assistant"))
            list.n_old = i;
    }
    for (size_t i = 0; code == ERR_OK && i < json_array_size(value); i++)
        code = add_message(&list, path, i, json_array_get(value, i), e);
    return messages_close(&list, code, e);
}
