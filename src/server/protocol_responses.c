/* OpenAI's responses: /v1/responses. This server keeps none of them: each request brings the whole conversation.
 *
 * An answer is a list of items: reasoning, a message, calls. A stream tells each from its beginning (output_item.added)
 * to its end (output_item.done), and the whole answer at its own end. Reasoning is told as reasoning_text, or as a
 * summary where the client asked for one (reasoning.summary), as some clients show summaries alone. With
 * include: ["reasoning.encrypted_content"] the item's encrypted_content carries the text, too, for clients that send
 * nothing else back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "server/messages.h"
#include "server/writer.h"

static const char sealed[] = "moebius:"; /* before the text in encrypted_content */

/* ---- the request: items ---------------------------------------------------------------------------------------- */

static bool is_type(const char *type, const char *a, const char *b)
{
    return !strcmp(type, a) || !strcmp(type, b);
}

/* The type of an item; messages need not say it. */
static const char *item_type(const json_t *item)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    return type ? type : json_object_get(item, "role") ? "message" : "";
}

/* Whether the assistant wrote it. */
static bool is_own(const json_t *item)
{
    const char *type = item_type(item), *role = json_string_value(json_object_get(item, "role"));
    return (role && !strcmp(role, "assistant")) || is_type(type, "function_call", "custom_tool_call") ||
           !strcmp(type, "reasoning");
}

static err_code add_message(struct message_list *list, const char *path, size_t i, json_t *item, struct err *e)
{
    const char *role;
    json_t *text, *assistant;
    TRY(request_string(item, path, "role", &role, e));
    if (!role || (strcmp(role, "user") && strcmp(role, "assistant") && !is_type(role, "system", "developer")))
        return request_expected(e, field_path(path, -1, "role").s, json_object_get(item, "role"),
                                "system, developer, user or assistant");
    bool is_old = i < list->n_old || !strcmp(role, "assistant");
    TRY(messages_text(list->r, field_path(path, -1, "content").s, json_object_get(item, "content"), is_old, &text, e));
    if (!strcmp(role, "user"))
        return messages_add_user(list, text, e);
    if (strcmp(role, "assistant"))
        return messages_add_system(list, text, e);
    if ((assistant = messages_assistant(list, true)))
        return messages_say(assistant, "content", text, e);
    json_decref(text);
    return err_nomem(e, 0, "a message");
}

/* The text of content, else of the summary, else what this server put into encrypted_content. */
static err_code add_reasoning(struct message_list *list, const char *path, json_t *item, struct err *e)
{
    const char *encrypted;
    json_t *text, *assistant;
    TRY(messages_text(list->r, field_path(path, -1, "content").s, json_object_get(item, "content"), true, &text, e));
    if (json_string_length(text) == 0) {
        json_decref(text);
        TRY(messages_text(list->r, field_path(path, -1, "summary").s, json_object_get(item, "summary"), true, &text,
                          e));
    }
    encrypted = json_string_value(json_object_get(item, "encrypted_content"));
    if (json_string_length(text) == 0 && encrypted && !strncmp(encrypted, sealed, sizeof sealed - 1)) {
        json_decref(text);
        text = json_string(encrypted + sizeof sealed - 1);
    }
    if (text && json_string_length(text) > 0 && (assistant = messages_assistant(list, true)))
        return messages_say(assistant, "reasoning_content", text, e);
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

static err_code add_item(struct message_list *list, const char *path, size_t i, json_t *item, struct err *e)
{
    struct field_path at = field_path(path, (long)i, NULL);
    const char *type = item_type(item);
    if (!strcmp(type, "message"))
        return add_message(list, at.s, i, item, e);
    if (!strcmp(type, "reasoning"))
        return add_reasoning(list, at.s, item, e);
    if (is_type(type, "function_call", "custom_tool_call"))
        return add_call(list, at.s, item, !strcmp(type, "custom_tool_call"), e);
    if (is_type(type, "function_call_output", "custom_tool_call_output"))
        return add_output(list, at.s, item, e);
    if (!strcmp(type, "item_reference"))
        return err_set(e, ERR_USAGE, "%s: an item_reference; expected the item itself, as this server keeps none",
                       at.s);
    if (!*type)
        return request_expected(e, at.s, item, "an item with a type");
    server_request_note(list->r, "%s: items of type %s are unknown and left out", at.s, type);
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
    messages_close(&list);
    if (code == ERR_OK && json_array_size(r->messages) == 0)
        return request_expected(e, "input", input, "a message");
    return code;
}

/* ---- the request: fields --------------------------------------------------------------------------------------- */

static err_code set_text(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    static const struct request_field fields[] = {FIELD_SETTER("format", request_set_response_format),
                                                  FIELD_IGNORED("verbosity")};
    return REQUEST_READ_MEMBERS(r, path, value, fields, e);
}

static bool includes(const struct server_request *r, const char *what)
{
    const json_t *include = json_object_get(r->body, "include");
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *name = json_string_value(json_array_get(include, i));
        if (name && !strcmp(name, what))
            return true;
    }
    return false;
}

static err_code parse(struct server_request *r, json_t *body, struct err *e)
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
        FIELD_IGNORED("include"), /* includes */
        FIELD_IGNORED("truncation"),
        FIELD_IGNORED("client_metadata"),
        FIELD_IGNORED("moderation"),
        FIELD_NUMBER("n", FIELD_INT64, n_choices, 1, 1),
    };
    TRY(request_take_body(r, body, e));
    TRY(REQUEST_READ_FIELDS(r, "", body, fields, e));
    TRY(read_input(r, e));
    if (includes(r, "message.output_text.logprobs") && r->n_logprob < 0)
        r->n_logprob = 0;
    TRY(tools_finish(r, e));
    return request_check(r, e);
}

/* ---- items of answers ------------------------------------------------------------------------------------------ */

/* What an item is made of. */
struct item {
    enum block kind;
    int64_t index;         /* in the output */
    const char *id, *name; /* of a call, the name as the model has it */
    const char *text;      /* [n]: reasoning, content or arguments */
    size_t n;
    json_t *tokens; /* log-probabilities of content; NULL: none */
    bool is_done;
};

static bool wants_summary(const struct server_request *r)
{
    const json_t *reasoning = json_object_get(r->body, "reasoning");
    return json_is_string(json_object_get(reasoning, "summary"));
}

static json_t *item_id(const struct answer_head *head, const char *prefix, int64_t index)
{
    return json_sprintf("%s_%s_%lld", prefix, head->id, (long long)index);
}

static json_t *make_part(const char *type, const struct item *item)
{
    json_t *part = json_pack("{s:s,s:o}", "type", type, "text", json_text(item->text, item->n));
    if (strcmp(type, "output_text"))
        return part;
    int bad = json_object_set_new(part, "annotations", json_array());
    bad |= json_object_set_new(part, "logprobs", item->tokens ? json_incref(item->tokens) : json_array());
    return json_unless(bad, part);
}

/* A list of the part, once there is something in it. */
static json_t *make_parts(const char *type, const struct item *item)
{
    return item->is_done && item->n > 0 ? json_pack("[o]", make_part(type, item)) : json_array();
}

static json_t *make_reasoning(const struct server_request *r, const struct answer_head *head, const struct item *item)
{
    bool is_summary = wants_summary(r);
    json_t *made = json_pack("{s:s,s:o,s:o}", "type", "reasoning", "id", item_id(head, "rs", item->index), "summary",
                             is_summary ? make_parts("summary_text", item) : json_array());
    int bad = 0;
    if (!is_summary)
        bad |= json_object_set_new(made, "content", make_parts("reasoning_text", item));
    if (includes(r, "reasoning.encrypted_content"))
        bad |=
            json_object_set_new(made, "encrypted_content",
                                item->is_done ? json_sprintf("%s%.*s", sealed, (int)item->n, item->text) : json_null());
    return json_unless(bad, made);
}

static json_t *make_call(const struct server_request *r, const struct answer_head *head, const struct item *item)
{
    struct tool_name name = tools_client_name(r, item->name);
    const char *type = name.is_custom ? "custom_tool_call" : "function_call";
    json_t *input = name.is_custom ? tools_custom_input(item->text, item->n) : json_text(item->text, item->n);
    if (!item->is_done) {
        json_decref(input);
        input = json_string("");
    }
    return json_pack("{s:s,s:o,s:s,s:s,s:s,s:s*,s:o}", "type", type, "id",
                     item_id(head, name.is_custom ? "ctc" : "fc", item->index), "call_id", item->id, "status",
                     item->is_done ? "completed" : "in_progress", "name", name.name, "namespace", name.space,
                     name.is_custom ? "input" : "arguments", input);
}

static json_t *make_item(const struct server_request *r, const struct answer_head *head, const struct item *item)
{
    if (item->kind == BLOCK_REASONING)
        return make_reasoning(r, head, item);
    if (item->kind == BLOCK_CALL)
        return make_call(r, head, item);
    return json_pack("{s:s,s:o,s:s,s:s,s:o}", "type", "message", "id", item_id(head, "msg", item->index), "role",
                     "assistant", "status", item->is_done ? "completed" : "in_progress", "content",
                     make_parts("output_text", item));
}

/* ---- the response ---------------------------------------------------------------------------------------------- */

static json_t *make_usage(const struct answer_usage *u)
{
    json_t *usage = json_pack("{s:I,s:{s:I,s:i},s:I,s:{s:I},s:I}", "input_tokens", (json_int_t)u->n_prompt,
                              "input_tokens_details", "cached_tokens", (json_int_t)u->n_cached, "cache_write_tokens", 0,
                              "output_tokens", (json_int_t)u->n_answer, "output_tokens_details", "reasoning_tokens",
                              (json_int_t)u->n_reasoning, "total_tokens", (json_int_t)(u->n_prompt + u->n_answer));
    bool has_some = u->n_substituted > 0;
    return json_unless(has_some && json_object_set_new(usage, "substituted_experts", json_integer(u->n_substituted)),
                       usage);
}

/* Repeats fields of the request, each with its default. */
static int repeat_fields(const struct server_request *r, json_t *response)
{
    static const struct {
        const char *name, *otherwise;
    } fields[] = {{"instructions", "null"},
                  {"max_output_tokens", "null"},
                  {"metadata", "{}"},
                  {"reasoning", "{}"},
                  {"text", "{\"format\":{\"type\":\"text\"}}"},
                  {"tool_choice", "\"auto\""},
                  {"tools", "[]"},
                  {"top_logprobs", "0"},
                  {"truncation", "\"disabled\""},
                  {"user", "null"}};
    int bad = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        json_t *own = json_object_get(r->body, fields[i].name);
        bad |= own && !json_is_null(own) ? json_object_set(response, fields[i].name, own)
                                         : json_object_set_new(response, fields[i].name,
                                                               json_loads(fields[i].otherwise, JSON_DECODE_ANY, NULL));
    }
    return bad;
}

/* A float as people write it: 0.8, not 0.800000012. */
static json_t *short_real(float x)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", (double)x);
    return json_real(strtod(text, NULL));
}

/* Takes over output; `reason` says why it is incomplete, NULL: it isn't. usage and error may be NULL. */
static json_t *make_response(const struct server_request *r, const struct answer_head *head, const char *status,
                             json_t *output, const char *reason, const struct answer_usage *usage,
                             const struct err *error)
{
    json_t *response =
        json_pack("{s:o,s:s,s:I,s:s,s:b,s:n,s:n,s:s,s:o,s:b,s:n,s:b,s:o,s:o,s:n}", "id",
                  json_sprintf("resp_%s", head->id), "object", "response", "created_at", (json_int_t)head->created,
                  "status", status, "background", 0, "error", "incomplete_details", "model", head->model, "output",
                  output, "parallel_tool_calls", !r->one_call, "previous_response_id", "store", 0, "temperature",
                  short_real(r->sampling.temperature), "top_p", short_real(r->sampling.top_p), "usage");
    int bad = repeat_fields(r, response);
    if (reason)
        bad |= json_object_set_new(response, "incomplete_details", json_pack("{s:s}", "reason", reason));
    if (usage)
        bad |= json_object_set_new(response, "usage", make_usage(usage));
    if (error) {
        const char *code = server_is_overflow(error)          ? "context_length_exceeded"
                           : server_http_status(error) == 400 ? "invalid_prompt"
                           : server_http_status(error) == 503 ? "server_is_overloaded"
                                                              : "server_error";
        bad |= json_object_set_new(response, "error", json_pack("{s:s,s:s}", "code", code, "message", error->text));
    }
    return json_unless(bad, response);
}

/* ---- streams --------------------------------------------------------------------------------------------------- */

/* Sends an event, whose type and number are added to it. Takes over `data`. */
static err_code send_event(struct answer_writer *w, const char *type, json_t *data, struct bytes *out, struct err *e)
{
    json_t *event = json_pack("{s:s,s:I}", "type", type, "sequence_number", (json_int_t)w->n_sent);
    int bad = data ? json_object_update(event, data) : -1;
    json_decref(data);
    TRY(writer_send(out, type, json_unless(bad, event), e));
    w->n_sent++;
    return ERR_OK;
}

static err_code send_response(struct answer_writer *w, const char *type, json_t *response, struct bytes *out,
                              struct err *e)
{
    return send_event(w, type, json_pack("{s:o}", "response", response), out, e);
}

/* The open block as an item. */
static struct item open_item(const struct answer_writer *w, bool is_done)
{
    const struct told_choice *c = &w->choices[0];
    return (struct item){.kind = w->block,
                         .index = w->n_block - 1,
                         .id = c->call.id,
                         .name = c->call.name,
                         .text = w->text.s ? w->text.s : "",
                         .n = w->text.n,
                         .tokens = c->tokens,
                         .is_done = is_done};
}

/* What the events of a block are called. */
struct words {
    const char *prefix;        /* of the item's id */
    const char *delta, *done;  /* event types */
    const char *added, *ended; /* of the part; NULL: it has none */
    const char *part, *index;  /* its type, and how its index is called */
    const char *all;           /* how the done event calls the text */
};

static const struct words *block_words(const struct answer_writer *w)
{
    static const struct words reasoning = {"rs",
                                           "response.reasoning_text.delta",
                                           "response.reasoning_text.done",
                                           "response.content_part.added",
                                           "response.content_part.done",
                                           "reasoning_text",
                                           "content_index",
                                           "text"},
                              summary = {"rs",
                                         "response.reasoning_summary_text.delta",
                                         "response.reasoning_summary_text.done",
                                         "response.reasoning_summary_part.added",
                                         "response.reasoning_summary_part.done",
                                         "summary_text",
                                         "summary_index",
                                         "text"},
                              content = {"msg",
                                         "response.output_text.delta",
                                         "response.output_text.done",
                                         "response.content_part.added",
                                         "response.content_part.done",
                                         "output_text",
                                         "content_index",
                                         "text"},
                              function = {"fc",
                                          "response.function_call_arguments.delta",
                                          "response.function_call_arguments.done",
                                          NULL,
                                          NULL,
                                          NULL,
                                          NULL,
                                          "arguments"},
                              custom = {"ctc",
                                        "response.custom_tool_call_input.delta",
                                        "response.custom_tool_call_input.done",
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL,
                                        "input"};
    if (w->block == BLOCK_REASONING)
        return wants_summary(w->r) ? &summary : &reasoning;
    if (w->block == BLOCK_CONTENT)
        return &content;
    return tools_client_name(w->r, w->choices[0].call.name).is_custom ? &custom : &function;
}

/* What all events of the open block have: its item's id and index, and its part's. */
static json_t *make_place(const struct answer_writer *w)
{
    const struct words *words = block_words(w);
    json_t *place = json_pack("{s:o,s:I}", "item_id", item_id(&w->head, words->prefix, w->n_block - 1), "output_index",
                              (json_int_t)(w->n_block - 1));
    return json_unless(words->index && json_object_set_new(place, words->index, json_integer(0)), place);
}

/* The same with one more member, which is taken over. */
static json_t *make_place_with(const struct answer_writer *w, const char *name, json_t *value)
{
    json_t *place = make_place(w);
    return json_unless(json_object_set_new(place, name, value), place);
}

static err_code send_text_delta(struct answer_writer *w, json_t *delta, struct bytes *out, struct err *e)
{
    json_t *data = make_place_with(w, "delta", delta);
    int bad = 0;
    if (w->block == BLOCK_CONTENT)
        bad = json_object_set_new(data, "logprobs", json_array()); /* the done event has them */
    return send_event(w, block_words(w)->delta, json_unless(bad, data), out, e);
}

static err_code send_done(struct answer_writer *w, const struct item *item, struct bytes *out, struct err *e)
{
    const struct words *words = block_words(w);
    bool is_custom = w->block == BLOCK_CALL && !strcmp(words->all, "input");
    json_t *text = is_custom ? tools_custom_input(item->text, item->n) : json_text(item->text, item->n);
    if (is_custom)
        TRY(send_text_delta(w, json_incref(text), out, e));
    json_t *data = make_place_with(w, words->all, text);
    int bad = 0;
    if (w->block == BLOCK_CALL && !is_custom)
        bad |= json_object_set_new(data, "name", json_string(tools_client_name(w->r, item->name).name));
    if (w->block == BLOCK_CONTENT)
        bad |= json_object_set(data, "logprobs", item->tokens);
    TRY(send_event(w, words->done, json_unless(bad, data), out, e));
    return words->ended ? send_event(w, words->ended, make_place_with(w, "part", make_part(words->part, item)), out, e)
                        : ERR_OK;
}

static err_code close_block(struct answer_writer *w, struct bytes *out, struct err *e)
{
    if (w->block == BLOCK_NONE)
        return ERR_OK;
    struct item item = open_item(w, true);
    TRY(send_done(w, &item, out, e));
    json_t *made = make_item(w->r, &w->head, &item);
    if (json_array_append(w->output, made) != 0) {
        json_decref(made);
        return err_nomem(e, 0, "an item");
    }
    json_t *data = json_pack("{s:I,s:o}", "output_index", (json_int_t)item.index, "item", made);
    TRY(send_event(w, "response.output_item.done", data, out, e));
    if (w->block == BLOCK_CONTENT) {
        json_decref(w->choices[0].tokens);
        w->choices[0].tokens = json_array(); /* the item has the other one */
    }
    w->block = BLOCK_NONE;
    bytes_close(&w->text);
    open_call_close(&w->choices[0].call);
    return ERR_OK;
}

static err_code open_block(struct answer_writer *w, enum block kind, const struct answer_event *event,
                           struct bytes *out, struct err *e)
{
    TRY(close_block(w, out, e));
    w->block = kind;
    w->n_block++;
    if (kind == BLOCK_CALL)
        TRY(open_call_begin(&w->choices[0].call, event, e));
    struct item item = open_item(w, false);
    TRY(send_event(
        w, "response.output_item.added",
        json_pack("{s:I,s:o}", "output_index", (json_int_t)item.index, "item", make_item(w->r, &w->head, &item)), out,
        e));
    const struct words *words = block_words(w);
    struct item empty = {.text = ""};
    return words->added
               ? send_event(w, words->added, make_place_with(w, "part", make_part(words->part, &empty)), out, e)
               : ERR_OK;
}

static err_code tell_text(struct answer_writer *w, enum block kind, const struct answer_event *event, struct bytes *out,
                          struct err *e)
{
    if (w->block != kind && kind == BLOCK_CALL)
        return ERR_OK; /* arguments of no call */
    if (w->block != kind)
        TRY(open_block(w, kind, event, out, e));
    TRY(bytes_add(&w->text, event->text, event->n, e));
    if (kind == BLOCK_CALL && tools_client_name(w->r, w->choices[0].call.name).is_custom)
        return ERR_OK; /* send_done has the input */
    return send_text_delta(w, json_text(event->text, event->n), out, e);
}

static err_code tell_begin(struct answer_writer *w, struct bytes *out, struct err *e)
{
    static const char *const types[] = {"response.created", "response.in_progress"};
    for (int i = 0; i < 2; i++)
        TRY(send_response(w, types[i], make_response(w->r, &w->head, "in_progress", json_array(), NULL, NULL, NULL),
                          out, e));
    return ERR_OK;
}

static err_code tell_end(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    bool is_cut = event->finish == FINISH_LENGTH;
    TRY(close_block(w, out, e));
    return send_response(w, is_cut ? "response.incomplete" : "response.completed",
                         make_response(w->r, &w->head, is_cut ? "incomplete" : "completed", json_incref(w->output),
                                       is_cut ? "max_output_tokens" : NULL, &event->usage, NULL),
                         out, e);
}

static err_code tell(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    switch (event->kind) {
    case ANSWER_BEGIN: return tell_begin(w, out, e);
    case ANSWER_REASONING: return w->r->hides_reasoning ? ERR_OK : tell_text(w, BLOCK_REASONING, event, out, e);
    case ANSWER_CONTENT: return tell_text(w, BLOCK_CONTENT, event, out, e);
    case ANSWER_CALL: return open_block(w, BLOCK_CALL, event, out, e);
    case ANSWER_ARGUMENTS: return tell_text(w, BLOCK_CALL, event, out, e);
    case ANSWER_CALL_END: return w->block == BLOCK_CALL ? close_block(w, out, e) : ERR_OK;
    case ANSWER_TOKEN: return writer_add_token(w, event, e);
    case ANSWER_END: return tell_end(w, event, out, e);
    case ANSWER_FAILED:
        return send_response(w, "response.failed",
                             make_response(w->r, &w->head, "failed", json_incref(w->output), NULL, NULL, event->error),
                             out, e);
    case ANSWER_PROGRESS: break;
    }
    return ERR_OK;
}

/* An event of its own: some clients measure silence between events, and skip comments. */
static void ping(struct answer_writer *w, struct bytes *out)
{
    err_code unsent = send_event(w, "keepalive", json_object(), out, NULL);
    (void)unsent; /* one less where memory is short */
}

static json_t *whole(const struct server_request *r, const struct answer_head *head,
                     const struct gathered_choice *choices)
{
    const struct gathered_choice *c = &choices[0];
    json_t *output = json_array();
    struct item item = {.is_done = true};
    int bad = 0;
    if (c->reasoning.n > 0 && !r->hides_reasoning) {
        item = (struct item){BLOCK_REASONING, item.index, NULL, NULL, c->reasoning.s, c->reasoning.n, NULL, true};
        bad |= json_array_append_new(output, make_item(r, head, &item));
        item.index++;
    }
    if (c->content.n > 0) {
        json_t *tokens = r->n_logprob >= 0 ? c->logprobs : NULL;
        item = (struct item){BLOCK_CONTENT, item.index, NULL, NULL, c->content.s, c->content.n, tokens, true};
        bad |= json_array_append_new(output, make_item(r, head, &item));
        item.index++;
    }
    for (size_t i = 0; i < c->n_calls; i++, item.index++) {
        const struct gathered_call *call = &c->calls[i];
        size_t n = strlen(call->arguments);
        item = (struct item){BLOCK_CALL, item.index, call->id, call->name, call->arguments, n, NULL, true};
        bad |= json_array_append_new(output, make_item(r, head, &item));
    }
    bool is_cut = c->finish == FINISH_LENGTH;
    return json_unless(bad, make_response(r, head, is_cut ? "incomplete" : "completed", output,
                                          is_cut ? "max_output_tokens" : NULL, &c->usage, NULL));
}

const struct protocol protocol_responses = {.name = "responses",
                                            .content_type = "text/event-stream",
                                            .overflows_in_stream = true,
                                            .parse = parse,
                                            .error = openai_error,
                                            .open = writer_open,
                                            .event = tell,
                                            .ping = ping,
                                            .close = writer_close,
                                            .whole = whole};
