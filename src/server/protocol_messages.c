/* Anthropic's messages: /v1/messages and /v1/messages/count_tokens.
 *
 * The answer is a list of blocks (thinking, text, tool_use), which a stream opens and closes one after the other.
 * Thinking has a signature, which clients send back as they got it. Where the client doesn't want to see the thinking
 * (thinking.display: omitted), the signature carries the text, so that the next turn still knows it. */
#include <string.h>

#include "base/json_text.h"
#include "server/messages.h"
#include "server/writer.h"

static const char signature[] = "moebius"; /* of thinking that the client sees */
static const char sealed[] = "moebius:";   /* begins the signature that carries hidden thinking, which follows */

/* ---- the request ----------------------------------------------------------------------------------------------- */

/* Whether a part is the first block of Claude Code's system prompt. It is meant for Anthropic's billing, and differs in
 * each request. */
static bool is_billing_header(const json_t *part)
{
    static const char begin[] = "x-anthropic-billing-header";
    const char *text = json_string_value(json_object_get(part, "text"));
    return text && !strncmp(text, begin, sizeof begin - 1);
}

static err_code read_system(struct server_request *r, const char *path, json_t *value, json_t **out, struct err *e)
{
    struct bytes all = {0};
    err_code code = ERR_OK;
    if (!json_is_array(value))
        return messages_text(r, path, value, false, out, e);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!is_billing_header(json_array_get(value, i)))
            TRY_OUT(messages_add_part(r, field_path(path, (long)i, NULL).s, json_array_get(value, i), false, &all, e));
    *out = json_stringn(all.s ? all.s : "", all.n);
    if (!*out)
        code = err_nomem(e, all.n, path);
out:
    bytes_close(&all);
    return code;
}

static err_code add_system(struct message_list *list, const char *path, json_t *value, struct err *e)
{
    json_t *text;
    TRY(read_system(list->r, path, value, &text, e));
    if (json_string_length(text) > 0)
        return messages_add_system(list, text, e);
    json_decref(text);
    return ERR_OK;
}

static err_code add_thinking(struct message_list *list, json_t *assistant, const char *path, json_t *block,
                             struct err *e)
{
    const char *text, *sign;
    TRY(request_string(block, path, "thinking", &text, e));
    TRY(request_string(block, path, "signature", &sign, e));
    if ((!text || !*text) && sign && !strncmp(sign, sealed, sizeof sealed - 1))
        text = sign + sizeof sealed - 1;
    return text && *text ? messages_reason(list, assistant, json_string(text), e) : ERR_OK;
}

static err_code add_use(struct message_list *list, const char *path, json_t *assistant, json_t *block, struct err *e)
{
    const char *id, *name;
    TRY(request_string(block, path, "id", &id, e));
    TRY(request_string(block, path, "name", &name, e));
    if (!name)
        return request_expected(e, field_path(path, -1, "name").s, NULL, "a tool's name");
    return messages_call(list, assistant, path, id, name, json_object_get(block, "input"), e);
}

static err_code add_assistant(struct message_list *list, const char *path, json_t *content, struct err *e)
{
    struct bytes all = {0};
    err_code code = ERR_OK;
    json_t *assistant = messages_assistant(list, false);
    if (!assistant)
        return err_nomem(e, 0, "a message");
    if (json_is_string(content))
        return messages_say(list, assistant, json_incref(content), e);
    if (!json_is_array(content))
        return request_expected(e, path, content, "a text, or a list of blocks");
    for (size_t i = 0; i < json_array_size(content); i++) {
        struct field_path at = field_path(path, (long)i, NULL);
        json_t *block = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(block, "type"));
        if (request_is(type, "thinking"))
            TRY_OUT(add_thinking(list, assistant, at.s, block, e));
        else if (request_is(type, "tool_use"))
            TRY_OUT(add_use(list, at.s, assistant, block, e));
        else if (!request_is(type, "redacted_thinking")) /* only the server that wrote it can read it */
            TRY_OUT(messages_add_part(list->r, at.s, block, true, &all, e));
    }
    if (all.n > 0)
        code = messages_say(list, assistant, json_stringn(all.s, all.n), e);
out:
    bytes_close(&all);
    return code;
}

static err_code add_result(struct message_list *list, const char *path, json_t *block, struct err *e)
{
    struct bytes all = {0};
    const char *id;
    bool is_error = false;
    json_t *text;
    TRY(request_string(block, path, "tool_use_id", &id, e));
    TRY(request_flag(block, path, "is_error", &is_error, e));
    TRY(messages_text(list->r, field_path(path, -1, "content").s, json_object_get(block, "content"), true, &text, e));
    if (is_error) { /* templates have no field for it */
        err_code code = bytes_add_text(&all, "Error: ", e);
        if (code == ERR_OK)
            code = bytes_add(&all, json_string_value(text), json_string_length(text), e);
        json_decref(text);
        text = code == ERR_OK ? json_stringn(all.s, all.n) : NULL;
        bytes_close(&all);
    }
    return messages_add_result(list, id, NULL, text, e);
}

static err_code flush_user(struct message_list *list, struct bytes *all, struct err *e)
{
    if (all->n == 0)
        return ERR_OK;
    err_code code = messages_add_user(list, json_stringn(all->s, all->n), e);
    bytes_close(all);
    return code;
}

/* Adds a user's message. Tool results in it become messages of their own. */
static err_code add_user(struct message_list *list, const char *path, json_t *content, bool is_old, struct err *e)
{
    struct bytes all = {0};
    err_code code = ERR_OK;
    if (json_is_string(content))
        return messages_add_user(list, json_incref(content), e);
    if (!json_is_array(content))
        return request_expected(e, path, content, "a text, or a list of blocks");
    for (size_t i = 0; i < json_array_size(content); i++) {
        struct field_path at = field_path(path, (long)i, NULL);
        json_t *block = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(block, "type"));
        if (request_is(type, "tool_result")) {
            TRY_OUT(flush_user(list, &all, e));
            TRY_OUT(add_result(list, at.s, block, e));
        } else {
            TRY_OUT(messages_add_part(list->r, at.s, block, is_old, &all, e));
        }
    }
    code = flush_user(list, &all, e);
out:
    bytes_close(&all);
    return code;
}

static err_code add_message(struct message_list *list, const char *path, size_t i, json_t *message, struct err *e)
{
    struct field_path at = field_path(path, (long)i, NULL), inner = field_path(at.s, -1, "content");
    json_t *content = json_object_get(message, "content");
    const char *role;
    TRY(request_string(message, at.s, "role", &role, e));
    if (request_is(role, "user"))
        return add_user(list, inner.s, content, i < list->n_old, e);
    if (request_is(role, "assistant"))
        return add_assistant(list, inner.s, content, e);
    if (request_is(role, "system"))
        return add_system(list, inner.s, content, e);
    return request_expected(e, field_path(at.s, -1, "role").s, json_object_get(message, "role"),
                            "user, assistant or system");
}

static err_code read_messages(struct server_request *r, struct err *e)
{
    json_t *messages = json_object_get(r->body, "messages"), *system = json_object_get(r->body, "system");
    size_t n = json_array_size(messages);
    struct message_list list;
    if (n == 0)
        return request_expected(e, "messages", messages, "a list of messages, one at least");
    err_code code = messages_open(&list, r, e);
    for (size_t i = 0; i < n; i++) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        if (request_is(role, "assistant"))
            list.n_old = i;
    }
    if (code == ERR_OK && system && !json_is_null(system))
        code = add_system(&list, "system", system, e);
    for (size_t i = 0; code == ERR_OK && i < n; i++)
        code = add_message(&list, "messages", i, json_array_get(messages, i), e);
    code = messages_close(&list, code, e);
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    r->continues_message = request_is(role, "assistant") && !json_object_get(last, "tool_calls");
    return code;
}

static err_code set_output_config(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    static const struct request_field fields[] = {FIELD_SETTER("effort", request_set_effort),
                                                  FIELD_SETTER("format", request_set_response_format)};
    return REQUEST_READ_MEMBERS(r, path, value, fields, e);
}

/* A thread is a conversation that the server keeps for later requests. This server keeps none; the error for
 * "continue" makes clients send the whole conversation again. */
static err_code set_thread(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    json_t *type = json_object_get(value, "type");
    if (request_is(json_string_value(type), "create"))
        return ERR_OK;
    if (request_is(json_string_value(type), "continue"))
        return server_set_lost_thread(e);
    return request_expected(e, field_path(path, -1, "type").s, type, "create or continue");
}

static err_code parse(struct server_request *r, json_t *body, struct err *e)
{
    static const struct request_field fields[] = {
        FIELD_IGNORED("messages"), /* read_messages */
        FIELD_IGNORED("system"),
        FIELD_SETTER("tools", tools_set_messages),
        FIELD_SETTER("tool_choice", tools_set_messages_choice),
        FIELD_SETTER("stop_sequences", request_set_stops),
        FIELD_SETTER("output_config", set_output_config),
        FIELD_SETTER("output_format", request_set_response_format),
        FIELD_SETTER("thread", set_thread),
        FIELD_IGNORED("inference_geo"),
        FIELD_IGNORED("speed"),
        FIELD_NUMBER("n", FIELD_INT64, n_choices, 1, 1),
    };
    TRY(request_take_body(r, body, e));
    TRY(REQUEST_READ_FIELDS(r, "", body, fields, e));
    TRY(read_messages(r, e));
    TRY(tools_finish(r, e));
    return request_check(r, e);
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

static const char *stop_reason(enum answer_finish finish)
{
    static const char *const words[] = {[FINISH_STOP] = "end_turn",
                                        [FINISH_STOP_STRING] = "stop_sequence",
                                        [FINISH_LENGTH] = "max_tokens",
                                        [FINISH_TOOL_CALLS] = "tool_use"};
    return words[finish];
}

/* input_tokens does not include tokens that came from the cache. */
static json_t *make_usage(const struct answer_usage *u)
{
    json_t *usage =
        json_pack("{s:I,s:i,s:I,s:I,s:{s:I}}", "input_tokens", (json_int_t)(u->n_prompt - u->n_cached),
                  "cache_creation_input_tokens", 0, "cache_read_input_tokens", (json_int_t)u->n_cached, "output_tokens",
                  (json_int_t)u->n_answer, "output_tokens_details", "thinking_tokens", (json_int_t)u->n_reasoning);
    return usage_with_substitutes(usage, u);
}

static json_t *make_message(const struct answer_head *head, json_t *content, const char *reason, const char *stop,
                            const struct answer_usage *usage)
{
    return json_pack("{s:o,s:s,s:s,s:s,s:o,s:s?,s:s?,s:o}", "id", json_sprintf("msg_%s", head->id), "type", "message",
                     "role", "assistant", "model", head->model, "content", content, "stop_reason", reason,
                     "stop_sequence", stop, "usage", make_usage(usage));
}

static json_t *make_signature(const struct server_request *r, const struct bytes *thinking)
{
    return r->hides_reasoning ? json_sprintf("%s%s", sealed, thinking->n ? thinking->s : "") : json_string(signature);
}

static err_code send_delta(struct answer_writer *w, const char *type, const char *field, json_t *text,
                           struct bytes *out, struct err *e)
{
    return writer_send(out, "content_block_delta",
                       json_pack("{s:s,s:I,s:{s:s,s:o}}", "type", "content_block_delta", "index",
                                 (json_int_t)(w->n_block - 1), "delta", "type", type, field, text),
                       e);
}

static err_code close_block(struct answer_writer *w, struct bytes *out, struct err *e)
{
    if (w->block == BLOCK_NONE)
        return ERR_OK;
    if (w->block == BLOCK_REASONING)
        TRY(send_delta(w, "signature_delta", "signature", make_signature(w->r, &w->text), out, e));
    w->block = BLOCK_NONE;
    bytes_close(&w->text);
    return writer_send(out, "content_block_stop",
                       json_pack("{s:s,s:I}", "type", "content_block_stop", "index", (json_int_t)(w->n_block - 1)), e);
}

/* Closes the block that is open, and opens the next one. Takes over `block`. */
static err_code open_block(struct answer_writer *w, enum block kind, json_t *block, struct bytes *out, struct err *e)
{
    err_code code = close_block(w, out, e);
    if (code != ERR_OK) {
        json_decref(block);
        return code;
    }
    w->block = kind;
    w->n_block++;
    return writer_send(out, "content_block_start",
                       json_pack("{s:s,s:I,s:o}", "type", "content_block_start", "index", (json_int_t)(w->n_block - 1),
                                 "content_block", block),
                       e);
}

static err_code tell_reasoning(struct answer_writer *w, const struct answer_event *event, struct bytes *out,
                               struct err *e)
{
    if (w->block != BLOCK_REASONING)
        TRY(open_block(w, BLOCK_REASONING,
                       json_pack("{s:s,s:s,s:s}", "type", "thinking", "thinking", "", "signature", ""), out, e));
    if (w->r->hides_reasoning)
        return bytes_add(&w->text, event->text, event->n, e);
    return send_delta(w, "thinking_delta", "thinking", json_text(event->text, event->n), out, e);
}

static err_code tell_content(struct answer_writer *w, const struct answer_event *event, struct bytes *out,
                             struct err *e)
{
    if (w->block != BLOCK_CONTENT)
        TRY(open_block(w, BLOCK_CONTENT, json_pack("{s:s,s:s}", "type", "text", "text", ""), out, e));
    return send_delta(w, "text_delta", "text", json_text(event->text, event->n), out, e);
}

static err_code tell_call(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    json_t *block = json_pack("{s:s,s:s,s:o,s:{}}", "type", "tool_use", "id", event->id ? event->id : "", "name",
                              json_text(event->text, event->n), "input");
    return open_block(w, BLOCK_CALL, block, out, e);
}

static err_code tell_end(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    TRY(close_block(w, out, e));
    const char *stop = event->finish == FINISH_STOP_STRING ? event->stop : NULL;
    json_t *data = json_pack("{s:s,s:{s:s,s:s?},s:o}", "type", "message_delta", "delta", "stop_reason",
                             stop_reason(event->finish), "stop_sequence", stop, "usage", make_usage(&event->usage));
    TRY(writer_send(out, "message_delta", data, e));
    return writer_send(out, "message_stop", json_pack("{s:s}", "type", "message_stop"), e);
}

static json_t *make_error(int status, const struct err *error)
{
    static const struct {
        int status;
        const char *type;
    } kinds[] = {{401, "authentication_error"}, {403, "permission_error"},  {404, "not_found_error"},
                 {408, "timeout_error"},        {413, "request_too_large"}, {429, "rate_limit_error"},
                 {503, "overloaded_error"},     {529, "overloaded_error"}};
    const char *type = status < 500 ? "invalid_request_error" : "api_error";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].status == status)
            type = kinds[i].type;
    json_t *details = server_is_lost_thread(error) ? json_pack("{s:s}", "error_code", "thread_not_found") : NULL;
    return json_pack("{s:s,s:{s:s,s:s,s:o*}}", "type", "error", "error", "type", type, "message", error->text,
                     "details", details);
}

static err_code tell(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    switch (event->kind) {
    case ANSWER_BEGIN:
        return writer_send(out, "message_start",
                           json_pack("{s:s,s:o}", "type", "message_start", "message",
                                     make_message(&w->head, json_array(), NULL, NULL, &event->usage)),
                           e);
    case ANSWER_REASONING: return tell_reasoning(w, event, out, e);
    case ANSWER_CONTENT: return tell_content(w, event, out, e);
    case ANSWER_CALL: return tell_call(w, event, out, e);
    case ANSWER_ARGUMENTS:
        return w->block == BLOCK_CALL
                   ? send_delta(w, "input_json_delta", "partial_json", json_text(event->text, event->n), out, e)
                   : ERR_OK;
    case ANSWER_CALL_END: return close_block(w, out, e);
    case ANSWER_END: return tell_end(w, event, out, e);
    case ANSWER_FAILED: return writer_send(out, "error", make_error(server_http_status(event->error), event->error), e);
    case ANSWER_PROMPT:
    case ANSWER_PROGRESS:
    case ANSWER_TOKEN: break;
    }
    return ERR_OK;
}

static void ping(struct answer_writer *w, struct bytes *out)
{
    err_code unsent = writer_send(out, "ping", json_pack("{s:s}", "type", "ping"), NULL);
    (void)unsent; /* one less where memory is short */
}

/* Content [from, to), which is between two calls. */
static int add_text(json_t *blocks, const struct bytes *content, size_t from, size_t to)
{
    if (from == to)
        return 0;
    return json_array_append_new(
        blocks, json_pack("{s:s,s:o}", "type", "text", "text", json_text(content->s + from, to - from)));
}

static json_t *whole(const struct server_request *r, const struct answer_head *head,
                     const struct gathered_choice *choices)
{
    const struct gathered_choice *c = &choices[0];
    json_t *content = json_array();
    size_t n_told = 0;
    int bad = 0;
    if (c->reasoning.n > 0) {
        size_t n = r->hides_reasoning ? 0 : c->reasoning.n;
        bad |= json_array_append_new(content, json_pack("{s:s,s:o,s:o}", "type", "thinking", "thinking",
                                                        json_text(c->reasoning.s, n), "signature",
                                                        make_signature(r, &c->reasoning)));
    }
    for (size_t i = 0; i < c->n_calls; i++) {
        const struct gathered_call *call = &c->calls[i];
        if (!call->is_whole)
            break; /* the last one: `input` is an object, which it has none of */
        json_t *input = tools_arguments_object(call->arguments.s, call->arguments.n);
        bad |= add_text(content, &c->content, n_told, call->n_content);
        n_told = call->n_content;
        bad |= json_array_append_new(content, json_pack("{s:s,s:s,s:o,s:o}", "type", "tool_use", "id", call->id, "name",
                                                        json_text(call->name, strlen(call->name)), "input", input));
    }
    bad |= add_text(content, &c->content, n_told, c->content.n);
    const char *stop = c->finish == FINISH_STOP_STRING ? c->stop : NULL;
    return json_unless(bad, make_message(head, content, stop_reason(c->finish), stop, &c->usage));
}

const struct protocol protocol_messages = {.name = "messages",
                                           .content_type = "text/event-stream",
                                           .parse = parse,
                                           .error = make_error,
                                           .open = writer_open,
                                           .event = tell,
                                           .ping = ping,
                                           .close = writer_close,
                                           .whole = whole};
