/* Builds answers of OpenAI's responses API: items, and the response around them. */
#include <string.h>

#include "base/json_text.h"
#include "server/responses_internal.h"

/* ---- items ----------------------------------------------------------------------------------------------------- */

bool responses_want_summary(const struct server_request *r)
{
    const json_t *reasoning = json_object_get(r->body, "reasoning");
    return json_is_string(json_object_get(reasoning, "summary"));
}

json_t *responses_item_id(const struct answer_head *head, const char *prefix, int64_t index)
{
    return json_sprintf("%s_%s_%lld", prefix, head->id, (long long)index);
}

json_t *responses_part(const char *type, const struct item *item)
{
    json_t *part = json_pack("{s:s,s:o}", "type", type, "text", json_text(item->text, item->n));
    if (!request_is(type, "output_text"))
        return part;
    int bad = json_object_set_new(part, "annotations", json_array());
    bad |= json_object_set_new(part, "logprobs", item->tokens ? json_incref(item->tokens) : json_array());
    return json_unless(bad, part);
}

/* A list with the item's part, or an empty list as long as the item has no text. */
static json_t *make_parts(const char *type, const struct item *item)
{
    return item->is_done && item->n > 0 ? json_pack("[o]", responses_part(type, item)) : json_array();
}

static json_t *make_reasoning(const struct server_request *r, const struct answer_head *head, const struct item *item)
{
    bool is_summary = responses_want_summary(r);
    json_t *made = json_pack("{s:s,s:o,s:o}", "type", "reasoning", "id", responses_item_id(head, "rs", item->index),
                             "summary", is_summary ? make_parts("summary_text", item) : json_array());
    int bad = 0;
    if (!is_summary)
        bad |= json_object_set_new(made, "content", make_parts("reasoning_text", item));
    if (responses_include(r, "reasoning.encrypted_content"))
        bad |= json_object_set_new(made, "encrypted_content",
                                   item->is_done ? json_sprintf("%s%.*s", responses_sealed, (int)item->n, item->text)
                                                 : json_null());
    return json_unless(bad, made);
}

static const char *item_status(const struct item *item)
{
    return !item->is_done ? "in_progress" : item->is_cut ? "incomplete" : "completed";
}

json_t *responses_call_input(const struct item *item, bool is_custom)
{
    return is_custom ? tools_custom_input(item->text, item->is_cut ? 0 : item->n) : json_text(item->text, item->n);
}

static json_t *make_call(const struct server_request *r, const struct answer_head *head, const struct item *item)
{
    struct tool_name name = tools_client_name(r, item->name);
    const char *type = name.is_custom ? "custom_tool_call" : "function_call";
    json_t *input = responses_call_input(item, name.is_custom);
    if (!item->is_done) {
        json_decref(input);
        input = json_string("");
    }
    return json_pack("{s:s,s:o,s:s,s:s,s:s,s:s*,s:o}", "type", type, "id",
                     responses_item_id(head, name.is_custom ? "ctc" : "fc", item->index), "call_id", item->id, "status",
                     item_status(item), "name", name.name, "namespace", name.space,
                     name.is_custom ? "input" : "arguments", input);
}

static json_t *make_item(const struct server_request *r, const struct answer_head *head, const struct item *item)
{
    if (item->kind == BLOCK_REASONING)
        return make_reasoning(r, head, item);
    if (item->kind == BLOCK_CALL)
        return make_call(r, head, item);
    return json_pack("{s:s,s:o,s:s,s:s,s:o}", "type", "message", "id", responses_item_id(head, "msg", item->index),
                     "role", "assistant", "status", item_status(item), "content", make_parts("output_text", item));
}

json_t *responses_item(const struct server_request *r, const struct answer_head *head, const struct item *item)
{
    json_t *made = make_item(r, head, item);
    if (made && item->is_done && r->kept && !json_is_false(json_object_get(r->body, "store")))
        kept_items_add(r->kept, made);
    return made;
}

/* ---- the response ---------------------------------------------------------------------------------------------- */

static json_t *make_usage(const struct answer_usage *u)
{
    json_t *usage = json_pack("{s:I,s:{s:I,s:i},s:I,s:{s:I},s:I}", "input_tokens", (json_int_t)u->n_prompt,
                              "input_tokens_details", "cached_tokens", (json_int_t)u->n_cached, "cache_write_tokens", 0,
                              "output_tokens", (json_int_t)u->n_answer, "output_tokens_details", "reasoning_tokens",
                              (json_int_t)u->n_reasoning, "total_tokens", (json_int_t)(u->n_prompt + u->n_answer));
    return usage_with_substitutes(usage, u);
}

/* Copies fields of the request into the response, or their defaults. */
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

json_t *responses_make(const struct server_request *r, const struct answer_head *head, const char *status,
                       json_t *output, const char *reason, const struct answer_usage *usage, const struct err *error)
{
    json_t *response =
        json_pack("{s:o,s:s,s:I,s:s,s:b,s:n,s:n,s:s,s:o,s:b,s:n,s:b,s:o,s:o,s:n}", "id",
                  json_sprintf("resp_%s", head->id), "object", "response", "created_at", (json_int_t)head->created,
                  "status", status, "background", 0, "error", "incomplete_details", "model", head->model, "output",
                  output, "parallel_tool_calls", !r->one_call, "previous_response_id", "store", 0, "temperature",
                  json_float(r->sampling.temperature), "top_p", json_float(r->sampling.top_p), "usage");
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
