#include "server/messages.h"

#include <string.h>

#include "base/bytes.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "server/tools.h"

enum { MAX_MESSAGES = 100000, MAX_CALLS = 1024 /* of a message */ };

err_code messages_open(struct message_list *list, struct server_request *r, struct err *e)
{
    *list = (struct message_list){
        .r = r, .names = json_object(), .content.field = "content", .reasoning.field = "reasoning_content"};
    r->messages = json_array();
    return list->names && r->messages ? ERR_OK : err_nomem(e, 0, "messages");
}

err_code messages_close(struct message_list *list, err_code code, struct err *e)
{
    if (code == ERR_OK)
        code = growing_end(&list->content, e);
    if (code == ERR_OK)
        code = growing_end(&list->reasoning, e);
    bytes_close(&list->content.text);
    bytes_close(&list->reasoning.text);
    json_decref(list->names);
    *list = (struct message_list){0};
    return code;
}

/* ---- texts that grow ------------------------------------------------------------------------------------------- */

err_code growing_end(struct growing_text *g, struct err *e)
{
    bool has_text = g->message && g->text.s;
    if (has_text && json_object_set_new(g->message, g->field, json_stringn(g->text.s, g->text.n)) != 0)
        return err_nomem(e, g->text.n, "a message");
    bytes_close(&g->text);
    g->message = NULL;
    return ERR_OK;
}

/* Begins to grow a message's member, which has the text `old` already. */
static err_code begin_growing(struct growing_text *g, json_t *message, const json_t *old, struct err *e)
{
    TRY(growing_end(g, e));
    TRY(bytes_add(&g->text, json_string_value(old), json_string_length(old), e));
    g->message = message;
    return ERR_OK;
}

err_code growing_add(struct growing_text *g, json_t *message, const char *separator, json_t *text, struct err *e)
{
    const json_t *old = json_object_get(message, g->field);
    size_t n = json_string_length(text);
    err_code code = ERR_OK;
    if (g->message != message && json_string_length(old) == 0)
        return json_object_set_new(message, g->field, text) == 0 ? ERR_OK : err_nomem(e, n, "a message");
    if (g->message != message)
        code = begin_growing(g, message, old, e);
    if (code == ERR_OK && n > 0)
        code = bytes_add_text(&g->text, separator, e);
    if (code == ERR_OK)
        code = bytes_add(&g->text, json_string_value(text), n, e);
    json_decref(text);
    return code;
}

/* ---- content --------------------------------------------------------------------------------------------------- */

/* The text of a part of a content, borrowed; NULL: the part is no text. */
static json_t *part_text(json_t *part)
{
    static const struct {
        const char *type, *member;
    } kinds[] = {{"text", "text"},         {"input_text", "text"},     {"output_text", "text"},
                 {"summary_text", "text"}, {"reasoning_text", "text"}, {"refusal", "refusal"}};
    const char *type = json_string_value(json_object_get(part, "type"));
    if (json_is_string(part))
        return part;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (request_is(type, kinds[i].type)) {
            json_t *text = json_object_get(part, kinds[i].member);
            return json_is_string(text) ? text : NULL;
        }
    /* Anthropic's documents of plain text */
    const json_t *source = json_object_get(part, "source");
    const char *kind = json_string_value(json_object_get(source, "type"));
    json_t *data = json_object_get(source, "data");
    return request_is(kind, "text") && json_is_string(data) ? data : NULL;
}

static err_code add_line(struct bytes *all, const char *text, size_t n, struct err *e)
{
    if (all->n > 0 && n > 0)
        TRY(bytes_add(all, "\n", 1, e));
    return bytes_add(all, text, n, e);
}

err_code messages_add_part(struct server_request *r, const char *path, json_t *part, bool is_old, struct bytes *all,
                           struct err *e)
{
    enum { MAX_TYPE = 40 };
    const json_t *text = part_text(part);
    const char *type = json_string_value(json_object_get(part, "type"));
    json_t *definition;
    TRY(tools_load(r, part, &definition, e));
    if (definition) {
        err_code code = add_line(all, json_string_value(definition), json_string_length(definition), e);
        json_decref(definition);
        return code;
    }
    if (text)
        return add_line(all, json_string_value(text), json_string_length(text), e);
    if (!type || strlen(type) > MAX_TYPE)
        return request_expected(e, path, part,
                                "an object with a type, such as {\"type\": \"text\", \"text\": \"...\"}");
    if (!is_old)
        return err_set(e, ERR_USAGE, "%s: of type %s; expected text, as this server reads nothing else", path, type);
    server_request_note(r, "%s: of type %s, left out, as this server reads text only", path, type);
    if (all->n > 0)
        TRY(bytes_add(all, "\n", 1, e));
    return bytes_print(all, e, "[%s left out: only text can be read]", type);
}

err_code messages_text(struct server_request *r, const char *path, json_t *content, bool is_old, json_t **out,
                       struct err *e)
{
    struct bytes all = {0};
    err_code code = ERR_OK;
    *out = NULL;
    if (json_is_string(content)) {
        *out = json_incref(content);
        return ERR_OK;
    }
    if (content && !json_is_null(content) && !json_is_array(content))
        return request_expected(e, path, content, "a text, or a list of parts");
    for (size_t i = 0; i < json_array_size(content); i++)
        TRY_OUT(messages_add_part(r, field_path(path, (long)i, NULL).s, json_array_get(content, i), is_old, &all, e));
    *out = json_stringn(all.s ? all.s : "", all.n);
    if (!*out)
        code = err_nomem(e, all.n, path);
out:
    bytes_close(&all);
    return code;
}

/* ---- messages -------------------------------------------------------------------------------------------------- */

static json_t *last_message(const struct message_list *list)
{
    return json_array_get(list->r->messages, json_array_size(list->r->messages) - 1);
}

static bool has_role(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return request_is(own, role);
}

/* Appends a message. Takes over `text`; NULL means that there was no memory for it. */
static err_code add_message(struct message_list *list, const char *role, json_t *text, struct err *e)
{
    json_t *message = json_pack("{s:s,s:o}", "role", role, "content", text);
    list->joins_user = false;
    if (json_array_append_new(list->r->messages, message) != 0)
        return err_nomem(e, 0, "a message");
    return json_array_size(list->r->messages) <= MAX_MESSAGES
               ? ERR_OK
               : err_set(e, ERR_USAGE, "messages: more than %d of them", MAX_MESSAGES);
}

/* Quotes a system message that came in mid-conversation, for the user's role. Takes over `text`. NULL: no memory. */
static json_t *quote_system(json_t *text)
{
    struct bytes all = {0};
    err_code code = bytes_add_text(&all, "<system>\n", NULL);
    if (code == ERR_OK)
        code = bytes_add(&all, json_string_value(text), json_string_length(text), NULL);
    if (code == ERR_OK)
        code = bytes_add_text(&all, "\n</system>", NULL);
    json_t *quoted = code == ERR_OK ? json_stringn(all.s, all.n) : NULL;
    json_decref(text);
    bytes_close(&all);
    return quoted;
}

err_code messages_add_system(struct message_list *list, json_t *text, struct err *e)
{
    json_t *last = last_message(list);
    if (!last)
        return add_message(list, "system", text, e);
    if (has_role(last, "system"))
        return growing_add(&list->content, last, "\n\n", text, e);
    if (!(text = quote_system(text)))
        return err_nomem(e, 0, "a message");
    server_request_note(list->r, "a system message in mid-conversation is quoted in the user's role");
    if (has_role(last, "user"))
        return growing_add(&list->content, last, "\n\n", text, e);
    err_code code = add_message(list, "user", text, e);
    list->joins_user = true;
    return code;
}

err_code messages_add_user(struct message_list *list, json_t *text, struct err *e)
{
    if (!list->joins_user)
        return add_message(list, "user", text, e);
    list->joins_user = false;
    return growing_add(&list->content, last_message(list), "\n\n", text, e);
}

err_code messages_add_result(struct message_list *list, const char *id, const char *name, json_t *text, struct err *e)
{
    TRY(add_message(list, "tool", text, e));
    json_t *message = last_message(list), *known = id ? json_object_get(list->names, id) : NULL;
    int bad = 0;
    if (id)
        bad |= json_object_set_new(message, "tool_call_id", json_string(id));
    if (name)
        bad |= json_object_set_new(message, "name", json_string(name));
    else if (known)
        bad |= json_object_set(message, "name", known);
    return bad ? err_nomem(e, 0, "a message") : ERR_OK;
}

json_t *messages_assistant(struct message_list *list, bool joins)
{
    json_t *last = last_message(list);
    if (joins && has_role(last, "assistant"))
        return last;
    return add_message(list, "assistant", json_string(""), NULL) == ERR_OK ? last_message(list) : NULL;
}

err_code messages_say(struct message_list *list, json_t *assistant, json_t *text, struct err *e)
{
    return growing_add(&list->content, assistant, "\n", text, e);
}

err_code messages_reason(struct message_list *list, json_t *assistant, json_t *text, struct err *e)
{
    return growing_add(&list->reasoning, assistant, "\n", text, e);
}

/* The arguments as an object, as most templates want it. */
static json_t *read_arguments(json_t *arguments)
{
    if (json_is_object(arguments))
        return json_incref(arguments);
    return tools_arguments_object(json_string_value(arguments), json_string_length(arguments));
}

/* The arguments as a string: the client's own string, which is the model's text, or an object written as models do. */
static json_t *write_arguments(json_t *arguments, json_t *object)
{
    size_t n;
    if (json_is_string(arguments) && json_string_length(arguments) > 0)
        return json_incref(arguments);
    char *text = json_write(object, 0, &n);
    json_t *written = text ? json_stringn(text, n) : NULL;
    mem_free(text);
    return written;
}

err_code messages_call(struct message_list *list, json_t *assistant, const char *path, const char *id, const char *name,
                       json_t *arguments, struct err *e)
{
    if (arguments && !json_is_null(arguments) && !json_is_string(arguments) && !json_is_object(arguments))
        return request_expected(e, path, arguments, "arguments: a text of JSON, or an object");
    if (json_array_size(json_object_get(assistant, "tool_calls")) == MAX_CALLS)
        return err_set(e, ERR_USAGE, "%s: expected at most %d calls in a message", path, MAX_CALLS);
    json_t *object = read_arguments(arguments);
    int bad = json_array_append_new(list->r->argument_texts, write_arguments(arguments, object));
    json_t *call = json_pack("{s:s*,s:s,s:{s:s,s:o}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", object);
    json_t *calls = json_object_get(assistant, "tool_calls");
    if (!calls && json_object_set_new(assistant, "tool_calls", json_array()) == 0)
        calls = json_object_get(assistant, "tool_calls");
    bad |= json_array_append_new(calls, call);
    if (id)
        bad |= json_object_set_new(list->names, id, json_string(name));
    return bad ? err_nomem(e, 0, "a message") : ERR_OK;
}
